"""Functions of fused expressions: the order of calls, constants, and what they give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.rasp import Comparison, Value
from graphcircuits.rasp.values import Composition, Fixed, Junction, Predicate, fold_predicate

LEAVES = st.sampled_from([*Comparison, lambda key, query: (key + query) % 2])
PREDICATES: st.SearchStrategy[Predicate] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda joint, x, y: Junction(joint, (x, y)),
            st.sampled_from(["and", "or"]),
            inner,
            inner,
        ),
        st.builds(lambda x: Junction("not", (x,)), inner),
        st.builds(
            Fixed, inner, st.dictionaries(st.sampled_from(["key", "query"]), st.integers(0, 3))
        ),
    ),
    max_leaves=6,
)


def recursive(predicate: Predicate, key: Value, query: Value) -> bool:
    """What a predicate is, by recursion."""
    match predicate:
        case Junction("not", (part,)):
            return not recursive(part, key, query)
        case Junction("and", (x, y)):
            return recursive(x, key, query) and recursive(y, key, query)
        case Junction("or", (x, y)):
            return recursive(x, key, query) or recursive(y, key, query)
        case Fixed(part, constants):
            return recursive(part, constants.get("key", key), constants.get("query", query))
    return bool(predicate(key, query))


@pytest.mark.usefixtures("unchecked")
@given(PREDICATES, st.integers(0, 3), st.integers(0, 3))
def test_joined_predicates_hold_when_their_parts_say_so(
    predicate: Predicate, key: int, query: int
) -> None:
    assert bool(predicate(key, query)) == recursive(predicate, key, query)


def test_parts_are_asked_from_left_to_right() -> None:
    asked: list[str] = []
    parts = [lambda key, query, name=name: bool(asked.append(name)) for name in "abc"]
    Junction("and", (Junction("or", (parts[0], parts[1])), parts[2]))(1, 2)
    assert asked == ["a", "b", "c"]


def test_the_inner_constant_wins() -> None:
    predicate = Fixed(Fixed(Comparison.EQ, {"key": 1}), {"key": 2, "query": 3})
    assert fold_predicate(predicate, lambda part, constants: dict(constants), max) == {
        "key": 1,
        "query": 3,
    }
    assert not predicate(1, 1)


def test_a_composition_runs_from_the_inside_and_stops_at_None() -> None:
    halve = Composition(lambda x: x + 0.5, lambda x: None if x % 2 else x // 2)
    assert (halve(4), halve(3)) == (2.5, None)
    nested = Composition(str, halve)
    assert (nested(4), nested(3)) == ("2.5", None)
    assert nested.chain[0] is str
    assert len(nested.chain) == 3
