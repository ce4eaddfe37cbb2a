"""A selector as conditions of one head: they select what the selector selects, or it is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.rasp import (
    Comparison,
    Map,
    RaspError,
    Select,
    Selector,
    SelectorAnd,
    SelectorNot,
    SelectorOr,
    SelectorWidth,
    SOp,
    Value,
    evaluate,
    indices,
    tokens,
)
from graphcircuits.rasp.size import conjunction
from graphcircuits.rasp.tabulate import Tables, selector_leaves, tabulate

VOCAB = (0, 1, 2, 3)
MAYBE = Map(lambda x: None if x == 2 else x, tokens)
INPUTS = st.lists(st.sampled_from(VOCAB), min_size=1, max_size=5)
COMPARISONS = st.sampled_from(list(Comparison))


def selectors(*sides: SOp) -> st.SearchStrategy[Selector]:
    side = st.sampled_from(sides)
    leaf = st.builds(lambda k, q, p: Select(k, q, p), side, side, COMPARISONS)
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(SelectorAnd, inner, inner),
            st.builds(SelectorOr, inner, inner),
            st.builds(SelectorNot, inner),
        ),
        max_leaves=5,
    )


def tables_of(selector: Selector) -> Tables:
    tables = tabulate(SelectorWidth(selector), vocab=VOCAB, max_seq_len=6)
    assert not tables.problems
    return tables


def selected(tables: Tables, selector: Selector, xs: list[Value]) -> list[list[bool]]:
    """The pairs that meet every condition."""
    met = [[True] * len(xs) for _ in xs]
    for part in conjunction(tables, selector):
        key_code, query_code = (tables.variables[side].codes for side in (part.keys, part.queries))
        keys, queries = part.keys(xs), part.queries(xs)
        for q, query in enumerate(queries):
            for k, key in enumerate(keys):
                present = key is not None and query is not None
                met[q][k] &= present and bool(part.table[key_code[key], query_code[query]])
    return met


@given(selector=selectors(tokens, indices, MAYBE), xs=INPUTS)
def test_the_conditions_select_what_the_selector_selects(
    selector: Selector, xs: list[Value]
) -> None:
    tables = tables_of(selector)
    try:
        got = selected(tables, selector, xs)
    except RaspError as error:
        sides = {(leaf.keys, leaf.queries) for leaf in selector_leaves(selector)}
        if len(sides) == 1 or "`or` of selectors over different sequences" not in str(error):
            raise
    else:
        assert got == evaluate(selector, xs)


@given(selectors(MAYBE))
def test_over_one_pair_of_sequences_there_is_one_condition(selector: Selector) -> None:
    (part,) = conjunction(tables_of(selector), selector)
    assert part.keys is part.queries is MAYBE


def test_conditions_on_the_same_sequences_are_merged() -> None:
    same, before = Select(tokens, tokens, Comparison.EQ), Select(indices, indices, Comparison.LT)
    other = Select(tokens, tokens, lambda key, query: key > 0)
    selector = SelectorAnd(SelectorAnd(same, before), other)
    parts = conjunction(tables_of(selector), selector)
    assert [(part.keys, part.queries) for part in parts] == [(tokens, tokens), (indices, indices)]
    assert parts[0].table.diagonal().tolist() == [False, True, True, True]
    assert parts[0].table.sum() == 3


SAME = Select(tokens, tokens, Comparison.EQ)
BEFORE = Select(indices, indices, Comparison.LT)


@pytest.mark.parametrize(
    "selector",
    [
        SelectorOr(SAME, BEFORE),
        SelectorNot(SelectorAnd(SAME, BEFORE)),
        SelectorOr(SAME, SelectorAnd(SAME, BEFORE)),
        SelectorAnd(BEFORE, SelectorOr(BEFORE, SAME)),
    ],
)
def test_an_or_over_different_sequences_is_refused(selector: Selector) -> None:
    with pytest.raises(RaspError) as raised:
        conjunction(tables_of(selector), selector)
    assert str(raised.value) == (
        "an `or` of selectors over different sequences has no single attention head; "
        "combine the sequences with SequenceMap and select on the combination"
    )


def test_negation_turns_or_into_and() -> None:
    selector = SelectorNot(SelectorOr(SAME, BEFORE))
    assert len(conjunction(tables_of(selector), selector)) == 2


def test_an_unknown_selector_is_refused() -> None:
    class Odd(Selector):
        default_name = "odd"

    with pytest.raises(RaspError, match="'odd' is a Odd, not a selector we know"):
        conjunction(tables_of(SAME), Odd())
