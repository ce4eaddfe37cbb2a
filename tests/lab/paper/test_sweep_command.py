"""`python -m lab.paper sweep`: what it refuses, what it plans and prints, and how it ends."""

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from rich.console import Console
from rich.table import Table

from graphcircuits.commands import progress
from graphcircuits.jobs.runner import InProcess
from lab.paper import sweep as module
from lab.paper import sweep_command
from lab.paper.stacked import StackedRun
from lab.paper.sweep import Means
from lab.paper.sweep_command import WithTable
from lab.paper.sweep_command import sweep as sweep_function
from lab.paper.sweep_rows import read_rows
from lab.paper.sweep_store import SweepStore
from tests.lab.paper.sweeps import Trainer, content, sweep_in
from tests.shell import Command, refused

pytestmark = pytest.mark.usefixtures("unchecked")

SMALL = """
aligner = "invariant"
configurations = ["dirgnn-line-observed", "factorized-line-none"]
cases = ["ib-7", "ib-14", "ib-24", "ib-45", "ib-53"]
folds = [0, 1]
seeds = 2
held_out = ["ib-3", "ib-4"]
evaluate = ["planted", "public"]
[grid]
layers = [1, 2]
[train]
steps = 6
every = 2
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A file in the folder that commands run in."""
    (tmp_path / "small.toml").write_text(SMALL)
    return "small.toml"


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    trainer = Trainer()
    monkeypatch.setattr(module, "train_side_by_side", trainer)
    return trainer


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--phase", "test"], "--phase must be one of all, cross-validation, refit, got 'test'"),
        (["--minutes", "-1"], "--minutes must be at least 0, got -1"),
        (["--stack", "0"], "--stack must be in 1..1024, got 0"),
        (["--processes", "0"], "--processes must be in 1..1024, got 0"),
        (["--precision", "int8"], "--precision must be one of float32, bfloat16, got 'int8'"),
        (["--device", "tpu"], "--device must be cpu, cuda or cuda:NUMBER, got 'tpu'"),
        (["--out", "small.toml"], "--out cannot be written: "),
        (["--dry-run", "--fresh"], "--dry-run changes nothing, and --fresh deletes; give one"),
        (
            ["--only", "dirgnn-line-none"],
            "--only must name configurations of the sweep (dirgnn-line-observed, "
            "factorized-line-none), got dirgnn-line-none.",
        ),
        (["--only", ","], "got none."),
    ],
)
def test_refusals(command: Command, config: str, given: list[str], text: str) -> None:
    refused(command("sweep", config, *given), text)


def test_refusals_of_files(command: Command, tmp_path: Path) -> None:
    refused(command("sweep", "papre"), "there is no file papre, nor a shipped configuration of ")
    (tmp_path / "other.toml").write_text(SMALL.replace("[grid]", "[gird]"))
    refused(command("sweep", "other.toml"), "other.toml: unknown key 'gird' (did you mean 'grid'?)")


def test_the_plan_is_listed_and_nothing_is_made(
    command: Command, config: str, tmp_path: Path
) -> None:
    done = command("sweep", config, "--dry-run", "--stack", "4")
    assert (done.code, done.err) == (0, "")
    rows = [line.split() for line in done.out.splitlines()[1:-1]]
    assert rows == [
        ["dirgnn-line-observed", "2", "2", "4", "0", "2", "2"],
        ["factorized-line-none", "2", "2", "4", "0", "2", "2"],
    ]
    assert done.out.splitlines()[-1] == (
        "12 trainings, 12 of them left; 5 cases to learn from, 4 held-out subjects"
    )
    one = ("--only", "factorized-line-none")
    found = json.loads(command("sweep", config, "--dry-run", "--json", *one).out)
    assert (found["trainings"], found["left"], len(found["configurations"])) == (6, 6, 1)
    assert found["tests"] == ["ib-3", "ib-4", "ib-3.public.plain.0", "ib-4.public.plain.0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.toml"]


