"""What became of every planted language model, kept beside its page, since most models do not ship.

`docs/results/planted-models.jsonl.gz` has a report in each line: what the file of a model says, in
few digits. The page, the picture and the list of cases that passed come from there.
"""

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from graphcircuits.io.store import load_artifact, write_atomic
from lab import ROOT
from lab.files import read_packed

REPORTS = ROOT / "docs" / "results" / "planted-models.jsonl.gz"
KEPT = (
    *("case", "split", "fold", "design", "places", "parameters", "training", "steps"),
    *("seconds", "together", "loss", "twin_loss", "perplexity_ratio", "calls", "tasks"),
    *("twin_tasks", "curve"),
)
DIGITS = 4

Report = Mapping[str, Any]


def read_reports(path: Path = REPORTS) -> dict[str, Report]:
    """The reports by model, as they were last written."""
    lines = read_packed(path).splitlines() if path.exists() else []
    return {report["case"]: report for report in map(json.loads, lines)}


def write_reports(reports: Iterable[Report], path: Path = REPORTS) -> None:
    """A line for each, packed."""
    lines = "".join(f"{json.dumps(report)}\n" for report in reports)
    write_atomic(path, gzip.compress(lines.encode(), mtime=0))


def report_of(path: Path) -> Report:
    """What the file of a model says, in few digits."""
    artifact = load_artifact(path, "transformer")
    kept = {name: _rounded(artifact.meta["report"][name]) for name in KEPT}
    return kept | {"command": artifact.command}


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case Mapping():
            return {name: _rounded(one) for name, one in value.items()}
        case list():
            return [_rounded(one) for one in value]
    return value
