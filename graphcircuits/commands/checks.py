"""What is wrong with what was typed, said before any work starts and all at once.

Each check returns the problems it finds, in the words of the command line; `refuse` raises them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from graphcircuits.commands.output import reason

MOST_PAIRS = 1_000_000
MOST_SEEDS = 1000
LARGEST_SEED = 2**32 - 1


def refuse(*problems: Iterable[str]) -> None:
    """Raise the problems as one error, if there are any."""
    texts = [problem for some in problems for problem in some]
    if texts:
        raise ValueError("; ".join(texts) + ".")


def when(wrong: object, problem: str) -> list[str]:
    """The problem, where it is one."""
    return [problem] if wrong else []


def in_range(
    flag: str, value: int | float | None, least: int | float, most: int | float | None = None
) -> list[str]:
    """A number from `least` to `most`, both included; None is nothing to check."""
    if value is None:
        return []
    if least <= value <= (math.inf if most is None else most):
        return _finite(flag, value)
    words = f"at least {least}" if most is None else f"in {least}..{most}"
    return _finite(flag, value) or [f"{flag} must be {words}, got {value}"]


def above(flag: str, value: int | float | None, bound: int | float) -> list[str]:
    """A number larger than `bound`; None is nothing to check."""
    if value is None or bound < value < math.inf:
        return []
    return _finite(flag, value) or [f"{flag} must be above {bound}, got {value}"]


def _finite(flag: str, value: int | float) -> list[str]:
    return [] if math.isfinite(value) else [f"{flag} must be a finite number, got {value}"]


def seed_range(seed: int) -> list[str]:
    return in_range("--seed", seed, 0, LARGEST_SEED)


def one_of(flag: str, value: str | None, known: Sequence[str]) -> list[str]:
    """A word among those known; None is nothing to check."""
    wrong = value is not None and value not in known
    return when(wrong, f"{flag} must be one of {', '.join(known)}, got {value!r}")


def distinct(flag: str, names: Sequence[str]) -> list[str]:
    twice = dict.fromkeys(name for name in names if names.count(name) > 1)
    return when(twice, f"{flag} names {', '.join(twice)} twice")


def suffix(flag: str, path: Path | None, *known: str) -> list[str]:
    wrong = path is not None and path.suffix not in known
    return when(wrong, f"{flag} must end in {', '.join(known)}, got {path}")


def device_there(device: str) -> list[str]:
    """A device that PyTorch can compute on here."""
    from graphcircuits.adapters.load import find_device

    try:
        find_device(device)
    except ValueError as error:
        return [f"--{str(error).removeprefix('the ').rstrip('.')}"]
    return []


def known_dtype(dtype: str | None) -> list[str]:
    """A dtype that a subject computes in."""
    from graphcircuits.adapters.load import DTYPES

    return one_of("--dtype", dtype, DTYPES)


def writable(files: Mapping[str, Path | None], *, read: Iterable[Path | None] = ()) -> list[str]:
    """Files that can be written, by their flags: all different, and none of those that are read."""
    problems: list[str] = []
    inputs = {path.resolve() for path in read if path is not None}
    taken: dict[Path, str] = {}
    for flag, path in files.items():
        if path is None:
            continue
        try:
            resolved = path.resolve()
            if resolved.is_dir():
                problems.append(f"{flag} must be a file, but {path} is a folder")
            elif _there(resolved) and not resolved.is_file():
                problems.append(f"{flag} must be a file, but {path} is a device or a pipe")
            elif resolved in inputs:
                problems.append(f"{flag} would overwrite {path}, which is read")
            elif resolved in taken:
                problems.append(f"{taken[resolved]} and {flag} are the same file, {path}")
            else:
                problems += _unwritable(flag, resolved.parent)
        except OSError as error:
            problems.append(f"{flag} cannot be written: {path}: {reason(error)}")
        else:
            taken.setdefault(resolved, flag)
    return problems


def writable_folders(folders: Mapping[str, Path | None]) -> list[str]:
    """Folders that files can be written into, there or yet to be made."""
    given = {flag: folder for flag, folder in folders.items() if folder is not None}
    return [problem for flag, folder in given.items() for problem in _unwritable(flag, folder)]


def _there(path: Path) -> bool:
    """`Path.exists`; what cannot be looked at is an error, which it hides from Python 3.14 on."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _unwritable(flag: str, folder: Path) -> list[str]:
    """Why the folder, or else the nearest one above it that exists, takes no file."""
    from tempfile import TemporaryFile

    try:
        folder = folder.resolve()
        while not _there(folder):
            folder = folder.parent
        if not folder.is_dir():
            return [f"{flag} cannot be written: {folder} is not a folder"]
        # Trying is the only sure test: permissions say nothing about read-only or remote disks.
        with TemporaryFile(dir=folder):
            return []
    except OSError as error:
        return [f"{flag} cannot be written: {folder}: {reason(error)}"]
