"""How true probabilities are: what was said of edges, and what was true (Naeini et al. 2015)."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.predictor.facts.calibration import case_weights

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Edges whose probability lies in one interval."""

    low: float
    high: float
    said: float
    """Their mean probability."""
    true: float
    """The share of them that is in the circuit."""
    weight: float
    """Their share of all edges, every case weighing the same."""


def reliability(
    probabilities: Float[Tensor, " edge"],
    labels: Bool[Tensor, " edge"],
    cases: Int[Tensor, " edge"],
    *,
    bins: int = BINS,
) -> list[Bin]:
    """What was said and what was true, in intervals of equal width; empty ones are left out."""
    weights, p = case_weights(cases), probabilities.double().cpu()
    interval = (p * bins).long().clamp(0, bins - 1)
    sums = torch.zeros(3, bins, dtype=torch.float64)
    rows = torch.stack([weights, weights * p, weights * labels.cpu().double()])
    sums.index_add_(1, interval, rows)
    return [
        Bin(i / bins, (i + 1) / bins, said / weight, true / weight, weight)
        for i, (weight, said, true) in enumerate(sums.T.tolist())
        if weight > 0
    ]


def calibration_error(
    probabilities: Float[Tensor, " edge"],
    labels: Bool[Tensor, " edge"],
    cases: Int[Tensor, " edge"],
    *,
    bins: int = BINS,
) -> float:
    """The mean distance between what was said and what was true, over intervals."""
    table = reliability(probabilities, labels, cases, bins=bins)
    return sum(row.weight * abs(row.said - row.true) for row in table)
