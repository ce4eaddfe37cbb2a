"""Numbers of a case made comparable with those of another.

Subjects differ in the size of their gradients and in how many edges they have, so a raw value says
little. `scaled` gives every value six ways: by the largest of the case, by the sum and by the
largest at the edge's reader and at its writer, and as a rank counted from the top. None of them
changes when edges that do nothing are added: the same circuit looks alike in a larger subject.
"""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.graph import ComponentGraph

SCALINGS = ("case", "reader_share", "reader_top", "writer_share", "writer_top", "rank")
LOGARITHMIC = ("case", "reader_top", "writer_top")
"""Scalings of which the logarithm is taken."""

NEGLIGIBLE = 1e-6
"""Below this share of the case's largest value, differences are rounding and do not count."""
FLOOR = 1e-5
"""Where logarithms of shares end."""
TINY = 1e-30


def scaled(
    values: Float[Tensor, "statistic edge"], graph: ComponentGraph
) -> Float[Tensor, "edge statistic scaling"]:
    """Every statistic of every edge under every scaling, in the order of SCALINGS."""
    values, top = significant(values)
    at_readers, at_writers = _sums_and_largest(values, graph)
    writers, readers = edge_ends(graph, values.device)
    columns = values.new_empty(len(values), len(SCALINGS), graph.n_edges)
    at_ends = ((at_readers, readers), (at_writers, writers))
    scales = (top, *(x.index_select(1, ends) for both, ends in at_ends for x in both))
    for number, scale in enumerate(scales):
        column = torch.div(values, scale, out=columns[:, number])
        if SCALINGS[number] in LOGARITHMIC:
            column.clamp_min_(FLOOR).log_()
    columns[:, -1] = log_rank(values)
    return columns.permute(2, 0, 1)


@lru_cache(maxsize=8)
def edge_ends(
    graph: ComponentGraph, device: torch.device
) -> tuple[Int[Tensor, " edge"], Int[Tensor, " edge"]]:
    """The writer and the reader of every edge; copies on a GPU stay there for the next case."""
    return graph.edge_writers.to(device), graph.edge_readers.to(device)


def _sums_and_largest(
    values: Float[Tensor, "statistic edge"], graph: ComponentGraph
) -> tuple[Float[Tensor, "2 statistic reader"], Float[Tensor, "2 statistic writer"]]:
    """The sum of the values at each reader and at each writer, and the largest of them.

    In a table of readers and writers, zeros where there is no edge: these change neither of them.
    """
    table = values.new_zeros(len(values), graph.n_readers, graph.n_writers)
    for block in graph.stream_blocks:
        here = values[:, block.edges].unflatten(1, (block.n_readers, block.n_writers))
        table[:, block.readers, : block.n_writers] = here
    readers, writers = (torch.stack([table.sum(axis), table.amax(axis)]) for axis in (2, 1))
    return readers.clamp_min_(TINY), writers.clamp_min_(TINY)


def significant(values: Float[Tensor, "row item"]) -> tuple[Tensor, Float[Tensor, "row 1"]]:
    """The values of each row with negligible ones set to zero, and the largest."""
    top = values.amax(1, keepdim=True).clamp_min(TINY)
    return values.where(values > NEGLIGIBLE * top, 0.0), top


def log_share(share: Float[Tensor, "*row item"]) -> Float[Tensor, "*row item"]:
    return share.clamp_min(FLOOR).log()


def log_rank(values: Float[Tensor, "row item"]) -> Float[Tensor, "row item"]:
    """log(1 + how many of the row are larger), ties counted half; values are not negative.

    Zeros share one rank behind all others, so that adding zeros to a row changes nothing.
    """
    if values.device.type == "cpu" and values.dtype == torch.float32:
        return _log_rank_by_bits(values)
    ordered, order = values.contiguous().sort(dim=1)
    both = torch.searchsorted(ordered, ordered) + torch.searchsorted(ordered, ordered, right=True)
    larger = values.shape[1] - (both.double() + 1) / 2
    larger = larger.where(ordered > 0, (ordered > 0).sum(1, keepdim=True).double())
    return torch.empty_like(ordered).scatter_(1, order, larger.log1p().to(values))


def _log_rank_by_bits(values: Float[Tensor, "row item"]) -> Float[Tensor, "row item"]:
    """`log_rank` by one sort of whole numbers, at least ten times as fast.

    Numbers in single precision that are not negative have the order of their bits; the index of
    each goes into the lower bits, so that the sort need not carry it along.
    """
    ranks = torch.empty(values.shape)
    for row, into in zip(values, ranks, strict=True):
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
    return ranks
