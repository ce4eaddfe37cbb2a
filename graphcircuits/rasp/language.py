"""The RASP language: sequence expressions, and selectors of positions.

A program is an expression graph that ends in one sequence expression (`SOp`). Names and call
signatures are those of Tracr, so that a program written for it runs with only its import changed;
docs/rasp.md lists what differs.

What the expressions mean is in `interpret`, which calling one goes to.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from graphcircuits.rasp.expression import Encoding, ExprT, RASPExpr
from graphcircuits.rasp.values import (
    Comparison,
    Composition,
    Fixed,
    Joint,
    Junction,
    Predicate,
    RaspError,
    Value,
    plain,
)

SelectorValue = list[list[bool]]
"""One row per query, one column per key."""


def _require(kind: type["RASPExpr"], owner: str, **given: object) -> None:
    for role, value in given.items():
        if not isinstance(value, kind):
            what = "a sequence expression" if kind is SOp else "a selector"
            raise RaspError(f"{owner}: {role} must be {what}, got {value!r}.")


def _require_function(owner: str, function: object) -> None:
    if not callable(function) or isinstance(function, RASPExpr):
        raise RaspError(f"{owner}: expected a function, got {function!r}.")


def _constant(owner: str, value: Value) -> Value:
    if isinstance(value, RASPExpr):
        raise RaspError(f"{owner}: expected a constant, got the expression {value!r}.")
    return plain(value)


# --- sequences -----------------------------------------------------------------------------------


def _operator(function: Callable[[Value, Value], Value]) -> Callable[["SOp", object], "SOp"]:
    def method(self: "SOp", other: object) -> "SOp":
        if isinstance(other, SOp):
            return SequenceMap(function, self, other)
        constant = _constant("an operator on a sequence", other)
        return Map(lambda x: function(x, constant), self)

    return method


class SOp(RASPExpr):
    """A sequence expression: a value at every position."""

    @property
    def encoding(self) -> Encoding:
        """The one chosen with `numerical` or `categorical`; categorical where none was."""
        return self._annotations.get("encoding", Encoding.CATEGORICAL)

    @property
    def annotations(self) -> Mapping[str, Any]:
        return MappingProxyType({**super().annotations, "encoding": self.encoding})

    # With a number of numpy on the left, numpy would otherwise take the sequence for an array.
    __array_ufunc__ = None
    __hash__ = object.__hash__

    # A constant on the other side makes a map, a sequence a combination.
    def __eq__(self, other: object) -> "SOp":  # pyright: ignore[reportIncompatibleMethodOverride]
        return _operator(operator.eq)(self, other)

    def __ne__(self, other: object) -> "SOp":  # pyright: ignore[reportIncompatibleMethodOverride]
        return _operator(operator.ne)(self, other)

    __lt__ = _operator(operator.lt)
    __le__ = _operator(operator.le)
    __gt__ = _operator(operator.gt)
    __ge__ = _operator(operator.ge)
    __add__ = _operator(operator.add)
    __sub__ = _operator(operator.sub)
    __mul__ = _operator(operator.mul)
    __truediv__ = _operator(operator.truediv)
    __and__ = _operator(lambda x, y: x and y)
    __or__ = _operator(lambda x, y: x or y)
    __radd__ = _operator(lambda x, constant: constant + x)
    __rsub__ = _operator(lambda x, constant: constant - x)
    __rmul__ = _operator(lambda x, constant: constant * x)
    __rtruediv__ = _operator(lambda x, constant: constant / x)
    __rand__ = _operator(lambda x, constant: constant and x)
    __ror__ = _operator(lambda x, constant: constant or x)

    def __invert__(self) -> "SOp":
        return Map(operator.not_, self)

    def __bool__(self) -> bool:
        raise RaspError(
            f"{self.name!r} is a sequence and has no truth value of its own; "
            "write & | ~ instead of and, or, not, and `is` instead of == to compare expressions."
        )


class _Primitive(SOp):
    """What the embedding writes: one object each, in one encoding, of which there is no copy."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.default_name = self._fixed_label = name

    def copy(self: ExprT) -> ExprT:
        return self

    def annotated(self, **annotations: Any) -> SOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Itself; where it is to be numerical, a map that gives the same values as numbers."""
        if annotations.get("encoding") is Encoding.NUMERICAL:
            return Map(lambda x: x, self).annotated(**{"name": self.name, **annotations})
        return self


tokens: SOp = _Primitive("tokens")
"""The input itself."""
indices: SOp = _Primitive("indices")
"""The position of every token, from 0."""


class Map(SOp):
    """A function of one sequence, position by position. A map of a map is one map."""

    default_name = "map"
    inputs = ("inner",)

    def __init__(self, f: Callable[[Value], Value], inner: SOp, simplify: bool = True) -> None:
        super().__init__()
        _require(SOp, "Map", inner=inner)
        _require_function("Map", f)
        if simplify and isinstance(inner, Map):
            f, inner = Composition(f, inner.f), inner.inner
        self.f = f
        self.inner = inner


class SequenceMap(SOp):
    """A function of two sequences, position by position."""

    default_name = "sequence_map"
    inputs = ("fst", "snd")

    def __init__(self, f: Callable[[Value, Value], Value], fst: SOp, snd: SOp) -> None:
        super().__init__()
        _require(SOp, type(self).__name__, fst=fst, snd=snd)
        _require_function(type(self).__name__, f)
        self.f = f
        self.fst = fst
        self.snd = snd


class LinearSequenceMap(SequenceMap):
    """`fst_fac * fst + snd_fac * snd` of two numerical sequences."""

    default_name = "linear_sequence_map"

    def __init__(self, fst: SOp, snd: SOp, fst_fac: float | int, snd_fac: float | int) -> None:
        super().__init__(lambda x, y: fst_fac * x + snd_fac * y, fst, snd)
        self.fst_fac = fst_fac
        self.snd_fac = snd_fac


class Full(SOp):
    """The same value at every position."""

    default_name = "full"

    def __init__(self, fill: Value) -> None:
        super().__init__()
        self.fill = _constant("Full", fill)


class ConstantSOp(SOp):
    """Given values, one per position, for trying out an expression; it has no transformer."""

    default_name = "constant_sop"

    def __init__(self, value: Sequence[Value], check_length: bool = True) -> None:
        super().__init__()
        self.value = [_constant("ConstantSOp", each) for each in value]
        self.check_length = check_length


class Aggregate(SOp):
    """The mean of the values that each position selects; the default where it selects nothing."""

    default_name = "aggregate"
    inputs = ("selector", "values")

    def __init__(
        self,
        selector: "Selector",
        values: SOp | None = None,
        default: Value = None,
        *,
        sop: SOp | None = None,
    ) -> None:
        super().__init__()
        if values is not None and sop is not None:
            raise RaspError("Aggregate: `sop` is another name for `values`; give one of them.")
        values = sop if values is None else values
        _require(Selector, "Aggregate", selector=selector)
        _require(SOp, "Aggregate", values=values)
        assert values is not None
        self.selector = selector
        self.values = values
        self.default = _constant("Aggregate", default)

    @property
    def sop(self) -> SOp:
        """Tracr's name for `values`."""
        return self.values


