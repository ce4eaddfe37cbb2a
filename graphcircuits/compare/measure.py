"""Wall time and peak memory of one call.

On a GPU the peak is that of PyTorch's allocator. On a CPU it is the rise of the process's resident
memory, which only Linux can tell: freed memory is handed back first (`malloc_trim`), so that what
an earlier call left behind is counted again, then the kernel's high-water mark is reset and read.
"""

import ctypes
import gc
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch

Returned = TypeVar("Returned")


@dataclass(frozen=True)
class Measured(Generic[Returned]):
    """What a call returned, and what it took."""

    value: Returned
    seconds: float
    peak_bytes: int | None
    """Above what was in use when the call began; None where the system cannot tell."""


def measure(call: Callable[[], Returned], device: torch.device | str = "cpu") -> Measured[Returned]:
    """Call once and measure; work that a GPU still has to do is waited for."""
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    gc.collect()
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    else:
        before = _reset_resident_peak()
    start = time.perf_counter()
    value = call()
    if on_gpu:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated(device) if on_gpu else _resident("VmHWM")
    rise = None if before is None or peak is None else max(0, peak - before)
    return Measured(value, seconds, rise)


def _reset_resident_peak() -> int | None:
    """Resident bytes now, with the high-water mark set to them; None where it cannot be set."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    try:
        # 5 is the kernel's word for: forget the highest resident size.
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _resident("VmRSS")


def _resident(field: str) -> int | None:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    match = re.search(rf"{field}:\s+(\d+) kB", status)
    return None if match is None else 1024 * int(match.group(1))
