"""Every reason why a program cannot be compiled exactly, found before any weight is written.

The tables already know what cannot be tabulated. Left are four questions:

1. Is each selector an `and` of conditions, as one head can compute it?
2. Does each categorical aggregate move one value, never a mixture? That is proved from the tables
   where possible, and otherwise tried on many inputs, all of them where they are few.
3. Do rounding errors stay small beside the numbers of every numerical sequence, and beside their
   distances where a map tells them apart?
4. Is the transformer small enough to be written at all?
"""

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from graphcircuits.rasp.expression import RASPExpr
from graphcircuits.rasp.language import (
    Aggregate,
    Full,
    LinearSequenceMap,
    Map,
    SelectorWidth,
    SequenceMap,
    SOp,
    indices,
    tokens,
)
from graphcircuits.rasp.lookup import run
from graphcircuits.rasp.size import Condition, conjunction, size_problems
from graphcircuits.rasp.tabulate import NONE, Problem, Tables, tabulate
from graphcircuits.rasp.values import RaspError, Value

TRIALS = 512
"""Random inputs on which an aggregate that is not proved right is tried, at the least."""
PAIRS = 2**19
"""Pairs of positions to look at in trials; short inputs get more of them."""
PALETTE = 4
"""Most tokens in those random inputs that have few, where equal tokens and rare ones meet."""
RESOLUTION = 1e-9
"""Numbers closer than this, relative to the largest, cannot be told apart in the stream."""
ROUNDING = 2.0**-52
"""Relative error of a weighted sum."""
EXACT = 1e-6
"""How far rounding may move a number, relative to it where it is larger than 1."""


def validate(
    program: SOp, *, vocab: Iterable[Value], max_seq_len: int, causal: bool = False
) -> list[Problem]:
    """Every problem of a program, with its reason; an empty list means that it compiles."""
    return problems(tabulate(program, vocab=vocab, max_seq_len=max_seq_len, causal=causal))


def problems(tables: Tables) -> list[Problem]:
    """Every problem of a tabulated program."""
    noise = _noise(tables)
    listed = list(tables.problems)
    unproved: list[Aggregate] = []
    for sop, variable in tables.variables.items():
        if isinstance(sop, Aggregate | SelectorWidth):
            try:
                conditions = conjunction(tables, sop.selector)
            except RaspError as error:
                listed.append(Problem(tables.labels[sop.selector], str(error)))
                continue
            if isinstance(sop, Aggregate) and not _moves_one_value(tables, sop, conditions):
                unproved.append(sop)
        elif isinstance(sop, Map) and tables.variables[sop.inner].numerical:
            listed += _resolution_problems(tables, sop, noise[sop.inner])
        if variable.numerical:
            listed += _rounding_problems(tables, sop, noise[sop])
    return listed + list(_mixtures(tables, unproved)) + list(size_problems(tables))


def clusters(values: np.ndarray) -> np.ndarray:
    """One number per value, the same for neighbours that rounding may swap; values ascend."""
    gap = RESOLUTION * max(1.0, float(np.abs(values).max()))
    return np.concatenate([[0], np.cumsum(np.diff(values) > gap)])


def _numbers(tables: Tables, sop: SOp) -> np.ndarray:
    return tables.variables[sop].numbers[:-1]


def _noise(tables: Tables) -> dict[SOp, float]:
    """How far rounding may move the numbers of each numerical sequence."""
    noise: dict[SOp, float] = {}
    for sop, variable in tables.variables.items():
        if not variable.numerical:
            continue
        noise[sop] = ROUNDING * np.abs(_numbers(tables, sop)).max()
        match sop:
            case LinearSequenceMap():
                for source, factor in ((sop.fst, sop.fst_fac), (sop.snd, sop.snd_fac)):
                    largest = np.abs(_numbers(tables, source)).max()
                    noise[sop] += abs(factor) * (noise[source] + ROUNDING * largest)
            case Map() if tables.variables[sop.inner].numerical:
                images = np.nan_to_num(variable.numbers)[tables.functions[sop][:-1]]
                noise[sop] += _step_noise(_numbers(tables, sop.inner), images)
            case SelectorWidth():
                widths = _numbers(tables, sop)[::-1]
                noise[sop] += _step_noise(1 / (widths + 1), widths)
            case Aggregate():
                noise[sop] += noise[sop.values]
    return noise


def _step_noise(values: np.ndarray, images: np.ndarray) -> float:
    """How far a function in steps may be off: a step is two units apart, large where narrow."""
    borders = np.flatnonzero(np.diff(clusters(values)))
    units = 1 + 4 * np.abs(values).max() / np.diff(values)[borders]
    return ROUNDING * (np.abs(np.diff(images)[borders]) * units).sum()


