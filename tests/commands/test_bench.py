"""`graphcircuits bench`: fleets, running anew, interrupts, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from graphcircuits.cases import load_case
from graphcircuits.certificates.certificate import Certificate
from graphcircuits.commands.bench import _show, bench
from graphcircuits.commands.progress import Progress
from graphcircuits.compare import bench as benching
from graphcircuits.compare import runs
from graphcircuits.compare.report import Report
from graphcircuits.compare.runs import StoreUnusable
from graphcircuits.compare.selection import BenchConfig
from tests.compare.certificates import flat_certificate
from tests.compare.folders import save_subject

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
    assert run(tmp_path, "--plot", str(tmp_path / "own" / "boxes.png")).exit_code == 0
    assert (tmp_path / "own" / "boxes.png").read_bytes().startswith(b"\x89PNG")
    assert times(tmp_path) == first
    assert run(tmp_path, "--fresh").exit_code == 0
    assert min(times(tmp_path)) > max(first)


def test_certificates_are_told_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second table is printed and written; what has no certificate is on standard error."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    steps: list[tuple[int, int]] = []

    def certified(*args: object, progress: Callable[[int, int], None], **_: object) -> Certificate:
        progress(7, 7)
        return flat_certificate(load_case("ib-3").circuit, failing="necessary")

    monkeypatch.setattr(runs, "certify", certified)
    monkeypatch.setattr(Progress, "follow", lambda *_: lambda *step: steps.append(step))
    given = ["--certify", "--methods", "random,edge-frequency", "--cases", "ib-3"]
    done = run(tmp_path, *given)
    assert done.exit_code == 0, done.output
    assert (7, 7) in steps
    assert "\nCertificates on unseen prompts, of each question the mean and how many" in done.stdout
    row = "random 1 0% 0.50 (100%) 0.50 (0%) 0.50 (100%)"
    assert row in " ".join(done.stdout.split())
    assert "no certificate: edge-frequency, 1x: a floor, and no way to find" in done.stderr
    assert "| random | 1 | 0% | 0.50 (100%) | 0.50 (0%) |" in (tmp_path / "table.md").read_text()
    record = json.loads(run(tmp_path, *given, "--json").stdout)
    assert record["certificates"]["random"]["necessary passes"] == 0
    assert "Certificates on" not in run(tmp_path, *given[1:]).output


def test_labels_that_were_worked_out_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    cases = ("ib-8", "ib-18", "ib-21")
    for labels, found in (("paper", ["ib-18", "ib-21"]), ("interpbench", [])):
        config = BenchConfig(cases=cases, methods=("random",), labels=labels)
        report = Report(config=config, runs=())
        assert report.record()["worked_out"] == found
        _show(report)
        told = capsys.readouterr().out
        line = "labels worked out, their published lists not being at hand: ib-18, ib-21"
        assert (line in told) == bool(found)


@pytest.mark.slow
def test_an_interrupted_fresh_bench_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(benching, "run", interrupted)
    assert "the same command without --fresh goes on from there" in run(tmp_path, "--fresh").stderr
    assert "the same command goes on from there" in run(tmp_path).stderr


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_ends_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where a folder should be")
    done = run(tmp_path)
    assert isinstance(done.exception, StoreUnusable)
    assert str(done.exception).startswith(str(tmp_path / "runs" / "random" / "ib-3-seed0-"))


@pytest.mark.slow
def test_a_folder_of_natural_subjects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # a plot would take longer than all else
    for id in ("ib-3.natural.llama.0", "ib-8.natural.plain.0", "ib-3"):
        save_subject(tmp_path, id)
    given = ["--fleet", "natural", "--subjects", str(tmp_path), "--pairs", "2", "--json"]
    given += ["--methods", "random", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["title"] == "1 method on 2 natural subjects (all)"
    assert record["cases"] == ["ib-3.natural.llama.0", "ib-8.natural.plain.0"]
    assert (record["fleet"], record["labels"]) == ("natural", None)
    (row,) = record["methods"]
    assert (row["wins"], row["auprc"]) == (2.0, None)
    assert row["summary"]["quantiles"][2] == pytest.approx(row["log_area"])
    assert record["by"] == "output"
    assert record["breakdowns"][0]["sizes"] == {"llama": 1, "plain": 1}
    shown = CliRunner().invoke(app, [flag for flag in given if flag != "--json"])
    assert shown.stdout.startswith("1 method on 2 natural subjects (all), log area\nMethod")
    assert "Wins" in shown.stdout


def test_refusals_about_fleets(tmp_path: Path) -> None:
    for given, message in (
        (
            ["--fleet", "wild"],
            "--fleet must be one of planted, public, natural, language, got 'wild'",
        ),
        (["--processes", "0"], "--processes must be in 1..1024, got 0"),
        (["--plot", "a.gif"], "--plot must end in .svg, .png, .pdf, got a.gif"),
        (["--subjects", "gone"], "--subjects must be a folder that build wrote, got gone"),
        (
            ["--fleet", "natural", "--labels", "paper", "--level", "qkv"],
            "--labels and --level would compare with a circuit, and natural subjects have none",
        ),
        (
            ["--fleet", "natural", "--subjects", str(tmp_path), "--cases", "test"],
            f"no natural subject of test is in {tmp_path}; build some with: graphcircuits build "
            "--fleet natural, and name their folder with --subjects.",
        ),
    ):
        done = run(tmp_path / "out", *given)
        assert message in str(done.exception)


@pytest.mark.slow
def test_ctrl_c_ends_all_processes_and_keeps_what_is_finished(tmp_path: Path) -> None:
    """As a terminal does it: every process of the group gets the signal."""
    given = ["--methods", "random,pgexplainer", "--cases", "ib-3,ib-8", "--seeds", "9"]
    given += ["--processes", "2", "--out", str(tmp_path)]
    started = subprocess.Popen(
        [sys.executable, "-m", "graphcircuits.cli", "bench", *given],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Whoever runs the tests in the background has Ctrl-C ignored, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    limit = time.monotonic() + 120
    while not times(tmp_path) and time.monotonic() < limit and started.poll() is None:
        time.sleep(0.05)
    os.killpg(started.pid, signal.SIGINT)
    # Ends when nobody is left who could write to the pipes: workers have them too.
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 130, errors
    assert "interrupted: " in errors
    assert f"of 36 results are kept in {tmp_path}; the same command goes on from there" in errors
    assert "Traceback" not in errors
    assert times(tmp_path)
