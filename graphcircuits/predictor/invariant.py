"""Features that no change of basis inside a component touches.

1. At every context and edge the six features are contracted, or measured in the residual stream:
   clean = g . m_clean, corrupted = g . m_corrupted, effect = corrupted - clean (what noising the
   edge does to first order), reach = |g| |change of the writer's output|, and
   bound = |g| |the writer's clean output|; g is the gradient at the reader's input in the stream.
   With `share` below 1 the gradient is that of a run between the corrupted and the clean one
   (`engine.passes`), and own = g . (the change of the message in that run) is the gradient by the
   edge's mask there: where the clean run saturates, as attention does, its gradient vanishes and
   the other one need not.
2. `measure` pools them over contexts: means of absolute values, by context or summed over the
   positions of a pair first, and means with signs. That is one pass over the prompts, chunked to a
   memory limit, and over the edges block by block (`contract`).
3. `scaled` makes a subject's numbers comparable with another's: by the largest of the case, by the
   largest and the sum at an edge's reader and at its writer, and by their rank from the top
   (`scaling`). None of these changes when edges that do nothing are added.
4. `InvariantAligner` standardizes and projects them, with the kinds of writer and reader.

Unlike the paper's aligner nothing attends over coordinates, so the width of a subject does not
matter, and contexts are pooled before graph learning instead of after it: the graph learner then
runs once per case and not once per context.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from graphcircuits.engine.memory import Footprint, at_once, keep_freed_memory
from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor.block import linear
from graphcircuits.predictor.measure.contract import contract
from graphcircuits.predictor.measure.scaling import (
    SCALINGS,
    edge_ends,
    log_rank,
    log_share,
    scaled,
    significant,
)
from graphcircuits.predictor.paper.transform import Transformation
from graphcircuits.subject.sites import READER_KINDS, WRITER_KINDS, kinds
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs, check_losses

STATISTICS = ("effect", "clean", "corrupted", "reach", "bound", "effect_by_pair", "clean_by_pair")
"""Mean absolute value of a contraction over contexts; over pairs, positions summed, at the end."""
BETWEEN_STATISTICS = (
    "own",
    "own_by_pair",
    "own_signed",
    "effect",
    "effect_by_pair",
    "effect_signed",
    "reach",
    "clean_by_pair",
)
"""Those with the gradient of a run between; what is signed is the absolute value of a mean."""


def statistics_of(share: float) -> tuple[str, ...]:
    """What is measured of every edge, in the order of the rows of `Invariants.statistics`."""
    return STATISTICS if share == 1 else BETWEEN_STATISTICS


@dataclass(frozen=True, eq=False)
class Invariants:
    """Pooled invariants of a case."""

    graph: ComponentGraph
    statistics: Float[Tensor, "statistic edge"]
    """In the order of `statistics_of`."""
    written: Float[Tensor, "2 writer"]
    """Mean norm of each writer's clean output, and of its change."""
    received: Float[Tensor, " reader"]
    """Mean norm of the gradient that each reader sends to the stream."""

    def to(self, where: torch.device | torch.dtype | str) -> "Invariants":
        names = ("statistics", "written", "received")
        return replace(self, **{name: getattr(self, name).to(where) for name in names})


@torch.no_grad()
def measure(
    subject: Transformer,
    pairs: Pairs,
    *,
    share: float = 1.0,
    memory_limit: int | None = None,
) -> Invariants:
    """The invariants of a subject's edges on a task, over all positions of all pairs.

    `share` says where the gradient is taken, from the corrupted (0) to the clean run (1). Targets
    that are still to be taken from the clean run are.
    """
    if pairs.clean.device != subject.device:
        pairs = pairs.to(subject.device)
    n_contexts = pairs.clean.numel()
    keep_freed_memory()
    statistics = statistics_of(share)
    total, losses = None, []
    for chunk in pairs.split(_chunk(subject, pairs, memory_limit, runs=1 + (share < 1))):
        if share < 1 and chunk.needs_targets:
            chunk = chunk.with_targets_from(subject.logits(chunk.clean))
        sums = contract(subject, chunk, statistics, share)
        losses.append(sums.losses)
        total = sums if total is None else total.plus(sums)
    assert total is not None
    measured = Invariants(
        subject.graph,
        statistics=total.edges.abs_().div_(n_contexts),
        written=total.written / n_contexts,
        received=total.received / n_contexts,
    )
    # All that is looked at comes to the host before: a GPU would be waited for at every question.
    written, received = measured.written.sum(0).cpu(), measured.received.cpu()
    # Outputs first: a loss that is not finite may only be what followed from one of them.
    _check_finite("output", measured.graph.writer_names, written)
    check_losses(*torch.cat(losses, dim=1).cpu())
    _check_finite("gradient", measured.graph.reader_names, received)
    if not received.any():
        raise ValueError(
            "the gradient of the loss is zero at every component, so features would say nothing of "
            "the task; a loss whose targets are the clean run's own outputs is flat there: give "
            "the right answers as targets, or use eap-ig or exact."
        )
    return measured


