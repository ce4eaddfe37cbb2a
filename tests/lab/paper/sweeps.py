"""A small sweep, and a stand-in for its trainings that is quick, the same every time, and can be
told to fail."""

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from graphcircuits.io.config import load_config
from graphcircuits.io.store import content_hash
from graphcircuits.jobs.runner import InProcess
from graphcircuits.predictor.model import Predictor
from lab.paper import sweep as module
from lab.paper.configurations import SweepConfig
from lab.paper.stacked import StackedRun, Trained
from lab.paper.sweep import Means, Outcome, Sweep
from lab.paper.sweep_plan import Plan, plan_sweep
from lab.paper.sweep_store import SweepStore
from tests.predictor.graphs import seeded

COMMAND = "python -m lab.paper sweep small.toml"
TINY: dict[str, Any] = {"width": 8, "dropout": 0.0, "prior": False, "paths": False}
"""A predictor that is quick to train in earnest."""
SMALL: dict[str, Any] = {
    "aligner": "invariant",
    "configurations": ["dirgnn-line-observed", "factorized-line-none"],
    "cases": ["ib-7", "ib-14", "ib-24", "ib-45", "ib-53"],
    "folds": [0, 1],
    "seeds": 2,
    "held_out": ["ib-3", "ib-4"],
    "evaluate": ["planted", "public"],
    "grid": {"layers": [1, 2], "lr": [0.01, 0.1]},
    "train": {"steps": 6, "every": 2, "pairs": 4, "views": 1, "predictor": TINY},
}


def small(**given: Any) -> SweepConfig:
    return load_config(SweepConfig, {**SMALL, **given})


@cache
def small_plan() -> Plan:
    return plan_sweep(small())


@dataclass
class Trainer:
    """In the place of `train_side_by_side`: what runs reach is drawn by their content."""

    fail: Callable[[Sequence[StackedRun]], Exception | None] = lambda runs: None
    """What goes wrong with runs that are side by side."""
    make: Callable[[StackedRun], Trained] = field(default=lambda run: trained(run))
    calls: list[list[StackedRun]] = field(default_factory=list)

    def __call__(self, runs: Sequence[StackedRun], **_: object) -> list[Trained]:
        self.calls.append(list(runs))
        if (error := self.fail(runs)) is not None:
            raise error
        return [self.make(run) for run in runs]


def trained(run: StackedRun) -> Trained:
    rng = random.Random(content_hash(run))
    steps = range(run.config.every, run.config.last + 1, run.config.every)
    return Trained(
        history={step: {case: rng.randint(0, 20) / 20 for case in run.validate} for step in steps},
        scores={case: {"head": rng.random(), "qkv": rng.random()} for case in run.test},
        weights=Predictor(run.config.predictor, generator=seeded(run.seed)).state_dict(),
    )


def sweep_in(folder: Path, plan: Plan | None = None) -> Sweep:
    """A sweep over a folder, with what that holds."""
    store = SweepStore(folder, COMMAND)
    plan = plan or small_plan()
    store.open(plan)
    return Sweep(plan, store)


def run_with(
    trainer: Trainer, sweep: Sweep, stack: int = 4, **given: Any
) -> Generator[Outcome, None, None]:
    """Run it here, with this trainer."""
    before = module.train_side_by_side
    module.train_side_by_side = trainer
    try:
        yield from sweep.run(InProcess(), Means(stack=stack), **given)
    finally:
        module.train_side_by_side = before


def content(folder: Path) -> dict[str, object]:
    """Every file of a sweep that holds no times, and no claim."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "times.jsonl" and ".claims" not in path.parts
    }
