"""InterpBench's cases whose heads move values: running means, shifts, permutations, look-ups."""

from graphcircuits.cases.idioms import (
    ABC,
    LETTERS,
    TO_29,
    WORDS,
    ib_recipe,
    ib_recipes,
    length_of,
    shift_by,
    zero,
)
from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    LinearSequenceMap,
    Map,
    Select,
    SelectorWidth,
    SequenceMap,
    SOp,
    indices,
    numerical,
    tokens,
)


@ib_recipe("ib-2", "reverse", vocab=LETTERS, causal=False)
def reverse() -> SOp:
    """Output the letters in reverse order."""
    length = length_of(tokens, selector="all_true_selector")
    distance_to_end = SequenceMap(lambda n, i: n - i, length, indices).named("opp_idx")
    mirror = Map(lambda d: d - 1, distance_to_end).named("opp_idx-1")
    mirrored = Select(indices, mirror, Comparison.EQ).named("reverse_selector")
    return Aggregate(mirrored, tokens).named("reverse")


def running_fraction(flag: SOp) -> SOp:
    """The mean of a 0/1 sequence over the positions up to and including each one."""
    so_far = Select(indices, indices, Comparison.LEQ)
    return numerical(Aggregate(so_far, flag, default=0))


def prefix_fraction() -> SOp:
    is_x = numerical(Map(lambda x: int(x == "x"), tokens)).named("is_x")
    return running_fraction(is_x).named("frac_prevs")


@ib_recipe("ib-4", "bracket-pair-balance", vocab=("(", ")", "a", "b", "c"))
def bracket_pair_balance() -> SOp:
    """Running fraction of '(' minus running fraction of ')'."""
    is_open = numerical(Map(lambda x: int(x == "("), tokens)).named("bools_open")
    is_close = numerical(Map(lambda x: int(x == ")"), tokens)).named("bools_close")
    opens = running_fraction(is_open).named("opens")
    closes = running_fraction(is_close).named("closes")
    return numerical(LinearSequenceMap(opens, closes, 1.0, -1.0)).named("pair_balance")


@ib_recipe("ib-11", "same-length-mean", vocab=WORDS)
def same_length_mean() -> SOp:
    """For each word, output the mean word length over words with equal length, i.e. its own
    length."""
    length = Map(len, tokens)
    return Aggregate(Select(length, length, Comparison.EQ), length)


def _direction(before: int, after: int) -> str:
    if before == after:
        return "constant"
    return "increasing" if before < after else "decreasing"


@ib_recipe("ib-13", "trend-before-fix", vocab=(0, 1, 2), causal=False)
def trend_before_fix() -> SOp:
    """Whether the digits are rising, falling or constant around each position, from the previous
    and the next digit; the public program before its fix of 2024-09-09."""
    from_previous = SequenceMap(_direction, shift_by(1), tokens)
    # The public program called a step down to the next digit increasing; so do we.
    to_next = SequenceMap(lambda now, after: _direction(after, now), tokens, shift_by(-1))
    return SequenceMap(lambda x, y: x if y == "constant" else y, from_previous, to_next)


SHORT = ib_recipes(
    {
        "prefix-fraction-x": prefix_fraction,
        "prefix-fraction-x-long": prefix_fraction,
        # The public program of ib-13 since its fix of 2024-09-09.
        "trend": lambda: SequenceMap(_direction, tokens, shift_by(-1)),
        "drop-repeats": lambda: SequenceMap(
            lambda now, before: now if now != before else None, tokens, shift_by(1)
        ).named("sequential_duplicate_removal"),
        "self-lookup": lambda: Aggregate(Select(indices, indices, Comparison.EQ), tokens).named(
            "first_occurrence"
        ),
    }
)


@ib_recipe("ib-21", "unique-tokens", vocab=ABC)
def unique_tokens() -> SOp:
    """Keep the first occurrence of every token, None elsewhere."""
    place = SequenceMap(lambda x, i: (x, i), tokens, indices)
    same_so_far = Select(place, place, lambda key, query: key[0] == query[0] and key[1] <= query[1])
    count = SelectorWidth(same_so_far)
    first = SequenceMap(lambda n, i: i if n == 1 else -1, count, indices)
    is_first = Select(first, indices, Comparison.EQ).named("unique_tokens_selector")
    return Aggregate(is_first, tokens).named("unique_tokens")


