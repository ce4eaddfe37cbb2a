"""Making a corpus: what is on disk when it stops, at any moment, and what it becomes from there."""

import errno
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from graphcircuits.cases.collection import MANIFEST, load_corpus, shard_path
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import Prepared, find_case, prepare
from graphcircuits.fleets.recipes import recipe
from graphcircuits.io import store
from graphcircuits.io.store import StoreError, load_artifact, save_artifact
from lab.factory import making as module
from lab.factory.making import begin, build_of, make, measure_again
from lab.factory.shards import CorpusConfig, Manifest, write_manifest
from tests.cases.small import CONFIG, FAILING, PLAN, all_files, begun, instantly, quick, unmeasured
from tests.tiers import some

pytestmark = pytest.mark.usefixtures("unchecked")


@cache
def data_of(order: Order) -> Prepared:
    return prepare(order, find_case(order.case), CONFIG.build)


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """No training and no measuring; the plan is that of the tests, and data are made once."""
    monkeypatch.setattr(module, "prepared", lambda orders, *_: ((o, data_of(o)) for o in orders))
    monkeypatch.setattr("graphcircuits.cases.subjects.train_fleet", instantly)
    monkeypatch.setattr(module, "verified", unmeasured)
    monkeypatch.setattr(module, "plan", lambda *_: PLAN)


def made(folder: Path, **options: Any) -> list[str]:
    """Begin or go on; the shards that were made."""
    return [shard.name for shard, _ in make(folder, begin(folder, CONFIG), **options)]


@pytest.mark.usefixtures("instant")
def test_shards_and_manifest_when_all_is_done(tmp_path: Path) -> None:
    told: list[Any] = []
    assert made(tmp_path, progress=lambda *at: told.append(at)) == [s.name for s in PLAN]
    assert set(all_files(tmp_path)) == {
        MANIFEST,
        *(f"shards/{shard.name}.safetensors" for shard in PLAN),
    }
    assert told == [(shard.name, 250, 2, 2) for shard in PLAN]
    corpus = load_corpus(tmp_path)
    assert len(corpus) == 5
    assert list(corpus.failed) == [FAILING]
    assert {entry.report["device"] for entry in corpus} == {"cpu"}
    assert made(tmp_path) == []


@pytest.mark.usefixtures("instant")
def test_several_at_once_make_the_same_files(tmp_path: Path) -> None:
    made(tmp_path / "one")
    assert sorted(made(tmp_path / "three", together=3)) == sorted(s.name for s in PLAN)
    assert all_files(tmp_path / "one") == all_files(tmp_path / "three")


def stopping(
    monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException, *, after: bool
) -> Callable[[], int]:
    """Writing raises at the given write, before or after it; gives how many writes there were."""
    real, count = store.write_atomic, 0

    def write(path: Path, data: bytes) -> None:
        nonlocal count
        count += 1
        if count == at and not after:
            raise error
        real(path, data)
        if count == at:
            raise error

    monkeypatch.setattr(store, "write_atomic", write)
    monkeypatch.setattr("graphcircuits.io.files.write_atomic", write)
    return lambda: count


WRITES = 7
"""The manifest, and then each shard and the manifest anew."""


@pytest.mark.usefixtures("instant")
@pytest.mark.parametrize(
    ("at", "after"),
    some(product(range(1, WRITES + 1), (False, True)), [(4, False)]),
)
def test_stopped_at_any_write_it_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, after: bool
) -> None:
    with monkeypatch.context() as patched:
        count = stopping(patched, 0, KeyboardInterrupt(), after=after)
        made(tmp_path / "unbroken")
        assert count() == WRITES
    with monkeypatch.context() as patched:
        stopping(patched, at, KeyboardInterrupt(), after=after)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "broken")
    # A shard that was written is kept, whether the manifest says so yet or not.
    whole = (at - 1 + after) // 2
    assert len(made(tmp_path / "broken")) == len(PLAN) - whole
    assert all_files(tmp_path / "broken") == all_files(tmp_path / "unbroken")


@pytest.mark.usefixtures("instant")
def test_a_full_disk_leaves_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    for together in (1, 2):
        folder = tmp_path / str(together)
        with monkeypatch.context() as patched:
            stopping(patched, 4, full, after=False)
            with pytest.raises(OSError, match="No space left on device"):
                made(folder, together=together)
        left = load_corpus(folder)
        assert (len(left.entries) + len(left.failed), left.missing) == (2, 2)
        assert len(made(folder)) == 2
        made(tmp_path / "unbroken")
        assert all_files(folder) == all_files(tmp_path / "unbroken")


@pytest.mark.usefixtures("instant")
def test_a_shard_that_was_cut_off_is_made_again_and_the_others_kept(tmp_path: Path) -> None:
    made(tmp_path)
    before = all_files(tmp_path)
    path = shard_path(tmp_path, PLAN[1].name)
    path.write_bytes(path.read_bytes()[:1000])
    assert made(tmp_path) == [PLAN[1].name]
    assert all_files(tmp_path) == before


