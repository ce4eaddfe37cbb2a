"""Values: what an input or a vocabulary may hold, in what order values stand, what equals what.

Equal values are one value, whatever their type: 1, True and 1.0 share a code. Those that look
different are kept beside it as twins, so that functions can be asked whether they tell them apart.
Numbers, bools and strings of numpy are taken as Python's.
"""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Value = Any
"""What stands at a position: a number, string, bool, tuple; anything hashable. None is no value."""
NumericValue = int | float
Input = Sequence[Value] | np.ndarray
"""Tokens in order: a list or tuple, a string of one-letter tokens, or an array with one axis."""
BOS = "BOS"
PAD = "PAD"


class RaspError(ValueError):
    """A program, or an input to one, that the language does not accept."""


def plain(value: Value) -> Value:
    """A scalar of numpy as the Python value that it stands for, anything else as it is."""
    if isinstance(value, np.generic):
        held = value.item()
        return float(held) if isinstance(held, np.floating) else held
    return value


def checked_input(xs: Input) -> list[Value]:
    """The tokens of one input."""
    array = isinstance(xs, np.ndarray) and xs.ndim == 1
    if not array and not isinstance(xs, Sequence):
        raise RaspError(f"the input must be a list or string of tokens, got {xs!r}.")
    return [plain(token) for token in xs]


def checked_length(max_seq_len: int) -> int:
    """The longest input, BOS counted."""
    try:
        length = operator.index(max_seq_len)
    except TypeError as error:
        raise RaspError(f"max_seq_len must be a whole number, got {max_seq_len!r}.") from error
    if length < 2:
        raise RaspError(
            f"max_seq_len counts the {BOS} token and must be at least 2, got {max_seq_len}."
        )
    return length


def checked_vocab(vocab: Iterable[Value]) -> tuple[Value, ...]:
    """The tokens in order; raises for a vocabulary that no transformer can have."""
    try:
        listed = [plain(token) for token in vocab]
    except TypeError as error:
        raise RaspError(
            f"the vocabulary must be a set or list of tokens, got {vocab!r}."
        ) from error
    try:
        distinct = sorted_values(listed)
    except TypeError as error:
        raise RaspError(f"the vocabulary holds a value that cannot be hashed: {error}.") from error
    if not distinct:
        raise RaspError("the vocabulary is empty: a program needs at least one token.")
    reserved = [token for token in (BOS, PAD, None) if token in distinct]
    if reserved:
        raise RaspError(
            f"the vocabulary holds {reserved}: {BOS}, {PAD} and None are reserved, rename them."
        )
    if any(token != token for token in distinct):
        raise RaspError("the vocabulary holds NaN, which equals nothing: take it out.")
    if len(listed) != len(distinct):
        repeated = [token for i, token in enumerate(listed) if token in listed[:i]]
        raise RaspError(f"the vocabulary holds equal tokens: {repeated}.")
    return distinct


def sorted_values(values: Iterable[Value]) -> tuple[Value, ...]:
    """Distinct values in their natural order, or by type and text where they have none."""
    distinct = list(dict.fromkeys(values))
    try:
        return tuple(sorted(distinct))
    except TypeError:
        return tuple(sorted(distinct, key=lambda value: (type(value).__name__, repr(value))))


def codes_of(values: Iterable[Value]) -> dict[Value, int]:
    """The number of each value."""
    return {value: code for code, value in enumerate(values)}


def twins_of(distinct: Iterable[Value], listed: Iterable[Value]) -> dict[Value, list[Value]]:
    """Values in `listed` that equal one in `distinct` but look different, such as True beside 1."""
    known = {value: [value] for value in distinct}
    for value in listed:
        if not any(_looks_like(value, other) for other in known[value]):
            known[value].append(value)
    return {value: forms[1:] for value, forms in known.items() if len(forms) > 1}


def _looks_like(x: Value, equal: Value) -> bool:
    same_type = type(x) is type(equal)
    return x is equal or (same_type and (isinstance(x, int | str) or repr(x) == repr(equal)))