def _check_finite(what: str, names: Sequence[str], values: Float[Tensor, " component"]) -> None:
    broken = (~values.isfinite()).nonzero().flatten().tolist()
    if broken:
        raise ValueError(
            f"features must be finite, but the {what} of {names[broken[0]]} is NaN or "
            "infinite; look at the subject's weights and the targets."
        )


def _chunk(subject: Transformer, pairs: Pairs, memory_limit: int | None, *, runs: int) -> int:
    """Pairs whose runs, stream vectors and contractions fit in memory, one at least."""
    size = Footprint(subject, pairs.clean.shape[1], pairs.columns.stop - pairs.columns.start)
    held = runs * (size.backward + 5 * size.readers) + 2 * size.states
    return at_once(subject, held + 4 * size.writers, memory_limit)


# Tables of nodes


def table_width(share: float) -> int:
    """Columns of `table`."""
    return len(measured_columns(share))


def measured_columns(share: float) -> Bool[Tensor, " column"]:
    """Which columns of `table` say something of a run; the others are kinds of components."""
    statistics = len(statistics_of(share)) * len(SCALINGS)
    counts = (statistics + 4, len(WRITER_KINDS), 2, len(READER_KINDS))
    return torch.tensor([True, False, True, False]).repeat_interleave(torch.tensor(counts))


def table(measured: Invariants, transformation: Transformation) -> Float[Tensor, "node column"]:
    """What each node of the transformed graph knows, zeros where something is absent.

    Columns: scaled statistics; norms at writer (clean, change) and reader (gradient), by the
    largest of the case and by rank; kinds of writer and reader. An edge has all of them. In the
    incidence graph a component has its norms and kind, and edges leave these to components.
    """
    graph = measured.graph
    writer_kinds, reader_kinds = kinds(graph)
    writers = _component_table(measured.written, writer_kinds, len(WRITER_KINDS))
    readers = _component_table(measured.received[None], reader_kinds, len(READER_KINDS))
    edges = scaled(measured.statistics, graph).flatten(1)
    if transformation == "line":
        at_writer, at_reader = edge_ends(graph, edges.device)
        return torch.cat([edges, writers[at_writer], readers[at_reader]], dim=1)
    return torch.block_diag(edges, writers, readers).roll(-graph.n_edges, 0)


def living(table: Float[Tensor, "*case edge column"], share: float) -> Bool[Tensor, "*case edge"]:
    """Which edges of a line graph do anything, by their tables: a writer that changes, and a reader
    that hears of it, by more than rounding."""
    column = statistics_of(share).index("reach") * len(SCALINGS) + SCALINGS.index("reader_share")
    return table[..., column] > 0


def _component_table(
    norms: Float[Tensor, "norm component"], kind: Int[Tensor, " component"], n_kinds: int
) -> Float[Tensor, "component column"]:
    """The columns of `table` that an edge has from its writer, or from its reader."""
    values, top = significant(norms)
    hot = nn.functional.one_hot(kind.to(norms.device), n_kinds)
    return torch.cat([log_share(values / top).T, log_rank(values).T, hot], dim=1)


class InvariantAligner(nn.Module):
    """Node states from tables: standardized and projected."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, width: int, *, share: float = 1.0, generator: torch.Generator) -> None:
        """`share` as in `measure`."""
        super().__init__()
        columns = table_width(share)
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("deviation", torch.ones(columns))
        self.project = linear(columns, width, generator)

    def standardize_by(self, nodes: Float[Tensor, "node column"]) -> None:
        """Take mean and deviation from the tables of the training cases."""
        self.mean.copy_(nodes.mean(0))
        self.deviation.copy_(nodes.std(0).clamp_min(1e-3))

    def forward(
        self, nodes: Float[Tensor, "*case node column"]
    ) -> Float[Tensor, "*case node width"]:
        if torch.is_grad_enabled():
            return self.project((nodes - self.mean) / self.deviation)
        # Into the projection: a standardized table of a million edges would take much memory.
        weight = self.project.weight / self.deviation
        return nn.functional.linear(nodes, weight, self.project.bias - weight @ self.mean)
