"""Which jobs are left: those that nobody has begun, and those that a worker was lost in.

A job that is begun anew gives its first results again; the worker is told how many are known, and
keeps them to itself.
"""

import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from graphcircuits.jobs.messages import Message
from graphcircuits.jobs.runner import Found, Job, Lost


@dataclass
class Attempt(Generic[Job]):
    """A job, how many of its results are known, and how often it was begun before."""

    job: Job
    found: int = 0
    retried: int = 0


class Pending(Generic[Job, Found]):
    def __init__(self, jobs: Iterable[Job], lost: Lost[Job, Found] | None, retries: int) -> None:
        self._coming = iter(jobs)
        self._again: deque[Attempt[Job]] = deque()
        self._lost = lost
        self._retries = retries

    def take(self) -> Attempt[Job] | None:
        """The next job, if there is one."""
        if self._again:
            return self._again.popleft()
        return next((Attempt(job) for job in self._coming), None)

    def heard(self, attempt: Attempt[Job], message: Message) -> Iterator[Found]:
        """A result is handed on, a warning or an error raised."""
        if message.kind == "error":
            raise message.value
        if message.kind == "warning":
            warnings.warn(message.value, stacklevel=3)
        else:
            assert message.kind == "found", message.kind
            attempt.found += 1
            yield message.value

    def broken_off(self, attempt: Attempt[Job], what: str) -> Sequence[Found]:
        """A worker was lost: the job is begun anew, or given up."""
        if attempt.retried < self._retries:
            attempt.retried += 1
            self._again.append(attempt)
            return ()
        return self.given_up(attempt, what)

    def given_up(self, attempt: Attempt[Job], what: str) -> Sequence[Found]:
        """What takes the place of the result that a job was lost at; the rest is done later."""
        if self._lost is None:
            raise ChildProcessError(f"a job was lost: {what}.")
        instead, rest = self._lost(attempt.job, attempt.found, what)
        if rest is not None:
            self._again.append(Attempt(rest))
        return instead
