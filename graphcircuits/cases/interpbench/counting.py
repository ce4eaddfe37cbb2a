"""InterpBench's cases whose heads count: selector widths, then elementwise functions of them."""

from graphcircuits.cases.idioms import ABC, TO_29, histogram, ib_recipe, length_of, zero
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


@ib_recipe("ib-7", "histogram", vocab=ABC, causal=False)
def occurrences() -> SOp:
    """Number of occurrences of the current token in the sequence."""
    return histogram()


@ib_recipe("ib-14", "count-a", vocab=ABC, causal=False)
def count_a() -> SOp:
    """Number of 'a' in the sequence, repeated at every position."""
    is_a = Select(tokens, tokens, lambda key, query: key == "a")
    return SelectorWidth(is_a).named("count_a")


@ib_recipe("ib-18", "frequency-class", vocab=("a", "b", "c", "d", "e"), causal=False)
def frequency_class() -> SOp:
    """'frequent' if count > n/2, 'common' if count > n/4, otherwise 'rare'."""

    def classify(count: int, length: int) -> str:
        if count > length / 2:
            return "frequent"
        return "common" if count > length / 4 else "rare"

    return SequenceMap(classify, histogram(), length_of(tokens, selector="all_true_selector"))


@ib_recipe("ib-25", "relative-frequency", vocab=ABC, causal=False)
def relative_frequency() -> SOp:
    """Count of the current token divided by the sequence length."""
    length = length_of(tokens, selector="all_true_selector")
    return SequenceMap(lambda count, n: count / n if n else None, histogram(), length)


@ib_recipe("ib-44", "count-greater", causal=False)
def count_greater() -> SOp:
    """Number of greater elements."""
    greater = Select(tokens, tokens, Comparison.GT).named("greater_than_selector")
    return SelectorWidth(greater).named("count_greater_than")


@ib_recipe("ib-45", "double-first-half", causal=False)
def double_first_half() -> SOp:
    """Double the elements of the first half."""
    first_half = SequenceMap(lambda i, n: int(i < n / 2), indices, length_of(tokens)).named(
        "first_half_selector"
    )
    return SequenceMap(lambda x, flag: x * (1 + flag), tokens, first_half).named(
        "double_first_half"
    )


@ib_recipe("ib-63", "count-less", causal=False)
def count_less() -> SOp:
    """Number of smaller elements."""
    less = Select(tokens, tokens, Comparison.LT).named("lt_selector")
    return SelectorWidth(less).named("count_lt")


@ib_recipe("ib-67", "times-length", causal=False)
def times_length() -> SOp:
    """Multiply by the sequence length."""
    length = length_of(tokens, selector="all_true_selector", named="length_sequence")
    return SequenceMap(lambda x, n: x * n, tokens, length).named("multiply_by_length_sequence")


@ib_recipe("ib-71", "divide-by-length", causal=False)
def divide_by_length() -> SOp:
    """Divide by the sequence length."""
    length = length_of(tokens, selector="all_true_selector")
    return SequenceMap(lambda x, n: x / n if n else 0, tokens, length).named("divided_by_length")


@ib_recipe("ib-82", "halve-second-half", causal=False)
def halve_second_half() -> SOp:
    """Halve the elements of the second half."""
    length = length_of(tokens, selector="all_true_selector")
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
