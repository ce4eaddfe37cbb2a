"""Single-edge activation patching: what happens when one edge alone is changed.

1. Noising: in the clean run, one edge at a time carries its writer's corrupted output. Denoising:
   in the corrupted run, one edge at a time carries the clean one.
2. An edge's effect on a prompt is the change of the loss; its score pools the effects.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.intervene import MEMORY_LIMIT
from graphcircuits.methods.prepare import check_choice, pooled, prepare, settled
from graphcircuits.single_edge import single_edge
from graphcircuits.task import Pairs
from graphcircuits.transformer import Transformer

DIRECTIONS = ("noising", "denoising")


@torch.no_grad()
def exact(
    subject: Transformer,
    graph: ComponentGraph,
    pairs: Pairs,
    *,
    direction: str = "noising",
    pool: str = "abs",
    memory_limit: int = MEMORY_LIMIT,
) -> Float[Tensor, " edge"]:
    """How much the loss changes with each edge alone.

    `pool` takes the mean over prompts of the absolute change ("abs") or the absolute value of the
    mean change ("sum"). Activations stay below `memory_limit` bytes where one edge allows it.
    """
    check_choice("direction", direction, DIRECTIONS)
    subject = settled(subject)
    pairs = prepare(subject, graph, pairs)
    clean, corrupted = subject.run(pairs.clean), subject.run(pairs.corrupted)
    base, other = (clean, corrupted) if direction == "noising" else (corrupted, clean)
    before = pairs.loss(base.logits)

    def score(logits: Float[Tensor, "edge batch pos d_vocab_out"]) -> Float[Tensor, " edge"]:
        return pooled(pairs.loss(logits) - before, pool)

    return single_edge(base, other.writers, metric=score, memory_limit=memory_limit)
