"""The fast interpreter gives what the reference interpreter gives, with and without overrides."""

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.cases import case_ids, load_case
from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    RaspError,
    Select,
    SequenceMap,
    SOp,
    Value,
    evaluate,
    indices,
    numerical,
    tokens,
)
from graphcircuits.rasp.lookup import run, undefined
from graphcircuits.rasp.tabulate import NONE, Tables, tabulate
from graphcircuits.rasp.validate import problems
from tests.rasp.columns import decode, encode
from tests.rasp.hard import HARD
from tests.rasp.wild import wild
from tests.tiers import some

PREVIOUS = Select(indices, indices, lambda key, query: key == query - 1)


def agree(got: Sequence[Value], expected: Sequence[Value]) -> bool:
    return all(
        x == (pytest.approx(y, rel=1e-12) if isinstance(y, float) else y)
        for x, y in zip(got, expected, strict=True)
    )


def drawn(tables: Tables, n: int, choice: random.Random) -> list[list[Value]]:
    """Inputs of every length, at least one of them the longest."""
    lengths = [choice.randint(1, tables.max_length) for _ in range(n - 1)]
    return [choice.choices(tables.vocab, k=length) for length in (*lengths, tables.max_length)]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("id", some(case_ids("ib")))
def test_every_variable_of_every_case(id: str) -> None:
    case, choice = load_case(id), random.Random(id)
    tables, inputs = case.tables, drawn(case.tables, 8, choice)
    columns = run(tables, encode(tables, inputs)).columns
    for sop in tables.variables:
        for row, xs in zip(columns[sop], inputs, strict=True):
            expected = evaluate(sop, xs, causal=case.causal)
            assert agree(decode(tables, sop, row[: len(xs)]), expected)
            assert decode(tables, sop, row[len(xs) :]) == [None] * (len(row) - len(xs))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("id", some(case_ids("ib")))
def test_every_variable_taken_from_another_input(id: str) -> None:
    case, choice = load_case(id), random.Random(id)
    tables = case.tables
    length = choice.randint(1, tables.max_length)
    inputs = [choice.choices(tables.vocab, k=length) for _ in range(6)]
    codes = encode(tables, inputs)
    columns = run(tables, codes).columns
    for sop in tables.variables:
        overrides = {sop: np.roll(columns[sop], 1, axis=0)}
        trace = run(tables, codes, overrides)
        skipped = undefined(tables, codes, trace, overrides)
        for i, xs in enumerate(inputs):
            given = {sop: decode(tables, sop, columns[sop][i - 1])}
            try:
                expected = evaluate(case.program, xs, causal=case.causal, overrides=given)
            except RaspError as error:
                # The other input's values can make an aggregate select different ones.
                assert "no mean" in str(error)  # noqa: PT017
                continue
            got = decode(tables, case.program, trace.columns[case.program][i])
            defined = np.flatnonzero(~skipped[i])
            assert agree([got[j] for j in defined], [expected[j] for j in defined])


@pytest.mark.usefixtures("unchecked")
@given(st.integers(0, 2**32).map(random.Random))
def test_every_variable_of_wild_programs(choice: random.Random) -> None:
    case = wild(choice)
    tables = tabulate(
        case.program, vocab=case.vocab, max_seq_len=case.max_seq_len, causal=case.causal
    )
    if problems(tables):
        return
    inputs = [xs for xs in case.inputs(12, choice) if case.expected(xs) is not None]
    columns = run(tables, encode(tables, inputs)).columns
    for sop in tables.variables:
        for row, xs in zip(columns[sop], inputs, strict=True):
            expected = evaluate(sop, xs, causal=case.causal)
            assert agree(decode(tables, sop, row[: len(xs)]), expected)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("what", some(HARD))
def test_every_variable_of_hard_programs_on_every_input(what: str, causal: bool) -> None:
    build, vocab = HARD[what]
    tables = tabulate(build(), vocab=vocab, max_seq_len=5, causal=causal)
    inputs = [list(xs) for n in range(1, 5) for xs in itertools.product(vocab, repeat=n)][::3]
    columns = run(tables, encode(tables, inputs)).columns
    for sop in tables.variables:
        for row, xs in zip(columns[sop], inputs, strict=True):
            expected = evaluate(sop, xs, causal=causal)
            assert agree(decode(tables, sop, row[: len(xs)]), expected)


def test_a_mixture_is_marked_where_it_is() -> None:
    seen = Aggregate(Select(indices, indices, Comparison.LEQ), tokens)
    tables = tabulate(seen, vocab="ab", max_seq_len=5)
    codes = encode(tables, [list("aaba"), list("bb")])
    conflicts = run(tables, codes).conflicts[seen]
    assert conflicts.tolist() == [[False, False, True, True], [False] * 4]


def test_None_beside_a_value_is_a_mixture() -> None:
    shifted = Aggregate(PREVIOUS, tokens)
    everything = Aggregate(Select(tokens, tokens, Comparison.TRUE), shifted)
    tables = tabulate(everything, vocab="a", max_seq_len=4)
    conflicts = run(tables, encode(tables, [["a"], ["a", "a"]])).conflicts
    assert conflicts[everything].tolist() == [[False, False], [True, True]]
    assert not conflicts[shifted].any()


def overridden_output(program: SOp, sop: SOp, values: str) -> tuple[list[bool], list[bool]]:
    """Where the output is undefined and where it is not, after an override on input `abab`."""
    tables = tabulate(program, vocab="ab", max_seq_len=5)
    codes = encode(tables, [list("abab")])
    overrides = {sop: encode(tables, [list(values)])}
    trace = run(tables, codes, overrides)
    bad = undefined(tables, codes, trace, overrides)[0]
    return bad.tolist(), (trace.columns[program][0] != NONE).tolist()


def test_undefined_marks_what_rests_on_a_mixture() -> None:
    copy = tokens + ""
    same = Select(tokens, tokens, Comparison.EQ)
    common = Aggregate(same, copy)
    # Within each letter the copies agree, until the override makes those of `a` differ.
    assert overridden_output(common, copy, "abab")[0] == [False] * 4
    assert overridden_output(common, copy, "abbb")[0] == [True, False, True, False]
    later = SequenceMap(lambda x, y: x + y, Aggregate(PREVIOUS, common), tokens)
    assert overridden_output(later, copy, "abbb")[0] == [False, True, False, True]
    assert overridden_output(later, common, "abbb")[0] == [False] * 4


@pytest.mark.parametrize("nudge", [-1e-9, 0, 1e-9])
def test_numbers_take_the_nearest_code(nudge: float) -> None:
    marks = numerical(tokens == "a")
    share = numerical(Aggregate(Select(tokens, tokens, Comparison.TRUE), marks))
    half = share == 0.5
    tables = tabulate(half, vocab="ab", max_seq_len=5)
    codes = encode(tables, [list("ab"), list("aa")])
    nudged = run(tables, codes).columns[share] + nudge
    column = run(tables, codes, {share: nudged}).columns[half]
    assert decode(tables, half, column[0]) == [True, True]
    assert decode(tables, half, column[1]) == [False, False]
