"""Functions of fused expressions, as values: what maps of maps and joined selects compute.

They nest as deep as a program does, so that calling them never recurses.
"""

import enum
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from graphcircuits.rasp.values import Value

T = TypeVar("T")
Predicate = Callable[[Value, Value], bool]
"""Whether a key (first) is selected by a query (second)."""


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


@dataclass(frozen=True, eq=False, repr=False)
class Fixed:
    """A predicate with a constant in place of its key, its query or both."""

    predicate: Predicate
    constants: Constants

    def __call__(self, key: Value, query: Value) -> bool:
        return _holds(self, key, query)


@dataclass(frozen=True, eq=False, repr=False)
class Junction:
    """Two predicates joined by `and` or `or`, or one with a `not`."""

    joint: Joint
    parts: tuple[Predicate, ...]

    def __call__(self, key: Value, query: Value) -> bool:
        return _holds(self, key, query)


_JOINTS: dict[Joint, Callable[..., bool]] = {
    "and": operator.and_,
    "or": operator.or_,
    "not": operator.not_,
}


def _holds(predicate: Predicate, key: Value, query: Value) -> bool:
    return fold_predicate(
        predicate,
        lambda part, fixed: bool(part(fixed.get("key", key), fixed.get("query", query))),
        lambda joint, held: _JOINTS[joint](*held),
    )


def fold_predicate(
    predicate: Predicate,
    leaf: Callable[[Predicate, Constants], T],
    join: Callable[[Joint, list[T]], T],
) -> T:
    """What the parts of a predicate give, the first one first, joined as they are."""
    found: list[T] = []
    stack: list[tuple[Any, Constants, bool]] = [(predicate, {}, False)]
    while stack:
        part, constants, ready = stack.pop()
        if ready:
            n = len(part.parts)
            found[-n:] = [join(part.joint, found[-n:])]
        elif isinstance(part, Junction):
            stack.append((part, constants, True))
            stack += [(inner, constants, False) for inner in reversed(part.parts)]
        elif isinstance(part, Fixed):
            stack.append((part.predicate, {**constants, **part.constants}, False))
        else:
            found.append(leaf(part, constants))
    return found[0]
