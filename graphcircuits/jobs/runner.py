"""Independent jobs and who works on them: this process, several of them, or a Ray cluster.

A job is worked on by a function of the caller's, which yields results; each is handed on at once.
What all runners promise:

1. Jobs are taken one by one, when somebody is free to work on them: a generator may decide late
   what is left to do.
2. A worker that is lost in the middle of a job, killed or with its machine, costs nothing as long
   as there are retries left: the job is begun anew, and results that are known are not given again.
   After that `lost` says what takes the place of the next result, and which job is left. A job that
   runs out of memory is not tried again, since it would again; `lost` hears of it too.
3. Any other error ends everything, wherever it was raised. So do Ctrl-C and a caller who wants no
   more results; no worker is left behind.
4. Warnings are raised again in the process that started it all, where they are shown or not.
5. Files that workers write state the driver's command (`command.driver_command`).

With equal numbers of threads the results are the same, whoever computes them.
"""

import copy
import errno
import os
import pickle
import re
import sys
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

Job = TypeVar("Job")
Output = TypeVar("Output")

Work = Callable[[Job], Iterable[Output]]
"""Takes a job and gives its results."""
Results = Generator[Output, None, None]
Lost = Callable[[Job, int, str], tuple[Sequence[Output], Job | None]]
"""Takes a job, the number of results it had given, and what happened; returns what to give instead
of the next result, and the job that is left to do."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one job takes."""

    cpus: float = 1.0
    """A worker computes with as many threads, at least one."""
    gpus: float = 0.0
    """Below one, jobs share a card."""

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.cpus < float("inf"):
            problems.append(f"cpus of a job must be above 0, got {self.cpus}")
        if not 0 <= self.gpus < float("inf"):
            problems.append(f"gpus of a job must be at least 0, got {self.gpus}")
        elif self.gpus > 1 and self.gpus != int(self.gpus):
            problems.append(f"gpus of a job must be a whole number beyond 1, got {self.gpus}")
        if problems:
            raise ValueError("; ".join(problems) + ".")

    @property
    def threads(self) -> int:
        return max(1, int(self.cpus))


ONE_CPU = Resources()


class Runner(ABC):
    """Whoever works on jobs."""

    def run(
        self,
        work: Work[Job, Output],
        jobs: Iterable[Job],
        *,
        lost: Lost[Job, Output] | None = None,
        resources: Resources = ONE_CPU,
        retries: int = 0,
    ) -> Results[Output]:
        """Yield the results of each job, in the order in which they are ready.

        Args:
            work: Takes a job and yields its results. It, the jobs and the results may go between
                processes and machines: all of it can be pickled.
            jobs: Taken one by one, when somebody is free to work on them.
            lost: What takes the place of a result that is lost for good; without it, an error does.
            resources: What one job takes.
            retries: How often a job is begun anew whose worker was lost.
        """
        return self._run(work, Pending(jobs, lost, retries), resources)

    @abstractmethod
    def _run(
        self, work: Work[Job, Output], pending: "Pending[Job, Output]", resources: Resources
    ) -> Results[Output]: ...

    def close(self) -> None:  # noqa: B027  most start nothing that lasts
        """Let go of what was started for it."""


@dataclass(frozen=True)
class InProcess(Runner):
    """One job after the other, here; `resources` are those of this process."""

    def _run(
        self, work: Work[Job, Output], pending: "Pending[Job, Output]", resources: Resources
    ) -> Results[Output]:
        while (attempt := pending.take()) is not None:
            try:
                for result in work(attempt.job):
                    yield result
                    attempt.known += 1
            except Exception as error:
                what = out_of_memory(error)
                if what is None or pending.lost is None:
                    raise
                yield from pending.give_up(attempt, what)


IN_PROCESS = InProcess()


def runner_of(processes: int = 1, ray: str | None = None) -> Runner:
    """The runner that these options ask for.

    Args:
        processes: How many work side by side on this machine; 1 works in this process.
        ray: "" starts a Ray cluster here, auto or HOST:PORT is the address of one that runs.
    """
    if ray is not None:
        if processes != 1:
            raise ValueError("jobs are worked on by processes or on Ray, not by both; give one.")
        from graphcircuits.jobs.on_ray import OnRay

        return OnRay(ray or None)
    if processes == 1:
        return InProcess()
    from graphcircuits.jobs.processes import Processes

    return Processes(processes)


# --- which jobs are left -------------------------------------------------------------------------


@dataclass
class Attempt(Generic[Job]):
    """A job, how many of its results are known, and how often it was begun before."""

    job: Job
    known: int = 0
    retried: int = 0


