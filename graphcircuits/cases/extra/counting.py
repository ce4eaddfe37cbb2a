"""Extra cases that count: running counts, counts of counts, shares, and checks built on them."""

from graphcircuits.cases.idioms import (
    BITS,
    back,
    earlier_equal,
    frequency,
    gather,
    how_many,
    last,
    length,
    recipe,
    recipes,
    smaller,
    so_far,
    token_and_index,
    up_to_four,
)
from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    LinearSequenceMap,
    Map,
    Select,
    Selector,
    SelectorWidth,
    SequenceMap,
    SOp,
    indices,
    numerical,
    tokens,
)

# Earlier positions


def earlier_larger() -> SOp:
    """How many earlier tokens are larger."""
    at = token_and_index()
    inverted = Select(at, at, lambda key, query: key[0] > query[0] and key[1] < query[1])
    return SelectorWidth(inverted).named("earlier_larger")


EARLIER = recipes(
    {
        "new-count-earlier-larger": earlier_larger,
        "new-total-inversions-even": lambda: Map(
            lambda count: int(count % 2 == 0),
            how_many(Map(lambda count: count % 2, earlier_larger()).named("odd")),
        ),
        "new-occurrence-number": lambda: Map(lambda count: count + 1, earlier_equal()),
        "new-count-distinct": lambda: how_many(earlier_equal(), lambda count: count == 0),
        "new-prefix-parity": lambda: Map(lambda count: count % 2, so_far(tokens)),
    }
)


@recipe("new-run-position", vocab=(0, 1, 2), max_seq_len=7, causal=True)
def run_position() -> SOp:
    """The position inside the current run of equal tokens, counted from 1."""
    change = SequenceMap(lambda x, before: x != before, tokens, back(1)).named("change")
    run = SequenceMap(lambda run, i: (run, i), so_far(change), indices).named("run")
    same_run = Select(run, run, lambda key, query: key[0] == query[0] and key[1] <= query[1])
    return SelectorWidth(same_run)


# Brackets


def depth() -> SOp:
    """Opening minus closing brackets, up to and including each position."""
    opened, closed = (
        so_far(Map(lambda x, bracket=bracket: x == bracket, tokens).named(f"is_{bracket}"))
        for bracket in "()"
    )
    return SequenceMap(lambda x, y: x - y, opened, closed).named("depth")


@recipe("new-bracket-depth", vocab=("(", ")", "x"), max_seq_len=7, causal=True)
def bracket_depth() -> SOp:
    """The number of '(' minus the number of ')' up to here."""
    return depth()


@recipe("new-dyck1-check", vocab=("(", ")"), max_seq_len=7, sampler="balanced-brackets")
def dyck1_check() -> SOp:
    """All 1 when the brackets are balanced, else all 0."""
    level = depth()
    below_zero = how_many(level, lambda d: d < 0)
    at_end = gather(Map(last, length()).named("last_index"), level).named("at_end")
    return SequenceMap(lambda count, d: int(count == 0 and d == 0), below_zero, at_end)


# Counts of counts, and of other tokens


@recipe("new-successor-present")
def successor_present() -> SOp:
    """1 where the token plus 1 occurs in the sequence, else 0."""
    successor = Map(lambda x: x + 1, tokens).named("successor")
    found = SelectorWidth(Select(tokens, successor, Comparison.EQ)).named("found")
    return Map(lambda count: int(count > 0), found)


@recipe("new-frequency-of-frequency")
def frequency_of_frequency() -> SOp:
    """How many positions hold a token that occurs as often as this one."""
    count = frequency()
    return SelectorWidth(Select(count, count, Comparison.EQ))


@up_to_four("new-median-split-flag")
def median_split_flag() -> SOp:
    """1 where at least half of the tokens come before this one in sorted order, else 0."""
    return SequenceMap(lambda rank, n: int(2 * rank >= n), smaller(token_and_index()), length())


# Shares: numerical means of 0/1 sequences


def share(selector: Selector, flag: SOp) -> SOp:
    """The mean of a 0/1 sequence over what each position selects."""
    return numerical(Aggregate(selector, flag, default=0)).named("share")


def up_to_here() -> Selector:
    return Select(indices, indices, Comparison.LEQ)


@recipe("new-fraction-larger", max_seq_len=6, causal=True)
def fraction_larger() -> SOp:
    """The share of tokens up to here that exceed 2."""
    large = numerical(Map(lambda x: int(x > 2), tokens)).named("large")
    return share(up_to_here(), large)


@recipe("new-prefix-share-gap", vocab=BITS, max_seq_len=6)
def prefix_share_gap() -> SOp:
    """The share of ones up to here minus the share of ones in all."""
    bit = numerical(Map(lambda x: x, tokens)).named("bit")
    everywhere = Select(indices, indices, Comparison.TRUE)
    gap = LinearSequenceMap(share(up_to_here(), bit), share(everywhere, bit), 1, -1)
    return numerical(gap)


@recipe("new-open-close-imbalance-three", vocab=("a", "b", "c", "d"), max_seq_len=6, causal=True)
def open_close_imbalance_three() -> SOp:
    """The share of 'a' up to here, minus that of 'b', plus that of 'c'."""
    a, b, c = (
        share(
            up_to_here(),
            numerical(Map(lambda x, letter=letter: int(x == letter), tokens)).named(f"is_{letter}"),
        )
        for letter in "abc"
    )
    balance = numerical(LinearSequenceMap(a, b, 1, -1)).named("balance")
    return numerical(LinearSequenceMap(balance, c, 1, 1))
