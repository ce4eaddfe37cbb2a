"""How far faithfulness and truth agree, where language models have circuits that are known.

1. Every method scores every call of the planted language models, and its circuit is proposed as
   for users: the smallest that was found to keep 0.9 of the model's own output.
2. A row says how good the ranking is by truth (AUROC, AUPRC) and by output (the edges that keep
   0.9, log area), and how much of the proposed circuit is true, and of the true one proposed.
3. `agreement` correlates the two over cases, by ranks, for each method: does a method that is
   faithful on a case find the planted circuit there?
4. `unlike` are circuits that keep 0.97, are no larger than the planted ones, and lack a third of
   their edges. What the whole model keeps without just these edges tells two reasons apart: all of
   it, and nothing needs them; less, and they are in use, but a backup does their work where all
   else is cut.

python -m lab.studies truth [--page docs/results/planted-truth.md] [--split test] [--subjects DIR]
    [--methods gcl eap-ig ...] [--pairs 64]
"""

import csv
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits import localize
from graphcircuits.cases import LANGUAGE_MODELS, case_ids
from graphcircuits.circuit import Circuit
from graphcircuits.compare.selection import Unit
from graphcircuits.evaluation.auroc import auprc, auroc
from graphcircuits.evaluation.evaluate import faithfulness, faithfulness_curve
from graphcircuits.evaluation.proposal import fresh_seed
from graphcircuits.evaluation.text_tables import markdown_table
from graphcircuits.methods import BeyondTraining
from graphcircuits.methods.shipped import shipped
from graphcircuits.predictor.model import read_case
from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from lab.intervals import bootstrap
from lab.programs import parser

METHODS = (
    *(
        "gcl",
        "gcl-start",
        "eap-ig",
        "eap-ig+paths",
        "ig-own",
        "eap",
        "eap-gp",
        "relp",
        "nap",
        "exact",
        "acdc",
    ),
    *("edge-frequency", "gcl-blind", "random"),
)
FAITHFUL, MISSED = 0.97, 1 / 3
"""What a circuit keeps that does the job, and how much of the planted one another one lacks."""
SHOWN = ("auroc", "auprc", "precision", "recall", "keeps")


def gcl_start(subject: Transformer, pairs: Pairs) -> Float[Tensor, " edge"]:
    """The scores of `gcl` without its network: the search that it starts from, along paths."""
    ensemble, generator = shipped("default"), torch.Generator().manual_seed(0)
    with torch.no_grad():
        reading = read_case(
            ensemble.config, subject, pairs, generator=generator, dtype=ensemble.dtype
        )
        starts = [member.start(reading) for member in ensemble.members]
    found = torch.stack([start for start in starts if start is not None])
    return along_paths(found.mean(0), subject.graph)


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
    without_missing: float
    """What the whole model keeps without the planted edges that were not proposed."""
    missing: str
    extra: str
    """Edges of one circuit that the other does not have."""


def measured(id: str, methods: Sequence[str], n_pairs: int, folder: Path | None) -> Iterator[Row]:
    """The rows of a case; q, k and v are told apart."""
    unit = Unit.of(id)
    subject, pairs = unit.subject(folder), unit.case.pairs(n_pairs, seed=0)
    fresh = unit.case.pairs(n_pairs, seed=fresh_seed(0))
    truth = unit.case.labels(graph=subject.graph)
    whole = Circuit.from_mask(subject.graph, torch.ones_like(truth.mask))
    for method in methods:
        result = localize(subject, pairs, gcl_start if method == "gcl-start" else method)
        circuit = result.circuit()
        curve = faithfulness_curve(subject, fresh, result)
        missing, both = truth - circuit, len(circuit & truth)
        judged = [circuit, truth, whole - missing]
        keeps, true_keeps, without_missing = faithfulness(subject, fresh, judged)
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
            without_missing=without_missing,
            missing=" ".join(missing),
            extra=" ".join(circuit - truth),
        )


# --- what the rows say ---------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """A line for each method: means over cases with their intervals, and the agreement."""
    lines = []
    for method in dict.fromkeys(row.method for row in rows):
        some = [row for row in rows if row.method == method]
        needed = np.exp(np.mean([np.log(row.edges_for) for row in some]))
        lines.append(
            [
                method,
                *(_mean(some, lambda row, name=name: getattr(row, name)) for name in SHOWN),
                f"{needed:.1f}",
                f"{np.mean([row.size for row in some]):.1f}",
                agreement(some),
            ]
        )
    columns = ["Method", "AUROC", "AUPRC", "Precision", "Recall", "Keeps", "Edges 0.9", "Proposed"]
    return markdown_table([*columns, "Agreement"], lines)


