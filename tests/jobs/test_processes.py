"""Work in several processes: what it finds, what it loses, and that none is left behind."""

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

from graphcircuits.jobs.processes import Processes, in_order

Job = tuple[str, int]


def work(job: Job) -> Iterator[str]:
    """Yield the letters from a place on; three of them have a meaning of their own."""
    text, start = job
    for letter in text[start:]:
        if letter == "!":
            os.kill(os.getpid(), signal.SIGKILL)
        if letter == "?":
            raise ValueError("what was asked?")
        if letter == "~":
            warnings.warn("about so much", stacklevel=1)
        yield f"{letter}{torch.get_num_threads()}"


def lost(job: Job, found: int, what: str) -> tuple[list[str], Job | None]:
    text, start = job
    rest = start + found + 1
    return [f"{text[start + found]} {what}"], (text, rest) if rest < len(text) else None


@pytest.mark.slow
def test_all_is_found_but_what_a_process_died_of() -> None:
    jobs = [("ab~", 0), ("c!d", 0), ("e", 0)]
    with pytest.warns(UserWarning, match="about so much"):
        found = list(Processes(2).run(work, jobs, lost=lost))
    died = "! its process was killed by signal 9"
    assert sorted(found) == sorted(["a1", "b1", "~1", "c1", died, "d1", "e1"])
    assert found.index("a1") < found.index("b1")
    assert active_children() == []


def once(job: tuple[Path, str]) -> Iterator[str]:
    """Letters; the process dies of the first !, and memory is short at an m."""
    died, text = job
    for letter in text:
        if letter == "!" and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if letter == "m":
            raise MemoryError("no room for m")
        yield letter


@pytest.mark.slow
def test_a_killed_process_is_replaced_and_nothing_is_given_twice(tmp_path: Path) -> None:
    def gone(job: tuple[Path, str], given: int, what: str) -> tuple[list[str], None]:
        return [f"{given} {what}"], None

    jobs = [(tmp_path / "died", text) for text in ("ab!c", "dm", "e")]
    found = list(Processes(1).run(once, jobs, lost=gone, retries=1))
    memory = "1 it ran out of memory (no room for m)"
    assert sorted(found) == sorted(["a", "b", "!", "c", "d", memory, "e"])


@pytest.mark.slow
def test_an_error_ends_it_all() -> None:
    with pytest.raises(ValueError, match="what was asked"):
        list(Processes(1).run(work, [("a?b", 0)], lost=lost))
    assert active_children() == []


class Unstartable:
    """Ends the process that reads it."""

    def __call__(self, job: Job) -> Iterator[str]:
        yield ""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (3,)


@pytest.mark.slow
def test_processes_that_cannot_start_are_no_endless_loop() -> None:
    with pytest.raises(ChildProcessError, match="ended with exit code 3 before it had anything to"):
        list(Processes(1).run(Unstartable(), [("a", 0)], lost=lost))
    assert active_children() == []


def slow_seven(number: int) -> int:
    """The square; that of 7 takes longer than the others."""
    if number < 0:
        raise ValueError("there is nothing below 0")
    time.sleep(0.3 if number == 7 else 0.002)
    return number**2


@pytest.mark.slow
def test_results_come_in_order_and_ahead_of_who_asks() -> None:
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    results = in_order(2, slow_seven, numbers(), ahead=4)
    assert next(results) == 0
    so_far = 0
    while so_far < len(taken):  # while nobody asks, some more are computed
        so_far = len(taken)
        time.sleep(0.2)
    assert 4 < so_far < 1000
    assert list(results) == [number**2 for number in range(1, 1000)]
    assert active_children() == []


@pytest.mark.slow
def test_errors_and_callers_who_stop_end_what_is_computed_ahead() -> None:
    with pytest.raises(ValueError, match="there is nothing below 0"):
        list(in_order(2, slow_seven, [1, -1, 2], ahead=2))
    results = in_order(2, slow_seven, range(1000), ahead=2)
    assert next(results) == 0
    results.close()
    assert active_children() == []


def test_one_process_computes_when_asked() -> None:
    taken: list[int] = []
    results = in_order(1, lambda number: taken.append(number) or number, iter(range(3)), ahead=2)
    assert next(results) == 0
    assert taken == [0]


KILLED = """
import os
import time
from graphcircuits.jobs.processes import Processes

def forever(job):
    yield os.getpid()
    time.sleep(1000)

if __name__ == "__main__":
    print(next(Processes(1).run(forever, [0])), flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_no_worker_outlives_a_driver_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    run = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, env=environment)
    assert run.returncode == -9
    worker = Path("/proc", run.stdout.decode().strip(), "stat")
    end = time.monotonic() + 10
    while worker.exists() and worker.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end, "still running"
        time.sleep(0.05)


@pytest.mark.slow
def test_workers_do_not_hear_an_interrupt() -> None:
    results = Processes(1).run(work, [("ab", 0)])
    assert next(results) == "a1"
    (worker,) = active_children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGINT)
    assert list(results) == ["b1"]
