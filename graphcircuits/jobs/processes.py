"""Jobs spread over processes of this machine: the one pool of processes of the package.

A process that ends in the middle of a job, killed or out of memory, costs a retry, or else what
`lost` says, and another one is started. (The pools of `concurrent.futures` and joblib hand on no
result before a job has ended, and are lost as a whole with one process.) Processes never hear
Ctrl-C themselves: who started them ends them. None outlives a driver that was killed.
"""

import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

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

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass
class _Worker(Generic[Job]):
    process: BaseProcess
    connection: Connection
    cards: str | None
    at: Attempt[Job]
    ready: bool = False
    """Whether it has begun to listen."""

    def send(self) -> None:
        with suppress(ConnectionError):  # it has just ended, as the next turn will see
            # Whole: PyTorch would have a pipe hand on where in memory a tensor is.
            self.connection.send_bytes(pickle.dumps((self.at.job, self.at.known)))

    def receive(self) -> Message | None:
        try:
            return pickle.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionError):
            return None

    def end(self) -> int:
        """The exit code, once the process is no more."""
        self.connection.close()
        self.process.join()
        return self.process.exitcode or 0


@dataclass(frozen=True)
class Processes(Runner):
    """So many jobs side by side on this machine."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"there must be at least 1 process, got {self.n}.")

    def _run(
        self, work: Work[Job, Output], pending: Pending[Job, Output], resources: Resources
    ) -> Results[Output]:
        workers: list[_Worker[Job]] = []

        def start(cards: str | None) -> None:
            if (attempt := pending.take()) is not None:
                workers.append(_start(work, attempt, cards, resources.threads))

        try:
            for cards in _cards(self.n, resources.gpus):
                start(cards)
            while workers:
                heard = wait([worker.connection for worker in workers])
                for worker in [one for one in workers if one.connection in heard]:
                    message = worker.receive()
                    if message is None:
                        workers.remove(worker)
                        instead = pending.retry(worker.at, _what_happened(worker))
                        start(worker.cards)
                        yield from instead
                        continue
                    if message.kind == "ready":
                        worker.ready = True
                        worker.send()
                        continue
                    yield from pending.receive(worker.at, message)
                    if message.ends_job:
                        attempt = pending.take()
                        if attempt is None:
                            workers.remove(worker)
                            worker.end()
                        else:
                            worker.at = attempt
                            worker.send()
        finally:
            for worker in workers:
                worker.process.terminate()
            for worker in workers:
                worker.end()


def in_order(
    processes: int, function: Callable[[Given], Made], values: Iterable[Given], ahead: int
) -> Generator[Made, None, None]:
    """Yield `function(value)` of each value, in their order, computed before it is asked for.

    Args:
        processes: How many compute; with 1, this one does, when a result is asked for.
        function: Takes and returns plain values, as the `work` of a runner does.
        values: Taken by a thread of its own, so they may depend on nothing that the caller does.
        ahead: Results that wait for a caller who does not ask. While it waits for a slow one, those
            that come after it are taken in, however many.
    """
    if processes == 1:
        yield from map(function, values)
        return
    arrived: queue.Queue[tuple[int, Made] | BaseException | None] = queue.Queue(ahead)
    stopped = threading.Event()

    def fill() -> None:
        results = Processes(processes).run(partial(_numbered, function), enumerate(values))
        try:
            for result in results:
                if stopped.is_set():
                    break
                arrived.put(result)
            last = None
        except BaseException as error:  # noqa: BLE001  the caller's thread raises it
            last = error
        results.close()
        arrived.put(last)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    early: dict[int, Made] = {}
    number = 0
    try:
        while (arrival := arrived.get()) is not None:
            if isinstance(arrival, BaseException):
                raise arrival
            early[arrival[0]] = arrival[1]
            while number in early:
                yield early.pop(number)
                number += 1
    finally:
        stopped.set()
        while thread.is_alive():
            with suppress(queue.Empty):
                arrived.get(timeout=0.01)


def _numbered(function: Callable[[Any], Made], job: tuple[int, Any]) -> Iterator[tuple[int, Made]]:
    number, value = job
    yield number, function(value)


def _cards(n: int, gpus: float) -> list[str | None]:
    """The cards that each process sees; None where it sees all of them."""
    if not gpus:
        return [None] * n
    import torch

    there = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = named.split(",")[:there] if named else [str(card) for card in range(there)]
    each = max(1, int(gpus))
    slots = int(there / gpus) if gpus < 1 else there // each
    if slots == 0:
        raise ValueError(f"a job wants {gpus:g} GPUs, and PyTorch finds {there} here.")
    # Jobs that share cards take them in turn.
    return [
        names[slot % there] if gpus < 1 else ",".join(names[slot * each : (slot + 1) * each])
        for slot in range(min(n, slots))
    ]


def _start(
    work: Callable[[Job], Iterable[object]], attempt: Attempt[Job], cards: str | None, threads: int
) -> _Worker[Job]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    about = (theirs, work, Driver.here(), threads, cards)
    process = spawn.Process(target=_serve, args=about, daemon=True)
    with _interrupts_blocked():
        process.start()
    theirs.close()
    return _Worker(process, ours, cards, attempt)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes that start here do not hear Ctrl-C, from their first moment on."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _what_happened(worker: _Worker[Any]) -> str:
    """What a process that is no more died of."""
    code = worker.end()
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_driver, daemon=True).start()
    if cards is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = cards  # nothing has asked for a card so far
    driver.begin_worker(threads)
    with suppress(EOFError, ConnectionError):
        connection.send_bytes(pickle.dumps(Message("ready")))
        while True:
            job, known = pickle.loads(connection.recv_bytes())
            for message in messages_of(work, job, known):
                connection.send_bytes(message)


def _end_with_driver() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
