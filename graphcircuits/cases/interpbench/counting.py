"""InterpBench's cases whose heads count: selector widths, then elementwise functions of them."""

from graphcircuits.cases.idioms import TO_29, histogram, ib_recipe, ib_recipes, length_of, zero
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


def n_tokens(named: str = "length") -> SOp:
    """The number of tokens, by the selector that the public benchmark calls so."""
    return length_of(tokens, selector="all_true_selector", named=named)


SHORT = ib_recipes(
    {
        "histogram": histogram,
        "count-a": lambda: SelectorWidth(
            Select(tokens, tokens, lambda key, query: key == "a")
        ).named("count_a"),
        "relative-frequency": lambda: SequenceMap(
            lambda count, n: count / n if n else None, histogram(), n_tokens()
        ),
        "count-greater": lambda: SelectorWidth(
            Select(tokens, tokens, Comparison.GT).named("greater_than_selector")
        ).named("count_greater_than"),
        "count-less": lambda: SelectorWidth(
            Select(tokens, tokens, Comparison.LT).named("lt_selector")
        ).named("count_lt"),
        "times-length": lambda: SequenceMap(
            lambda x, n: x * n, tokens, n_tokens("length_sequence")
        ).named("multiply_by_length_sequence"),
        "divide-by-length": lambda: SequenceMap(
            lambda x, n: x / n if n else 0, tokens, n_tokens()
        ).named("divided_by_length"),
    }
)


@ib_recipe("ib-18", "frequency-class", vocab=("a", "b", "c", "d", "e"), causal=False)
def frequency_class() -> SOp:
    """'frequent' if count > n/2, 'common' if count > n/4, otherwise 'rare'."""

    def classify(count: int, length: int) -> str:
        if count > length / 2:
            return "frequent"
        return "common" if count > length / 4 else "rare"

    return SequenceMap(classify, histogram(), n_tokens())


@ib_recipe("ib-45", "double-first-half", causal=False)
def double_first_half() -> SOp:
    """Double the elements of the first half."""
    first_half = SequenceMap(lambda i, n: int(i < n / 2), indices, length_of(tokens)).named(
        "first_half_selector"
    )
    return SequenceMap(lambda x, flag: x * (1 + flag), tokens, first_half).named(
        "double_first_half"
    )


@ib_recipe("ib-82", "halve-second-half", causal=False)
def halve_second_half() -> SOp:
    """Halve the elements of the second half."""
    length = n_tokens()
    half = Map(lambda n: n // 2, length).named("half_length")
    second = SequenceMap(lambda i, middle: i >= middle, indices, half).named("in_second_half")
    return SequenceMap(lambda x, flag: x / 2 if flag else x, tokens, second).named(
        "halved_sequence"
    )


@ib_recipe("ib-124", "all-equal", causal=False, sampler="constant-or-distinct")
def all_equal() -> SOp:
    """1 if all elements are equal else 0."""
    different = SelectorWidth(Select(tokens, tokens, Comparison.NEQ))
    like_all_others = SelectorWidth(Select(different, zero(), Comparison.EQ))
    return Map(lambda count: int(count > 0), like_all_others)


@ib_recipe("ib-129", "all-even", vocab=TO_29, causal=False, sampler="even-or-one-odd")
def all_even() -> SOp:
    """1 if all elements are even else 0."""
    even = Map(lambda x: int(x % 2 == 0), tokens).named("check_multiple_of_2")
    odd_count = SelectorWidth(Select(even, zero(), Comparison.EQ))
    return Map(lambda count: int(count == 0), odd_count)
