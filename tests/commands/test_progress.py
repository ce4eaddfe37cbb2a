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
from rich.progress import TaskID

from graphcircuits import cli
from graphcircuits.commands import progress as module
from graphcircuits.commands.output import say
from graphcircuits.commands.progress import Progress, late_progress, on_terminal, span

COMMANDS = Path(module.__file__).parent
SHORT = {"cases", "compile", "view"}
"""Commands that are done in a moment: they list, compile a program or write a page."""


class Hands:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# Time left


def counting(*counts: tuple[float, float]) -> tuple[Hands, Progress, TaskID]:
    """Something of 100 units, after (time, count) were reported."""
    clock = Hands()
    bar = Progress(clock)
    task = bar.add_task("work", total=100)
    for at, done in counts:
        clock.now = 1000.0 + at
        bar.update(task, completed=done)
    return clock, bar, task


def test_a_steady_pace_gives_the_time_that_is_left() -> None:
    _, bar, task = counting(*((2.0 * n, float(n)) for n in range(1, 11)))
    assert "about 0:03:00 left" in bar.line()
    bar.update(task, completed=100)
    assert bar.line() == "work 100/100; 0:00:20 so far, about 0:00:00 left"


def test_before_two_units_are_done_nothing_is_known() -> None:
    assert "not known yet" in counting()[1].line()
    assert "not known yet" in counting((3.0, 1.0))[1].line()
    assert "about 0:04:54 left" in counting((3.0, 1.0), (6.0, 2.0))[1].line()


def test_what_was_there_before_says_nothing_of_the_time() -> None:
    # A checkpoint: the first report is of unit 51.
    clock, bar, task = counting((1.0, 51.0))
    assert "not known yet" in bar.line()
    clock.now += 2.0
    bar.advance(task)
    assert "about 0:01:36 left" in bar.line()
    # Stored results that come between computed ones.
    bar.advance(task, 40, reused=True)
    assert "work 92/100" in bar.line()
    assert "about 0:00:16 left" in bar.line()


def test_a_count_that_begins_anew_is_timed_anew() -> None:
    clock, bar, task = counting((1.0, 50.0), (2.0, 100.0), (10.0, 1.0))
    assert bar.line() == "work 1/100; 0:00:10 so far, time left not known yet"
    clock.now += 3.0
    bar.advance(task)
    assert "about 0:04:54 left" in bar.line()


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
        "ib-3 eap\\x1b[31m 0/8, method 2/20; 0:01:02 so far, about 0:00:36 left for this part"
    )
    bar.update(inner, visible=False)
    clock.now += 18
    bar.advance(overall)
    assert bar.line() == "ib-3 eap\\x1b[31m 1/8; 0:01:20 so far, time left not known yet"
    clock.now += 20
    bar.advance(overall)
    assert bar.line() == "ib-3 eap\\x1b[31m 2/8; 0:01:40 so far, about 0:02:00 left"
    bar.advance(overall, 6)
    assert bar.line() == "ib-3 eap\\x1b[31m 8/8; 0:01:40 so far, about 0:00:00 left"
    bar.remove_task(overall)
    bar.update(bar.add_task("planning", total=None), completed=3)
    assert bar.line() == "planning 3; 0:01:40 so far, time left not known yet"
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
        assert not bar.on_terminal
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
    for _ in range(2):
        clock.now += 30
        bar.advance(task)
    stream = io.StringIO()
    Console(file=stream, width=120).print(bar.get_renderable())
    first, second = (" ".join(line.split()) for line in stream.getvalue().splitlines())
    assert first.startswith("eap on a[/b]\\x1b[0m ")
    assert first.endswith(" 2/10 0:01:00 0:04:00")
    assert second.startswith("planning ")
    assert second.endswith(" 0/? 0:01:00")
    assert "hidden" not in stream.getvalue()


# Who uses it


def commands() -> dict[str, Callable[..., object]]:
    found = {}
    for info in cli.app.registered_commands:
        assert info.callback is not None
        if not info.hidden:
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
    assert drawing == {("progress.py", "rich.progress")}


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
