"""Files read with bounds, since nobody vouches for them, and written whole or not at all.

A pipe or a device, which may never end, is refused unread; nesting is bounded, so that whatever
walks a value comes back; a `StoreError` quotes files, so its text is short and printable. Writing
goes beside the file, syncs, and renames: a crash leaves the old file, and what a killed writer left
beside it goes with the next write into the same folder.
"""

import csv
import errno
import hashlib
import io
import json
import math
import os
import platform
import reprlib
import secrets
import stat
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

MAX_DEPTH = 100
"""Levels of nesting in JSON and TOML: far more than any file of ours has, and few enough for
everything that calls itself once per level."""
MAX_TOML = 2**16
"""Bytes of a TOML file; a configuration takes hundreds."""
_MAX_DOTS = 100
HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
"""In the names of temporary files: locks say nothing about writers on other machines."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


class StoreError(ValueError):
    """A file that is damaged, of another kind, or not ours to read."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


def printable(text: str) -> str:
    """Text for a terminal: control characters escaped, and no more than a screen of it."""
    if len(text) > 4000:
        text = f"{text[:3000]} ... {text[-800:]}"
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def short(value: object) -> str:
    """`repr`, shortened: a value from a file may be large, nested, or full of escape sequences."""
    return _short.repr(value)


# Bytes and text


def read_bytes(path: str | Path, *, limit: int | None = None) -> bytes:
    """The content of a regular file of at most `limit` bytes."""
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a device or the like"
        raise StoreError(f"{path} is {kind}; expected a regular file.")
    with Path(path).open("rb") as file:
        data = file.read(-1 if limit is None else limit + 1)
    if limit is not None and len(data) > limit:
        raise StoreError(
            f"{path} holds more than {limit} bytes, the most that is read of its kind."
        )
    return data


def read_text(path: str | Path, *, limit: int | None = None) -> str:
    """The text of a UTF-8 file, without a byte order mark."""
    data = read_bytes(path, limit=limit)
    refuse_pickle(path, data)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is not a text file: byte {error.start} is not UTF-8.") from error


def refuse_pickle(path: str | Path, data: bytes) -> None:
    """An error for what torch.save, pickle.dump and numpy.savez write."""
    # Protocol 2 and later, also the old torch.save; the new torch.save and .npz are zip files.
    if (data[:1] == b"\x80" and data[1:2] in b"\x02\x03\x04\x05") or data[:4] == b"PK\x03\x04":
        raise StoreError(
            f"{path} is a pickle or a zip of pickles (torch.save, pickle.dump, numpy.savez), and "
            "reading one can run code; convert it with safetensors.torch.save_file or to JSON."
        )


# JSON and TOML


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    What is no JSON raises JSONDecodeError; a StoreError that reads on from the name of the text
    says that a key is there twice, that a number is too long or none at all (NaN, infinity), or
    that the nesting is too deep.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise StoreError(_TOO_DEEP) from None
    except (json.JSONDecodeError, StoreError):
        raise
    except ValueError as error:
        # Python converts no more than some thousand digits.
        raise StoreError(f"holds a number that cannot be read: {error}.") from error
    _check_depth(value)
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """The table in a TOML text; problems as in `parse_json`, with TOMLDecodeError."""
    for number, line in enumerate(text.split("\n"), start=1):
        # A dotted key takes the parser time that grows with the square of its parts.
        if line.count(".") > _MAX_DOTS:
            raise StoreError(f"has more than {_MAX_DOTS} dots in line {number}; break the line.")
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise StoreError(_TOO_DEEP) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        raise StoreError(f"holds a value that cannot be read: {error}.") from error
    _check_depth(value)
    return value


_NESTED = (dict, list)
_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels."


def _check_depth(value: object) -> None:
    """Level by level, without calling itself."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = (v.values() if isinstance(v, dict) else v for v in level if isinstance(v, _NESTED))
        level = [item for items in inner for item in items if isinstance(item, _NESTED)]
        if not level:
            return
    raise StoreError(_TOO_DEEP)


class NotFiniteError(StoreError):
    """A number of a file is NaN or infinite."""


def _refuse_constant(name: str) -> Any:
    raise NotFiniteError(f"holds {name}, which is no number that anything can be computed with.")


def _finite(digits: str) -> float:
    """A number of JSON; 1e999 would be read as infinity."""
    value = float(digits)
    return value if math.isfinite(value) else _refuse_constant(digits)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise StoreError(f"holds the key {short(name)} twice in one object.")
    return value


def read_json(path: str | Path) -> Any:
    """The value in a JSON file; incomplete files and repeated keys are errors."""
    text = read_text(path)
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise StoreError(
            f"{path} is not complete JSON ({error.msg}, line {error.lineno} column "
            f"{error.colno}); it may be cut short: write it again."
        ) from error
    except StoreError as error:
        raise StoreError(f"{path} {error}") from error


def read_toml(path: str | Path) -> dict[str, Any]:
    """The table in a TOML file."""
    text = read_text(path, limit=MAX_TOML)
    try:
        return parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise StoreError(f"{path} is not TOML: {error}.") from error
    except StoreError as error:
        raise StoreError(f"{path} {error}") from error


def write_json(path: str | Path, value: object) -> None:
    """Write a plain value or a dataclass as one line of JSON."""
    write_atomic(path, to_json(value) + b"\n")


def to_json(value: object, *, sort_keys: bool = False) -> bytes:
    try:
        text = json.dumps(
            value, allow_nan=False, ensure_ascii=False, default=_plain, sort_keys=sort_keys
        )
    except ValueError as error:
        raise ValueError(f"{error}; JSON has no NaN or infinity: write null instead.") from error
    return text.encode()


def csv_text(lines: Iterable[Iterable[object]]) -> str:
    """Lines as CSV."""
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue()


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(
        f"cannot store a {type(value).__name__}: {value!r}; give numbers, text, booleans, None, "
        "lists, mappings or dataclasses of them."
    )


# Writing, whole or not at all


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
                held = os.open(path, os.O_WRONLY)
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(held)


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
