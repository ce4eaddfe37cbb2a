"""A folder of finished jobs, one file each, that several drivers may fill at once.

1. A job is finished when its file is there; files are written whole or not at all, so nothing else
   needs to be remembered.
2. `JobStore.claim` says that a job is being worked on. A claim is a file too, made by one driver
   only. On the same machine it holds as long as its process lives; drivers elsewhere see its heart
   beat, and hold it for abandoned when that has not been seen for `patience` seconds by the clock
   of the file system. An abandoned claim is taken over by one driver only.
3. `run_missing` gives a runner what is neither finished nor claimed, and waits for the rest: when
   it ends, every job is finished or given up, and none was worked on twice, but for those that a
   driver was killed in.
"""

import errno
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from graphcircuits.io.disk import HOST
from graphcircuits.jobs.runner import ONE_CPU, Found, Lost, Resources, Runner

Unit = TypeVar("Unit")

PATIENCE = 120.0
"""Seconds without a heartbeat after which a driver on another machine is held for dead."""
POLL = 1.0
"""Seconds between looks at what other drivers are working on."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@,-]{0,199}")


class Claim:
    """A job that this driver works on, until it is released."""

    def __init__(self, store: "JobStore", id: str, path: Path, nonce: str) -> None:
        self.id = id
        self._store, self._path, self._nonce = store, path, nonce

    def beat(self) -> None:
        with suppress(OSError):
            os.utime(self._path)

    def release(self) -> None:
        self._store._held.pop(self.id, None)
        # Whoever held this driver for dead may have it by now.
        if _read(self._path).get("nonce") == self._nonce:
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> "Claim":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.release()


class JobStore:
    """Finished jobs by their ids: letters, digits and `._+=@,-`."""

    def __init__(
        self, folder: str | Path, suffix: str = ".json", *, patience: float = PATIENCE
    ) -> None:
        self.folder, self.suffix, self.patience = Path(folder), suffix, patience
        self._held: dict[str, Claim] = {}
        self._beating: threading.Thread | None = None

    def path(self, id: str) -> Path:
        """The file that a finished job is in."""
        if not _ID.fullmatch(id):
            raise ValueError(
                f"{id!r} cannot name a job: expected letters, digits and ._+=@,- , at most 200."
            )
        return self.folder / f"{id}{self.suffix}"

    def done(self, ids: Iterable[str]) -> set[str]:
        return {id for id in ids if self.path(id).exists()}

    def claim(self, id: str) -> Claim | None:
        """The right to work on a job, until released; None while another driver has it.

        Who gets it should look once more whether the job is done: the other may just have ended.
        """
        path = self._claim_path(id)
        path.parent.mkdir(parents=True, exist_ok=True)
        nonce = secrets.token_hex(8)
        if not _create(path, _about(nonce)):
            there = _read(path)
            if not self._abandoned(path, there) or not self._take_over(path, there, nonce):
                return None
        claim = self._held[id] = Claim(self, id, path, nonce)
        self._keep_beating()
        return claim

    def claimed(self, id: str) -> bool:
        """Whether a driver that lives, this one or another, works on a job."""
        path = self._claim_path(id)
        return path.exists() and not self._abandoned(path, _read(path))

    def release(self, ids: Collection[str]) -> None:
        """Let go of claims of this driver."""
        for id in ids:
            if (claim := self._held.get(id)) is not None:
                claim.release()

    def tidy(self, ids: Collection[str]) -> None:
        """Remove claims on finished jobs whose drivers are no more: their workers outlived them."""
        for id in self.done(id for id in ids if self._claim_path(id).exists()):
            if (claim := self.claim(id)) is not None:
                claim.release()

    @property
    def _claims(self) -> Path:
        # It stays, though empty in the end: another driver may be about to write into it.
        return self.folder / ".claims"

    def _claim_path(self, id: str) -> Path:
        self.path(id)
        return self._claims / f"{id}.json"

    def _abandoned(self, path: Path, there: Mapping[str, Any]) -> bool:
        """Whether the driver that made the claim is no more."""
        pid = there.get("pid")
        if there.get("host") == HOST and isinstance(pid, int) and os.name != "nt":
            return not _lives(pid, there.get("since"))
        try:
            return self._now() - path.stat().st_mtime > self.patience
        except FileNotFoundError:
            return False  # released at this moment; the next to ask gets it

    def _now(self) -> float:
        """By the clock of the file system: machines disagree."""
        path = self._claims / f".now.{HOST}{secrets.token_hex(8)}"
        path.touch()
        try:
            return path.stat().st_mtime
        finally:
            path.unlink(missing_ok=True)

    def _take_over(self, path: Path, there: Mapping[str, Any], nonce: str) -> bool:
        """Replace an abandoned claim, if nobody else does.

        Only one can make the marker that is named after the claim. Who comes later, with the marker
        gone, finds another claim.
        """
        marker = path.with_suffix(f".{there.get('nonce', 'unread')}.over")
        if not _create(marker, _about(nonce)):
            if self._abandoned(marker, _read(marker)):
                marker.unlink(missing_ok=True)  # for the next who asks
            return False
        try:
            if _read(path).get("nonce") != there.get("nonce"):
                return False
            ours = path.with_suffix(f".{nonce}.new")
            try:
                _create(ours, _about(nonce))
                ours.replace(path)
            finally:
                ours.unlink(missing_ok=True)
            return True
        finally:
            marker.unlink(missing_ok=True)

    def _keep_beating(self) -> None:
        if self._beating is None or not self._beating.is_alive():
            self._beating = threading.Thread(target=self._beat, daemon=True)
            self._beating.start()

    def _beat(self) -> None:
        while self._held:
            for claim in list(self._held.values()):
                claim.beat()
            time.sleep(self.patience / 6)


def _create(path: Path, about: Mapping[str, Any]) -> bool:
    """Make a file that is not there; whether it was made. A full disk leaves none."""
    try:
        held = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    try:
        os.write(held, json.dumps(about).encode())
    except OSError as error:
        path.unlink(missing_ok=True)
        # A full disk names no file.
        raise OSError(error.errno or errno.EIO, error.strerror, str(path)) from error
    finally:
        os.close(held)
    return True


def _about(nonce: str) -> dict[str, Any]:
    pid = os.getpid()
    return {"nonce": nonce, "host": HOST, "pid": pid, "since": _since(pid)}


def _read(path: Path) -> dict[str, Any]:
    """What a claim says; nothing, if it is gone or being written."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _lives(pid: int, since: object) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return since is None or since == _since(pid)


