"""Progress: time left by a clock of our own, bars and lines, and that every long command has it."""

import ast
import inspect
import io
import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from graphcircuits import cli
from graphcircuits.commands import progress as module
from graphcircuits.commands.output import say
from graphcircuits.commands.progress import Pace, Progress, late_progress, on_terminal, span

COMMANDS = Path(module.__file__).parent
SHORT = {"cases", "compile", "view"}
"""Commands that are done in a moment: they list, compile a program or write a page."""


class Hands:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def told(*counts: tuple[float, float]) -> Pace:
    """A pace that began at 0, from (time, count)."""
    pace = Pace(0.0)
    for at, done in counts:
        pace.hear(at, done)
    return pace


# Time left


def test_a_steady_pace_gives_the_time_that_is_left() -> None:
    pace = told(*((2.0 * n, float(n)) for n in range(1, 11)))
    assert pace.left(20.0, 100) == pytest.approx(180.0)
    # It runs down between two reports, but not below nothing.
    assert pace.left(25.0, 100) == pytest.approx(175.0)
    assert pace.left(500.0, 100) == 0.0
    assert pace.left(20.0, 10) == 0.0


def test_before_the_first_unit_is_done_nothing_is_known() -> None:
    assert Pace(0.0).left(5.0, 10) is None
    assert told((3.0, 0.0)).left(5.0, 10) is None
    assert told((3.0, 1.0)).left(3.0, 10) == pytest.approx(27.0)


def test_what_was_there_before_says_nothing_of_the_time() -> None:
    # A checkpoint: the first report is of step 5,001.
    pace = told((1.0, 5001.0))
    assert pace.left(1.0, 6000) is None
    pace.hear(3.0, 5002.0)
    assert pace.left(3.0, 6000) == pytest.approx(2 * 998)
    # Stored results that come between computed ones.
    pace = told((4.0, 1.0))
    pace.hear(4.1, 51.0, kept=True)
    assert pace.left(4.0, 100) == pytest.approx(4 * 49 - 0.0)
    pace.hear(8.0, 52.0)
    assert pace.left(8.0, 100) == pytest.approx(4 * 48)


def test_a_count_that_begins_anew_is_timed_anew() -> None:
    pace = told((1.0, 1.0), (2.0, 2.0), (10.0, 1.0))
    assert pace.left(10.0, 5) is None
    pace.hear(13.0, 2.0)
    assert pace.left(13.0, 5) == pytest.approx(9.0)


def test_the_pace_is_that_of_lately() -> None:
    """Fast at first, slow now: after a while the start is forgotten."""
    fast = [(0.1 * n, float(n)) for n in range(1, 101)]
    slow = [(10.0 + 5 * n, 100.0 + n) for n in range(1, 41)]
    left = told(*fast, *slow).left(slow[-1][0], 240)
    assert left == pytest.approx(5 * 100, rel=0.01)


def test_a_pace_remembers_little() -> None:
    pace = told(*((0.01 * n, float(n)) for n in range(1, 20_001)))
    assert len(pace._heard) < 1000
    assert pace.left(200.0, 40_000) == pytest.approx(200.0, rel=0.02)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (65.4, "0:01:05"), (59.6, "0:01:00"), (90061, "25:01:01")]
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


# Lines


def test_lines_come_at_growing_intervals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "FIRST", 10.0)
    clock = Hands()
    bar = Progress(clock)
    task = bar.add_task("bench", total=1000)
    at = []
    for second in range(1, 2001):
        clock.now += 1
        bar.update(task, completed=second / 4)
        bar.tick()
        if capsys.readouterr().err:
            at.append(second)
    assert at == [10, 20, 40, 80, 160, 320, 640, 1240, 1840]
    assert bar.wait() == pytest.approx(2440 - 2000)


def test_a_line_has_counts_time_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Hands()
    bar = Progress(clock)
    reading = bar.add_task("reading", total=4)
    bar.update(reading, completed=4)
    overall = bar.add_task("ib-3 eap\x1b[31m", total=8)
    inner = bar.add_task("method", total=1, visible=False)
    clock.now += 60
    assert bar.line() == "ib-3 eap\\x1b[31m 0/8; 0:01:00 so far, time left not known yet"
    bar.update(inner, completed=1, total=20, visible=True)
    clock.now += 2
    bar.update(inner, completed=2)
    assert bar.line() == (
        "ib-3 eap\\x1b[31m 0/8, method 2/20; 0:01:02 so far, about 0:09:18 left for this part"
    )
    bar.update(inner, visible=False)
    clock.now += 18
    bar.advance(overall)
    assert bar.line() == "ib-3 eap\\x1b[31m 1/8; 0:01:20 so far, about 0:09:20 left"
    bar.advance(overall, 7)
    assert bar.line() == "ib-3 eap\\x1b[31m 8/8; 0:01:20 so far, about 0:00:00 left"
    bar.remove_task(overall)
    bar.update(bar.add_task("planning", total=None), completed=3)
    assert bar.line() == "planning 3; 0:01:20 so far, time left not known yet"
    assert capsys.readouterr().err == ""
    bar.say("a shard\x1b is done")
    assert capsys.readouterr() == ("", "a shard\\x1b is done\n")


