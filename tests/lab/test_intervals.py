"""Intervals over cases and seeds, on tables where the answer is known."""

import numpy as np
import pytest

from lab.intervals import (
    ByCase,
    Interval,
    above_the_rest,
    bootstrap,
    difference_of_medians,
    signed,
)


def table(values: "np.ndarray") -> ByCase:
    """A row per case, a column per seed."""
    return {f"c{case}": dict(enumerate(row.tolist())) for case, row in enumerate(values)}


def test_a_difference_that_is_everywhere_the_same_is_certain() -> None:
    values = np.linspace(0.5, 0.9, 16)[:, None].repeat(5, 1)
    found = difference_of_medians(table(values + 0.05), table(values))
    assert (found.value, found.is_above) == (pytest.approx(0.05), True)
    assert found.low > 0
    back = difference_of_medians(table(values), table(values + 0.05))
    assert (back.is_above, back.high) == (False, pytest.approx(-found.low, abs=1e-6))
    # What is the same on every case is not above.
    assert difference_of_medians(table(values), table(values)).is_above is False


def test_what_rests_on_one_seed_is_undecided() -> None:
    """Four of five seeds agree with the other table; one collapsed."""
    generator = np.random.default_rng(1)
    first = 0.95 + 0.02 * generator.standard_normal((16, 5))
    second = first.mean(1, keepdims=True) + 0.02 * generator.standard_normal((16, 5))
    second[:, 2] -= 0.5
    found = difference_of_medians(table(first), table(second))
    assert found.value > 0.08
    assert found.is_above is None
    second -= 0.2
    assert difference_of_medians(table(first), table(second)).is_above is True


def test_the_interval_of_a_mean_is_that_of_the_textbook() -> None:
    """Of many cases with one seed, the mean varies by its standard error."""
    values = np.random.default_rng(2).standard_normal((400, 1))
    found = bootstrap([table(values)], lambda means: means[0].mean(-1))
    error = 1.96 * values.std() / 20
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.value == pytest.approx(error, rel=0.15)
    assert found.value - found.low == pytest.approx(error, rel=0.15)


def test_quantiles_are_compared_with_the_best_of_the_rest() -> None:
    low, high = np.linspace(0.2, 1.0, 9)[:, None], np.linspace(0.6, 1.0, 9)[:, None]
    found = above_the_rest(table(high), [table(low), table(low - 0.1)], 0.0)
    assert found.value == pytest.approx(0.4)
    assert above_the_rest(table(low), [table(low - 0.1), table(high)], 0.0).value < 0


def test_only_common_cases_and_seeds_count() -> None:
    one = {"a": {0: 0.5, 1: 0.7}, "b": {0: 0.5}, "c": {0: 9.0}}
    other = {"a": {3: 0.1}, "b": {3: 0.1}}
    assert difference_of_medians(one, other).value == pytest.approx(0.4)
    with pytest.raises(ValueError, match="no case in common"):
        difference_of_medians(one, {"d": {0: 1.0}})
    with pytest.raises(ValueError, match="no seed is common"):
        difference_of_medians({"a": {0: 1.0}, "b": {1: 1.0}}, other)
    assert str(Interval(0.1, -0.02, 0.3)) == "+0.100 [\N{MINUS SIGN}0.020, +0.300]"


def test_signed_numbers() -> None:
    assert [signed(value) for value in (0.0204, -0.0204, 0.0004, -0.0004)] == [
        "+0.020",
        "\N{MINUS SIGN}0.020",
        "0.000",
        "0.000",
    ]
