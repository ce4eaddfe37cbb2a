"""TracrBench's tasks that read tokens at the same, at fixed, neighbouring or computed positions."""

from fractions import Fraction

from graphcircuits.cases.idioms import (
    TO_FOUR,
    back,
    constant,
    cyclic_index,
    first,
    gather,
    length,
    mirror_index,
    next_index,
    recipe,
)
from graphcircuits.rasp import Aggregate, Map, Select, SequenceMap, SOp, indices, tokens

# Single positions: one MLP, no attention


@recipe("tb-alternate-elements", causal=True)
def alternate_elements() -> SOp:
    """The token at even positions, the position number at odd ones."""
    return SequenceMap(lambda x, i: x if i % 2 == 0 else i, tokens, indices)


@recipe("tb-check-even", causal=True)
def check_even() -> SOp:
    """1 where the token is even, 0 where it is odd."""
    return Map(lambda x: int(x % 2 == 0), tokens)


@recipe("tb-divide-by", causal=True)
def divide_by() -> SOp:
    """Half of each token."""
    return Map(lambda x: x / 2, tokens)


@recipe("tb-increment-by-index", causal=True)
def increment_by_index() -> SOp:
    """Token plus position."""
    return SequenceMap(lambda x, i: x + i, tokens, indices)


# The next three read the token and do not use it: TracrBench's programs are functions of tokens.


@recipe("tb-index-parity", causal=True)
def index_parity() -> SOp:
    """0 at even positions, 1 at odd ones."""
    return SequenceMap(lambda _, i: i % 2, tokens, indices)


@recipe("tb-position", causal=True)
def position() -> SOp:
    """The position, counted from 1."""
    return SequenceMap(lambda _, i: i + 1, tokens, indices)


@recipe("tb-set-to-index", causal=True)
def set_to_index() -> SOp:
    """The position, counted from 0."""
    return SequenceMap(lambda _, i: i, tokens, indices)


@recipe("tb-replace-small-tokens", causal=True)
def replace_small_tokens() -> SOp:
    """0 instead of tokens below 2."""
    return Map(lambda x: x if x >= 2 else 0, tokens)


@recipe("tb-wrap", vocab=tuple(range(10)), causal=True)
def wrap() -> SOp:
    """The token wrapped around into 2..6: plus or minus 5 until it fits."""
    return Map(lambda x: 2 + (x - 2) % 5, tokens)


@recipe("tb-zero-even-indices", causal=True)
def zero_even_indices() -> SOp:
    """0 at even positions, the token at odd ones."""
    return SequenceMap(lambda x, i: x if i % 2 == 1 else 0, tokens, indices)


# Fixed positions


@recipe("tb-first-element", causal=True)
def first_element() -> SOp:
    """The first token, everywhere."""
    return first()


@recipe("tb-element-second")
def element_second() -> SOp:
    """The second token, everywhere."""
    return gather(constant(1))


@recipe("tb-check-multiple-of-first", causal=True)
def check_multiple_of_first() -> SOp:
    """1 where the token is a multiple of the first token, else 0; all 0 when the first token is
    0."""
    return SequenceMap(
        lambda x, divisor: int(divisor != 0 and x % divisor == 0), tokens, gather(constant(0))
    )


@recipe("tb-one-hot-first", causal=True)
def one_hot_first() -> SOp:
    """1 at the position whose number is the first token, 0 elsewhere."""
    return SequenceMap(lambda x, i: int(x == i), first(), indices)


@recipe("tb-element-divide")
def element_divide() -> SOp:
    """Every token divided by second token / first token; unchanged when either of them is 0."""
    # Exact fractions: equal quotients must be one value, which they are not after rounding.
    ratio = SequenceMap(
        lambda x, y: Fraction(y, x) if x and y else Fraction(1),
        gather(constant(0)),
        gather(constant(1)),
    ).named("ratio")
    return SequenceMap(lambda x, r: float(x / r), tokens, ratio)


@recipe("tb-polynomial", vocab=TO_FOUR, max_seq_len=6, min_seq_len=4)
def polynomial() -> SOp:
    """Second token times first token plus third token, everywhere."""
    x, slope, offset = (gather(constant(i)).named(f"token_{i}") for i in range(3))
    product = SequenceMap(lambda c, x: c * x, slope, x).named("product")
    return SequenceMap(lambda p, c: p + c, product, offset)


@recipe("tb-multiply-all-elements", vocab=TO_FOUR, max_seq_len=7, min_seq_len=4)
def multiply_all_elements() -> SOp:
    """The product of the first three tokens, everywhere."""
    one, two, three = (gather(constant(i)).named(f"token_{i}") for i in range(3))
    product = SequenceMap(lambda x, y: x * y, one, two).named("product")
    return SequenceMap(lambda p, x: p * x, product, three)


@recipe("tb-swap-elements")
def swap_elements() -> SOp:
    """The sequence with its first two tokens exchanged."""
    origin = Map(lambda i: 1 - i if i < 2 else i, indices).named("origin")
    return gather(origin)


