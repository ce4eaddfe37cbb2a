"""Expressions: operators, fusing, simplifying, names and encodings, and what is refused."""

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Encoding,
    Full,
    LinearSequenceMap,
    Map,
    RaspError,
    Select,
    Selector,
    SelectorAnd,
    SelectorNot,
    SelectorOr,
    SelectorWidth,
    SequenceMap,
    SOp,
    Value,
    categorical,
    evaluate,
    get_encoding,
    indices,
    is_categorical,
    is_numerical,
    numerical,
    tokens,
)
from graphcircuits.rasp.expression import walk
from tests.rasp.programs import EXAMPLES
from tests.tiers import some

ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv)
COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
NUMBERS = st.integers(-4, 4) | st.sampled_from([0.5, -1.25, True])


def logical_and(x: Value, y: Value) -> Value:
    return x & y


def logical_or(x: Value, y: Value) -> Value:
    return x | y


# `&` and `|` on sequences are Python's `and` and `or` on values.
PYTHON: dict[Callable[[Any, Any], Any], Callable[[Any, Any], Any]] = {
    **{function: function for function in ARITHMETIC + COMPARISONS},
    logical_and: lambda x, y: x and y,
    logical_or: lambda x, y: x or y,
}


@pytest.mark.parametrize("name", some(EXAMPLES))
def test_a_program_in_tracrs_style_computes_what_it_says(name: str) -> None:
    example = EXAMPLES[name]
    program, choice = example.build(), random.Random(name)
    for _ in range(40):
        xs = choice.choices(example.vocab, k=choice.randint(1, example.max_seq_len - 1))
        got = evaluate(program, xs, causal=example.causal)
        for x, y in zip(got, example.computes(xs), strict=True):
            assert x == (pytest.approx(y) if isinstance(y, float) else y), xs


# --- operators -----------------------------------------------------------------------------------


def applied(function: Callable[[Any, Any], Any], x: Any, y: Any) -> list[Any]:
    """What a function gives, or that it has no value."""
    try:
        return [function(x, y)]
    except ZeroDivisionError:
        return ["division by zero"]


def program_value(program: SOp, xs: list[Value]) -> list[Any]:
    try:
        return program(xs)
    except RaspError as error:
        if "ZeroDivisionError" not in str(error):
            raise
        return ["division by zero"]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", PYTHON, ids=lambda function: function.__name__)
@given(x=NUMBERS, y=NUMBERS)
@settings(max_examples=50)
def test_an_operator_is_pythons_with_a_constant_or_a_sequence_on_either_side(
    function: Callable[[Any, Any], Any], x: Any, y: Any
) -> None:
    expected = applied(PYTHON[function], x, y)
    assert program_value(function(tokens, y), [x]) == expected
    assert program_value(function(x, tokens), [y]) == expected
    assert program_value(function(tokens, Full(y)), [x]) == expected
    assert program_value(function(Full(x), tokens), [y]) == expected


def test_a_constant_makes_a_map_and_a_sequence_makes_a_combination() -> None:
    assert isinstance(tokens + 1, Map)
    assert isinstance(1 - tokens, Map)
    combination = tokens - indices
    assert isinstance(combination, SequenceMap)
    assert combination.children == (tokens, indices)


def test_operators_work_on_strings_from_both_sides() -> None:
    assert ("<" + tokens + ">")(["a", "b"]) == ["<a>", "<b>"]
    assert (tokens * 2)(["a"]) == (2 * tokens)(["a"]) == ["aa"]


def test_inversion_is_pythons_not() -> None:
    assert (~tokens)([0, 1, "", "a", 0.0]) == [True, False, True, False, True]


def test_comparing_with_None_is_a_map_that_None_passes_through() -> None:
    some = Map(lambda x: x or None, tokens, simplify=False)
    assert Map(lambda x: x is None, some, simplify=False)([0, 1]) == [None, False]
    assert (some == None)([0, 1]) == [None, False]  # noqa: E711


def test_an_expression_has_no_truth_value() -> None:
    with pytest.raises(RaspError, match=r"'tokens' is a sequence and has no truth value .*& \| ~"):
        bool(tokens)
    with pytest.raises(RaspError, match="'mine' is a sequence"):
        assert (tokens + 1).named("mine")


def test_expressions_are_told_apart_by_identity() -> None:
    one, other = tokens + 1, tokens + 1
    assert len({one, other, one}) == 2
    assert [one].index(one) == 0


# --- maps ----------------------------------------------------------------------------------------


def test_a_map_of_a_map_is_one_map_and_None_stays_None() -> None:
    inner = Map(lambda x: None if x == "b" else x, tokens)
    outer = Map(lambda x: x + "!", inner)
    assert outer.children == (tokens,)
    assert outer(["a", "b"]) == ["a!", None]
    twice = Map(lambda x: len(x), outer)
    assert twice.children == (tokens,)
    assert twice(["a", "b"]) == [2, None]


