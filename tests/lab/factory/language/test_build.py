"""All models of a folder: made once, in one process or several, gone on with, given up in time."""

import multiprocessing
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphcircuits.adapters.load import load_model
from lab.factory.language import build, folder, train, workers
from lab.factory.language.build import make_models
from lab.factory.language.designs import Design
from lab.factory.language.model import LanguageConfig, ModelJob
from tests.lab.factory.language.test_report import FAILED
from tests.lab.factory.language.texts import write_texts

NAMES = ("llama-1x32-chars", "gqa-2x32-chars")
DESIGNS = [Design.parse(name) for name in NAMES]
CONFIG = LanguageConfig(steps=80, batch=1024, lr=0.03)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [write_texts(tmp_path_factory.mktemp("texts"))]


def made(folder: Path, texts: list[Path], **options: Any) -> dict[str, dict[str, Any]]:
    reports = make_models(DESIGNS, folder, CONFIG, roots=texts, **options)
    return {report["model"]: report for report in reports}


@pytest.mark.slow
def test_one_learns_and_is_kept(
    texts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged, it is made again, the same."""
    monkeypatch.setattr(train, "PROMPTS", 4)
    told: list[str] = []

    def once() -> dict[str, Any]:
        (report,) = make_models(
            DESIGNS[:1],
            tmp_path / "models",
            CONFIG,
            roots=texts,
            watch=lambda name, step, loss: told.append(name),
        )
        return report

    report = once()
    assert report["problem"] is None
    assert report["loss"] < 0.9 * report["bigram_loss"]
    place = tmp_path / "models" / NAMES[0]
    assert load_model(place).config.n_layers == 1
    assert once() == report
    assert told == [NAMES[0]]
    weights = place / folder.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    assert once()["sha256"] == report["sha256"]
    assert told == 2 * [NAMES[0]]


@pytest.mark.slow
def test_processes_make_the_same_models(texts: list[Path], tmp_path: Path) -> None:
    """Of which none learns anything in one step."""
    config = replace(CONFIG, steps=1)
    losses = [
        {
            report["model"]: report["loss"]
            for report in make_models(
                DESIGNS, tmp_path / str(count), config, roots=texts, processes=count
            )
        }
        for count in (1, 2)
    ]
    assert losses[0] == losses[1]
    assert losses[0].keys() == set(NAMES)


@pytest.mark.gpu
def test_processes_share_a_gpu(texts: list[Path], tmp_path: Path) -> None:
    reports = made(tmp_path / "models", texts, device="cuda", processes=2)
    assert reports.keys() == set(NAMES)
    assert reports[NAMES[0]]["problem"] is None


def quick(job: ModelJob, tell: Any) -> dict[str, Any]:
    """Instead of training."""
    for step in range(3):
        tell(step, 1.0)
    report = FAILED | {"model": job.design.name, "problem": "of a test"}
    return folder.keep_failure(job.folder, report)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "make_model", quick)


def test_what_is_there_is_taken(texts: list[Path], tmp_path: Path, quickly: None) -> None:
    first = made(tmp_path / "models", texts)
    assert list(first) == ["gqa-2x32-chars", "llama-1x32-chars"]
    # In the order that was asked for, without a text.
    assert list(made(tmp_path / "models", [tmp_path / "nowhere"])) == list(NAMES)
    other = replace(CONFIG, seed=1)
    with pytest.raises(ValueError, match="begun with --seed 0, not 1: give the same, or"):
        list(make_models(DESIGNS, tmp_path / "models", other, roots=texts))


def test_too_little_text_leaves_nothing(tmp_path: Path) -> None:
    few = write_texts(tmp_path / "few", files=3)
    with pytest.raises(ValueError, match="too little text"):
        made(tmp_path / "models", [few])
    assert not (tmp_path / "models").exists()


def test_another_text_is_refused(texts: list[Path], tmp_path: Path, quickly: None) -> None:
    made(tmp_path / "models", texts)
    (tmp_path / "models" / "failed" / f"{NAMES[0]}.json").unlink()
    more = write_texts(tmp_path / "more", files=61)
    with pytest.raises(ValueError, match="was begun with another text"):
        made(tmp_path / "models", [more])


def test_the_deadline(texts: list[Path], tmp_path: Path, quickly: None) -> None:
    assert made(tmp_path / "models", texts, deadline=time.monotonic()) == {}
    assert folder.check_begun(tmp_path / "models", build.asdict(CONFIG)) is not None


def test_a_worker_that_dies() -> None:
    ended = [SimpleNamespace(exitcode=code) for code in (None, 0)]
    workers._check_alive(ended)
    with pytest.raises(ChildProcessError, match="a worker ended with exit code -9, perhaps for la"):
        workers._check_alive([*ended, SimpleNamespace(exitcode=-9)])


def breaks(job: ModelJob, tell: Any) -> dict[str, Any]:
    raise OSError(28, "No space left on device", str(job.folder))


def test_what_goes_wrong_in_a_worker_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a worker goes on after a model that was called off."""
    context = multiprocessing.get_context("spawn")
    waiting, news, stop = context.SimpleQueue(), context.Queue(), context.Event()
    monkeypatch.setattr(workers.signal, "signal", lambda *_: None)
    monkeypatch.setattr(workers, "make_model", breaks)
    jobs = [ModelJob(design, tmp_path, tmp_path, CONFIG, "cpu") for design in DESIGNS]
    for job in (jobs[0], None):
        waiting.put(job)
    workers._serve(waiting, news, stop, 1)
    told = news.get(timeout=10)
    assert (told.name, told.ended) == (NAMES[0], False)
    assert str(told.error) == f"[Errno 28] No space left on device: '{tmp_path}'"
    stop.set()
    for job in (*jobs, None):
        waiting.put(job)
    workers._serve(waiting, news, stop, 1)
    assert [news.get(timeout=10).name for _ in jobs] == list(NAMES)
