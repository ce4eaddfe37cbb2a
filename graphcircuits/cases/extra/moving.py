"""Extra cases that move tokens: pointers, look-backs, neighbours, mirrored and rotated copies."""

from graphcircuits.cases.idioms import (
    BITS,
    back,
    cyclic_index,
    earlier_equal,
    first,
    frequency,
    gather,
    how_many,
    last,
    length,
    mirror_index,
    recipe,
    recipes,
    so_far,
    up_to_four,
    up_to_three,
)
from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Map,
    Select,
    SequenceMap,
    SOp,
    indices,
    numerical,
    tokens,
)

# Pointers: a token is a position to read from. They need inputs of full length.


def hops(count: int) -> SOp:
    """Where one arrives after so many reads of "the token at the position I hold"."""
    at = tokens
    for hop in range(1, count + 1):
        at = gather(at).named(f"hop_{hop}")
    return at


POINTERS = recipes(
    {
        "new-pointer-hop-1": lambda: hops(1),
        "new-pointer-hop-2": lambda: hops(2),
        "new-pointer-hop-3": lambda: hops(3),
        "new-pointer-fixed-point": lambda: SequenceMap(lambda x, y: int(x == y), tokens, hops(2)),
    }
)


# Looking back


def previous_same() -> SOp:
    """The index of the previous occurrence of the token; the own index where there is none."""
    count = earlier_equal()
    key = SequenceMap(lambda x, n: (x, n), tokens, count).named("occurrence")
    query = SequenceMap(lambda x, n: (x, max(n - 1, 0)), tokens, count).named("one_before")
    return Aggregate(Select(key, query, Comparison.EQ), indices).named("previous_same")


@up_to_three("new-distance-to-previous-same", causal=True)
def distance_to_previous_same() -> SOp:
    """The distance back to the previous occurrence of the token, 0 where there is none."""
    return SequenceMap(lambda i, j: i - j, indices, previous_same())


@up_to_three("new-induction-next-token", causal=True)
def induction_next_token() -> SOp:
    """The token that followed the previous occurrence of this one; this one where there is none."""
    after = SequenceMap(lambda i, j: i if i == j else j + 1, indices, previous_same())
    return gather(after.named("after_previous"))


@up_to_three("new-forward-fill", causal=True)
def forward_fill() -> SOp:
    """The nearest non-zero token up to here, 0 where there is none."""
    # Non-zero tokens carry their number as a key; zeros a key that only they themselves look for.
    given = Map(lambda x: x != 0, tokens).named("given")
    count = so_far(given)
    number = SequenceMap(lambda flag, n: n if flag else 0, given, count).named("number")
    key = SequenceMap(lambda n, i: n or -1 - i, number, indices).named("key")
    query = SequenceMap(lambda n, i: n or -1 - i, count, indices).named("query")
    return Aggregate(Select(key, query, Comparison.EQ), tokens)


@recipe("new-three-back-majority", vocab=BITS, causal=True)
def three_back_majority() -> SOp:
    """The majority of this bit and the two before; the first bit stands in for missing ones."""
    before = SequenceMap(lambda x, y: x + y, back(1), back(2)).named("sum_before")
    return SequenceMap(lambda x, y: int(x + y >= 2), tokens, before)


# The first token as an instruction


@recipe("new-shift-cipher-by-first", causal=True)
def shift_cipher_by_first() -> SOp:
    """Token plus first token, modulo 6."""
    return SequenceMap(lambda x, y: (x + y) % 6, tokens, first())


@up_to_four("new-rotate-by-first")
def rotate_by_first() -> SOp:
    """The sequence rotated left by as many positions as the first token says."""
    rotation = SequenceMap(lambda x, n: (x, last(n) + 1), first(), length()).named("rotation")
    return gather(
        SequenceMap(lambda i, turn: (i + turn[0]) % turn[1], indices, rotation).named("origin")
    )


@up_to_four("new-conditional-reverse")
def conditional_reverse() -> SOp:
    """The sequence reversed when the first token is even, else unchanged."""
    mirrored = gather(mirror_index(length()))
    choices = SequenceMap(lambda x, y: (x, y), tokens, mirrored).named("choices")
    return SequenceMap(lambda pair, x: pair[1 - x % 2], choices, first())


# Neighbours in a ring


def neighbours() -> tuple[SOp, SOp]:
    """The tokens before and after, the last and the first being neighbours."""
    n = length()
    return (
        gather(cyclic_index(n, step=-1)).named("before"),
        gather(cyclic_index(n, step=1)).named("after"),
    )


def peak() -> SOp:
    """1 where the token is larger than both neighbours, else 0."""
    highest = SequenceMap(max, *neighbours()).named("highest_neighbour")
    return SequenceMap(lambda x, y: int(x > y), tokens, highest).named("peak")


IN_A_RING = recipes(
    {
        "new-local-peak": peak,
        "new-count-local-peaks": lambda: how_many(peak()),
        "new-second-difference": lambda: SequenceMap(
            lambda x, y: y - 2 * x,
            tokens,
            SequenceMap(lambda x, y: x + y, *neighbours()).named("around"),
        ),
    }
)


@up_to_three("new-two-frequency-compare")
def two_frequency_compare() -> SOp:
    """1 where the token is more frequent than the next one in the ring, else 0."""
    count = frequency()
    after = gather(cyclic_index(length(), step=1), count)
    return SequenceMap(lambda x, y: int(x > y), count, after)


# Halves and mirrors


@recipe("new-halves-equal", vocab=BITS, max_seq_len=7, sampler="doubled")
def halves_equal() -> SOp:
    """All 1 when the first half equals the second half, else all 0 (for even lengths)."""
    partner = SequenceMap(lambda i, n: (i + n // 2) % (last(n) + 1), indices, length())
    counterpart = gather(partner.named("partner"))
    differs = SequenceMap(lambda x, y: x != y, tokens, counterpart).named("differs")
    return Map(lambda count: int(count == 0), how_many(differs))


@recipe("new-mirror-match-fraction", vocab=(0, 1, 2), max_seq_len=7)
def mirror_match_fraction() -> SOp:
    """The share of positions whose mirrored token is equal, everywhere."""
    # Nothing numerical may be None, and a look-up without a default might be.
    mirrored = gather(mirror_index(length()), default=0)
    same = SequenceMap(lambda x, y: x == y, tokens, mirrored).named("same")
    flag = numerical(Map(int, same)).named("same_as_number")
    everywhere = Select(indices, indices, Comparison.TRUE)
    return numerical(Aggregate(everywhere, flag, default=0))