def test_fusing_can_be_turned_off() -> None:
    inner = tokens + 1
    outer = Map(lambda x: 2 * x, inner, simplify=False)
    assert outer.children == (inner,)
    assert outer([1, 2]) == Map(lambda x: 2 * x, inner)([1, 2]) == [4, 6]


def test_fusing_leaves_the_inner_map_as_it_was() -> None:
    inner = (tokens + 1).named("inner")
    Map(lambda x: 2 * x, inner)
    assert inner([1]) == [2]
    assert inner.name == "inner"


# --- names and encodings -------------------------------------------------------------------------


@pytest.mark.parametrize("primitive", [tokens, indices])
def test_tokens_and_indices_keep_their_names_and_encoding(primitive: SOp) -> None:
    before = primitive.name
    assert primitive.named("mine") is primitive.copy() is categorical(primitive) is primitive
    assert primitive.name == primitive.label == before
    numbers = numerical(primitive)
    assert isinstance(numbers, Map)
    assert is_numerical(numbers)
    assert is_categorical(primitive)
    assert numbers.name == before
    assert numbers([3, 5]) == primitive([3, 5])


def test_expressions_without_a_name_say_their_kind() -> None:
    select = Select(tokens, tokens, Comparison.EQ)
    count = numerical(Map(lambda x: x, tokens))
    kinds = {
        "map": tokens + 1,
        "sequence_map": tokens + indices,
        "linear_sequence_map": LinearSequenceMap(count, count, 1, 1),
        "full": Full(1),
        "aggregate": Aggregate(select, tokens),
        "selector_width": SelectorWidth(select),
        "select": select,
        "selector_and": SelectorAnd(select, select),
        "selector_or": SelectorOr(select, select),
        "selector_not": SelectorNot(select),
    }
    assert all(expression.name == kind for kind, expression in kinds.items())


def test_an_encoding_is_of_the_copy() -> None:
    marks = (tokens == "a").named("marks")
    numbers = numerical(marks)
    assert is_categorical(marks)
    assert is_numerical(numbers)
    assert get_encoding(categorical(numbers)) is Encoding.CATEGORICAL
    assert get_encoding(numbers.named("other")) is Encoding.NUMERICAL
    assert numbers.name == "marks"
    assert numbers.children == marks.children


# --- comparisons ---------------------------------------------------------------------------------


@given(key=NUMBERS, query=NUMBERS)
def test_comparisons_have_the_key_first(key: Any, query: Any) -> None:
    table = {
        Comparison.EQ: key == query,
        Comparison.NEQ: key != query,
        Comparison.LT: key < query,
        Comparison.LEQ: key <= query,
        Comparison.GT: key > query,
        Comparison.GEQ: key >= query,
        Comparison.TRUE: True,
        Comparison.FALSE: False,
    }
    assert len(table) == len(Comparison)
    assert all(comparison(key, query) == holds for comparison, holds in table.items())


@pytest.mark.parametrize(("key", "query"), [(None, 1), (1, None)])
def test_a_comparison_with_None_is_refused(key: Value, query: Value) -> None:
    with pytest.raises(ValueError, match="EQ compares two values, got key"):
        Comparison.EQ(key, query)


# --- selectors -----------------------------------------------------------------------------------

SIDES: dict[str, SOp] = {
    "tokens": tokens,
    "indices": indices,
    "one": Full(1),
    "two": Full(2),
    "maybe": Map(lambda x: None if x == 2 else x, tokens),
}
SELECTS = st.builds(
    lambda keys, queries, predicate: Select(SIDES[keys], SIDES[queries], predicate),
    st.sampled_from(list(SIDES)),
    st.sampled_from(list(SIDES)),
    st.sampled_from(list(Comparison)),
)
INPUTS = st.lists(st.integers(0, 3), min_size=1, max_size=5)


@given(fst=SELECTS, snd=SELECTS, xs=INPUTS, causal=st.booleans())
def test_simplified_selectors_select_the_same_pairs(
    fst: Select, snd: Select, xs: list[int], causal: bool
) -> None:
    def same(short: Selector, long: Selector) -> bool:
        return evaluate(short, xs, causal=causal) == evaluate(long, xs, causal=causal)

    assert same(fst & snd, SelectorAnd(fst, snd))
    assert same(~fst, SelectorNot(fst))
    # A constant beside a sequence with a None in it would be selected alone, but is not in one
    # select with it: there the pair has a None.
    sides = {*fst.children, *snd.children}
    if SIDES["maybe"] not in sides or not any(isinstance(side, Full) for side in sides):
        assert same(fst | snd, SelectorOr(fst, snd))
        assert same(~(fst & snd), SelectorNot(SelectorAnd(fst, snd)))