@pytest.mark.usefixtures("instant")
def test_other_settings_are_refused_and_none_means_those_of_the_folder(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(StoreError, match=r"other settings \(natural was 4, is 9\)"):
        begin(tmp_path, replace(CONFIG, natural=9))
    assert begin(tmp_path).config == CONFIG
    with pytest.raises(FileNotFoundError, match="holds no corpus"):
        begin(tmp_path / "elsewhere")


@pytest.mark.usefixtures("instant")
def test_no_shard_is_begun_when_time_is_up(tmp_path: Path) -> None:
    assert made(tmp_path, deadline=time.monotonic()) == []
    assert set(all_files(tmp_path)) == {MANIFEST}
    assert load_corpus(tmp_path).missing == 3


@pytest.mark.usefixtures("instant")
def test_a_shard_that_is_not_done_in_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def hurried(subjects: Any, *rest: Any, **_: Any) -> Any:
        done = instantly(subjects, *rest)
        return [done[0], replace(done[1], passed=False, cut_short=True)]

    monkeypatch.setattr("graphcircuits.cases.subjects.train_fleet", hurried)
    assert made(tmp_path) == []
    assert f"out of time: shard {PLAN[0].name} is given up" in caplog.text


@pytest.mark.usefixtures("instant")
def test_an_order_that_cannot_be_trained_is_there_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(orders: Any, *_: Any) -> Any:
        for order in orders:
            yield order, "it has nothing to train" if order.case == "ib-8" else data_of(order)

    monkeypatch.setattr(module, "prepared", refusing)
    made(tmp_path)
    corpus = load_corpus(tmp_path)
    assert corpus.refused == {
        "ib-8.natural.llama.0": "it has nothing to train",
        "ib-8": "it has nothing to train",
    }
    assert len(corpus) == 3


@pytest.mark.usefixtures("instant")
def test_when_one_training_fails_the_others_stop_at_their_next_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = []

    def failing(subjects: Any, *rest: Any, **_: Any) -> Any:
        tell = rest[4]
        if subjects[0].config.positions == "rotary":
            raise RuntimeError("out of memory")
        try:
            while True:
                time.sleep(0.01)
                tell(1, 0, 2)
        except module._Stopped:
            stopped.append(True)
            raise

    monkeypatch.setattr("graphcircuits.cases.subjects.train_fleet", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        made(tmp_path, together=2)
    assert stopped
    assert set(all_files(tmp_path)) == {MANIFEST}


def test_steps_are_those_of_the_recipe_unless_given() -> None:
    assert build_of(CONFIG, "natural") == CONFIG.build
    some = build_of(replace(CONFIG, steps=7), "planted")
    assert some == replace(CONFIG.build, siit=replace(recipe("planted"), steps=7))


# --- with real training --------------------------------------------------------------------------


def trained(folder: Path, config: CorpusConfig, **options: Any) -> None:
    write_manifest(folder, Manifest(config, PLAN[:2]))
    list(make(folder, begin(folder), **options))


@pytest.mark.slow
def test_a_corpus_is_the_same_however_it_is_made_and_measures_as_reported(tmp_path: Path) -> None:
    config = quick(steps=160)
    trained(tmp_path / "one", config)
    trained(tmp_path / "two", config, together=2, processes=2)
    assert all_files(tmp_path / "one") == all_files(tmp_path / "two")
    corpus = load_corpus(tmp_path / "one")
    assert len(corpus) >= 2
    for entry in corpus:
        assert entry.report["passed"]
        assert entry.report["accuracy"] >= 0.99
        assert entry.subject().config.norm == ("rms" if "llama" in entry.id else "none")
    for one in measure_again(tmp_path / "one"):
        assert one.problems == ()
        assert one.accuracy is None or one.accuracy >= 0.99
    # What is measured does not depend on the report.
    path = shard_path(tmp_path / "one", PLAN[0].name)
    found = load_artifact(path, "corpus-shard")
    reports = {id: {**report, "accuracy": 0.5} for id, report in found.meta["reports"].items()}
    about = {"config": found.config, "seed": found.seed, "command": found.command}
    meta = {**found.meta, "reports": reports}
    save_artifact(path, kind="corpus-shard", tensors=found.tensors, meta=meta, **about)
    lost = measure_again(tmp_path / "one")
    assert "is not the shard that was finished" in next(lost).problems[0]
    kept = begin(tmp_path / "two")
    sha256 = load_artifact(path, "corpus-shard").sha256
    forged = {**kept.kept, PLAN[0].name: replace(kept.kept[PLAN[0].name], sha256=sha256)}
    write_manifest(tmp_path / "one", kept.keeping(forged))
    wrong = next(measure_again(tmp_path / "one")).problems
    assert "of unseen inputs, its report says 0.5000" in wrong[0]


@pytest.mark.gpu
def test_several_fleets_at_once_on_a_gpu(tmp_path: Path) -> None:
    """Each thread records its steps while the others replay theirs."""
    trained(tmp_path, quick(steps=400), device="cuda", together=2)
    corpus = load_corpus(tmp_path)
    assert corpus.missing == 0
    assert len(corpus) >= 2
    assert {entry.report["device"] for entry in corpus} == {"cuda"}
    for one in measure_again(tmp_path, device="cuda"):
        assert one.problems == ()
