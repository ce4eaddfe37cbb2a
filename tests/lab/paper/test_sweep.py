"""A sweep: what it plans, in which order it trains, what it keeps when things go wrong."""

import errno
import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.cases.relations import twins
from graphcircuits.io.config import load_config
from graphcircuits.io.store import StoreError, load_artifact
from graphcircuits.jobs.processes import Processes
from graphcircuits.jobs.runner import InProcess
from graphcircuits.predictor.ensemble import load_ensemble
from graphcircuits.training.config import TrainConfig
from lab.paper import sweep_store as store_module
from lab.paper.named_source import named_source
from lab.paper.selection import Selection
from lab.paper.stacked import StackedRun, Trained, train_side_by_side
from lab.paper.sweep import Means, Outcome, lost_bundle, resources_of
from lab.paper.sweep_plan import Bundle, bundles, in_turn, plan_sweep
from lab.paper.sweep_results import held_out_median, rows_of, write_results
from lab.paper.sweep_rows import read_rows
from lab.paper.sweep_store import SweepFailure, SweepStore
from tests.damage import join_artifact, rehashed, split_artifact
from tests.lab.paper.sweeps import (
    COMMAND,
    TINY,
    Trainer,
    content,
    run_with,
    small,
    small_plan,
    sweep_in,
    trained,
)
from tests.tiers import some

pytestmark = pytest.mark.usefixtures("unchecked")

NAMES = ("dirgnn-line-observed", "factorized-line-none")
CHOSEN = Selection(setting="layers=2,lr=0.1", step=4, score=0.5, eligible=4, settings=4)


# The plan


def test_a_fold_is_validated_by_what_learned_from_the_others() -> None:
    plan = small_plan()
    jobs = plan.cross_validation(NAMES[0])
    assert [(job.setting, job.fold) for job in jobs] == [
        (f"layers={layers},lr={lr}", fold)
        for layers in (1, 2)
        for lr in (0.01, 0.1)
        for fold in range(2)
    ]
    for job in jobs:
        assert {load_case(id).fold for id in job.run.validate} == {job.fold}
        assert not set(job.run.train) & set(job.run.validate)
        assert sorted(job.run.train + job.run.validate) == sorted(plan.config.cases)
        assert (job.run.seed, job.run.test) == (0, ())
        assert (job.run.config.predictor.layers, job.run.config.lr) == tuple(job.values.values())
    assert len({job.id for name in NAMES for job in plan.cross_validation(name)}) == 16


def test_twins_of_what_is_validated_are_not_learned_from() -> None:
    assert "ib-93" in twins("ib-58")
    assert load_case("ib-93").fold != load_case("ib-58").fold
    plan = plan_sweep(small(cases=["ib-7", "ib-58", "ib-93"], folds=[1, 4]))
    learned = {job.fold: job.run.train for job in plan.cross_validation(NAMES[0])}
    assert learned == {1: ("ib-7",), 4: ("ib-7",)}
    # They are where nothing is validated.
    assert plan.refits(NAMES[0], CHOSEN)[0].run.train == ("ib-7", "ib-58", "ib-93")


def test_refits_stop_at_the_chosen_step_of_the_same_schedule() -> None:
    plan = small_plan()
    jobs = plan.refits(NAMES[1], CHOSEN)
    held_out = ("ib-3", "ib-4", "ib-3.public.plain.0", "ib-4.public.plain.0")
    assert [job.run.seed for job in jobs] == [0, 1]
    for job in jobs:
        assert (job.run.config.steps, job.run.config.stop) == (6, 4)
        assert (job.run.config.predictor.layers, job.run.config.lr) == (2, 0.1)
        assert set(job.run.train) == set(plan.config.cases)
        assert (job.run.validate, job.run.test) == ((), held_out)
    assert plan.tests_of("public") == {"ib-3": held_out[2], "ib-4": held_out[3]}


UNSHIPPED = {"tb-count-less-freq", "tb-test-at-least-two-equal"}
"""Cases of the paper's pool whose subject did not learn its circuit."""