@ib_recipe("ib-58", "mirror-first-half", causal=False)
def mirror_first_half() -> SOp:
    """Write the mirrored first half over the second half."""
    length = length_of(tokens, selector="all_true_selector")
    origin = SequenceMap(lambda i, n: n - 1 - i if i >= n // 2 else i, indices, length)
    from_origin = Select(indices, origin, Comparison.EQ).named("mirror_selector")
    return Aggregate(from_origin, tokens).named("mirrored_sequence")


@ib_recipe("ib-93", "swap-odd-pairs", causal=False)
def swap_odd_pairs() -> SOp:
    """Swap positions (1,2),(3,4),...; the first stays."""

    def partner(i: int, n: int) -> int:
        if i == 0 or (i == n - 1 and n % 2 == 0):
            return i
        return i - 1 if i % 2 == 0 else i + 1

    length = length_of(indices, named="selector_width")
    origin = SequenceMap(partner, indices, length)
    return Aggregate(Select(indices, origin, Comparison.EQ), tokens)


@ib_recipe("ib-97", "scale-by-max", causal=False)
def scale_by_max() -> SOp:
    """Divide by the maximum (0 if the maximum is 0)."""
    length = length_of(tokens, selector="all_true_selector")
    # The index breaks ties, so exactly one position counts as the maximum.
    ranked = SequenceMap(lambda x, i: (x, i), tokens, indices)
    no_larger = Select(ranked, ranked, Comparison.LEQ).named("leq_selector")
    rank = SelectorWidth(no_larger).named("leq_count")
    is_max = Select(rank, length, Comparison.EQ).named("max_element_selector")
    maximum = Aggregate(is_max, tokens).named("max_element")
    return SequenceMap(lambda x, most: x / most if most > 0 else 0, tokens, maximum).named(
        "scale_by_max_sequence"
    )


@ib_recipe("ib-103", "swap-consecutive", causal=False)
def swap_consecutive() -> SOp:
    """Swap positions (0,1),(2,3),...; an unpaired last one stays."""

    def partner(i: int, n: int) -> int:
        if i == n - 1 and n % 2 == 1:
            return i
        return i + 1 if i % 2 == 0 else i - 1

    length = length_of(indices, named="selector_width")
    origin = SequenceMap(partner, indices, length)
    return Aggregate(Select(indices, origin, Comparison.EQ), tokens)


@ib_recipe("ib-110", "insert-zeros", causal=False)
def insert_zeros() -> SOp:
    """Element i//2 at even positions, 0 at odd positions."""
    stretched = Aggregate(Select(indices, indices, lambda key, query: key == query // 2), tokens)
    return SequenceMap(lambda x, i: x if i % 2 == 0 else 0, stretched, indices)


@ib_recipe("ib-111", "last-then-zeros", causal=False)
def last_then_zeros() -> SOp:
    """Last element at position 0, 0 elsewhere."""
    last_index = Map(lambda n: n - 1, length_of(tokens))
    is_last = Select(indices, last_index, Comparison.EQ).named("last_element_selector")
    last = Aggregate(is_last, tokens).named("last_element_sequence")
    return SequenceMap(lambda x, i: x if i == 0 else 0, last, indices)


@ib_recipe("ib-113", "reverse-if-sorted", vocab=TO_29, causal=False)
def reverse_if_sorted() -> SOp:
    """Reverse the sequence if ascending, else unchanged."""
    previous = Aggregate(
        Select(indices, indices, lambda key, query: key == max(query - 1, 0)), tokens
    )
    rises = SequenceMap(lambda before, now: int(before <= now), previous, tokens)
    falls = SelectorWidth(Select(rises, zero(), Comparison.EQ))
    sign = Map(lambda count: 1 if count > 0 else -1, falls)
    center = Map(lambda n: n / 2 - 0.5, length_of(indices, named="selector_width"))
    offset = SequenceMap(lambda i, c: i - c, indices, center)
    # A minus sign mirrors every position at the center, which reverses the sequence.
    turned = SequenceMap(lambda s, d: s * d, sign, offset)
    target = SequenceMap(lambda c, d: c + d, center, turned)
    return Aggregate(Select(target, indices, Comparison.EQ), tokens)
