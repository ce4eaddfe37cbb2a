"""How far faithfulness and truth agree, where language models have circuits that are known.

1. Every method scores every call of the planted language models, and its circuit is proposed as
   for users: the smallest that was found to keep 0.9 of the model's own output.
2. A row says how good the ranking is by truth (AUROC, AUPRC) and by output (the edges that keep
   0.9, log area), and how much of the proposed circuit is true, and of the true one proposed.
3. `agreement` correlates the two over cases, by ranks, for each method: does a method that is
   faithful on a case find the planted circuit there? `unlike` lists small circuits that keep 0.97
   and miss a third of the planted edges, with what they have in their place: backup paths.

python -m lab.studies truth --csv docs/results/planted-truth.csv [--split test] [--subjects DIR]
    [--methods gcl eap-ig ...] [--pairs 64]
"""

import csv
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from graphcircuits import localize
from graphcircuits.cases import LANGUAGE_MODELS, case_ids
from graphcircuits.circuit import Circuit
from graphcircuits.compare.selection import Unit
from graphcircuits.evaluation.auroc import auprc, auroc
from graphcircuits.evaluation.evaluate import faithfulness, faithfulness_curve
from graphcircuits.evaluation.proposal import fresh_seed
from graphcircuits.evaluation.text_tables import markdown_table
from graphcircuits.methods import BeyondTraining
from lab.intervals import Interval, bootstrap
from lab.programs import parser

METHODS = ("gcl", "gcl-blind", "eap-ig", "eap-ig+paths", "eap", "relp", "exact", "edge-frequency")
FAITHFUL, MISSED = 0.97, 1 / 3
"""What a circuit keeps that does the job, and how much of the planted one another one lacks."""


@dataclass(frozen=True)
class Row:
    """A method on a case."""

    case: str
    method: str
    auroc: float
    auprc: float
    edges_for: int
    """Best edges that keep 0.9, on pairs that were not seen."""
    log_area: float
    size: int
    """Of the proposed circuit."""
    true_size: int
    precision: float
    recall: float
    keeps: float
    true_keeps: float
    """On pairs that were not seen, the proposed circuit and the planted one."""
    missing: str
    extra: str
    """Edges of one that the other does not have."""


def measured(id: str, methods: Sequence[str], n_pairs: int, folder: Path | None) -> Iterator[Row]:
    """The rows of a case; q, k and v are told apart."""
    unit = Unit.of(id)
    subject, pairs = unit.subject(folder), unit.case.pairs(n_pairs, seed=0)
    fresh = unit.case.pairs(n_pairs, seed=fresh_seed(0))
    truth = unit.case.labels(graph=subject.graph)
    for method in methods:
        result = localize(subject, pairs, method)
        circuit = result.circuit()
        curve = faithfulness_curve(subject, fresh, result)
        keeps, true_keeps = faithfulness(subject, fresh, [circuit, truth])
        both = len(circuit & truth)
        yield Row(
            case=id,
            method=method,
            auroc=auroc(result, truth, "qkv"),
            auprc=auprc(result, truth, "qkv"),
            edges_for=curve.edges_for(0.9) or curve.n_edges,
            log_area=curve.log_area,
            size=len(circuit),
            true_size=len(truth),
            precision=both / max(1, len(circuit)),
            recall=both / len(truth),
            keeps=keeps,
            true_keeps=true_keeps,
            missing=_names(truth - circuit),
            extra=_names(circuit - truth),
        )


def _names(edges: Circuit) -> str:
    return " ".join(edges)


# --- what the rows say ---------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """A line for each method: means over cases with their intervals, and the agreement."""
    lines = []
    for method in dict.fromkeys(row.method for row in rows):
        some = [row for row in rows if row.method == method]
        cells = [method]
        for name in ("auroc", "auprc", "precision", "recall", "keeps"):
            cells.append(_mean(some, lambda row, name=name: float(getattr(row, name))))
        needed = np.exp(np.mean([np.log(row.edges_for) for row in some]))
        cells += [f"{needed:.1f}", f"{np.mean([row.size for row in some]):.1f}"]
        cells.append(agreement(some))
        lines.append(cells)
    columns = ["Method", "AUROC", "AUPRC", "Precision", "Recall", "Keeps", "Edges 0.9", "Proposed"]
    return markdown_table([*columns, "Agreement"], lines)


def _mean(rows: Sequence[Row], value: Callable[[Row], float]) -> str:
    values = {row.case: {0: value(row)} for row in rows}
    found: Interval = bootstrap([values], lambda of: of[0].mean(1))
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def agreement(rows: Sequence[Row]) -> str:
    """The correlation by ranks of faithfulness (1 - log area) with truth (AUPRC) over cases."""
    faithful = _ranks([-row.log_area for row in rows])
    true = _ranks([row.auprc for row in rows])
    if faithful.std() == 0 or true.std() == 0:
        return "none: all alike"
    return f"{np.corrcoef(faithful, true)[0, 1]:+.2f}"


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks from below; those that tie share the mean of theirs."""
    array = np.array(values)
    less, same = array[:, None] > array, array[:, None] == array
    return less.sum(1) + (same.sum(1) - 1) / 2


def unlike(rows: Sequence[Row]) -> list[Row]:
    """Faithful circuits, no larger than the planted ones, that lack much of these."""
    return [
        row
        for row in rows
        if row.keeps >= FAITHFUL and row.size <= row.true_size and row.recall < 1 - MISSED
    ]


def main(given: Sequence[str]) -> None:
    """Measure all, write the rows, and print what they say."""
    words = parser("lab.studies truth", __doc__)
    words.add_argument("--csv", type=Path, required=True)
    words.add_argument("--split", default="test", choices=("test", "pool"))
    words.add_argument("--subjects", type=Path, help="folder that `lab.factory planted` wrote")
    words.add_argument("--methods", nargs="+", default=METHODS)
    words.add_argument("--pairs", type=int, default=64)
    chosen = words.parse_args(given)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", BeyondTraining)
    rows, without = [], []
    for id in case_ids(LANGUAGE_MODELS, chosen.split):
        try:
            rows += measured(id, chosen.methods, chosen.pairs, chosen.subjects)
        except FileNotFoundError:
            without.append(id)
        sys.stderr.write(f"{id}\n")
    with chosen.csv.open("w", newline="") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, rows))
    print(table(rows))
    for row in unlike(rows):
        print(f"\n{row.case} by {row.method} keeps {row.keeps:.3f} with {row.size} edges;")
        print(f"  without {row.missing}\n  instead {row.extra}")
    print(f"\nWithout a subject: {', '.join(without) or 'none'}.")
