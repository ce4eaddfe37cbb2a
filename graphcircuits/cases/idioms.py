"""What the definitions of listed cases share: decorators, vocabularies, idioms.

A definition is a function that builds the program. Short ones stand in tables; their sentences,
vocabularies and lengths are in `data/recipes.json`. Idioms are the moves that many programs make,
each one or two components: read from a position, count, rank, find a position relative to another.
InterpBench's come last and stay apart: the names given to its expressions, and the order in which
they read each other, follow the public benchmark, since layers, heads and circuits depend on it.
"""

import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType

from graphcircuits.cases import stored
from graphcircuits.cases.case import Case
from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Map,
    Select,
    SelectorWidth,
    SequenceMap,
    SOp,
    Value,
    indices,
    tokens,
)

BITS = (0, 1)
TO_THREE = (0, 1, 2, 3)
TO_FOUR = (0, 1, 2, 3, 4)
TO_FIVE = (0, 1, 2, 3, 4, 5)
TO_TEN = tuple(range(11))
TO_29 = tuple(range(30))
ABC = ("a", "b", "c")
LETTERS = tuple(string.ascii_lowercase)
WORDS = ("J", "LB", "TPSI", "V", "b", "no", "oCLrZaW", "poiVg")


def cases_in(*modules: ModuleType) -> Iterator[Case]:
    """The cases that modules define, alone or in tables, in the order of their definitions."""
    for module in modules:
        for value in vars(module).values():
            listed = value if isinstance(value, tuple) else (value,)
            yield from (one for one in listed if isinstance(one, Case))


def recipe(
    id: str,
    name: str = "",
    *,
    task: str = "",
    vocab: Sequence[Value] = TO_FIVE,
    max_seq_len: int = 9,
    min_seq_len: int = 3,
    causal: bool = False,
    sampler: str = "uniform",
) -> Callable[[Callable[[], SOp]], Case]:
    """Turn a function that builds a program into the case of that program.

    The function's docstring is the task, where none is given. So is the id's second half the name,
    which the program's last expression then takes.
    """
    family, _, by_id = id.partition("-")

    def case_of(build: Callable[[], SOp]) -> Case:
        def named() -> SOp:
            return build().named(by_id)

        source = build if name else named
        return Case(
            id=id,
            name=name or by_id,
            task=task or " ".join((build.__doc__ or "").split()),
            family=family,
            program=source(),
            source=source,
            vocab=tuple(vocab),
            max_seq_len=max_seq_len,
            min_seq_len=min_seq_len,
            causal=causal,
            sampler=sampler,
        )

    return case_of


up_to_four = partial(recipe, vocab=TO_FOUR, max_seq_len=7)
up_to_three = partial(recipe, vocab=TO_THREE, max_seq_len=7)
"""For deep programs, which need few tokens and short inputs to stay small."""
ib_recipe = partial(recipe, vocab=TO_TEN, max_seq_len=10, min_seq_len=4, causal=True)
"""For InterpBench's programs, whose names are given."""


def recipes(programs: Mapping[str, Callable[[], SOp]]) -> tuple[Case, ...]:
    """The cases of programs by id, with the file's words."""
    return tuple(recipe(id, **stored("recipes")[id])(build) for id, build in programs.items())


def ib_recipes(programs: Mapping[str, Callable[[], SOp]]) -> tuple[Case, ...]:
    """InterpBench's cases of programs by name, with the file's words."""
    return tuple(
        ib_recipe(name=name, **stored("recipes")[name])(build) for name, build in programs.items()
    )


# Positions


def constant(value: Value) -> SOp:
    """The same value everywhere, as a map that an attention head can use as its query."""
    return Map(lambda _: value, indices).named(f"constant_{value}")


def token_and_index() -> SOp:
    """(token, index): a copy of the token that no other position shares."""
    return SequenceMap(lambda x, i: (x, i), tokens, indices).named("place")


def last(length: int) -> int:
    """The last position. A length of 0 is among the values of a count, so it gets one too."""
    return max(length - 1, 0)


