"""How far the network's correction is to be trusted on a case, from what the case looks like.

A predictor corrects a search. On subjects unlike most of its training the search alone may be the
better one. A logistic regression on a case's features (`case_features`) says where, as the share of
the correction that counts, between 0 and 1; `lab/factory/trust.py` fits it to held-out cases.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


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
