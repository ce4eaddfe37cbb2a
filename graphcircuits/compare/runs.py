"""A run of a bench, one method on one subject under one seed, and the file it is kept in.

The file holds the scores, time and memory, and the curve of faithfulness with a hash of what it was
measured on and by. `stored_run` gives what a file holds, unless it is damaged or another run's;
`stored_curve` gives its curve, unless that was measured otherwise.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from graphcircuits.evaluation.evaluate import log_sizes
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.store import StoreError, load_artifact, save_artifact
from graphcircuits.jobs.command import driver_command
from graphcircuits.result.curve import FaithfulnessCurve

KIND = "bench-run"


@dataclass(frozen=True, kw_only=True)
class BenchRun:
    """One method on one subject under one seed."""

    case: str
    """The id of the subject."""
    method: str
    seed: int
    graph: ComponentGraph
    scores: Float[Tensor, " edge"]
    curve: FaithfulnessCurve
    """Faithfulness of the best edges on prompts that the method has not seen, log-spaced sizes."""
    seconds: float
    peak_bytes: int | None
    reused: bool
    """Whether it was found in the store."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A run that ended in an error; without a method it is the subject itself that failed."""

    case: str
    method: str | None = None
    seed: int | None = None
    error: str

    def __str__(self) -> str:
        where = f"{self.case}, {self.method}, seed {self.seed}" if self.method else self.case
        return f"{where}: {self.error}"


class StoreUnusable(OSError):
    """The files of a bench cannot be read or written, so that it has to end."""


def run_path(out: Path, case: str, method: str, seed: int, key: str) -> Path:
    """Where a run is kept."""
    return out / "runs" / method / f"{case}-seed{seed}-{key[:12]}.json"


def save_run(path: Path, about: Mapping[str, Any], seed: int, meta: Mapping[str, Any]) -> None:
    try:
        command = driver_command()
        save_artifact(path, kind=KIND, config=about, seed=seed, meta=meta, command=command)
    except OSError as error:
        raise StoreUnusable(
            f"{path} cannot be written ({error.strerror or error}); the bench ends here and "
            "keeps what is finished: make room or name another --out, and run it again."
        ) from error


def stored_run(
    path: Path, about: Mapping[str, Any], seed: int, n_edges: int
) -> dict[str, Any] | None:
    """What a run left; None where it must be made: absent, damaged, or that of another run."""
    try:
        found = load_artifact(path, KIND)
    except (FileNotFoundError, StoreError, RecursionError):
        return None
    except OSError as error:
        raise StoreUnusable(
            f"{path} cannot be read ({error.strerror or error}); the bench ends here: make it "
            "readable, remove it, or name another --out."
        ) from error
    # What was written is JSON, in which a tuple is a list.
    same = found.config == json.loads(json.dumps(about)) and found.seed == seed
    return dict(found.meta) if same and _is_whole(found.meta, n_edges) else None


def _is_whole(meta: Mapping[str, Any], n_edges: int) -> bool:
    """Whether there is a number for each edge, a time, and memory where it is known."""
    if meta.keys() - {"curve"} != {"scores", "seconds", "peak_bytes"}:
        return False
    peak = [] if meta["peak_bytes"] is None else [meta["peak_bytes"]]
    return _are_numbers(meta["scores"], n_edges) and _are_numbers([meta["seconds"], *peak])


def stored_curve(
    found: object, judged_by: str, n_edges: int, n_pairs: int
) -> FaithfulnessCurve | None:
    """The curve that a run left; None where there is none of these prompts and this code."""
    if not isinstance(found, Mapping) or found.get("judged_by") != judged_by:
        return None
    columns = [found.get(name) for name in ("sizes", "kept", "faithfulness")]
    n_sizes = len(log_sizes(n_edges))
    if not all(_are_numbers(column, n_sizes) for column in columns):
        return None
    sizes, pruned, faithfulness = (tuple(column) for column in columns if column is not None)
    return FaithfulnessCurve(
        n_edges=n_edges,
        sizes=sizes,
        pruned_sizes=pruned,
        faithfulness=faithfulness,
        n_pairs=n_pairs,
    )


def _are_numbers(values: object, count: int | None = None) -> bool:
    """Whether these are so many finite numbers."""
    return (
        isinstance(values, list)
        and len(values) == (len(values) if count is None else count)
        and all(type(value) in (int, float) and math.isfinite(value) for value in values)
    )
