"""Extra cases that rank and sort, and then work on the sorted sequence."""

from graphcircuits.cases.idioms import (
    back,
    constant,
    earlier_equal,
    frequency,
    gather,
    how_many,
    larger,
    last,
    length,
    mirror_index,
    next_index,
    of_rank,
    recipe,
    recipes,
    smaller,
    token_and_index,
    up_to_four,
)
from graphcircuits.rasp import Map, SequenceMap, SOp, indices, tokens


def in_order(key: SOp) -> SOp:
    """The tokens in ascending order of their keys, which must be distinct."""
    return of_rank(smaller(key), indices).named("in_order")


# One item by rank


def mode() -> SOp:
    """The most frequent token; the earliest of several."""
    key = SequenceMap(lambda n, i: (-n, i), frequency(), indices).named("rarity")
    return of_rank(smaller(key), constant(0)).named("mode")


BY_RANK = recipes(
    {
        "new-most-frequent-token": mode,
        "new-mask-all-but-mode": lambda: SequenceMap(
            lambda x, y: x if x == y else 0, tokens, mode()
        ),
        "new-second-largest": lambda: of_rank(larger(token_and_index()), constant(1)),
    }
)


@up_to_four("new-value-range", sampler="subset")
def value_range() -> SOp:
    """The largest minus the smallest token, everywhere."""
    key, top = token_and_index(), constant(0)
    maximum = of_rank(larger(key), top).named("maximum")
    minimum = of_rank(smaller(key), top).named("minimum")
    return SequenceMap(lambda x, y: x - y, maximum, minimum)


@up_to_four("new-swap-max-to-front")
def swap_max_to_front() -> SOp:
    """The sequence with its first token and its largest, the earliest of several, exchanged."""

    def origin(i: int, top: int) -> int:
        return top if i == 0 else 0 if i == top else i

    key = SequenceMap(lambda x, i: (-x, i), tokens, indices).named("descending_key")
    top = of_rank(smaller(key), constant(0), indices).named("index_of_maximum")
    return gather(SequenceMap(origin, indices, top).named("origin"))


@up_to_four("new-first-repeat-index")
def first_repeat_index() -> SOp:
    """The first position that repeats an earlier token, everywhere; 0 where none does."""
    # Repeating positions come first, each by its index; 10 is more than any index.
    key = SequenceMap(lambda n, i: i if n else i + 10, earlier_equal(), indices).named("key")
    earliest = of_rank(smaller(key), constant(0), key)
    return Map(lambda k: k if k < 10 else 0, earliest)


# The sorted sequence


def odd_then_even() -> SOp:
    """The odd tokens, then the even ones, each in their order."""
    even = Map(lambda x: int(x % 2 == 0), tokens).named("even")
    return in_order(SequenceMap(lambda e, i: (e, i), even, indices).named("key"))


def successor_value() -> SOp:
    """The token that follows this one in ascending order; the last keeps its own."""
    rank = smaller(token_and_index())
    following = SequenceMap(lambda r, n: min(r + 1, last(n)), rank, length()).named("next_rank")
    return of_rank(rank, following).named("successor")


def drops() -> SOp:
    """The tokens in descending order, each minus the next one; 0 for the last."""
    descending = of_rank(larger(token_and_index()), indices).named("descending")
    following = gather(next_index(length()), descending).named("following")
    # No drop is negative, and saying so keeps the value out of what reads it.
    return SequenceMap(lambda x, y: max(x - y, 0), descending, following).named("drop")


SORTED = recipes(
    {
        "new-argsort": lambda: of_rank(smaller(token_and_index()), indices, indices),
        "new-reverse-sorted": lambda: gather(mirror_index(length()), in_order(token_and_index())),
        "new-stable-partition-parity": odd_then_even,
        "new-next-larger-value": successor_value,
        "new-gap-to-next-larger": lambda: SequenceMap(
            lambda x, y: y - x, tokens, successor_value()
        ),
        "new-sort-descending-gap": drops,
    }
)


@up_to_four("new-largest-sorted-gap", sampler="subset")
def largest_sorted_gap() -> SOp:
    """The largest gap between neighbours of the sorted sequence, everywhere."""
    gap = drops()
    unique = SequenceMap(lambda x, i: (x, i), gap, indices).named("unique_drop")
    return of_rank(larger(unique), constant(0), gap)


@up_to_four("new-sorted-run-count", sampler="subset")
def sorted_run_count() -> SOp:
    """The number of distinct tokens, everywhere, by counting steps in the sorted sequence."""
    ascending = in_order(token_and_index())
    step = SequenceMap(lambda x, before: x != before, ascending, back(1, ascending)).named("step")
    return Map(lambda count: count + 1, how_many(step))


# Compacting: some positions first, then work on those


@recipe("new-compact-first-occurrences", vocab=(1, 2, 3, 4), max_seq_len=7)
def compact_first_occurrences() -> SOp:
    """Every distinct token once, in the order of first occurrence, then zeros."""
    seen = Map(lambda n: int(n > 0), earlier_equal()).named("seen_before")
    key = SequenceMap(lambda s, i: (s, i), seen, indices).named("key")
    distinct = how_many(seen, lambda s: not s)
    inside = SequenceMap(lambda i, n: i < n, indices, distinct).named("inside")
    return SequenceMap(lambda x, keep: x if keep else 0, in_order(key), inside)


@recipe("new-nonzero-palindrome", vocab=(0, 1, 2), max_seq_len=7, sampler="sparse")
def nonzero_palindrome() -> SOp:
    """All 1 when the non-zero tokens, in their order, read the same backwards, else all 0."""

    def mirrored(i: int, n: int) -> int:
        return n - 1 - i if i < n else i

    zero = Map(lambda x: int(x == 0), tokens).named("zero")
    compact = in_order(SequenceMap(lambda z, i: (z, i), zero, indices).named("key"))
    count = how_many(zero, lambda z: not z)
    counterpart = gather(
        SequenceMap(mirrored, indices, count).named("mirror_inside"), compact
    ).named("counterpart")
    differs = SequenceMap(lambda x, y: x != y, compact, counterpart).named("differs")
    return Map(lambda n: int(n == 0), how_many(differs))