class Pending(Generic[Job, Output]):
    """Jobs that nobody has begun, and those that a worker was lost in.

    A job that is begun anew gives its first results again; the worker is told how many are known,
    and sends only the others.
    """

    def __init__(self, jobs: Iterable[Job], lost: Lost[Job, Output] | None, retries: int) -> None:
        self._coming = iter(jobs)
        self._again: deque[Attempt[Job]] = deque()
        self.lost = lost
        self._retries = retries

    def take(self) -> Attempt[Job] | None:
        """The next job, if there is one."""
        if self._again:
            return self._again.popleft()
        return next((Attempt(job) for job in self._coming), None)

    def receive(self, attempt: Attempt[Job], message: "Message") -> Iterator[Output]:
        """Hand on a result, raise a warning or an error; a job short of memory is given up, one
        whose worker was lost is begun anew or given up."""
        match message.kind:
            case "result":
                attempt.known += 1
                yield message.value
            case "warning":
                warnings.warn(message.value, stacklevel=3)
            case "memory":
                yield from self.give_up(attempt, message.value)
            case "lost":
                yield from self.retry(attempt, message.value)
            case "error":
                raise message.value

    def retry(self, attempt: Attempt[Job], what: str) -> Sequence[Output]:
        """A worker was lost: the job is begun anew, or given up."""
        if attempt.retried < self._retries:
            attempt.retried += 1
            self._again.append(attempt)
            return ()
        return self.give_up(attempt, what)

    def give_up(self, attempt: Attempt[Job], what: str) -> Sequence[Output]:
        """What takes the place of the result that a job was lost at; the rest is done later."""
        if self.lost is None:
            raise ChildProcessError(f"a job was lost: {what}.")
        instead, rest = self.lost(attempt.job, attempt.known, what)
        if rest is not None:
            self._again.append(Attempt(rest))
        return instead


# --- what a worker does --------------------------------------------------------------------------


@dataclass(frozen=True)
class Message:
    """What a worker sends; the last about a job is done, memory or error, or that it was lost."""

    kind: str
    """ready, result, warning, done, memory, error or lost."""
    value: Any = None

    @property
    def ends_job(self) -> bool:
        return self.kind in ("done", "memory", "lost")


@dataclass(frozen=True)
class Driver:
    """Whoever gives out the jobs: the words of its command, and the folder it was given in."""

    arguments: tuple[str, ...]
    folder: str

    @classmethod
    def here(cls) -> "Driver":
        return cls(tuple(sys.argv), str(Path.cwd()))

    def begin_worker(self, threads: int) -> None:
        """Compute with so many threads, with the command and the relative paths of the driver."""
        import torch

        sys.argv = list(self.arguments)
        with suppress(OSError):  # where that folder is not, only whole paths are any good
            os.chdir(self.folder)
        torch.set_num_threads(threads)


def messages_of(
    work: Callable[[Job], Iterable[object]], job: Job, known: int = 0
) -> Iterator[bytes]:
    """Work on a job: the messages about it, pickled. One that cannot be is an error of the job.

    The first results, as many as are known already, are not sent again.
    """
    for message in _messages(work, job, known):
        try:
            sent = pickle.dumps(message)
        except Exception as error:  # noqa: BLE001  whatever it is, it cannot be sent
            yield pickle.dumps(Message("error", sendable(error)))
            return
        yield sent


def _messages(work: Callable[[Job], Iterable[object]], job: Job, known: int) -> Iterator[Message]:
    warned: list[Warning | str] = []

    def warnings_so_far() -> Iterator[Message]:
        while warned:
            yield Message("warning", warned.pop(0))

    warnings.showwarning = lambda message, *_, **__: warned.append(message)
    last = Message("done")
    try:
        for number, result in enumerate(work(job)):
            yield from warnings_so_far()
            if number >= known:
                yield Message("result", result)
    except Exception as error:  # noqa: BLE001  whoever gave out the job must hear of it
        memory = out_of_memory(error)
        last = Message("error", sendable(error)) if memory is None else Message("memory", memory)
    yield from warnings_so_far()
    yield last


def out_of_memory(error: Exception) -> str | None:
    """That memory was short, in words; None if the error says something else."""
    text = str(error).partition("\n")[0]
    device = isinstance(error, RuntimeError) and re.search("out of memory|allocate memory", text)
    host = isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    )
    return f"it ran out of memory ({text or type(error).__name__})" if device or host else None


def sendable(error: Exception) -> Exception:
    """The error if it can be sent to another process, else one with its words."""
    try:
        pickle.dumps(error)
        # As whoever receives it will make it.
        again = copy.copy(error)
    except Exception:  # noqa: BLE001  whatever it is, it cannot be sent
        again = None
    if type(again) is type(error) and str(again) == str(error):
        return error
    kind = next((kind for kind in (ValueError, OSError) if isinstance(error, kind)), RuntimeError)
    return kind(str(error) if kind is not RuntimeError else f"{type(error).__name__}: {error}")
