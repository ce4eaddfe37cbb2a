"""Where a build is: subjects that are there, and checkpoints of the fleets in training.

A fleet in training has one file in the folder `unfinished/` of the build. It says which cases train
in it, with which settings and on which data, so that a later build goes on with the whole fleet,
those that passed included: what the others become depends on them. The file goes when all members
have been written.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from graphcircuits.disk import seldom
from graphcircuits.fleets.checkpoint import Snapshot, load_snapshot, read_about, save_snapshot
from graphcircuits.fleets.train import Keep
from graphcircuits.store import StoreError, content_hash
from graphcircuits.subject.transformer import Transformer

log = logging.getLogger(__name__)


def subject_path(directory: Path, id: str) -> Path:
    return directory / f"{id}.safetensors"


@dataclass(frozen=True)
class Job:
    """Cases that train side by side, and where the state of their training is kept."""

    path: Path
    about: Mapping[str, Any]

    @classmethod
    def new(cls, directory: Path, settings: Mapping[str, Any], data: Mapping[str, str]) -> "Job":
        """A fleet that has not begun; `data` gives the content hash of each case's data."""
        about = {"build": settings, "cases": list(data), "data": list(data.values())}
        name = f"{about['cases'][0]}-{content_hash(about)[:12]}"
        return cls(subject_path(directory / "unfinished", name), about)

    @property
    def ids(self) -> list[str]:
        return self.about["cases"]

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

    def keeper(self) -> Keep:
        """What writes a snapshot, if the last one is long enough ago or time is up."""
        save = seldom(save_snapshot)

        def keep(snapshot: Snapshot, time_is_up: bool) -> None:
            save(self.path, self.about, snapshot, force=time_is_up)

        return keep

    def snapshot(self, starts: Sequence[Transformer], device: torch.device) -> Snapshot | None:
        """The last one that was kept, if there is one."""
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
            jobs.append(Job(path, read_about(path)))
    return jobs


def begun(directory: Path, ids: Collection[str]) -> list[str]:
    """Which of the cases the directory holds a subject or an unfinished training of."""
    training = {id for job in _jobs(directory) for id in job.ids}
    return [id for id in ids if id in training or subject_path(directory, id).exists()]


def unfinished(directory: Path, ids: Collection[str], settings: Mapping[str, Any]) -> list[Job]:
    """The fleets of these cases, with these settings, that a build was cut off in."""
    found = []
    for job in _jobs(directory):
        open_ids = [id for id in job.ids if not subject_path(directory, id).exists()]
        if not open_ids:
            job.close()
        elif not set(open_ids) & set(ids):
            continue
        elif content_hash(job.settings) != content_hash(settings):
            raise StoreError(
                f"{job.path} is an unfinished build of {open_ids[0]} with other settings "
                f"({_differing(job.settings, settings)}); give the same, choose another "
                "directory, or delete it to start anew."
            )
        elif set(job.ids) <= set(ids):
            found.append(job)
        else:
            log.warning("%s is left as it is: not all of its cases are asked for", job.path)
    return found


def _differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs between two settings, as `name was x, is y`."""
    old, new = ({**settings, **settings["siit"], "siit": None} for settings in (then, now))
    return ", ".join(
        f"{name} was {old.get(name)}, is {value}"
        for name, value in new.items()
        if old.get(name) != value
    )


def lasting(arguments: Sequence[str]) -> list[str]:
    """Command line words that shape the subjects. Only those are recorded: a build that was cut
    off and resumed must not differ in them."""
    valued = ("--minutes", "--processes")
    kept = []
    for place, word in enumerate(arguments):
        own = word.partition("=")[0] in ("--resume", "--json", *valued)
        if not own and not (place and arguments[place - 1] in valued):
            kept.append(word)
    return kept