class SelectorWidth(SOp):
    """How many positions each position selects."""

    default_name = "selector_width"
    inputs = ("selector",)

    def __init__(self, selector: "Selector") -> None:
        super().__init__()
        _require(Selector, "SelectorWidth", selector=selector)
        self.selector = selector


SOpT = TypeVar("SOpT", bound=SOp)


def sop_not(sop: SOp) -> SOp:
    """True where the sequence holds something that counts as false."""
    return ~sop


def numerical(sop: SOpT) -> SOpT:
    """A copy of a sequence of numbers, numerically encoded."""
    return _encoded(sop, Encoding.NUMERICAL)


def categorical(sop: SOpT) -> SOpT:
    """A copy of a sequence, categorically encoded, which is the default."""
    return _encoded(sop, Encoding.CATEGORICAL)


def _encoded(sop: SOpT, encoding: Encoding) -> SOpT:
    _require(SOp, encoding.value, argument=sop)
    return sop.annotated(encoding=encoding)


def get_encoding(sop: SOp) -> Encoding:
    """How the sequence is encoded."""
    return sop.encoding


def is_numerical(sop: SOp) -> bool:
    """Whether the sequence is numerically encoded."""
    return sop.encoding is Encoding.NUMERICAL


def is_categorical(sop: SOp) -> bool:
    """Whether the sequence is categorically encoded."""
    return sop.encoding is Encoding.CATEGORICAL


