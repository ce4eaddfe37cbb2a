"""Speed and memory of the package, each with the limit it promises to keep."""

import argparse
import json
import time
from collections.abc import Callable, Iterable
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


def run_alone(measure: Callable[[str, int], Iterable[Measurement]], about: str | None) -> int:
    """The command line of a benchmark that takes a device and repeats; 1 if a limit is broken."""
    import torch

    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = list(measure(options.device, options.repeats))
    if options.json:
        print(json.dumps([vars(each) | {"kept": each.kept} for each in found], indent=1))
    else:
        for each in found:
            limit = "" if each.limit is None else f"  (limit {each.limit:g})"
            print(f"{each.value:10.3g} {each.unit:<4}{each.what}{limit}")
    return 0 if all(each.kept for each in found) else 1
