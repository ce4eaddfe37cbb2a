"""Files of long runs: packed ones, errors of other libraries' writers in the system's words, and
locks."""

import errno
import gzip
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def read_packed(path: Path) -> str:
    """The text of a file, which may be packed by gzip."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


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
def hold(path: Path, busy: str) -> Iterator[None]:
    """Keep others from holding a folder, or a file made for it; who comes second hears `busy`.

    The system lets go of it when the process ends, however it ends.
    """
    if fcntl is None:
        yield
        return
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    held = os.open(path, flags, 0o666)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(busy) from None
        yield
    finally:
        os.close(held)