def test_without_anything_to_count_no_line_is_due(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Hands()
    bar = Progress(clock)
    clock.now += 2e6
    bar.tick()
    assert capsys.readouterr() == ("", "")


def test_lines_are_written_while_the_work_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while nothing is reported, by a thread; it ends with the work."""
    written = threading.Event()
    monkeypatch.setattr(module, "FIRST", 0.0)
    monkeypatch.setattr(module, "say", lambda text, err: (say(text, err=err), written.set()))
    monkeypatch.setattr(Progress, "line", lambda self: "a line")
    before = threading.active_count()
    with late_progress() as bar:
        bar.add_task("work", total=2)
        # Due at once and for ever: who asks first after the task is there, writes.
        assert written.wait(30)
        assert bar.console is None
    assert threading.active_count() == before
    assert capsys.readouterr().err.startswith("a line\n")


# Bars


class Screen(io.StringIO):
    """A terminal, which notices what it is looked at for."""

    def __init__(self, wanted: str = "") -> None:
        super().__init__()
        self.wanted, self.seen = wanted, threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.wanted in text:
            self.seen.set()
        return super().write(text)


def terminal(monkeypatch: pytest.MonkeyPatch, wanted: str = "") -> Screen:
    """Makes standard error a terminal, and gives what it shows."""
    stream = Screen(wanted)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_a_terminal_can_draw_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not on_terminal()
    terminal(monkeypatch)
    assert on_terminal()
    monkeypatch.setenv("TERM", "dumb")
    assert not on_terminal()


@pytest.mark.parametrize(("patience", "started"), [(0.0, True), (60.0, False)])
def test_bars_appear_late(monkeypatch: pytest.MonkeyPatch, patience: float, started: bool) -> None:
    screen = terminal(monkeypatch, "work on it")
    monkeypatch.setattr(module, "PATIENCE", patience)
    with late_progress() as bar:
        task = bar.add_task("work on it", total=2)
        bar.update(task, completed=1)
        assert screen.seen.wait(30 if started else 0.05) == started
        bar.say("a line that stays")
    assert ("work on it" in screen.getvalue()) == started
    assert "a line that stays" in screen.getvalue()


def test_bars_show_names_as_they_are_counts_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Hands()
    bar = Progress(clock)
    task = bar.add_task("eap on a[/b]\x1b[0m", total=10)  # as markup this would be an error
    bar.add_task("hidden", total=1, visible=False)
    bar.add_task("planning", total=None)
    clock.now += 30
    bar.advance(task)
    stream = io.StringIO()
    bar.show_above("a table")
    Console(file=stream, width=120).print(bar.bars())
    first, second, third = (" ".join(line.split()) for line in stream.getvalue().splitlines())
    assert first == "a table"
    assert second.startswith("eap on a[/b]\\x1b[0m ")
    assert second.endswith(" 1/10 0:00:30 so far about 0:04:30 left")
    assert third.startswith("planning ")
    assert third.endswith(" 0:00:30 so far")
    assert "hidden" not in stream.getvalue()


# Who uses it


def commands() -> dict[str, Callable[..., object]]:
    found = {}
    for info in cli.app.registered_commands:
        assert info.callback is not None
        if info.hidden:
            continue
        found[info.name or info.callback.__name__] = inspect.unwrap(info.callback)
    return found


def test_every_long_command_shows_progress() -> None:
    without = {
        name
        for name, function in commands().items()
        if "late_progress() as bar" not in Path(inspect.getfile(function)).read_text("utf-8")
    }
    assert without <= SHORT


def test_there_is_one_implementation() -> None:
    """No command draws bars of its own."""
    drawing = {
        (path.name, name)
        for path in COMMANDS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]
        if name in ("rich.live", "rich.progress", "rich.progress_bar", "rich.status", "tqdm")
    }
    assert drawing == {("progress.py", "rich.live"), ("progress.py", "rich.progress_bar")}


def test_counts_may_come_from_several_threads() -> None:
    bar = Progress()
    task = bar.add_task("work", total=4000)

    def count() -> None:
        for _ in itertools.repeat(None, 1000):
            bar.advance(task)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert bar.line().startswith("work 4000/4000;")
