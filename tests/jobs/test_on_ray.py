"""Jobs on a Ray cluster of two nodes, which the tests start: the same results as anywhere, and
nothing lost with workers, drivers and memory."""

import errno
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphcircuits.cases.build import build
from graphcircuits.cases.orders import Order
from graphcircuits.jobs.on_ray import QUIET, OnRay
from graphcircuits.jobs.processes import Processes
from graphcircuits.jobs.runner import InProcess, Resources
from tests.jobs.letters import Job, work
from tests.jobs.squares import squares, traces
from tests.kills import BUILD, TRAIN, all_bytes, but_measured
from tests.shell import Command

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a cluster of two nodes with one CPU each."""
    os.environ.update(QUIET)
    from ray.cluster_utils import Cluster

    small: Any = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    try:
        cluster.add_node(**small)
        cluster.wait_for_nodes()
        assert cluster.address is not None
        yield cluster.address
    finally:
        cluster.shutdown()


@pytest.fixture(scope="module")
def on_ray(address: str) -> Iterator[OnRay]:
    runner = OnRay(address)
    yield runner
    runner.close()


def driver(folder: Path, address: str, count: int, seconds: float) -> subprocess.Popen[str]:
    """A driver in a process of its own."""
    words = [folder, address, count, seconds]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.jobs.squares", *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def wait_for(folder: Path, word: str, count: int) -> None:
    end = time.monotonic() + 60
    while sum(x.startswith(word) for x in traces(folder)) < count:
        assert time.monotonic() < end, f"{word} is not there: {traces(folder)}"
        time.sleep(0.02)


def test_all_runners_leave_the_same_store(on_ray: OnRay, tmp_path: Path) -> None:
    stores = []
    for name, runner in (("here", InProcess()), ("two", Processes(2)), ("ray", on_ray)):
        folder = tmp_path / name
        folder.mkdir()
        assert sorted(squares(folder, runner, 20)) == list(range(20))
        assert Counter(traces(folder)) == Counter(
            f"{word}-{x}" for word in ("begun", "done") for x in range(20)
        )
        assert squares(folder, runner, 20) == []
        stores.append(all_bytes(folder / "store"))
    assert len(stores[0]) == 20
    assert stores[0] == stores[1] == stores[2]


def test_commands_make_the_same_on_a_cluster(
    on_ray: OnRay, address: str, command: Command, tmp_path: Path
) -> None:
    """Fleets, subjects to be read and seeds are jobs; of bench, seconds and memory differ."""
    (tmp_path / "settings.toml").write_text(TRAIN)
    trained = ["--cases", "ib-7,ib-2", "--config", "settings.toml", "--seeds", "2"]
    compared = ["--methods", "eap", "--cases", "ib-3,ib-36", "--pairs", "4"]
    orders = [Order("ib-3"), Order("ib-36")]
    for number, where in enumerate(([], ["--ray", address])):
        folder = tmp_path / str(number)
        folder.mkdir()
        runner = on_ray if where else InProcess()
        list(build(orders, folder / "built", BUILD, command="build", runner=runner))
        for words in (
            ["train", *trained, "--out", "mine.safetensors", *where],
            ["bench", *compared, "--out", "bench", *where],
        ):
            done = command(*words)
            assert done.code == 0, done.err
        Path("mine.safetensors").rename(folder / "mine.safetensors")
        Path("bench").rename(folder / "bench")
    one, two = tmp_path / "0", tmp_path / "1"
    assert len(all_bytes(one / "built")) == 2
    assert all_bytes(one / "built") == all_bytes(two / "built")
    assert (one / "mine.safetensors").read_bytes() == (two / "mine.safetensors").read_bytes()
    assert but_measured(one / "bench") == but_measured(two / "bench")
    (run,) = one.glob("bench/runs/eap/ib-3-*.json")
    again = two / run.relative_to(one)
    assert json.loads(run.read_text())["command"] == json.loads(again.read_text())["command"]


def lost(job: Job, given: int, what: str) -> tuple[list[str], None]:
    return [f"{job[1]}: {what}"], None


def test_a_worker_killed_in_mid_job_is_replaced(on_ray: OnRay, tmp_path: Path) -> None:
    jobs = [(tmp_path, "ab!c"), (tmp_path, "d"), (tmp_path, "~")]
    with pytest.warns(UserWarning, match="about so much"):
        found = list(on_ray.run(work, jobs, retries=1))
    assert sorted(found) == sorted("ab!cd~")
    assert traces(tmp_path) == ["died"]


def test_what_is_lost_for_good_is_told_and_the_others_go_on(on_ray: OnRay, tmp_path: Path) -> None:
    jobs = [(tmp_path, text) for text in ("x", "m", "a")]
    assert sorted(on_ray.run(work, jobs, lost=lost, retries=1)) == [
        "a",
        "m: it ran out of memory (no room for m)",
        "x: its worker was killed or crashed",
    ]
    with pytest.raises(ChildProcessError, match="a job was lost: its worker was killed or"):
        list(on_ray.run(work, jobs[:1]))


def test_an_error_ends_it_all(on_ray: OnRay, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No space left on device: 'a\.json'") as caught:
        list(on_ray.run(work, [(tmp_path, "f")]))
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(ValueError, match="a job wants 1 CPUs and 1 GPUs, and no machine of the"):
        list(on_ray.run(work, [(tmp_path, "a")], resources=Resources(gpus=1.0)))


def test_both_nodes_work(on_ray: OnRay, tmp_path: Path) -> None:
    found = Counter(on_ray.run(work, [(tmp_path, "n")] * 2))
    assert found.pop("n") == 2
    assert len(found) == 2


def test_a_killed_driver_is_followed_by_one_that_goes_on(
    address: str, on_ray: OnRay, tmp_path: Path
) -> None:
    with driver(tmp_path, address, 8, 0.3) as first:
        wait_for(tmp_path, "done", 2)
        first.kill()
    finished = {word for word in traces(tmp_path) if word.startswith("done")}
    made = squares(tmp_path, on_ray, 8, 0.3)
    counted = Counter(traces(tmp_path))
    assert {f"{x}.json" for x in range(8)} == set(all_bytes(tmp_path / "store"))
    assert 1 <= len(made) < 8
    assert all(counted[word] == 1 for word in finished)
    # Two nodes worked on no more than two when it was killed.
    assert sum(counted[f"begun-{x}"] for x in range(8)) <= 8 + 2