def test_selects_over_the_same_sequences_become_one_select() -> None:
    equal = Select(tokens, indices, Comparison.EQ)
    less = Select(tokens, indices, Comparison.LT)
    for both in (equal & less, equal | less, ~equal):
        assert isinstance(both, Select)
        assert both.children == (tokens, indices)


def test_a_constant_goes_into_the_predicate() -> None:
    first = Select(indices, Full(0), Comparison.EQ)
    same = Select(indices, tokens, Comparison.GEQ)
    both = first & same
    assert isinstance(both, Select)
    assert both.children == (indices, tokens)
    assert not any(isinstance(node, Full) for node in walk(both))
    assert both([0, 1]) == [[True, False], [False, False]]


def test_two_constants_stay_one_select_over_a_constant() -> None:
    both = Select(Full(1), tokens, Comparison.EQ) | Select(Full(2), tokens, Comparison.EQ)
    assert isinstance(both, Select)
    assert both([1, 2, 3]) == [[True] * 3, [True] * 3, [False] * 3]


def test_selects_over_different_sequences_stay_a_pair() -> None:
    fst = Select(tokens, tokens, Comparison.EQ)
    snd = Select(indices, indices, Comparison.LT)
    assert type(fst & snd) is SelectorAnd
    assert type(fst | snd) is SelectorOr
    assert type(~(fst & snd)) is SelectorNot


# --- what is refused -----------------------------------------------------------------------------

SELECT = Select(tokens, tokens, Comparison.EQ)
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "map of a number": (lambda: Map(abs, 3), "Map: inner must be a sequence expression, got 3."),  # pyright: ignore
    "map without function": (lambda: Map(3, tokens), "Map: expected a function, got 3."),  # pyright: ignore
    "map by a sequence": (lambda: Map(tokens, tokens), "Map: expected a function, got <"),
    "combination of a selector": (
        lambda: SequenceMap(max, tokens, SELECT),  # pyright: ignore
        "SequenceMap: snd must be a sequence expression, got <Select 'select'>.",
    ),
    "linear combination of a number": (
        lambda: LinearSequenceMap(tokens, 1, 1, 1),  # pyright: ignore
        "LinearSequenceMap: snd must be a sequence expression, got 1.",
    ),
    "aggregate of a list": (
        lambda: Aggregate(SELECT, [1]),  # pyright: ignore
        "Aggregate: values must be a sequence expression, got [1].",
    ),
    "aggregate under a sequence": (
        lambda: Aggregate(tokens, tokens),  # pyright: ignore
        "Aggregate: selector must be a selector, got <",
    ),
    "width of a sequence": (
        lambda: SelectorWidth(tokens),  # pyright: ignore
        "SelectorWidth: selector must be a selector, got <",
    ),
    "select on a string": (
        lambda: Select("tokens", tokens, Comparison.EQ),  # pyright: ignore
        "Select: keys must be a sequence expression, got 'tokens'.",
    ),
    "select without predicate": (
        lambda: Select(tokens, tokens, "=="),  # pyright: ignore
        "Select: expected a function, got '=='.",
    ),
    "and with a sequence": (
        lambda: SELECT & tokens,  # pyright: ignore
        "SelectorAnd: snd must be a selector, got <",
    ),
    "not of a sequence": (
        lambda: SelectorNot(tokens),  # pyright: ignore
        "SelectorNot: inner must be a selector, got <",
    ),
    "sequence and selector": (
        lambda: tokens & SELECT,
        "an operator on a sequence: expected a constant, got the expression <Select 'select'>.",
    ),
    "constant sequence": (
        lambda: Full(tokens),
        "Full: expected a constant, got the expression <_Primitive 'tokens'>.",
    ),
    "default that is a sequence": (
        lambda: Aggregate(SELECT, tokens, default=indices),
        "Aggregate: expected a constant, got the expression <_Primitive 'indices'>.",
    ),
    "aggregate of two sequences": (
        lambda: Aggregate(SELECT, tokens, sop=indices),
        "Aggregate: `sop` is another name for `values`; give one of them.",
    ),
    "aggregate of nothing": (
        lambda: Aggregate(SELECT),
        "Aggregate: values must be a sequence expression, got None.",
    ),
    "encoding as a string": (
        lambda: (tokens + 1).annotated(encoding="numerical"),
        "'map': an encoding is a rasp.Encoding, got 'numerical'.",
    ),
    "numerical number": (
        lambda: numerical(3),  # pyright: ignore
        "numerical: argument must be a sequence expression, got 3.",
    ),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_are_named(what: str) -> None:
    build, text = WRONG[what]
    with pytest.raises(RaspError) as raised:
        build()
    assert str(raised.value).startswith(text)