def _rounding_problems(tables: Tables, sop: SOp, noise: float) -> Iterator[Problem]:
    least = np.abs(_numbers(tables, sop)).min()
    if noise > EXACT * max(1.0, least):
        yield Problem(
            tables.labels[sop],
            f"rounding may move its numbers by {noise:.0e}, because it is computed from much "
            "larger ones; scale these down",
        )


def _resolution_problems(tables: Tables, sop: Map, noise: float) -> Iterator[Problem]:
    source = tables.variables[sop.inner]
    values = _numbers(tables, sop.inner)
    images = tables.functions[sop][:-1]
    close = (np.diff(clusters(values)) == 0) | (np.diff(values) <= 64 * noise)
    told_apart = np.flatnonzero(close & (np.diff(images) != 0))
    if told_apart.size:
        first, second = source.values[told_apart[0]], source.values[told_apart[0] + 1]
        yield Problem(
            tables.labels[sop],
            f"it tells {first!r} from {second!r} of {source.label!r}, "
            "which are too close for one direction of the stream",
        )


def _moves_one_value(tables: Tables, sop: Aggregate, conditions: list[Condition]) -> bool:
    """Whether it is a mean, or some condition alone makes all selected values equal."""
    source = tables.variables[sop.values]
    constant = len(source.values) == 1 and not source.nullable
    return (
        tables.variables[sop].numerical
        or constant
        or any(
            condition.table.sum(axis=0).max() <= 1 and _determined(sop.values, by=condition.keys)
            for condition in conditions
        )
    )


def _determined(sop: SOp, by: SOp) -> bool:
    """Whether equal values of `by` at two positions mean equal values of `sop`."""
    if by is indices:
        return True
    seen: set[RASPExpr] = {by}
    queue: list[RASPExpr] = [sop]
    while queue:
        node = queue.pop()
        if node in seen or isinstance(node, Full):
            continue
        if not isinstance(node, Map | SequenceMap):
            return False
        seen.add(node)
        queue += node.children
    return True


def _mixtures(tables: Tables, unproved: list[Aggregate]) -> Iterator[Problem]:
    """Aggregates that some input makes select different values, with that input."""
    if not unproved:
        return
    rows_at_once = max(1, PAIRS // tables.max_length**2)
    codes = trial_inputs(tables, min(max(TRIALS, rows_at_once), 8 * TRIALS))
    examples: dict[Aggregate, list[Value]] = {}
    for start in range(0, len(codes), rows_at_once):
        some = codes[start : start + rows_at_once]
        conflicts = run(tables, some).conflicts
        for sop in unproved:
            rows = np.flatnonzero(conflicts[sop].any(axis=1))
            if rows.size and sop not in examples:
                row = some[rows[0]]
                examples[sop] = [tables.vocab[code] for code in row[row != NONE]]
    for sop, example in examples.items():
        yield Problem(
            tables.labels[sop],
            "a categorical aggregate moves one value, but this one selects different values "
            f"on {example}",
        )


def trial_inputs(tables: Tables, trials: int = TRIALS) -> np.ndarray:
    """Token codes of all inputs where they are few, else of random ones.

    Half of them have the full length. A third draw their tokens evenly; the others repeat a few,
    picked so that a token which the program treats in a way of its own is as likely as all others.
    """
    size, longest = len(tables.vocab), tables.max_length
    total = sum(size**length for length in range(1, longest + 1))
    if total <= trials:
        rows = [
            row for n in range(1, longest + 1) for row in itertools.product(range(size), repeat=n)
        ]
        return np.array([[*row, *[NONE] * (longest - len(row))] for row in rows])
    generator = np.random.default_rng(0)
    kinds = _token_kinds(tables)
    by_kind, counts = np.argsort(kinds, kind="stable"), np.bincount(kinds)
    kind = generator.integers(len(counts), size=(trials, PALETTE))
    palette = by_kind[(np.cumsum(counts) - counts)[kind] + generator.integers(counts[kind])]
    colours = generator.integers(1, PALETTE + 1, size=(trials, 1))
    few = np.take_along_axis(palette, generator.integers(colours, size=(trials, longest)), axis=1)
    even = generator.integers(size, size=(trials, longest))
    codes = np.where(generator.random((trials, 1)) < 1 / 3, even, few)
    lengths = generator.integers(1, longest + 1, size=(trials, 1))
    lengths = np.where(generator.random((trials, 1)) < 0.5, longest, lengths)
    return np.where(np.arange(longest) < lengths, codes, NONE)


def _token_kinds(tables: Tables) -> np.ndarray:
    """One number per token, the same for tokens that no table tells apart."""
    size = len(tables.vocab)
    rows = [
        np.moveaxis(table, axis, 0)[:size].reshape(size, -1)
        for node, table in (*tables.functions.items(), *tables.selections.items())
        for axis, source in enumerate(node.children)
        if source is tokens
    ]
    if not rows:
        return np.zeros(size, dtype=np.int64)
    return np.unique(np.hstack(rows), axis=0, return_inverse=True)[1].reshape(-1)
