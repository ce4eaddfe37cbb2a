"""A selector as what one attention head can compute: an `and` of tables, one per pair of
sequences.

Scores of a head add up, so selects over different sequences can be joined by `and` (all of them
must hold), but not by `or`. Negations are pushed down to the tables first; parts that share keys
and queries become one table.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from graphcircuits.rasp.language import Select, Selector, SOp
from graphcircuits.rasp.selectors import fold
from graphcircuits.rasp.tabulate import Tables
from graphcircuits.rasp.values import RaspError


@dataclass(frozen=True, eq=False)
class Part:
    """One condition on a key and a query."""

    keys: SOp
    queries: SOp
    table: np.ndarray
    """Whether a key value (rows) is selected by a query value (columns)."""


def conjunction(tables: Tables, selector: Selector) -> list[Part]:
    """The conditions that a selected pair meets, all of them; `RaspError` where none will do."""
    return fold(selector, partial(_part, tables), both=_all_of, either=_either)


def _part(tables: Tables, node: Selector, negate: bool) -> list[Part]:
    if not isinstance(node, Select):
        raise RaspError(f"{node.name!r} is a {type(node).__name__}, not a selector we know.")
    table = tables.selections[node][:-1, :-1]
    return [Part(node.keys, node.queries, ~table if negate else table)]


def _all_of(fst: list[Part], snd: list[Part]) -> list[Part]:
    merged: dict[tuple[SOp, SOp], Part] = {}
    for part in fst + snd:
        sides = (part.keys, part.queries)
        table = part.table & merged[sides].table if sides in merged else part.table
        merged[sides] = Part(*sides, table)
    return list(merged.values())


def _either(fst: list[Part], snd: list[Part]) -> list[Part]:
    first, second = fst[0], snd[0]
    same = first.keys is second.keys and first.queries is second.queries
    if len(fst) > 1 or len(snd) > 1 or not same:
        raise RaspError(
            "an `or` of selectors over different sequences has no single attention head; "
            "combine the sequences with SequenceMap and select on the combination"
        )
    return [Part(first.keys, first.queries, first.table | second.table)]
