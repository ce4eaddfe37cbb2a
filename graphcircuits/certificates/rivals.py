"""Is it the only one? A search for circuits that keep as much and share as few edges as possible.

Edges of the circuit are put last in the ranking that a search gave, all of them or the weaker ones:
on a large graph nothing works without the best. While the ranking is refined, all edges of the
circuit are pushed down at every step. Circuits are proposed from what comes out as they always are.
A rival keeps what the circuit keeps, up to SLACK, on fresh prompts, with at most LARGER times its
edges.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from graphcircuits.certificates.certificate import Line
from graphcircuits.certificates.judging import Judge
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.proposal import LARGE, propose
from graphcircuits.methods.refine import refinement
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

ATTEMPTS = ((0.5, 1.0), (0.5, 0.3), (1.0, 1.0))
"""The share of the circuit's edges that are put last, and how far all of them are pushed down at
every step, in root mean squares of it: one search for each."""
ON_LARGE = 2
"""How many of them are made on a large graph, where the last never led anywhere."""
STEPS = 60
"""Steps of refining for each of them."""
SLACK, LARGER = 0.05, 1.5
"""How much less a rival may keep, and how many times as many edges it may have."""


@dataclass(frozen=True, eq=False)
class Rival:
    """A circuit that was searched for apart from the one at hand."""

    circuit: Circuit
    shared: float
    """The share of the smaller one's edges that are in both."""
    kept: float
    equal: bool
    """Whether it keeps as much, with not many more edges."""


def find_rivals(
    subject: Transformer,
    pairs: Pairs,
    start: Result,
    judge: Judge,
    circuit: Circuit,
    keep: float,
    *,
    generator: torch.Generator,
    steps: int = STEPS,
    attempts: Sequence[tuple[float, float]] | None = None,
) -> list[Rival]:
    """One for each of the ATTEMPTS, or for those that are given."""
    if attempts is None:
        attempts = ATTEMPTS[: ON_LARGE if len(circuit.mask) >= LARGE else None]
    ours, rivals = judge.kept(circuit), []
    scores = start.scores.double()
    last = float(scores.min()) - 1.0
    edges = circuit.mask.nonzero().flatten()
    weakest = edges[scores[edges].argsort(stable=True)]
    for share, push in attempts:
        judge.clock.check()
        put_last = scores.clone()
        put_last[weakest[: math.ceil(share * len(edges))]] = last
        avoid = push * circuit.mask.to(torch.float32)
        refined = refinement(
            subject, pairs, put_last, steps=steps, generator=generator, avoid=avoid
        )
        ranking = Result(graph=start.graph, scores=refined.scores)
        other = propose(subject, pairs, ranking, keep=keep, kind="natural").circuit
        kept = judge.kept(other)
        equal = kept >= ours - SLACK and len(other) <= LARGER * len(circuit)
        smaller = max(1, min(len(other), len(circuit)))
        rivals.append(Rival(other, len(other & circuit) / smaller, kept, equal))
    return rivals


def unique(circuit: Circuit, rivals: Sequence[Rival], least: float) -> Line:
    """How many of its edges a circuit has to have to keep as much, as far as the search found."""
    equal = [rival for rival in rivals if rival.equal]
    value = min((rival.shared for rival in equal), default=1.0)
    told = f"no rival among {len(rivals)} that were searched for"
    if equal:
        best = min(equal, key=lambda rival: rival.shared)
        told = (
            f"{len(equal)} of {len(rivals)} that were searched for keep as much; one of "
            f"{len(best.circuit):,} edges keeps {best.kept:.2f} and shares {best.shared:.0%}"
        )
    return Line(
        name="unique",
        passed=value >= least,
        value=value,
        interval=None,
        asked=f"at least {least:g}",
        sentence=told,
        details={
            "rivals": [
                {
                    "edges": len(rival.circuit),
                    "shared": rival.shared,
                    "kept": rival.kept,
                    "equal": rival.equal,
                }
                for rival in rivals
            ]
        },
    )
