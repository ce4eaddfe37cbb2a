"""`python -m lab.factory planted`: what it takes, what it prints, how it ends, how it goes on."""

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphcircuits.cases.language import Design, LanguageModel, language_records
from graphcircuits.subject.files import load_transformer, save_transformer
from lab.factory.language.packages import HELD, TRAIN
from lab.factory.planted import judge, make
from lab.factory.planted.make import PlantingJob, _planned
from tests.lab.factory.planted.tiny import start
from tests.shell import Command, refused

OWN = """
from graphcircuits.cases.calls import Call, at

head = Call(name="first", program=at(0), words=("a", "b"), length=2, task="The first word.")
tail = Call(name="last", program=at(1), words=("a", "b"), length=2, task="The last word.")
"""
SMALL = ("--layers", "2", "--heads", "2", "--width", "8", "--steps", "2", "--rows", "4")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Text as `python -m lab.factory text` writes it, and calls in a file."""
    folder = tmp_path / "text"
    folder.mkdir()
    line = (
        json.dumps({"source": "a", "text": "What was put there is taken away again. " * 60}) + "\n"
    )
    for name in (TRAIN, HELD):
        (folder / name).write_bytes(lzma.compress(2 * line.encode()))
    (tmp_path / "mine.py").write_text(OWN)
    return folder


def report_of(model: LanguageModel, config: Any, *, passed: bool = True) -> dict[str, Any]:
    call = {"accuracy": 0.99, "interchange": 0.98, "strict": 1.0, "circuit": 0.97, "edges": 4}
    return {
        "case": model.id,
        **_planned(model, config),
        "perplexity_ratio": 1.05,
        "seconds": 61.2,
        "passed": True,
        "calls": {
            case.call.name: call | {"passed": passed or number > 0}
            for number, case in enumerate(model.cases)
        },
    }


MADE: list[tuple[list[str], int, float]] = []
"""The models of each job that was made, its steps and its seconds."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of training: all calls pass but the first of plm-2."""

    def made(job: PlantingJob) -> Iterator[dict[str, Any]]:
        models = job.loaded
        MADE.append(([one.id for one in models], job.config.steps, job.config.seconds))
        for one in models:
            shares = dict.fromkeys(("accuracy", "interchange", "strict", "circuit"), 0.5)
            yield {"model": one.id, "step": 1, "loss": 3.0, "twin": 3.0, **shares}
        for one in models:
            report = report_of(one, job.config, passed=one.id != "plm-2")
            job.folder.mkdir(exist_ok=True)
            place, meta = make.path_of(job.folder, one.id), {"report": report}
            save_transformer(place, start(one), seed=one.seed, meta=meta)
            yield report

    MADE.clear()
    monkeypatch.setattr(make, "make_planted", made)


