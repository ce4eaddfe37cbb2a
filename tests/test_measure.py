"""Time and memory of calls whose needs are known."""

import sys
import time

import pytest
import torch

from graphcircuits.measure import measure


def test_the_value_comes_back_with_its_time() -> None:
    measured = measure(lambda: time.sleep(0.05) or "done")
    assert measured.value == "done"
    assert 0.05 <= measured.seconds < 5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process")
def test_the_peak_is_that_of_the_call() -> None:
    size = 64 * 2**20

    def allocate() -> None:
        torch.ones(size, dtype=torch.uint8)

    small = measure(lambda: None)
    if small.peak_bytes is None:
        pytest.skip("this kernel does not let a process reset its peak")
    # Twice: memory that the first call freed must count again.
    for _ in range(2):
        peak = measure(allocate).peak_bytes
        assert peak is not None
        assert size * 0.9 <= peak <= size * 1.5
    assert small.peak_bytes < size / 2
