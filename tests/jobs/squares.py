"""Small jobs that leave traces, and a driver for them that can be killed.

python -m tests.jobs.squares FOLDER ADDRESS COUNT SECONDS
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from graphcircuits.io.store import save_artifact
from graphcircuits.jobs.command import driver_command
from graphcircuits.jobs.on_ray import OnRay
from graphcircuits.jobs.runner import Runner
from graphcircuits.jobs.store import JobStore, run_missing


def note(folder: Path, word: str) -> None:
    """One more line about what happened, by whichever process."""
    traces = os.open(folder / "traces", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(traces, f"{word}\n".encode())
    os.close(traces)


def traces(folder: Path) -> list[str]:
    path = folder / "traces"
    return path.read_text().split() if path.exists() else []


def square(folder: Path, seconds: float, bundle: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """The square of each number, as an artifact."""
    for id, number in bundle.items():
        note(folder, f"begun-{id}")
        time.sleep(seconds)
        path = JobStore(folder / "store").path(id)
        save_artifact(
            path,
            kind="square",
            config={"number": number},
            seed=None,
            meta={"square": number**2},
            command=driver_command(),
        )
        note(folder, f"done-{id}")
        yield id, number**2


def squares(folder: Path, runner: Runner, count: int, seconds: float = 0.0) -> Sequence[str]:
    """Make what is missing; the ids of what was made by this driver."""
    bundles = [{f"n{number}": number} for number in range(count)]
    store = JobStore(folder / "store")
    work = partial(square, folder, seconds)
    return [id for id, _ in run_missing(store, runner, work, bundles, retries=1, poll=0.1)]


if __name__ == "__main__":
    made = squares(Path(sys.argv[1]), OnRay(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    sys.stdout.write(f"{len(made)}\n")
