"""Train subjects of any fleet and architecture, verify them, and keep those that pass.

1. Orders of one fleet, architecture and depth, and of similar width, form a fleet and train side by
   side (`fleets_of`). The programs' answers are computed ahead of that (`prepare.py`).
2. Subjects that passed at the same check are verified together, as they are stored, on inputs that
   nothing has seen (`finished`).
3. Each is written and its file is read back. One that passes stays, with its report in the file;
   one that fails is set aside under `failed/`. The same settings would fail again, so it is only
   trained anew under others.

A subject that passes is written at once, and the state of a fleet in training is kept
(`unfinished.py`): a build that was stopped or killed goes on from there, and ends with the files,
byte for byte, of one that was not. So nothing about time is in them.
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from graphcircuits.cases.architectures import (
    ARCHITECTURES,
    UnfitError,
    subject_codec,
    subject_config,
)
from graphcircuits.cases.case import Case
from graphcircuits.cases.multitask import MultiCase
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import (
    BuildConfig,
    ConstantOutputError,
    Data,
    case_exchange,
    exchanges_of,
    find_case,
    prepared,
)
from graphcircuits.cases.unfinished import Job, subject_path, unfinished
from graphcircuits.fleets.checkpoint import Snapshot, TrainedSubject
from graphcircuits.fleets.recipes import SiitConfig, recipe
from graphcircuits.fleets.train import FleetProgress, train_fleet
from graphcircuits.fleets.verify import Verdict, verify_fleet
from graphcircuits.io.store import content_hash, load_artifact
from graphcircuits.jobs.runner import IN_PROCESS, ONE_CPU, InProcess, Resources, Runner
from graphcircuits.subject.files import load_transformer, save_transformer
from graphcircuits.subject.transformer import Transformer, TransformerConfig

__all__ = [
    "BuildConfig",
    "Built",
    "ConstantOutputError",
    "Data",
    "Finished",
    "build",
    "case_exchange",
    "exchanges_of",
    "find_case",
    "finished",
    "fleets_of",
    "prepared",
    "start_of",
    "subject_codec",
    "subject_config",
    "subject_path",
    "training",
]

log = logging.getLogger(__name__)

WIDTHS = (16, 64)
"""Subjects between the same of these widths share a fleet: padding costs less than another one."""
LONG = 16
"""Contexts beyond this have a fleet of their own."""
MOST = 128
"""Subjects in a fleet: as many keep a GPU busy."""


def training(order: Order, siit: SiitConfig | None = None) -> SiitConfig:
    """How the subject is trained: by the recipe of its fleet, or as given; on the task alone with
    the weight decay and dropout of its architecture."""
    given = recipe(order.fleet) if siit is None else siit
    if order.fleet != "natural":
        return given
    own = ARCHITECTURES[order.architecture]
    return replace(given, weight_decay=own.weight_decay, dropout=own.dropout)


def start_of(order: Order, case: Case | MultiCase, widen: float = 1.0) -> Transformer:
    """The random weights that training starts from."""
    generator = torch.Generator().manual_seed(order.seed)
    config = subject_config(case, order.architecture, widen)
    return Transformer.random(config, generator, subject_codec(case))


def fleets_of(
    orders: Sequence[Order], configs: Sequence[TransformerConfig], most: int = MOST
) -> list[list[int]]:
    """Which subjects train side by side: one fleet and architecture, equal layers and heads,
    similar sizes; not more than `most`."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, (order, config) in enumerate(zip(orders, configs, strict=True)):
        width = next((w for w in WIDTHS if config.d_model <= w), math.inf)
        # Rotation depends on the width of the head, so padding would change it.
        d_head = config.d_head if config.positions == "rotary" else None
        shape = (width, config.n_layers, config.n_heads, config.n_ctx > LONG, d_head)
        groups.setdefault((order.fleet, order.architecture, *shape), []).append(i)
    return [
        groups[key][start : start + most]
        for key in sorted(groups, key=str)
        for start in range(0, len(groups[key]), most)
    ]


