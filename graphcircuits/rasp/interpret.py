"""The reference interpreter: what a program means, one input at a time, in plain Python.

It is the twin that the table evaluator and the compiler are tested against. Three rules settle
what RASP leaves open:

- None in gives None out for maps and combinations, fused maps included.
- A selector never selects a pair whose key or query is None. `~` keeps to that: it negates the
  predicates.
- A numerical aggregate gives the mean. A categorical one gives the value that all it selects share,
  the value itself; over different numbers it is their mean too.

With causal masking a selector sees keys at positions up to the query's own.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphcircuits.rasp.language import (
    Aggregate,
    Full,
    Map,
    RaspError,
    RASPExpr,
    Select,
    SelectorAnd,
    SelectorNot,
    SelectorOr,
    SelectorValue,
    SelectorWidth,
    SequenceMap,
    SOp,
    Value,
    indices,
    is_numerical,
    negated,
    tokens,
    walk,
)


def evaluate(
    expr: RASPExpr,
    xs: Sequence[Value],
    *,
    causal: bool = False,
    overrides: Mapping[SOp, Sequence[Value]] | None = None,
) -> list[Any]:
    """The value of `expr` on one input: a list for a sequence, rows of bools for a selector.

    `overrides` replaces the values of some sequence expressions before anything reads them.
    """
    if isinstance(xs, str) or not isinstance(xs, Sequence):
        raise RaspError(f"the input must be a list of tokens, got {xs!r}.")
    length = len(xs)
    values: dict[RASPExpr, Any] = {tokens: list(xs), indices: list(range(length))}
    for sop, given in (overrides or {}).items():
        if len(given) != length:
            raise RaspError(
                f"{sop.name!r}: the override has {len(given)} values, the input {length}."
            )
        values[sop] = list(given)
    for node in walk(expr):
        if node not in values:
            values[node] = _value_of(node, values, length, causal)
    return values[expr]


def _value_of(
    node: RASPExpr, values: Mapping[RASPExpr, Any], length: int, causal: bool
) -> list[Any]:
    match node:
        case Full():
            return [node.fill] * length
        case Map():
            return [_call(node, node.f, x) for x in values[node.inner]]
        case SequenceMap():
            pairs = zip(values[node.fst], values[node.snd], strict=True)
            return [_call(node, node.f, x, y) for x, y in pairs]
        case Select():
            keys, queries = values[node.keys], values[node.queries]
            return [
                [
                    (not causal or k <= q) and bool(_call(node, node.predicate, key, query))
                    for k, key in enumerate(keys)
                ]
                for q, query in enumerate(queries)
            ]
        case SelectorAnd():
            return _elementwise(operator.and_, values[node.fst], values[node.snd])
        case SelectorOr():
            return _elementwise(operator.or_, values[node.fst], values[node.snd])
        case SelectorNot():
            return _negation(node.inner, values, length, causal)
        case SelectorWidth():
            return [sum(row) for row in values[node.selector]]
        case Aggregate():
            rows = values[node.selector]
            return [_aggregated(node, row, values[node.values]) for row in rows]
    raise RaspError(
        f"{node.name!r} is a {type(node).__name__}, which the interpreter does not know."
    )


def _negation(
    node: RASPExpr, values: Mapping[RASPExpr, Any], length: int, causal: bool
) -> list[Any]:
    """The pairs that `node` leaves out, with the negation pushed down to the predicates."""
    match node:
        case Select():
            return _value_of(negated(node), values, length, causal)
        case SelectorNot():
            return values[node.inner]
        case SelectorAnd() | SelectorOr():
            combine = operator.or_ if isinstance(node, SelectorAnd) else operator.and_
            return _elementwise(
                combine,
                _negation(node.fst, values, length, causal),
                _negation(node.snd, values, length, causal),
            )
    raise RaspError(f"{node.name!r} is a {type(node).__name__}, which has no negation.")


def _elementwise(
    combine: Callable[[bool, bool], bool], fst: SelectorValue, snd: SelectorValue
) -> SelectorValue:
    return [
        [combine(x, y) for x, y in zip(first, second, strict=True)]
        for first, second in zip(fst, snd, strict=True)
    ]


def _call(node: RASPExpr, function: Callable[..., Value], *args: Value) -> Value:
    if any(arg is None for arg in args):
        return None
    try:
        return function(*args)
    except Exception as error:
        shown = ", ".join(map(repr, args))
        raise RaspError(
            f"{node.name!r}: its function raised {type(error).__name__}: {error} on ({shown})."
        ) from error


def _aggregated(node: Aggregate, row: Sequence[bool], values: Sequence[Value]) -> Value:
    selected = [value for chosen, value in zip(row, values, strict=True) if chosen]
    if not selected:
        return node.default
    numbers = all(isinstance(value, int | float) for value in selected)
    equal = all(value is selected[0] or value == selected[0] for value in selected)
    if equal and not (numbers and is_numerical(node)):
        return selected[0]
    if numbers:
        return sum(selected) / len(selected)
    raise RaspError(f"{node.name!r}: no mean of the values it selects: {selected}.")
