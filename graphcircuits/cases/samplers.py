"""Random inputs of a case, as vocabulary indices: one row per input, every row of full length.

Rows are independent draws. Two of InterpBench's cases ask a question whose answer is nearly always
no on uniform inputs; their samplers make yes and no equally likely.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from graphcircuits.cases.balanced import BALANCED
from graphcircuits.rasp import Value


def draw(
    sampler: str, vocab: Sequence[Value], length: int, n: int, generator: Generator
) -> Int[Tensor, "batch pos"]:
    """`n` inputs of `length` tokens from the named sampler, as indices into `vocab`."""
    if sampler not in SAMPLERS:
        raise ValueError(f"unknown sampler {sampler!r}; choose from {', '.join(SAMPLERS)}.")
    if n < 0:
        raise ValueError(f"n must be at least 0, got {n}.")
    return SAMPLERS[sampler](vocab, length, n, generator)


def uniform(
    vocab: Sequence[Value], length: int, n: int, generator: Generator
) -> Int[Tensor, "batch pos"]:
    """Every token uniform over the vocabulary, independent of the others."""
    return _below(len(vocab), (n, length), generator)


def constant_or_distinct(
    vocab: Sequence[Value], length: int, n: int, generator: Generator
) -> Int[Tensor, "batch pos"]:
    """One token repeated, or distinct tokens (cycled where the vocabulary is shorter)."""
    constant = _below(len(vocab), (n, 1), generator).expand(n, length)
    cycle = torch.arange(length, device=generator.device) % len(vocab)
    distinct = _shuffles(len(vocab), n, generator)[:, cycle]
    return torch.where(_coins(n, generator), constant, distinct)


def even_or_one_odd(
    vocab: Sequence[Value], length: int, n: int, generator: Generator
) -> Int[Tensor, "batch pos"]:
    """Distinct even numbers, in half of the rows with one of them replaced by an odd number."""
    device = generator.device
    evens = torch.tensor([i for i, x in enumerate(vocab) if x % 2 == 0], device=device)
    odds = torch.tensor([i for i, x in enumerate(vocab) if x % 2 == 1], device=device)
    if len(evens) < length or len(odds) == 0:
        raise ValueError(
            f"the vocabulary must hold {length} even numbers and an odd one, "
            f"got {len(evens)} even and {len(odds)} odd."
        )
    rows = evens[_shuffles(len(evens), n, generator)[:, :length]]
    odd = odds[_below(len(odds), (n, 1), generator)]
    place = _below(length, (n, 1), generator)
    return torch.where(_coins(n, generator), rows, rows.scatter(1, place, odd))


SAMPLERS: dict[str, Callable[[Sequence[Value], int, int, Generator], Tensor]] = {
    "uniform": uniform,
    "constant-or-distinct": constant_or_distinct,
    "even-or-one-odd": even_or_one_odd,
    **BALANCED,
}


def _below(high: int, shape: tuple[int, ...], generator: Generator) -> Tensor:
    return torch.randint(high, shape, generator=generator, device=generator.device)


def _coins(n: int, generator: Generator) -> Bool[Tensor, "batch 1"]:
    return _below(2, (n, 1), generator).bool()


def _shuffles(size: int, n: int, generator: Generator) -> Int[Tensor, "batch size"]:
    """A random order of 0..size-1 in every row."""
    return torch.rand(n, size, generator=generator, device=generator.device).argsort(dim=1)
