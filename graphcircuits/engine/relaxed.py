"""Relaxed masks: draws between "cut" and "kept" through which gradients reach the scores of edges.

A circuit is a choice of edges, and a choice has no gradient. Every method that trains masks draws
values between 0 and 1 instead, and runs them with `engine.masked`: by `concrete` (Maddison et al.
2017, arXiv 1611.00712), `hard_concrete` (Louizos et al. 2018, arXiv 1712.01312), `window` (Li and
Janson 2024, arXiv 2407.03779) or `best_edges`.

All but the last draw in float64 on the device of the generator; one of the CPU gives the same masks
whatever the device. The last draws on the device of the scores, since training would otherwise wait
for every copy. The tests check each rule's probabilities against counting, and that the size of the
last has no gradient.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

TEMPERATURE = 2 / 3
LOW, HIGH = -0.1, 1.1
"""Of hard-concrete gates: the temperature, and the ends of the stretched interval."""
LOG_SIZES = 20
"""Log-spaced sizes, before those that round to one number of edges are merged."""

Gates = Callable[[Float[Tensor, "mask edge"], torch.Generator], Float[Tensor, "mask edge"]]
"""Draws masks; given is how far every edge lies above the threshold of each, in spreads."""


def concrete(
    logits: Float[Tensor, "mask edge"], generator: torch.Generator, temperature: float = 1.0
) -> Float[Tensor, "mask edge"]:
    """One draw around every logit; it is above 0.5 with probability sigmoid(logit)."""
    noise = _uniform(logits.shape, generator).clamp(1e-7, 1 - 1e-7).logit().to(logits)
    return ((logits + noise) / temperature).sigmoid()


def hard_concrete(
    locations: Float[Tensor, "mask gate"], generator: torch.Generator
) -> Float[Tensor, "mask gate"]:
    """One draw of every gate: a stretched concrete variable, cut off at 0 and 1."""
    soft = concrete(locations, generator, TEMPERATURE)
    return soft.mul(HIGH - LOW).add(LOW).clamp(0, 1)


def probability_open(locations: Float[Tensor, " gate"]) -> Float[Tensor, " gate"]:
    """The chance that a hard-concrete draw is above 0."""
    return (locations - TEMPERATURE * math.log(-LOW / HIGH)).sigmoid()


def window(
    locations: Float[Tensor, " gate"], n_masks: int, generator: torch.Generator
) -> Float[Tensor, "mask gate"]:
    """Draws of every gate with mean sigmoid(location); the gradient is 1 in its window, else 0.

    The window between 0 and 1 has the probability p (1 - p) for a gate that is open with p.
    """
    uniform = _uniform((n_masks, len(locations)), generator)
    probability = locations.sigmoid()
    # A probability that has been rounded to 0 or 1 has no window to divide by.
    width = (probability * (1 - probability)).detach().clamp(min=1e-6)
    return ((probability - uniform.to(probability)) / width + 0.5).clamp(0, 1)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Float[Tensor, "..."]:
    """Uniform draws of the generator, on its device."""
    return torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)


# Circuits of the best edges


def log_sizes(n_edges: int) -> list[int]:
    """Numbers of edges from one to all, in equal ratios."""
    return np.unique(np.geomspace(1, n_edges, LOG_SIZES).round().astype(int)).tolist()


def ranks(scores: Float[Tensor, "*subject edge"]) -> Int[Tensor, "*subject edge"]:
    """The rank of every edge from the best down, from 0; equal ones in edge order."""
    order = scores.argsort(dim=-1, descending=True, stable=True)
    counted = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter(-1, order, counted)


def stratified(uniform: Float[Tensor, "*lead mask"]) -> Float[Tensor, "*lead mask"]:
    """Numbers from 0 to 1, one in each of as many equal ranges, given uniform ones."""
    n = uniform.shape[-1]
    return (torch.arange(n, device=uniform.device) + uniform) / n


def best_edges(
    scores: Float[Tensor, "subject edge"],
    n_masks: int,
    *,
    temperature: float,
    noise: float,
    generator: torch.Generator,
) -> Float[Tensor, "subject mask edge"]:
    """Relaxed circuits of the best edges at sizes drawn evenly over the logarithm of all, one from
    each of equal ranges: a circuit of ten edges counts as much as one of ten thousand.

    Scores get a random part, noise * logistic; the threshold lies between the k-th best and the
    next, and every edge is kept to the degree sigmoid((score - threshold) / temperature).

    Args:
        scores: Larger means more likely in the circuit.
        n_masks: Circuits for each subject.
        temperature: How far around the threshold masks are neither 0 nor 1.
        noise: How far scores are moved at random.
        generator: On the device of the scores.
    """
    n_subjects, n_edges = scores.shape
    given = {"generator": generator, "device": scores.device, "dtype": scores.dtype}
    size = n_edges ** stratified(torch.rand(n_subjects, n_masks, **given))
    uniform = torch.rand(n_subjects, n_masks, n_edges, **given)
    moved = scores[:, None] + noise * torch.logit(uniform, eps=1e-6)
    best = moved.detach().sort(dim=-1, descending=True).values
    last = (size.long() - 1).clamp(0, n_edges - 2)[..., None]
    threshold = (best.gather(-1, last) + best.gather(-1, last + 1)) / 2
    return at_constant_size(moved, threshold, temperature)


def at_constant_size(
    scores: Float[Tensor, "*circuit edge"],
    threshold: Float[Tensor, "*circuit 1"],
    temperature: float,
) -> Float[Tensor, "*circuit edge"]:
    """sigmoid((score - threshold) / temperature), whose sum has no gradient.

    Without that the gradient of every score says "more", which drowns what tells edges apart. The
    derivative of the threshold that keeps the sum is the mean of those of the scores, weighted by
    the slopes of the masks.
    """
    with torch.no_grad():
        masks = torch.sigmoid((scores - threshold) / temperature)
        slope = masks * (1 - masks)
        weights = slope / slope.sum(-1, keepdim=True).clamp_min(torch.finfo(slope.dtype).tiny)
    drift = ((scores - scores.detach()) * weights).sum(-1, keepdim=True)
    return torch.sigmoid((scores - threshold - drift) / temperature)


# The objective of refining and of training


def departure(
    losses: Float[Tensor, "*mask prompt"],
    clean: Float[Tensor, "*#mask prompt"],
    gap: Tensor | float,
) -> Float[Tensor, "*mask"]:
    """1 - faithfulness of every mask: how far its losses are from the clean run's, over prompts.

    The unit is the `gap` between the run with every edge cut and the clean one.
    """
    return (losses - clean).mean(-1) / gap


def check_gap(clean: Sequence[float], cut: Sequence[float]) -> None:
    """Refuse subjects whose mean losses do not tell the clean run from one with every edge cut."""
    for index, (one, other) in enumerate(zip(clean, cut, strict=True)):
        if not abs(other - one) > 1e-9 * max(1.0, abs(other)):
            subject = f" of subject {index}" if len(clean) > 1 else ""
            raise ValueError(
                "faithfulness needs clean and corrupted runs that differ, got mean losses "
                f"{one:.6g} and {other:.6g}{subject}; give pairs whose corruption changes the "
                "output."
            )
