"""Where a build is: subjects that are there, and checkpoints of the fleets in training.

A fleet in training has one file in the folder `unfinished/` of the build. It says which orders
train in it, with which settings and on which data, so that a later build goes on with the whole
fleet, those that passed included: what the others become depends on them. The file goes when all
members have been written.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from graphcircuits.cases.orders import Order
from graphcircuits.fleets.checkpoint import Snapshot, load_snapshot, read_about
from graphcircuits.io.store import StoreError, content_hash
from graphcircuits.subject.transformer import Transformer

log = logging.getLogger(__name__)


def subject_path(directory: Path, id: str) -> Path:
    return directory / f"{id}.safetensors"


@dataclass(frozen=True)
class Job:
    """Orders that train side by side, and the file that saves the state of their training."""

    path: Path
    about: Mapping[str, Any]

    @classmethod
    def new(cls, directory: Path, settings: Mapping[str, Any], data: Mapping[Order, str]) -> "Job":
        """A fleet that has not begun; `data` gives the content hash of each order's data."""
        orders = [asdict(order) for order in data]
        about = {"build": settings, "orders": orders, "data": list(data.values())}
        name = f"{next(iter(data)).id}-{content_hash(about)[:12]}"
        return cls(subject_path(directory / "unfinished", name), about)

    @cached_property
    def orders(self) -> list[Order]:
        return [Order(**order) for order in self.about["orders"]]

    @property
    def ids(self) -> list[str]:
        return [order.id for order in self.orders]

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.about["build"]

    def check_data(self, hashes: Mapping[str, str]) -> None:
        """Refuse to go on with cases that have changed."""
        for id, sha256 in zip(self.ids, self.about["data"], strict=True):
            if hashes.get(id) != sha256:
                raise StoreError(
                    f"{self.path} is an unfinished build of {id}, whose program or inputs have "
                    "changed since; choose another directory, or delete it to start anew."
                )

    def snapshot(self, starts: Sequence[Transformer], device: torch.device) -> Snapshot | None:
        """The last one that was saved, if there is one."""
        try:
            return load_snapshot(self.path, starts, device)
        except FileNotFoundError:
            return None

    def close(self) -> None:
        """Remove the checkpoint, and the folder if it was the last one."""
        self.path.unlink(missing_ok=True)
        with suppress(OSError):
            self.path.parent.rmdir()


def _jobs(directory: Path) -> list[Job]:
    jobs = []
    for path in sorted((directory / "unfinished").glob("*.safetensors")):
        # Another build may have ended in between.
        with suppress(FileNotFoundError):
            about = read_about(path)
            if not {"build", "orders", "data"} <= about.keys():
                raise StoreError(
                    f"{path} is an unfinished build of another version; choose another directory, "
                    "or delete it to start anew."
                )
            jobs.append(Job(path, about))
    return jobs


def begun(directory: Path, ids: Collection[str]) -> list[str]:
    """Which of the subjects the directory holds, finished or in training."""
    training = {id for job in _jobs(directory) for id in job.ids}
    return [id for id in ids if id in training or subject_path(directory, id).exists()]


def unfinished(
    directory: Path, orders: Collection[Order], settings: Callable[[Order], Mapping[str, Any]]
) -> list[Job]:
    """The fleets of these orders, each with its settings, that a build was cut off in."""
    asked = {order.id: order for order in orders}
    jobs = []
    for job in _jobs(directory):
        left = [order for order in job.orders if not subject_path(directory, order.id).exists()]
        mine = [order for order in left if order.id in asked]
        if not left:
            job.close()
        elif not mine:
            continue
        elif other := _differing(job.settings, mine, asked, settings):
            raise StoreError(
                f"{job.path} is an unfinished build of {mine[0].id} with other settings "
                f"({other}); give the same, choose another directory, or delete it to start anew."
            )
        elif set(job.ids) <= asked.keys():
            jobs.append(job)
        else:
            log.warning("%s is left as it is: not all of its subjects are asked for", job.path)
    return jobs


def _differing(
    then: Mapping[str, Any],
    orders: Sequence[Order],
    asked: Mapping[str, Order],
    settings: Callable[[Order], Mapping[str, Any]],
) -> str:
    """What differs from the settings of a job, as `name was x, is y`."""
    # A planted subject has its case's id whatever its seed, so that may be another one.
    order = next((order for order in orders if asked[order.id] != order), orders[0])
    wanted = asked[order.id]
    old = {**then, **then["siit"], "siit": None, "seed": order.seed}
    now = settings(wanted)
    new = {**now, **now["siit"], "siit": None, "seed": wanted.seed}
    names = dict.fromkeys(("seed", *new, *old))
    return ", ".join(
        f"{name} was {old.get(name)}, is {new.get(name)}"
        for name in names
        if old.get(name) != new.get(name)
    )
