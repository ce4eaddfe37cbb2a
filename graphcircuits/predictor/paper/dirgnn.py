"""DirGNN: graph convolution along and against the arcs, on a transformed component graph.

1. `DirectedGraphConv` sums the states of predecessors and of successors, maps each sum by its own
   matrix, averages the two (alpha 0.5) and adds a map of the node's own state.
2. A layer adds SiLU of that, then a feed-forward network, each behind a LayerNorm and with a
   learned scale.

This is PyTorch Geometric's `DirGNNConv(GraphConv(width, width), alpha)`, whose own-state maps and
biases (one per inner convolution and one outside) enter only as a sum: here they are one. The sums
take time linear in the edges; no arc is ever listed. This learner ships in `gcl` as well: it is the
one whose time stays linear on subjects of a million edges.

Paper: Graph Learning Models, DirGNN; the block of Scalable Message Passing Neural Networks.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from graphcircuits.predictor.block import Branch, check_sizes, feed_forward, linear
from graphcircuits.predictor.paper.transform import Neighbourhoods, NodeStates

AT_ONCE, GPU_AT_ONCE = 2**12, 2**19
"""Nodes of a large graph that are computed at once where no gradient is wanted: fewer, and calls
take the time; more, and their states leave the caches."""
AGGREGATIONS = ("sum", "mean")
ALPHA = 0.5
"""Weighs successors against predecessors."""
EXPANSION = 2
"""Hidden width of the feed-forward networks of both graph learners, in multiples of theirs."""


def piece_size(h: NodeStates) -> int:
    """How many nodes to compute at once; 0 for all of them, as in small graphs."""
    size = GPU_AT_ONCE if h.is_cuda else AT_ONCE
    return 0 if torch.is_grad_enabled() or h.shape[-2] <= size else size


class DirectedGraphConv(nn.Module):
    """(1 - ALPHA) incoming(predecessors) + ALPHA outgoing(successors) + root(own).

    Neighbours are summed, or averaged: components of deep subjects have many more of them.
    """

    def __init__(self, width: int, *, aggregation: str = "sum", generator: torch.Generator) -> None:
        super().__init__()
        if aggregation not in AGGREGATIONS:
            known = ", ".join(AGGREGATIONS)
            raise ValueError(f"aggregation must be one of {known}, got {aggregation!r}.")
        self.aggregation = aggregation
        self.incoming = linear(width, width, generator, bias=False)
        self.outgoing = linear(width, width, generator, bias=False)
        self.root = linear(width, width, generator)

    def forward(self, h: NodeStates, n: "Neighbourhoods | Piece") -> NodeStates:
        if isinstance(n, Piece):
            states = self.root(h)
            states += n.before.index_select(0, n.reading)
            return states.add_(n.after.index_select(0, n.run))
        before, after = self.messages(*n.sums(h), n.degrees)
        return self.root(h) + before + after

    def messages(
        self,
        before: Float[Tensor, "*set width"],
        after: Float[Tensor, "*other_set width"],
        degrees: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """What nodes hear, from sums over their predecessors and over their successors."""
        if self.aggregation == "mean":
            n_before, n_after = (degree.to(before).clamp_min(1) for degree in degrees)
            before, after = before / n_before, after / n_after
        return (1 - ALPHA) * self.incoming(before), ALPHA * self.outgoing(after)


@dataclass(frozen=True, eq=False)
class Piece:
    """Some nodes of a large graph, and what they hear."""

    reading: Int[Tensor, " node"]
    run: Int[Tensor, " node"]
    before: Float[Tensor, "group width"]
    after: Float[Tensor, "run width"]


class _ActivatedConv(DirectedGraphConv):
    def forward(self, h: NodeStates, n: Neighbourhoods | Piece) -> NodeStates:
        return nn.functional.silu(super().forward(h, n), inplace=not torch.is_grad_enabled())


class DirGNN(nn.Module):
    """Layers of directed graph convolution and feed-forward; states of every node in and out."""

    def __init__(
        self,
        width: int,
        layers: int,
        *,
        aggregation: str = "sum",
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        """`dropout` acts on what each branch adds. Without a generator the seed is 0."""
        super().__init__()
        check_sizes(width=width, layers=layers)
        generator = generator or torch.Generator().manual_seed(0)
        self.convolutions = nn.ModuleList()
        self.feed_forwards = nn.ModuleList()
        for _ in range(layers):
            conv = _ActivatedConv(width, aggregation=aggregation, generator=generator)
            feed = feed_forward(width, EXPANSION, generator)
            self.convolutions.append(Branch(width, conv, dropout))
            self.feed_forwards.append(Branch(width, feed, dropout))

    def forward(
        self, h: NodeStates, n: Neighbourhoods, noise: torch.Generator | None = None
    ) -> NodeStates:
        """`noise` draws what dropout drops, in training only."""
        if h.ndim == 2 and n.order is None and not self.training and (size := piece_size(h)):
            return self._in_pieces(h, n, size)
        for convolution, feed in zip(self.convolutions, self.feed_forwards, strict=True):
            h = feed(convolution(h, n, noise=noise), noise=noise)
        return h

    def _in_pieces(
        self, h: Float[Tensor, "node width"], n: Neighbourhoods, size: int
    ) -> Float[Tensor, "node width"]:
        """The same of a large graph, some nodes at a time: what a layer computes on the way stays
        in the caches. At 1.6 million edges that is a third of the time and half of the memory.

        Messages are made for sets of nodes and not for nodes: there are as many as components.
        """
        n.check(h)
        slices = [slice(start, start + size) for start in range(0, len(h), size)]
        made = torch.empty_like(h)
        for convolution, feed in zip(self.convolutions, self.feed_forwards, strict=True):
            assert isinstance(convolution, Branch)
            assert isinstance(feed, Branch)
            conv, quick = convolution.branch, convolution.norm.quick
            assert isinstance(conv, DirectedGraphConv)
            sums = n.sums_by_set((quick(x) for x in h.split(size)), h)
            messages = conv.messages(*sums, n.degrees_by_set)
            for here in slices:
                piece = Piece(n.reading[here], n.runs[0][here], *messages)
                states = convolution(h[here], piece, normed=quick(h[here]))
                made[here] = feed(states, normed=feed.norm.quick(states))
            h = made
        return made
