"""Numbers of a case made comparable with those of another: by the largest, by component, by place.

1. `Span` is a range of edges: some readers of one block, whose edges are a rectangle of readers and
   writers, or all edges of a graph.
2. `Scales` holds what the values of a case are divided by: the largest of all, the sum and the
   largest at each reader and at each writer; and the place of every value, counted from the top.
3. `Scales.columns` gives the scaled values of a span, so that a graph of a million edges never has
   all its columns at once. In a rectangle nothing is gathered.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.graph import ComponentGraph

SCALINGS = ("case", "reader_share", "reader_top", "writer_share", "writer_top", "place")
LOGARITHMIC = ("case", "reader_top", "writer_top")
"""Scalings of which the logarithm is taken."""

NEGLIGIBLE = 1e-6
"""Below this share of the case's largest value, differences are rounding and do not count."""
FLOOR = 1e-5
"""Where logarithms of shares end."""
TINY = 1e-30


# Ranges of edges


@dataclass(frozen=True, eq=False)
class Span:
    """Edges that follow each other. Those of a rectangle have two axes, reader and writer."""

    edges: slice
    shape: tuple[int, ...]
    """(reader, writer) for a rectangle, else (edge,)."""
    readers: slice | Int[Tensor, " edge"]
    """Those of the rectangle, or that of each edge."""
    writers: slice | Int[Tensor, " edge"]

    def of(self, x: Float[Tensor, "row edge"]) -> Float[Tensor, "row ..."]:
        """What belongs to these edges, in their shape."""
        return x[:, self.edges].unflatten(1, self.shape)

    def at_readers(self, x: Float[Tensor, "row reader ..."]) -> Float[Tensor, "row ..."]:
        """What belongs to the reader of each edge, in a shape that goes with that of the edges."""
        if isinstance(self.readers, slice):
            return x[:, self.readers].unsqueeze(2)
        return x.index_select(1, self.readers)

    def at_writers(self, x: Float[Tensor, "row writer ..."]) -> Float[Tensor, "row ..."]:
        if isinstance(self.writers, slice):
            return x[:, self.writers].unsqueeze(1)
        return x.index_select(1, self.writers)


@lru_cache(maxsize=8)
def whole(graph: ComponentGraph, device: torch.device) -> Span:
    """All edges of a graph."""
    return Span(
        edges=slice(0, graph.n_edges),
        shape=(graph.n_edges,),
        readers=graph.edge_readers.to(device),
        writers=graph.edge_writers.to(device),
    )


def rectangles(graph: ComponentGraph, size: int | None = None) -> Iterator[Span]:
    """All edges in rectangles of at most `size` edges, but one reader at least, in order."""
    for block in graph.stream_blocks:
        step = block.n_readers if size is None else max(1, size // block.n_writers)
        for low in range(0, block.n_readers, step):
            count = min(step, block.n_readers - low)
            first = block.first_edge + low * block.n_writers
            reader = block.first_reader + low
            yield Span(
                edges=slice(first, first + count * block.n_writers),
                shape=(count, block.n_writers),
                readers=slice(reader, reader + count),
                writers=slice(0, block.n_writers),
            )


# Scales


@dataclass(frozen=True, eq=False)
class Scales:
    """Values of a case, those that are negligible set to zero, and what they are divided by."""

    graph: ComponentGraph
    values: Float[Tensor, "statistic edge"]
    top: Float[Tensor, "statistic 1"]
    at_readers: Float[Tensor, "2 statistic reader"]
    """The sum of the values at each reader, and the largest of them."""
    at_writers: Float[Tensor, "2 statistic writer"]
    places: Float[Tensor, "statistic edge"]

    @classmethod
    def of(cls, values: Float[Tensor, "statistic edge"], graph: ComponentGraph) -> "Scales":
        values, top = significant(values)
        readers = values.new_empty(2, len(values), graph.n_readers)
        writers = values.new_zeros(2, len(values), graph.n_writers)
        for span in rectangles(graph):
            here = span.of(values)
            readers[0, :, span.readers] = here.sum(2)
            readers[1, :, span.readers] = here.amax(2)
            writers[0, :, span.writers].add_(here.sum(1))
            largest = writers[1, :, span.writers]
            torch.maximum(largest, here.amax(1), out=largest)
        readers, writers = readers.clamp_min_(TINY), writers.clamp_min_(TINY)
        return cls(graph, values, top, readers, writers, place(values))

    def columns(self, span: Span) -> Float[Tensor, "statistic scaling edge"]:
        """Every statistic of some edges under every scaling, in the order of SCALINGS."""
        values = span.of(self.values)
        scales = {
            "case": self.top.unflatten(1, (1,) * len(span.shape)),
            "reader_share": span.at_readers(self.at_readers[0]),
            "reader_top": span.at_readers(self.at_readers[1]),
            "writer_share": span.at_writers(self.at_writers[0]),
            "writer_top": span.at_writers(self.at_writers[1]),
        }
        found = values.new_empty(len(values), len(SCALINGS), *span.shape)
        for number, name in enumerate(SCALINGS):
            if name == "place":
                found[:, number] = span.of(self.places)
                continue
            column = torch.div(values, scales[name], out=found[:, number])
            if name in LOGARITHMIC:
                column.clamp_min_(FLOOR).log_()
        return found.flatten(2)


def significant(values: Float[Tensor, "row item"]) -> tuple[Tensor, Float[Tensor, "row 1"]]:
    """The values of each row with negligible ones set to zero, and the largest."""
    top = values.amax(1, keepdim=True).clamp_min(TINY)
    return values.where(values > NEGLIGIBLE * top, 0.0), top


def log_share(share: Float[Tensor, "*row item"]) -> Float[Tensor, "*row item"]:
    return share.clamp_min(FLOOR).log()


def place(values: Float[Tensor, "row item"]) -> Float[Tensor, "row item"]:
    """log(1 + how many of the row are larger), ties counted half; values are not negative.

    Zeros count as one place behind all others, so that a row does not look another when zeros are
    added to it: the same circuit in a larger subject.
    """
    if values.device.type == "cpu" and values.dtype == torch.float32:
        return _place_by_bits(values)
    ordered, order = values.contiguous().sort(dim=1)
    both = torch.searchsorted(ordered, ordered) + torch.searchsorted(ordered, ordered, right=True)
    larger = values.shape[1] - (both.double() + 1) / 2
    larger = larger.where(ordered > 0, (ordered > 0).sum(1, keepdim=True).double())
    return torch.empty_like(ordered).scatter_(1, order, larger.log1p().to(values))


def _place_by_bits(values: Float[Tensor, "row item"]) -> Float[Tensor, "row item"]:
    """The same by one sort of whole numbers, ten times as fast and more.

    Numbers in single precision that are not negative are in the order of their bits; an item's
    place goes behind them, so that no sort has to carry it.
    """
    found = torch.empty(values.shape)
    for row, into in zip(values, found, strict=True):
        keys = row.contiguous().numpy().view(np.int32).astype(np.int64) << 32
        keys |= np.arange(len(keys))
        keys.sort()
        bits = keys >> 32
        first = np.flatnonzero(np.concatenate([[True], bits[1:] != bits[:-1]]))
        last = np.append(first[1:], len(bits))
        larger = len(bits) - (first + last + 1) / 2
        if bits[0] == 0:
            larger[0] = len(bits) - last[0]
        logs = np.log1p(larger).astype(np.float32)
        into.numpy()[keys & 0xFFFFFFFF] = np.repeat(logs, last - first)
    return found