# --- what came of it -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Finished:
    """A subject with the weights that are stored, and how well it does its task."""

    order: Order
    subject: Transformer
    """In half precision; from `Case.train` the same numbers in single precision."""
    report: dict[str, Any]

    @property
    def passed(self) -> bool:
        return self.report["passed"]


def finished(
    trained: Sequence[TrainedSubject],
    orders: Sequence[Order],
    data: Sequence[Data],
    config: BuildConfig,
    device: str = "cpu",
) -> list[Finished]:
    """The subjects of a fleet, or some of them, verified all at once on inputs that nothing has
    seen, with the weights that will be stored."""
    stored = [one.subject.to(torch.float16) for one in trained]
    verdicts = verify_fleet(
        [subject.to(torch.float32) for subject in stored],
        [one.unseen for one in data],
        torch.Generator(device=device).manual_seed(orders[0].seed + 1),
        training(orders[0], config.siit).tolerance,
    )
    return [
        Finished(order, subject, report_of(order, subject, found, one.steps, config))
        for order, subject, found, one in zip(orders, stored, verdicts, trained, strict=True)
    ]


def report_of(
    order: Order,
    subject: Transformer,
    verdicts: Sequence[Verdict],
    steps: int,
    config: BuildConfig,
) -> dict[str, Any]:
    """What is known of a subject: how well it does its task; of several the worst, and each."""
    each = [_measures(order, verdict) for verdict in verdicts]
    if len(each) > 1:
        assert subject.codec is not None
        worst = {name: _worst(name, [one[name] for one in each]) for name in each[0]}
        numbers = {name: value for name, value in worst.items() if not isinstance(value, dict)}
        measures = {**numbers, "tasks": dict(zip(subject.codec.tasks, each, strict=True))}
    else:
        (measures,) = each
    return {**asdict(order), **measures, "steps": steps, "widened": config.widen != 1.0}


def _measures(order: Order, verdict: Verdict) -> dict[str, Any]:
    """Of one task; what trained on the task alone has no circuit to be measured by."""
    plain = {
        "passed": verdict.passes(order.fleet),
        "accuracy": verdict.accuracy,
        "loss": verdict.loss,
    }
    if order.fleet == "natural":
        return plain
    return plain | {
        "worst_interchange": verdict.worst_interchange,
        "worst_strict": verdict.worst_strict,
        "circuit_accuracy": verdict.circuit,
        "interchange": verdict.interchange,
        "strict": verdict.strict,
    }


def _worst(name: str, values: Sequence[Any]) -> Any:
    """The largest loss, the smallest of anything else; components are another matter."""
    if isinstance(values[0], dict):
        return {}
    return max(values) if name == "loss" else min(values)


# --- one file per subject ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Built:
    """One order's outcome."""

    order: Order
    path: Path
    report: dict[str, Any]

    @property
    def id(self) -> str:
        return self.order.id

    @property
    def passed(self) -> bool:
        return self.report["passed"]


def build(
    orders: Sequence[Order],
    directory: Path,
    config: BuildConfig,
    *,
    cases: Sequence[Case | MultiCase] = (),
    device: str = "cpu",
    command: str | None = None,
    progress: FleetProgress | None = None,
    deadline: float = math.inf,
    runner: Runner = IN_PROCESS,
    resources: Resources = ONE_CPU,
    retries: int = 0,
) -> Iterator[Built]:
    """Build what the directory has no passing subject for; yields subjects fleet by fleet.

    `cases` are those at hand; others are found by their id. A build of the same settings that was
    cut off is gone on with; what failed under the same settings is given again as it was. Orders
    that nothing can be trained for are refused, by an error after all others are done. Workers of a
    runner take a fleet each; they know the cases of the corpus and no others.
    """
    at_hand = {case.id: case for case in cases}
    at_hand |= {o.case: find_case(o.case) for o in orders if o.case not in at_hand}
    shared = _Shared(directory, config, at_hand, device, command, progress, deadline)
    groups, refused = shared.plan(list(dict.fromkeys(orders)))
    if isinstance(runner, InProcess):
        found = shared.build(groups)
    else:
        # Programs cannot be sent, and nobody hears how far a worker is.
        alone = replace(config, processes=1)
        sent = replace(shared, config=alone, cases={}, progress=None)
        until = time.time() + deadline - time.monotonic()
        work = partial(_build_elsewhere, sent, until)
        found = runner.run(work, groups, lost=_lost, resources=resources, retries=retries)
    for one in found:
        if isinstance(one, Built):
            yield one
        else:
            refused.append(one)
    if refused:
        raise ValueError("\n".join(dict.fromkeys(refused)))


