"""Speed and memory of the package, each with the limit it promises to keep."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    what: str
    value: float
    unit: str
    limit: float | None = None
    """The largest value that is acceptable; None where nothing is promised."""

    @property
    def kept(self) -> bool:
        return self.limit is None or self.value <= self.limit


def best_of(work: Callable[[], object], repeats: int = 5) -> float:
    """Seconds of the fastest of several runs: other programs can only add time."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
