"""What proposed circuits are worth where the true ones are known: planted subjects.

1. Circuits are found on PAIRS pairs of each shipped planted subject by three rules: the edges that
   `gcl` holds for likely, alone; the proposed circuit of `gcl`; that of `eap-ig`, which knows no
   probabilities. `gcl` takes the predictor that was trained without the case.
2. Each is compared with the true circuit edge by edge, q, k and v apart, under complete labels, and
   run on FRESH pairs drawn with another seed: what it keeps, by output.
3. Tables have means with 95% intervals over subjects (drawn again with repeats), quantiles and the
   worst; a circuit without edges has no precision, and counts as 0 there. Subjects too strange for
   `gcl` to give probabilities have a table of their own.

python -m lab.benchmarks.proposal [--split pool] [--cases ID ...] [--csv FILE]
"""

import argparse
import csv
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from graphcircuits import localize
from graphcircuits.cases import Case, case_ids, load_case
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.evaluate import CircuitRuns, faithfulness
from graphcircuits.evaluation.proposal import LIKELY, fresh_seed
from graphcircuits.evaluation.text_tables import markdown_table
from graphcircuits.methods import BeyondTraining
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from lab.intervals import bootstrap

PAIRS, FRESH = 32, 64
IDLE = 0.001
"""Of the behaviour: what an edge costs that no prompt seems to need."""


def likely_alone(subject: Transformer, pairs: Pairs) -> Circuit | None:
    """The edges above LIKELY, whatever they keep; None on subjects too strange to say."""
    result = localize(subject, pairs, "gcl", keep=None)
    if result.probabilities is None:
        return None
    return Circuit.from_mask(result.graph, result.probabilities > LIKELY)


def proposed_by(method: str) -> Callable[[Transformer, Pairs], Circuit]:
    """The proposed circuit of a method."""
    return lambda subject, pairs: localize(subject, pairs, method).circuit()


RULES = {
    "likely edges of `gcl` alone": likely_alone,
    "proposed, `gcl`": proposed_by("gcl"),
    "proposed, `eap-ig`": proposed_by("eap-ig"),
}


@dataclass(frozen=True)
class Row:
    """One circuit."""

    case: str
    split: str
    rule: str
    edges: int
    size: int
    true_size: int
    precision: float
    recall: float
    keeps: float
    true_keeps: float
    """What the true circuit keeps."""
    idle: int
    """Edges of it that cost less than IDLE when they are cut alone, where it was found."""
    idle_true: int
    seconds: float
    """Of the method and the rule."""


def measured(case: Case) -> Iterator[Row]:
    """The circuit of each rule."""
    subject, pairs = case.subject(), case.pairs(PAIRS, seed=0)
    fresh = case.pairs(FRESH, seed=fresh_seed(0))
    truth = case.labels(graph=subject.graph)
    for rule, find in RULES.items():
        began = time.perf_counter()
        circuit = find(subject, pairs)
        seconds = time.perf_counter() - began
        if circuit is None:
            continue
        hits = len(circuit & truth)
        keeps, true_keeps = faithfulness(subject, fresh, [circuit, truth])
        idle = circuit - needed_alone(CircuitRuns(subject, pairs), circuit)
        yield Row(
            case=case.id,
            split=case.split or "",
            rule=rule,
            edges=subject.graph.n_edges,
            size=len(circuit),
            true_size=len(truth),
            precision=hits / max(1, len(circuit)),
            recall=hits / len(truth),
            keeps=keeps,
            true_keeps=true_keeps,
            idle=len(idle),
            idle_true=len(idle & truth),
            seconds=seconds,
        )


def needed_alone(runs: CircuitRuns, circuit: Circuit) -> Circuit:
    """The edges without any of which a circuit keeps less."""
    edges = circuit.mask.nonzero().flatten()
    masks = circuit.mask.repeat(len(edges), 1)
    masks[torch.arange(len(edges)), edges] = False
    whole, *left = runs([circuit, *(Circuit.from_mask(circuit.graph, mask) for mask in masks)])
    needed = torch.zeros_like(circuit.mask)
    needed[edges] = torch.tensor([whole - value >= IDLE for value in left], dtype=torch.bool)
    return Circuit.from_mask(circuit.graph, needed)


def table(rows: Sequence[Row]) -> str:
    """A line for each rule."""
    lines = []
    for rule in dict.fromkeys(row.rule for row in rows):
        some = [row for row in rows if row.rule == rule]
        cells = [rule, str(len(some)), f"{np.mean([row.size for row in some]):.1f}"]
        for name in ("precision", "recall", "keeps"):
            values = {row.case: {0: getattr(row, name)} for row in some}
            found = bootstrap([values], lambda of: of[0].mean(1))
            low = np.quantile([value[0] for value in values.values()], (0.0, 0.05, 0.25))
            cells.append(f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]")
            cells.append(" / ".join(f"{x:.2f}" for x in low))
        cells.append(f"{np.mean([row.keeps >= 0.9 for row in some]):.0%}")
        cells.append(f"{np.median([row.seconds for row in some]):.2f}")
        lines.append(cells)
    lowest = "worst / 5% / 25%"
    columns = ["Rule", "Subjects", "Edges", "Precision", lowest, "Recall", lowest, "Keeps", lowest]
    return markdown_table([*columns, "Keep 0.9", "Seconds"], lines)


def report(rows: Sequence[Row]) -> str:
    """Both tables, and what there is to say of the true circuits and of edges that cost nothing."""
    known = {row.case for row in rows if row.rule == next(iter(RULES))}
    parts = []
    for title, some in (
        ("With probabilities", [row for row in rows if row.case in known]),
        ("Without", [row for row in rows if row.case not in known]),
    ):
        if some:
            true = {row.case: row for row in some}.values()
            parts += [table(some), f"{title}, {len(true)} subjects. {_of_truth([*true])}"]
    for rule in RULES:
        size, idle, idle_true = (
            sum(getattr(row, name) for row in rows if row.rule == rule)
            for name in ("size", "idle", "idle_true")
        )
        said = f"{idle} of {size} edges cost less than {IDLE:g} alone, {idle_true} of them are true"
        parts.append(f"{rule}: {said}.")
    return "\n\n".join(parts)


def _of_truth(rows: Sequence[Row]) -> str:
    keeps = [row.true_keeps for row in rows]
    return (
        f"True circuits have {np.mean([row.true_size for row in rows]):.1f} edges of "
        f"{np.mean([row.edges for row in rows]):.0f} and keep {np.mean(keeps):.3f}, at worst "
        f"{min(keeps):.2f}."
    )


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--split", help="such as pool; all cases if left out")
    parser.add_argument("--cases", nargs="+", help="ids instead")
    parser.add_argument("--csv", type=Path, help="a file for all rows")
    words = parser.parse_args(given)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", BeyondTraining)
    rows, without = [], []
    for id in words.cases or case_ids(split=words.split):
        try:
            rows += measured(load_case(id))
        except FileNotFoundError:
            without.append(id)
    if words.csv:
        with words.csv.open("w", newline="") as file:
            names = [field.name for field in fields(Row)]
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(map(asdict, rows))
    print(report(rows))
    print(f"\nWithout a subject: {', '.join(without) or 'none'}.")


if __name__ == "__main__":
    main()
