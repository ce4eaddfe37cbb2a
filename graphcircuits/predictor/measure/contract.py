"""Sums over contexts of what gradients and writers make of each edge, block by block.

1. The subject runs on the clean and on the corrupted prompts, and once more between the two
   (`engine.passes`) unless the gradient is to be taken at the clean run itself.
2. Of the writers the change from one run to the other, the clean output and the change in the run
   between are remembered, of the readers the gradient of the loss that each sends to the stream.
3. For readers of one stream, some at a time, all products of the two at all contexts are one
   multiplication of matrices. What stays of it are sums over contexts: of absolute values, of those
   of sums over the positions of a pair, and of the values with their signs.

No more is held than these sums and the products of some readers, whatever the number of edges.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.memory import CPU_BUFFER
from graphcircuits.engine.passes import (
    Pass,
    between,
    detached,
    halves,
    layer_gradients,
    outputs,
    with_gradients,
)
from graphcircuits.graph import Block
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

CHANGE, CLEAN, OWN, CORRUPTED = 0, 1, 2, -1
"""What a gradient is multiplied with: the change of the writer's output, that output in the clean
run, its change in the run between, and its output in the corrupted run."""

SUMS = {
    "effect": ("contexts", CHANGE),
    "clean": ("contexts", CLEAN),
    "corrupted": ("contexts", CORRUPTED),
    "reach": ("norms", CHANGE),
    "bound": ("norms", CLEAN),
    "effect_by_pair": ("pairs", CHANGE),
    "clean_by_pair": ("pairs", CLEAN),
    "effect_signed": ("signed", CHANGE),
    "own": ("contexts", OWN),
    "own_by_pair": ("pairs", OWN),
    "own_signed": ("signed", OWN),
}
"""The sums that can be asked for: of absolute values over contexts or over pairs (positions summed
first), of values with their signs, or of products of norms; and of which product."""

GPU_BUFFER = 2**28
"""Bytes of the products that are made at once on a GPU."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over all contexts of some pairs."""

    edges: Float[Tensor, "sum edge"]
    written: Float[Tensor, "2 writer"]
    """Norms of each writer's clean output, and of its change."""
    received: Float[Tensor, " reader"]
    """Norms of the gradient that each reader sends to the stream."""
    losses: Float[Tensor, "2 batch"]
    """Clean and corrupted."""

    def plus(self, other: "Sums") -> "Sums":
        """These sums with those of other pairs added to them, in place where they are large."""
        return replace(
            self,
            edges=self.edges.add_(other.edges),
            written=self.written + other.written,
            received=self.received + other.received,
        )


def contract(subject: Transformer, pairs: Pairs, names: Sequence[str], share: float = 1.0) -> Sums:
    """The named sums of every edge.

    `share` says where the gradient is taken: 1 at the clean run, below it between.
    """
    graph = subject.graph
    run, writers, losses = _runs(subject, pairs, share)
    norms = torch.linalg.vector_norm(writers, dim=-1)
    edges = writers.new_empty(len(names), graph.n_edges)
    received = []
    # Of each layer heads and MLP, and last `logits`.
    *in_layers, last = graph.stream_blocks
    layers = [*zip(in_layers[::2], in_layers[1::2], strict=True), (last,)]
    for blocks, gradients in zip(layers, layer_gradients(run), strict=True):
        # Readers of a layer see about the same writers; what is multiplied in vain is let be.
        seen = blocks[-1].n_writers
        gradients = gradients.to(writers.dtype).flatten(1, 2)
        # Norms multiply, so their products need not be made at every context.
        at_readers = torch.linalg.vector_norm(gradients, dim=-1)
        received.append(at_readers.sum(1))
        for rows in _some_readers(gradients, seen):
            products = _products(writers[:seen], gradients[rows])
            sums = {
                "norms": norms[:seen] @ at_readers[rows].T,
                "pairs": _over_pairs(products, len(pairs)),
                "signed": products.sum(0),
                "contexts": _over_contexts(products),
            }
            chosen = [sums[over][:, what] for over, what in (SUMS[name] for name in names)]
            _store(torch.stack(chosen), edges, blocks, rows)
    written = norms[:, :OWN].sum(-1).T.flip(0).contiguous()
    return Sums(edges, written, torch.cat(received), losses)


