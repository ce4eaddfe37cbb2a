"""Small jobs that leave traces, and a driver for them that can be killed.

python -m tests.jobs.squares FOLDER ADDRESS COUNT SECONDS
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from graphcircuits.io.store import save_artifact
from graphcircuits.jobs.command import driver_command
from graphcircuits.jobs.on_ray import OnRay
from graphcircuits.jobs.runner import Runner


def note(folder: Path, word: str) -> None:
    """One more line about what happened, by whichever process."""
    traces = os.open(folder / "traces", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(traces, f"{word}\n".encode())
    os.close(traces)


def traces(folder: Path) -> list[str]:
    path = folder / "traces"
    return path.read_text().split() if path.exists() else []


def square(folder: Path, seconds: float, number: int) -> Iterator[int]:
    """The number, once its square is an artifact."""
    note(folder, f"begun-{number}")
    time.sleep(seconds)
    save_artifact(
        _path(folder, number),
        kind="square",
        config={"number": number},
        seed=None,
        meta={"square": number**2},
        command=driver_command(),
    )
    note(folder, f"done-{number}")
    yield number


def squares(folder: Path, runner: Runner, count: int, seconds: float = 0.0) -> Sequence[int]:
    """Make what is missing; the numbers whose squares were made by this driver."""
    missing = (number for number in range(count) if not _path(folder, number).exists())
    return list(runner.run(partial(square, folder, seconds), missing, retries=1))


def _path(folder: Path, number: int) -> Path:
    return folder / "store" / f"{number}.json"


if __name__ == "__main__":
    made = squares(Path(sys.argv[1]), OnRay(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    sys.stdout.write(f"{len(made)}\n")
