"""Ctrl-C, and the system's request to end, in commands that keep what they have reached.

1. `terminable` makes a request to end (SIGTERM) an interrupt like that of Ctrl-C, for all commands:
   what one leaves behind the other leaves too.
2. `deferred` holds back the first interrupt of a training until a step is done, so that the command
   can keep a checkpoint of that very step. A second one ends it at once.

How a command goes on is told by the command itself, with exit code `INTERRUPTED`.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from graphcircuits.commands.output import say

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
    found = Interruption()

    def heard(number: int, frame: FrameType | None) -> None:
        if found.asked or not found.steps:
            raise KeyboardInterrupt
        found.asked = True
        with suppress(RuntimeError):  # a line was just being written; the next interrupt counts
            say("interrupted: this step is finished first; once more ends it at once.", err=True)

    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = {one: signal.getsignal(one) for one in SIGNALS}
    replaced = [one for one, handler in before.items() if callable(handler)]
    for one in replaced:
        signal.signal(one, heard)
    try:
        yield found
    finally:
        for one in replaced:
            signal.signal(one, before[one])


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
