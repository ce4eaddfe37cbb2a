"""Build subjects into a folder: train them, verify them, and store those that pass.

Subjects that passed at the same check are verified together, as they are stored. Each is written
and its file is read back. One that passes stays, with its report in the file; one that fails is set
aside under `failed/`. The same settings would fail again, so it is only trained anew under others.

A subject that passes is written at once, whole or not at all: a build that was stopped or killed is
given again and trains what is not there, from the beginning. The same fleet ends with the same
files, byte for byte, so nothing about time is in them.
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

from graphcircuits.cases.architectures import UnfitError, subject_config
from graphcircuits.cases.case import Case
from graphcircuits.cases.multitask import MultiCase
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import BuildConfig, Data, find_case, prepared
from graphcircuits.cases.subjects import Finished, fleets_of, train_together, training, verified
from graphcircuits.fleets.train import FleetProgress, TrainedSubject
from graphcircuits.io.store import content_hash, load_artifact
from graphcircuits.jobs.runner import IN_PROCESS, ONE_CPU, InProcess, Resources, Runner
from graphcircuits.subject.files import load_transformer, save_transformer

log = logging.getLogger(__name__)


def subject_path(directory: Path, id: str) -> Path:
    return directory / f"{id}.safetensors"


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

    `cases` are those at hand; others are loaded by their id. What failed under the same settings is
    given again as it was. Orders that nothing can be trained for are refused, by an error after all
    others are done. Workers of a runner take a fleet each; they know the cases of the corpus and no
    others.
    """
    at_hand = {case.id: case for case in cases}
    at_hand |= {o.case: find_case(o.case) for o in orders if o.case not in at_hand}
    shared = _Shared(directory, config, at_hand, device, command, progress, deadline)
    groups, refused = shared.plan(list(dict.fromkeys(orders)))
    if isinstance(runner, InProcess):
        outcomes = shared.build(groups)
    else:
        # Programs cannot be sent, and nobody hears how far a worker is.
        alone = replace(config, processes=1)
        sent = replace(shared, config=alone, cases={}, progress=None)
        until = time.time() + deadline - time.monotonic()
        work = partial(_build_elsewhere, sent, until)
        outcomes = runner.run(work, groups, lost=_lost, resources=resources, retries=retries)
    for one in outcomes:
        if isinstance(one, Built):
            yield one
        else:
            refused.append(one)
    if refused:
        raise ValueError("\n".join(dict.fromkeys(refused)))


Group = list[Order]
"""What trains side by side."""


def _build_elsewhere(shared: "_Shared", until: float, group: Group) -> Iterator[Built | str]:
    """What a worker makes of a fleet; time is up by the clock on the wall."""
    cases = {order.case: find_case(order.case) for order in group}
    deadline = time.monotonic() + until - time.time()
    return replace(shared, cases=cases, deadline=deadline).build([group])


def _lost(group: Group, n_done: int, what: str) -> tuple[list[Built | str], None]:
    ids = ", ".join(order.id for order in group)
    return [f"{ids}: {what}; the same build trains what is not there."], None


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
        wanted = [order for group in groups for order in group]
        with closing(prepared(wanted, self.config, self.config.processes, self.cases)) as stream:
            for group in groups:
                if time.monotonic() >= self.deadline:
                    log.warning("out of time: %d subjects left untrained", len(group))
                    continue
                data: dict[Order, Data] = {}
                for order, one in islice(stream, len(group)):
                    if isinstance(one, str):
                        yield one
                    else:
                        data[order] = one
                failed = {order: self.failed(order, data[order]) for order in data}
                yield from (one for one in failed.values() if one is not None)
                data = {order: one for order, one in data.items() if failed[order] is None}
                if data:
                    yield from self.train(data)

    def settings(self, order: Order) -> dict[str, Any]:
        """All that shapes a subject, but for its case and seed."""
        config = replace(self.config, processes=1, siit=training(order, self.config.siit))
        about = {"fleet": order.fleet, "architecture": order.architecture}
        return asdict(config) | about | {"device": torch.device(self.device).type}

    def plan(self, orders: Sequence[Order]) -> tuple[list[Group], list[str]]:
        """What trains side by side; and what fits nowhere."""
        there = {order for order in orders if subject_path(self.directory, order.id).exists()}
        for order in there:
            # It failed once, and passed since.
            subject_path(self.directory / "failed", order.id).unlink(missing_ok=True)
        groups, configs, refused = list[Group](), {}, []
        for order in orders:
            case = self.cases[order.case]
            try:
                configs[order] = subject_config(case, order.architecture, self.config.widen)
            except UnfitError as error:
                refused.append(str(error))
        fitting = list(configs)
        # Of all that is asked for, so that what is there already divides fleets no differently.
        for members in fleets_of(fitting, list(configs.values())):
            if left := [fitting[i] for i in members if fitting[i] not in there]:
                groups.append(left)
        return groups, refused

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

    def train(self, data: Mapping[Order, Data]) -> list[Built]:
        """Train orders side by side; each is written when it passes, the others at the end."""
        began = time.monotonic()
        orders = list(data)
        built: dict[int, Built] = {}

        def keep(ended: Mapping[int, TrainedSubject]) -> None:
            new = {i for i in ended if not subject_path(self.directory, orders[i].id).exists()}
            if not new:
                return
            # All of them, so that no measure depends on what was there.
            made = verified(
                list(ended.values()),
                {orders[i]: data[orders[i]] for i in ended},
                self.config,
                self.device,
            )
            for i, one in zip(ended, made, strict=True):
                if i in new:
                    built[i] = self._write(one, data[one.order].sha256)

        trained = train_together(
            data,
            training(orders[0], self.config.siit),
            orders[0].seed,
            device=self.device,
            progress=self.progress,
            deadline=self.deadline,
            keep=keep,
        )
        log.info("fleet of %d: %.0f s", len(orders), time.monotonic() - began)
        keep({i: one for i, one in enumerate(trained) if not (one.passed or one.cut_short)})
        left = sum(one.cut_short for one in trained)
        if left:
            log.warning(
                "out of time: %d subjects unfinished; the same build trains them anew", left
            )
        return [built[i] for i in sorted(built)]

    def _write(self, made: Finished, data: str) -> Built:
        """Write what was verified, among the subjects or set aside, and read it back."""
        order = made.order
        report = {**made.report, "build": self.settings(order), "data": data}
        failed = subject_path(self.directory / "failed", order.id)
        path = subject_path(self.directory, order.id) if made.passed else failed
        meta = {"report": report}
        save_transformer(path, made.subject, seed=order.seed, meta=meta, command=self.command)
        # The hash in the file says that what is there is what was verified.
        load_transformer(path)
        if made.passed:
            failed.unlink(missing_ok=True)
        return Built(order=order, path=path, report=report)
