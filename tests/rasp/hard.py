"""Programs that are easy to compile wrongly, with vocabularies: defaults at BOS, None, numbers."""

import math
from collections.abc import Callable

import numpy as np

from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Full,
    LinearSequenceMap,
    Map,
    Select,
    SelectorAnd,
    SelectorNot,
    SelectorOr,
    SelectorWidth,
    SequenceMap,
    SOp,
    Value,
    indices,
    numerical,
    tokens,
)

ALL = Select(tokens, tokens, Comparison.TRUE)
SAME = Select(tokens, tokens, Comparison.EQ)
BEFORE = Select(indices, indices, Comparison.LT)
PREVIOUS = Select(indices, indices, lambda key, query: key == query - 1)
NEXT = Select(indices, indices, lambda key, query: key == query + 1)


def letters(x: Value) -> Value:
    return {"a": 1, "b": -2.5, "c": 0}[x]


def defaults(at: SOp) -> SOp:
    """Moves with defaults all the way: what BOS holds is a key, a query and a value."""
    first = Aggregate(PREVIOUS, at, default="a")
    second = Aggregate(Select(first, first, Comparison.EQ), first, default="b")
    third = Aggregate(SelectorAnd(BEFORE, Select(second, tokens, Comparison.NEQ)), Full("x"), "y")
    return SequenceMap(lambda x, y: f"{x}{y}", third, Aggregate(NEXT, second, default="outside"))


def chain(n: int) -> SOp:
    """Linear combinations of linear combinations, of numbers of both signs."""
    numbers = numerical(Map(letters, tokens))
    program = numbers
    for i in range(n):
        program = numerical(LinearSequenceMap(program, numbers, -0.5, i + 1))
    return program


HARD: dict[str, tuple[Callable[[], SOp], tuple[Value, ...]]] = {
    "defaults as keys, queries and values": (lambda: defaults(tokens), ("a", "b", "c")),
    "numerical default read by a map": (
        lambda: Map(
            lambda x: round(x, 3),
            numerical(Aggregate(PREVIOUS, numerical(tokens == "a"), default=-7.25)),
        ),
        ("a", "b"),
    ),
    "mean of means of a constant": (
        lambda: numerical(
            Aggregate(
                BEFORE, numerical(Aggregate(BEFORE, numerical(Full(1)), default=0)), default=3
            )
        ),
        ("a",),
    ),
    "None as query and key": (
        lambda: SelectorWidth(
            Select(Aggregate(PREVIOUS, tokens), Aggregate(NEXT, tokens), Comparison.EQ)
        ),
        ("a", "b"),
    ),
    "negation over None": (
        lambda: SelectorWidth(
            SelectorNot(Select(Aggregate(PREVIOUS, tokens), tokens, Comparison.EQ))
        ),
        ("a", "b"),
    ),
    "None moved on, with a default": (
        lambda: Aggregate(PREVIOUS, Aggregate(PREVIOUS, tokens), default="d"),
        ("a", "b"),
    ),
    "width of a conjunction over different sequences": (
        lambda: SelectorWidth(
            SelectorAnd(
                SAME, SelectorAnd(BEFORE, Select(indices, tokens, lambda k, q: q == "a" or k > 1))
            )
        ),
        ("a", "b", "c"),
    ),
    "move by a conjunction with differing keys": (
        lambda: Aggregate(
            SelectorAnd(PREVIOUS, Select(tokens, indices, lambda k, q: k == "a")), tokens, "none"
        ),
        ("a", "b"),
    ),
    "or, not and and over one pair": (
        lambda: SelectorWidth(SelectorOr(SelectorNot(SAME), SelectorAnd(SAME, SelectorNot(ALL)))),
        ("a", "b"),
    ),
    "numbers to categories": (
        lambda: Map(lambda x: "low" if x < -2 else "zero" if x == 0 else "high", chain(0), False),
        ("a", "b", "c"),
    ),
    "linear of linear": (lambda: chain(4), ("a", "b", "c")),
    "categories of linear of linear": (
        lambda: Map(lambda x: round(x, 6), chain(3), simplify=False),
        ("a", "b", "c"),
    ),
    "linear combination of a sequence with itself": (
        lambda: numerical(LinearSequenceMap(chain(0), chain(0), 1, -1)),
        ("a", "b"),
    ),
    "selecting on constants": (
        lambda: SelectorWidth(Select(Full(2), indices, Comparison.GT)),
        ("a", "b"),
    ),
    "constants on both sides": (
        lambda: Aggregate(Select(Full("x"), Full("x"), Comparison.EQ), Full("v"), default="w"),
        ("a",),
    ),
    "a numerical width, read by a map and a linear combination": (
        lambda: numerical(
            LinearSequenceMap(
                numerical(SelectorWidth(SAME)),
                numerical(Map(lambda n: n * n, numerical(SelectorWidth(BEFORE)), simplify=False)),
                2,
                -0.5,
            )
        ),
        ("a", "b"),
    ),
    "a numerical width": (lambda: numerical(SelectorWidth(SelectorNot(SAME))), ("a", "b", "c")),
    "numbers of numpy": (
        lambda: SequenceMap(
            lambda x, n: np.int64(x) * n, Map(np.sign, tokens - np.int64(1)), indices
        ),
        tuple(np.arange(3)),
    ),
    "tokens and positions as numbers": (
        lambda: numerical(LinearSequenceMap(numerical(tokens), numerical(indices), 2, -1)),
        (-1, 0, 2.5),
    ),
    "nothing selected": (
        lambda: Aggregate(Select(tokens, tokens, Comparison.FALSE), tokens, default="never"),
        ("a", "b"),
    ),
    "a constant": (lambda: Full(("t", 1)), ("a", "b")),
    "a numerical constant": (lambda: numerical(Full(-3)), ("a", "b")),
    "the tokens": (lambda: tokens, ("a", "b", "c")),
    "the positions": (lambda: indices, ("a", "b")),
    "the tokens, copied": (lambda: Map(lambda x: x, tokens), ("a", "b")),
    "numbers as tokens": (lambda: tokens * 2 - indices, (-1, 0, 3)),
    "bools as tokens": (lambda: Aggregate(PREVIOUS, ~tokens, default=1) & tokens, (True, False)),
    "tokens of many kinds": (
        lambda: Aggregate(SAME, SequenceMap(lambda x, y: (x, y), tokens, tokens)),
        ("a", 1, (2, 3), 0.5),
    ),
    "infinite and huge categories": (
        lambda: Aggregate(PREVIOUS, Map({"a": math.inf, "b": -(10**400)}.get, tokens), -math.inf),
        ("a", "b"),
    ),
    "a numerical default among equal values of other types": (
        lambda: Map(lambda x: x > 0, Aggregate(PREVIOUS, tokens == "a", default=1.0)),
        ("a", "b"),
    ),
    "large numbers": (
        lambda: numerical(Map({"a": 1e9, "b": -1e9, "c": 1}.get, tokens)),
        ("a", "b", "c"),
    ),
    "division by zero left out": (
        lambda: Map(lambda x: None if x == 0 else 6 / x, tokens) + indices,
        (0, 1, -2),
    ),
}
