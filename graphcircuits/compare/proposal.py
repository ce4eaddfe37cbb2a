"""The circuit that a result proposes, and how faithful it is: what `localize` ends with.

1. `propose` takes as many of the best edges as it is told or, left to itself, as few as keep GOAL
   of the behaviour on the pairs that the result was found on: the smallest of a grid of sizes.
   If none keeps so much, it takes the most faithful of them.
2. How faithful the circuit is is measured on those pairs and on fresh ones, where some are given.
   `unseen` takes pairs that the result was found on out of them.
3. `recorded_curve` measures the best edges at every size of the grid, for those who want to look
   at other sizes as well.

On a large graph the grid is MIB's, without the whole graph, and some pairs stand for all, because a
curve can take longer than the method; on a small one the grid is log-spaced, and all pairs count.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from graphcircuits.circuit import Circuit
from graphcircuits.compare.evaluate import faithfulness, log_sizes, mib_sizes, shown
from graphcircuits.result import Result
from graphcircuits.result_files import RecordedCurve
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

GOAL = 0.8
"""Faithfulness that a circuit of a size left open should reach."""
EDGES = 20
"""Of a circuit, where nothing says how many."""
LARGE = 10_000
"""Edges from which on a graph is large: a thousandth of them is ten."""
FEW_PAIRS = 24
"""Pairs that stand for all on a large graph."""


def fresh_seed(seed: int) -> int:
    """What draws fresh pairs, where this seed drew those that a result was found on."""
    return (seed + 1000) % 2**32


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A circuit, and how faithful it is where that could be measured."""

    circuit: Circuit
    found_on: float | None = None
    """Faithfulness on the pairs that the result was found on."""
    n_pairs: int = 0
    """How many of them it was measured on."""
    fresh: float | None = None
    """Faithfulness on pairs that the result was not found on."""
    n_fresh: int = 0
    curve: RecordedCurve | None = None
    """On the pairs that the result was found on, where the size was left open."""
    problems: tuple[str, ...] = ()
    """Why numbers are missing."""

    def sentences(self) -> list[str]:
        """What there is to say of the circuit."""
        said = []
        if self.found_on is not None:
            told = f"they keep {shown(self.found_on)} of the behaviour on the "
            told += f"{_count(self.n_pairs, 'pair')} they were found on"
            if self.fresh is not None:
                told += f", {shown(self.fresh)} on {_count(self.n_fresh, 'fresh pair')}"
            said.append(told)
            if self.curve is not None:
                tried, reached = len(self.curve.sizes), self.found_on >= GOAL
                said.append(
                    f"this is the smallest of {tried} sizes that keeps {GOAL}"
                    if reached
                    else f"none of {tried} sizes keeps {GOAL}; this one keeps most"
                )
        return [*said, *(f"how faithful it is cannot be said: {one}" for one in self.problems)]

    def record(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return {
            "found_on": self.found_on,
            "pairs": self.n_pairs,
            "fresh": self.fresh,
            "fresh_pairs": self.n_fresh,
            "problems": list(self.problems),
            "curve": None if self.curve is None else self.curve.to_json(),
        }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def propose(
    result: Result,
    subject: Transformer,
    pairs: Pairs,
    *,
    edges: int | None = None,
    fresh: Pairs | None = None,
    seed: int | None = None,
) -> Proposal:
    """The best `edges`, or as few as keep GOAL of the behaviour, and how faithful they are.

    `seed` is what drew the pairs, for the record. Where faithfulness cannot be measured, such as on
    pairs whose corruption changes nothing, the circuit has EDGES edges if nothing else is said.
    """
    some, problems = _few(subject, pairs), []
    found_on = curve = None
    size = edges
    try:
        if size is None:
            curve = _curve(result, subject, some, seed)
            reached = [value >= GOAL for value in curve.faithfulness]
            best = max(range(len(reached)), key=curve.faithfulness.__getitem__)
            place = reached.index(True) if any(reached) else best
            size, found_on = curve.sizes[place], curve.faithfulness[place]
        else:
            (found_on,) = faithfulness(subject, some, [result.circuit(edges=size)])
    except (ValueError, MemoryError) as error:
        problems.append(str(error))
        size = min(EDGES, subject.graph.n_edges) if size is None else size
    circuit = result.circuit(edges=size)
    proposal = Proposal(
        circuit=circuit,
        found_on=found_on,
        n_pairs=len(some),
        curve=curve,
        problems=tuple(problems),
    )
    return proposal if fresh is None or problems else _on_fresh(proposal, subject, pairs, fresh)


def _on_fresh(proposal: Proposal, subject: Transformer, seen: Pairs, fresh: Pairs) -> Proposal:
    left = unseen(fresh, seen)
    if left is None:
        problem = (
            f"on fresh pairs: all {len(fresh)} that were drawn are among those it was found on"
        )
        return replace(proposal, problems=(problem,))
    some = _few(subject, left)
    try:
        (value,) = faithfulness(subject, some, [proposal.circuit])
    except (ValueError, MemoryError) as error:
        return replace(proposal, problems=(f"on fresh pairs: {error}",))
    return replace(proposal, fresh=value, n_fresh=len(some))


def unseen(pairs: Pairs, seen: Pairs) -> Pairs | None:
    """The pairs that are not among those seen; None if there are none."""
    known = set(_keys(seen))
    rows = [row for row, key in enumerate(_keys(pairs)) if key not in known]
    return pairs[rows] if rows else None


def _keys(pairs: Pairs) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The prompts up to the last scored position: what follows may be padding."""
    places = torch.arange(1, pairs.scored.shape[1] + 1, device=pairs.scored.device)
    ends = (pairs.scored * places).amax(1).tolist()
    both = zip(pairs.clean.tolist(), pairs.corrupted.tolist(), ends, strict=True)
    return [(tuple(clean[:end]), tuple(corrupted[:end])) for clean, corrupted, end in both]


def _few(subject: Transformer, pairs: Pairs) -> Pairs:
    return pairs[:FEW_PAIRS] if subject.graph.n_edges >= LARGE else pairs


def recorded_curve(
    result: Result, subject: Transformer, pairs: Pairs, *, size: int, seed: int | None = None
) -> RecordedCurve | None:
    """How faithful the best edges are at all sizes of the grid and at this one.

    None where it cannot be measured.
    """
    try:
        return _curve(result, subject, _few(subject, pairs), seed, size)
    except (ValueError, MemoryError):
        return None


def _curve(
    result: Result, subject: Transformer, pairs: Pairs, seed: int | None, *also: int
) -> RecordedCurve:
    """Of all sizes of the grid but the whole graph, which is faithful whatever the ranking."""
    n_edges = subject.graph.n_edges
    grid = mib_sizes(n_edges) if n_edges >= LARGE else log_sizes(n_edges)
    sizes = sorted({size for size in (*grid, *also) if size < n_edges})
    circuits = [result.circuit(edges=size, prune=True) for size in sizes]
    values = faithfulness(subject, pairs, circuits)
    return RecordedCurve(sizes=sizes, faithfulness=values, pairs=len(pairs), seed=seed)
