"""Deep Sets pooling of edge states: over the positions of a pair first, then over pairs.

Each stage is outer(mean(inner(x))): `inner` (LayerNorm, linear, SiLU) acts on every element, the
mean is over the set, `outer` is linear. The mean, not the sum: cases differ in how many positions
and pairs they have, and the readout must not.

Paper: Pooling, Readout, and Training.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from graphcircuits.predictor.block import LayerNorm, check_sizes, linear


class SetMean(nn.Module):
    """One stage: rows of the same set become one row."""

    def __init__(self, width: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.inner = nn.Sequential(LayerNorm(width), linear(width, width, generator), nn.SiLU())
        self.outer = linear(width, width, generator)

    def forward(
        self, h: Float[Tensor, "row edge width"], set_of: Int[Tensor, " row"], n_sets: int
    ) -> Float[Tensor, "set edge width"]:
        """`set_of` is the set of each row, 0 .. n_sets - 1, none of them empty."""
        rows = self.inner(h)
        sums = rows.new_zeros(n_sets, *rows.shape[1:]).index_add(0, set_of, rows)
        counts = torch.bincount(set_of, minlength=n_sets)
        return self.outer(sums / counts[:, None, None])


class DeepSets(nn.Module):
    """One state per edge from its states in all contexts, whatever their order."""

    def __init__(self, width: int, *, generator: torch.Generator | None = None) -> None:
        """Without a generator the seed is 0."""
        super().__init__()
        check_sizes(width=width)
        generator = generator or torch.Generator().manual_seed(0)
        self.positions = SetMean(width, generator=generator)
        self.pairs = SetMean(width, generator=generator)

    def forward(
        self, h: Float[Tensor, "context edge width"], pair: Int[Tensor, " context"]
    ) -> Float[Tensor, "edge width"]:
        """`pair` says which prompt pair each context belongs to; any numbers will do."""
        if len(pair) != len(h) or not len(h):
            raise ValueError(
                "pooling needs at least one context and the pair of each, "
                f"got {len(h)} contexts and {len(pair)} pairs."
            )
        names, set_of = pair.unique(return_inverse=True)
        by_pair = self.positions(h, set_of, len(names))
        return self.pairs(by_pair, torch.zeros_like(names), 1).squeeze(0)
