"""Values: what an input or a vocabulary may hold, in what order values stand, what equals what.

Equal values are one value, whatever their type: 1, True and 1.0 share a code. Those that look
different are kept beside it as twins, so that functions can be asked whether they tell them apart.
Numbers, bools and strings of numpy are taken as Python's.

Functions over values: comparisons by name, and those of fused expressions, which maps of maps and
joined selects compute. They nest as deep as a program does, so that calling them never recurses.
"""

import enum
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

T = TypeVar("T")
Value = Any
"""What stands at a position: a number, string, bool, tuple; anything hashable. None is no value."""
NumericValue = int | float
Input = Sequence[Value] | np.ndarray
"""Tokens in order: a list or tuple, a string of one-letter tokens, or an array with one axis."""
Predicate = Callable[[Value, Value], bool]
"""Whether a key (first) is selected by a query (second)."""
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


# --- functions ----------------------------------------------------------------------------------


class Comparison(enum.Enum):
    """The predicates of two values that have a name."""

    EQ = "=="
    NEQ = "!="
    LT = "<"
    LEQ = "<="
    GT = ">"
    GEQ = ">="
    TRUE = "True"
    FALSE = "False"

    def __call__(self, key: Value, query: Value) -> bool:
        if key is None or query is None:
            raise ValueError(f"{self.name} compares two values, got key {key!r}, query {query!r}.")
        return _COMPARISONS[self](key, query)


_COMPARISONS: dict[Comparison, Callable[[Value, Value], bool]] = {
    Comparison.EQ: operator.eq,
    Comparison.NEQ: operator.ne,
    Comparison.LT: operator.lt,
    Comparison.LEQ: operator.le,
    Comparison.GT: operator.gt,
    Comparison.GEQ: operator.ge,
    Comparison.TRUE: lambda key, query: True,
    Comparison.FALSE: lambda key, query: False,
}


@dataclass(frozen=True, eq=False, repr=False)
class Composition:
    """The function of two fused maps; None after the first stays None."""

    outer: Callable[[Value], Value]
    inner: Callable[[Value], Value]

    @property
    def chain(self) -> list[Callable[[Value], Value]]:
        """The functions of all maps that were fused, the last one first."""
        functions, last = [self.outer], self.inner
        while isinstance(last, Composition):
            functions.append(last.outer)
            last = last.inner
        return [*functions, last]

    def __call__(self, x: Value) -> Value:
        for function in reversed(self.chain):
            if x is None:
                return None
            x = function(x)
        return x


Constants = Mapping[Literal["key", "query"], Value]
"""Values that stand in for the key or the query of a predicate."""
Joint = Literal["and", "or", "not"]


class _Fused:
    """A predicate that is made of others."""

    def __call__(self, key: Value, query: Value) -> bool:
        return fold_predicate(
            self,
            lambda inner, fixed: bool(inner(fixed.get("key", key), fixed.get("query", query))),
            lambda joint, held: _JOINTS[joint](*held),
        )


@dataclass(frozen=True, eq=False, repr=False)
class Fixed(_Fused):
    """A predicate with a constant in place of its key, its query or both."""

    predicate: Predicate
    constants: Constants


@dataclass(frozen=True, eq=False, repr=False)
class Junction(_Fused):
    """Two predicates joined by `and` or `or`, or one with a `not`."""

    joint: Joint
    parts: tuple[Predicate, ...]


_JOINTS: dict[Joint, Callable[..., bool]] = {
    "and": operator.and_,
    "or": operator.or_,
    "not": operator.not_,
}


def fold_predicate(
    predicate: Predicate,
    leaf: Callable[[Predicate, Constants], T],
    join: Callable[[Joint, list[T]], T],
) -> T:
    """What the parts of a predicate give, the first one first, joined as they are."""
    results: list[T] = []
    stack: list[tuple[Any, Constants, bool]] = [(predicate, {}, False)]
    while stack:
        node, constants, ready = stack.pop()
        if ready:
            n = len(node.parts)
            results[-n:] = [join(node.joint, results[-n:])]
        elif isinstance(node, Junction):
            stack.append((node, constants, True))
            stack += [(inner, constants, False) for inner in reversed(node.parts)]
        elif isinstance(node, Fixed):
            stack.append((node.predicate, {**constants, **node.constants}, False))
        else:
            results.append(leaf(node, constants))
    return results[0]
