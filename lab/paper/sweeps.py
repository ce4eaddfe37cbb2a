"""Sweeps and searches as they are compared: rows that belong together, with their quantiles.

1. `sweeps_of` puts rows of one aligner, pool, fleet, labels and details together: a `SweepResult`.
2. `read_searches` takes the methods that search each case on its own from the `cases.csv` of a
   bench, on the held-out cases.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

from graphcircuits.cases import case_ids
from graphcircuits.cases.orders import Order
from graphcircuits.compare.figures import Summary, summarize
from graphcircuits.io.files import StoreError, read_text, short
from lab.paper.sweep_rows import CONFIGURATIONS, SweepRow

FLOORS = ("random", "edge-frequency")
BLIND = "blind"
"""Ends the name of a predictor whose features are all zero."""
ASPECTS = ("aligner", "pool", "fleet", "labels")
"""What every sweep says of itself; details may say more."""


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """The configurations that were run under the same conditions."""

    aspects: Mapping[str, str]
    """Aligner, pool, fleet, labels and details, as text."""
    rows: tuple[SweepRow, ...]
    """In the order of the paper's table; configurations that were not run have none."""

    @property
    def name(self) -> str:
        """Its aspects in words."""
        named = {"aligner": "aligner {}", "pool": "{}", "fleet": "{} fleet", "labels": "{} labels"}
        return ", ".join(
            named.get(aspect, f"{aspect} {{}}").format(value)
            for aspect, value in self.aspects.items()
        )

    @cached_property
    def by_configuration(self) -> dict[str, SweepRow]:
        return {row.configuration: row for row in self.rows}

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """Quantiles over cases by configuration."""
        return {row.configuration: summarize(row.by_seed()) for row in self.rows}

    @cached_property
    def medians(self) -> dict[str, float]:
        """Held-out medians by configuration."""
        return {name: summary.quantiles[2] for name, summary in self.summaries.items()}

    @cached_property
    def cross_validation(self) -> dict[str, float]:
        """Scores by configuration, of those that have one."""
        return {
            row.configuration: row.cross_validation
            for row in self.rows
            if row.cross_validation is not None
        }

    def case_means(self, configuration: str) -> dict[str, float]:
        """The score of every case, seeds averaged."""
        cases = self.by_configuration[configuration].cases
        return {case: fmean(scores) for case, scores in cases.items()}


def sweeps_of(rows: Iterable[SweepRow]) -> list[SweepResult]:
    """The sweeps that the rows are of, in the order in which they begin."""
    found: dict[tuple[tuple[str, str], ...], dict[str, SweepRow]] = {}
    for row in rows:
        aspects = {name: getattr(row, name) for name in ASPECTS}
        aspects |= {name: str(value) for name, value in sorted(row.details.items())}
        sweep = found.setdefault(tuple(aspects.items()), {})
        if row.configuration in sweep:
            about = ", ".join(f"{name} {value}" for name, value in aspects.items())
            raise ValueError(
                f"{row.configuration} is there twice under {about}; give each sweep once, or tell "
                "them apart by details."
            )
        sweep[row.configuration] = row
    return [
        SweepResult(
            aspects=dict(aspects),
            rows=tuple(by_name[name] for name in CONFIGURATIONS if name in by_name),
        )
        for aspects, by_name in found.items()
    ]


@dataclass(frozen=True, kw_only=True)
class Search:
    """A method that searches each case on its own, on the held-out cases of a fleet."""

    method: str
    fleet: str
    labels: str = "interpbench"
    cases: Mapping[str, Mapping[int, float]]
    """AUROC by subject and seed."""

    @property
    def is_floor(self) -> bool:
        """Whether it looks at nothing that the subject computes."""
        return self.method in FLOORS or self.method.endswith(BLIND)

    @cached_property
    def summary(self) -> Summary:
        return summarize(self.cases)

    @cached_property
    def case_means(self) -> tuple[float, ...]:
        return tuple(fmean(by_seed.values()) for by_seed in self.cases.values())


def read_searches(path: str | Path, labels: str = "interpbench") -> list[Search]:
    """The methods of a bench, from its `cases.csv` or the folder that holds it.

    Where the file has no column `labels`, those that its AUROC is by are given.
    """
    path = Path(path) / "cases.csv" if Path(path).is_dir() else Path(path)
    lines = list(csv.DictReader(io.StringIO(read_text(path))))
    wanted = {"case", "method", "seed", "auroc"}
    if not lines or not wanted <= lines[0].keys():
        raise StoreError(
            f"{path} is not a table of a bench's runs: it needs lines with the columns "
            f"{', '.join(sorted(wanted))}; write it with: graphcircuits bench --cases test"
        )
    held_out = set(case_ids(split="test"))
    found: dict[tuple[str, str, str], dict[str, dict[int, float]]] = {}
    for number, line in enumerate(lines, start=2):
        try:
            order = Order.parse(line["case"])
            if order.case not in held_out:
                continue
            value, seed = float(line["auroc"]), int(line["seed"])
        except (TypeError, ValueError) as error:
            raise StoreError(f"{path}, line {number}: {short(str(error))}") from error
        if not math.isfinite(value):
            raise StoreError(f"{path}, line {number}: auroc must be a number, got {value}")
        by = line.get("labels") or labels
        by_case = found.setdefault((order.fleet, line["method"], by), {})
        # The usual subject of a case goes by the case, as in the rows of a sweep.
        usual = order == Order(order.case, order.fleet)
        by_case.setdefault(order.case if usual else line["case"], {})[seed] = value
    if not found:
        raise StoreError(f"{path} has no run on a held-out case; write it with --cases test.")
    return [
        Search(method=method, fleet=fleet, labels=by, cases=cases)
        for (fleet, method, by), cases in found.items()
    ]
