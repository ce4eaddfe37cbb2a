"""The trainings of a sweep, as plain values, and the order in which they are made.

1. `plan_sweep` finds the subjects to learn from, fold by fold, and those to test on; what has no
   subject is left out and named, and a fold that comes out empty is an error.
2. `Plan.cross_validation` is one training per setting and fold: on the other folds, without twins
   of what is validated (`corpus.relations.twins`), whose circuits are the same masks.
3. `Plan.refits` is one training per seed on the whole pool, with the setting and the number of
   steps that were chosen: the schedule of learning rates is the same, and ends where it was best.
4. `bundles` puts trainings of one shape together, all folds of a setting where they fit, and takes
   turns: the first settings of every configuration come before the second ones of any.

A job's id names its content: configuration, setting, fold or seed, and a hash of all the rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from graphcircuits.cases import case_ids
from graphcircuits.cases.orders import Order
from graphcircuits.cases.relations import PoolCase, pool_cases, twins
from graphcircuits.io.store import content_hash
from lab.paper.configurations import ALL, SweepConfig
from lab.paper.named_source import named_source
from lab.paper.selection import Selection
from lab.paper.stacked import StackedRun, can_share

LONGEST = 100
"""Of what a file's name says of a setting."""


@dataclass(frozen=True, kw_only=True)
class SweepJob:
    """One training, and what it is for."""

    configuration: str
    setting: str
    values: Mapping[str, Any]
    """Of the setting, by key of the grid."""
    fold: int | None
    """The fold that is validated; None for a refit."""
    precision: str
    run: StackedRun

    @cached_property
    def about(self) -> dict[str, Any]:
        """All that its result depends on."""
        return asdict(self)

    @cached_property
    def id(self) -> str:
        """What it goes by, and the name of its file."""
        step = f"step={self.run.config.last}"
        part = f"{step}.seed-{self.run.seed}" if self.fold is None else f"fold-{self.fold}"
        setting = self.setting[:LONGEST]
        return f"{self.configuration}.{setting}.{part}.{content_hash(self.about)[:12]}"


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that a sweep trains, but for what depends on its choices."""

    config: SweepConfig
    precision: str
    pool: tuple[PoolCase, ...]
    """Cases that there is a subject to learn from."""
    left_out: tuple[str, ...]
    """Cases of the pool without one."""
    tests: tuple[str, ...]
    """Held-out subjects, by fleet and case."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.config.names

    @property
    def groups(self) -> dict[str, str]:
        """The group of each case of the pool, by the id of its subject."""
        return {self.unit(case.id): case.group for case in self.pool}

    def unit(self, case: str, fleet: str | None = None) -> str:
        """The id of a case's subject, by default to learn from."""
        return Order(case, fleet or self.config.fleet).id

    @property
    def units(self) -> tuple[str, ...]:
        """All subjects that there are to learn from."""
        return tuple(self.unit(case.id) for case in self.pool)

    def tests_of(self, fleet: str) -> dict[str, str]:
        """The held-out subjects of a fleet, by case."""
        orders = [Order.parse(unit) for unit in self.tests]
        return {order.case: order.id for order in orders if order.fleet == fleet}

    def without(self, fold: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Subjects to learn from, and those of the fold."""
        held_out = [case.id for case in self.pool if case.fold == fold]
        too_near = {twin for id in held_out for twin in twins(id)} | set(held_out)
        left = [case.id for case in self.pool if case.id not in too_near]
        return tuple(map(self.unit, left)), tuple(map(self.unit, held_out))

    @cached_property
    def _folds(self) -> dict[int, tuple[tuple[str, ...], tuple[str, ...]]]:
        return {fold: self.without(fold) for fold in self.config.folds}

    def cross_validation(self, configuration: str) -> list[SweepJob]:
        """Setting by setting, all folds of each."""
        return [
            self._job(configuration, setting, fold)
            for setting in self.config.chosen_settings(configuration)
            for fold in self.config.folds
        ]

    def _job(self, configuration: str, setting: str, fold: int) -> SweepJob:
        learned, validated = self._folds[fold]
        values = self.config.grid_settings()[setting]
        config = self.config.training(configuration, values)
        return SweepJob(
            configuration=configuration,
            setting=setting,
            values=values,
            fold=fold,
            precision=self.precision,
            run=StackedRun(config=config, seed=0, train=learned, validate=validated),
        )

    def refits(self, configuration: str, chosen: Selection) -> list[SweepJob]:
        """One for each seed, with the setting and the step that were chosen."""
        values = self.config.grid_settings()[chosen.setting]
        config = replace(self.config.training(configuration, values), stop=chosen.step)
        learned = tuple(self.unit(case.id) for case in self.pool)
        return [
            SweepJob(
                configuration=configuration,
                setting=chosen.setting,
                values=values,
                fold=None,
                precision=self.precision,
                run=StackedRun(config=config, seed=seed, train=learned, test=self.tests),
            )
            for seed in range(self.config.seeds)
        ]


def plan_sweep(config: SweepConfig, *, precision: str = "float32") -> Plan:
    """What there is to train; ValueError where nothing could be learned or tested."""
    listed = pool_cases(config.pool)
    if config.cases != ALL:
        listed = _only(config.cases, {case.id: case for case in listed}, config.pool)
    there, absent = [], []
    for case in listed:
        unit = Order(case.id, config.fleet).id
        (there if _is_there(unit, config.subjects) else absent).append(case)
    tests = case_ids(split="test")
    if config.held_out != ALL:
        tests = _only(config.held_out, {id: id for id in tests}, "the test split")
    units = [Order(case, fleet).id for fleet in config.evaluate for case in tests]
    for unit in units:
        named_source(unit, config.subjects)  # an error that says how to build it
    left_out = tuple(case.id for case in absent)
    plan = Plan(config, precision, tuple(there), left_out, tuple(units))
    problems = []
    for fold in config.folds:
        learned, validated = plan.without(fold)
        if not validated:
            problems.append(f"fold {fold} has no case")
        elif not learned:
            problems.append(f"there is nothing to learn from without fold {fold}")
    if problems:
        where = f" in {config.subjects}" if config.subjects else ""
        without = f"; without a {config.fleet} subject{where}: {', '.join(left_out)}"
        raise ValueError(
            f"{config.pool}: {'; '.join(problems)}{without if left_out else ''}; give other folds "
            "or cases."
        )
    return plan


def _only(wanted: Sequence[str] | str, known: Mapping[str, Any], where: str) -> list[Any]:
    unknown = [id for id in wanted if id not in known]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no case of {where}.")
    return [value for id, value in known.items() if id in wanted]


def _is_there(unit: str, subjects: str | None) -> bool:
    try:
        named_source(unit, subjects)
    except FileNotFoundError:
        return False
    return True


# What is trained together


@dataclass(frozen=True)
class Bundle:
    """Trainings of one shape, so many of them side by side."""

    jobs: tuple[SweepJob, ...]
    at_once: int

    def parts(self) -> Iterator[tuple[SweepJob, ...]]:
        for start in range(0, len(self.jobs), self.at_once):
            yield self.jobs[start : start + self.at_once]


def bundles(jobs: Sequence[SweepJob], stack: int) -> list[Bundle]:
    """Trainings in bundles of at most `stack`; settings are divided only where they do not fit."""
    by_setting: dict[str, list[SweepJob]] = {}
    for job in jobs:
        by_setting.setdefault(job.setting, []).append(job)
    made: list[list[SweepJob]] = []
    for some in by_setting.values():
        room = (x for x in made if len(x) + len(some) <= stack and _alike(x[0], some[0]))
        joined = next(room, None)
        if joined is not None:
            joined += some
        else:
            made += [some[start : start + stack] for start in range(0, len(some), stack)]
    return [Bundle(tuple(some), stack) for some in made]


def _alike(one: SweepJob, other: SweepJob) -> bool:
    return can_share(one.run.config, other.run.config)


def in_turn(by_configuration: Sequence[Sequence[Bundle]]) -> list[Bundle]:
    """The first bundle of each configuration, then the second ones, and so on."""
    longest = max(map(len, by_configuration), default=0)
    return [own[place] for place in range(longest) for own in by_configuration if place < len(own)]
