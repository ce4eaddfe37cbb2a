"""Calling the functions of a program: what they give is checked, and what is unfit is named."""

import math
from collections.abc import Callable, Iterable, Sequence

from graphcircuits.rasp.expression import RASPExpr
from graphcircuits.rasp.language import (
    ConstantSelector,
    ConstantSOp,
    Map,
    Select,
    SequenceMap,
    is_numerical,
)
from graphcircuits.rasp.values import Value, plain

MAX_WEIGHTS = 2**27
"""Weights of the largest transformer that is written: 1 GiB of them in double precision."""


class Unfit(Exception):
    """One expression has a problem; its users are passed over."""


class BoundedFunction:
    """A function to tabulate, which raises as soon as no transformer has room for its table.

    A combination has one hidden unit per pair, connected with what it reads; a categorical sequence
    has one direction per value, which can be read out from every other.
    """

    def __init__(self, sop: Map | SequenceMap, sizes: Sequence[int]) -> None:
        self.function = sop.f
        self.sizes = sizes
        combines = isinstance(sop, SequenceMap) and sop.fst is not sop.snd
        self.most_units = MAX_WEIGHTS // (2 * sum(sizes)) if combines else math.inf
        self.most_values = math.inf if is_numerical(sop) else math.isqrt(MAX_WEIGHTS)
        self.units = 0
        self.values: set[Value] = set()

    def __call__(self, *args: Value) -> Value:
        value = image(self.function, args)
        if value is not None:
            self.units += 1
            self.values.add(value)
            if self.units > self.most_units:
                raise self._too_large(f"{self.most_units:,} hidden units")
            if len(self.values) > self.most_values:
                raise self._too_large(f"{self.most_values:,} directions")
        return value

    def _too_large(self, need: str) -> Unfit:
        return Unfit(
            f"its {' x '.join(f'{size:,}' for size in self.sizes)} inputs need more than {need}, "
            f"which no transformer of {MAX_WEIGHTS:,} weights has; "
            "use fewer tokens, positions or values"
        )


def unknown(node: RASPExpr) -> Unfit:
    """Why a kind of expression has no transformer."""
    if isinstance(node, ConstantSOp | ConstantSelector):
        return Unfit(
            "it is given for one input only, which the interpreter can run; "
            "to compile it, make it from `indices`"
        )
    return Unfit(f"it is a {type(node).__name__}, which the compiler does not know")


def predicate_value(select: Select, key: Value, query: Value) -> bool:
    """Whether the query selects the key."""
    try:
        return select.holds(key, query)
    except Exception as error:
        raise Unfit(
            f"its predicate raised {type(error).__name__}: {error} on key {key!r}, query {query!r}"
        ) from error


def image(function: Callable[..., Value], args: tuple[Value, ...]) -> Value:
    """The function's value; None where it raises an arithmetic error: such inputs are skipped."""
    try:
        value = plain(function(*args))
    except ArithmeticError:
        return None
    except Exception as error:
        raise Unfit(
            f"its function raised {type(error).__name__}: {error} on {shown(args)}"
        ) from error
    return checked_value(value, f"on {shown(args)} its function gave")


def checked_value(value: Value, where: str) -> Value:
    """The value, if it can stand at a position."""
    try:
        hash(value)
    except TypeError as error:
        raise Unfit(f"{where} {value!r}, which is no hashable value") from error
    if isinstance(value, RASPExpr):
        raise Unfit(f"{where} {value!r}, an expression where a value is due")
    if value is not None and value != value:
        raise Unfit(f"{where} NaN, which equals nothing, itself included")
    return value


def shown(args: Iterable[Value]) -> str:
    """Arguments as text."""
    return f"({', '.join(map(repr, args))})"
