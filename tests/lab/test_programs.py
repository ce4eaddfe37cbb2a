"""One set of entry points: the command of the package, and few programs of the laboratory."""

import runpy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from graphcircuits import cli
from lab import ROOT
from lab.__main__ import PROGRAMS

APART = "if __name__ == "


def subcommands(package: str) -> list[str]:
    command: Any = typer.main.get_command(import_module(f"{package}.__main__").app)
    return [name for name, one in command.commands.items() if one.callback.__name__ == "call"]


MODULES = [
    (package, name)
    for package in ("lab.paper", "lab.factory", "lab.generators", "lab.studies")
    for name in subcommands(package)
]


@pytest.mark.parametrize(("package", "name"), MODULES)
def test_every_subcommand_has_help(
    package: str, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [package, name, "--help"])
    with pytest.raises(SystemExit) as caught:
        cli.run(import_module(f"{package}.__main__").app)
    assert caught.value.code == 0
    assert f"usage: python -m {package} {name} " in capsys.readouterr().out


def test_the_list_has_all_programs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("lab", run_name="__main__")
    listed = capsys.readouterr().out
    there = {f"lab.{path.parent.name}" for path in (ROOT / "lab").glob("*/__main__.py")}
    assert there == set(PROGRAMS)
    assert all(f"python -m {name} " in listed for name in there)


def test_no_other_file_runs_by_itself() -> None:
    def running(folder: str) -> list[Path]:
        files = (ROOT / folder).rglob("*.py")
        return [path for path in files if f"\n{APART}" in path.read_text("utf-8")]

    assert running("graphcircuits") == [ROOT / "graphcircuits" / "cli.py"]
    others = [path for path in running("lab") if path.name != "__main__.py"]
    assert {path.relative_to(ROOT / "lab").parts[0] for path in others} == {"benchmarks"}
