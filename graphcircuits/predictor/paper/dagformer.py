"""DAGformer: a transformer in which a node attends to its predecessors, on a transformed graph.

1. A layer adds attention, then a feed-forward network, each behind a LayerNorm and with a learned
   scale, as in the DirGNN.
2. `softmax` attention: dot products and a softmax over the predecessors. Nodes of one predecessor
   set share its keys, so a set is one block without a mask; the fused kernel keeps no scores.
3. `factorized` attention: softmax weights exp(q . k / sqrt(d)) are replaced by the product of
   phi_q(q) and phi_k(k), with phi(x) = exp(w . x - |x|^2 / 2 - maximum) + FLOOR over fixed random
   w (Performer). The maximum is each query's own, and for keys that over the predecessor set. It
   is a constant of the forward pass: no gradient runs through it. Sums over a set are formed once.
4. In the complete DAG the sums and the maximum run along the order. Softmax takes quadratic
   time there and refuses graphs beyond `SOFTMAX_NODES`.

Where a node has no predecessors attention is exactly zero. The depth encoding of the published
DAGformer is left out: the paper describes attention alone.

Paper: Graph Learning Models, DAGformer.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graphcircuits.predictor.block import Branch, check_sizes, feed_forward, linear
from graphcircuits.predictor.paper.dirgnn import EXPANSION
from graphcircuits.predictor.paper.transform import Neighbourhoods, NodeStates

Attention = Literal["softmax", "factorized"]
Heads = Float[Tensor, "context head node d_head"]
"""Queries, keys or values of every head at nodes."""
Projection = Float[Tensor, "*_ random d_head"]
"""The vectors of random features, of all contexts or of each."""

FLOOR = 1e-6
"""Added to every random feature, so that no denominator is zero. Small, because it draws attention
towards the plain mean where the largest feature of a set is far above the others."""
SOFTMAX_NODES = 2**15
"""The largest complete DAG that softmax attention takes."""
SCORES = 2**24
"""Numbers that one step of an attention may hold for its scores or features."""
BLOCK = 64
"""Nodes of the complete DAG that are compared pair by pair; further apart, sums stand for them."""


def softmax_attention(q: Heads, k: Heads, v: Heads, n: Neighbourhoods) -> Heads:
    """Softmax over the predecessors of each node, exactly zero where it has none."""
    order = _order(n, q)
    if order is None:
        return _over_tiles(q, k, v, n, _softmax_block, q.shape[-1])
    if n.n_nodes > SOFTMAX_NODES:
        raise ValueError(
            f"softmax attention over the complete DAG takes at most {SOFTMAX_NODES} nodes, got "
            f"{n.n_nodes}; use attention='factorized', which takes linear time."
        )
    return _along(q, k, v, order, _softmax_prefixes)


def factorized_attention(
    q: Heads, k: Heads, v: Heads, n: Neighbourhoods, projection: Projection
) -> Heads:
    """Random-feature attention over predecessors, exactly zero where a node has none.

    All contexts share one projection, or each has its own."""
    order = _order(n, q)
    # Half of 1 / sqrt(d) to each side.
    scale = q.shape[-1] ** -0.25
    q, k = q * scale, k * scale
    if order is None:
        block = partial(_factorized_block, projection=_beside(projection, 5))
        return _over_tiles(q, k, v, n, block, projection.shape[-2])
    prefixes = partial(_factorized_prefixes, projection=_beside(projection, 4))
    return _along(q, k, v, order, prefixes)


def _beside(projection: Projection, axes: int) -> Projection:
    """The projection in the shape that multiplies states of so many axes, the context first."""
    if projection.ndim == 2:
        return projection
    return projection.view(len(projection), *(1,) * (axes - 3), *projection.shape[1:])


def _over_tiles(
    q: Heads, k: Heads, v: Heads, n: Neighbourhoods, block: Callable[..., Tensor], per_node: int
) -> Heads:
    """`block` on predecessor sets of one shape at a time: [context head group node d_head]."""
    shapes = []
    for tile in n.tiles:
        (_, n_members), (_, n_readers) = tile.members.shape, tile.readers.shape
        per_group = q.shape[0] * q.shape[1] * (n_members + n_readers) * per_node
        groups = tile.members.split(max(1, SCORES // per_group))
        shapes += [(len(some), n_members, n_readers) for some in groups]

    # Gathered once and split: the gradient of a slice is as long as the whole, that of a split
    # is not.
    def pick(x: Tensor, nodes: Tensor, sizes: list[tuple[int, int]]) -> list[Tensor]:
        parts = x.index_select(2, nodes).split([g * size for g, size in sizes], dim=2)
        return [part.unflatten(2, size) for part, size in zip(parts, sizes, strict=True)]

    queries = pick(q, n.tiled_readers, [(g, r) for g, _, r in shapes])
    keys, values = (pick(x, n.tiled_members, [(g, m) for g, m, _ in shapes]) for x in (k, v))
    parts = [block(*each).flatten(2, 3) for each in zip(queries, keys, values, strict=True)]
    # The last row is for the nodes without predecessors.
    parts.append(torch.zeros_like(v[:, :, :1]))
    return torch.cat(parts, dim=2).index_select(2, n.tiled_row)


def _order(n: Neighbourhoods, q: Heads) -> Tensor | None:
    """The order of one complete DAG; attention along several side by side would mix them."""
    n.check(q)
    if n.lengths:
        raise ValueError(
            f"attention over the complete DAG takes one case at a time, got {len(n.lengths)}."
        )
    return n.order


def _along(
    q: Heads, k: Heads, v: Heads, order: Tensor, prefixes: Callable[..., list[Tensor]]
) -> Heads:
    """`prefixes` on nodes in order. Without the first query and the last key, the query at any
    position sees the keys up to and including that position."""
    q, k, v = (x.index_select(2, order) for x in (q, k, v))
    first = torch.zeros_like(v[:, :, :1])
    parts = prefixes(q[:, :, 1:], k[:, :, :-1], v[:, :, :-1]) if len(order) > 1 else []
    return torch.cat([first, *parts], dim=2).index_select(2, order.argsort())


def _softmax_block(
    q: Float[Tensor, "context head group reader d_head"],
    k: Float[Tensor, "context head group member d_head"],
    v: Float[Tensor, "context head group member d_head"],
) -> Float[Tensor, "context head group reader d_head"]:
    """Every reader of a group attends to every member of it."""
    groups = q.shape[1:3]
    q, k, v = (x.flatten(1, 2) for x in (q, k, v))
    # The fused kernel keeps no scores; where PyTorch has none, as for float64 on a GPU, a slice of
    # the readers at a time bounds them.
    rows = max(1, SCORES // (k.shape[0] * k.shape[1] * k.shape[2]))
    attend = nn.functional.scaled_dot_product_attention
    return torch.cat([attend(part, k, v) for part in q.split(rows, 2)], dim=2).unflatten(1, groups)


def _softmax_prefixes(q: Heads, k: Heads, v: Heads) -> list[Tensor]:
    """A slice of the queries at a time, so that their scores and their mask stay bounded."""
    rows = max(1, SCORES // (k.shape[0] * k.shape[1] * k.shape[2]))
    outputs, end = [], 0
    for some in q.split(rows, 2):
        start, end = end, end + some.shape[2]
        seen = torch.ones(some.shape[2], end, dtype=torch.bool, device=q.device).tril(start)
        keys, values = k[:, :, :end], v[:, :, :end]
        attended = nn.functional.scaled_dot_product_attention(some, keys, values, attn_mask=seen)
        outputs.append(attended)
    return outputs


def _exponents(
    x: Float[Tensor, "*batch d_head"], projection: Projection
) -> Float[Tensor, "*batch random"]:
    return x @ projection.to(x.dtype).mT - x.square().sum(-1, keepdim=True) / 2


def _query_features(
    q: Float[Tensor, "*batch d_head"], projection: Projection
) -> Float[Tensor, "*batch random"]:
    exponents = _exponents(q, projection)
    return (exponents - exponents.amax(-1, keepdim=True).detach()).exp() + FLOOR


def _factorized_block(
    q: Float[Tensor, "context head group reader d_head"],
    k: Float[Tensor, "context head group member d_head"],
    v: Float[Tensor, "context head group member d_head"],
    projection: Projection,
) -> Float[Tensor, "context head group reader d_head"]:
    exponents = _exponents(k, projection)
    keys = (exponents - exponents.amax((-2, -1), keepdim=True).detach()).exp() + FLOOR
    queries = _query_features(q, projection)
    weighted, total = keys.mT @ v, keys.sum(-2).unsqueeze(-1)
    return (queries @ weighted) / (queries @ total)


def _factorized_prefixes(q: Heads, k: Heads, v: Heads, projection: Projection) -> list[Tensor]:
    """Running sums, a range of positions at a time.

    The keys up to a position are normalized by their maximum, `running`. A range is computed
    relative to its last and largest maximum, `top`: keys are exp(exponent - top), queries are
    multiplied by exp(top - running). Both stay in the number format because a range ends where the
    maximum has climbed too far. FLOOR adds plain running sums. The last column of the values is
    one, so that every sum carries its denominator.
    """
    values = nn.functional.pad(v, (0, 1), value=1.0)
    with torch.no_grad():
        peaks = [_exponents(part, projection).amax(-1) for part in k.split(128 * BLOCK, 2)]
        running = torch.cat(peaks, dim=2).cummax(-1).values
    per_block = k.shape[0] * k.shape[1] * BLOCK * (BLOCK + 4 * projection.shape[-2])
    longest = max(1, SCORES // per_block) * BLOCK
    ranges = list(_ranges(running, longest))
    # Split, not sliced: the gradient of each slice would be as long as the whole.
    parts = [
        x.split([end - start for start, end in ranges], dim=2)
        for x in (q, k, values, values.cumsum(2), running)
    ]
    carry = values.new_zeros(*v.shape[:2], projection.shape[-2], values.shape[3])
    level = running[:, :, :1]
    outputs = []
    for q_part, k_part, v_part, sums, maxima in zip(*parts, strict=True):
        top = maxima[:, :, -1:]
        keys = (_exponents(k_part, projection) - top.unsqueeze(-1)).exp()
        queries = _query_features(q_part, projection)
        floor = FLOOR * queries.sum(-1, keepdim=True)
        queries = queries * (top - maxima).exp().unsqueeze(-1)
        carry = carry * (level - top).exp().unsqueeze(-1)
        out, carry = _running_sums(queries, keys, v_part, carry)
        out, level = out + floor * sums, top
        outputs.append(out[..., :-1] / out[..., -1:])
    return outputs


def _running_sums(
    queries: Float[Tensor, "context head pos random"],
    keys: Float[Tensor, "context head pos random"],
    values: Float[Tensor, "context head pos column"],
    carry: Float[Tensor, "context head random column"],
) -> tuple[Float[Tensor, "context head pos column"], Float[Tensor, "context head random column"]]:
    """Each query times the sum of key and value products up to its position, `carry` added; and the
    sum at the end. Pair by pair within blocks, by running sums of whole blocks before that."""
    n_pos = keys.shape[2]
    size = min(BLOCK, n_pos)
    q, k, v = (
        nn.functional.pad(x, (0, 0, 0, -n_pos % size)).unflatten(2, (-1, size))
        for x in (queries, keys, values)
    )
    sums = k.mT @ v
    before = torch.cat([carry.unsqueeze(2), sums[:, :, :-1]], dim=2).cumsum(2)
    out = (q @ k.mT).tril() @ v + q @ before
    return out.flatten(2, 3)[:, :, :n_pos], before[:, :, -1] + sums[:, :, -1]


def _ranges(running: Float[Tensor, "context head pos"], longest: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of positions over which the maximum climbs by no more than half of what
    exponentials of this number format span; a single position always qualifies."""
    limit = -math.log(torch.finfo(running.dtype).tiny) / 2
    n_pos = running.shape[-1]
    starts = torch.arange(0, n_pos, longest, device=running.device)
    ends = (starts + longest).clamp(max=n_pos)
    climbs = (running[..., ends - 1] - running[..., starts]).amax((0, 1))
    ranges = list(zip(starts.tolist(), ends.tolist(), climbs.tolist(), strict=True))[::-1]
    while ranges:
        start, end, climb = ranges.pop()
        # Also where the states are not numbers: the result must say so, not the search.
        if not climb > limit:
            yield start, end
            continue
        middle = (start + end) // 2
        for low, high in ((middle, end), (start, middle)):
            climb = (running[..., high - 1] - running[..., low]).max().item()
            ranges.append((low, high, climb))


