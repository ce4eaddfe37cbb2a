"""Programs that have no exact weights are refused, with the reason and, for mixtures, an input."""

import itertools
import re
import sys

import numpy as np
import pytest

from graphcircuits.cases import case_ids, load_case
from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Full,
    LinearSequenceMap,
    Map,
    RaspError,
    Select,
    SelectorAnd,
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
from graphcircuits.rasp.tabulate import NONE, tabulate
from graphcircuits.rasp.validate import TRIALS, clusters, trial_inputs, validate
from tests.tiers import some

ALL = Select(tokens, tokens, Comparison.TRUE)
SAME = Select(tokens, tokens, Comparison.EQ)
BEFORE = Select(indices, indices, Comparison.LT)
PREVIOUS = Select(indices, indices, lambda key, query: key == query - 1)


def reasons(
    program: SOp, vocab: object = "abc", max_seq_len: int = 6, causal: bool = False
) -> list[str]:
    found = validate(program, vocab=vocab, max_seq_len=max_seq_len, causal=causal)  # pyright: ignore
    return [str(problem) for problem in found]


# --- mixtures ------------------------------------------------------------------------------------


def counterexample(program: SOp, vocab: object = "abc", max_seq_len: int = 6) -> list[Value]:
    """The input on which the program is said to mix values; checked with the interpreter."""
    (reason,) = reasons(program, vocab, max_seq_len)
    said = "a categorical aggregate moves one value, but this one selects different values on "
    assert reason.startswith("'")
    found = re.search(re.escape(said) + r"(\[.*\])$", reason)
    assert found, reason
    xs = eval(found[1])
    assert isinstance(program, Aggregate)
    values, rows = evaluate(program.values, xs), evaluate(program.selector, xs)
    chosen = [{value for value, on in zip(values, row, strict=True) if on} for row in rows]
    assert max(map(len, chosen)) > 1
    return xs


def test_a_mixture_is_shown_on_an_input() -> None:
    assert len(set(counterexample(Aggregate(ALL, tokens)))) > 1
    counterexample(Aggregate(BEFORE, tokens))
    counterexample(Aggregate(SAME, indices))
    counterexample(Aggregate(Select(tokens, indices, lambda key, query: key == "a"), indices))


def test_None_beside_a_value_is_a_mixture() -> None:
    shifted = Aggregate(PREVIOUS, tokens)
    assert len(counterexample(Aggregate(ALL, shifted), vocab="a")) >= 2


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_mixture_of_rare_tokens_in_a_large_vocabulary_is_found() -> None:
    rare = Select(tokens, tokens, lambda key, query: key == 7 and query == 9)
    xs = counterexample(Aggregate(rare, indices), vocab=range(500), max_seq_len=10)
    assert xs.count(7) >= 2
    assert 9 in xs


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_mixture_that_needs_equal_tokens_in_a_large_vocabulary_is_found() -> None:
    xs = counterexample(Aggregate(SAME, indices), vocab=range(500), max_seq_len=5)
    assert len(set(xs)) < len(xs)


def test_a_mixture_on_one_input_of_thousands_is_found() -> None:
    word = "bccabca"
    spelled = tokens == word[-1]
    for back, letter in enumerate(reversed(word[:-1]), start=1):
        earlier = Select(indices, indices, lambda key, query, back=back: key == query - back)
        here = Aggregate(earlier, tokens == letter, default=False)
        spelled = SequenceMap(lambda x, y: x and y, spelled, here)
    at_end = Select(tokens, spelled, lambda key, query: query)
    n_inputs = sum(3**n for n in range(1, 8))
    assert n_inputs > 6 * TRIALS
    assert counterexample(Aggregate(at_end, indices), max_seq_len=8) == list(word)


