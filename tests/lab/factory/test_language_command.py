"""`python -m lab.factory language`: what it takes, what it prints, how it ends."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.factory.language import folder as folders
from lab.factory.language import workers
from lab.factory.language.designs import PLAN
from lab.factory.language.model import ModelJob
from tests.lab.factory.language.test_report import FAILED, LEARNED
from tests.lab.factory.language.texts import write_texts
from tests.shell import Command, refused

TWO = ("--models", "gpt2-2x64-chars,neox-2x64-chars")


def quick(job: ModelJob) -> Iterator[Any]:
    """Instead of training: one model learns, another does not."""
    yield 1, 2.0
    report = {**LEARNED, "model": job.design.name, "seconds": 1.0}
    if job.design.architecture == "neox":
        yield folders.keep_failure(job.folder, FAILED)
        return
    with folders.staged(job.folder, job.design.name) as place:
        (place / folders.WEIGHTS).write_bytes(b"weights")
        yield folders.keep_model(place, job.folder, report)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(workers, "make_model", quick)
    return write_texts(tmp_path / "texts")


def test_models_are_made_and_told(command: Command, texts: Path, tmp_path: Path) -> None:
    given = ("language", "models", *TWO, "--text", texts, "--table", "models.md")
    ended = command(*given)
    assert ended.code == 1
    assert "1 of 2 models in models\n" in ended.out
    assert "gpt2-2x64-chars  quotes, verbs                types 79%" in ended.out
    assert "neox-2x64-chars did not learn: its loss is not finite\n" in ended.err
    assert "| `quotes` | 100% |  |" in Path("models.md").read_text("utf-8")
    # Again: nothing is left to do, and no text is read.
    again = command("language", "models", *TWO, "--text", tmp_path / "nowhere", "--json")
    assert again.code == 1
    assert [row["model"] for row in json.loads(again.out)] == ["gpt2-2x64-chars", "neox-2x64-chars"]
    one = command("language", "models", "--models", "gpt2-2x64-chars")
    assert (one.code, one.err) == (0, "")


def test_out_of_time(command: Command, texts: Path) -> None:
    ended = command("language", "models", *TWO, "--text", texts, "--minutes", "0")
    assert ended.code == 1
    assert ended.err.endswith(
        "out of time: gpt2-2x64-chars, neox-2x64-chars; the same command goes on with them\n"
    )
    assert ended.out == "0 of 2 models in models\n"


def test_an_interrupt(command: Command, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(job: ModelJob) -> Iterator[Any]:
        if job.design.architecture == "neox":
            raise KeyboardInterrupt
        yield from quick(job)

    monkeypatch.setattr(workers, "make_model", interrupted)
    given = ("language", "models", *TWO, "--text", texts)
    ended = command(*given)
    assert ended.code == 130
    assert "interrupted: what is finished is in models; the same command goes on." in ended.err
    assert sorted(x.name for x in Path("models").iterdir()) == ["gpt2-2x64-chars", "language.json"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (
            ["--models", "mamba-2x64-chars"],
            "unknown architecture 'mamba'; did you mean",
        ),
        (["--models", f"{PLAN[0]},{PLAN[0]}"], f"--models names {PLAN[0]} twice"),
        (
            ["--mib", "0", "--steps", "0"],
            "--mib must be above 0, got 0.0; --steps must be at least 1",
        ),
        (["--mib", "2000"], "--mib must be in 0..1024, got 2000.0"),
        (["--batch", "0"], "--batch must be at least 1, got 0"),
        (["--processes", "0"], "--processes must be in 1..64, got 0"),
        (["--device", "cuda:99"], "--device cuda:99 was asked for, but PyTorch finds no"),
        (["--table", "a.txt"], "--table must end in .md, got a.txt"),
        (["--text", "nowhere"], "no text in nowhere: there is no such folder"),
    ],
)
def test_what_is_refused(command: Command, given: list[str], error: str) -> None:
    refused(command("language", "models", *given), error)
    assert not Path("models").exists()


def test_folders_that_are_refused(command: Command, texts: Path) -> None:
    Path("file").touch()
    refused(command("language", "file"), "DIR cannot be written: ")
    refused(
        command("language", texts), f"{texts} holds other things, such as 'package0'; name a ne"
    )
    command("language", "models", *TWO, "--text", texts)
    refused(
        command("language", "models", *TWO, "--text", texts, "--steps", "7"),
        "models was begun with --steps 2000, not 7: give the same, or name another folder",
    )
    manifest = Path("models") / folders.MANIFEST
    manifest.write_text(manifest.read_text("utf-8").replace('"layout": 1', '"layout": 2'))
    refused(command("language", "models", *TWO), "in layout 2, and this version has layout 1")
