"""Jobs spread over processes of this machine, whose results come one by one as they are finished.

1. `Processes.run` starts processes, and gives every one a job at a time. Where jobs want GPUs, no
   more are started than have some, and each sees its own.
2. A process that ends in the middle of a job, killed or out of memory, costs a retry, or else what
   `lost` says. Another process is started.
3. Processes never hear Ctrl-C themselves: who started them ends them.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic

import torch

from graphcircuits.jobs.messages import Driver, Message, begin_worker, sendable, told
from graphcircuits.jobs.pending import Attempt, Pending
from graphcircuits.jobs.runner import ONE_CPU, Found, Job, Lost, Resources


@dataclass
class _Worker(Generic[Job]):
    process: BaseProcess
    connection: Connection
    cards: str | None
    at: Attempt[Job]
    ready: bool = False
    """Whether it has begun to listen."""


@dataclass(frozen=True)
class Processes:
    """So many jobs side by side on this machine."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"there must be at least 1 process, got {self.n}.")

    def run(
        self,
        work: Callable[[Job], Iterable[Found]],
        jobs: Iterable[Job],
        *,
        lost: Lost[Job, Found] | None = None,
        resources: Resources = ONE_CPU,
        retries: int = 0,
    ) -> Iterator[Found]:
        pending = Pending(jobs, lost, retries)
        workers: list[_Worker[Job]] = []

        def start(cards: str | None) -> None:
            if (attempt := pending.take()) is not None:
                workers.append(_started(work, attempt, cards, resources.threads))

        try:
            for cards in _cards(self.n, resources.gpus):
                start(cards)
            while workers:
                heard = wait([worker.connection for worker in workers])
                for worker in [one for one in workers if one.connection in heard]:
                    message = _received(worker)
                    if message is None:
                        workers.remove(worker)
                        instead = pending.broken_off(worker.at, _ended(worker))
                        start(worker.cards)
                        yield from instead
                    elif message.kind == "ready":
                        worker.ready = True
                        _send(worker)
                    elif message.kind in ("done", "memory"):
                        if message.kind == "memory":
                            yield from pending.given_up(worker.at, message.value)
                        attempt = pending.take()
                        if attempt is None:
                            workers.remove(worker)
                            worker.connection.close()
                            worker.process.join()
                        else:
                            worker.at = attempt
                            _send(worker)
                    else:
                        yield from pending.heard(worker.at, message)
        finally:
            for worker in workers:
                worker.process.terminate()
            for worker in workers:
                worker.process.join()
                worker.connection.close()

    def close(self) -> None:
        """Processes end with the jobs."""


def _send(worker: _Worker[Any]) -> None:
    with suppress(ConnectionError):  # it has just ended, as the next turn will see
        worker.connection.send((worker.at.job, worker.at.found))


def _cards(n: int, gpus: float) -> list[str | None]:
    """The cards that each process sees; None where it sees all of them."""
    if not gpus:
        return [None] * n
    there = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = named.split(",")[:there] if named else [str(card) for card in range(there)]
    each = max(1, int(gpus))
    slots = int(there / gpus) if gpus < 1 else there // each
    if slots == 0:
        raise ValueError(f"a job wants {gpus:g} GPUs, and PyTorch finds {there} here.")
    # Jobs that share cards are dealt out to them in turn.
    return [
        names[slot % there] if gpus < 1 else ",".join(names[slot * each : (slot + 1) * each])
        for slot in range(min(n, slots))
    ]


def _started(
    work: Callable[[Job], Iterable[object]], attempt: Attempt[Job], cards: str | None, threads: int
) -> _Worker[Job]:
    spawn = get_context("spawn")
    ours, theirs = spawn.Pipe()
    about = (theirs, work, Driver.here(), threads, cards)
    process = spawn.Process(target=_serve, args=about, daemon=True)
    with _unheard():
        process.start()
    theirs.close()
    return _Worker(process, ours, cards, attempt)


@contextmanager
def _unheard() -> Iterator[None]:
    """Processes that start here ignore Ctrl-C from their first moment on."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say so
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _ended(worker: _Worker[Any]) -> str:
    """What happened to a process that is no more."""
    worker.process.join()
    worker.connection.close()
    code = worker.process.exitcode or 0
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    if not worker.ready:
        raise ChildProcessError(
            f"a worker process {how} before it had anything to do; a script that starts some needs "
            'its own work under `if __name__ == "__main__":`.'
        )
    return f"its process {how}"


def _serve(
    connection: Connection,
    work: Callable[[Any], Iterable[object]],
    driver: Driver,
    threads: int,
    cards: str | None,
) -> None:
    """Work on jobs until there are no more, or nobody is left to tell."""
    if cards is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = cards  # nothing has asked for a card so far
    begin_worker(driver, threads)
    with suppress(EOFError, ConnectionError):
        connection.send(Message("ready"))
        while True:
            job, known = connection.recv()
            for message in told(work, job, known):
                try:
                    connection.send(message)
                except ConnectionError:
                    raise
                except Exception as error:  # noqa: BLE001  what was found cannot be sent
                    connection.send(Message("error", sendable(error)))
                    break


def _received(worker: _Worker[Job]) -> Message | None:
    try:
        return worker.connection.recv()
    except (EOFError, ConnectionError):
        return None
