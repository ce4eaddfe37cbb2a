"""`graphcircuits bench`: running anew, and what it says when its folder cannot be written."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from graphcircuits.commands.bench import bench
from graphcircuits.compare import bench as benching
from graphcircuits.compare.runs import StoreUnusable

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(bench)


def run(out: Path, *args: str) -> Result:
    given = ["--methods", "random", "--cases", "ib-3,ib-8", "--pairs", "2", "--out", str(out)]
    return CliRunner().invoke(app, [*given, *args])


def times(out: Path) -> list[int]:
    return sorted(path.stat().st_mtime_ns for path in (out / "runs").rglob("*.json"))


@pytest.mark.slow
def test_a_fresh_bench_keeps_nothing(tmp_path: Path) -> None:
    assert run(tmp_path).exit_code == 0
    first = times(tmp_path)
    assert len(first) == 2
    assert run(tmp_path).exit_code == 0
    assert times(tmp_path) == first
    assert run(tmp_path, "--fresh").exit_code == 0
    assert min(times(tmp_path)) > max(first)


def test_an_interrupted_fresh_bench_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(benching, "run", interrupted)
    assert "the same command without --fresh goes on from there" in run(tmp_path, "--fresh").stderr
    assert "the same command goes on from there" in run(tmp_path).stderr


def test_a_folder_that_cannot_be_written_ends_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where a folder should be")
    done = run(tmp_path)
    assert isinstance(done.exception, StoreUnusable)
    assert str(done.exception).startswith(str(tmp_path / "runs" / "random" / "ib-3-seed0-"))
