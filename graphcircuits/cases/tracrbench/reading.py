"""TracrBench's tasks that read tokens at the same, at fixed, neighbouring or computed positions."""

from collections.abc import Callable
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
    recipes,
)
from graphcircuits.rasp import Aggregate, Map, Select, SequenceMap, SOp, Value, indices, tokens

SHORT = recipes(
    {
        # Single positions: one MLP, no attention
        "tb-alternate-elements": lambda: SequenceMap(
            lambda x, i: x if i % 2 == 0 else i, tokens, indices
        ),
        "tb-check-even": lambda: Map(lambda x: int(x % 2 == 0), tokens),
        "tb-divide-by": lambda: Map(lambda x: x / 2, tokens),
        "tb-increment-by-index": lambda: SequenceMap(lambda x, i: x + i, tokens, indices),
        # The next three read the token and do not use it: TracrBench's programs are functions of
        # tokens.
        "tb-index-parity": lambda: SequenceMap(lambda _, i: i % 2, tokens, indices),
        "tb-position": lambda: SequenceMap(lambda _, i: i + 1, tokens, indices),
        "tb-set-to-index": lambda: SequenceMap(lambda _, i: i, tokens, indices),
        "tb-replace-small-tokens": lambda: Map(lambda x: x if x >= 2 else 0, tokens),
        "tb-wrap": lambda: Map(lambda x: 2 + (x - 2) % 5, tokens),
        "tb-zero-even-indices": lambda: SequenceMap(
            lambda x, i: x if i % 2 == 1 else 0, tokens, indices
        ),
        # Fixed positions
        "tb-first-element": first,
        "tb-element-second": lambda: gather(constant(1)),
        "tb-check-multiple-of-first": lambda: SequenceMap(
            lambda x, y: int(y != 0 and x % y == 0), tokens, gather(constant(0))
        ),
        "tb-one-hot-first": lambda: SequenceMap(lambda x, i: int(x == i), first(), indices),
    }
)


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


def next_token() -> SOp:
    """The token after this one; the last one's is its own."""
    return gather(next_index(length()))


NEIGHBOURS = recipes(
    {
        "tb-swap-elements": lambda: gather(
            Map(lambda i: 1 - i if i < 2 else i, indices).named("origin")
        ),
        # Earlier ones
        "tb-pairwise-max": lambda: SequenceMap(max, tokens, back(1)),
        "tb-pairwise-sum": lambda: SequenceMap(
            lambda x, y: x + y,
            tokens,
            SequenceMap(lambda x, i: x if i else 0, back(1), indices).named("previous_or_0"),
        ),
        "tb-rolling-max": lambda: SequenceMap(
            max, tokens, SequenceMap(max, back(1), back(2)).named("larger_before")
        ),
        "tb-zero-if-less-than-previous": lambda: SequenceMap(
            lambda x, before: 0 if x < before else x, tokens, back(1)
        ),
        "tb-predecessor-difference": lambda: SequenceMap(lambda x, y: x - y, tokens, back(1)),
        # Later ones
        "tb-difference-to-next": lambda: SequenceMap(lambda x, y: y - x, tokens, next_token()),
        "tb-product-with-next": lambda: SequenceMap(lambda x, y: x * y, tokens, next_token()),
        "tb-sum-with-next": lambda: SequenceMap(lambda x, y: x + y, tokens, next_token()),
        "tb-one-if-equal-to-next": lambda: SequenceMap(
            lambda x, y: 1 if x == y else x, tokens, gather(cyclic_index(length(), step=1))
        ),
    }
)


def from_the_end(distance: int, n: SOp) -> SOp:
    """The token `distance` positions before the end, 1 for the last one."""
    return gather(Map(lambda n: max(n - distance, 0), n).named(f"end_minus_{distance}"))


def of_last_two(f: Callable[[int, int], Value]) -> SOp:
    """A function of the last token and the one before it."""
    n = length()
    return SequenceMap(f, from_the_end(1, n), from_the_end(2, n))


def rearranged(origin: Callable[[int, int], int]) -> SOp:
    """The tokens from elsewhere: `origin` says where from, given the position and the length."""
    return gather(SequenceMap(origin, indices, length()).named("origin"))


def halves_exchanged(i: int, n: int) -> int:
    """Where from when the halves change places; the middle of an odd length stays."""
    half = n // 2
    if i < half:
        return i + n - half
    return i - (n - half) if i >= n - half else i


END = recipes(
    {
        "tb-average-first-last": lambda: SequenceMap(
            lambda x, y: (x + y) / 2, gather(constant(0)), from_the_end(1, length())
        ),
        "tb-check-last-two-equal": lambda: of_last_two(lambda x, y: int(x == y)),
        "tb-sum-of-last-two": lambda: of_last_two(lambda x, y: x + y),
        # Rearranging
        "tb-rotate-left": lambda: gather(cyclic_index(length(), step=1)),
        "tb-swap-first-last": lambda: rearranged(lambda i, n: n - 1 - i if i in (0, n - 1) else i),
        "tb-flip-halves": lambda: rearranged(halves_exchanged),
        "tb-interleave-reverse": lambda: rearranged(
            lambda i, n: i if i % 2 == 0 else n - n % 2 - i
        ),
    }
)


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