@pytest.mark.parametrize("id", some(case_ids("ib")))
def test_no_case_has_a_problem(id: str) -> None:
    case = load_case(id)
    assert not reasons(case.program, case.vocab, case.max_seq_len, case.causal)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(Aggregate(PREVIOUS, tokens), id="one position"),
        pytest.param(Aggregate(SAME, tokens + "!"), id="equal keys, values that follow from them"),
        pytest.param(Aggregate(ALL, Full("x")), id="a constant"),
        pytest.param(Aggregate(Select(indices, indices, Comparison.EQ), indices), id="itself"),
        pytest.param(Aggregate(SelectorAnd(BEFORE, PREVIOUS), tokens), id="one of two conditions"),
    ],
)
def test_one_value_is_proved_without_trials(program: SOp, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_trials(*_: object) -> None:
        raise AssertionError("nothing should be tried")

    # The package has a function of the module's name.
    monkeypatch.setattr(sys.modules[validate.__module__], "trial_inputs", no_trials)
    assert not reasons(program)


def test_a_value_computed_in_many_shared_steps_is_proved_quickly() -> None:
    doubled: SOp = tokens
    for _ in range(60):
        doubled = SequenceMap(lambda x, y: x, doubled, doubled)
    assert not reasons(Aggregate(SAME, doubled))


def test_it_may_depend_on_the_mask() -> None:
    later = Aggregate(Select(indices, indices, Comparison.GEQ), tokens)
    assert reasons(later)
    assert not reasons(later, causal=True)


# --- trial inputs --------------------------------------------------------------------------------


def test_few_inputs_are_tried_all() -> None:
    codes = trial_inputs(tabulate(tokens, vocab="abc", max_seq_len=5))
    rows = {tuple(row[row != NONE]) for row in codes}
    expected = {row for n in range(1, 5) for row in itertools.product(range(3), repeat=n)}
    assert rows == expected
    assert len(codes) == len(expected)


def test_many_inputs_are_tried_at_random_with_rare_tokens_among_them() -> None:
    special = Map(lambda x: x == 123, tokens)
    tables = tabulate(special, vocab=range(1000), max_seq_len=12)
    codes = trial_inputs(tables)
    lengths = (codes != NONE).sum(axis=1)
    assert codes.shape == (TRIALS, 11)
    assert set(lengths) == set(range(1, 12))
    assert all((row[:n] != NONE).all() for row, n in zip(codes, lengths, strict=True))
    assert (codes == 123).any(axis=1).mean() > 0.2
    assert len(np.unique(codes)) > 500
    assert np.array_equal(codes, trial_inputs(tables))


# --- selectors -----------------------------------------------------------------------------------


def test_an_or_over_different_sequences_is_named() -> None:
    either = SelectorOr(SAME, BEFORE).named("either")
    (reason,) = reasons(SelectorWidth(either))
    assert reason.startswith("'either_2': an `or` of selectors over different sequences has no")


# --- numbers -------------------------------------------------------------------------------------


def number(low: float, high: float) -> SOp:
    return numerical(Map(lambda x: low if x == "a" else high, tokens))


def test_numbers_too_close_to_tell_apart_are_named() -> None:
    close = number(1.0, 1.0 + 1e-12)
    (reason,) = reasons(Map(lambda x: x > 1, close, simplify=False))
    assert reason == (
        "'map_1': it tells 1.0 from 1.000000000001 of 'map_2', "
        "which are too close for one direction of the stream"
    )
    assert not reasons(Map(lambda x: x > 0, close, simplify=False))
    assert not reasons(Map(lambda x: x > 1, number(1.0, 1.0 + 1e-6), simplify=False))


def test_small_numbers_left_of_large_ones_are_named() -> None:
    large = number(1e16, 1e16 + 2)
    gap = numerical(LinearSequenceMap(large, numerical(Full(1e16)), 1, -1))
    (reason,) = reasons(gap)
    assert re.fullmatch(
        r"'linear_sequence_map_1': rounding may move its numbers by \de\+00, because it is "
        "computed from much larger ones; scale these down",
        reason,
    )
    first, second = reasons(Map(lambda x: x > 1, gap, simplify=False))
    assert "rounding may move" in first
    assert "it tells 0.0 from 2.0" in second


def test_rounding_is_followed_through_factors() -> None:
    small = numerical(LinearSequenceMap(number(1e16, 1e16 + 2), numerical(Full(0)), 1e-16, 1))
    back = numerical(LinearSequenceMap(small, numerical(Full(-1.0)), 1e16, 1e16))
    assert not reasons(small)
    assert any("rounding may move" in reason for reason in reasons(back))


def test_rounding_is_followed_through_means() -> None:
    mark = numerical(LinearSequenceMap(number(1e8, 1e8 + 1), numerical(Full(1e8)), 1, -1))
    share = numerical(Aggregate(ALL, mark))
    assert not reasons(share)
    assert not reasons(numerical(LinearSequenceMap(share, share, 1, 1)))
    larger = numerical(LinearSequenceMap(share, share, 1e3, 0))
    assert any("rounding may move" in reason for reason in reasons(larger))


def test_large_numbers_alone_are_fine() -> None:
    assert not reasons(number(1e90, 3e90))
    assert not reasons(numerical(LinearSequenceMap(number(1e9, 2e9), number(0, 1e9), 1, 2)))


def test_clusters_join_neighbours_closer_than_rounding() -> None:
    values = np.array([0.0, 1e-12, 0.5, 1.0, 1.0 + 1e-15])
    assert clusters(values).tolist() == [0, 0, 1, 2, 2]
    assert clusters(values * 1e12).tolist() == [0, 0, 1, 2, 2]
    assert clusters(np.array([3.0])).tolist() == [0]


# --- everything at once --------------------------------------------------------------------------


def test_problems_of_all_kinds_are_listed_together() -> None:
    raising = Map(lambda x: x.missing, tokens).named("raising")
    mixing = Aggregate(ALL, tokens).named("mixing")
    either = SelectorWidth(SelectorOr(SAME, BEFORE).named("either"))
    close = Map(lambda x: x > 1, number(1.0, 1.0 + 1e-12), simplify=False).named("close")
    program: SOp = raising
    for other in (mixing, either, close):
        program = SequenceMap(lambda x, y: (x, y), other, program)
    named = {reason.split("_")[0] for reason in reasons(program)}
    assert named == {"'raising", "'mixing", "'either", "'close"}


def test_a_bad_vocabulary_is_no_list_of_problems() -> None:
    with pytest.raises(RaspError, match="the vocabulary is empty"):
        validate(tokens, vocab=[], max_seq_len=4)
