"""The interpreter against a slow oracle, its three rules, overrides, and its errors."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.rasp import (
    Aggregate,
    Comparison,
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
    evaluate,
    indices,
    numerical,
    tokens,
)

INPUTS = st.lists(st.integers(0, 3), min_size=1, max_size=6)
PREVIOUS = Select(indices, indices, lambda key, query: key == query - 1)
ALL = Select(tokens, tokens, Comparison.TRUE)


def no_twos() -> Map:
    """The tokens, None for a 2."""
    return Map(lambda x: None if x == 2 else x, tokens, simplify=False)


# --- selectors, against formulas over all pairs of positions -------------------------------------

SELECTORS = st.recursive(
    st.builds(
        lambda keys, queries, predicate: Select(keys, queries, predicate),
        st.sampled_from([tokens, indices, no_twos()]),
        st.sampled_from([tokens, indices, no_twos()]),
        st.sampled_from(list(Comparison)),
    ),
    lambda inner: st.one_of(
        st.builds(SelectorAnd, inner, inner),
        st.builds(SelectorOr, inner, inner),
        st.builds(SelectorNot, inner),
    ),
    max_leaves=5,
)


def three_valued(selector: Selector, xs: list[int], query: int, key: int) -> bool | None:
    """Whether a pair is selected, in the logic where a comparison with None is neither."""
    match selector:
        case Select():
            k, q = selector.keys(xs)[key], selector.queries(xs)[query]
            return None if k is None or q is None else selector.predicate(k, q)
        case SelectorNot():
            inner = three_valued(selector.inner, xs, query, key)
            return None if inner is None else not inner
        case SelectorAnd() | SelectorOr():
            fst = three_valued(selector.fst, xs, query, key)
            snd = three_valued(selector.snd, xs, query, key)
            decisive = isinstance(selector, SelectorOr)
            if decisive in (fst, snd):
                return decisive
            return None if None in (fst, snd) else not decisive
    raise AssertionError(selector)


@given(selector=SELECTORS, xs=INPUTS, causal=st.booleans())
def test_a_selector_selects_what_three_valued_logic_says(
    selector: Selector, xs: list[int], causal: bool
) -> None:
    n = range(len(xs))
    expected = [
        [three_valued(selector, xs, q, k) is True and (k <= q or not causal) for k in n] for q in n
    ]
    assert evaluate(selector, xs, causal=causal) == expected


@given(selector=SELECTORS, xs=INPUTS, causal=st.booleans())
def test_widths_and_means_are_sums_over_the_selected_pairs(
    selector: Selector, xs: list[int], causal: bool
) -> None:
    pattern = np.array(evaluate(selector, xs, causal=causal))
    widths = evaluate(SelectorWidth(selector), xs, causal=causal)
    assert widths == pattern.sum(axis=1).tolist()
    squares = numerical(Map(lambda x: x * x, tokens))
    means = evaluate(numerical(Aggregate(selector, squares, default=-1)), xs, causal=causal)
    total = pattern @ np.square(xs)
    expected = np.where(pattern.any(axis=1), total / np.maximum(pattern.sum(axis=1), 1), -1)
    assert means == pytest.approx(expected.tolist())


def test_calling_an_expression_looks_both_ways() -> None:
    assert SelectorWidth(ALL)(["a", "b", "c"]) == [3, 3, 3]
    assert evaluate(SelectorWidth(ALL), ["a", "b", "c"], causal=True) == [1, 2, 3]


def test_a_selector_has_a_row_a_query() -> None:
    assert Select(tokens, indices, Comparison.LT)([0, 5]) == [[False, False], [True, False]]


# --- the three rules -----------------------------------------------------------------------------


def test_None_in_gives_None_out() -> None:
    maybe = no_twos()
    calls: list[Value] = []
    assert Map(lambda x: calls.append(x) or x, maybe, simplify=False)([1, 2]) == [1, None]
    assert SequenceMap(lambda x, y: calls.append(x) or x, maybe, indices)([2, 3]) == [None, 3]
    assert SequenceMap(lambda x, y: calls.append(x) or x, indices, maybe)([2, 3]) == [None, 1]
    assert None not in calls
    assert LinearSequenceMap(maybe, indices, 2, 1)([1, 2]) == [2, None]


def test_None_is_never_selected_nor_does_it_select() -> None:
    maybe = no_twos()
    same = Select(maybe, maybe, Comparison.EQ)
    assert same([1, 2]) == [[True, False], [False, False]]
    assert SelectorNot(same)([1, 2]) == [[False, False], [False, False]]
    assert (~same)([1, 2]) == [[False, False], [False, False]]
    assert SelectorWidth(Select(maybe, tokens, Comparison.TRUE))([1, 2, 2]) == [1, 1, 1]


def test_a_predicate_is_not_asked_about_None_nor_about_later_keys() -> None:
    asked: list[tuple[Value, Value]] = []

    def predicate(key: Value, query: Value) -> bool:
        asked.append((key, query))
        return True

    evaluate(Select(no_twos(), tokens, predicate), [1, 2, 3], causal=True)
    assert asked == [(1, 1), (1, 2), (1, 3), (3, 3)]


def test_a_categorical_aggregate_of_equal_values_returns_the_value_itself() -> None:
    for value in (3, True, "ab", (1, "x"), math.inf):
        got = Aggregate(ALL, tokens)([value, value])
        assert got == [value, value]
        assert all(type(x) is type(value) for x in got)


def test_a_categorical_aggregate_of_different_numbers_is_their_mean() -> None:
    assert Aggregate(ALL, tokens)([1, 2, 6]) == [3.0, 3.0, 3.0]


def test_a_numerical_aggregate_is_a_number_even_over_equal_bools() -> None:
    share = numerical(Aggregate(ALL, numerical(tokens == "a")))
    assert [repr(x) for x in share(["a", "a"])] == ["1.0", "1.0"]
    assert share(["a", "b"]) == [0.5, 0.5]


def test_an_aggregate_over_Nones_is_None_and_over_nothing_the_default() -> None:
    assert Aggregate(ALL, no_twos(), default="d")([2, 2]) == [None, None]
    nothing = Select(tokens, tokens, Comparison.FALSE)
    assert Aggregate(nothing, tokens, default="d")([2, 2]) == ["d", "d"]
    assert Aggregate(PREVIOUS, tokens)([5, 6]) == [None, 5]


def test_a_constant_stands_at_every_position() -> None:
    assert Full("x")([1, 2]) == ["x", "x"]
    assert Full("x")([]) == []


# --- overrides -----------------------------------------------------------------------------------


def test_an_override_is_what_everything_above_reads() -> None:
    inner = (tokens + 1).named("inner")
    total = SequenceMap(lambda x, y: x + y, inner, tokens)
    program = Aggregate(PREVIOUS, total, default=0)
    assert evaluate(program, [1, 2, 3]) == [0, 3, 5]
    assert evaluate(program, [1, 2, 3], overrides={inner: [10, 20, 30]}) == [0, 11, 22]
    assert evaluate(program, [1, 2, 3], overrides={program: ["x", "y", "z"]}) == ["x", "y", "z"]


def test_overriding_the_tokens_is_another_input() -> None:
    program = SelectorWidth(Select(tokens, tokens, Comparison.EQ))
    assert evaluate(program, ["a", "b"], overrides={tokens: ["c", "c"]}) == program(["c", "c"])


@given(xs=INPUTS, data=st.data())
def test_overriding_with_the_same_values_changes_nothing(
    xs: list[int], data: st.DataObject
) -> None:
    shifted = Aggregate(PREVIOUS, tokens, default=0)
    both = SequenceMap(lambda x, y: 10 * x + y, shifted, tokens)
    program = Map(lambda x: x % 7, both, simplify=False)
    sop = data.draw(st.sampled_from([tokens, indices, shifted, both]))
    assert evaluate(program, xs, overrides={sop: evaluate(sop, xs)}) == program(xs)


def test_an_override_of_another_length_is_refused() -> None:
    inner = (tokens + 1).named("inner")
    with pytest.raises(RaspError, match="'inner': the override has 1 values, the input 2"):
        evaluate(inner, [1, 2], overrides={inner: [1]})


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "xs", [3, None, {"a"}, iter("abc"), np.ones((2, 2))], ids=lambda x: type(x).__name__
)
@pytest.mark.usefixtures("unchecked")
def test_the_input_must_be_a_list(xs: Any) -> None:
    with pytest.raises(RaspError, match="the input must be a list or string of tokens, got"):
        tokens(xs)


def failing(expression: SOp | Selector, xs: Sequence[Value]) -> str:
    with pytest.raises(RaspError) as raised:
        evaluate(expression.named("culprit"), xs)
    return str(raised.value)


def test_a_map_that_raises_is_named_with_its_argument() -> None:
    text = failing(Map(lambda x: x.upper(), tokens), ["a", 3])
    assert text.startswith("'culprit': its function raised AttributeError:")
    assert text.endswith("on (3).")


def test_a_combination_that_raises_is_named_with_both_arguments() -> None:
    text = failing(SequenceMap(lambda x, y: x / y, tokens, indices), [1, 2])
    assert text == "'culprit': its function raised ZeroDivisionError: division by zero on (1, 0)."


def test_a_predicate_that_raises_is_named() -> None:
    text = failing(Select(tokens, indices, lambda key, query: key[query]), ["ab", "c"])
    assert text.startswith("'culprit': its function raised IndexError")
    assert text.endswith("on ('c', 1).")


def test_a_mean_of_strings_is_named() -> None:
    text = failing(Aggregate(ALL, tokens), ["a", "b"])
    assert text == "'culprit': no mean of the values it selects: ['a', 'b']."


def test_a_mean_over_None_is_named() -> None:
    assert failing(Aggregate(ALL, no_twos()), [1, 2]).endswith("it selects: [1, None].")


def test_an_unknown_expression_is_named() -> None:
    class Odd(SOp):
        default_name = "odd"

    with pytest.raises(RaspError, match="'odd' is a Odd, which the interpreter does not know"):
        Odd()(["a"])


def test_a_cycle_is_refused() -> None:
    loop = Map(abs, tokens).named("loop")
    loop.inner = loop
    with pytest.raises(RaspError, match="'loop' reads its own value: a program has no cycles"):
        loop([1])


def test_an_object_that_is_no_expression_is_refused() -> None:
    moved = Aggregate(ALL, tokens).named("moved")
    moved.values = "tokens"  # pyright: ignore
    with pytest.raises(RaspError, match="'moved' reads 'tokens', which is no RASP expression"):
        moved([1])
