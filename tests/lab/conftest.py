"""A fixture that runs the program of a folder: in tests/lab/paper that is `python -m lab.paper`."""

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
    app = import_module(f"lab.{name}.__main__").app
    monkeypatch.chdir(tmp_path)
    path = str(ROOT / "lab" / name / "__main__.py")
    return runs(path, lambda: cli.run(app), capsys, monkeypatch)
