"""What programs written for Tracr use besides: its other names, its constants, its arguments."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from graphcircuits import rasp
from graphcircuits.rasp.compile import compile_program

SAME = rasp.Select(rasp.tokens, rasp.tokens, rasp.Comparison.EQ)
BEFORE = rasp.Select(rasp.indices, rasp.indices, rasp.Comparison.LT)
AFTER = rasp.Select(rasp.indices, rasp.indices, rasp.Comparison.GT)

# --- programs ------------------------------------------------------------------------------------


def rotated() -> rasp.SOp:
    """Each token one place to the right, the last one to the front."""
    origin = rasp.SequenceMap(lambda i, n: (i - 1) % n, rasp.indices, rasp.length).named("origin")
    there = rasp.Select(keys=rasp.indices, queries=origin, predicate=rasp.Comparison.EQ)
    return rasp.Aggregate(selector=there, sop=rasp.tokens, default=None)


def twice_seen() -> rasp.SOp:
    earlier = rasp.selector_and(SAME, BEFORE)
    return rasp.sop_not(rasp.SelectorWidth(earlier) == 0)


def others() -> rasp.SOp:
    """How many other places hold another token, as a number."""
    elsewhere = rasp.selector_not(rasp.selector_or(SAME, SAME, simplify=False))
    return rasp.numerical(rasp.SelectorWidth(elsewhere))


def excess() -> rasp.SOp:
    """How many more places hold this token than lie before it."""
    count = rasp.numerical(rasp.SelectorWidth(SAME))
    place = rasp.numerical(rasp.indices)
    return rasp.numerical(rasp.LinearSequenceMap(fst=count, snd=place, fst_fac=1, snd_fac=-1))


PROGRAMS: dict[str, tuple[Callable[[], rasp.SOp], Callable[[str], list]]] = {
    "length": (lambda: rasp.length, lambda xs: [len(xs)] * len(xs)),
    "numerical length": (lambda: rasp.numerical(rasp.length), lambda xs: [len(xs)] * len(xs)),
    "places from the end": (
        lambda: rasp.length - 1 - rasp.indices,
        lambda xs: list(range(len(xs)))[::-1],
    ),
    "rotated": (rotated, lambda xs: [*xs[-1:], *xs[:-1]]),
    "twice seen": (twice_seen, lambda xs: [x in xs[:i] for i, x in enumerate(xs)]),
    "others": (others, lambda xs: [sum(x != y for y in xs) for x in xs]),
    "excess": (excess, lambda xs: [xs.count(x) - i for i, x in enumerate(xs)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", PROGRAMS)
def test_a_program_runs_and_compiles_with_strings_as_inputs(what: str) -> None:
    build, computes = PROGRAMS[what]
    model = compile_program(build(), vocab={"a", "b", "c"}, max_seq_len=7)
    choice = random.Random(what)
    for length in range(1, 7):
        xs = "".join(choice.choices("abc", k=length))
        assert build()(xs) == computes(xs)
        assert model.apply(xs) == pytest.approx(computes(xs))


def test_the_length_counts_what_is_seen() -> None:
    assert rasp.evaluate(rasp.length, "abc", causal=True) == [1, 2, 3]
    model = compile_program(rasp.length, vocab="abc", max_seq_len=5, causal=True)
    assert model.apply("abc") == [1, 2, 3]
    assert rasp.length.named("n").name == "n"
    assert rasp.length.name == "length"


def test_labels_of_what_every_program_has_are_plain_words_as_in_tracr() -> None:
    words = [x.label for x in (rasp.tokens, rasp.indices, rasp.length, rasp.length.named("n"))]
    assert words == ["tokens", "indices", "length", "length"]
    assert rasp.Map(str, rasp.tokens).label.startswith("map_")


@pytest.mark.parametrize("length", [3, 40, 400])
def test_a_numerical_width_is_exact_at_any_length(length: int) -> None:
    width = rasp.numerical(rasp.SelectorWidth(SAME))
    model = compile_program(width, vocab="ab", max_seq_len=length + 1)
    xs = random.Random(length).choices("ab", k=length)
    assert model.apply(xs) == pytest.approx([xs.count(x) for x in xs], abs=1e-6)


# --- names ---------------------------------------------------------------------------------------


def test_selectors_are_joined_by_functions_as_by_operators() -> None:
    xs = [2, 1, 2]
    assert rasp.selector_and(SAME, BEFORE)(xs) == (SAME & BEFORE)(xs)
    assert rasp.selector_or(SAME, BEFORE)(xs) == (SAME | BEFORE)(xs)
    assert rasp.selector_not(SAME)(xs) == (~SAME)(xs)
    assert type(rasp.selector_and(BEFORE, AFTER)) is rasp.Select
    assert type(rasp.selector_and(BEFORE, AFTER, simplify=False)) is rasp.SelectorAnd
    assert type(rasp.selector_or(BEFORE, AFTER, simplify=False)) is rasp.SelectorOr
    assert type(rasp.selector_not(BEFORE, simplify=False)) is rasp.SelectorNot


def test_what_is_aggregated_has_two_names() -> None:
    for moved in (
        rasp.Aggregate(SAME, rasp.tokens, "d"),
        rasp.Aggregate(SAME, values=rasp.tokens, default="d"),
        rasp.Aggregate(selector=SAME, sop=rasp.tokens, default="d"),
    ):
        assert moved.sop is moved.values is rasp.tokens
        assert moved.default == "d"


# --- constants of one input ----------------------------------------------------------------------


def test_constants_stand_for_a_sequence_and_a_pattern() -> None:
    values = rasp.ConstantSOp([0, 4, 2])
    pattern = rasp.ConstantSelector(
        [[True, True, False], [False, False, False], [True, True, True]]
    )
    assert values("abc") == [0, 4, 2]
    assert (values + rasp.indices)("abc") == [0, 5, 4]
    assert pattern("abc") == pattern.value
    assert rasp.Aggregate(pattern, values, default=-1)("abc") == [2, -1, 2]
    assert (~pattern)("abc") == [[False, False, True], [True] * 3, [False] * 3]
    assert rasp.evaluate(pattern, "abc", causal=True)[0] == [True, False, False]
    assert rasp.evaluate(~pattern, "abc", causal=True) == [
        [False] * 3,
        [True, True, False],
        [False] * 3,
    ]


@pytest.mark.parametrize("kind", [rasp.ConstantSOp, rasp.ConstantSelector])
def test_a_constant_of_another_length_is_refused_unless_it_is_not_to_be(kind: type) -> None:
    value = [1, 2] if kind is rasp.ConstantSOp else [[True, False], [True, True]]
    with pytest.raises(rasp.RaspError) as raised:
        kind(value)("abc")
    assert str(raised.value) == (
        f"{kind(value).name!r}: it has 2 values, the input 3; "
        "check_length=False would cut off what is left over."
    )
    assert kind(value, check_length=False)("abc") == value


def test_what_is_left_over_of_a_constant_is_cut_off() -> None:
    short = rasp.ConstantSOp([1, 2], check_length=False)
    assert (short + rasp.indices)("abc") == [1, 3]
    assert (
        rasp.Aggregate(rasp.Select(rasp.tokens, rasp.tokens, rasp.Comparison.TRUE), short)("abc")
        == [1.5] * 3
    )


# --- numbers of numpy ----------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_are_numbers_everywhere() -> None:
    doubled = rasp.numerical(rasp.Map(lambda x: np.int64(2 * x), rasp.tokens))
    model = compile_program(doubled, vocab=np.arange(3), max_seq_len=np.int64(4))  # pyright: ignore
    assert model.apply(np.array([2, 0])) == model.apply([np.int8(2), 0]) == [4.0, 0.0]
    constant = rasp.numerical(rasp.Full(np.float32(0.5)))
    assert compile_program(constant, vocab=[0, 1], max_seq_len=3).apply([1]) == [0.5]
    everything = rasp.Select(rasp.tokens, rasp.tokens, lambda key, query: np.bool_(True))  # pyright: ignore
    assert rasp.Aggregate(everything, rasp.Map(np.int64, rasp.tokens))([1, 2]) == [1.5, 1.5]


def test_a_number_of_numpy_may_stand_on_either_side() -> None:
    one = np.int64(1)
    assert (one + rasp.tokens)([1, 2]) == (rasp.tokens + one)([1, 2]) == [2, 3]
    assert (one == rasp.tokens)([1, 2]) == [True, False]
    assert (one < rasp.tokens)([1, 2]) == [False, True]  # pyright: ignore
