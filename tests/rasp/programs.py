"""Programs as RASP users write them, each beside plain Python that says what it computes.

They are in Tracr's style. Only the import line differs from a program for Tracr.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphcircuits import rasp


def length() -> rasp.SOp:
    everything = rasp.Select(rasp.tokens, rasp.tokens, rasp.Comparison.TRUE).named("everything")
    return rasp.SelectorWidth(everything).named("length")


def reverse(sop: rasp.SOp) -> rasp.SOp:
    mirror = ((length() - rasp.indices).named("from_end") - 1).named("mirror")
    at_mirror = rasp.Select(rasp.indices, mirror, rasp.Comparison.EQ).named("at_mirror")
    return rasp.Aggregate(at_mirror, sop).named("reverse")


def hist() -> rasp.SOp:
    same = rasp.Select(rasp.tokens, rasp.tokens, rasp.Comparison.EQ).named("same")
    return rasp.SelectorWidth(same).named("hist")


def sort_by(values: rasp.SOp, keys: rasp.SOp) -> rasp.SOp:
    """`values` in the order of `keys`, which must all differ."""
    smaller = rasp.Select(keys, keys, rasp.Comparison.LT).named("smaller")
    place = rasp.SelectorWidth(smaller).named("place")
    return rasp.Aggregate(rasp.Select(place, rasp.indices, rasp.Comparison.EQ), values).named(
        "sort"
    )


def broken_ties(keys: rasp.SOp, longest: int) -> rasp.SOp:
    """Integer keys made unique: among equal ones the earlier is smaller."""
    return rasp.SequenceMap(lambda key, i: key + i / longest, keys, rasp.indices)


def sort_by_frequency() -> rasp.SOp:
    rarity = (-1 * hist()).named("rarity")
    return sort_by(rasp.tokens, broken_ties(rarity, 10))


def fraction_before(marks: rasp.SOp) -> rasp.SOp:
    earlier = rasp.Select(rasp.indices, rasp.indices, rasp.Comparison.LEQ).named("earlier")
    marks = rasp.numerical(marks)
    return rasp.numerical(rasp.Aggregate(earlier, marks, default=0)).named("fraction_before")


def balance(opening: str, closing: str) -> rasp.SOp:
    opened = fraction_before(rasp.numerical(rasp.tokens == opening).named("is_open"))
    closed = fraction_before(rasp.numerical(rasp.tokens == closing).named("is_close"))
    return rasp.numerical(rasp.LinearSequenceMap(opened, closed, 1, -1)).named("balance")


def dyck(*pairs: str) -> rasp.SOp:
    """Whether every kind of bracket is balanced, whatever the order of different kinds."""
    balances = [balance(*pair) for pair in pairs]
    negative, level = balances[0] < 0, balances[0] == 0
    for other in balances[1:]:
        negative, level = negative | (other < 0), level & (other == 0)
    everywhere = rasp.Select(rasp.indices, rasp.indices, rasp.Comparison.TRUE)
    went_below = rasp.numerical(rasp.Map(lambda x: x, negative)).named("went_below")
    any_below = rasp.numerical(rasp.Aggregate(everywhere, went_below, default=0))
    at_end = rasp.Select(rasp.indices, length() - 1, rasp.Comparison.EQ)
    return (rasp.Aggregate(at_end, level) & ~any_below).named("dyck")


def shift(sop: rasp.SOp, offset: int) -> rasp.SOp:
    back = rasp.Select(rasp.indices, rasp.indices, lambda key, query: query == key + offset)
    return rasp.Aggregate(back, sop, default=None).named(f"shift_{offset}")


def ends_pattern(pattern: str) -> rasp.SOp:
    """Whether the pattern ends here; None where it cannot."""
    found = rasp.tokens == pattern[-1]
    for back, letter in enumerate(reversed(pattern[:-1]), start=1):
        found = shift(rasp.tokens == letter, back) & found
    return found


def count_rare(limit: int) -> rasp.SOp:
    counts = hist()
    rare = rasp.Select(counts, counts, lambda key, query: key <= limit)
    return rasp.SelectorWidth(rare)


def first_token_and_neighbours() -> rasp.SOp:
    """Three sequences in one, as tuples."""
    pair = rasp.SequenceMap(lambda x, y: (x, y), shift(rasp.tokens, 1), rasp.tokens)
    first = rasp.Aggregate(rasp.Select(rasp.indices, rasp.Full(0), rasp.Comparison.EQ), rasp.tokens)
    triple = rasp.SequenceMap(lambda xy, z: (*xy, z), pair, first)
    return rasp.Map(lambda xyz: "".join(xyz), triple)


# --- what they compute ---------------------------------------------------------------------------


def _balances(xs: Sequence[str], pair: str) -> list[float]:
    seen = [xs[: i + 1] for i in range(len(xs))]
    return [(part.count(pair[0]) - part.count(pair[1])) / len(part) for part in seen]


def _is_dyck(xs: Sequence[str], *pairs: str) -> bool:
    balances = [_balances(xs, pair) for pair in pairs]
    return all(min(levels) >= 0 and levels[-1] == 0 for levels in balances)


def _earlier(xs: Sequence[str], back: int) -> list[str | None]:
    return [xs[i - back] if i >= back else None for i in range(len(xs))]


def _sorted_by_frequency(xs: Sequence[str]) -> list[str]:
    counts = Counter(xs)
    return sorted(xs, key=lambda x: -counts[x])


def _triples(xs: Sequence[str]) -> list[str | None]:
    return [None if i == 0 else xs[i - 1] + xs[i] + xs[0] for i in range(len(xs))]


@dataclass(frozen=True)
class Example:
    """A program, and the same computation on lists."""

    build: Callable[[], rasp.SOp]
    computes: Callable[[list], list]
    vocab: tuple[rasp.Value, ...] = tuple("abc")
    causal: bool = False
    max_seq_len: int = 9


EXAMPLES = {
    "length": Example(length, lambda xs: [len(xs)] * len(xs)),
    "length so far": Example(length, lambda xs: list(range(1, len(xs) + 1)), causal=True),
    "reverse": Example(lambda: reverse(rasp.tokens), lambda xs: xs[::-1]),
    "hist": Example(hist, lambda xs: [xs.count(x) for x in xs]),
    "hist so far": Example(
        hist, lambda xs: [xs[: i + 1].count(x) for i, x in enumerate(xs)], causal=True
    ),
    "sort": Example(
        lambda: sort_by(rasp.tokens, broken_ties(rasp.tokens, 9)), sorted, vocab=(-2, 0, 1, 5)
    ),
    "sort by frequency": Example(sort_by_frequency, _sorted_by_frequency),
    "fraction before": Example(
        lambda: fraction_before(rasp.tokens == "a"),
        lambda xs: [xs[: i + 1].count("a") / (i + 1) for i in range(len(xs))],
    ),
    "balance": Example(lambda: balance("(", ")"), lambda xs: _balances(xs, "()"), tuple("()x")),
    "dyck": Example(lambda: dyck("()"), lambda xs: [_is_dyck(xs, "()")] * len(xs), tuple("()x")),
    "dyck of two kinds": Example(
        lambda: dyck("()", "{}"),
        lambda xs: [_is_dyck(xs, "()", "{}")] * len(xs),
        tuple("(){}"),
        max_seq_len=7,
    ),
    "shift": Example(lambda: shift(rasp.tokens, 2), lambda xs: _earlier(xs, 2)),
    "shift, causal": Example(
        lambda: shift(rasp.tokens, 1), lambda xs: _earlier(xs, 1), causal=True
    ),
    "pattern": Example(
        lambda: ends_pattern("abb"),
        lambda xs: [
            None if i < 2 else xs[i - 2 : i + 1] == ["a", "b", "b"] for i in range(len(xs))
        ],
        vocab=("a", "b"),
    ),
    "count of rare tokens": Example(
        lambda: count_rare(2), lambda xs: [sum(xs.count(x) <= 2 for x in xs)] * len(xs)
    ),
    "triples": Example(first_token_and_neighbours, _triples),
}
