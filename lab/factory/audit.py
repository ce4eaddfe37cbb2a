"""An independent look at planted subjects, by interventions on edges that training never made.

For every subject with a circuit, of any fleet and architecture, and for each of its tasks, on fresh
inputs, with corrupted values from other inputs:

1. Keep a circuit and corrupt every edge outside it: how many answers stay right? Once for the
   complete labels, once for the interpbench ones, which drop reads that another writer passes on.
2. Corrupt everything that one component of the circuit writes: how many answers stay right? A
   component that carries the same value on every input of full length, such as the length, cannot
   be missed.

    python -m lab.factory audit [--subjects DIR] [--json]
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from statistics import quantiles

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.cases.case import Case
from graphcircuits.cases.multitask import MultiCase
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import find_case
from graphcircuits.engine.masked import masked_logits
from graphcircuits.subject.files import load_transformer
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from lab.programs import parser

SHIPPED = Path(str(files("graphcircuits").joinpath("data/subjects")))
PAIRS = 128
BROKEN = 0.05
"""A component counts as needed if corrupting it costs at least this share of the answers."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Shares of right answers of one subject."""

    subject: str
    """The id of its order; of several tasks with the task in its case."""
    layers: int
    plain: float
    interpbench: float
    complete: float
    without: dict[str, float]
    """By component of the circuit: with all that it writes corrupted."""

    @property
    def unneeded(self) -> list[str]:
        """Components of the circuit that can be corrupted at hardly any cost."""
        return [name for name, share in self.without.items() if share > self.plain - BROKEN]


@torch.no_grad()
def audit(case: Case, subject: Transformer, pairs: Pairs, name: str | None = None) -> Audit:
    """Cut the complements of the circuits, then each component, and count right answers."""
    graph = subject.graph
    components = list(case.layout.components)
    index = {name: writer for writer, name in enumerate(graph.writer_names)}
    masks = [
        torch.ones(graph.n_edges, dtype=torch.bool),
        case.labels("interpbench", graph).mask,
        case.labels("complete", graph).mask,
        *(graph.edge_writers != index[component.name] for component in components),
    ]
    corrupted = subject.run(pairs.corrupted).writers
    logits = masked_logits(subject, pairs.clean, torch.stack(masks).to(subject.dtype), corrupted)
    shares = right_shares(logits, pairs, case.categorical)
    plain, interpbench, complete, *without = shares.tolist()
    names = [component.name for component in components]
    return Audit(
        subject=name or case.id,
        layers=graph.n_layers,
        plain=plain,
        interpbench=interpbench,
        complete=complete,
        without=dict(zip(names, without, strict=True)),
    )


def right_shares(
    logits: Float[Tensor, "mask batch pos d_vocab_out"], pairs: Pairs, categorical: bool
) -> Float[Tensor, " mask"]:
    """The share of scored positions with the program's answer; numbers within 0.05."""
    assert pairs.targets is not None
    right: Bool[Tensor, "mask batch pos"]
    if categorical:
        right = logits.argmax(-1) == pairs.targets.argmax(-1)
    else:
        right = (logits[..., 0] - pairs.targets).abs() <= 0.05
    return (right & pairs.scored).sum((1, 2)) / pairs.scored.sum()


def audit_all(cases: Sequence[str], directory: Path = SHIPPED, seed: int = 12345) -> list[Audit]:
    """Audits of the subjects in a directory that have a circuit: all, or those of some cases."""
    paths = {Order.parse(path.stem): path for path in directory.glob("*.safetensors")}
    return [
        audit(
            case,
            load_transformer(paths[order]).to(torch.float32),
            case.pairs(PAIRS, seed=seed),
            replace(order, case=case.id).id,
        )
        for order in sorted(paths)
        if order.fleet != "natural" and (not cases or order.case in cases)
        for case in _tasks(order.case)
    ]


def _tasks(id: str) -> Sequence[Case]:
    found = find_case(id)
    return found.tasks if isinstance(found, MultiCase) else [found]


def summary(audits: list[Audit]) -> dict[str, object]:
    """Quantiles of the shares, and what could be removed at no cost."""

    def five(values: list[float]) -> list[float]:
        quarters = quantiles(values, n=4, method="inclusive")
        return [round(x, 3) for x in (min(values), *quarters, max(values))]

    needed = [share for a in audits for share in a.without.values()]
    return {
        "subjects": len(audits),
        "plain_min_q1_median_q3_max": five([a.plain for a in audits]),
        "interpbench_circuit_alone": five([a.interpbench for a in audits]),
        "complete_circuit_alone": five([a.complete for a in audits]),
        "without_one_component": five(needed),
        "components": len(needed),
        "components_hardly_missed": sum(len(a.unneeded) for a in audits),
        "complete_below_0.97": {
            a.subject: round(a.complete, 3) for a in audits if a.complete < 0.97
        },
        "hardly_missed": {a.subject: a.unneeded for a in audits if a.unneeded},
    }


def main(arguments: Sequence[str]) -> None:
    words = parser("lab.factory audit", __doc__)
    words.add_argument("cases", nargs="*", help="cases to audit; all of them if none is named")
    words.add_argument("--subjects", type=Path, default=SHIPPED, help="directory of a build")
    words.add_argument("--json", action="store_true", help="everything, for machines")
    options = words.parse_args(arguments)
    audits = audit_all(options.cases, options.subjects)
    if options.json:
        record = {"summary": summary(audits), "subjects": [vars(a) for a in audits]}
        sys.stdout.write(json.dumps(record) + "\n")
        return
    for name, value in summary(audits).items():
        sys.stdout.write(f"{name:28} {value}\n")
