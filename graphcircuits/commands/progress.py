"""Long commands: how far they are, with time left, and how they are stopped.

rich counts, draws and estimates. What it cannot do is here:

1. `late_progress` is what commands use. It writes to standard error alone, so that standard output
   stays what --json promises, and nothing at all where the work is done in a moment.
2. What was there before (a checkpoint, a store of finished jobs) says nothing of the time it takes.
3. Where there is no terminal, counts are one line after `FIRST` seconds, and then after twice the
   time each, but at least every `LONGEST` seconds.

A command is stopped by Ctrl-C or by the system's request to end (SIGTERM), which `terminable` makes
the same. `deferred` holds back the first interrupt of a training until a step is done, so that the
command can write a checkpoint of that very step; a second one ends it at once.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

import typer
from rich import progress as rich_progress
from rich.console import Console
from rich.progress import Task, TaskID

from graphcircuits.commands.output import INTERRUPTED, printable, say

PATIENCE = 2.0
"""Seconds after which a bar appears."""
FIRST = 10.0
"""Seconds after which the first line is written."""
LONGEST = 600.0
"""Seconds between two lines at most."""
LATELY = 3600.0
"""Seconds whose pace is taken for that of the rest; rich looks at the last 1,000 counts besides."""


class Progress(rich_progress.Progress):
    """Counts that go up; several threads may report them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_terminal = on_terminal()
        """Whether bars are drawn; elsewhere lines are written."""
        self._began, self._due = clock(), FIRST
        super().__init__(
            # Square brackets in the name of a subject are no markup.
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(bar_width=30),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TimeRemainingColumn(),
            console=Console(stderr=True, markup=False, emoji=False),
            get_time=clock,
            speed_estimate_period=LATELY,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
        )

    def add_task(self, description: str, *args: Any, **given: Any) -> TaskID:
        """Begin to count, and return the number by which to speak of it."""
        return super().add_task(printable(description), *args, **given)

    def update(
        self,
        task_id: TaskID,
        *,
        completed: int | float | None = None,
        description: str | None = None,
        reused: bool = False,
        **given: Any,
    ) -> None:
        """Change what is given; `reused` says that what is completed was there before."""
        with self._lock:
            count = self._tasks[task_id]
            if completed is not None and completed < count.completed:
                self.reset(task_id)  # another count begins
            if completed is not None and reused:
                count.completed = completed  # past rich, which would time it
            text = None if description is None else printable(description)
            super().update(task_id, completed=completed, description=text, **given)

    def follow(self, task_id: TaskID) -> Callable[[int, int], None]:
        """What methods call with (steps done, steps in all): it shows them as this count."""

        def show(done: int, total: int) -> None:
            self.update(task_id, completed=done, total=total, visible=True)

        return show

    def advance(self, task_id: TaskID, advance: int | float = 1, *, reused: bool = False) -> None:
        with self._lock:
            self.update(task_id, completed=self._tasks[task_id].completed + advance, reused=reused)

    def say(self, line: str) -> None:
        """Print one line that stays, above the bars where there are any."""
        if self.on_terminal:
            text = printable(line)
            self.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)
        else:
            say(line, err=True)

    def line(self) -> str:
        """The counts that go on, the time since the beginning, and the time left."""
        shown = [count for count in self.tasks if count.visible]
        going_on = [count for count in shown if not count.finished] or shown[-1:]
        words = ", ".join(f"{one.description} {_so_far(one)}".strip() for one in going_on)
        left = "time left not known yet"
        for one in reversed(going_on):
            if one.time_remaining is not None:
                of = "" if one is going_on[0] else " for this part"
                left = f"about {span(one.time_remaining)} left{of}"
        return f"{words}; {span(self.get_time() - self._began)} so far, {left}"

    def wait(self) -> float:
        """Seconds until the next line is due."""
        return max(0.0, self._due - (self.get_time() - self._began))

    def tick(self) -> None:
        """Write a line if one is due."""
        if self.wait() > 0:
            return
        self._due += min(self._due, LONGEST)
        if self.tasks:
            say(self.line(), err=True)


def _so_far(count: Task) -> str:
    if count.total is None:
        return f"{count.completed:.0f}" if count.completed else ""
    return f"{count.completed:.0f}/{count.total:.0f}"


def span(seconds: int | float) -> str:
    """Seconds as a clock shows them: `0:01:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def on_terminal() -> bool:
    """Whether standard error can draw bars."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


Shown = TypeVar("Shown", bound=Progress)


@contextmanager
def late_progress(kind: type[Shown] = Progress) -> Iterator[Shown]:
    """Counts that are shown on standard error, if the work takes a while."""
    progress, ended = kind(), threading.Event()

    def show() -> None:
        if progress.on_terminal:
            if not ended.wait(PATIENCE):
                progress.start()
        else:
            while not ended.wait(progress.wait()):
                progress.tick()

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        yield progress
    finally:
        ended.set()
        shower.join()
        # Stopping what never appeared would leave an empty line.
        if progress.live.is_started:
            progress.stop()


# --- how it is stopped ----------------------------------------------------------------------------

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Interruption:
    """Whether somebody wants the command to end."""

    asked: bool = False
    steps: bool = False
    """Whether there are steps that can be waited for."""

    def check(self) -> None:
        """Called after every step: raises the interrupt that was held back."""
        self.steps = True
        if self.asked:
            raise KeyboardInterrupt


@contextmanager
def deferred() -> Iterator[Interruption]:
    """Within, an interrupt is held back until `check` is called; the next one is not.

    Before the first call of `check` there is no step to wait for, and nothing is held back. In
    other threads than the main one, and where Ctrl-C is ignored, all is as it was.
    """
    interruption = Interruption()

    def heard(number: int, frame: FrameType | None) -> None:
        if interruption.asked or not interruption.steps:
            raise KeyboardInterrupt
        interruption.asked = True
        with suppress(RuntimeError):  # a line was just being written; the next interrupt counts
            say("interrupted: this step is finished first; once more ends it at once.", err=True)

    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {one: signal.getsignal(one) for one in SIGNALS}
    replaced = [one for one, handler in before.items() if callable(handler)]
    for one in replaced:
        signal.signal(one, heard)
    try:
        yield interruption
    finally:
        for one in replaced:
            signal.signal(one, before[one])


@contextmanager
def interruptible(what_is_left: Callable[[], str]) -> Iterator[None]:
    """Within, Ctrl-C ends the command, which says what is there and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted: {what_is_left()}", err=True)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def terminable() -> Iterator[None]:
    """Within, a request to end is an interrupt, unless somebody else has a use for it."""

    def ended(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, ended)
    try:
        yield
    finally:
        # Ray puts a handler of its own in its place.
        if signal.getsignal(signal.SIGTERM) is ended:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