Group = tuple[Job | None, list[Order]]
"""What trains side by side, and where its state is kept if it was cut off."""


def _build_elsewhere(shared: "_Shared", until: float, group: Group) -> Iterator[Built | str]:
    """What a worker makes of a fleet; time is up by the clock on the wall."""
    cases = {order.case: find_case(order.case) for order in group[1]}
    deadline = time.monotonic() + until - time.time()
    return replace(shared, cases=cases, deadline=deadline).build([group])


def _lost(group: Group, found: int, what: str) -> tuple[list[Built | str], None]:
    ids = ", ".join(order.id for order in group[1])
    return [f"{ids}: {what}; the same build goes on with what is unfinished."], None


@dataclass(frozen=True, eq=False)
class _Shared:
    """What all fleets of a build share."""

    directory: Path
    config: BuildConfig
    cases: Mapping[str, Case | MultiCase]
    device: str
    command: str | None
    progress: FleetProgress | None
    deadline: float

    def build(self, groups: Sequence[Group]) -> Iterator[Built | str]:
        """The subjects of fleets, and why others cannot be trained."""
        wanted = [order for _, group in groups for order in group]
        with closing(prepared(wanted, self.config, self.config.processes, self.cases)) as stream:
            for job, group in groups:
                if time.monotonic() >= self.deadline:
                    log.warning("out of time: %d subjects left untrained", len(group))
                    continue
                found = dict(islice(stream, len(group)))
                yield from (one for one in found.values() if isinstance(one, str))
                data = {order: one for order, one in found.items() if isinstance(one, Data)}
                if job is None:
                    failed = {order: self.failed(order, data[order]) for order in data}
                    yield from (one for one in failed.values() if one is not None)
                    data = {order: one for order, one in data.items() if failed[order] is None}
                else:
                    job.check_data({order.id: one.sha256 for order, one in data.items()})
                if data:
                    yield from self.train(job or self.job(data), data)

    def settings(self, order: Order) -> dict[str, Any]:
        """All that shapes a subject, but for its case and seed."""
        kept = asdict(replace(self.config, processes=1, siit=training(order, self.config.siit)))
        kept |= {"fleet": order.fleet, "architecture": order.architecture}
        return kept | {"device": torch.device(self.device).type}

    def plan(self, orders: Sequence[Order]) -> tuple[list[Group], list[str]]:
        """What trains side by side, fleets that were cut off first; and what fits nowhere."""
        there = {order for order in orders if subject_path(self.directory, order.id).exists()}
        for order in there:
            # It failed once, and passed since.
            subject_path(self.directory / "failed", order.id).unlink(missing_ok=True)
        jobs = unfinished(self.directory, orders, self.settings)
        groups: list[Group] = [(job, job.orders) for job in jobs]
        settled = there | {order for job in jobs for order in job.orders}
        configs, refused = {}, []
        for order in orders:
            case = self.cases[order.case]
            try:
                configs[order] = subject_config(case, order.architecture, self.config.widen)
            except UnfitError as error:
                refused.append(str(error))
        fitting = list(configs)
        # Of all that is asked for, so that what is there already divides fleets no differently.
        for members in fleets_of(fitting, list(configs.values())):
            if left := [fitting[i] for i in members if fitting[i] not in settled]:
                groups.append((None, left))
        return groups, refused

    def job(self, data: Mapping[Order, Data]) -> Job:
        """A fleet that has not begun."""
        settings = self.settings(next(iter(data)))
        return Job.new(self.directory, settings, {o: one.sha256 for o, one in data.items()})

    def failed(self, order: Order, data: Data) -> Built | None:
        """A subject that failed under the same settings, on the same data."""
        path = subject_path(self.directory / "failed", order.id)
        if not path.exists():
            return None
        report = load_artifact(path, "transformer").meta.get("report", {})
        then = [report.get(name) for name in ("build", "seed", "data")]
        if content_hash(then) != content_hash([self.settings(order), order.seed, data.sha256]):
            return None
        return Built(order=order, path=path, report=report)

    def train(self, job: Job, data: Mapping[Order, Data]) -> list[Built]:
        """Train orders side by side; each is written when it passes, the others at the end."""
        began = time.monotonic()
        orders = list(data)
        built: dict[int, Built] = {}
        passed: dict[int, TrainedSubject] = {}
        keep = job.keeper()

        def finish(results: Mapping[int, TrainedSubject]) -> None:
            for places in _by_check(results):
                new = [p for p in places if p not in built and not self._is_there(orders[p])]
                if not new:
                    continue
                # All of them, so that no measure depends on what was there.
                made = finished(
                    [results[place] for place in places],
                    [orders[place] for place in places],
                    [data[orders[place]] for place in places],
                    self.config,
                    self.device,
                )
                for place in new:
                    one = made[places.index(place)]
                    built[place] = self._write(one, job.settings, data[one.order].sha256)

        def kept(snapshot: Snapshot, time_is_up: bool) -> None:
            finish(passed)
            passed.clear()
            keep(snapshot, time_is_up)

        starts = [start_of(o, self.cases[o.case], self.config.widen) for o in orders]
        generator = torch.Generator(device=self.device).manual_seed(orders[0].seed)
        trained = train_fleet(
            starts,
            [one.train for one in data.values()],
            [one.check for one in data.values()],
            training(orders[0], self.config.siit),
            generator,
            self.progress,
            self.deadline,
            on_pass=passed.__setitem__,
            keep=kept,
            resume=job.snapshot(starts, generator.device),
        )
        log.info("fleet of %d: %.0f s", len(orders), time.monotonic() - began)
        finish({place: one for place, one in enumerate(trained) if not one.cut_short})
        left = sum(one.cut_short for one in trained)
        if left:
            log.warning(
                "out of time: %d subjects unfinished; the same build goes on with them", left
            )
        else:
            job.close()
        return [built[place] for place in sorted(built)]

    def _is_there(self, order: Order) -> bool:
        return subject_path(self.directory, order.id).exists()

    def _write(self, made: Finished, settings: Mapping[str, Any], data: str) -> Built:
        """Write what was verified, read it back, and keep it or set it aside."""
        order, report = made.order, {**made.report, "build": settings, "data": data}
        failed = subject_path(self.directory / "failed", order.id)
        path = subject_path(self.directory, order.id) if made.passed else failed
        meta = {"report": report}
        save_transformer(path, made.subject, seed=order.seed, meta=meta, command=self.command)
        # The hash in the file says that what is there is what was verified.
        load_transformer(path)
        if made.passed:
            failed.unlink(missing_ok=True)
        return Built(order=order, path=path, report=report)


def _by_check(results: Mapping[int, TrainedSubject]) -> list[list[int]]:
    """Places of those that passed at one check, check by check; last of those that never did."""
    checks: dict[float, list[int]] = {}
    for place, one in sorted(results.items()):
        checks.setdefault(one.steps if one.passed else math.inf, []).append(place)
    return [checks[steps] for steps in sorted(checks)]