# Earlier neighbours


@recipe("tb-pairwise-max", causal=True)
def pairwise_max() -> SOp:
    """The larger of this and the previous token."""
    return SequenceMap(max, tokens, back(1))


@recipe("tb-pairwise-sum", causal=True)
def pairwise_sum() -> SOp:
    """The sum of this and the previous token; the first token unchanged."""
    previous = SequenceMap(lambda x, i: x if i else 0, back(1), indices).named("previous_or_0")
    return SequenceMap(lambda x, y: x + y, tokens, previous)


@recipe("tb-rolling-max", causal=True)
def rolling_max() -> SOp:
    """The largest of this and the two previous tokens."""
    return SequenceMap(max, tokens, SequenceMap(max, back(1), back(2)).named("larger_before"))


@recipe("tb-zero-if-less-than-previous", causal=True)
def zero_if_less_than_previous() -> SOp:
    """0 instead of tokens that are smaller than their predecessor."""
    return SequenceMap(lambda x, before: 0 if x < before else x, tokens, back(1))


@recipe("tb-predecessor-difference", causal=True)
def predecessor_difference() -> SOp:
    """This token minus the previous one; 0 at the first position."""
    return SequenceMap(lambda x, before: x - before, tokens, back(1))


# Later neighbours


@recipe("tb-difference-to-next")
def difference_to_next() -> SOp:
    """The next token minus this one; 0 at the last position."""
    return SequenceMap(lambda x, after: after - x, tokens, gather(next_index(length())))


@recipe("tb-product-with-next")
def product_with_next() -> SOp:
    """Token times the next token; the last one squared."""
    return SequenceMap(lambda x, after: x * after, tokens, gather(next_index(length())))


@recipe("tb-sum-with-next")
def sum_with_next() -> SOp:
    """Token plus the next token; the last one doubled."""
    return SequenceMap(lambda x, after: x + after, tokens, gather(next_index(length())))


@recipe("tb-one-if-equal-to-next")
def one_if_equal_to_next() -> SOp:
    """1 instead of tokens that equal the next one, the last followed by the first."""
    after = gather(cyclic_index(length(), step=1))
    return SequenceMap(lambda x, y: 1 if x == y else x, tokens, after)


# The end


def from_the_end(distance: int, n: SOp) -> SOp:
    """The token `distance` positions before the end, 1 for the last one."""
    return gather(Map(lambda n: max(n - distance, 0), n).named(f"end_minus_{distance}"))


@recipe("tb-average-first-last")
def average_first_last() -> SOp:
    """The mean of the first and the last token, everywhere."""
    return SequenceMap(lambda x, y: (x + y) / 2, gather(constant(0)), from_the_end(1, length()))


@recipe("tb-check-last-two-equal", sampler="last-two-equal")
def check_last_two_equal() -> SOp:
    """All 1 when the last two tokens are equal, else all 0."""
    n = length()
    return SequenceMap(lambda x, y: int(x == y), from_the_end(1, n), from_the_end(2, n))


@recipe("tb-sum-of-last-two")
def sum_of_last_two() -> SOp:
    """The sum of the last two tokens, everywhere."""
    n = length()
    return SequenceMap(lambda x, y: x + y, from_the_end(1, n), from_the_end(2, n))


# Rearranging


@recipe("tb-rotate-left")
def rotate_left() -> SOp:
    """The sequence rotated left by one."""
    return gather(cyclic_index(length(), step=1))


@recipe("tb-swap-first-last")
def swap_first_last() -> SOp:
    """The sequence with its first and last token exchanged."""

    def origin(i: int, n: int) -> int:
        return n - 1 - i if i in (0, n - 1) else i

    return gather(SequenceMap(origin, indices, length()).named("origin"))


@recipe("tb-flip-halves")
def flip_halves() -> SOp:
    """First and second half exchanged; the middle token of an odd length stays."""

    def origin(i: int, n: int) -> int:
        half = n // 2
        if i < half:
            return i + n - half
        return i - (n - half) if i >= n - half else i

    return gather(SequenceMap(origin, indices, length()).named("origin"))


@recipe("tb-interleave-reverse")
def interleave_reverse() -> SOp:
    """Tokens at even positions stay, those at odd positions come in reverse order."""

    def origin(i: int, n: int) -> int:
        return i if i % 2 == 0 else n - n % 2 - i

    return gather(SequenceMap(origin, indices, length()).named("origin"))


@recipe("tb-elementwise-product-of-half-sequence")
def elementwise_product_of_half_sequence() -> SOp:
    """First half times second half, each item of both written twice (for even lengths)."""

    def stretched(values: SOp) -> SOp:
        doubled = Select(indices, indices, lambda key, query: key == query // 2)
        return Aggregate(doubled, values).named("stretched")

    # The second half is the first half of the reversed sequence, turned around once more.
    mirror = mirror_index(length())
    second = gather(mirror, stretched(gather(mirror).named("reversed"))).named("second_half")
    return SequenceMap(lambda x, y: x * y, stretched(tokens), second)