def _mean(rows: Sequence[Row], value: Callable[[Row], float]) -> str:
    found = bootstrap([{row.case: {0: value(row)} for row in rows}], lambda of: of[0].mean(1))
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def agreement(rows: Sequence[Row]) -> str:
    """The correlation by ranks of faithfulness (1 - log area) with truth (AUPRC) over rows."""
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
        if row.keeps >= FAITHFUL
        and row.size <= row.true_size
        and len(row.missing.split()) >= MISSED * row.true_size
    ]


def example_lines(rows: Sequence[Row]) -> list[str]:
    """Those circuits, once each, with the methods that propose them."""
    methods: dict[tuple[str, str, str], list[Row]] = {}
    for row in unlike(rows):
        methods.setdefault((row.case, row.missing, row.extra), []).append(row)
    lines = []
    for some in methods.values():
        row, names = some[0], ", ".join(f"`{one.method}`" for one in some)
        instead = f" and has `{row.extra}` instead" if row.extra else ""
        lines.append(
            f"- `{row.case}`: {row.size} edges keep {row.keeps:.3f}, the {row.true_size} planted "
            f"ones {row.true_keeps:.3f}. The small circuit lacks `{row.missing}`{instead}. With "
            f"just the edges that it lacks cut, the whole model keeps {row.without_missing:.3f}. "
            f"Proposed with {names}."
        )
    return lines


def page(rows: Sequence[Row], command: str, data: str, without: Sequence[str]) -> str:
    """The page as Markdown."""
    cases = dict.fromkeys(row.case for row in rows)
    exact = sum(row.precision == row.recall == 1 for row in rows)
    examples = example_lines(rows)
    return "\n\n".join(
        [
            "# Faithfulness and truth in language models",
            f"{len(cases)} programs in [planted language models](../planted-language-models.md), "
            "every method on each; means over them with 95% intervals, q, k and v told apart.",
            f"A circuit is proposed from each ranking and pruned. Of {len(rows)} proposed circuits "
            f"{exact} are the planted ones, edge for edge. *Precision*, *recall*, *keeps* (of the "
            "model's own output, on fresh prompts) and *proposed* (edges) are of these. Pruning "
            "may find the planted circuit from a poor ranking, so rankings are told apart by "
            "*AUROC*, *AUPRC* and *edges 0.9*, the number of best edges that keep 0.9 (geometric "
            "mean).",
            "*Agreement* is the correlation by ranks, over cases, of what a ranking is by output "
            "(log area) with what it is by truth (AUPRC). `gcl-start` is `gcl` without its "
            "network; `edge-frequency`, `gcl-blind` and `random` are floors, which see nothing "
            "that the model computes.",
            table(rows),
            f"Over all methods and cases together the agreement is {agreement(rows)}.",
            "## Small faithful circuits that are not the planted ones",
            f"Circuits that keep {FAITHFUL} or more with no more edges than were planted, and lack "
            "a third of those or more:",
            "\n".join(examples) or "None.",
            "What the whole model keeps without the missing edges tells why. Where it is near 1, "
            "nothing needs them. Where it is lower, they are in use, and a backup does their work "
            "once all the rest is cut.",
            *([f"Without a subject at hand: {', '.join(without)}."] if without else []),
            f"By `{command}`; all rows are in {data}.",
        ]
    )


def read_rows(path: Path) -> list[Row]:
    """The rows of a study that was written."""
    types: dict[str, Any] = {each.name: each.type for each in fields(Row)}
    with path.open(newline="") as file:
        lines = [*csv.DictReader(file)]
    return [Row(**{name: types[name](text) for name, text in line.items()}) for line in lines]


def main(given: Sequence[str]) -> None:
    """Measure all, and write the page and its data."""
    words = parser("lab.studies truth", __doc__)
    words.add_argument("--page", type=Path, default=Path("docs/results/planted-truth.md"))
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
    if not rows:
        raise FileNotFoundError(
            f"no model of the {chosen.split} split is at hand; make them with: "
            f"python -m lab.factory planted DIR --models {chosen.split}"
        )
    data = chosen.page.with_suffix(".csv")
    with data.open("w", newline="") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(row).items()}
            )
    command = shlex.join(["python", "-m", "lab.studies", "truth", *given])
    chosen.page.write_text(page(read_rows(data), command, data.name, without) + "\n")
    sys.stdout.write(f"wrote {chosen.page} and {data}\n")
