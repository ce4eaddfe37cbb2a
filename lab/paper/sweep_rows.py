"""What a sweep comes to, one row per configuration, and the file it is kept in.

A `SweepRow` has what cross-validation chose and the held-out scores of every case under every
training seed. `write_rows` keeps rows as a JSON artifact, `read_rows` reads them back, checked,
`command_of` says what wrote them;
`configuration_parts` takes a name such as `dirgnn-line-observed` apart.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from graphcircuits.io.config import build_config
from graphcircuits.io.store import load_artifact, save_artifact, taken_apart

KIND = "sweep-rows"
LEARNERS = {
    "factorized": "Factorized DAGformer",
    "dirgnn": "DirGraphConv",
    "dagformer": "Quadratic DAGformer",
}
"""The graph learners by our names, in the order and the words of the paper's table."""
TRANSFORMATIONS = {"line": "Line", "incidence": "Incidence"}
CONNECTIVITIES = {
    "observed": "Observed",
    "none": "No message-passing edges",
    "complete": "Complete DAG",
}
CONFIGURATIONS = tuple(
    f"{learner}-{transformation}-{connectivity}"
    for learner in LEARNERS
    for transformation in TRANSFORMATIONS
    for connectivity in CONNECTIVITIES
    if learner == "factorized" or connectivity != "complete"
)
"""The paper's 14, in the order of its table; only the factorized learner takes a complete DAG."""


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One configuration of a sweep: what was chosen, and what it reached on held-out cases."""

    configuration: str
    """One of CONFIGURATIONS."""
    aligner: str
    pool: str
    """The cases that were trained on."""
    fleet: str
    """That of the held-out subjects."""
    labels: str
    cross_validation: float | None
    """The score that chose the setting and the step, q, k and v apart; None where none was made."""
    eligible: int
    """Settings that finished every fold."""
    settings: int
    """Settings in the grid."""
    chosen: Mapping[str, Any]
    """The setting that was refitted."""
    step: int
    """Steps that it was trained for."""
    cases: Mapping[str, tuple[float, ...]]
    """AUROC at head level of every held-out case, one number per training seed."""
    failed: int = 0
    """Settings that were tried and failed in some fold; what is then missing was not tried."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else distinguishes the sweep from others of the same aligner, pool, fleet and labels."""

    def __post_init__(self) -> None:
        problems = []
        if self.configuration not in CONFIGURATIONS:
            problems.append(
                f"configuration must be one of {', '.join(CONFIGURATIONS)}, "
                f"got {self.configuration!r}"
            )
        for name in ("eligible", "failed"):
            if not 0 <= getattr(self, name) <= self.settings:
                problems.append(
                    f"{name} must be in 0..{self.settings}, the settings in the grid, "
                    f"got {getattr(self, name)}"
                )
        if self.cross_validation is not None and not 0 <= self.cross_validation <= 1:
            problems.append(f"cross_validation must be in 0..1, got {self.cross_validation}")
        if self.step < 0:
            problems.append(f"step must be at least 0, got {self.step}")
        counts = {case: len(scores) for case, scores in self.cases.items()}
        if len(set(counts.values())) != 1 or 0 in counts.values():
            problems.append(
                f"cases must have one number for each seed, as many in each case, got {counts}"
            )
        for case, scores in self.cases.items():
            bad = [score for score in scores if not (math.isfinite(score) and 0 <= score <= 1)]
            if bad:
                problems.append(f"scores of {case} must be in 0..1, got {bad[0]}")
        if problems:
            raise ValueError("; ".join(problems) + ".")

    @property
    def n_seeds(self) -> int:
        """Training seeds of every case."""
        return len(next(iter(self.cases.values())))

    @property
    def parts(self) -> tuple[str, str, str]:
        """Learner, transformation and connectivity."""
        return configuration_parts(self.configuration)

    def by_seed(self) -> dict[str, dict[int, float]]:
        """Scores by case and seed, as `summarize` takes them."""
        return {case: dict(enumerate(scores)) for case, scores in self.cases.items()}


def configuration_parts(name: str) -> tuple[str, str, str]:
    """Learner, transformation and connectivity of a configuration's name."""
    if name not in CONFIGURATIONS:
        raise ValueError(
            f"unknown configuration {name!r}; expected one of {', '.join(CONFIGURATIONS)}."
        )
    learner, transformation, connectivity = name.split("-")
    return learner, transformation, connectivity


def write_rows(
    path: str | Path,
    rows: Sequence[SweepRow],
    *,
    config: Mapping[str, Any] | None = None,
    command: str | None = None,
) -> str:
    """Write rows as a JSON artifact and return its sha256; `config` is what the sweep ran with."""
    meta = {"rows": [asdict(row) for row in rows]}
    return save_artifact(
        path, kind=KIND, config=config or {}, seed=None, meta=meta, command=command
    )


def read_rows(path: str | Path) -> list[SweepRow]:
    """The rows of a file that `write_rows` wrote."""
    with taken_apart(path, "file of sweep rows"):
        return [_row(record) for record in load_artifact(path, KIND).meta["rows"]]


def command_of(path: str | Path) -> str:
    """The command that wrote a file of rows."""
    return load_artifact(path, KIND).command


def _row(record: Mapping[str, Any]) -> SweepRow:
    """JSON has lists for tuples, and 1 where 1.0 was meant."""
    cases = {case: tuple(map(float, scores)) for case, scores in record["cases"].items()}
    return build_config(SweepRow, {**record, "cases": cases})
