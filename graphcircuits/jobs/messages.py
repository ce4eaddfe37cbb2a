"""How a worker works on a job and tells of it, the same in a process and on a cluster.

1. `begin_worker` makes a process a worker: the threads it may use, the `Driver` it works for.
2. `told` works on one job. Everything that comes of it is a message: results, warnings, and one
   last word: done, out of memory, or the error that ended it.
"""

import copy
import errno
import os
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

Job = TypeVar("Job")


@dataclass(frozen=True)
class Message:
    kind: str
    """ready, found, warning, done, memory or error."""
    value: Any = None


@dataclass(frozen=True)
class Driver:
    """Whoever gives out the jobs: the words of its command, and the folder it was given in."""

    arguments: tuple[str, ...]
    folder: str

    @classmethod
    def here(cls) -> "Driver":
        return cls(tuple(sys.argv), str(Path.cwd()))


def begin_worker(driver: Driver, threads: int) -> None:
    """Compute with so many threads, with the command and the relative paths of the driver."""
    sys.argv = list(driver.arguments)
    with suppress(OSError):  # where that folder is not, only whole paths are any good
        os.chdir(driver.folder)
    torch.set_num_threads(threads)


def told(work: Callable[[Job], Iterable[object]], job: Job, known: int = 0) -> Iterator[Message]:
    """What comes of a job; the first results, as many as are known already, are not told again."""
    warned: list[Warning | str] = []

    def heard(message: Warning | str, *_: object, **__: object) -> None:
        warned.append(message)

    warnings.showwarning = heard
    last = Message("done")
    try:
        for number, found in enumerate(work(job)):
            yield from _taken(warned)
            if number >= known:
                yield Message("found", found)
    except Exception as error:  # noqa: BLE001  whoever gave out the job must hear of it
        memory = out_of_memory(error)
        last = Message("error", sendable(error)) if memory is None else Message("memory", memory)
    yield from _taken(warned)
    yield last


def _taken(warned: list[Warning | str]) -> Iterator[Message]:
    while warned:
        yield Message("warning", warned.pop(0))


def out_of_memory(error: Exception) -> str | None:
    """That memory was short, in words; None if the error says something else."""
    text = str(error).partition("\n")[0]
    told = isinstance(error, RuntimeError) and re.search("out of memory|allocate memory", text)
    short = isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    )
    return f"it ran out of memory ({text or type(error).__name__})" if told or short else None


def sendable(error: Exception) -> Exception:
    """The error if it can be sent to another process, else one with its words."""
    try:
        pickle.dumps(error)
        # As whoever receives it will make it.
        again = copy.copy(error)
    except Exception:  # noqa: BLE001  whatever it is, it cannot be sent
        again = None
    if type(again) is type(error) and str(again) == str(error):
        return error
    kind = next((kind for kind in (ValueError, OSError) if isinstance(error, kind)), RuntimeError)
    return kind(str(error) if kind is not RuntimeError else f"{type(error).__name__}: {error}")
