"""How far the network's correction is to be trusted on a case, from what the case looks like.

A predictor corrects a search. On subjects unlike most of its training the search alone may be the
better one. `fit_trust` learns where, from held-out cases: their features (`case_features`), whether
the correction helped, and how much was at stake. It is a logistic regression with a ridge; what it
says of a case is the share of the correction that counts, between 0 and 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

RIDGE = 0.01
"""Of the squared weights, for columns of deviation one; the mean loss is of order one."""
SMALLEST_DEVIATION = 1e-2
"""Of a feature: one that hardly varies would decide everything."""
STEPS = 100


@dataclass(frozen=True, eq=False)
class Trust:
    """A line in the features, on the scale of log odds."""

    weights: Float[Tensor, " column"]
    bias: Float[Tensor, "1"]

    def __call__(self, features: Float[Tensor, " column"]) -> float:
        """The share of the correction that counts."""
        odds = features.double().cpu() @ self.weights.double() + self.bias.double()
        return float(odds.sigmoid())

    def tensors(self) -> dict[str, Tensor]:
        """What files hold of it."""
        return {"weights": self.weights, "bias": self.bias}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], columns: int) -> "Trust":
        """What `tensors` gave, for tables of so many columns; anything else is a ValueError."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if shapes != {"weights": (columns,), "bias": (1,)}:
            raise ValueError(f"trust must be of {columns} columns, got {shapes}")
        if any(x.dtype != torch.float32 or not x.isfinite().all() for x in tensors.values()):
            raise ValueError("trust must be finite numbers in single precision")
        return cls(**tensors)


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