def mirror_index(length: SOp) -> SOp:
    """The position as far from the end as this one is from the start."""
    return SequenceMap(lambda i, n: n - 1 - i, indices, length).named("mirror_index")


def next_index(length: SOp) -> SOp:
    """The position after this one; the last position stays."""
    return SequenceMap(lambda i, n: min(i + 1, last(n)), indices, length).named("next_index")


def cyclic_index(length: SOp, *, step: int) -> SOp:
    """The position `step` further on, the last followed by the first."""
    return SequenceMap(lambda i, n: (i + step) % (last(n) + 1), indices, length).named(
        f"cyclic_index_{step:+d}"
    )


# Reading


def gather(where: SOp, values: SOp = tokens, default: Value = None) -> SOp:
    """The value at the position that `where` names; the default where there is none."""
    return Aggregate(Select(indices, where, Comparison.EQ), values, default).named("gathered")


def back(steps: int, values: SOp = tokens) -> SOp:
    """The value `steps` positions earlier; the first one where there are not so many."""
    earlier = Select(indices, indices, lambda key, query: key == max(query - steps, 0))
    return Aggregate(earlier, values).named(f"back_{steps}")


def first() -> SOp:
    """The first token, everywhere."""
    return Aggregate(Select(indices, indices, lambda key, _: key == 0), tokens).named("first")


def of_rank(rank: SOp, which: SOp, values: SOp = tokens) -> SOp:
    """The value at the position whose rank is `which`; ranks must differ or values agree."""
    return Aggregate(Select(rank, which, Comparison.EQ), values).named("of_rank")


# Counting


def length() -> SOp:
    """The number of tokens, everywhere."""
    return SelectorWidth(Select(tokens, tokens, Comparison.TRUE)).named("length")


def frequency() -> SOp:
    """How often the token at a position occurs."""
    return SelectorWidth(Select(tokens, tokens, Comparison.EQ)).named("frequency")


def how_many(flags: SOp, wanted: Callable[[Value], bool] = bool) -> SOp:
    """How many positions hold a wanted value, everywhere."""
    return SelectorWidth(Select(flags, flags, lambda key, _: wanted(key))).named("how_many")


def smaller(keys: SOp) -> SOp:
    """How many keys are smaller than the one at a position: its rank from below, from 0."""
    return SelectorWidth(Select(keys, keys, Comparison.LT)).named("smaller")


def larger(keys: SOp) -> SOp:
    """How many keys are larger than the one at a position: its rank from above, from 0."""
    return SelectorWidth(Select(keys, keys, Comparison.GT)).named("larger")


def so_far(flags: SOp) -> SOp:
    """How many positions up to and including this one hold a true flag."""
    marked = SequenceMap(lambda flag, i: (flag, i), flags, indices).named("marked")
    up_to_here = Select(marked, marked, lambda key, query: key[0] and key[1] <= query[1])
    return SelectorWidth(up_to_here).named("so_far")


def earlier_equal() -> SOp:
    """How many earlier positions hold the same token."""
    at = token_and_index()
    same = Select(at, at, lambda key, query: key[0] == query[0] and key[1] < query[1])
    return SelectorWidth(same).named("earlier_equal")


# InterpBench


def length_of(sequence: SOp, *, selector: str = "select", named: str = "length") -> SOp:
    """The number of tokens, at every position: the width of a selector that takes everything."""
    everything = Select(sequence, sequence, Comparison.TRUE).named(selector)
    return SelectorWidth(everything).named(named)


def histogram() -> SOp:
    """How often the token at a position occurs in the sequence."""
    same_token = Select(tokens, tokens, Comparison.EQ).named("same_tok")
    return SelectorWidth(same_token).named("hist")


def shift_by(offset: int) -> SOp:
    """The token `offset` positions earlier; None where there is none."""
    earlier = Select(indices, indices, lambda key, query: query == key + offset)
    return Aggregate(earlier, tokens).named(f"shift_by({offset})")


def zero() -> SOp:
    """The constant 0 as a map, which an attention head can use as its query."""
    return Map(lambda _: 0, indices)
