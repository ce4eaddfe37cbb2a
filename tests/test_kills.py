"""A few kills of every long command; `make kills` is the same with a hundred."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_what_was_killed_and_resumed_equals_what_ran_through() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kills", "--kills", "8", "--seed", "1"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    counts = ["build: 2", "corpus: 1", "bench: 1", "train: 1", "train, Ctrl-C: 1", "sweep: 1"]
    counts += ["language: 1", "localize: 1"]
    assert [line.split(" kills")[0] for line in lines] == counts
    assert all("equal to those of the unbroken run" in line for line in lines)