def _store(
    values: Float[Tensor, "sum writer reader"],
    edges: Float[Tensor, "sum edge"],
    blocks: tuple[Block, ...],
    rows: slice,
) -> None:
    """Put values of some readers of a layer where their edges are."""
    for block in blocks:
        first = block.first_reader - blocks[0].first_reader
        low, high = max(rows.start, first), min(rows.stop, first + block.n_readers)
        if low < high:
            here = values[..., : block.n_writers, low - rows.start : high - rows.start]
            start = block.first_edge + (low - first) * block.n_writers
            there = edges[..., start : start + (high - low) * block.n_writers]
            there.unflatten(-1, (high - low, block.n_writers)).copy_(here.mT)


Writers = Float[Tensor, "writer product context d_model"]
Gradients = Float[Tensor, "reader context d_model"]
Products = Float[Tensor, "context writer product reader"]


def _runs(
    subject: Transformer, pairs: Pairs, share: float
) -> tuple[Pass, Writers, Float[Tensor, "2 batch"]]:
    """The run with gradients, what writers change and write, clean and corrupted losses."""
    size, columns = len(pairs), pairs.columns

    def loss(logits: Float[Tensor, "run column d_vocab_out"]) -> Tensor:
        """One per step of a run and prompt."""
        return pairs.loss_at_columns(logits.unflatten(0, (-1, size)))

    clean, corrupted = (subject.embed(x).detach() for x in (pairs.clean, pairs.corrupted))
    if share < 1:
        with torch.no_grad():
            near, far = halves(
                detached(subject, subject.trace(torch.cat([clean, corrupted]), columns))
            )
        run = with_gradients(between(subject, far, share), clean.clone(), columns, loss)
    else:
        run = near = with_gradients(subject, clean.clone(), columns, loss)
        with torch.no_grad():
            far = detached(subject, subject.trace(corrupted, columns))
    losses = torch.cat([loss(near.logits), loss(far.logits)])

    def factors(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        # Differences are taken before they are written: after it they would be rounded more.
        return torch.cat([b - a, a, b - c] if share < 1 else [b - a, a])

    layers = (
        (factors(a.z, b.z, c.z), factors(a.hidden, b.hidden, c.hidden))
        for a, b, c in zip(near.layers, far.layers, run.layers, strict=True)
    )
    # Half precision is too narrow for what follows.
    dtype = torch.promote_types(subject.dtype, torch.float32)
    clean, corrupted = clean.to(dtype), corrupted.to(dtype)
    writers = outputs(subject, factors(clean, corrupted, clean), layers)
    return _shrunk(run), writers.unflatten(1, (-1, size)).flatten(2, 3), losses


def _shrunk(run: Pass) -> Pass:
    """Without gradients so small that their products have no full precision any more.

    Where a loss saturates there are many, and processors are many times slower on them; GPUs are
    not.
    """
    if run.stream.is_cuda:
        return run

    def shrunk(gradient: Tensor) -> Tensor:
        # Products of half precision are made in single precision, which has room for them.
        limits = torch.finfo(torch.promote_types(gradient.dtype, torch.float32))
        return torch.nn.functional.hardshrink(gradient, limits.tiny / limits.eps)

    return replace(run, gradients=tuple(shrunk(gradient) for gradient in run.gradients))


def _some_readers(gradients: Gradients, n_writers: int) -> Iterator[slice]:
    """Readers whose products fit in a buffer."""
    n_readers, contexts, _ = gradients.shape
    buffer = GPU_BUFFER if gradients.is_cuda else 2 * CPU_BUFFER
    size = max(1, buffer // (3 * contexts * n_writers * gradients.itemsize))
    for first in range(0, n_readers, size):
        yield slice(first, min(first + size, n_readers))


def _products(writers: Writers, gradients: Gradients) -> Products:
    """All products at all contexts. Writers come first: so the multiplication is fastest."""
    products = torch.bmm(writers.flatten(0, 1).transpose(0, 1), gradients.permute(1, 2, 0))
    return products.unflatten(1, writers.shape[:2])


def _over_contexts(products: Products) -> Float[Tensor, "writer product_and_1 reader"]:
    """Sums of absolute values. The products are overwritten."""
    # An addition is several times faster than a sum over an axis of two.
    corrupted = (products[:, :, CHANGE] + products[:, :, CLEAN]).abs_().sum(0)
    return torch.cat([products.abs_().sum(0), corrupted[:, None]], dim=1)


def _over_pairs(products: Products, n_pairs: int) -> Float[Tensor, "writer product reader"]:
    """Absolute values of the sums over a pair's positions, counted once for every position."""
    by_pair = products.unflatten(0, (n_pairs, -1))
    return by_pair.sum(1).abs_().sum(0) * by_pair.shape[1]
