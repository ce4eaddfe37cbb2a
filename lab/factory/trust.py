"""Where a correction is to be trusted: fits `predictor.facts.trust` to cases where it was tried.

One training holds out one fold, and a trust that was fitted there could not be measured there; so
only predictors of several folds have it (`crossfit.py`).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.predictor.facts.trust import Trust

RIDGE = 0.01
"""Of the squared weights, for columns of deviation one; the mean loss is of order one."""
SMALLEST_DEVIATION = 1e-2
"""Of a feature: one that hardly varies would decide everything."""
STEPS = 100


def fit_trust(
    features: Float[Tensor, "case column"],
    helped: Bool[Tensor, " case"],
    stakes: Float[Tensor, " case"],
    ridge: float = RIDGE,
) -> Trust:
    """The line of the least weighted log loss, by Newton's method on standardized features."""
    if not 0 < int(helped.sum()) < len(helped):
        raise ValueError(
            "trust is learned from cases that a correction helped and others that it did not, got "
            f"{int(helped.sum())} of {len(helped)} that it helped."
        )
    x = features.double()
    mean, deviation = x.mean(0), x.std(0).clamp_min(SMALLEST_DEVIATION)
    columns = torch.cat([(x - mean) / deviation, torch.ones(len(x), 1).double()], dim=1)
    weights, targets = stakes.double() / stakes.double().sum(), helped.double()
    pull = ridge * torch.eye(columns.shape[1], dtype=torch.float64)
    pull[-1, -1] = 0.0
    line = columns.new_zeros(columns.shape[1])
    for _ in range(STEPS):
        said = (columns @ line).sigmoid()
        gradient = columns.T @ (weights * (said - targets)) + pull @ line
        curvature = (columns.T * (weights * said * (1 - said))) @ columns + pull
        step = torch.linalg.solve(curvature + 1e-9 * torch.eye(len(line)).double(), gradient)
        line = line - step
        if float(step.norm()) < 1e-9:
            break
    slopes = line[:-1] / deviation
    return Trust(slopes.float(), (line[-1:] - slopes @ mean).float())
