"""A sweep: every configuration cross-validated, chosen, trained anew on the whole pool, and tested.

1. `Sweep` knows what of a plan (`sweep_plan.py`) its folder (`sweep_store.py`) holds.
2. `Sweep.run` gives a runner the bundles that are missing, one whenever somebody is free: the
   refits of a configuration as soon as all its settings are through, otherwise the next bundle of
   cross-validations. After the deadline nothing more is begun, and what is begun is finished.
3. Every training is kept as it comes. One that runs out of memory is tried again with fewer beside
   it; alone, it is recorded with the reason, and the sweep goes on without it; another run tries it
   once more. One that diverges is recorded for good: it would again.
4. `Sweep.selection` chooses for a configuration (`selection.py`); `sweep_results.py` has the table.

What is kept does not depend on who computed it, nor on how often the sweep was cut off.

Paper: Additional Experimental Details.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as tensor_bytes

from graphcircuits.jobs.runner import Resources, Runner
from lab.paper.selection import Selection, score, select
from lab.paper.stacked import Trained, train_side_by_side
from lab.paper.sweep_plan import Bundle, Plan, SweepJob, bundles, in_turn
from lab.paper.sweep_store import SweepFailure, SweepStore

PHASES = ("all", "cross-validation", "refit")
"""What a run trains. `refit` takes the settings that are finished for all that there are."""


@dataclass(frozen=True, kw_only=True)
class Means:
    """How trainings are computed; nothing of it is kept with them."""

    device: str = "cpu"
    stack: int = 1
    """Trainings of one shape side by side."""
    retries: int = 0
    """Of a bundle whose process or machine was lost, before fewer are trained at once."""
    resources: Resources = field(default_factory=Resources)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one training, as a plain value."""

    id: str
    measured: Mapping[str, Any] = field(default_factory=dict)
    weights: bytes = b""
    """As a safetensors file, of refits."""
    seconds: float = 0.0
    """Of all trainings side by side."""
    together: int = 1
    number: int = 0
    """Among those, from 0."""
    failed: str | None = None
    """Why it did not finish."""
    final: bool = False
    """Whether it would not the next time either."""


# In a worker


def train_bundle(bundle: Bundle, **given: Any) -> Iterator[Outcome]:
    """Train a bundle; one outcome per job, in order. Too little memory is an error.

    What is given besides is for `train_side_by_side`.
    """
    for part in bundle.parts():
        start = time.perf_counter()
        trained = train_side_by_side([job.run for job in part], **given)
        seconds = time.perf_counter() - start
        for number, (job, found) in enumerate(zip(part, trained, strict=True)):
            refit, diverged = job.fold is None, _diverged(found)
            yield Outcome(
                id=job.id,
                measured={"scores": found.scores} if refit else {"history": found.history},
                weights=tensor_bytes(dict(found.weights)) if refit else b"",
                seconds=seconds,
                together=len(part),
                number=number,
                failed=diverged,
                final=diverged is not None,
            )


def _diverged(trained: Trained) -> str | None:
    """That scores are no numbers, and since when, if so."""
    for step, cases in sorted(trained.history.items()):
        if any(map(math.isnan, cases.values())):
            return f"its scores are no numbers at step {step}; lower the learning rate"
    own = (value for scores in trained.scores.values() for value in scores.values())
    return (
        "its scores are no numbers; lower the learning rate" if any(map(math.isnan, own)) else None
    )


