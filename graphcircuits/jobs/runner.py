"""Independent jobs and who works on them: this process, several of them, or a Ray cluster.

A job is worked on by a function of one's own, which yields results; each is handed on at once. What
all runners promise:

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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from graphcircuits.jobs.messages import out_of_memory

Job = TypeVar("Job")
Found = TypeVar("Found")

Lost = Callable[[Job, int, str], tuple[Sequence[Found], Job | None]]
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
        problems = [
            f"{name} of a job must be {least}, got {value}"
            for name, value, least, wrong in (
                ("cpus", self.cpus, "above 0", not 0 < self.cpus < float("inf")),
                ("gpus", self.gpus, "at least 0", not 0 <= self.gpus < float("inf")),
            )
            if wrong
        ]
        if self.gpus > 1 and self.gpus != int(self.gpus):
            problems.append(f"gpus of a job must be a whole number beyond 1, got {self.gpus}")
        if problems:
            raise ValueError("; ".join(problems) + ".")

    @property
    def threads(self) -> int:
        return max(1, int(self.cpus))


ONE_CPU = Resources()


@runtime_checkable
class Runner(Protocol):
    def run(
        self,
        work: Callable[[Job], Iterable[Found]],
        jobs: Iterable[Job],
        *,
        lost: Lost[Job, Found] | None = None,
        resources: Resources = ONE_CPU,
        retries: int = 0,
    ) -> Iterator[Found]:
        """Yield what `work` finds for each job, in the order in which it is found.

        `work`, the jobs and the results may go between processes and machines: they are plain
        values, and no tensors. Without `lost`, a job that is lost for good is an error.
        """
        ...

    def close(self) -> None:
        """Let go of what was started for it."""
        ...


@dataclass(frozen=True)
class InProcess:
    """One job after the other, here; `resources` are those of this process."""

    def run(
        self,
        work: Callable[[Job], Iterable[Found]],
        jobs: Iterable[Job],
        *,
        lost: Lost[Job, Found] | None = None,
        resources: Resources = ONE_CPU,
        retries: int = 0,
    ) -> Iterator[Found]:
        for first in jobs:
            job: Job | None = first
            while job is not None:
                given, rest = 0, None
                instead: Sequence[Found] = ()
                try:
                    for one in work(job):
                        yield one
                        given += 1
                except Exception as error:
                    what = out_of_memory(error)
                    if what is None or lost is None:
                        raise
                    instead, rest = lost(job, given, what)
                yield from instead
                job = rest

    def close(self) -> None:
        """Nothing was started."""


IN_PROCESS = InProcess()


def runner_of(processes: int = 1, ray: str | None = None) -> Runner:
    """So many processes, or Ray: "" starts one here, else the address of one that runs.

    An address is auto or HOST:PORT.
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
