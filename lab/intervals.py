"""How sure a difference between methods is: intervals over cases and over training seeds.

A table has a row per case and a column per training seed. Both are samples: other cases and other
seeds would have given other figures. `bootstrap` draws both anew, with replacement: cases alike
for all tables, since they were measured on the same ones, and seeds for each table on its own,
since a seed is one trained predictor, whatever the case. The interval holds 95% of the drawn
values, and still does where any one seed of any table is left out, so that nothing rests on a
single training that failed. `Interval.is_above` decides whether a value is above zero: yes, no, or
undecided.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

MINUS = "\N{MINUS SIGN}"
DRAWS = 2000
COVERED = 0.95

ByCase = Mapping[str, Mapping[int, float]]
"""Values by case and seed."""
Table = Float[np.ndarray, "case _"]
Means = Float[np.ndarray, "draw case"]
Statistic = Callable[[Sequence[Means]], Float[np.ndarray, " draw"]]
"""Of the case means of each table, draw by draw."""


def signed(value: float) -> str:
    """A difference in three digits; one that is printed as zero has no sign."""
    text = f"{value:+.3f}".replace("-", MINUS)
    return text if text.strip(f"+{MINUS}0.") else "0.000"


@dataclass(frozen=True)
class Interval:
    """A value, and where it may as well lie."""

    value: float
    low: float
    high: float

    @property
    def is_above(self) -> bool | None:
        """Whether it is above zero as far as three digits tell; None where it may be either."""
        if round(self.low, 3) > 0:
            return True
        return False if round(self.high, 3) <= 0 else None

    def __str__(self) -> str:
        return f"{signed(self.value)} [{signed(self.low)}, {signed(self.high)}]"


def difference_of_medians(one: ByCase, other: ByCase) -> Interval:
    """The median of the first over cases minus that of the second."""
    return above_the_rest(one, [other])


def above_the_rest(one: ByCase, others: Sequence[ByCase], quantile: float = 0.5) -> Interval:
    """A quantile of the first over cases minus the largest of the others."""

    def lead(means: Sequence[Means]) -> Float[np.ndarray, " draw"]:
        first, *rest = (np.quantile(x, quantile, axis=-1) for x in means)
        return first - np.max(rest, axis=0)

    return bootstrap([one, *others], lead)


def bootstrap(tables: Sequence[ByCase], statistic: Statistic) -> Interval:
    """The statistic of the cases that all tables have, with its interval."""
    shared = [case for case in tables[0] if all(case in table for table in tables)]
    if not shared:
        raise ValueError("the tables have no case in common, so they cannot be compared.")
    arrays = [_array(table, shared) for table in tables]
    ends = [_ends(some, statistic) for some in (arrays, *_without_a_seed(arrays))]
    (value,) = statistic([array.mean(1)[None] for array in arrays]).tolist()
    return Interval(value, min(low for low, _ in ends), max(high for _, high in ends))


def _ends(arrays: Sequence[Table], statistic: Statistic) -> tuple[float, float]:
    """Between which the covered part of the drawn values lies."""
    generator = np.random.default_rng(0)
    n_cases = len(arrays[0])
    cases = generator.integers(n_cases, size=(DRAWS, n_cases))
    drawn = []
    for array in arrays:
        n = array.shape[1]
        seeds = generator.multinomial(n, [1 / n] * n, size=DRAWS) / n
        drawn.append(np.take_along_axis(seeds @ array.T, cases, axis=1))
    low, high = np.quantile(statistic(drawn), [(1 - COVERED) / 2, (1 + COVERED) / 2])
    return float(low), float(high)


def _without_a_seed(arrays: Sequence[Table]) -> Iterator[list[Table]]:
    """The tables once for each seed of each, which that table then lacks."""
    for place, array in enumerate(arrays):
        for seed in range(array.shape[1] if array.shape[1] > 1 else 0):
            yield [*arrays[:place], np.delete(array, seed, axis=1), *arrays[place + 1 :]]


def _array(table: ByCase, cases: Sequence[str]) -> Table:
    """Values of the seeds that all cases have."""
    seeds = sorted(set.intersection(*(set(table[case]) for case in cases)))
    if not seeds:
        raise ValueError("no seed is common to all cases, so seeds cannot be drawn anew.")
    return np.array([[table[case][seed] for seed in seeds] for case in cases])
