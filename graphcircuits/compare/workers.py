"""Work spread over processes, whose results come one by one as they are finished.

1. `spread` starts processes that compute with one thread each, and gives every one a job at a time.
   A job is worked on by a function of one's own, which yields results; each is handed on at once.
2. A process that ends in the middle of a job, killed or out of memory, costs the result it was at:
   `lost` says what takes its place, and which job is left of it. Another process is started.
3. An error that the function raises ends everything, as it would without processes. So do Ctrl-C
   and a caller who wants no more results: processes are ended, and never hear Ctrl-C themselves.

Warnings are raised again in the process that started it all, where they are shown or not.
"""

import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

import torch

Job = TypeVar("Job")
Found = TypeVar("Found")


@dataclass
class _Worker(Generic[Job]):
    process: BaseProcess
    connection: Connection
    ready: bool = False
    job: Job | None = None
    found: int = 0
    """Results of the job so far."""


@dataclass(frozen=True)
class _Message:
    kind: str
    """ready, found, done, warning or error."""
    value: Any = None


def spread(
    work: Callable[[Job], Iterable[Found]],
    jobs: Sequence[Job],
    processes: int,
    lost: Callable[[Job, int, str], tuple[Sequence[Found], Job | None]],
) -> Iterator[Found]:
    """Yield what `work` finds for each job, in the order in which it is found.

    `work`, the jobs and the results go between processes, so they must be plain values; no tensors,
    which would go as handles to memory that ends with its process.
    `lost` is called with a job whose process ended, the number of results it had given, and what
    happened; it returns what to yield instead of the next one, and the job that is left to do.
    """
    waiting = deque(jobs)
    workers: list[_Worker[Job]] = []
    try:
        workers += [_started(work) for _ in range(min(processes, len(jobs)))]
        while workers:
            heard = wait([worker.connection for worker in workers])
            for worker in [one for one in workers if one.connection in heard]:
                message = _received(worker)
                if message is None:
                    workers.remove(worker)
                    found, rest = lost(*_ended(worker))
                    waiting.extendleft([] if rest is None else [rest])
                    if waiting:
                        workers.append(_started(work))
                    yield from found
                elif message.kind == "found":
                    worker.found += 1
                    yield message.value
                elif message.kind == "warning":
                    warnings.warn(message.value, stacklevel=2)
                elif message.kind == "error":
                    raise message.value
                elif waiting:
                    worker.ready, worker.job, worker.found = True, waiting.popleft(), 0
                    with suppress(ConnectionError):  # it has just ended, as the next turn will see
                        worker.connection.send(worker.job)
                else:
                    workers.remove(worker)
                    worker.connection.close()
                    worker.process.join()
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
            worker.connection.close()


def _started(work: Callable[[Job], Iterable[object]]) -> _Worker[Job]:
    spawn = get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs, work), daemon=True)
    with _unheard():
        process.start()
    theirs.close()
    return _Worker(process, ours)


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


def _ended(worker: _Worker[Job]) -> tuple[Job, int, str]:
    """The job of a process that is no more, its results, and what happened."""
    worker.process.join()
    worker.connection.close()
    code = worker.process.exitcode or 0
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    if not worker.ready or worker.job is None:
        raise ChildProcessError(
            f"a worker process {how} before it had anything to do; a script that starts some needs "
            'its own work under `if __name__ == "__main__":`.'
        )
    return worker.job, worker.found, f"its process {how}"


def _serve(connection: Connection, work: Callable[[Job], Iterable[object]]) -> None:
    """Work on jobs until there are no more, or nobody is left to tell."""
    torch.set_num_threads(1)

    def tell(kind: str, value: object = None) -> None:
        connection.send(_Message(kind, value))

    def tell_warning(message: Warning | str, *_: object, **__: object) -> None:
        tell("warning", message)

    warnings.showwarning = tell_warning
    with suppress(EOFError, BrokenPipeError):
        tell("ready")
        while True:
            job = connection.recv()
            try:
                for found in work(job):
                    tell("found", found)
                tell("done")
            except Exception as error:  # noqa: BLE001  whoever started it all must hear of it
                tell("error", error)


def _received(worker: _Worker[Job]) -> _Message | None:
    try:
        return worker.connection.recv()
    except (EOFError, ConnectionError):
        return None