@pytest.mark.slow
def test_a_model_for_calls_of_ones_own(
    command: Command, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From end to end: hardly trained, so it falls short."""
    monkeypatch.setattr(make, "UNSEEN", 16)
    monkeypatch.setattr(make, "UNSEEN_INTERCHANGES", 8)
    monkeypatch.setattr(judge, "PAIRS", 8)
    monkeypatch.setattr(make, "task_shares", lambda _: ({}, {}))
    given = ("planted", "made", "--calls", "mine.py", "--text", texts, *SMALL)
    ended = command(*given, "--text-rows", "1")
    assert ended.code == 1
    assert ended.err.startswith("mine     0 of 2 calls pass, perplexity ")
    assert "mine@first" in ended.out
    assert "0 of 2 calls pass, perplexity " in ended.out
    assert ended.out.endswith("1 models in made\n")
    subject = load_transformer("made/mine.safetensors")
    assert (subject.config.n_layers, subject.config.d_vocab) == (2, 1000)
    # Nothing is left to do, so that no text is read.
    again = command(*given[: -len(SMALL) - 1], "nowhere", *SMALL, "--text-rows", "1", "--json")
    assert again.code == 1
    (report,) = json.loads(again.out).values()
    assert report["case"] == "mine"
    assert {x[:2] for places in report["places"].values() for x in places.values()} == {"a1"}
    # Another model of that name is another model.
    refused(
        command(*given[: -len(SMALL) - 1], "nowhere", *SMALL, "--text-rows", "1", "--seed", "1"),
        "no such file; write it with: python -m lab.factory text",
    )


@pytest.mark.usefixtures("quick")
def test_models_of_the_benchmark(command: Command, texts: Path) -> None:
    given = ("planted", "made", "--text", texts)
    ended = command(*given, "--models", "plm-1, plm-2,plm-3", "--minutes", "2")
    assert ended.code == 1
    # Models of one design train side by side, the deepest first.
    assert MADE == [(["plm-3"], 4000, 120.0), (["plm-1", "plm-2"], 4000, 120.0)]
    lines = ended.out.splitlines()
    assert lines[0].split() == ["call", "accuracy", "interchange", "strict", "circuit", "edges",
                                "passes"]  # fmt: skip
    (row,) = [line for line in lines if line.startswith("plm-2@count ")]
    assert row.split() == ["plm-2@count", "0.990", "0.980", "1.000", "0.970", "4", "no"]
    assert "plm-2    3 of 4 calls pass, perplexity 1.050 times that of its twin, 61 s" in lines
    assert lines[-1] == "3 models in made"
    # The same command goes on with what is missing.
    Path("made/plm-3.safetensors").unlink()
    found = command(*given, "--models", "plm-3,plm-1", "--minutes", "2", "--json")
    line = "plm-3    3 of 3 calls pass, perplexity 1.050 times that of its twin, 61 s"
    assert (found.code, found.err) == (0, f"{line}\n")
    assert list(json.loads(found.out)) == ["plm-3", "plm-1"]
    assert MADE[2:] == [(["plm-3"], 4000, 120.0)]
    # With other settings they are made anew.
    assert command(*given, "--models", "plm-1", "--steps", "7").code == 0
    assert MADE[3:] == [(["plm-1"], 7, float("inf"))]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_words_for_many_models(command: Command, texts: Path) -> None:
    records = language_records()
    for word in ("test", "pool", "all"):
        MADE.clear()
        command("planted", word, "--models", word, "--text", texts)
        made = [id for ids, *_ in MADE for id in ids]
        wanted = [id for id, record in records.items() if word in ("all", record["split"])]
        assert sorted(made) == sorted(wanted)
        layers = [records[ids[0]]["design"]["layers"] for ids, *_ in MADE]
        assert layers == sorted(layers, reverse=True)
        designs = [Design(**records[id]["design"]) for ids, *_ in MADE for id in ids[:1]]
        assert len(set(designs)) == len(MADE)


def test_an_interrupt(command: Command, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(job: PlantingJob) -> Iterator[Any]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(make, "make_planted", interrupted)
    ended = command("planted", "made", "--models", "plm-0", "--text", texts)
    assert (ended.code, ended.out) == (130, "")
    assert "interrupted: what is finished is in made; the same command goes on." in ended.err


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["--layers", "0", "--heads", "0"], "--layers must be in 1..48, got 0; --heads must be in"),
        (["--width", "3"], "--width must be in 4..4096, got 3"),
        (["--vocabulary", "900"], "--vocabulary must be in 1000..8000, got 900"),
        (["--steps", "0", "--rows", "3"], "--steps must be at least 1, got 0; --rows must be at l"),
        (["--text-rows", "0"], "--text-rows must be at least 1, got 0"),
        (["--lr", "0"], "--lr must be above 0, got 0"),
        (["--minutes", "0"], "--minutes must be above 0, got 0"),
        (["--processes", "65"], "--processes must be in 1..64, got 65"),
        (["--device", "cuda:99"], "--device cuda:99 was asked for, but PyTorch finds no"),
        (["--models", "plm-99"], "unknown planted language model 'plm-99'; there are plm-0 to "),
        (["--models", "tests"], "unknown planted language model 'tests'; there are plm-0 to "),
        (["--calls", "no.py"], "--calls must be a Python file that defines calls, got no.py"),
        (["--calls", "empty.py"], "empty.py defines no graphcircuits.Call"),
        (["--calls", "plm-7.py"], "the id 'plm-7@first' is like those of the corpus, which begin"),
        (["--calls", "mine.py", "--layers", "1"], "no place for the call 'first' in 1 layers of 4"),
        (
            ["--calls", "mine.py", "--architecture", "bert"],
            "unknown architecture 'bert'; choose from ",
        ),
        (["--calls", "mine.py", "--width", "66"], "--width must be a multiple of --heads, got 66 "),
        (["--models", "plm-0", "--text", "nowhere"], "no such file; write it with: python -m lab"),
    ],
)
def test_what_is_refused(command: Command, texts: Path, given: list[str], error: str) -> None:
    Path("empty.py").write_text("calls = 3")
    Path("plm-7.py").write_text(OWN)
    refused(command("planted", "made", "--text", texts, *given), error)
    assert not Path("made").exists()


def test_a_file_in_the_place_of_the_folder(command: Command, texts: Path) -> None:
    Path("made").touch()
    refused(command("planted", "made", "--text", texts), "DIR cannot be written: ")
