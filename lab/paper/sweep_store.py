"""The folder of a sweep: what it sweeps over, and one file per finished training.

    manifest.json           what all trainings of the folder share
    jobs/ID.json            a cross-validation: AUROC by step and case
    jobs/ID.safetensors     a refit: weights, and AUROC on held-out subjects
    failed/ID.json          why a training has not finished, and whether it is tried again
    times.jsonl             how long bundles took; the other files hold no times
    sweep.json, choices/, predictors/   what comes of it all (`sweep_results.py`)

A folder belongs to one sweep: another pool, fleet, aligner, base of settings or precision is
refused. Configurations, settings and seeds can be added later.
"""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load as read_tensors
from torch import Tensor

from graphcircuits.io.files import write_atomic
from graphcircuits.io.store import StoreError, load_artifact, save_artifact, taken_apart
from lab.files import hold
from lab.paper.sweep_plan import Plan, SweepJob

MANIFEST = "manifest.json"
KIND = "sweep"
JOB = "sweep-job"
FAILED = "sweep-failure"
MAY_GROW = ("configurations", "grid", "settings_by_configuration", "seeds")
"""What another run over the same folder may have changed."""
LONGEST_REASON = 500


@dataclass(frozen=True)
class SweepFailure:
    """Why a training did not finish."""

    why: str
    final: bool = False
    """Whether it would not the next time either."""


class SweepStore:
    """What is finished, in one folder."""

    def __init__(self, folder: str | Path, command: str) -> None:
        self.folder, self.command = Path(folder), command

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other drivers away."""
        self.folder.mkdir(parents=True, exist_ok=True)
        busy = f"another sweep is at work in {self.folder}; wait for it, or give another folder."
        with hold(self.folder / ".lock", busy):
            yield

    def open(self, plan: Plan) -> None:
        """Make the folder that of this sweep, or refuse."""
        if not self.check(plan):
            config, path = _shared(plan), self.folder / MANIFEST
            save_artifact(path, kind=KIND, config=config, seed=None, command=self.command)

    def check(self, plan: Plan) -> bool:
        """Whether the folder is that of a sweep; one of another sweep is refused."""
        path = self.folder / MANIFEST
        if not path.exists():
            return False
        own = _shared(plan)
        found = load_artifact(path, KIND).config
        differing = [name for name in own if found.get(name) != own[name]]
        if differing:
            words = [
                f"{name} {_said(found.get(name))}, now {_said(own[name])}" for name in differing
            ]
            raise StoreError(
                f"{self.folder} is the folder of another sweep: {'; '.join(words)}. Give another "
                "folder, or --fresh to delete what it holds."
            )
        return True

    def clear(self) -> None:
        """Delete what a sweep has left in the folder."""
        if not (self.folder / MANIFEST).exists():
            return
        for name in ("jobs", "failed", "choices", "predictors"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name in (MANIFEST, "sweep.json", "times.jsonl"):
            (self.folder / name).unlink(missing_ok=True)

    # One training

    def path(self, job: SweepJob) -> Path:
        suffix = ".safetensors" if job.fold is None else ".json"
        # Not with_suffix: ids have dots.
        return self.folder / "jobs" / f"{job.id}{suffix}"

    def save(self, job: SweepJob, measured: Mapping[str, Any], weights: bytes) -> None:
        """Keep what came of a training: `history` or `scores`."""
        save_artifact(
            self.path(job),
            kind=JOB,
            config=job.about,
            seed=job.run.seed,
            tensors=read_tensors(weights) if job.fold is None else None,
            meta=measured,
            command=self.command,
        )
        self._failure(job).unlink(missing_ok=True)

    def load(self, job: SweepJob) -> dict[str, Any] | None:
        """What was measured; None where nothing is there, or only a part of it."""
        path = self.path(job)
        try:
            with taken_apart(path, "training"):
                found = load_artifact(path, JOB)
                if found.config != json.loads(json.dumps(job.about)):
                    return None
                return _measured(found.meta, job)
        except (FileNotFoundError, StoreError):
            return None

    def weights(self, job: SweepJob) -> dict[str, Tensor]:
        """Those of a refit that is kept."""
        return dict(load_artifact(self.path(job), JOB).tensors)

    def fail(self, job: SweepJob, failure: SweepFailure) -> None:
        """Keep why a training did not finish."""
        save_artifact(
            self._failure(job),
            kind=FAILED,
            config={"id": job.id},
            seed=job.run.seed,
            meta={"why": failure.why[:LONGEST_REASON], "final": failure.final},
            command=self.command,
        )

    def failure(self, job: SweepJob) -> SweepFailure | None:
        """Why the last try did not finish; None if there was none."""
        try:
            with taken_apart(self._failure(job), "failure"):
                meta = load_artifact(self._failure(job), FAILED).meta
                return SweepFailure(str(meta["why"]), final=meta["final"] is True)
        except (FileNotFoundError, StoreError):
            return None

    def _failure(self, job: SweepJob) -> Path:
        return self.folder / "failed" / f"{job.id}.json"

    # What comes of it all

    def log_time(self, record: Mapping[str, Any]) -> None:
        """A line of what a bundle took."""
        with (self.folder / "times.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def write(self, name: str, text: str) -> None:
        write_atomic(self.folder / name, text.encode())


def _measured(meta: Mapping[str, Any], job: SweepJob) -> dict[str, Any]:
    """The figures of a training: of a refit its test units', otherwise those of every step.

    JSON has text for the steps.
    """
    history = {
        int(step): {str(case): float(value) for case, value in cases.items()}
        for step, cases in meta.get("history", {}).items()
    }
    scores = {
        str(unit): {str(level): float(value) for level, value in own.items()}
        for unit, own in meta.get("scores", {}).items()
    }
    if job.fold is None:
        whole = scores.keys() == set(job.run.test) and all("head" in x for x in scores.values())
    else:
        units = set(job.run.validate)
        whole = bool(history) and all(cases.keys() == units for cases in history.values())
    figures = [x for own in (*history.values(), *scores.values()) for x in own.values()]
    if not whole or not all(map(math.isfinite, figures)):
        raise ValueError("it lacks figures, or has some that are not finite")
    return {"history": history, "scores": scores}


def _shared(plan: Plan) -> dict[str, Any]:
    """What all trainings of a folder have in common, as JSON has it."""
    own = {name: x for name, x in asdict(plan.config).items() if name not in MAY_GROW}
    return json.loads(json.dumps(own | {"precision": plan.precision}))


def _said(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
