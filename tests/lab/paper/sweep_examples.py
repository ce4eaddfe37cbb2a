"""Rows of sweeps made up for tests: every case of a configuration has its median, but for two."""

from collections.abc import Mapping
from typing import Any

from lab.paper.published import BY_CONFIGURATION
from lab.paper.sweep_rows import SweepRow
from lab.paper.sweeps import SweepResult, sweeps_of

CASES = tuple(f"ib-{number}" for number in range(1, 17))


def row(configuration: str, **changes: Any) -> SweepRow:
    """A row; `median` and `cross_validation` are the published ones unless given."""
    printed = BY_CONFIGURATION[configuration]
    median = changes.pop("median", round(printed.median, 3))
    shifts = changes.pop("shifts", (0.0,))
    given: dict[str, Any] = {
        "configuration": configuration,
        "aligner": "tabpfn",
        "pool": "pool",
        "fleet": "planted",
        "labels": "interpbench",
        "cross_validation": printed.cross_validation,
        "eligible": 18,
        "settings": 18,
        "chosen": {"width": 32, "lr": 0.003},
        "step": 400,
        "cases": {case: tuple(median + shift for shift in shifts) for case in CASES},
    }
    return SweepRow(**(given | changes))


def sweep(
    medians: Mapping[str, float] | None = None,
    scores: Mapping[str, float] | None = None,
    **changes: Any,
) -> SweepResult:
    """All 14 with the published medians and scores, but for those given."""
    rows = []
    for name, printed in BY_CONFIGURATION.items():
        median = (medians or {}).get(name, round(printed.median, 3))
        score = (scores or {}).get(name, printed.cross_validation)
        rows.append(row(name, median=median, cross_validation=score, **changes))
    (made,) = sweeps_of(rows)
    return made
