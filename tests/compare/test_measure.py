"""Time and memory of calls whose needs are known."""

import time
from pathlib import Path

import torch

from graphcircuits.compare.measure import measure


def test_the_value_comes_back_with_its_time() -> None:
    measured = measure(lambda: time.sleep(0.05) or "done")
    assert measured.value == "done"
    assert 0.05 <= measured.seconds < 5


def system_tells_the_peak() -> bool:
    """Whether a process may reset its peak here: on Linux, if the kernel lets it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def test_the_peak_is_that_of_the_call() -> None:
    size = 64 * 2**20

    def allocate() -> None:
        torch.ones(size, dtype=torch.uint8)

    # Twice: memory that the first call freed must count again.
    small, *large = (measure(call).peak_bytes for call in (lambda: None, allocate, allocate))
    if not system_tells_the_peak():
        assert [small, *large] == [None, None, None]
        return
    assert small is not None
    assert small < size / 2
    for peak in large:
        assert peak is not None
        assert size * 0.9 <= peak <= size * 1.5
