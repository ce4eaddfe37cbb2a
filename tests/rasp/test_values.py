"""Vocabularies that are refused, the order of values, and equal values that look different."""

import math
import random
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.rasp import RaspError, Value
from graphcircuits.rasp.values import (
    checked_input,
    checked_length,
    checked_vocab,
    codes_of,
    plain,
    sorted_values,
    twins_of,
)

VALUES = st.recursive(
    st.booleans() | st.integers(-2, 2) | st.sampled_from([-0.0, 0.0, 1.0, 0.5, "a", "b"]),
    lambda inner: st.tuples(inner, inner),
    max_leaves=3,
)


@pytest.mark.parametrize(
    ("vocab", "text"),
    [
        ([], "the vocabulary is empty: a program needs at least one token."),
        (["a", "BOS"], "the vocabulary holds ['BOS']: BOS, PAD and None are reserved, rename them"),
        (["PAD", "BOS"], "the vocabulary holds ['BOS', 'PAD']: BOS, PAD and None are reserved"),
        (["a", None], "the vocabulary holds [None]: BOS, PAD and None are reserved"),
        ([math.nan, 1.0], "the vocabulary holds NaN, which equals nothing: take it out."),
        (["a", "b", "a"], "the vocabulary holds equal tokens: ['a']."),
        ((1, 2, True, 1.0), "the vocabulary holds equal tokens: [True, 1.0]."),
        (iter(["a", "a"]), "the vocabulary holds equal tokens: ['a']."),
        (["a", ["b"]], "the vocabulary holds a value that cannot be hashed: "),
        ([np.int64(1), 1], "the vocabulary holds equal tokens: [1]."),
    ],
)
def test_a_vocabulary_that_no_program_can_have(vocab: Iterable[Value], text: str) -> None:
    with pytest.raises(RaspError) as raised:
        checked_vocab(vocab)
    assert str(raised.value).startswith(text)


def test_a_vocabulary_is_put_in_order() -> None:
    assert checked_vocab({"c", "a", "b"}) == ("a", "b", "c")
    assert checked_vocab("ba") == ("a", "b")
    assert checked_vocab([10, 9, -1]) == (-1, 9, 10)
    assert checked_vocab(["b", 2, (1, 2), "a", 1]) == (1, 2, "a", "b", (1, 2))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.int64(3), 3),
        (np.uint8(3), 3),
        (np.bool_(True), True),
        (np.float32(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.str_("a"), "a"),
        ((np.int64(1), 2), (1, 2)),
        ("a", "a"),
        (None, None),
    ],
    ids=repr,
)
def test_scalars_of_numpy_are_taken_as_pythons(given: Value, expected: Value) -> None:
    assert plain(given) == expected
    assert type(plain(given)) is type(expected)


@pytest.mark.usefixtures("unchecked")
def test_arrays_are_vocabularies_inputs_and_lengths() -> None:
    assert [type(token) for token in checked_vocab(np.arange(2))] == [int, int]
    assert [repr(token) for token in checked_input(np.array([1, 0]))] == ["1", "0"]
    assert checked_input("ab") == ["a", "b"]
    assert type(checked_length(np.int64(4))) is int  # pyright: ignore


@given(st.lists(st.integers()) | st.lists(st.text()), st.randoms(use_true_random=False))
def test_values_of_one_kind_stand_in_their_natural_order(
    values: list[Value], choice: random.Random
) -> None:
    expected = tuple(sorted(set(values)))
    choice.shuffle(values)
    assert sorted_values(values) == expected


@given(st.lists(VALUES))
def test_values_of_any_kind_stand_once_each(values: list[Value]) -> None:
    assert len(sorted_values(values)) == len(set(values))
    assert set(sorted_values(values)) == set(values)


def test_codes_count_from_zero() -> None:
    assert codes_of(["x", "y"]) == {"x": 0, "y": 1}


@given(st.lists(VALUES))
def test_twins_are_all_other_looks_of_a_value(values: list[Value]) -> None:
    distinct = sorted_values(values)
    twins = twins_of(distinct, values)
    for value in distinct:
        looks = {repr(other) for other in values if other == value}
        assert {repr(value), *map(repr, twins.get(value, []))} == looks
        assert len(twins.get(value, [])) == len(looks) - 1
