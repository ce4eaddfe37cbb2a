"""Work in several processes: what it finds, what it loses, and that none is left behind."""

import os
import signal
import warnings
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

from graphcircuits.jobs.processes import Processes

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
