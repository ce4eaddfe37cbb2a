"""Jobs on a Ray cluster: one that runs, or one that is started here for the command.

Each job is a task that streams its messages (`runner.messages_of`), with the CPUs and GPUs that it
asks for. A task whose worker or machine is gone costs a retry, or else what `lost` says. Ray itself
retries nothing: it would not know which results are known.

Ray is imported here and nowhere else, and reports nothing to its makers.
"""

import copy
import logging
import os
import pickle
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import unwrap
from typing import Any

from graphcircuits.jobs.runner import (
    Attempt,
    Driver,
    Job,
    Message,
    Output,
    Pending,
    Resources,
    Results,
    Runner,
    Work,
    messages_of,
)

AHEAD = 1
"""Jobs that wait for each that is worked on."""
TIMEOUT = 10.0
"""Seconds in which a cluster must answer."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Jobs without a GPU see what their machine has: what Ray is about to do anyway, and warns of.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Of lost workers Ray tells at length on standard output, where results go.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
"""Read by Ray when it is imported; what the user has set stays."""
BRIEF = {"RAY_NUM_REDIS_GET_RETRIES": "1", "RAY_py_gcs_connect_timeout_s": "10"}
"""Where something answers that is no Ray cluster, that is found out in seconds, not in minutes."""
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})")


@dataclass
class OnRay(Runner):
    """A Ray cluster at an address: auto, HOST:PORT; None starts one here, with all its CPUs."""

    address: str | None = None
    timeout: float = TIMEOUT
    _started: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        _refuse("the address", self.address)

    def _run(
        self, work: Work[Job, Output], pending: Pending[Job, Output], resources: Resources
    ) -> Results[Output]:
        ray = self._connected()
        room = _room(ray, resources)
        task = ray.remote(
            num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=0, num_returns="streaming"
        )(unwrap(_serve))  # Ray looks whether it is a generator, and a decorator would hide that
        # Sent once, and not with every job.
        shared = ray.put(work)
        submit = partial(task.remote, shared, Driver.here(), resources.threads)
        running: dict[Any, Attempt[Job]] = {}

        def fill() -> None:
            while len(running) < room and (attempt := pending.take()) is not None:
                running[submit(attempt.job, attempt.known)] = attempt

        try:
            fill()
            while running:
                ready, _ = ray.wait(list(running), num_returns=1)
                for stream in ready:
                    attempt = running[stream]
                    message = _next(ray, stream)
                    yield from pending.receive(attempt, message)
                    if message.ends_job:
                        del running[stream]
                        room = _room(ray, resources)
                        fill()
        finally:
            for stream in running:
                ray.cancel(stream, force=True)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        if self._started:
            self._started = False
            _ray().shutdown()

    def _connected(self) -> Any:
        ray = _ray(QUIET if self.address is None else QUIET | BRIEF)
        if ray.is_initialized():
            return ray
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
        try:
            if self.address is None:
                ray.init(address="local", include_dashboard=False, **quiet)
            else:
                answering = _answering(self.address, self.timeout)
                ray.init(address=answering, **quiet)
        except (OSError, RuntimeError, ValueError) as error:
            if self.address is None:
                raise ConnectionError(f"Ray could not be started here: {_line(error)}.") from error
            raise ConnectionError(
                f"no Ray cluster answers at {self.address} ({_line(error)}); start one with: ray "
                "start --head, or leave out the address for one that is started here."
            ) from error
        self._started = True
        return ray


def address_problems(name: str, address: str | None) -> list[str]:
    """What is wrong with an address, if anything; none at all is right too."""
    if address is None or address == "auto":
        return []
    if address.startswith("ray://"):
        return [
            f"{name} {address} is for Ray's client, which hands on no result before a job has "
            "ended; run the command on a machine of the cluster (ray start --address=HOST:PORT "
            "makes this one part of it), and give auto or HOST:PORT"
        ]
    matched = _ADDRESS.fullmatch(address)
    if not matched or not 0 < int(matched["port"]) < 2**16:
        return [f"{name} must be auto or HOST:PORT of a Ray cluster, got {address!r}"]
    return []


def _refuse(name: str, address: str | None) -> None:
    if problems := address_problems(name, address):
        raise ValueError("; ".join(problems) + ".")


def _answering(address: str, timeout: float) -> str:
    """The address, once something there has taken a connection."""
    named = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    if named in ("", "auto", "local"):
        return address
    _refuse("RAY_ADDRESS" if address == "auto" else "the address", named)
    host, _, port = named.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout):
        return named


def _ray(settings: Mapping[str, str] = QUIET) -> Any:
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise ImportError("jobs on Ray need ray: pip install 'graphcircuits[ray]'") from error
    return ray


def _room(ray: Any, resources: Resources) -> int:
    """How many jobs are given out: those that are worked on at once, and some more."""
    wanted = {"CPU": resources.cpus, "GPU": resources.gpus}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    slots = 0
    for node in nodes:
        slots += min(int(node.get(kind, 0) / much) for kind, much in wanted.items() if much)
    if slots == 0:
        most = {kind: max((node.get(kind, 0) for node in nodes), default=0) for kind in wanted}
        raise ValueError(
            f"a job wants {resources.cpus:g} CPUs and {resources.gpus:g} GPUs, and no machine of "
            f"the Ray cluster has them: the most are {most['CPU']:g} CPUs, {most['GPU']:g} GPUs."
        )
    return (1 + AHEAD) * slots


def _next(ray: Any, stream: Any) -> Message:
    """The next message of a job, or that its worker was lost, and how."""
    errors = ray.exceptions
    try:
        return pickle.loads(ray.get(next(stream)))
    except StopIteration:
        what = "its worker ended without a word"
    except errors.RayTaskError as error:
        raise RuntimeError(
            f"a Ray worker could not begin: {_line(error.cause or error)}; every machine of the "
            "cluster needs this version of graphcircuits."
        ) from error
    except errors.OutOfMemoryError:
        what = "its worker was killed for lack of memory"
    except errors.NodeDiedError:
        what = "its machine left the cluster"
    except errors.WorkerCrashedError:
        what = "its worker was killed or crashed"
    except errors.RayError as error:
        what = f"its worker was lost: {_line(error)}"
    return Message("lost", what)


def _line(error: BaseException) -> str:
    said = error.strerror if isinstance(error, OSError) and error.strerror else error
    text = str(said).strip().partition("\n")[0].rstrip(".")
    return text or type(error).__name__


def _serve(
    work: Callable[[Any], Iterable[object]], driver: Driver, threads: int, job: Any, known: int
) -> Iterator[bytes]:
    driver.begin_worker(threads)
    yield from messages_of(work, copy.deepcopy(job), known)
