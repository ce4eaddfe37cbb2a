"""What corrupting edges does, alone and two at a time.

1. The effect of a set of edges is the loss when they are corrupted minus that of the clean run.
2. The interaction of two edges is their joint effect minus the two single effects.
3. For whole edges, corrupted at every position, masked runs give all of that: one for the clean
   run, one per edge and one per pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.engine.memory import Footprint, at_once, half
from graphcircuits.methods.prepare import Progress, prepare
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs


@dataclass(frozen=True, kw_only=True, eq=False)
class Effects:
    """What corrupting edges does to the loss, alone and two at a time; above zero is worse.

    Whole edges have the axis batch after the edges, edges at a shared read place and batch.
    """

    edges: tuple[str, ...]
    single: Float[Tensor, " chosen *rest"]
    joint: Float[Tensor, "chosen chosen *rest"]
    """Of an edge with itself: the single effect."""

    @cached_property
    def interaction(self) -> Float[Tensor, "chosen chosen *rest"]:
        """Joint minus single effects; zero on the diagonal, where there is no pair."""
        return without_diagonal(self.joint - self.single[:, None] - self.single[None])


@torch.no_grad()
def edge_interactions(
    subject: Transformer,
    pairs: Pairs,
    edges: Sequence[str],
    *,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> Effects:
    """Effects on each prompt (axis batch) of corrupting these edges at every position.

    `progress` hears how many of the runs are over, one per prompt and edge or pair of edges.
    """
    graph = subject.graph
    check_edges(edges)
    indices = graph.edge_indices(edges)
    pairs = prepare(subject, pairs, memory_limit)
    first, second = torch.triu_indices(len(edges), len(edges), 1)
    rows = torch.arange(1 + len(edges) + len(first))
    masks = torch.ones(len(rows), graph.n_edges, dtype=subject.dtype)
    masks[rows[1 : 1 + len(edges)], indices] = 0
    for one in (first, second):
        masks[rows[1 + len(edges) :], indices[one]] = 0
    masks = masks.to(subject.device)
    size = Footprint(subject, pairs.clean.shape[1])
    held = 2 * size.pair + size.masked(grad=False)
    runs = 0

    def loss(part: Pairs, logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        nonlocal runs
        found = part.loss(logits)
        runs += found.numel()
        if progress is not None:
            progress(runs, len(masks) * len(pairs))
        return found

    losses = torch.cat(
        [
            masked_logits(
                subject,
                part.clean,
                masks,
                subject.run(part.corrupted).writers,
                metric=partial(loss, part),
                memory_limit=half(memory_limit),
            )
            for part in pairs.split(at_once(subject, held, memory_limit))
        ],
        dim=1,
    )
    effects = losses[1:] - losses[0]
    single, joint = effects[: len(edges)], effects[len(edges) :]
    return Effects(edges=tuple(edges), single=single, joint=square(single, joint))


def square(
    single: Float[Tensor, " chosen *rest"], joint: Float[Tensor, " pair *rest"]
) -> Float[Tensor, "chosen chosen *rest"]:
    """Values of the pairs above the diagonal on both sides of it, single ones on it."""
    first, second = torch.triu_indices(len(single), len(single), 1)
    values = single.new_zeros(len(single), *single.shape)
    values[first, second] = joint
    values[second, first] = joint
    values[range(len(single)), range(len(single))] = single
    return values


def without_diagonal(
    values: Float[Tensor, "chosen chosen *rest"],
) -> Float[Tensor, "chosen chosen *rest"]:
    """The same with zeros where an edge would be paired with itself."""
    diagonal = torch.eye(len(values), dtype=torch.bool, device=values.device)
    return values.masked_fill(diagonal.view(*diagonal.shape, *[1] * (values.ndim - 2)), 0.0)


def check_edges(edges: Sequence[str]) -> None:
    """Refuse fewer than two edges, and repeated ones."""
    if len(set(edges)) < 2 or len(set(edges)) < len(edges):
        raise ValueError(
            f"an interaction needs two or more different edges, got {', '.join(edges) or 'none'}."
        )
