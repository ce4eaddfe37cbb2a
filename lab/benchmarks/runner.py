"""Twenty small jobs in process, in processes and on Ray: the same store, and how fast.

A job localizes a circuit with EAP-IG on a shipped subject, prompts drawn by the seed of the job,
and keeps the scores in a store. Ray clusters are started here, with one CPU per node, and are timed
when every worker has worked; processes live as long as the jobs, so their start is in their time.
All runners take turns, several times over: the table has the median of each, and the throughput of
two workers by that of one within each turn.

python -m lab.benchmarks.runner [--jobs 20] [--repeats 5] [--steps 200]
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import torch

from graphcircuits.compare.selection import Unit
from graphcircuits.io.store import save_artifact
from graphcircuits.jobs.on_ray import QUIET, OnRay
from graphcircuits.jobs.processes import Processes
from graphcircuits.jobs.runner import InProcess, Runner
from graphcircuits.methods import localize

CASE = "ib-3"


def job(folder: Path, steps: int, seed: int) -> Iterator[int]:
    """The process that localized a circuit, once the scores are in the folder."""
    unit = Unit.of(CASE)
    result = localize(unit.subject(None), unit.case.pairs(64, seed=seed), "eap-ig", steps=steps)
    save_artifact(
        folder / f"{CASE}-{seed}.json",
        kind="runner-benchmark",
        config={"case": CASE, "seed": seed},
        seed=seed,
        meta={"scores": result.scores.tolist()},
        command="python -m lab.benchmarks.runner",
    )
    yield os.getpid()


def worked(runner: Runner, folder: Path, jobs: int, steps: int) -> set[int]:
    """Work on jobs; the processes that did."""
    return set(runner.run(partial(job, folder, steps), range(jobs)))


def seconds(runner: Runner, folder: Path, workers: int, jobs: int, steps: int) -> float:
    """Once all workers of a cluster have worked; processes are started anew."""
    if isinstance(runner, OnRay):
        tried = 0
        while len(worked(runner, folder / f"first-{tried}", 2 * workers, steps)) < workers:
            tried += 1
    start = time.perf_counter()
    worked(runner, folder / "timed", jobs, steps)
    return time.perf_counter() - start


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """The address of a Ray cluster on this machine."""
    os.environ.update(QUIET)
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    found = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            found.add_node(**small)  # pyright: ignore[reportArgumentType]
        found.wait_for_nodes()
        assert found.address is not None
        yield found.address
    finally:
        found.shutdown()


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.json")}


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200, help="of EAP-IG: how long a job takes")
    words = parser.parse_args(given)
    torch.set_num_threads(1)  # as workers do
    times: dict[str, list[float]] = {}
    stores: list[dict[str, bytes]] = []
    with ExitStack() as stack, tempfile.TemporaryDirectory() as place:
        one, two = (stack.enter_context(cluster(nodes)) for nodes in (1, 2))
        runners: dict[str, tuple[int, Callable[[], Runner]]] = {
            "in process": (1, InProcess),
            "1 process": (1, partial(Processes, 1)),
            "2 processes": (2, partial(Processes, 2)),
            "Ray, 1 worker": (1, partial(OnRay, one)),
            "Ray, 2 workers": (2, partial(OnRay, two)),
        }
        for turn in range(words.repeats):
            for name, (workers, make) in runners.items():
                folder = Path(place, f"{name}-{turn}")
                with closing(make()) as runner:
                    taken = seconds(runner, folder, workers, words.jobs, words.steps)
                times.setdefault(name, []).append(taken)
                stores.append(content(folder / "timed"))
    same = all(store == stores[0] for store in stores) and len(stores[0]) == words.jobs
    print(f"{words.jobs} jobs, {words.repeats} turns; the stores are {'' if same else 'NOT '}equal")
    for name, found in times.items():
        rate = words.jobs / median(found)
        print(f"{name:16} {median(found):6.2f} s  {rate:6.2f} jobs per second")
    for name, (many, single) in {
        "2 processes by 1": ("2 processes", "1 process"),
        "2 Ray workers by 1": ("Ray, 2 workers", "Ray, 1 worker"),
    }.items():
        ratios = sorted(a / b for a, b in zip(times[single], times[many], strict=True))
        print(f"{name:20} {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main()
