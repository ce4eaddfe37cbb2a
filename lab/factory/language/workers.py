"""Making several small language models: one after the other, or in processes side by side.

Each process makes one model after the other until none is left, so that it loads its libraries
once. They share the GPU: small models leave most of it idle. At the deadline those in training are
given up; whatever goes wrong in one of them is raised here, and what is finished stays.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import torch

from graphcircuits.jobs.runner import Resources, runner_of
from lab.factory.language.model import ModelJob, make_model

Watch = Callable[[str, int, float], None]
"""Takes a model, its steps so far, and its loss."""
News = tuple[str, tuple[int, float] | dict[str, Any]]
"""A model, with its steps so far and its loss, or its report."""


def make_each(
    jobs: Sequence[ModelJob], processes: int, watch: Watch, deadline: float
) -> Iterator[dict[str, Any]]:
    """Yield the report of each model that is ready before the deadline, by `time.monotonic`."""
    count = min(processes, len(jobs))
    # The clock that all processes share is the one on the wall.
    work = partial(_news, time.time() + deadline - time.monotonic())
    resources = Resources(cpus=float(max(1, torch.get_num_threads() // count)))
    lost = _lost if count > 1 else None
    for name, news in runner_of(count).run(work, jobs, lost=lost, resources=resources):
        if isinstance(news, dict):
            yield news
        else:
            watch(name, *news)


def _news(until: float, job: ModelJob) -> Iterator[News]:
    """How far a model is, then its report; no more once time is up."""
    if time.time() >= until:
        return
    with closing(make_model(job)) as making:
        for news in making:
            yield job.design.name, news
            if time.time() >= until:
                return


def _lost(job: ModelJob, known: int, what: str) -> tuple[list[News], None]:
    raise ChildProcessError(
        f"{job.design.name}: {what}, perhaps for lack of memory; what is finished is kept, and the "
        "same command with fewer processes goes on from there."
    )
