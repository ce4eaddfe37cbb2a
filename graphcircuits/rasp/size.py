"""What a transformer needs for a program, from the tables alone, before any weight is written.

One attention head computes an `and` of tables, one per pair of sequences: its scores add up, so
selects over different sequences can be joined by `and` (all of them must hold), but not by `or`.
Negations are pushed down to the tables first; conditions that share keys and queries become one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from graphcircuits.rasp.calls import MAX_WEIGHTS
from graphcircuits.rasp.language import (
    Aggregate,
    Full,
    LinearSequenceMap,
    Map,
    Select,
    Selector,
    SelectorWidth,
    SequenceMap,
    SOp,
    indices,
    tokens,
)
from graphcircuits.rasp.layout import lay_out
from graphcircuits.rasp.selectors import fold
from graphcircuits.rasp.tabulate import NONE, Problem, Tables
from graphcircuits.rasp.values import RaspError


@dataclass(frozen=True, eq=False)
class Condition:
    """One condition on a key and a query."""

    keys: SOp
    queries: SOp
    table: np.ndarray
    """Whether a key value (rows) is selected by a query value (columns)."""


def conjunction(tables: Tables, selector: Selector) -> list[Condition]:
    """The conditions that a selected pair meets, all of them; `RaspError` where none will do."""
    return fold(selector, partial(_condition, tables), both=_all_of, either=_either)


def _condition(tables: Tables, node: Selector, negate: bool) -> list[Condition]:
    if not isinstance(node, Select):
        raise RaspError(f"{node.name!r} is a {type(node).__name__}, not a selector we know.")
    table = tables.selections[node][:-1, :-1]
    return [Condition(node.keys, node.queries, ~table if negate else table)]


def _all_of(fst: list[Condition], snd: list[Condition]) -> list[Condition]:
    merged: dict[tuple[SOp, SOp], Condition] = {}
    for one in fst + snd:
        sides = (one.keys, one.queries)
        table = one.table & merged[sides].table if sides in merged else one.table
        merged[sides] = Condition(*sides, table)
    return list(merged.values())


def _either(fst: list[Condition], snd: list[Condition]) -> list[Condition]:
    first, second = fst[0], snd[0]
    same = first.keys is second.keys and first.queries is second.queries
    if len(fst) > 1 or len(snd) > 1 or not same:
        raise RaspError(
            "an `or` of selectors over different sequences has no single attention head; "
            "combine the sequences with SequenceMap and select on the combination"
        )
    return [Condition(first.keys, first.queries, first.table | second.table)]


def directions(tables: Tables) -> dict[SOp, int]:
    """How many directions of the stream each variable has; `tokens` and `indices` come first."""
    sizes: dict[SOp, int] = {tokens: len(tables.vocab), indices: tables.max_length}
    for sop, variable in tables.variables.items():
        sizes.setdefault(sop, 1 if variable.numerical else len(variable.values))
    return sizes


def hidden_units(tables: Tables, sop: SOp) -> int:
    """How many units of its MLP an expression takes, at most."""
    match sop:
        case SelectorWidth():
            return 2 * tables.max_length + 1
        case LinearSequenceMap():
            return 4
        case Full():
            return 1
        case Map() if tables.variables[sop.inner].numerical:
            return 2 * len(tables.variables[sop.inner].values)
        case Map():
            return len(np.unique(tables.functions[sop]))
        case SequenceMap() if sop.fst is sop.snd:
            return len(np.unique(tables.functions[sop].diagonal()))
        case SequenceMap():
            return int((tables.functions[sop] != NONE).sum())
    return 0


def n_weights(tables: Tables) -> int:
    """The numbers in all matrices, with those that read out the whole stream."""
    sizes, layout = directions(tables), lay_out(tables)
    width = sum(sizes.values()) + len(sizes) + 3
    d_mlp = max(sum(hidden_units(tables, sop) for sop in layer) for layer in layout.functions)
    heads = [_head_size(tables, sizes, sop) for layer in layout.heads for sop in layer]
    d_head = max(heads, default=1)
    layer = 4 * layout.n_heads * d_head + 2 * d_mlp
    return width * (layout.n_layers * layer + len(tables.vocab) + tables.max_length + width)


def _head_size(tables: Tables, sizes: Mapping[SOp, int], sop: SOp) -> int:
    assert isinstance(sop, Aggregate | SelectorWidth)
    try:
        parts = conjunction(tables, sop.selector)
    except RaspError:
        return 1
    scores = 1 + sum(min(part.table.shape) for part in parts)
    return scores if isinstance(sop, SelectorWidth) else max(scores, sizes[sop])


def size_problems(tables: Tables) -> Iterator[Problem]:
    """The largest expression of a program whose transformer is too large."""
    if tables.problems or (needed := n_weights(tables)) <= MAX_WEIGHTS:
        return
    sizes = directions(tables)
    units = {sop: hidden_units(tables, sop) for sop in tables.variables}
    computed = [sop for sop in units if sop is not tokens and sop is not indices]
    largest = max(computed or units, key=lambda sop: sizes[sop] + units[sop])
    yield Problem(
        tables.labels[largest],
        f"it takes {sizes[largest]:,} directions and {units[largest]:,} units, the most in a "
        f"transformer that would have {needed:,} weights, more than the {MAX_WEIGHTS:,} we write; "
        "use fewer expressions, tokens, positions or values",
    )
