"""The RASP language: sequence expressions, and selectors of positions.

A program is an expression graph that ends in one sequence expression (`SOp`). Names and call
signatures are those of Tracr, so that a program written for it runs with only its import changed.

What the expressions mean is in `interpret`, which calling one goes to.
"""

import enum
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Value = Any
"""What stands at a position: a number, string, bool, tuple; anything hashable. None is no value."""
Predicate = Callable[[Value, Value], bool]
"""Whether a key (first) is selected by a query (second)."""
SelectorValue = list[list[bool]]
"""One row a query, one column a key."""


class RaspError(ValueError):
    """A program, or an input to one, that the language does not accept."""


class Encoding(enum.Enum):
    """How a sequence lies in the residual stream: a direction a value, or one direction in all."""

    CATEGORICAL = "categorical"
    NUMERICAL = "numerical"


ExprT = TypeVar("ExprT", bound="RASPExpr")


class RASPExpr:
    """A node of a program. Compared by identity: a shared expression is one variable."""

    default_name = "expression"
    inputs: tuple[str, ...] = ()
    """Attributes that hold the direct inputs, in the order that numbers variables and heads."""

    def __init__(self) -> None:
        self._name: str | None = None

    @property
    def name(self) -> str:
        """The name given with `named`, or one that says the kind of expression."""
        return self._name or self.default_name

    @property
    def children(self) -> tuple["RASPExpr", ...]:
        """Direct inputs."""
        return tuple(getattr(self, name) for name in self.inputs)

    def named(self: ExprT, name: str) -> ExprT:
        """Set the name, in place, and return the expression. `tokens` and `indices` keep theirs."""
        self._name = name
        return self

    def __call__(self, xs: Sequence[Value]) -> list[Any]:
        """The expression on one input, without causal masking."""
        from graphcircuits.rasp.interpret import evaluate

        return evaluate(self, xs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def _require(kind: type["RASPExpr"], owner: str, **given: object) -> None:
    for role, value in given.items():
        if not isinstance(value, kind):
            what = "a sequence expression" if kind is SOp else "a selector"
            raise RaspError(f"{owner}: {role} must be {what}, got {value!r}.")


def _require_function(owner: str, function: object) -> None:
    if not callable(function) or isinstance(function, RASPExpr):
        raise RaspError(f"{owner}: expected a function, got {function!r}.")


def _require_constant(owner: str, value: object) -> None:
    if isinstance(value, RASPExpr):
        raise RaspError(f"{owner}: expected a constant, got the expression {value!r}.")


# --- sequences -----------------------------------------------------------------------------------


def _operator(function: Callable[[Value, Value], Value]) -> Callable[["SOp", object], "SOp"]:
    def method(self: "SOp", other: object) -> "SOp":
        if isinstance(other, SOp):
            return SequenceMap(function, self, other)
        _require_constant("an operator on a sequence", other)
        return Map(lambda x: function(x, other), self)

    return method


class SOp(RASPExpr):
    """A sequence expression: a value at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.encoding = Encoding.CATEGORICAL

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
    """What the embedding writes. One shared object each, so nothing about it can be changed."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.default_name = name

    def named(self: ExprT, name: str) -> ExprT:
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


@dataclass(frozen=True)
class Composition:
    """The function of two fused maps; None after the first stays None."""

    outer: Callable[[Value], Value]
    inner: Callable[[Value], Value]

    def __call__(self, x: Value) -> Value:
        y = self.inner(x)
        return None if y is None else self.outer(y)


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
        _require_constant("Full", fill)
        self.fill = fill


class Aggregate(SOp):
    """The mean of the values that each position selects; the default where it selects nothing."""

    default_name = "aggregate"
    inputs = ("selector", "values")

    def __init__(self, selector: "Selector", values: SOp, default: Value = None) -> None:
        super().__init__()
        _require(Selector, "Aggregate", selector=selector)
        _require(SOp, "Aggregate", values=values)
        _require_constant("Aggregate", default)
        self.selector = selector
        self.values = values
        self.default = default


class SelectorWidth(SOp):
    """How many positions each position selects."""

    default_name = "selector_width"
    inputs = ("selector",)

    def __init__(self, selector: "Selector") -> None:
        super().__init__()
        _require(Selector, "SelectorWidth", selector=selector)
        self.selector = selector


SOpT = TypeVar("SOpT", bound=SOp)


def numerical(sop: SOpT) -> SOpT:
    """Mark a sequence of numbers as numerically encoded, in place, and return it."""
    return _encoded(sop, Encoding.NUMERICAL)


def categorical(sop: SOpT) -> SOpT:
    """Mark a sequence as categorically encoded (the default), in place, and return it."""
    return _encoded(sop, Encoding.CATEGORICAL)


def _encoded(sop: SOpT, encoding: Encoding) -> SOpT:
    _require(SOp, encoding.value, argument=sop)
    if isinstance(sop, _Primitive) and encoding is Encoding.NUMERICAL:
        raise RaspError(
            f"{sop.name!r} is always categorical; "
            f"for a numerical copy write numerical(Map(lambda x: x, {sop.name}))."
        )
    sop.encoding = encoding
    return sop


def is_numerical(sop: SOp) -> bool:
    """Whether the sequence is numerically encoded."""
    return sop.encoding is Encoding.NUMERICAL


def is_categorical(sop: SOp) -> bool:
    """Whether the sequence is categorically encoded."""
    return sop.encoding is Encoding.CATEGORICAL


# --- selectors -----------------------------------------------------------------------------------


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


class Selector(RASPExpr):
    """Which keys every query selects: an attention pattern of zeros and ones."""

    def __and__(self, other: "Selector") -> "Selector":
        return _merged(self, other, lambda x, y: x and y) or SelectorAnd(self, other)

    def __or__(self, other: "Selector") -> "Selector":
        return _merged(self, other, lambda x, y: x or y) or SelectorOr(self, other)

    def __invert__(self) -> "Selector":
        return negated(self) if isinstance(self, Select) else SelectorNot(self)


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


def negated(select: Select) -> Select:
    """The select with its predicate turned around; None is still never selected."""
    return Select(select.keys, select.queries, lambda k, q: not select.predicate(k, q))


def _merged(fst: Selector, snd: object, combine: Callable[[bool, bool], bool]) -> Select | None:
    """One select that stands for both, where they share keys and queries.

    A `Full` on one side fits any sequence on the other: its value goes into the predicate.
    """
    if not isinstance(fst, Select) or not isinstance(snd, Select):
        return None
    keys = _common(fst.keys, snd.keys)
    queries = _common(fst.queries, snd.queries)
    if keys is None or queries is None:
        return None
    first, second = _baked(fst, keys, queries), _baked(snd, keys, queries)
    return Select(keys, queries, lambda k, q: combine(first(k, q), second(k, q)))


def _common(x: SOp, y: SOp) -> SOp | None:
    if x is y or isinstance(y, Full):
        return x
    return y if isinstance(x, Full) else None


def _baked(select: Select, keys: SOp, queries: SOp) -> Predicate:
    def predicate(key: Value, query: Value) -> bool:
        if isinstance(select.keys, Full) and select.keys is not keys:
            key = select.keys.fill
        if isinstance(select.queries, Full) and select.queries is not queries:
            query = select.queries.fill
        return select.predicate(key, query)

    return predicate


# --- walking a program ---------------------------------------------------------------------------


def walk(expr: RASPExpr) -> Iterator[RASPExpr]:
    """Every expression under `expr`, inputs before users, each once."""
    if not isinstance(expr, RASPExpr):
        raise RaspError(f"a program is a RASP expression, got {expr!r}.")
    done: set[RASPExpr] = set()
    open_: set[RASPExpr] = set()
    stack: list[tuple[RASPExpr, bool]] = [(expr, False)]
    while stack:
        node, leaving = stack.pop()
        if leaving:
            open_.discard(node)
            done.add(node)
            yield node
        elif node not in done:
            open_.add(node)
            stack.append((node, True))
            for child in node.children:
                if not isinstance(child, RASPExpr):
                    raise RaspError(f"{node.name!r} reads {child!r}, which is no RASP expression.")
                if child in open_:
                    raise RaspError(f"{child.name!r} reads its own value: a program has no cycles.")
                if child not in done:
                    stack.append((child, False))