def orthogonal_features(
    random_features: int, d_head: int, generator: torch.Generator
) -> Float[Tensor, "random d_head"]:
    """Gaussian vectors that are orthogonal within each run of `d_head`: uniform directions from
    the QR decomposition of a Gaussian matrix, lengths of independent Gaussian vectors."""
    blocks = -(-random_features // d_head)
    shape = (blocks, d_head, d_head)
    directions, upper = torch.linalg.qr(torch.randn(shape, generator=generator))
    # Without these signs the directions would not be uniform.
    directions = directions * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    lengths = torch.randn(shape, generator=generator).norm(dim=-1, keepdim=True)
    return (directions.mT * lengths).flatten(0, 1)[:random_features]


class PredecessorAttention(nn.Module):
    """Multi-head attention of every node to its predecessors."""

    projection: Tensor | None

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        attention: Attention,
        random_features: int = 32,
        generator: torch.Generator,
    ) -> None:
        """`random_features` is how many the factorized attention has per head."""
        super().__init__()
        self.heads = heads
        self.queries, self.keys, self.values, self.output = (
            linear(width, width, generator) for _ in range(4)
        )
        # Fixed, but part of the predictor: saved with the weights, and moved with them.
        projection = None
        if attention == "factorized":
            projection = orthogonal_features(random_features, width // heads, generator)
        self.register_buffer("projection", projection)

    def forward(self, h: NodeStates, n: Neighbourhoods) -> NodeStates:
        q, k, v = (
            part(h).reshape(-1, *h.shape[-2:]).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.queries, self.keys, self.values)
        )
        if self.projection is None:
            mixed = softmax_attention(q, k, v, n)
        else:
            # Exponentials of random features need single precision.
            q, k, v = (x.to(self.projection.dtype) for x in (q, k, v))
            mixed = factorized_attention(q, k, v, n, self._projections(len(q))).to(h.dtype)
        return self.output(mixed.transpose(1, 2).reshape(h.shape))

    def _projections(self, contexts: int) -> Float[Tensor, "*context random d_head"]:
        """One for all contexts, or where several networks are stacked that of each context."""
        assert self.projection is not None
        if self.projection.ndim == 2:
            return self.projection
        return self.projection.repeat_interleave(contexts // len(self.projection), 0)


class Dagformer(nn.Module):
    """Layers of attention to predecessors and feed-forward; states of every node in and out."""

    def __init__(
        self,
        width: int,
        layers: int,
        heads: int,
        *,
        attention: Attention = "softmax",
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        """`dropout` acts on what each branch adds. Without a generator the seed is 0."""
        super().__init__()
        check_sizes(width=width, layers=layers, heads=heads)
        if width % heads:
            raise ValueError(f"heads must divide width={width}, got {heads}.")
        if attention not in ("softmax", "factorized"):
            raise ValueError(f"unknown attention {attention!r}; choose one of softmax, factorized.")
        generator = generator or torch.Generator().manual_seed(0)
        self.attentions = nn.ModuleList()
        self.feed_forwards = nn.ModuleList()
        for _ in range(layers):
            mixer = PredecessorAttention(width, heads, attention=attention, generator=generator)
            feed = feed_forward(width, EXPANSION, generator)
            self.attentions.append(Branch(width, mixer, dropout))
            self.feed_forwards.append(Branch(width, feed, dropout))

    def forward(
        self, h: NodeStates, n: Neighbourhoods, noise: torch.Generator | None = None
    ) -> NodeStates:
        """`noise` draws what dropout drops, in training only."""
        for attention, feed in zip(self.attentions, self.feed_forwards, strict=True):
            h = feed(attention(h, n, noise=noise), noise=noise)
        return h
