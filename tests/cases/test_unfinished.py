"""Builds that are cut off: where they go on, that nothing differs in the end, what is refused."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphcircuits.cases import build as module
from graphcircuits.cases import prepare, subjects
from graphcircuits.cases.case import Case
from graphcircuits.cases.prepare import BuildConfig
from graphcircuits.cases.unfinished import begun, subject_path
from graphcircuits.fleets.checkpoint import KIND, Snapshot
from graphcircuits.io.store import StoreError, save_artifact
from graphcircuits.rasp import Map, tokens
from tests.cases.test_build import CONFIG, SIIT, build, files, letters, trained
from tests.tiers import some

pytestmark = pytest.mark.usefixtures("unchecked")

PLACES = ("start", "pass", "written", "check", "end")
"""Where a build of two is cut off: before any step; as the first passes, before and after it is
written; after a check with nothing new; when all is written but the checkpoint is still there."""


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Case], BuildConfig]:
    """A fleet in which one passes at the first check, and one never does."""
    easy, hard = letters("own-easy"), letters("own-hard")
    exchange = prepare.case_exchange

    def wrong_check(case: Case, inputs: int, pairs: int, seed: int) -> Any:
        made = exchange(case, inputs, pairs, seed)
        return replace(made, targets=1 - made.targets) if case is hard else made

    monkeypatch.setattr(prepare, "case_exchange", wrong_check)
    monkeypatch.setattr(subjects, "start_of", lambda *_: trained())
    return [hard, easy], replace(CONFIG, siit=replace(SIIT, steps=8, check_every=2))


class Cut(Exception):
    pass


def cut(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    save, close = module.save_transformer, module.Job.close
    save_snapshot, steps = module.save_snapshot, list[int]()

    def saving(*args: Any, **options: Any) -> None:
        if place == "written":
            save(*args, **options)
        raise Cut

    def saving_always(path: Path, about: Any, snapshot: Snapshot, *, force: bool) -> None:
        save_snapshot(path, about, snapshot)
        steps.append(snapshot.step)
        if len(steps) == {"start": 1, "check": 3}.get(place):
            raise Cut

    def closing(job: module.Job) -> None:
        if place == "end":
            raise Cut
        close(job)

    monkeypatch.setattr(module, "seldom", lambda _: saving_always)
    monkeypatch.setattr(module.Job, "close", closing)
    if place in ("pass", "written"):
        monkeypatch.setattr(module, "save_transformer", saving)


@pytest.mark.slow
@pytest.mark.parametrize("place", some(PLACES, ("check", "written")))
def test_a_build_that_was_cut_off_ends_with_the_files_of_one_that_was_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    two: tuple[list[Case], BuildConfig],
    place: str,
) -> None:
    cases, config = two
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    list(build(cases, whole, config, command="make it"))
    assert sorted(files(whole)) == ["failed/own-hard.safetensors", "own-easy.safetensors"]
    with monkeypatch.context() as patch:
        cut(patch, place)
        with pytest.raises(Cut):
            list(build(cases, broken, config, command="make it"))
    passed = subject_path(broken, "own-easy").exists()
    assert passed is (place not in ("start", "pass"))
    assert len(list((broken / "unfinished").iterdir())) == 1
    assert begun(broken, ["own-hard", "own-new"]) == ["own-hard"]
    # The order of the cases is another one; what passed is not built again.
    again = [one.id for one in build(cases[::-1], broken, config, command="make it")]
    assert again == (["own-hard"] if passed else ["own-hard", "own-easy"])
    assert files(broken) == files(whole)
    assert not (broken / "unfinished").exists()


@pytest.fixture
def cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two: tuple[list[Case], BuildConfig]
) -> tuple[list[Case], BuildConfig]:
    """A build in `tmp_path` that was cut off after its first check."""
    with monkeypatch.context() as patch:
        cut(patch, "check")
        with pytest.raises(Cut):
            list(build(*two[:1], tmp_path, two[1]))
    return two


@pytest.mark.slow
def test_an_unfinished_build_with_other_settings_is_refused(
    tmp_path: Path, cut_off: tuple[list[Case], BuildConfig]
) -> None:
    cases, config = cut_off
    assert config.siit is not None
    other = replace(config, siit=replace(config.siit, lr=0.5))
    message = (
        r"unfinished build of own-hard with other settings \(seed was 0, is 3, lr was 0\.02, is "
        r"0\.5\); give the same, choose another directory, or delete it to start anew"
    )
    with pytest.raises(StoreError, match=message):
        list(build(cases, tmp_path, other, seed=3))
    # Cases that do not train in it are none of its business.
    assert [one.id for one in build([letters("own-3")], tmp_path, other)] == ["own-3"]
    assert [one.id for one in build(cases, tmp_path, config)] == ["own-hard"]


def test_an_unfinished_build_of_a_program_that_changed_is_refused(
    tmp_path: Path, cut_off: tuple[list[Case], BuildConfig]
) -> None:
    cases, config = cut_off
    changed = letters("own-hard", program=Map(lambda x: x == "a", tokens).named("is_a"))
    with pytest.raises(StoreError, match=r"of own-hard, whose program or inputs have changed si"):
        list(build([changed, cases[1]], tmp_path, config))


@pytest.mark.slow
def test_some_cases_of_an_unfinished_build_are_built_by_themselves(
    tmp_path: Path, cut_off: tuple[list[Case], BuildConfig], caplog: pytest.LogCaptureFixture
) -> None:
    cases, config = cut_off
    with caplog.at_level(logging.WARNING):
        assert [one.id for one in build(cases[:1], tmp_path, config)] == ["own-hard"]
    assert "is left as it is: not all of its subjects are asked for" in caplog.text
    assert len(list((tmp_path / "unfinished").iterdir())) == 1


def test_an_unfinished_build_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "unfinished" / "own-1.safetensors"
    save_artifact(path, kind=KIND, config={"cases": ["own-1"]}, seed=None, tensors={})
    message = (
        "own-1.safetensors is an unfinished build of another version; choose another directory"
    )
    with pytest.raises(StoreError, match=message):
        begun(tmp_path, ["own-1"])
