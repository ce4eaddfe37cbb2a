"""Making several small language models: one after the other, or in processes side by side.

Each process makes one model after the other until none is left, so that it loads its libraries
once. They share the GPU: small models leave most of it idle. At the deadline those in training are
given up; whatever goes wrong in one of them is raised here, and what is finished stays.
"""

import math
import multiprocessing
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lab.factory.language.model import ModelJob, make_model
from lab.factory.language.train import Stopped

_POLL = 0.5

Watch = Callable[[str, int, float], None]
"""Takes a model, its steps so far, and its loss."""


def one_by_one(jobs: Sequence[ModelJob], watch: Watch, deadline: float) -> Iterator[dict[str, Any]]:
    for job in jobs:

        def tell(step: int, loss: float, name: str = job.design.name) -> bool:
            watch(name, step, loss)
            return time.monotonic() < deadline

        if time.monotonic() >= deadline:
            return
        try:
            yield make_model(job, tell)
        except Stopped:
            return


@dataclass(frozen=True)
class News:
    """What a worker says: progress of a model, its report, or what went wrong."""

    name: str
    step: int = 0
    loss: float = math.nan
    report: dict[str, Any] | None = None
    error: Exception | None = None
    ended: bool = False


def side_by_side(
    jobs: Sequence[ModelJob], processes: int, watch: Watch, deadline: float
) -> Iterator[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    waiting, news, stop = context.SimpleQueue(), context.Queue(), context.Event()
    count = min(processes, len(jobs))
    threads = max(1, torch.get_num_threads() // count)
    workers = [
        context.Process(target=_serve, args=(waiting, news, stop, threads), daemon=True)
        for _ in range(count)
    ]
    for job in [*jobs, *(None for _ in workers)]:
        waiting.put(job)
    left = {job.design.name for job in jobs}
    try:
        for worker in workers:
            worker.start()
        while left:
            if time.monotonic() >= deadline:
                stop.set()
            try:
                one = news.get(timeout=_POLL)
            except queue.Empty:
                _check_alive(workers)
                continue
            if one.error is not None:
                raise one.error
            if one.ended:
                left.discard(one.name)
                if one.report is not None:
                    yield one.report
            else:
                watch(one.name, one.step, one.loss)
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()
                worker.join()


def _check_alive(workers: Sequence[Any]) -> None:
    if dead := [x.exitcode for x in workers if x.exitcode not in (None, 0)]:
        raise ChildProcessError(
            f"a worker ended with exit code {dead[0]}, perhaps for lack of memory; what is "
            "finished is kept, and the same command with fewer processes goes on from there."
        )


def _serve(waiting: Any, news: Any, stop: Any, threads: int) -> None:
    """Make models until none is waiting. An interrupt is the business of who started this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    while (job := waiting.get()) is not None:
        name = job.design.name

        def tell(step: int, loss: float, name: str = name) -> bool:
            news.put(News(name, step, loss))
            return not stop.is_set()

        try:
            report = None if stop.is_set() else make_model(job, tell)
            news.put(News(name, report=report, ended=True))
        except Stopped:
            news.put(News(name, ended=True))
        except Exception as error:  # noqa: BLE001  whoever started this has to tell it
            news.put(News(name, error=_plain(error)))


def _plain(error: Exception) -> Exception:
    """An error that can be sent, of a kind that commands know."""
    if isinstance(error, OSError):
        return OSError(error.errno, error.strerror or str(error), error.filename)
    return (ValueError if isinstance(error, ValueError) else RuntimeError)(str(error))
