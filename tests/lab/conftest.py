"""A fixture that runs the program of a folder: in tests/lab/paper that is `python -m lab.paper`.

Benchmarks have no subcommands; their tests run the command of the package, as they do.
"""

from importlib import import_module
from pathlib import Path

import pytest

from graphcircuits import cli
from lab import ROOT
from tests.shell import Command, runs


@pytest.fixture
def command(
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Command:
    """Runs the program as a shell would, in a folder of its own."""
    name = request.path.relative_to(Path(__file__).parent).parts[0]
    monkeypatch.chdir(tmp_path)
    if name == "benchmarks":
        return runs("graphcircuits", cli.main, capsys, monkeypatch)
    app = import_module(f"lab.{name}.__main__").app
    path = str(ROOT / "lab" / name / "__main__.py")
    return runs(path, lambda: cli.run(app), capsys, monkeypatch)
