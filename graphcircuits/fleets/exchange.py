"""The program's side of the training, computed once, ahead of it, by table look-up.

1. Draw inputs of full length and evaluate the program on them: the behaviour to learn.
2. For every component of the circuit, pair inputs at random and evaluate the program again on the
   first of each pair, with the component's variables taken from the second: the answers that an
   interchange of the component must lead to.

A None output counts as the first class. Where an interchange makes an aggregate mix values the
program has no answer, and the position is not scored.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.rasp.language import SOp
from graphcircuits.rasp.layout import WIDTH_SUFFIX, Layout, complete_edges
from graphcircuits.rasp.lookup import ProgramTrace, run, undefined
from graphcircuits.rasp.tabulate import Tables

FIRST_TOKEN = 2
"""Token ids start with BOS and PAD."""
BATCH = 4096
"""Inputs evaluated at once; look-ups hold a (query, key) table for each."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """Inputs with the program's answers, and answers under interchange of each component.

    Positions leave BOS out. Targets are class numbers, or numbers where the output is numerical.
    """

    tokens: Int[Tensor, "input pos_with_bos"]
    targets: Int[Tensor, "input pos"] | Float[Tensor, "input pos"]
    components: tuple[str, ...]
    base: Int[Tensor, "component pair"]
    source: Int[Tensor, "component pair"]
    swapped: Int[Tensor, "component pair pos"] | Float[Tensor, "component pair pos"]
    """The program's answer on the base input, with the component's variables from the source."""
    scored: Bool[Tensor, "component pair pos"]
    edges: frozenset[str]
    """Every edge that the program reads along: its complete circuit."""
    answers: Bool[Tensor, " pos"] | None = None
    """Where the program answers; everywhere if not said."""

    @property
    def numerical(self) -> bool:
        return self.targets.is_floating_point()


def exchange(
    tables: Tables,
    layout: Layout,
    codes: np.ndarray,
    n_interchanges: int,
    generator: torch.Generator,
) -> Exchange:
    """Answers for inputs (token codes of one length), and for interchanges of each component.

    Without interchanges it is the task alone, and the program runs once.
    """
    clean = _in_batches(tables, codes, {})
    written = written_variables(tables, layout)
    drawn = torch.randint(len(codes), (len(written), 2, n_interchanges), generator=generator)
    targets = _targets(tables, clean)
    swapped = np.zeros((len(written), n_interchanges, codes.shape[1]), targets.dtype)
    scored = np.zeros(swapped.shape, dtype=bool)
    asked = zip(drawn.numpy(), written.values(), strict=True) if n_interchanges > 0 else ()
    for row, ((base, source), sops) in enumerate(asked):
        overrides = {sop: clean.columns[sop][source] for sop in sops}
        trace = _in_batches(tables, codes[base], overrides)
        swapped[row] = _targets(tables, trace)
        scored[row] = ~undefined(tables, codes[base], trace, overrides)
    bos = np.zeros((len(codes), 1), dtype=np.int64)
    return Exchange(
        tokens=torch.from_numpy(np.hstack([bos, codes + FIRST_TOKEN])),
        targets=torch.from_numpy(targets),
        components=tuple(written),
        base=drawn[:, 0],
        source=drawn[:, 1],
        swapped=torch.from_numpy(swapped),
        scored=torch.from_numpy(scored),
        edges=complete_edges(layout),
    )


def edges_in(graph: ComponentGraph, edges: Iterable[str]) -> frozenset[str]:
    """Edges between heads of their own, by their names where keys and values are shared."""
    size = graph.n_heads // graph.n_groups
    if size == 1:
        return frozenset(edges)
    return frozenset(
        re.sub(r"h(\d+)(<[kv]>)$", lambda head: f"g{int(head[1]) // size}{head[2]}", edge)
        for edge in edges
    )


def written_variables(tables: Tables, layout: Layout) -> dict[str, list[SOp]]:
    """The variables that each component holds; the head of a selector width holds the width."""
    by_label = {tables.labels[sop]: sop for sop in tables.variables}
    return {
        component.name: [by_label[label.removesuffix(WIDTH_SUFFIX)] for label in component.writes]
        for component in layout.components
    }


def _in_batches(
    tables: Tables, codes: np.ndarray, overrides: Mapping[SOp, np.ndarray]
) -> ProgramTrace:
    traces = []
    for start in range(0, len(codes), BATCH):
        some = slice(start, start + BATCH)
        own = {sop: column[some] for sop, column in overrides.items()}
        traces.append(run(tables, codes[some], own))
    return ProgramTrace(
        {sop: np.concatenate([t.columns[sop] for t in traces]) for sop in traces[0].columns},
        {sop: np.concatenate([t.conflicts[sop] for t in traces]) for sop in traces[0].conflicts},
    )


def _targets(tables: Tables, trace: ProgramTrace) -> np.ndarray:
    output = trace.columns[tables.program]
    if tables.variables[tables.program].numerical:
        return np.nan_to_num(output).astype(np.float32)
    return np.maximum(output, 0)
