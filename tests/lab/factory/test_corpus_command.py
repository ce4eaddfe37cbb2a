"""`python -m lab.factory corpus`: what it refuses, what it prints, and how it ends."""

import errno
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphcircuits.cases.build import Finished
from graphcircuits.cases.collection import MANIFEST
from lab.factory import making, shards
from lab.factory.making import Remeasured
from tests.cases.small import BUILD, PLAN, all_files, instantly, unmeasured
from tests.commands.test_interrupt import heard, pressing  # noqa: F401  a fixture
from tests.shell import Command, refused

pytestmark = pytest.mark.usefixtures("unchecked")

ASKED = ("--natural", "4", "--planted", "2", "--architectures", "plain, llama")


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three planned shards, few inputs, and no training."""
    real = making.prepared
    monkeypatch.setattr(making, "prepared", lambda orders, _, *rest: real(orders, BUILD, *rest))
    monkeypatch.setattr("graphcircuits.cases.subjects.train_fleet", instantly)
    monkeypatch.setattr(making, "verified", unmeasured)
    monkeypatch.setattr(making, "plan", lambda *_: PLAN)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            [],
            "nothing to build: say how many of natural, planted, public, multitask, natural mul",
        ),
        (["--natural", "-1"], "natural must be in 0..1000000, got -1"),
        (
            ["--natural", "1", "--architectures", "gpt3"],
            "must be some of plain, relu",
        ),
        (
            ["--natural", "1", "--architectures", "rms,rms"],
            "must differ, got rms, rms",
        ),
        (["--natural", "1", "--layers", "1"], "layers must be at least 2, got 1"),
        (["--natural", "1", "--steps", "0"], "--steps must be at least 1, got 0"),
        (["--natural", "1", "--seed", "-1"], "--seed must be in 0..4294967295, got -1."),
        (["--natural", "1", "--processes", "0"], "--processes must be in 1..1024, got 0."),
        (["--natural", "1", "--together", "0"], "--together must be in 1..64, got 0."),
        (["--natural", "1", "--minutes", "-1"], "--minutes must be at least 0, got -1"),
        (["--natural", "1", "--device", "tpu"], "--device must be cpu, cuda or cuda:NUMBER"),
        (["--verify", "--natural", "1"], "--verify takes no settings: it reads what is there."),
        (["--verify"], "holds no corpus: there is no manifest.json in it"),
    ],
)
def test_refusals(command: Command, tmp_path: Path, given: list[str], text: str) -> None:
    refused(command("corpus", "mine", *given), text)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    refused(command("corpus", "mine", "--natural", "1"), "mine is not a folder.")


@pytest.mark.usefixtures("instant")
def test_a_corpus_from_plan_to_table(command: Command, tmp_path: Path) -> None:
    planned = command("corpus", "mine", *ASKED, "--minutes", "0")
    assert planned.code == 1
    assert "out of time: 3 of 3 shards are missing, such as natural-plain-2-0" in planned.err
    assert "6 subjects in 3 shards, about 0 MB to train; 0 shards there" in planned.err
    assert set(all_files(tmp_path / "mine")) == {MANIFEST}
    # Without settings it goes on with those of the folder.
    made = command("corpus", "mine", "--together", "2")
    assert made.code == 0, made.err
    assert "natural-plain-2-0                1 passed, 1 not, 0 refused" in made.err
    assert "3 of 3 shards" in made.err
    rows = [line.split() for line in made.out.splitlines()]
    assert rows[1:] == [
        ["natural", "llama", "2", "0", "0", "0.9990"],
        ["natural", "plain", "1", "1", "0", "0.9990"],
        ["planted", "plain", "2", "0", "0", "0.9990"],
        ["5", "subjects", "in", "mine"],
    ]
    again = command("corpus", "mine", *ASKED, "--json")
    assert (again.code, "0 subjects in 0 shards" in again.err) == (0, True)
    told = json.loads(again.out)
    assert (told["subjects"], told["unfinished"]) == (5, [])
    assert told["by"][1] == {
        "fleet": "natural",
        "architecture": "plain",
        "passed": 1,
        "failed": 1,
        "refused": 0,
        "accuracy": 0.999,
    }
    refused(
        command("corpus", "mine", *ASKED, "--seed", "1"),
        "is a corpus of other settings (seed was 0, is 1); give the same, or choose another folder",
    )


@pytest.mark.usefixtures("instant")
def test_an_architecture_that_does_not_train_is_told(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_pass(*given: Any) -> list[Finished]:
        return [replace(one, report={**one.report, "passed": False}) for one in unmeasured(*given)]

    monkeypatch.setattr(making, "plan", lambda *_: PLAN[:1])
    monkeypatch.setattr(making, "verified", none_pass)
    ended = command("corpus", "mine", "--natural", "2")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[1].split() == ["natural", "plain", "0", "2", "0"]


@pytest.mark.usefixtures("instant")
def test_a_full_disk_is_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "mine/shards/x")

    monkeypatch.setattr(making, "write_shard", full)
    ended = command("corpus", "mine", *ASKED)
    assert ended.code == 1  # as of every command: what was asked for is right
    assert ended.err.splitlines()[-1] == "error: mine/shards/x: no space left on device"
    assert set(all_files(tmp_path / "mine")) == {MANIFEST}


def test_verify_counts_what_is_not_as_it_was(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        Remeasured("natural-plain-2-0", 2, 0.995, ()),
        Remeasured("natural-llama-2-0", 0, None, ("shard \x1b[2J is cut off",)),
    ]
    there = SimpleNamespace(kept=dict.fromkeys(one.shard for one in found))
    monkeypatch.setattr(shards, "read_manifest", lambda folder: there)
    monkeypatch.setattr(making, "measure_again", lambda *_, **__: iter(found[:1]))
    ended = command("corpus", "mine", "--verify")
    assert ended.code == 0
    assert ended.out.splitlines() == [
        "natural-plain-2-0                2 subjects: as it was, accuracy 0.9950 or more",
        "1 of 1 shards in mine are as they were",
    ]
    monkeypatch.setattr(making, "measure_again", lambda *_, **__: iter(found))
    ended = command("corpus", "mine", "--verify")
    assert ended.code == 1
    assert "natural-llama-2-0                0 subjects: 1 problems" in ended.out
    assert ended.err == "shard \\x1b[2J is cut off\n"
    ended = command("corpus", "mine", "--verify", "--json")
    assert [one["accuracy"] for one in json.loads(ended.out)] == [0.995, None]


def interrupted(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The function, during whose call of this number somebody presses Ctrl-C."""
    calls = itertools.count(1)

    def call(*args: Any, **options: Any) -> Any:
        if next(calls) == number:
            raise KeyboardInterrupt
        return function(*args, **options)

    return call


@pytest.mark.usefixtures("instant")
def test_an_interrupt_says_how_to_go_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphcircuits.cases.subjects.train_fleet", interrupted(instantly, 2))
    ended = command("corpus", "mine", "--natural", "4")
    assert (ended.code, ended.out) == (130, "")
    text = "interrupted: 1 of 3 shards are kept in mine; the same command goes on from there."
    assert ended.err.splitlines()[-1] == text
    monkeypatch.setattr(making, "plan", interrupted(lambda *_: PLAN, 1))
    ended = command("corpus", "other", "--natural", "4")
    text = "interrupted: nothing was planned yet; the same command goes on from there.\n"
    assert (ended.code, ended.err) == (130, text)