def lost_bundle(bundle: Bundle, given: int, why: str) -> tuple[Sequence[Outcome], Bundle | None]:
    """What is left of a bundle that was too large, or whose process ended: fewer at once, and what
    does not even train alone has failed."""
    left = bundle.jobs[given:]
    together = min(bundle.at_once, len(left))
    if together > 1:
        return [], Bundle(left, together // 2)
    rest = Bundle(left[1:], 1) if left[1:] else None
    return [Outcome(id=left[0].id, failed=why)], rest


# The driver


class Sweep:
    """A plan, and what its folder holds of it."""

    def __init__(self, plan: Plan, store: SweepStore) -> None:
        self.plan, self.store = plan, store
        self.jobs: dict[str, SweepJob] = {}
        """Cross-validations, and refits once their setting is chosen."""
        self.measured: dict[str, Mapping[str, Any]] = {}
        """What finished."""
        self.failed: dict[str, str] = {}
        """What did not, in this run or for good."""
        self._stumbled: set[str] = set()
        """What did not in an earlier run, and is tried again."""
        self._cross = {name: plan.cross_validation(name) for name in plan.names}
        self._by_setting: dict[str, dict[str, list[SweepJob]]] = {}
        self._groups = plan.groups
        self._scores: dict[tuple[str, str], Mapping[int, Fraction]] = {}
        self._refits: dict[tuple[str, str, int], list[SweepJob]] = {}
        for name, own in self._cross.items():
            self._know(own)
            for job in own:
                self._by_setting.setdefault(name, {}).setdefault(job.setting, []).append(job)

    def _know(self, jobs: Sequence[SweepJob]) -> None:
        for job in jobs:
            if job.id not in self.jobs:
                self.jobs[job.id] = job
                found, failure = self.store.load(job), self.store.failure(job)
                if found is not None:
                    self.measured[job.id] = found
                elif failure is not None and failure.final:
                    self.failed[job.id] = failure.why
                elif failure is not None:
                    self._stumbled.add(job.id)

    def missing(self, bundle: Bundle) -> Bundle | None:
        """What there is to train of a bundle, if anything.

        All of it where it was merely cut off: what is trained side by side does not depend on
        where. Of one that failed in part the rest is not trained again.
        """
        jobs = tuple(job for job in bundle.jobs if self._is_open(job))
        failed = any(job.id in self.failed or job.id in self._stumbled for job in bundle.jobs)
        if not jobs:
            return None
        return Bundle(jobs, bundle.at_once) if failed else bundle

    def _is_open(self, job: SweepJob) -> bool:
        return job.id not in self.measured and job.id not in self.failed

    def finished(self, jobs: Sequence[SweepJob]) -> int:
        """How many of them are kept."""
        return sum(job.id in self.measured for job in jobs)

    def cross_validation(self, configuration: str) -> list[SweepJob]:
        return self._cross[configuration]

    def refits(self, configuration: str, chosen: Selection) -> list[SweepJob]:
        """One for each seed."""
        key = configuration, chosen.setting, chosen.step
        if key not in self._refits:
            self._refits[key] = self.plan.refits(configuration, chosen)
            self._know(self._refits[key])
        return self._refits[key]

    def refitted(self, configuration: str) -> list[SweepJob]:
        """The refits of the choice that are kept."""
        chosen = self.selection(configuration)
        jobs = [] if chosen is None else self.refits(configuration, chosen)
        return [job for job in jobs if job.id in self.measured]

    def is_through(self, configuration: str) -> bool:
        """Whether every cross-validation of a configuration is kept, or failed in this run."""
        own = self._cross[configuration]
        return not any(map(self._is_open, own))

    def selection(self, configuration: str) -> Selection | None:
        """The choice among the settings that are finished now."""
        scores = {x: self._score(configuration, x) for x in self._by_setting[configuration]}
        return select(scores)

    def _score(self, configuration: str, setting: str) -> Mapping[int, Fraction] | None:
        """None until every fold is finished."""
        key = configuration, setting
        if key not in self._scores:
            jobs = self._by_setting[configuration][setting]
            if self.finished(jobs) < len(jobs):
                return None
            own = {x.fold: self.measured[x.id]["history"] for x in jobs if x.fold is not None}
            self._scores[key] = score(own, self._groups)
        return self._scores[key]

    def left(self, phase: str = "all", only: Sequence[str] | None = None) -> int:
        """Trainings that a run still has to make; refits of what is not chosen are counted too."""
        total = 0
        for name in self.plan.names if only is None else only:
            if phase != "refit":
                total += sum(map(self._is_open, self._cross[name]))
            if phase != "cross-validation":
                total += self._refits_left(name, phase)
        return total

    def _refits_left(self, name: str, phase: str) -> int:
        chosen = self.selection(name)
        settled = phase == "refit" or self.is_through(name)
        if chosen is None:
            return 0 if settled else self.plan.config.seeds
        if not settled:
            return self.plan.config.seeds
        return sum(map(self._is_open, self.refits(name, chosen)))

    def run(
        self,
        runner: Runner,
        means: Means,
        *,
        phase: str = "all",
        only: Sequence[str] | None = None,
        deadline: float = math.inf,
        begun: Callable[[Bundle], None] | None = None,
    ) -> Iterator[Outcome]:
        """Train what is missing, of some configurations if `only` names them, until the deadline,
        a time of `time.monotonic`."""
        subjects = self.plan.config.subjects
        work = partial(
            train_bundle,
            device=means.device,
            precision=self.plan.precision,
            # Workers elsewhere are in other folders.
            subjects=None if subjects is None else str(Path(subjects).resolve()),
            # Named always: what a training draws depends on all that there is.
            units=self.plan.units,
            tests=self.plan.tests,
        )
        coming = _Coming(self, means.stack, phase, only or self.plan.names, deadline, begun)
        while coming.some():
            # What finishes last may be what refits were waiting for.
            for outcome in runner.run(
                work, coming, lost=lost_bundle, resources=means.resources, retries=means.retries
            ):
                self._keep(outcome, means)
                yield outcome

    def _keep(self, outcome: Outcome, means: Means) -> None:
        job = self.jobs[outcome.id]
        if outcome.failed is not None:
            self.failed[job.id] = outcome.failed
            self.store.fail(job, SweepFailure(outcome.failed, final=outcome.final))
            return
        if job.id in self.measured:
            return  # of a bundle that was cut off between two of its files
        self.store.save(job, outcome.measured, outcome.weights)
        self.measured[job.id] = outcome.measured
        self.store.log_time(
            {
                "id": job.id,
                "seconds": max(0.001, round(outcome.seconds, 3)),
                "together": outcome.together,
                "steps": job.run.config.last,
                "device": means.device,
                "precision": self.plan.precision if "cuda" in means.device else "float32",
            }
        )


class _Coming:
    """The bundles that are missing, one whenever it is asked for; none at the moment does not mean
    none later."""

    def __init__(
        self,
        sweep: Sweep,
        stack: int,
        phase: str,
        names: Sequence[str],
        deadline: float,
        begun: Callable[[Bundle], None] | None,
    ) -> None:
        self.sweep, self.stack, self.phase = sweep, stack, phase
        self.names, self.deadline, self.begun = names, deadline, begun
        self.refitted: set[str] = set()
        planned = [bundles(sweep.cross_validation(name), stack) for name in names]
        if phase == "refit":
            planned = []
        # Bundles are those of the whole plan, and not of what is left of it.
        self.waiting = deque(self._missing(in_turn(planned)))

    def _missing(self, planned: Sequence[Bundle]) -> list[Bundle]:
        return [left for bundle in planned if (left := self.sweep.missing(bundle)) is not None]

    def __iter__(self) -> Iterator[Bundle]:
        return self

    def __next__(self) -> Bundle:
        if not self.some():
            raise StopIteration
        bundle = self.waiting.popleft()
        if self.begun is not None:
            self.begun(bundle)
        return bundle

    def some(self) -> bool:
        """Whether there is a bundle to begin now."""
        self._add_refits()
        return bool(self.waiting) and time.monotonic() < self.deadline

    def _add_refits(self) -> None:
        for name in self.names if self.phase != "cross-validation" else ():
            settled = self.phase == "refit" or self.sweep.is_through(name)
            if name in self.refitted or not settled:
                continue
            self.refitted.add(name)
            chosen = self.sweep.selection(name)
            if chosen is None:
                continue
            made = bundles(self.sweep.refits(name, chosen), self.stack)
            self.waiting.extendleft(reversed(self._missing(made)))


def resources_of(device: str, processes: int, *, ray: bool) -> Resources:
    """What a bundle takes: a share of the cards of this machine, or one of a cluster's."""
    if device != "cuda":
        return Resources()  # a card that is named is everybody's
    if ray:
        return Resources(gpus=1.0)
    # A little less, lest rounding costs a process.
    return Resources(gpus=min(1.0, torch.cuda.device_count() / processes * (1 - 1e-9)))
