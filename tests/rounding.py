"""Arithmetic of another machine: `pytest -p tests.rounding` changes the last bit of what is summed.

Which bits a processor rounds away depends on its registers, on threads and on where in a tensor a
number stands. Here they do on every machine: a product, a sum or a function such as exp comes out
one unit in the last place higher, lower or as it is, depending on its place and on how many numbers
come out with it. Whole numbers and halves of them are left as they are, since sums of such numbers
are exact everywhere. The same computation done twice still gives the same bits.
"""

import threading
from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
ROUNDED = {
    aten._log_softmax,
    aten._softmax,
    aten.addmm,
    aten.baddbmm,
    aten.bmm,
    aten.cumsum,
    aten.dot,
    aten.erf,
    aten.exp,
    aten.gelu,
    aten.linalg_vector_norm,
    aten.log,
    aten.log_sigmoid_forward,
    aten.logsumexp,
    aten.mean,
    aten.mm,
    aten.mv,
    aten.native_layer_norm,
    aten.rsqrt,
    aten.sigmoid,
    aten.silu,
    aten.softplus,
    aten.sum,
    aten.tanh,
    aten.var,
}


def rounded(value: Any) -> Any:
    """A result with other last bits, if it is a tensor of 32 or 64 bit numbers."""
    if isinstance(value, tuple):
        return tuple(map(rounded, value))
    if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.float64):
        return value
    places = torch.arange(value.numel(), device=value.device).view(value.shape)
    units = (40503 * places // 128 + value.numel()) % 3 - 1
    exact = ((2 * value).frac() == 0) | ~value.isfinite()
    return value + (value * (units * torch.finfo(value.dtype).eps).to(value)).masked_fill(exact, 0)


class Rounding(TorchDispatchMode):
    """While it is active, PyTorch rounds as another machine might."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        return rounded(value) if func.overloadpacket in ROUNDED else value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """Every test is called so, with the threads that it starts; fixtures were made before it."""
    run = threading.Thread.run

    def rounding(thread: threading.Thread) -> None:
        with Rounding():
            run(thread)

    with pytest.MonkeyPatch.context() as patched, Rounding():
        patched.setattr(threading.Thread, "run", rounding)
        return (yield)
