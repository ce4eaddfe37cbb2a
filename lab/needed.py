"""Labels where no circuit is known: whether an edge is among the best edges of the ranking that are
just enough for a share of the behaviour."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def best_edges(logits: Float[Tensor, " edge"], size: int) -> Bool[Tensor, " edge"]:
    """The `size` best edges: those needed, where so many are just enough for the behaviour."""
    order = logits.sort(descending=True, stable=True).indices
    mask = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    mask[order[:size]] = True
    return mask
