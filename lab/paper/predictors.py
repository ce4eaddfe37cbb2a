"""The predictors of the paper's own system that ship, from a sweep with its aligner.

1. `default` is what the sweep chose for a configuration, trained on the whole pool: the refit of
   the first seed, alone, as the paper has it.
2. `fold-K` is the same training without fold K and without twins of its cases, for cases of that
   fold. All five are trained side by side.

Files hold the weights in half precision: they were learned in bfloat16, which is coarser.

python -m lab.paper predictors paper --sweep FOLDER --out data/predictors/paper
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from graphcircuits.compare.selection import Unit
from graphcircuits.jobs.command import driver_command
from graphcircuits.predictor.ensemble import Ensemble, save_ensemble
from lab.paper.configurations import load_sweep
from lab.paper.stacked import DTYPES, StackedRun, train_side_by_side
from lab.paper.sweep import Sweep
from lab.paper.sweep_plan import Plan, plan_sweep
from lab.paper.sweep_results import ensemble_of_runs, subjects_seen
from lab.paper.sweep_store import SweepStore
from lab.programs import parser

CONFIGURATION = "dirgnn-line-observed"
"""The paper's choice."""


def paper_predictors(
    sweep: Sweep, configuration: str = CONFIGURATION, *, device: torch.device | str = "cpu"
) -> Iterator[tuple[str, Ensemble]]:
    """Each predictor and its name, from the choice and the first refit of a sweep."""
    plan = sweep.plan
    done = sweep.refitted(configuration)
    if not done:
        raise ValueError(f"the sweep has no refit of {configuration}; train it first.")
    first = done[0]
    yield "default", _alone(plan, first.run, sweep.store.weights(first))
    runs = [replace(first.run, train=plan.without(fold)[0], test=()) for fold in plan.config.folds]
    trained = train_side_by_side(
        runs,
        device=device,
        precision=plan.precision,
        subjects=plan.config.subjects,
        units=plan.units,
        tests=plan.tests,
    )
    for fold, run, one in zip(plan.config.folds, runs, trained, strict=True):
        yield f"fold-{fold}", _alone(plan, run, one.weights)


def _alone(plan: Plan, run: StackedRun, weights: Mapping[str, Tensor]) -> Ensemble:
    cases = [Unit.of(id).case.id for id in run.train]
    seen = subjects_seen(run.train, plan.config.subjects)
    return ensemble_of_runs([(run, weights)], cases, plan.config.fleet, seen)


def command_words() -> argparse.ArgumentParser:
    """Of the command that shipped files record."""
    words = parser("lab.paper predictors", __doc__)
    words.add_argument("config", help="of the sweep: a TOML file, or the name of one that ships")
    words.add_argument("--sweep", type=Path, required=True, help="its folder")
    words.add_argument("--precision", choices=list(DTYPES), default="float32", help="of the sweep")
    words.add_argument("--configuration", default=CONFIGURATION)
    words.add_argument("--device", default="cpu")
    words.add_argument("--out", type=Path, required=True, help="folder for the predictors")
    return words


def main(arguments: Sequence[str]) -> None:
    """Make the files."""
    given = command_words().parse_args(arguments)
    plan = plan_sweep(load_sweep(given.config), precision=given.precision)
    store = SweepStore(given.sweep, driver_command())
    if not store.check(plan):
        raise SystemExit(f"{given.sweep} is no folder of a sweep")
    made = paper_predictors(Sweep(plan, store), given.configuration, device=given.device)
    for name, ensemble in made:
        path = given.out / f"{name}.safetensors"
        seed, command = ensemble.origin["seeds"][0], driver_command()
        save_ensemble(path, ensemble, seed=seed, command=command, dtype=torch.float16)
        sys.stdout.write(f"wrote {path}\n")
