"""DirGNN: graph convolution along and against the arcs, on a transformed component graph.

1. `DirectedGraphConv` sums the states of predecessors and of successors, maps each sum by its own
   matrix, averages the two (alpha 0.5) and adds a map of the node's own state.
2. A layer adds SiLU of that, then a feed-forward network, each behind a LayerNorm and with a
   learned scale.

This is PyTorch Geometric's `DirGNNConv(GraphConv(width, width), alpha)`, whose own-state maps and
biases (one per inner convolution and one outside) enter only as a sum: here they are one. The sums
take time linear in the edges; no arc is ever listed.

Paper: Graph Learning Models, DirGNN; the block of Scalable Message Passing Neural Networks.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graphcircuits.predictor.block import Branch, check_sizes, feed_forward, linear
from graphcircuits.predictor.transform import (
    Neighbourhoods,
    sum_over_predecessors,
    sum_over_successors,
)

AGGREGATIONS = ("sum", "mean")


class DirectedGraphConv(nn.Module):
    """(1 - alpha) incoming(predecessors) + alpha outgoing(successors) + root(own).

    Neighbours are summed, or averaged: components of deep subjects have many more of them.
    """

    def __init__(
        self,
        width: int,
        *,
        alpha: float = 0.5,
        aggregation: str = "sum",
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be in 0..1, got {alpha}.")
        if aggregation not in AGGREGATIONS:
            known = ", ".join(AGGREGATIONS)
            raise ValueError(f"aggregation must be one of {known}, got {aggregation!r}.")
        self.alpha, self.aggregation = alpha, aggregation
        self.incoming = linear(width, width, generator, bias=False)
        self.outgoing = linear(width, width, generator, bias=False)
        self.root = linear(width, width, generator)

    def forward(
        self, h: Float[Tensor, "*context node width"], n: Neighbourhoods
    ) -> Float[Tensor, "*context node width"]:
        before, after = sum_over_predecessors(h, n), sum_over_successors(h, n)
        if self.aggregation == "mean":
            n_before, n_after = (degree.to(h).clamp_min(1) for degree in n.degrees)
            before, after = before / n_before, after / n_after
        incoming, outgoing = self.incoming(before), self.outgoing(after)
        return self.root(h) + (1 - self.alpha) * incoming + self.alpha * outgoing


class _ActivatedConv(DirectedGraphConv):
    def forward(
        self, h: Float[Tensor, "*context node width"], n: Neighbourhoods
    ) -> Float[Tensor, "*context node width"]:
        return nn.functional.silu(super().forward(h, n))


class DirGNN(nn.Module):
    """Layers of directed graph convolution and feed-forward; states of every node in and out."""

    def __init__(
        self,
        width: int,
        layers: int,
        *,
        expansion: int = 2,
        alpha: float = 0.5,
        aggregation: str = "sum",
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        """`expansion` is the hidden width of the feed-forward network in multiples of `width`;
        `alpha` weighs successors against predecessors; `aggregation` is "sum" or "mean"; `dropout`
        acts on what each branch adds. Without a generator the seed is 0."""
        super().__init__()
        check_sizes(width=width, layers=layers, expansion=expansion)
        generator = generator or torch.Generator().manual_seed(0)
        self.convolutions = nn.ModuleList()
        self.feed_forwards = nn.ModuleList()
        for _ in range(layers):
            conv = _ActivatedConv(width, alpha=alpha, aggregation=aggregation, generator=generator)
            feed = feed_forward(width, expansion, generator)
            self.convolutions.append(Branch(width, conv, dropout))
            self.feed_forwards.append(Branch(width, feed, dropout))

    def forward(
        self,
        h: Float[Tensor, "*context node width"],
        n: Neighbourhoods,
        noise: torch.Generator | None = None,
    ) -> Float[Tensor, "*context node width"]:
        """`noise` draws what dropout drops, in training only."""
        for convolution, feed in zip(self.convolutions, self.feed_forwards, strict=True):
            h = feed(convolution(h, n, noise=noise), noise=noise)
        return h