def _since(pid: int) -> str | None:
    """When a process began, where the system says so: numbers of processes are used again."""
    with suppress(OSError, IndexError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if words[0] == "Z" else words[19]
    return None


Bundle = Mapping[str, Unit]
"""Jobs that are worked on together, by their ids."""


def run_missing(
    store: JobStore,
    runner: Runner,
    work: Callable[[Bundle[Unit]], Iterable[tuple[str, Found]]],
    bundles: Iterable[Bundle[Unit]],
    *,
    lost: Lost[Bundle[Unit], tuple[str, Found]] | None = None,
    resources: Resources = ONE_CPU,
    retries: int = 0,
    poll: float = POLL,
) -> Iterator[tuple[str, Found]]:
    """Work on all that is not in the store, and on nothing that another driver works on.

    `work` writes each job of a bundle to its place in the store before it yields it. What other
    drivers finish is waited for and not yielded; what they leave undone is done here.
    """
    left = list(bundles)
    everything = [id for bundle in left for id in bundle]
    begun: set[str] = set()
    """By this driver: what it did not finish it would not the next time."""

    def taken(some: Iterable[Bundle[Unit]]) -> Iterator[Bundle[Unit]]:
        for bundle in some:
            own = {id: unit for id, unit in bundle.items() if _free(store, id)}
            begun.update(own)
            if own:
                yield own

    while True:
        try:
            for id, found in runner.run(
                work, taken(left), lost=lost, resources=resources, retries=retries
            ):
                store.release([id])
                yield id, found
        finally:
            store.release(list(store._held))
        wanted = {id for bundle in left for id in bundle} - begun
        missing = wanted - store.done(wanted)
        if not missing:
            store.tidy(everything)
            return
        left = [{id: unit for id, unit in x.items() if id in missing} for x in left]
        left = [bundle for bundle in left if bundle]
        time.sleep(poll)


def _free(store: JobStore, id: str) -> bool:
    """Whether the job is this driver's now."""
    if store.path(id).exists() or (claim := store.claim(id)) is None:
        return False
    if store.path(id).exists():  # the other driver has just ended
        claim.release()
        return False
    return True