def test_all_of_the_pool_and_all_held_out_cases() -> None:
    plan = plan_sweep(small(cases="all", held_out="all", folds=[0, 1, 2, 3, 4]))
    assert len(plan.pool) == 102
    assert set(plan.left_out) == {
        "new-total-inversions-even",
        "new-frequency-of-frequency",
        "new-count-local-peaks",
        "new-sorted-run-count",
        "new-nonzero-palindrome",
        "new-count-distinct",
        "new-first-repeat-index",
        "tb-sort-unique",
        "new-largest-sorted-gap",
        *UNSHIPPED,
    }
    assert len(plan.tests) == 32
    assert {load_case(case.id).split for case in plan.pool} == {"pool"}
    assert {load_case(id.partition(".")[0]).split for id in plan.tests} == {"test"}
    assert len(plan_sweep(small(cases="all", pool="interpbench-pool")).pool) == 26
    paper = plan_sweep(small(cases="all", pool="paper-pool"))
    assert (len(paper.pool), set(paper.left_out)) == (48, UNSHIPPED)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"folds": [3]}, "pool: fold 3 has no case; give other folds or cases."),
        (
            {"cases": ["ib-7", "ib-14"], "folds": [0]},
            "pool: there is nothing to learn from without fold 0; give other folds or cases.",
        ),
        ({"cases": ["ib-3"]}, "ib-3: no case of pool."),
        ({"held_out": ["ib-7"]}, "ib-7: no case of the test split."),
        (
            {"fleet": "public", "folds": [3], "cases": ["ib-7", "tb-element-second"]},
            "pool: fold 3 has no case; without a public subject: ib-7, tb-element-second; "
            "give other folds or cases.",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is compared
        plan_sweep(small(**given))
    assert str(caught.value) == told


def test_subjects_of_a_folder_come_first(tmp_path: Path) -> None:
    cases = ["ib-7", "tb-polynomial", "tb-element-divide", "tb-rolling-max"]
    for case in ("tb-polynomial", "tb-rolling-max", "ib-3"):
        (tmp_path / f"{case}.public.plain.0.safetensors").touch()
    given = {"fleet": "public", "folds": [0, 1], "cases": cases}
    plan = plan_sweep(small(**given, subjects=str(tmp_path)))
    assert plan.groups == {
        "tb-polynomial.public.plain.0": "tb-polynomial",
        "tb-rolling-max.public.plain.0": "tb-rolling-max",
    }
    assert plan.left_out == ("ib-7", "tb-element-divide")
    found = {id: bool(named_source(id, tmp_path).path) for id in (*plan.units, *plan.tests)}
    assert found == {
        "tb-polynomial.public.plain.0": True,
        "tb-rolling-max.public.plain.0": True,
        "ib-3": False,
        "ib-4": False,
        "ib-3.public.plain.0": True,
        "ib-4.public.plain.0": False,
    }


def test_bundles_hold_whole_settings_of_one_shape_and_take_turns() -> None:
    plan = plan_sweep(small(folds=[0, 1, 2]))
    jobs = plan.cross_validation(NAMES[0])

    def shapes(stack: int) -> list[list[str]]:
        return [
            [f"{job.setting} {job.fold}" for job in bundle.jobs] for bundle in bundles(jobs, stack)
        ]

    by_setting = [[f"{name} {fold}" for fold in range(3)] for name in plan.config.grid_settings()]
    # Four are too few for two settings.
    assert shapes(3) == shapes(4) == shapes(5) == by_setting
    assert shapes(6) == [by_setting[0] + by_setting[1], by_setting[2] + by_setting[3]]
    assert shapes(100) == shapes(6)
    assert shapes(2)[:3] == [by_setting[0][:2], by_setting[0][2:], by_setting[1][:2]]
    assert [len(some) for some in shapes(1)] == [1] * 12
    one, other = (bundles(plan.cross_validation(name), 6) for name in NAMES)
    assert in_turn([one, other, one[:1]]) == [one[0], other[0], one[0], one[1], other[1]]


# Running


def test_settings_come_in_turn_and_refits_as_soon_as_they_can(tmp_path: Path) -> None:
    few = {"factorized-line-none": 1}
    sweep = sweep_in(tmp_path, plan_sweep(small(settings_by_configuration=few)))
    begun: list[tuple[str, str, bool]] = []

    def note(bundle: Bundle) -> None:
        job = bundle.jobs[0]
        begun.append((job.configuration, job.setting, job.fold is None))

    assert sweep.left() == 8 + 2 + 2 * 2
    list(run_with(Trainer(), sweep, 2, begun=note))
    assert sweep.left() == 0
    first, *settings = sweep.plan.config.grid_settings()
    assert begun[:3] == [
        (NAMES[0], first, False),
        (NAMES[1], first, False),
        (NAMES[1], first, True),
    ]
    assert begun[3:6] == [(NAMES[0], setting, False) for setting in settings]
    assert [(name, refit) for name, _, refit in begun[6:]] == [(NAMES[0], True)]


def test_the_table_is_that_of_the_choice(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)
    list(run_with(Trainer(), sweep))
    assert write_results(sweep) == [tmp_path / "sweep.json"]
    rows = read_rows(tmp_path / "sweep.json")
    assert rows == rows_of(sweep)
    assert [(row.configuration, row.fleet) for row in rows] == [
        (name, fleet) for name in NAMES for fleet in ("planted", "public")
    ]
    for row in rows:
        chosen = sweep.selection(row.configuration)
        assert chosen is not None
        assert (row.step, row.cross_validation) == (chosen.step, chosen.score)
        assert (row.eligible, row.settings, row.n_seeds) == (4, 4, 2)
        assert dict(row.chosen) == sweep.plan.config.grid_settings()[chosen.setting]
        jobs = sweep.plan.refits(row.configuration, chosen)
        kept = [load_artifact(sweep.store.path(job), "sweep-job") for job in jobs]
        for case, scores in row.cases.items():
            unit = case if row.fleet == "planted" else f"{case}.public.plain.0"
            assert list(scores) == [own.meta["scores"][unit]["head"] for own in kept]
        ensemble = load_ensemble(tmp_path / "predictors" / f"{row.configuration}.safetensors")
        assert ensemble.config == jobs[0].run.config.predictor
        assert ensemble.origin["cases"] == [case.id for case in sweep.plan.pool]
        assert ensemble.origin["groups"] == ["ib-24", "ib-45", "ib-53", "ib-7"]
        for seed, member in enumerate(ensemble.members):
            assert all(
                torch.equal(kept[seed].tensors[name], weight)
                for name, weight in member.state_dict().items()
            )
        text = (tmp_path / "choices" / f"{row.configuration}.toml").read_text()
        path = tmp_path / "choice.toml"
        path.write_text(text)
        assert load_config(TrainConfig, path) == jobs[0].run.config
    few = {"steps": 6, "folds": 2, "cases": 5, "held out": 2}
    assert [dict(row.details) for row in rows[:2]] == [few, {"trained on": "planted", **few}]
    means = [sum(scores) / 2 for scores in rows[0].cases.values()]
    assert held_out_median(sweep, NAMES[0]) == pytest.approx(sum(means) / 2)


@pytest.mark.slow
@pytest.mark.parametrize("stack", some([1, 2, 100], [100]))
def test_a_sweep_that_was_cut_off_ends_as_an_unbroken_one(tmp_path: Path, stack: int) -> None:
    whole = sweep_in(tmp_path / "whole")
    trainer = Trainer()
    list(run_with(trainer, whole, stack))
    write_results(whole)
    n = len(trainer.calls)
    for place in range(1, n, 4):
        folder = tmp_path / str(place)
        broken = Trainer()
        broken.fail = lambda runs, own=broken, place=place: (
            RuntimeError("cut off") if len(own.calls) > place else None
        )
        with pytest.raises(RuntimeError, match="cut off"):
            list(run_with(broken, sweep_in(folder), stack))
        again, rest = sweep_in(folder), Trainer()
        list(run_with(rest, again, stack))
        write_results(again)
        assert content(folder) == content(tmp_path / "whole")
        # Nothing is trained twice.
        assert len(rest.calls) == n - place


@pytest.mark.slow
def test_a_bundle_cut_off_between_its_files_is_trained_as_a_whole(tmp_path: Path) -> None:
    """What was side by side stays so, and what was kept is not written again."""
    list(run_with(Trainer(), sweep_in(tmp_path / "whole"), 4))
    run = run_with(Trainer(), sweep_in(tmp_path / "cut"), 4)
    kept = [next(run), next(run)]
    run.close()
    assert len(content(tmp_path / "cut" / "jobs")) == 2
    trainer = Trainer()
    sweep = sweep_in(tmp_path / "cut")
    times = {sweep.store.path(sweep.jobs[x.id]): x for x in kept}
    before = {path: path.stat().st_mtime_ns for path in times}
    list(run_with(trainer, sweep, 4))
    assert [len(call) for call in trainer.calls[:1]] == [4]
    assert before == {path: path.stat().st_mtime_ns for path in times}
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_after_the_deadline_nothing_is_begun_and_what_is_begun_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    trainer = Trainer()

    def clock(runs: Sequence[StackedRun]) -> None:
        now[0] += 10

    trainer.fail = clock
    sweep = sweep_in(tmp_path)
    found = list(run_with(trainer, sweep, 2, deadline=25.0))
    assert len(trainer.calls) == 3
    assert len(found) == 6
    assert sweep.left() == 16 + 4 - 6
    assert list(run_with(trainer, sweep, 2, deadline=25.0)) == []
    assert len(list(run_with(trainer, sweep, 2))) == 16 + 4 - 6


def test_phases(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)
    list(run_with(Trainer(), sweep, 2, phase="cross-validation", only=NAMES[:1]))
    assert sweep.finished(sweep.cross_validation(NAMES[0])) == 8
    assert sweep.finished(sweep.cross_validation(NAMES[1])) == 0
    assert rows_of(sweep) == []
    # One setting of the other, and the choice among what is finished.
    run = run_with(Trainer(), sweep, 2, only=NAMES[1:])
    for _ in range(2):
        next(run)
    run.close()
    assert sweep.left("refit") == 4
    list(run_with(Trainer(), sweep, 2, phase="refit"))
    assert {row.configuration: row.eligible for row in rows_of(sweep)} == {NAMES[0]: 4, NAMES[1]: 1}
    assert sweep.left("refit") == 0
    assert sweep.left("cross-validation") == 6
    assert sweep.left() == 6 + 2


def test_an_ensemble_is_that_of_the_choice(tmp_path: Path) -> None:
    """It is written once, and again when others are chosen."""
    few = small(settings_by_configuration={"default": 1}, configurations=[NAMES[0]])
    sweep = sweep_in(tmp_path, plan_sweep(few))
    list(run_with(Trainer(), sweep))
    write_results(sweep)
    path = tmp_path / "predictors" / f"{NAMES[0]}.safetensors"
    first, written = path.read_bytes(), path.stat().st_mtime_ns
    write_results(sweep_in(tmp_path, plan_sweep(few)))
    assert path.stat().st_mtime_ns == written
    sweep = sweep_in(tmp_path, plan_sweep(small(configurations=[NAMES[0]])))
    list(run_with(Trainer(), sweep))
    write_results(sweep)
    chosen = sweep.selection(NAMES[0])
    assert chosen is not None
    assert chosen.setting != next(iter(sweep.plan.config.grid_settings()))
    assert load_ensemble(path).origin["train"]["lr"] == sweep.refitted(NAMES[0])[0].run.config.lr
    # Back to the first choice, whose refits are older than the file.
    write_results(sweep_in(tmp_path, plan_sweep(few)))
    assert path.read_bytes() == first


# What goes wrong


def test_a_training_out_of_memory_is_recorded_and_the_sweep_goes_on(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)
    bad = sweep.cross_validation(NAMES[0])[2]

    def fail(runs: Sequence[StackedRun]) -> Exception | None:
        """More than two side by side are too many, and this one always is."""
        if len(runs) > 2 or bad.run in runs:
            return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return None

    trainer = Trainer(fail)
    found = list(run_with(trainer, sweep, 4))
    why = "it ran out of memory (CUDA out of memory. Tried to allocate 2.00 GiB.)"
    assert [(x.id, x.failed) for x in found if x.failed] == [(bad.id, why)]
    assert sweep.failed == {bad.id: why}
    assert sweep.store.failure(bad) == SweepFailure(why)
    # Its setting is not eligible; the others are, and are refitted.
    assert [row.eligible for row in rows_of(sweep)] == [3, 3, 4, 4]
    assert [row.failed for row in rows_of(sweep)] == [1, 1, 0, 0]
    assert all(dict(row.chosen) != bad.values for row in rows_of(sweep)[:2])
    assert sweep.left() == 0
    # Another run tries it once more, without what was trained beside it.
    again, trainer = sweep_in(tmp_path), Trainer()
    assert again.left() == 1 + 2
    list(run_with(trainer, again, 4))
    assert trainer.calls[0] == [bad.run]
    assert again.failed == {}
    assert again.store.failure(bad) is None
    assert [row.eligible for row in rows_of(again)] == [4] * 4


def test_a_training_that_diverges_costs_nobody_beside_it(tmp_path: Path) -> None:
    """The others are kept as they are, and its setting is not eligible."""
    sweep = sweep_in(tmp_path)
    cross = sweep.cross_validation(NAMES[1])[0]

    def diverge(run: StackedRun) -> Trained:
        found = trained(run)
        if run == cross.run:
            found.history[4]["ib-7"] = math.nan
        if run.seed == 1:
            found.scores["ib-4"]["head"] = math.nan
        return found

    trainer = Trainer(make=diverge)
    list(run_with(trainer, sweep))
    assert [len(call) for call in trainer.calls] == [4, 4, 4, 2, 4, 2]
    told = set(sweep.failed.values())
    assert sweep.failed[cross.id] == "its scores are no numbers at step 4; lower the learning rate"
    assert told == {
        "its scores are no numbers at step 4; lower the learning rate",
        "its scores are no numbers; lower the learning rate",
    }
    assert len(sweep.failed) == 3
    assert [row.eligible for row in rows_of(sweep)] == [4, 4, 3, 3]
    assert {row.n_seeds for row in rows_of(sweep)} == {1}
    # It would diverge again, and is not tried.
    again, trainer = sweep_in(tmp_path), Trainer()
    assert again.left() == 0
    assert list(run_with(trainer, again)) == []
    assert again.failed == sweep.failed
    assert rows_of(again) == rows_of(sweep)


def test_a_configuration_of_which_nothing_finishes_has_no_row(tmp_path: Path) -> None:
    def fail(runs: Sequence[StackedRun]) -> Exception | None:
        none = runs[0].config.predictor.connectivity == "none"
        return MemoryError() if none and 0 in [len(run.test) for run in runs] else None

    sweep = sweep_in(tmp_path)
    list(run_with(Trainer(fail), sweep, 2))
    assert len(sweep.failed) == 8
    assert {row.configuration for row in rows_of(sweep)} == {NAMES[0]}
    assert sweep.selection(NAMES[1]) is None
    assert sweep.left() == 0


def test_what_is_left_of_a_bundle_whose_process_ended() -> None:
    jobs = tuple(small_plan().cross_validation(NAMES[0])[:6])
    why = "its process was killed by signal 9"
    assert lost_bundle(Bundle(jobs, 6), 0, why) == ([], Bundle(jobs, 3))
    assert lost_bundle(Bundle(jobs, 3), 3, why) == ([], Bundle(jobs[3:], 1))
    found, rest = lost_bundle(Bundle(jobs[3:], 1), 1, why)
    assert found == [Outcome(id=jobs[4].id, failed=why)]
    assert rest == Bundle(jobs[5:], 1)
    # The last one fails even where more would have been side by side.
    assert lost_bundle(Bundle(jobs, 6), 5, why) == ([Outcome(id=jobs[5].id, failed=why)], None)


@pytest.mark.slow
def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(run_with(Trainer(), sweep_in(tmp_path / "whole")))
    save, calls = store_module.save_artifact, []

    def full(path: Path, **given: Any) -> str:
        calls.append(path)
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return save(path, **given)

    sweep = sweep_in(tmp_path / "full")
    monkeypatch.setattr(store_module, "save_artifact", full)
    with pytest.raises(OSError, match="No space left on device"):
        list(run_with(Trainer(), sweep))
    monkeypatch.setattr(store_module, "save_artifact", save)
    assert len(content(tmp_path / "full" / "jobs")) == 3
    list(run_with(Trainer(), sweep_in(tmp_path / "full")))
    assert content(tmp_path / "full") == content(tmp_path / "whole")


def test_a_folder_has_one_driver(tmp_path: Path) -> None:
    one, other = SweepStore(tmp_path, COMMAND), SweepStore(tmp_path, COMMAND)
    told = f"another sweep is at work in {tmp_path}; wait for it, or give another folder."
    with one.held(), pytest.raises(ValueError, match=re.escape(told)), other.held():
        pass
    with other.held():
        pass


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"held_out": ["ib-3"]}, 'held_out ["ib-3", "ib-4"], now ["ib-3"]'),
        ({"train": {"steps": 8}}, 'train {"steps": 6, "every": 2, '),
        ({"aligner": "tabpfn"}, 'aligner "invariant", now "tabpfn"'),
        ({"labels": "complete"}, 'labels "interpbench", now "complete"'),
    ],
)
def test_a_folder_of_another_sweep_is_refused(
    tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    sweep_in(tmp_path)
    with pytest.raises(StoreError) as caught:
        sweep_in(tmp_path, plan_sweep(small(**given)))
    assert f"{tmp_path} is the folder of another sweep: {told}" in str(caught.value)
    assert "Give another folder, or --fresh to delete what it holds." in str(caught.value)
    with pytest.raises(StoreError, match='precision "float32", now "bfloat16"'):
        sweep_in(tmp_path, plan_sweep(small(), precision="bfloat16"))


def test_configurations_settings_and_seeds_can_be_added(tmp_path: Path) -> None:
    first = small(configurations=[NAMES[0]], seeds=1, settings_by_configuration={"default": 2})
    list(run_with(Trainer(), sweep_in(tmp_path, plan_sweep(first))))
    trainer, sweep = Trainer(), sweep_in(tmp_path)
    assert sweep.finished(sweep.cross_validation(NAMES[0])) == 4
    list(run_with(trainer, sweep, 2))
    crossed = [run for call in trainer.calls for run in call if run.validate]
    assert len(crossed) == 16 - 4
    assert sweep.left() == 0
    grown = small(grid={"layers": [1, 2], "lr": [0.01, 0.1, 0.5]})
    sweep = sweep_in(tmp_path, plan_sweep(grown))
    assert sweep.left("cross-validation") == 2 * 2 * 2


def test_a_damaged_file_is_made_again_and_those_of_other_cases_are_not_taken(
    tmp_path: Path,
) -> None:
    sweep = sweep_in(tmp_path)
    list(run_with(Trainer(), sweep, 2))
    whole = content(tmp_path)
    path = sweep.store.path(sweep.cross_validation(NAMES[0])[2])
    path.write_text(path.read_text()[:-20])
    other = sweep.store.path(sweep.cross_validation(NAMES[0])[3])
    other.write_bytes(sweep.store.path(sweep.cross_validation(NAMES[0])[4]).read_bytes())
    again = sweep_in(tmp_path)
    assert again.left("cross-validation") == 2
    list(run_with(Trainer(), again, 2))
    assert content(tmp_path) == whole


def test_files_that_lie_about_their_figures_are_made_again(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)
    list(run_with(Trainer(), sweep, 2))
    write_results(sweep)
    whole = content(tmp_path)
    refit = sweep.store.path(sweep.refitted(NAMES[0])[0])
    header, tensors = split_artifact(refit)
    for own in header["meta"]["scores"].values():
        del own["head"]
    join_artifact(refit, header, tensors)
    crossed = [sweep.store.path(job) for job in sweep.cross_validation(NAMES[0])[:2]]
    for path, change in zip(crossed, (dict.clear, dict.popitem), strict=True):
        found = json.loads(path.read_text())
        for cases in found["meta"]["history"].values():
            change(cases)
        path.write_text(json.dumps(rehashed(found, {})))
    again = sweep_in(tmp_path)
    list(run_with(Trainer(), again, 2))
    write_results(again)
    assert content(tmp_path) == whole


def test_what_is_cleared_is_what_a_sweep_left(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)
    list(run_with(Trainer(), sweep))
    write_results(sweep)
    (tmp_path / "mine.txt").touch()
    sweep.store.clear()
    assert list(content(tmp_path)) == ["mine.txt"]
    (tmp_path / "jobs").mkdir()
    sweep.store.clear()
    assert (tmp_path / "jobs").exists()


def test_times_are_beside(tmp_path: Path) -> None:
    sweep = sweep_in(tmp_path)
    list(run_with(Trainer(), sweep, 4))
    lines = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == list(sweep.measured)
    assert {line["together"] for line in lines} == {2, 4}
    assert all(line["seconds"] > 0 for line in lines)


def test_a_bundle_takes_its_share_of_the_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resources_of("cpu", 8, ray=False).gpus == 0
    assert resources_of("cuda:1", 8, ray=False).gpus == 0
    assert resources_of("cuda", 8, ray=False).gpus == pytest.approx(0.25)
    assert resources_of("cuda", 1, ray=False).gpus == 1
    assert resources_of("cuda", 1, ray=True).gpus == 1
    # As many processes as were asked for find room.
    for processes in range(2, 200):
        assert int(2 / resources_of("cuda", processes, ray=False).gpus) == processes


# In earnest


def test_a_run_that_diverges_leaves_those_beside_it_alone() -> None:
    """A rate that no training survives."""
    config = small(train={"steps": 3, "every": 3, "pairs": 2, "predictor": TINY}).training(
        NAMES[0], {"layers": 1}
    )
    good = StackedRun(config=config, seed=0, train=("ib-7",), validate=("ib-14",))
    bad = replace(good, config=replace(config, lr=1e30))
    beside, lost = train_side_by_side([good, bad])
    (alone,) = train_side_by_side([good])
    assert beside.history == alone.history
    assert math.isnan(lost.history[3]["ib-14"])


@pytest.mark.slow
def test_processes_leave_what_one_process_does(tmp_path: Path) -> None:
    """Real trainings, of two configurations, with two held-out cases of each fleet."""
    config = small(
        train={"steps": 4, "every": 2, "pairs": 4, "batch": 2, "predictor": TINY},
        grid={"lr": [0.01, 0.1]},
    )
    plan = plan_sweep(config)
    found = {}
    for name, runner in (("one", InProcess()), ("two", Processes(2))):
        sweep = sweep_in(tmp_path / name, plan)
        for outcome in sweep.run(runner, Means(stack=2)):
            assert outcome.failed is None
        write_results(sweep)
        found[name] = content(tmp_path / name)
        for row in rows_of(sweep):
            assert all(0 <= x <= 1 and math.isfinite(x) for own in row.cases.values() for x in own)
    assert found["one"] == found["two"]
    assert len(found["one"]) == 8 + 4 + 4 + 2
