"""What a predictor is trained for: three objectives, each from scores to a scalar with gradient.

labels        the paper's loss: binary cross-entropy in which circuit edges, where they are the
              fewer, weigh as much in sum as the others of their case
faithfulness  no labels: circuits of the best edges are run, and their distance from the whole model
              is the loss. Sizes are drawn evenly over all numbers of edges, as CMD weighs them.
              Scores get a random part, noise * logistic; the threshold lies between the k-th best
              and the next, and every edge is kept to the degree sigmoid((score - threshold) /
              temperature). The threshold moves with the scores so that the size stays: without
              that the gradient of every score says "more", which drowns what tells edges apart
distill       scores that were found case by case: of two edges the one that ranks higher there
              should score higher, and the more so the further they are apart

Scores have the axes (subject, edge). Draws come from a generator that is passed in, on the device
of the scores. Paper of the first: Pooling, Readout, and Training.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.engine.stack import Stack, ranks

PAIRS_PER_EDGE = 4
"""Pairs of edges that `distill` compares, for each edge."""


# Labels


def circuit_loss(
    logits: Float[Tensor, " edge"], labels: Bool[Tensor, " edge"]
) -> Float[Tensor, ""]:
    """The paper's loss of one case: circuit edges weigh more where they are the fewer."""
    return labels_loss(logits, labels, label_weights(labels))


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
    *,
    masks: int,
    temperature: float,
    noise: float,
    rows: int = 0,
    generator: torch.Generator,
) -> Float[Tensor, ""]:
    """The mean over subjects and circuits of |1 - faithfulness|, on `rows` prompts drawn (0: all).

    It is what CMD measures, with the masks of circuits relaxed.
    """
    drawn = None
    if 0 < rows < stack.n_pairs:
        order = torch.randperm(stack.n_pairs, generator=generator, device=scores.device)
        drawn = order[:rows]
    relaxed = relaxed_masks(
        scores, masks, temperature=temperature, noise=noise, generator=generator
    )
    return stack.departure(relaxed, drawn).abs().mean()


def relaxed_masks(
    scores: Float[Tensor, "subject edge"],
    masks: int,
    *,
    temperature: float,
    noise: float,
    generator: torch.Generator,
) -> Float[Tensor, "subject mask edge"]:
    """Circuits of the best edges at sizes drawn evenly, one from each of `masks` equal ranges."""
    n_subjects, n_edges = scores.shape
    given = {"generator": generator, "device": scores.device, "dtype": scores.dtype}
    within = torch.rand(n_subjects, masks, **given)
    size = (torch.arange(masks, device=scores.device) + within) / masks * n_edges
    uniform = torch.rand(n_subjects, masks, n_edges, **given)
    moved = scores[:, None] + noise * torch.logit(uniform, eps=1e-6)
    best = moved.detach().sort(dim=-1, descending=True).values
    last = size.long().clamp_max(n_edges - 2)[..., None]
    threshold = (best.gather(-1, last) + best.gather(-1, last + 1)) / 2
    return at_constant_size(moved, threshold, temperature)


def at_constant_size(
    scores: Float[Tensor, "*circuit edge"],
    threshold: Float[Tensor, "*circuit 1"],
    temperature: float,
) -> Float[Tensor, "*circuit edge"]:
    """sigmoid((score - threshold) / temperature), whose sum has no gradient.

    The derivative of the threshold that keeps the sum is the mean of those of the scores, weighted
    by the slopes of the masks.
    """
    with torch.no_grad():
        open_ = torch.sigmoid((scores - threshold) / temperature)
        slope = open_ * (1 - open_)
        weights = slope / slope.sum(-1, keepdim=True).clamp_min(torch.finfo(slope.dtype).tiny)
    drift = ((scores - scores.detach()) * weights).sum(-1, keepdim=True)
    return torch.sigmoid((scores - threshold - drift) / temperature)


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
