"""What comes of a sweep: its table, its choices as settings, and its refits as predictors.

1. `rows_of`: one row per configuration and fleet that it was tested on, with the held-out AUROC at
   head level of every case and seed (`compare.sweep_rows`).
2. `write_results` writes `sweep.json`; `choices/NAME.toml`, which `graphcircuits train --config`
   takes; and, once all seeds are there, `predictors/NAME.safetensors`, an ensemble of the refits
   that `graphcircuits localize --option predictor=FILE` takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from torch import Tensor

from graphcircuits.cases import N_FOLDS
from graphcircuits.cases.relations import groups_of
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble, save_ensemble, seen_of
from graphcircuits.predictor.model import Predictor
from lab.paper.configurations import ALL, SweepConfig
from lab.paper.named_source import named_source
from lab.paper.selection import to_toml
from lab.paper.stacked import StackedRun
from lab.paper.sweep import Sweep
from lab.paper.sweep_plan import Plan, SweepJob
from lab.paper.sweep_rows import SweepRow, write_rows

ROWS = "sweep.json"
USUAL_STEPS = 150
"""Of the schedule of learning rates in `paper` and its controls; other sweeps say theirs."""
JOBS = "jobs"
"""In an ensemble's origin, the refits that it is made of."""


def rows_of(sweep: Sweep) -> list[SweepRow]:
    """The table, of configurations that have refits."""
    config, found = sweep.plan.config, []
    for name in sweep.plan.names:
        chosen, done = sweep.selection(name), sweep.refitted(name)
        if chosen is None or not done:
            continue
        found += [
            SweepRow(
                configuration=name,
                aligner=config.aligner,
                pool=config.pool,
                fleet=fleet,
                labels=config.labels,
                cross_validation=chosen.score,
                eligible=chosen.eligible,
                settings=len(config.grid_settings()),
                failed=len(
                    {x.setting for x in sweep.cross_validation(name) if x.id in sweep.failed}
                ),
                chosen=done[0].values,
                step=chosen.step,
                cases=_cases(sweep, done, fleet),
                details=_details(config, done[0], fleet),
            )
            for fleet in config.evaluate
        ]
    return found


def _failed(sweep: Sweep, configuration: str) -> int:
    """Settings that failed in some fold."""
    jobs = sweep.cross_validation(configuration)
    return len({job.setting for job in jobs if job.id in sweep.failed})


def _details(config: SweepConfig, refit: SweepJob, fleet: str) -> dict[str, Any]:
    """What tells the sweep from others of one aligner, pool, fleet and labels."""
    found: dict[str, Any] = {} if config.fleet == fleet else {"trained on": config.fleet}
    predictor = refit.run.config.predictor
    if config.aligner == "tabpfn" and not predictor.standardize:
        found["standardize"] = False
    if config.aligner == "tabpfn" and predictor.align_layers > 1:
        found["align layers"] = predictor.align_layers
    if refit.run.config.steps != USUAL_STEPS:
        found["steps"] = refit.run.config.steps
    if len(config.folds) < N_FOLDS:
        found["folds"] = len(config.folds)
    for name in ("cases", "held_out"):
        if getattr(config, name) != ALL:
            found[name.replace("_", " ")] = len(getattr(config, name))
    return found


def _cases(sweep: Sweep, refits: Sequence[SweepJob], fleet: str) -> dict[str, tuple[float, ...]]:
    """AUROC at head level of every held-out case of a fleet, seed by seed."""
    scores = [sweep.measured[job.id]["scores"] for job in refits]
    units = sweep.plan.tests_of(fleet)
    return {case: tuple(own[unit]["head"] for own in scores) for case, unit in units.items()}


def held_out_median(sweep: Sweep, configuration: str) -> float | None:
    """Over the cases of the first fleet, of their means over seeds; None without any refit."""
    done = sweep.refitted(configuration)
    if not done:
        return None
    cases = _cases(sweep, done, sweep.plan.config.evaluate[0])
    return median(map(mean, cases.values()))


def write_results(sweep: Sweep) -> list[Path]:
    """Write all that can be written now; the table's path, if there is one."""
    plan, store = sweep.plan, sweep.store
    seen: dict[str, Any] = {}
    for name in plan.names:
        chosen, done = sweep.selection(name), sweep.refitted(name)
        if chosen is not None:
            config = sweep.refits(name, chosen)[0].run.config
            store.write(f"choices/{name}.toml", to_toml(config))
        path = store.folder / "predictors" / f"{name}.safetensors"
        if len(done) == plan.config.seeds and _made_of(path) != [job.id for job in done]:
            seen = seen or _seen(plan)
            save_ensemble(path, _ensemble(sweep, done, seen), command=store.command)
    rows = rows_of(sweep)
    if not rows:
        return []
    path = store.folder / ROWS
    write_rows(path, rows, config=asdict(plan.config), command=store.command)
    return [path]


def _made_of(path: Path) -> list[str]:
    """The refits whose ensemble a file holds; none where there is no such file."""
    try:
        return load_ensemble(path).origin.get(JOBS, [])
    except (FileNotFoundError, ValueError):
        return []


def _seen(plan: Plan) -> dict[str, Any]:
    """What the subjects that were learned from are like."""
    return subjects_seen([plan.unit(case.id) for case in plan.pool], plan.config.subjects)


def subjects_seen(units: Sequence[str], folder: str | None) -> dict[str, Any]:
    """What some subjects are like."""
    return seen_of([named_source(id, folder).subject() for id in units])


def _ensemble(sweep: Sweep, refits: Sequence[SweepJob], seen: Mapping[str, Any]) -> Ensemble:
    cases = [case.id for case in sweep.plan.pool]
    trained = [(job.run, sweep.store.weights(job)) for job in refits]
    made = ensemble_of_runs(trained, cases, sweep.plan.config.fleet, seen)
    return replace(made, origin={**made.origin, JOBS: [job.id for job in refits]})


def ensemble_of_runs(
    trained: Sequence[tuple[StackedRun, Mapping[str, Tensor]]],
    cases: Sequence[str],
    fleet: str,
    seen: Mapping[str, Any],
) -> Ensemble:
    """Predictors that were trained side by side as one, which says what it learned from."""
    members = []
    for run, weights in trained:
        member = Predictor(run.config.predictor)
        member.load_state_dict(dict(weights))
        members.append(member.eval())
    origin = {
        "cases": list(cases),
        "groups": sorted(frozenset().union(*map(groups_of, cases))),
        "fleets": {fleet: len(cases)},
        "subjects": dict(seen),
        "train": asdict(trained[0][0].config),
        "seeds": [run.seed for run, _ in trained],
        "steps": [run.config.last for run, _ in trained],
    }
    return Ensemble(tuple(members), origin)