def test_cases_without_a_subject_are_named(command: Command, config: str, tmp_path: Path) -> None:
    (tmp_path / config).write_text('fleet = "public"\nsubjects = "made"\n' + SMALL)
    (tmp_path / "made").mkdir()
    for case in ("ib-7", "ib-14", "ib-24", "ib-45"):
        (tmp_path / "made" / f"{case}.public.plain.0.safetensors").touch()
    done = command("sweep", config, "--dry-run")
    assert (done.code, done.err) == (
        0,
        "left out, no public subject to learn from: ib-53; what `graphcircuits build` made of them "
        "is taken from the folder that the sweep's file names as subjects\n",
    )


def test_a_sweep_from_end_to_end(
    command: Command, config: str, tmp_path: Path, trainer: Trainer
) -> None:
    done = command("sweep", config, "--stack", "2")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].split() == list(sweep_command.COLUMNS)
    assert [line.split()[:3] for line in lines[1:3]] == [
        ["dirgnn-line-observed", "4/4", "2/2"],
        ["factorized-line-none", "4/4", "2/2"],
    ]
    assert lines[3:] == ["wrote sweep-small/sweep.json"]
    # A line per bundle, not per training, with what is left.
    told = done.err.splitlines()
    assert len(told) == len(trainer.calls) == 6
    assert ": 2 done; trainings 2/12; " in told[0]
    assert told[-1].endswith(" so far, about 0:00:00 left")
    assert ": 2 done; trainings 12/12; " in told[-1]
    rows = read_rows(tmp_path / "sweep-small/sweep.json")
    assert [(row.configuration, row.fleet) for row in rows] == [
        (name, fleet)
        for name in ("dirgnn-line-observed", "factorized-line-none")
        for fleet in ("planted", "public")
    ]
    # Given again, it has nothing to do, and says the same.
    again = command("sweep", config, "--json")
    assert (again.code, again.err, len(trainer.calls)) == (0, "", 6)
    record = json.loads(again.out)
    assert (record["left"], record["failed"], record["folder"]) == (0, [], "sweep-small")
    assert [row["step"] for row in record["rows"]] == [row.step for row in rows]
    assert record["rows"][0]["cases"] == {x: list(y) for x, y in rows[0].cases.items()}


@pytest.mark.slow
def test_time_and_phases(command: Command, config: str, trainer: Trainer) -> None:
    done = command("sweep", config, "--minutes", "0")
    assert (done.code, trainer.calls) == (1, [])
    assert done.err == "12 trainings are missing; the same command goes on with them\n"
    # What was cut off goes on in parts, and does not say so in its files.
    assert command("sweep", config, "--out", "whole").code == 0
    one = ("--out", "parts", "--only", "dirgnn-line-observed", "--phase", "cross-validation")
    assert command("sweep", config, *one).code == 0
    assert command("sweep", config, "--out", "parts", "--processes", "1").code == 0
    assert content(Path("parts")) == content(Path("whole"))
    assert command("sweep", config, "--out", "early", "--phase", "refit").code == 0
    assert not Path("early/sweep.json").exists()


@pytest.mark.slow
def test_what_failed_is_told_and_tried_again(
    command: Command, config: str, trainer: Trainer
) -> None:
    def fail(runs: Sequence[StackedRun]) -> Exception | None:
        bad = any(run.config.predictor.layers == 2 and "ib-7" in run.validate for run in runs)
        return torch.OutOfMemoryError("CUDA out of memory.") if bad else None

    trainer.fail = fail
    done = command("sweep", config, "--json")
    assert done.code == 1
    record = json.loads(done.out)
    assert [failure["why"] for failure in record["failed"]] == [
        "it ran out of memory (CUDA out of memory.)"
    ] * 2
    assert [row["eligible"] for row in record["rows"]] == [1] * 4
    assert record["left"] == 0
    told = [line for line in done.err.splitlines() if "failed, it ran out of memory" in line]
    assert len(told) == 2
    trainer.fail = lambda runs: None
    done = command("sweep", config)
    assert done.code == 0
    assert "2/2" in done.out


