"""What the definitions of InterpBench's cases share: the decorator, vocabularies, idioms.

A definition is a function that builds the program. The names given to expressions, and the order
in which they read each other, follow the public benchmark: layers, heads and circuits depend on it.
"""

import string
from collections.abc import Callable

from graphcircuits.cases.case import Case
from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Map,
    Select,
    SelectorWidth,
    SOp,
    Value,
    indices,
    tokens,
)

ABC = ("a", "b", "c")
LETTERS = tuple(string.ascii_lowercase)
WORDS = ("J", "LB", "TPSI", "V", "b", "no", "oCLrZaW", "poiVg")
TO_TEN = tuple(range(11))
TO_29 = tuple(range(30))


def recipe(
    id: str,
    name: str,
    task: str,
    *,
    vocab: tuple[Value, ...],
    max_seq_len: int = 10,
    causal: bool = True,
    sampler: str = "uniform",
) -> Callable[[Callable[[], SOp]], Case]:
    """Turn a function that builds a program into the case of that program."""

    def case_of(build: Callable[[], SOp]) -> Case:
        return Case(
            id=id,
            name=name,
            task=task,
            family="ib",
            program=build(),
            source=build,
            vocab=vocab,
            max_seq_len=max_seq_len,
            min_seq_len=4,
            causal=causal,
            sampler=sampler,
        )

    return case_of


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
