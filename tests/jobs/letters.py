"""Jobs of letters, some of which end badly. Every worker imports this, so it imports little."""

import errno
import os
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.jobs.squares import note, traces

Job = tuple[Path, str]


def work(job: Job) -> Iterator[Any]:
    """Letters, each with its meaning."""
    folder, text = job
    for letter in text:
        match letter:
            case "!" if "died" not in traces(folder):
                note(folder, "died")
                time.sleep(0.5)  # what was found before is on its way
                os.kill(os.getpid(), signal.SIGKILL)
            case "x":
                os.kill(os.getpid(), signal.SIGKILL)
            case "m":
                raise MemoryError("no room for m")
            case "~":
                warnings.warn("about so much", stacklevel=1)
            case "n":
                import ray

                time.sleep(1)
                yield ray.get_runtime_context().get_node_id()
            case "f":
                raise OSError(errno.ENOSPC, "No space left on device", "a.json")
        yield letter