@pytest.mark.slow
def test_a_folder_of_another_sweep_and_a_fresh_one(
    command: Command, config: str, tmp_path: Path, trainer: Trainer
) -> None:
    assert command("sweep", config, "--out", "here").code == 0
    (tmp_path / "other.toml").write_text(SMALL.replace("steps = 6", "steps = 8"))
    told = 'here is the folder of another sweep: train {"steps": 6, "every": 2}, now {"steps": 8'
    refused(command("sweep", "other.toml", "--out", "here"), told)
    refused(command("sweep", "other.toml", "--out", "here", "--dry-run"), told)
    n = len(trainer.calls)
    assert command("sweep", "other.toml", "--out", "here", "--fresh").code == 0
    assert trainer.calls[n][0].config.steps == 8
    refused(command("sweep", config, "--out", "here"), '"steps": 8')


def test_another_driver_is_kept_away(command: Command, config: str, trainer: Trainer) -> None:
    with SweepStore("here", "").held():
        told = "another sweep is at work in here; wait for it, or give another folder."
        refused(command("sweep", config, "--out", "here"), told)
        # Nor does it delete what the other makes.
        refused(command("sweep", config, "--out", "here", "--fresh"), told)
    assert command("sweep", config, "--out", "here").code == 0


@pytest.mark.slow
def test_ctrl_c_and_a_full_disk(
    command: Command, config: str, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(runs: Sequence[StackedRun]) -> None:
        if len(trainer.calls) == 3:
            raise KeyboardInterrupt

    trainer.fail = stop
    done = command("sweep", config, "--out", "here", "--stack", "2")
    assert done.code == 130
    assert done.err.endswith(
        "interrupted: 4 more trainings are kept in here; the same command goes on from there.\n"
    )

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "here/jobs")

    trainer.fail = lambda runs: None
    save = SweepStore.save
    monkeypatch.setattr(SweepStore, "save", full)
    done = command("sweep", config, "--out", "here", "--stack", "2")
    assert done.code == 1
    assert done.err.splitlines() == [
        "1 more trainings are kept; the same command goes on from there.".replace("1", "0"),
        "error: here/jobs: no space left on device",
    ]
    monkeypatch.setattr(SweepStore, "save", save)
    assert command("sweep", config, "--out", "here", "--stack", "2").code == 0


def test_the_table_is_live_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: Trainer
) -> None:
    """It has a row per configuration, also before anything is known of it."""
    made = sweep_in(tmp_path)
    shown: list[str] = []

    def show(self: WithTable, table: Table) -> None:
        stream = StringIO()
        Console(file=stream, width=160, markup=False).print(table)
        shown.append(stream.getvalue())

    monkeypatch.setattr(progress, "on_terminal", lambda: True)
    monkeypatch.setattr(WithTable, "show_above", show)
    sweep_command._run(made, InProcess(), Means(), list(made.plan.names), "all", None)
    assert all(word in shown[0] for word in ("0/8", "0/4"))
    assert all(word in shown[-1] for word in ("8/8", "4/4", "2/2", ": 1 done"))


def test_the_table_stands_above_the_counts() -> None:
    bar, stream = WithTable(), StringIO()
    bar.add_task("trainings", total=2)
    bar.show_above(Table("a table"))
    Console(file=stream, width=120).print(bar.get_renderable())
    first, second = (
        line.strip() for line in stream.getvalue().splitlines() if line.strip(" ─━┏┓┃└┘┡┩")
    )
    assert "a table" in first
    assert second.startswith("trainings ")


def test_what_ships_is_named_in_the_help() -> None:
    from lab.paper.configurations import shipped_sweeps

    app: Any = typer.Typer()
    app.command()(sweep_function)
    argument = typer.main.get_command(app).params[0]
    assert all(name in argument.help for name in shipped_sweeps())  # type: ignore[attr-defined]