# --- selectors -----------------------------------------------------------------------------------


class Selector(RASPExpr):
    """Which keys every query selects: an attention pattern of zeros and ones."""

    def __and__(self, other: "Selector") -> "Selector":
        return selector_and(self, other)

    def __or__(self, other: "Selector") -> "Selector":
        return selector_or(self, other)

    def __invert__(self) -> "Selector":
        return selector_not(self)


class Select(Selector):
    """Every query selects the keys for which `predicate(key, query)` holds."""

    default_name = "select"
    inputs = ("keys", "queries")

    def __init__(self, keys: SOp, queries: SOp, predicate: Predicate) -> None:
        super().__init__()
        _require(SOp, "Select", keys=keys, queries=queries)
        _require_function("Select", predicate)
        self.keys = keys
        self.queries = queries
        self.predicate = predicate

    def holds(self, key: Value, query: Value) -> bool:
        """Whether the query selects the key, neither being None."""
        return bool(self.predicate(key, query))


class _SelectorPair(Selector):
    inputs = ("fst", "snd")

    def __init__(self, fst: Selector, snd: Selector) -> None:
        super().__init__()
        _require(Selector, type(self).__name__, fst=fst, snd=snd)
        self.fst = fst
        self.snd = snd


class SelectorAnd(_SelectorPair):
    """Pairs that both selectors select."""

    default_name = "selector_and"


class SelectorOr(_SelectorPair):
    """Pairs that at least one selector selects."""

    default_name = "selector_or"


class SelectorNot(Selector):
    """Pairs that the selector does not select, but never a pair with a None in it."""

    default_name = "selector_not"
    inputs = ("inner",)

    def __init__(self, inner: Selector) -> None:
        super().__init__()
        _require(Selector, "SelectorNot", inner=inner)
        self.inner = inner


class ConstantSelector(Selector):
    """Given rows, one per query, for trying out an expression; it has no transformer."""

    default_name = "constant_selector"

    def __init__(self, value: SelectorValue, check_length: bool = True) -> None:
        super().__init__()
        self.value = [[bool(selected) for selected in row] for row in value]
        self.check_length = check_length


def selector_not(inner: Selector, simplify: bool = True) -> Selector:
    """Pairs that are not selected; a select stays one, with its predicate turned around."""
    if simplify and isinstance(inner, Select):
        return Select(inner.keys, inner.queries, Junction("not", (inner.predicate,)))
    return SelectorNot(inner)


def selector_and(fst: Selector, snd: Selector, simplify: bool = True) -> Selector:
    """Pairs that both select; one select where they share keys and queries."""
    merged = _merged(fst, snd, "and") if simplify else None
    return merged or SelectorAnd(fst, snd)


def selector_or(fst: Selector, snd: Selector, simplify: bool = True) -> Selector:
    """Pairs that at least one selects; one select where they share keys and queries."""
    merged = _merged(fst, snd, "or") if simplify else None
    return merged or SelectorOr(fst, snd)


def _merged(fst: Selector, snd: object, joint: Joint) -> Select | None:
    """One select that stands for both, where they share keys and queries.

    A `Full` on one side fits any sequence on the other: its value goes into the predicate.
    """
    if not isinstance(fst, Select) or not isinstance(snd, Select):
        return None
    keys = _common(fst.keys, snd.keys)
    queries = _common(fst.queries, snd.queries)
    if keys is None or queries is None:
        return None
    parts = (_fixed(fst, keys, queries), _fixed(snd, keys, queries))
    return Select(keys, queries, Junction(joint, parts))


def _common(x: SOp, y: SOp) -> SOp | None:
    if x is y or isinstance(y, Full):
        return x
    return y if isinstance(x, Full) else None


def _fixed(select: Select, keys: SOp, queries: SOp) -> Predicate:
    constants: dict[Literal["key", "query"], Value] = {}
    if isinstance(select.keys, Full) and select.keys is not keys:
        constants["key"] = select.keys.fill
    if isinstance(select.queries, Full) and select.queries is not queries:
        constants["query"] = select.queries.fill
    return Fixed(select.predicate, constants) if constants else select.predicate


length: SOp = SelectorWidth(Select(tokens, tokens, Comparison.TRUE)).named("length")
"""How many tokens the input has; under causal masking, how many up to here."""
length._fixed_label = "length"
