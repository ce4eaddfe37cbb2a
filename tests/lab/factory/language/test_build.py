"""All models of a folder: made once, in one process or several, gone on with, given up in time."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
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
    assert told == 2 * [NAMES[0]]
    weights = place / folder.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    assert once()["sha256"] == report["sha256"]
    assert told == 4 * [NAMES[0]]


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


def quick(job: ModelJob) -> Iterator[Any]:
    """Instead of training."""
    for step in range(3):
        yield step, 1.0
    report = FAILED | {"model": job.design.name, "problem": "of a test"}
    yield folder.keep_failure(job.folder, report)


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


def test_the_deadline_in_mid_training(tmp_path: Path, quickly: None) -> None:
    job = ModelJob(DESIGNS[0], tmp_path, tmp_path, CONFIG, "cpu")
    news = workers._news(time.time() + 60, job)
    assert len(list(news)) == 4
    news = workers._news(time.time() + 0.1, job)
    assert next(news) == (NAMES[0], (0, 1.0))
    time.sleep(0.1)
    assert list(news) == []


def test_a_worker_that_dies(tmp_path: Path) -> None:
    job = ModelJob(DESIGNS[0], tmp_path, tmp_path, CONFIG, "cpu")
    text = f"{NAMES[0]}: its process was killed by signal 9, perhaps for lack of memory; what is"
    with pytest.raises(ChildProcessError, match=text):
        workers._lost(job, 0, "its process was killed by signal 9")
