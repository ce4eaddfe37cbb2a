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

from graphcircuits.rasp.expression import RASPExpr, walk
from graphcircuits.rasp.language import (
    Aggregate,
    ConstantSelector,
    ConstantSOp,
    Full,
    Map,
    Select,
    Selector,
    SelectorAnd,
    SelectorNot,
    SelectorOr,
    SelectorValue,
    SelectorWidth,
    SequenceMap,
    SOp,
    indices,
    is_numerical,
    tokens,
)
from graphcircuits.rasp.values import Input, RaspError, Value, checked_input, plain


def evaluate(
    expr: RASPExpr,
    xs: Input,
    *,
    causal: bool = False,
    overrides: Mapping[SOp, Sequence[Value]] | None = None,
) -> list[Any]:
    """The value of `expr` on one input: a list for a sequence, rows of bools for a selector.

    `overrides` replaces the values of some sequence expressions before anything reads them.
    """
    given = checked_input(xs)
    length = len(given)
    values: dict[RASPExpr, list[Any]] = {tokens: given, indices: list(range(length))}
    patterns: dict[Selector, tuple[SelectorValue, SelectorValue]] = {}
    for sop, column in (overrides or {}).items():
        if len(column) != length:
            raise RaspError(
                f"{sop.name!r}: the override has {len(column)} values, the input {length}."
            )
        values[sop] = list(column)
    for node in walk(expr):
        if isinstance(node, Selector):
            patterns[node] = _pattern(node, values, patterns, length, causal)
            values[node] = patterns[node][0]
        elif node not in values:
            values[node] = _column(node, values, length)
    return values[expr]


def _column(node: RASPExpr, values: Mapping[RASPExpr, list[Any]], length: int) -> list[Any]:
    # What does not check its length may be shorter or longer than the input: the rest is cut off.
    match node:
        case Full():
            return [node.fill] * length
        case ConstantSOp():
            return _given(node, length)
        case Map():
            return [_call(node, node.f, x) for x in values[node.inner]]
        case SequenceMap():
            pairs = zip(values[node.fst], values[node.snd], strict=False)
            return [_call(node, node.f, x, y) for x, y in pairs]
        case SelectorWidth():
            return [sum(row) for row in values[node.selector]]
        case Aggregate():
            rows = values[node.selector]
            return [_aggregated(node, row, values[node.values]) for row in rows]
    raise _unknown(node)


def _pattern(
    node: Selector,
    values: Mapping[RASPExpr, list[Any]],
    patterns: Mapping[Selector, tuple[SelectorValue, SelectorValue]],
    length: int,
    causal: bool,
) -> tuple[SelectorValue, SelectorValue]:
    """The pairs that a selector selects, and those that it leaves out: what its negation selects.

    A pair with a None in it is neither, nor is one that causal masking hides.
    """
    match node:
        case Select():
            answers = [
                [
                    None if causal and k > q else _call(node, node.holds, key, query)
                    for k, key in enumerate(values[node.keys])
                ]
                for q, query in enumerate(values[node.queries])
            ]
        case ConstantSelector():
            answers = [
                [None if causal and k > q else selected for k, selected in enumerate(row)]
                for q, row in enumerate(_given(node, length))
            ]
        case SelectorAnd() | SelectorOr():
            both, either = operator.and_, operator.or_
            if isinstance(node, SelectorOr):
                both, either = either, both
            (fst, not_fst), (snd, not_snd) = patterns[node.fst], patterns[node.snd]
            return _elementwise(both, fst, snd), _elementwise(either, not_fst, not_snd)
        case SelectorNot():
            selected, left_out = patterns[node.inner]
            return left_out, selected
        case _:
            raise _unknown(node)
    return (
        [[x is True for x in row] for row in answers],
        [[x is False for x in row] for row in answers],
    )


def _unknown(node: RASPExpr) -> RaspError:
    return RaspError(
        f"{node.name!r} is a {type(node).__name__}, which the interpreter does not know."
    )


def _given(node: ConstantSOp | ConstantSelector, length: int) -> list[Any]:
    if node.check_length and len(node.value) != length:
        raise RaspError(
            f"{node.name!r}: it has {len(node.value)} values, the input {length}; "
            "check_length=False would cut off what is left over."
        )
    return list(node.value)


def _elementwise(
    combine: Callable[[bool, bool], bool], fst: SelectorValue, snd: SelectorValue
) -> SelectorValue:
    return [
        [combine(x, y) for x, y in zip(first, second, strict=False)]
        for first, second in zip(fst, snd, strict=False)
    ]


def _call(node: RASPExpr, function: Callable[..., Value], *args: Value) -> Value:
    if any(arg is None for arg in args):
        return None
    try:
        return plain(function(*args))
    except Exception as error:
        shown = ", ".join(map(repr, args))
        raise RaspError(
            f"{node.name!r}: its function raised {type(error).__name__}: {error} on ({shown})."
        ) from error


def _aggregated(node: Aggregate, row: Sequence[bool], values: Sequence[Value]) -> Value:
    selected = [value for chosen, value in zip(row, values, strict=False) if chosen]
    if not selected:
        return node.default
    numbers = all(isinstance(value, int | float) for value in selected)
    equal = all(value is selected[0] or value == selected[0] for value in selected)
    if equal and not (numbers and is_numerical(node)):
        return selected[0]
    if numbers:
        return sum(selected) / len(selected)
    raise RaspError(f"{node.name!r}: no mean of the values it selects: {selected}.")
