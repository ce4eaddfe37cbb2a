"""What a predictor is trained for: three objectives, each from scores to a scalar with gradient.

labels        the paper's loss: binary cross-entropy in which circuit edges, where they are the
              fewer, weigh as much in sum as the others of their case
faithfulness  no labels: circuits of the best edges are run, and their distance from the whole model
              is the loss, as in refining. Sizes are drawn evenly over all numbers of edges, as
              CMD weighs them, and masks are relaxed (`engine.relaxed`)
distill       scores that were found case by case: of two edges the one that ranks higher there
              should score higher, and the more so the further they are apart

Scores have the axes (subject, edge). Draws come from a generator that is passed in, on the device
of the scores. Paper of the first: Pooling, Readout, and Training.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.engine.relaxed import best_edges, ranks
from graphcircuits.engine.stack import ALL, Rows, Stack
from graphcircuits.training.config import TrainConfig

PAIRS_PER_EDGE = 4
"""Pairs of edges that `distill` compares, for each edge."""


# Labels


def labels_loss(
    logits: Float[Tensor, "*item"], labels: Bool[Tensor, "*item"], weights: Float[Tensor, "*item"]
) -> Float[Tensor, ""]:
    """The sum over edges of their cross-entropy, weighted; weights are zero where none is known."""
    losses = F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none")
    return losses.flatten() @ weights.to(logits).flatten()


def label_weights(labels: Bool[Tensor, " edge"]) -> Float[Tensor, " edge"]:
    """The weight of every edge of a case in its mean."""
    inside = int(labels.sum())
    ratio = max(1.0, (len(labels) - inside) / max(inside, 1))
    return torch.where(labels, ratio, 1.0) / len(labels)


# Faithfulness


def faithfulness_loss(
    scores: Float[Tensor, "subject edge"],
    stack: Stack,
    config: TrainConfig,
    generator: torch.Generator,
) -> Float[Tensor, ""]:
    """The mean over subjects and circuits of |1 - faithfulness|, on prompts that are drawn.

    It is what CMD measures, with the masks of circuits relaxed.
    """
    drawn: Rows = ALL
    if 0 < config.rows < stack.n_pairs:
        order = torch.randperm(stack.n_pairs, generator=generator, device=scores.device)
        drawn = order[: config.rows]
    width = {"temperature": config.temperature, "noise": config.noise}
    relaxed = best_edges(scores, config.masks, **width, generator=generator)
    return stack.departure(relaxed, drawn).abs().mean()


# Scores found before


def distill_loss(
    scores: Float[Tensor, "subject edge"],
    targets: Float[Tensor, "subject edge"],
    known: Bool[Tensor, " subject"],
    *,
    generator: torch.Generator,
) -> Float[Tensor, ""]:
    """The mean over pairs of edges, drawn, of how far their order is from that of the targets.

    A pair weighs by the distance of its ranks. Subjects that are not `known` weigh nothing.
    """
    n_subjects, n_edges = scores.shape
    shape = (2, n_subjects, PAIRS_PER_EDGE * n_edges)
    one, other = torch.randint(n_edges, shape, generator=generator, device=scores.device)
    rank = ranks(targets).to(scores) / n_edges
    apart = rank.gather(1, other) - rank.gather(1, one)
    ahead = scores.gather(1, one) - scores.gather(1, other)
    losses = apart.abs() * F.softplus(-ahead * apart.sign())
    weights = known.to(scores)[:, None].expand_as(losses)
    return (losses * weights).sum() / weights.sum().clamp_min(1.0)
