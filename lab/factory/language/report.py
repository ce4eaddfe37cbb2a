"""What became of small language models, as tables: their sizes and losses, and what they do.

Reports come from files: `check_report` refuses one that no table can be made of.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphcircuits.cases.collection import DOES, check_shares
from graphcircuits.io.files import StoreError, short
from graphcircuits.io.store import check_types

SIZES = ("model", "layers", "heads", "width", "parameters", "loss", "bits/char", "counts")
_COUNT, _LOSS = (int,), (float, type(None))
_FIELDS = {
    "model": (str,),
    **dict.fromkeys(("layers", "heads", "width", "parameters"), _COUNT),
    **dict.fromkeys(("loss", "bits_per_character", "bigram_loss"), _LOSS),
    "problem": (str, type(None)),
}
"""What the tables are made of."""


def check_report(path: Path, report: Any) -> dict[str, Any]:
    """The report, whose fields the tables can be made of; StoreError otherwise."""
    check_shares(path, report)
    check_types(path, {name: report[name] for name in _FIELDS if name in report}, _FIELDS, "report")
    losses = [report[name] for name, kinds in _FIELDS.items() if kinds is _LOSS]
    if not all(loss is None or math.isfinite(loss) for loss in losses):
        raise StoreError(f"{path}: losses must be finite or null, got {short(losses)}.")
    return report


def sizes(report: Mapping[str, Any]) -> list[str]:
    """A row of the table with the columns SIZES; `counts` is the loss of counts of neighbours."""
    numbers = (report["layers"], report["heads"], report["width"], f"{report['parameters']:,}")
    losses = (report["loss"], report["bits_per_character"], report["bigram_loss"])
    return [
        report["model"],
        *map(str, numbers),
        *("-" if loss is None else f"{loss:.3f}" for loss in losses),
    ]


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def markdown(reports: Sequence[Mapping[str, Any]], command: str) -> str:
    """Both tables, with the command that made them: models, and tasks by model."""
    asked = list(dict.fromkeys(name for report in reports for name in report.get("tasks", {})))
    names = [report["model"] for report in reports]
    shares = [
        [f"`{task}`", *(percent(report.get("tasks", {}).get(task)) for report in reports)]
        for task in asked
    ]
    failed = [f"- `{x['model']}` did not learn: {x['problem']}." for x in reports if x["problem"]]
    parts = [
        f"By `{command}`.",
        _table(SIZES, [sizes(report) for report in reports]),
        "\n".join(failed),
    ]
    if asked:
        parts += [
            "The share of fresh prompts that each answers right; empty where its tokenizer cannot "
            f"be asked. A model does a task from {DOES:.0%} on.",
            _table(("task", *names), shares),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---", *("---:" for _ in columns[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
