"""Random inputs of a case, as vocabulary indices: one row per input, every row of full length.

Rows are independent draws. Many cases ask a question that uniform inputs nearly always answer the
same way; their samplers make yes and no about equally likely. Most of those first make rows for
which the answer is yes, then `spoiled` changes some tokens in half of them: one, a few or all. So
near misses are as common as plain ones, and whatever the program counts takes many values.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from graphcircuits.rasp import Value

Rows = Int[Tensor, "batch pos"]
"""Indices into the vocabulary."""


def draw(sampler: str, vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """`n` inputs of `length` tokens from the named sampler, as indices into `vocab`."""
    if sampler not in SAMPLERS:
        raise ValueError(f"unknown sampler {sampler!r}; choose from {', '.join(SAMPLERS)}.")
    if n < 0:
        raise ValueError(f"n must be at least 0, got {n}.")
    return SAMPLERS[sampler](vocab, length, n, generator)


def uniform(vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """Every token uniform over the vocabulary, independent of the others."""
    return _integers(0, len(vocab), (n, length), generator)


def constant_or_distinct(vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """One token repeated, or distinct tokens (cycled where the vocabulary is shorter)."""
    constant = _integers(0, len(vocab), (n, 1), generator).expand(n, length)
    cycle = torch.arange(length, device=generator.device) % len(vocab)
    distinct = _orders(len(vocab), n, generator)[:, cycle]
    return torch.where(_coins(n, generator), constant, distinct)


def even_or_one_odd(vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """Distinct even numbers, in half of the rows with one of them replaced by an odd number."""
    evens = _where(vocab, lambda x: x % 2 == 0, "an even number").to(generator.device)
    odds = _where(vocab, lambda x: x % 2 == 1, "an odd number").to(generator.device)
    if len(evens) < length:
        raise ValueError(
            f"the vocabulary must hold {length} even numbers and an odd one, "
            f"got {len(evens)} even and {len(odds)} odd."
        )
    rows = evens[_orders(len(evens), n, generator)[:, :length]]
    odd = odds[_integers(0, len(odds), (n, 1), generator)]
    position = _integers(0, length, (n, 1), generator)
    return torch.where(_coins(n, generator), rows, rows.scatter(1, position, odd))


def subset(vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """Tokens of a random subset of the vocabulary, of any size: extremes and counts vary."""
    orders = _orders(len(vocab), n, generator)
    sizes = _integers(1, len(vocab) + 1, (n, 1), generator)
    chosen = torch.rand(n, length, generator=generator, device=generator.device) * sizes
    return orders.gather(1, chosen.long())


def sparse(vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """Tokens other than 0 at some random positions, how many being uniform; 0 elsewhere."""
    zero, others = _index(vocab, 0), _where(vocab, lambda x: x != 0, "a token other than 0")
    others = others.to(generator.device)
    drawn = others[_integers(0, len(others), (n, length), generator)]
    count = _integers(0, length + 1, (n, 1), generator)
    return torch.where(_orders(length, n, generator) < count, drawn, zero)


def one_hot(vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """A single 1 at a random position, 0 elsewhere."""
    zero, one = _index(vocab, 0), _index(vocab, 1)
    position = _integers(0, length, (n, 1), generator)
    return torch.where(torch.arange(length, device=generator.device) == position, one, zero)


def last_two_equal(vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """Uniform tokens, in half of the rows with the last one repeating the one before."""
    rows = _integers(0, len(vocab), (n, length), generator)
    repeated = torch.cat([rows[:, :-1], rows[:, -2:-1]], dim=1)
    return torch.where(_coins(n, generator), repeated, rows)


def ascending(vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """Rows that never decrease in vocabulary order, half of them spoiled."""
    rows = _integers(0, len(vocab), (n, length), generator).sort(dim=1).values
    return spoiled(rows, len(vocab), generator)


def descending(vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """Rows that never increase in vocabulary order, half of them spoiled."""
    return ascending(vocab, length, n, generator).flip(1)


def alternating(vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """Rows in which even and odd numbers alternate, half of them spoiled."""
    device = generator.device
    evens = _where(vocab, lambda x: x % 2 == 0, "an even number").to(device)
    odds = _where(vocab, lambda x: x % 2 == 1, "an odd number").to(device)
    even = evens[_integers(0, len(evens), (n, length), generator)]
    odd = odds[_integers(0, len(odds), (n, length), generator)]
    parity = torch.arange(length, device=device) + _integers(0, 2, (n, 1), generator)
    return spoiled(torch.where(parity % 2 == 0, even, odd), len(vocab), generator)


def palindrome(vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """Rows that read the same backwards, half of them spoiled."""
    half = _integers(0, len(vocab), (n, (length + 1) // 2), generator)
    rows = torch.cat([half, half[:, : length // 2].flip(1)], dim=1)
    return spoiled(rows, len(vocab), generator)


def doubled(vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """Rows whose second half repeats the first, half of them spoiled."""
    half = _integers(0, len(vocab), (n, (length + 1) // 2), generator)
    return spoiled(torch.cat([half, half], dim=1)[:, :length], len(vocab), generator)


def distinct(vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """Rows without a repeated token, half of them spoiled."""
    if len(vocab) < length:
        raise ValueError(f"the vocabulary must hold {length} tokens, got {len(vocab)}.")
    return spoiled(_orders(len(vocab), n, generator)[:, :length], len(vocab), generator)


def balanced_brackets(vocab: Sequence[Value], length: int, n: int, generator: Generator) -> Rows:
    """Balanced strings of '(' and ')', each as likely as any other, half of them spoiled."""
    opening, closing = _index(vocab, "("), _index(vocab, ")")
    if length % 2:
        raise ValueError(f"balanced brackets have an even length, got {length}.")
    # A shuffle with one '(' more than ')' has one rotation that stays above zero (the cycle
    # lemma): the one after its last minimum. Without its first '(' it is a balanced string.
    opens = _orders(length + 1, n, generator) <= length // 2
    level = torch.where(opens, 1, -1).cumsum(dim=1)
    start = length - level.flip(1).argmin(dim=1, keepdim=True) + 1
    rotation = (start + torch.arange(1, length + 1, device=generator.device)) % (length + 1)
    rows = torch.where(opens.gather(1, rotation), opening, closing)
    return spoiled(rows, len(vocab), generator)


def spoiled(rows: Rows, size: int, generator: Generator) -> Rows:
    """The rows with, in half of them, other tokens at one or more random positions."""
    n, length = rows.shape
    others = (rows + _integers(1, size, (n, length), generator)) % size
    count = _integers(1, length + 1, (n, 1), generator)
    changed = _orders(length, n, generator) < count
    return torch.where(changed & _coins(n, generator), others, rows)


SAMPLERS: dict[str, Callable[[Sequence[Value], int, int, Generator], Tensor]] = {
    "uniform": uniform,
    "constant-or-distinct": constant_or_distinct,
    "even-or-one-odd": even_or_one_odd,
    "subset": subset,
    "sparse": sparse,
    "one-hot": one_hot,
    "last-two-equal": last_two_equal,
    "ascending": ascending,
    "descending": descending,
    "alternating": alternating,
    "palindrome": palindrome,
    "doubled": doubled,
    "distinct": distinct,
    "balanced-brackets": balanced_brackets,
}


def _integers(low: int, high: int, shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Uniform integers from `low` up to and without `high`."""
    return torch.randint(low, high, shape, generator=generator, device=generator.device)


def _coins(n: int, generator: Generator) -> Bool[Tensor, "batch 1"]:
    return _integers(0, 2, (n, 1), generator).bool()


def _orders(size: int, n: int, generator: Generator) -> Int[Tensor, "batch size"]:
    """A random order of 0..size-1 in every row."""
    return torch.rand(n, size, generator=generator, device=generator.device).argsort(dim=1)


def _index(vocab: Sequence[Value], token: Value) -> int:
    if token not in vocab:
        raise ValueError(f"the vocabulary must hold {token!r}, got {tuple(vocab)}.")
    return list(vocab).index(token)


def _where(vocab: Sequence[Value], holds: Callable[[Value], bool], what: str) -> Int[Tensor, " i"]:
    fitting = [index for index, token in enumerate(vocab) if holds(token)]
    if not fitting:
        raise ValueError(f"the vocabulary must hold {what}, got {tuple(vocab)}.")
    return torch.tensor(fitting)
