"""TracrBench's tasks that rank: count smaller or larger keys, then read by rank."""

from graphcircuits.cases.idioms import (
    constant,
    frequency,
    larger,
    last,
    length,
    of_rank,
    recipe,
    recipes,
    smaller,
    token_and_index,
    up_to_four,
)
from graphcircuits.rasp import (
    Comparison,
    Map,
    Select,
    SelectorWidth,
    SequenceMap,
    SOp,
    indices,
    tokens,
)


def maximum(key: SOp) -> SOp:
    """The token of the largest key."""
    return of_rank(larger(key), constant(0)).named("maximum")


def minimum(key: SOp) -> SOp:
    """The token of the smallest key."""
    return of_rank(smaller(key), constant(0)).named("minimum")


@recipe("tb-max-element", sampler="subset")
def max_element() -> SOp:
    """The largest token, everywhere."""
    return maximum(token_and_index())


@recipe("tb-min-element", sampler="subset")
def min_element() -> SOp:
    """The smallest token, everywhere."""
    key = token_and_index()
    not_smaller = SelectorWidth(Select(key, key, Comparison.GEQ)).named("not_smaller")
    return of_rank(not_smaller, length())


@up_to_four("tb-rescale-by-max", sampler="subset")
def rescale_by_max() -> SOp:
    """The token divided by the largest token (by 1 when that is 0)."""
    divisor = Map(lambda most: most or 1, maximum(token_and_index())).named("divisor")
    return SequenceMap(lambda x, y: x / y, tokens, divisor)


@up_to_four("tb-rescale", sampler="subset")
def rescale() -> SOp:
    """The tokens rescaled so that the smallest is 0 and the largest 1; all 1 when they are
    equal."""
    key = token_and_index()
    least, most = minimum(key), maximum(key)
    spread = SequenceMap(lambda x, y: x - y, most, least).named("spread")
    above = SequenceMap(lambda x, y: x - y, tokens, least).named("above_minimum")
    return SequenceMap(lambda x, y: x / y if y else 1.0, above, spread)


@up_to_four("tb-swap-min-max", sampler="subset")
def swap_min_max() -> SOp:
    """Every largest token replaced by the smallest one and the other way round."""

    def swapped(x: int, ends: tuple[int, int]) -> int:
        low, high = ends
        return {low: high, high: low}.get(x, x)

    key = token_and_index()
    ends = SequenceMap(lambda x, y: (x, y), minimum(key), maximum(key)).named("ends")
    return SequenceMap(swapped, tokens, ends)


def median() -> SOp:
    """The median, everywhere: the mean of the two middle tokens of an even length."""
    rank, n = smaller(token_and_index()), length()
    below = of_rank(rank, Map(lambda n: last(n) // 2, n).named("lower_middle"))
    above = of_rank(rank, Map(lambda n: n // 2, n).named("upper_middle"))
    return SequenceMap(lambda x, y: (x + y) / 2, below, above)


def ascending() -> SOp:
    """The tokens in ascending order."""
    return of_rank(smaller(token_and_index()), indices)


SORTED = recipes(
    {
        # TracrBench has the median and the sort twice, under two names.
        "tb-compute-median": median,
        "tb-set-to-median": median,
        "tb-sort": ascending,
        "tb-sorting": ascending,
        "tb-sort-unique": lambda: of_rank(smaller(tokens), indices),
    }
)


@recipe("tb-sort-freq")
def sort_freq() -> SOp:
    """The tokens in the order of how often they occur, most frequent first, ties in their order."""
    rarity = Map(lambda count: -count, frequency()).named("rarity")
    key = SequenceMap(lambda x, i: (x, i), rarity, indices).named("key")
    return of_rank(smaller(key), indices)
