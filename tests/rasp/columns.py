"""Inputs as the token codes that tables are looked up with, and columns as values again."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from graphcircuits.rasp.language import SOp, tokens
from graphcircuits.rasp.tabulate import NONE, Tables
from graphcircuits.rasp.values import Value, codes_of


def encode(tables: Tables, sequences: Iterable[Sequence[Value]]) -> np.ndarray:
    """Token codes, one row per sequence, shorter ones filled up with the code of None."""
    unread = tokens not in tables.variables
    known = codes_of(tables.vocab) if unread else tables.variables[tokens].codes
    rows = [[known[token] for token in sequence] for sequence in sequences]
    width = max(map(len, rows), default=1)
    filled = [row + [NONE] * (width - len(row)) for row in rows]
    return np.array(filled, dtype=np.int64).reshape(len(rows), width)


def decode(tables: Tables, sop: SOp, column: np.ndarray) -> list[Value]:
    """The values behind one row of a column that `lookup.run` gave."""
    variable = tables.variables[sop]
    if variable.numerical:
        return [None if math.isnan(x) else float(x) for x in column]
    return [None if code == NONE else variable.values[code] for code in column]
