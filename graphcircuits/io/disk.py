"""Writing to disk: files that are whole or absent, and no more of it than the work can bear.

1. `write_atomic` writes beside the file, syncs, and renames: a crash leaves the old file, and
   what a killed writer left beside it goes with the next write into the same folder.
2. `writing` puts errors of other libraries' writers in the system's words.
3. `seldom` spaces out checkpoints, so that writing them takes a small share of the time.
"""

import errno
import hashlib
import math
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
"""In the names of temporary files: locks say nothing about writers on other machines."""


def write_atomic(path: str | Path, data: bytes) -> None:
    """Make `path` hold exactly `data`, or leave it as it was. Missing folders are created."""
    final = Path(path).resolve()
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(final.parent)
    try:
        with _temporary(final) as temporary:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(final)
    except OSError as error:
        # A full disk names no file, other errors that of the temporary one.
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
    # The rename itself reaches the disk with the folder; some systems cannot open folders.
    with suppress(OSError):
        folder = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """What other libraries raise while they write under `path`, as the system's error that it is.

    Rust's say `(os error 28)` in an error of their own kind, NumPy how many bytes it wrote.
    """
    try:
        yield
    except Exception as error:
        said = re.search(r"\(os error (\d+)\)|\d+ requested and \d+ written", str(error))
        if said is None:
            raise
        number = int(said[1] or errno.ENOSPC)
        raise OSError(number, os.strerror(number), str(path)) from error


@contextmanager
def _temporary(final: Path) -> Iterator[Path]:
    """An empty file beside the final one, locked as long as its writer lives, then removed."""
    path, held = _create(final)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        if held is not None:
            os.close(held)


def _create(final: Path) -> tuple[Path, int | None]:
    """The file and the descriptor that holds its lock, where there are locks."""
    while True:
        path = final.with_name(f".{final.name}.{HOST}{secrets.token_hex(8)}.tmp")
        held = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        if fcntl is None:
            # An open file cannot be renamed there.
            os.close(held)
            return path, None
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        if os.fstat(held).st_nlink:
            return path, held
        # Another writer took it for abandoned before it was locked.
        os.close(held)


def _remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of this machine that no living writer holds."""
    if fcntl is None:
        return
    with suppress(OSError):
        for path in folder.glob(f".*.{HOST}*.tmp"):
            with suppress(OSError):
                found = os.open(path, os.O_WRONLY)
                try:
                    fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(found)


def seldom(write: Callable[..., Any], share: float = 0.02) -> Callable[..., None]:
    """`write`, called only when its calls have taken at most this share of the time since.

    The first call always writes, and so does one with `force=True`.
    """
    due = -math.inf

    def perhaps(*args: Any, force: bool = False) -> None:
        nonlocal due
        start = time.perf_counter()
        if start < due and not force:
            return
        write(*args)
        end = time.perf_counter()
        due = end + (end - start) / share

    return perhaps
