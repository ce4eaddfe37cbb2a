"""How exactly masked runs multiply: what a step may give up for speed.

`full` computes in the subject's own dtype. `tf32` lets a GPU round the factors of float32 products
to 10 bits; everything else stays float32. `bfloat16` runs with weights, masks and buffers of 8
bits; losses, and the gradients that masks receive, are float32. `lab/benchmarks/masked_step.py`
measures the error of gradients.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PRECISIONS = ("full", "tf32", "bfloat16")


def check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}.")


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Products of float32 matrices by TF32, where that is asked for."""
    before = torch.get_float32_matmul_precision()
    if precision != "tf32" or before != "highest":
        yield
        return
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
