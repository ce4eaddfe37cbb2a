"""`python -m lab.factory mine`: what it takes, what it prints, how it ends, how it goes on."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.training import sources
from graphcircuits.training.sources import FRESH, language_sources
from lab.factory import mine_command, mining
from lab.factory.language import folder as folders
from lab.factory.language.packages import HELD, TRAIN
from tests.lab.factory.test_mining import NAMES, prose, slow_change, write_models
from tests.shell import Command, refused

SMALL = ("--windows", "2000", "--change", "0.002", "--pairs", "24", "--length", "12")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Text as `python -m lab.factory text` writes it, and models beside it."""
    write_models(tmp_path / "lm", *NAMES)
    folder = tmp_path / "text"
    folder.mkdir()
    lines = [json.dumps({"source": "a", "text": prose(seed=seed)}) + "\n" for seed in range(2)]
    for name in (TRAIN, HELD):
        (folder / name).write_bytes(lzma.compress("".join(lines).encode()))
    return folder


def test_tasks_of_each_model(command: Command, text: Path) -> None:
    given = ("mine", "mined", "--language", "lm", "--text", text, *SMALL)
    ended = command(*given)
    assert (ended.code, ended.err) == (0, "")
    files = sorted(Path("mined").iterdir())
    assert [path.name for path in files] == [f"{name}.safetensors" for name in NAMES]
    before = [path.read_bytes() for path in files]
    # What is there is printed alike, and nothing is mined.
    found = json.loads(command(*given, "--json").out)
    assert [path.read_bytes() for path in files] == before
    lines = [line.split() for line in ended.out.splitlines()]
    assert lines[0] == ["model", "kinds", "pairs"]
    assert lines[1:3] == [
        [name, str(len(kinds)), str(24 * len(kinds))] for name, kinds in found.items()
    ]
    assert list(found) == list(NAMES)
    assert all(len(kinds) > 3 for kinds in found.values())
    count = sum(map(len, found.values()))
    assert ended.out.endswith(f"\n\n{count} tasks of 2 models in mined\n")
    # It goes on with what is missing.
    files[0].unlink()
    assert json.loads(command(*given, "--json").out) == found
    assert files[0].read_bytes() == before[0]
    refused(
        command(*given, "--seed", "2", "--most", "3"),
        f"{files[0]} was mined with most 72, not 3; seed 0, not 2: give the same, or name another",
    )


@pytest.mark.slow
def test_from_a_folder_of_files_to_pairs_for_training(command: Command, text: Path) -> None:
    """From end to end."""
    folder = Path("texts", "package")
    folder.mkdir(parents=True)
    for seed in range(60):
        (folder / f"{seed}.txt").write_text(prose(1200, seed), "ascii")
    ended = command("mine", "mined", "--language", "lm", "--text", "texts", *SMALL, "--json")
    assert (ended.code, ended.err) == (0, "")
    found = json.loads(ended.out)
    listed = language_sources("mined")
    assert [x.id for x in listed] == [
        f"{name}@mined:{kind}" for name, kinds in found.items() for kind in kinds
    ]
    assert len(listed) > 5
    for source in listed:
        assert (source.kind, source.labelled) == ("language", False)
        assert source.folds == (sum(source.model.encode()) % 5,)
    # A model and its tasks are held out together.
    (fold,) = listed[0].folds
    left, held_out = sources.split(listed, fold)
    assert {x.model for x in held_out} == {NAMES[0]}
    assert {x.model for x in left} == {NAMES[1]}
    for source in (listed[0], listed[-1]):
        subject = source.subject()
        assert subject.name == source.model
        read, judged = source.pairs(subject, 16, 3), source.pairs(subject, 8, FRESH)
        assert (len(read), len(judged)) == (16, 8)
        rows = [{tuple(row) for row in x.clean.tolist()} for x in (read, judged)]
        assert rows[0].isdisjoint(rows[1])
        for pairs in (read, judged):
            assert float(slow_change(subject, pairs.clean, pairs.corrupted).min()) > 0.0019
            loss = pairs.with_targets_from(subject.logits(pairs.clean)).loss
            assert float(loss(subject.logits(pairs.clean)).abs().max()) < 1e-5
            changed = slow_change(subject, pairs.clean, pairs.corrupted)
            assert torch.allclose(loss(subject.logits(pairs.corrupted)), changed, atol=1e-5)


def test_an_interrupt(command: Command, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = mining.load_model

    def interrupted(path: Path, **options: Any) -> Any:
        if path.name == NAMES[1]:
            raise KeyboardInterrupt
        return load(path, **options)

    monkeypatch.setattr(mining, "load_model", interrupted)
    ended = command("mine", "mined", "--language", "lm", "--text", text, *SMALL)
    assert (ended.code, ended.out) == (130, "")
    assert ended.err == ("interrupted: what is finished is in mined; the same command goes on.\n")
    assert [x.name for x in Path("mined").iterdir()] == [f"{NAMES[0]}.safetensors"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["--language", ""], "give models by --language or --models"),
        (["--language", "nowhere"], "no language models in nowhere: expected folders that `python"),
        (["--models", "lm"], "no language models in lm: expected folders that `python -m lab"),
        (["--language", "lm,lm"], f"must have different names, got {NAMES[0]}, {NAMES[1]} twice"),
        (
            ["--windows", "0", "--change", "0"],
            "--windows must be at least 1, got 0; --change must be above 0, got 0.0",
        ),
        (["--pairs", "23"], "--pairs must be at least 24, got 23"),
        (["--most", "0"], "--most must be at least 1, got 0"),
        (["--length", "4"], "--length must be at least 5, got 4"),
        (["--mib", "0"], "--mib must be above 0, got 0.0"),
        (["--mib", "2000"], "--mib must be in 0..1024, got 2000.0"),
        (["--seed", "-1"], "--seed must be in 0..4294967295, got -1"),
        (["--device", "cuda:99"], "--device cuda:99 was asked for, but PyTorch finds no"),
        (["--processes", "0"], "--processes must be at least 1, got 0"),
        (["--text", "nowhere"], "no text in nowhere: there is no such folder"),
        (["--text", "lm"], "too little text: "),
        (["--models", "own.safetensors"], "own.safetensors is not a whole safetensors file"),
    ],
)
def test_what_is_refused(command: Command, text: Path, given: list[str], error: str) -> None:
    Path("own.safetensors").touch()
    models = ("--language", "lm") if "--models" not in given else ()
    refused(command("mine", "mined", *models, "--text", text, *SMALL, *given), error)
    assert not Path("mined").exists()


def test_folders_that_are_refused(command: Command, text: Path) -> None:
    few = ("--language", "lm", "--text", text, *SMALL)
    Path("file").touch()
    refused(command("mine", "file", *few), "DIR cannot be written: ")
    (Path("lm") / folders.MANIFEST).touch()
    refused(command("mine", "lm", *few), "DIR must be a folder of its own, and lm holds models")


def test_a_task_has_enough_pairs_to_judge_by() -> None:
    assert mine_command.LEAST_PAIRS // 3 == sources.LEAST_PAIRS
