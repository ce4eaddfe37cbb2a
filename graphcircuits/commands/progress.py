"""How far a long command is: a bar on a terminal, lines where nobody looks on, both with time left.

1. `late_progress` is what commands use. It writes to standard error alone, so that standard output
   stays what --json promises, and nothing at all where the work is done in a moment.
2. `Progress` holds counts that go up. Each has a `Pace`, which says how long the rest takes: from
   what was done lately, without what was there before (a checkpoint, a store of finished jobs).
3. On a terminal the counts are bars, drawn from `PATIENCE` seconds on and gone at the end.
   Elsewhere they are one line after `FIRST` seconds, and then after twice the time each, but at
   least every `LONGEST` seconds.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphcircuits.commands.output import printable, say

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PATIENCE = 2.0
"""Seconds after which a bar appears."""
FIRST = 10.0
"""Seconds after which the first line is written."""
LONGEST = 600.0
"""Seconds between two lines at most."""
LATELY = 30.0
"""Seconds, or half of all if that is more, whose pace is held for that of the rest."""

Number = int | float
Clock = Callable[[], float]
"""Seconds, as `time.monotonic` gives them."""


class Pace:
    """How fast a count goes up."""

    def __init__(self, now: float) -> None:
        self._heard: list[tuple[float, Number]] = [(now, 0)]
        self._began = False

    def hear(self, now: float, done: Number, *, kept: bool = False) -> None:
        """The count is at `done` now; `kept` means that it took no time to get there."""
        _, before = self._heard[-1]
        if kept:
            self._heard = [(at, count + done - before) for at, count in self._heard]
        elif done < before or (not self._began and done > 1):
            # Another count begins, or a part was there before: says nothing of the time it takes.
            self._heard = [(now, done)]
        elif len(self._heard) > 1 and now - self._heard[-2][0] < 0.01 * (now - self._heard[0][0]):
            self._heard[-1] = (now, done)
        else:
            self._heard.append((now, done))
        self._began = True

    def left(self, now: float, total: Number) -> float | None:
        """Seconds until the count is at `total`; None while nothing is known."""
        last, done = self._heard[-1]
        since = last - max(LATELY, 0.5 * (last - self._heard[0][0]))
        then, before = self._heard[0]
        for at, count in self._heard:
            if at <= since:
                then, before = at, count
        if done <= before or last <= then:
            return 0.0 if done >= total else None
        return max(0.0, (total - done) * (last - then) / (done - before) - (now - last))


@dataclass
class Count:
    """Something that is counted up to a total, where one is known."""

    description: str
    total: Number | None
    began: float
    pace: Pace
    done: Number = 0
    visible: bool = True

    @property
    def finished(self) -> bool:
        return self.total is not None and self.done >= self.total

    def left(self, now: float) -> float | None:
        return None if self.total is None else self.pace.left(now, self.total)

    def so_far(self) -> str:
        if self.total is None:
            return f"{self.done:.0f}" if self.done else ""
        return f"{self.done:.0f}/{self.total:.0f}"


class Progress:
    """Counts that go up; several threads may tell of them."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.RLock()
        self._counts: dict[int, Count] = {}
        self._number = 0
        self._began, self._due = clock(), FIRST
        self._above: RenderableType | None = None
        self.console: Console | None = None
        """Where bars are drawn; None where lines are written."""

    # What commands tell

    def add_task(self, description: str, *, total: Number | None, visible: bool = True) -> int:
        """Begin to count; gives the number by which to speak of it."""
        with self._lock:
            now = self._clock()
            count = Count(description, total, now, Pace(now), visible=visible)
            self._number += 1
            self._counts[self._number] = count
            return self._number

    def update(
        self,
        task: int,
        *,
        completed: Number | None = None,
        total: Number | None = None,
        description: str | None = None,
        visible: bool | None = None,
        kept: bool = False,
    ) -> None:
        """Change what is given; `kept` says that what is completed was there before."""
        with self._lock:
            count = self._counts[task]
            count.total = count.total if total is None else total
            count.description = count.description if description is None else description
            count.visible = count.visible if visible is None else visible
            if completed is not None:
                count.done = completed
                count.pace.hear(self._clock(), completed, kept=kept)

    def advance(self, task: int, by: Number = 1, *, kept: bool = False) -> None:
        with self._lock:
            self.update(task, completed=self._counts[task].done + by, kept=kept)

    def remove_task(self, task: int) -> None:
        with self._lock:
            del self._counts[task]

    def say(self, line: str) -> None:
        """One line that stays, above the bars where there are any."""
        if self.console is None:
            say(line, err=True)
        else:
            self.console.print(
                printable(line), markup=False, highlight=False, emoji=False, soft_wrap=True
            )

    def show_above(self, what: "RenderableType") -> None:
        """Draw this above the bars, where there are any."""
        with self._lock:
            self._above = what

    # What is shown

    def line(self) -> str:
        """The counts that go on, the time since the beginning, and the time left."""
        with self._lock:
            now = self._clock()
            shown = [count for count in self._counts.values() if count.visible]
            going_on = [count for count in shown if not count.finished] or shown[-1:]
            words = [printable(f"{one.description} {one.so_far()}".strip()) for one in going_on]
            told = [", ".join(words), f"{span(now - self._began)} so far"]
            estimates = [(one, one.left(now)) for one in going_on]
            for one, left in estimates:
                if left is not None:
                    of = "" if one is going_on[0] else " for this part"
                    return f"{told[0]}; {told[1]}, about {span(left)} left{of}"
            return f"{told[0]}; {told[1]}, time left not known yet"

    def wait(self) -> float:
        """Seconds until the next line is due."""
        return max(0.0, self._due - (self._clock() - self._began))

    def tick(self) -> None:
        """Write a line if one is due."""
        if self.wait() > 0:
            return
        self._due += min(self._due, LONGEST)
        if self._counts:
            say(self.line(), err=True)

    def bars(self) -> "RenderableType":
        """The visible counts as they are drawn on a terminal."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1))
        with self._lock:
            now = self._clock()
            for one in self._counts.values():
                if one.visible:
                    left = one.left(now)
                    table.add_row(
                        Text(printable(one.description)),
                        ProgressBar(
                            total=one.total, completed=one.done, width=30, animation_time=now
                        ),
                        Text(one.so_far()),
                        Text(f"{span(now - one.began)} so far"),
                        Text("" if left is None else f"about {span(left)} left"),
                    )
            return table if self._above is None else Group(self._above, table)


def span(seconds: Number) -> str:
    """Seconds as a clock shows them: `0:01:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


@contextmanager
def late_progress() -> Iterator[Progress]:
    """Counts that are shown on standard error, if the work takes a while."""
    progress = Progress()
    shown = _bars(progress) if on_terminal() else _lines(progress)
    with shown:
        yield progress


def on_terminal() -> bool:
    """Whether standard error can draw bars."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


@contextmanager
def _bars(progress: Progress) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live

    # Square brackets in the name of a subject are no markup.
    progress.console = Console(stderr=True, markup=False, emoji=False)
    live = Live(
        get_renderable=progress.bars,
        console=progress.console,
        transient=True,
        refresh_per_second=4,
        redirect_stdout=False,
    )
    timer = threading.Timer(PATIENCE, live.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        # Stopping what never appeared would leave an empty line.
        if live.is_started:
            live.stop()


@contextmanager
def _lines(progress: Progress) -> Iterator[None]:
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(progress.wait()):
            progress.tick()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()
