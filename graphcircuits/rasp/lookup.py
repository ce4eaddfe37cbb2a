"""A fast interpreter: thousands of inputs at once, by look-up in a program's tables.

A categorical variable is an array of codes (-1 is None), a numerical one an array of numbers (NaN
is None). Variables are computed in order, inputs first; overridden ones are taken as given, which
is how the program's side of an interchange is computed.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

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
from graphcircuits.rasp.selectors import fold, selector_leaves
from graphcircuits.rasp.tabulate import NONE, Tables, Variable, sequence_inputs


@dataclass(frozen=True, eq=False)
class ProgramTrace:
    """What `run` gives: an array (input, position) a variable."""

    columns: Mapping[SOp, np.ndarray]
    conflicts: Mapping[Aggregate, np.ndarray]
    """Where a categorical aggregate selects different values, which no one-hot mean can hold."""


def run(
    tables: Tables, codes: np.ndarray, overrides: Mapping[SOp, np.ndarray] | None = None
) -> ProgramTrace:
    """Every variable on a batch of token codes (input, position), short inputs filled with NONE.

    `overrides` replaces the columns of some variables before anything reads them.
    """
    overrides = overrides or {}
    columns: dict[SOp, np.ndarray] = {}
    conflicts: dict[Aggregate, np.ndarray] = {}
    present = codes != NONE
    visible = _visible(tables, codes)
    for sop, variable in tables.variables.items():
        if sop in overrides:
            columns[sop] = overrides[sop]
        elif sop is tokens:
            columns[sop] = codes
        elif sop is indices:
            columns[sop] = np.where(present, np.arange(codes.shape[1]), NONE)
        else:
            column, conflict = _column(tables, sop, columns, visible)
            columns[sop] = np.where(present, column, np.nan if variable.numerical else NONE)
            if conflict is not None and isinstance(sop, Aggregate):
                conflicts[sop] = conflict
    return ProgramTrace(columns, conflicts)


def undefined(
    tables: Tables, codes: np.ndarray, trace: ProgramTrace, overridden: Container[SOp] = ()
) -> np.ndarray:
    """Where the output rests on a mixture of values, and so has no meaning: (input, position).

    An override can make a categorical aggregate select different values. What reads such a mixture
    is undefined too, and so is every query that can see an undefined key.
    """
    bad: dict[SOp, np.ndarray] = {}
    nowhere = np.zeros(codes.shape, dtype=bool)
    visible = _visible(tables, codes)
    for sop in tables.variables:
        bad[sop] = nowhere
        if sop in overridden:
            continue
        if not isinstance(sop, Aggregate | SelectorWidth):
            for source in sequence_inputs(sop):
                bad[sop] = bad[sop] | bad[source]
            continue
        for leaf in selector_leaves(sop.selector):
            seen = (visible & bad[leaf.keys][:, None, :]).any(axis=-1)
            bad[sop] = bad[sop] | bad[leaf.queries] | seen
        if isinstance(sop, Aggregate):
            if bad[sop.values].any():
                pattern = _pattern(tables, sop.selector, trace.columns, visible)
                bad[sop] = bad[sop] | (pattern & bad[sop.values][:, None, :]).any(axis=-1)
            bad[sop] = bad[sop] | trace.conflicts.get(sop, nowhere)
    return bad[tables.program]


def _visible(tables: Tables, codes: np.ndarray) -> np.ndarray:
    """Which keys a query may look at: (input, query, key)."""
    present = codes != NONE
    visible = present[:, :, None] & present[:, None, :]
    if tables.causal:
        positions = np.arange(codes.shape[1])
        visible &= positions[None, :] <= positions[:, None]
    return visible


def _column(
    tables: Tables, sop: SOp, columns: Mapping[SOp, np.ndarray], visible: np.ndarray
) -> tuple[Any, np.ndarray | None]:
    numerical = tables.variables[sop].numerical
    match sop:
        case Full():
            return (sop.fill if numerical else 0), None
        case LinearSequenceMap():
            return sop.fst_fac * columns[sop.fst] + sop.snd_fac * columns[sop.snd], None
        case Map():
            image = tables.functions[sop][_nearest(tables.variables[sop.inner], columns[sop.inner])]
            return (tables.variables[sop].numbers[image] if numerical else image), None
        case SequenceMap():
            return tables.functions[sop][columns[sop.fst], columns[sop.snd]], None
        case SelectorWidth():
            return _pattern(tables, sop.selector, columns, visible).sum(axis=-1), None
        case Aggregate():
            pattern = _pattern(tables, sop.selector, columns, visible)
            if numerical:
                return _mean(sop, pattern, columns[sop.values]), None
            return _moved(tables, sop, pattern, columns[sop.values])
    raise AssertionError(f"no table for {sop!r}")


def _nearest(variable: Variable, column: np.ndarray) -> np.ndarray:
    """Codes of a column: a numerical value takes the code of the nearest one in the list."""
    if not variable.numerical:
        return column
    values = variable.numbers[:-1]
    middles = (values[1:] + values[:-1]) / 2
    return np.where(np.isnan(column), NONE, np.searchsorted(middles, np.nan_to_num(column)))


def _pattern(
    tables: Tables, selector: Selector, columns: Mapping[SOp, np.ndarray], visible: np.ndarray
) -> np.ndarray:
    """Which keys every query selects: (input, query, key)."""
    selected = partial(_selected, tables, columns)
    return visible & fold(selector, selected, both=np.logical_and, either=np.logical_or)


def _selected(
    tables: Tables, columns: Mapping[SOp, np.ndarray], node: Selector, negate: bool
) -> np.ndarray:
    assert isinstance(node, Select)
    keys, queries = columns[node.keys][:, None, :], columns[node.queries][:, :, None]
    table = tables.selections[node]
    if negate:
        table = ~table
        table[-1, :] = table[:, -1] = False
    return table[keys, queries]


def _mean(sop: Aggregate, pattern: np.ndarray, values: np.ndarray) -> np.ndarray:
    count = pattern.sum(axis=-1)
    total = (pattern * np.nan_to_num(values)[:, None, :]).sum(axis=-1)
    default = np.nan if sop.default is None else sop.default
    return np.where(count > 0, total / np.maximum(count, 1), default)


def _moved(
    tables: Tables, sop: Aggregate, pattern: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The one value selected, in the aggregate's own codes; and where there are several."""
    source, target = tables.variables[sop.values], tables.variables[sop]
    recode = np.array([*(target.codes[value] for value in source.values), NONE])
    spread = values[:, None, :]
    highest = np.where(pattern, spread, -2).max(axis=-1)
    lowest = np.where(pattern, spread, len(source.values)).min(axis=-1)
    default = NONE if sop.default is None else target.codes[sop.default]
    moved = np.where(highest == -2, default, recode[np.maximum(highest, NONE)])
    return moved, (highest > -2) & (highest != lowest)
