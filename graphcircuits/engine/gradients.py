"""Masked runs with gradients by their masks, in time and memory linear in the writers.

Plain autograd keeps a copy of all writers' differences for every stream that reads them. Here:

1. All differences lie in one buffer (writer, mask, ...), all that is read in another (reader, mask,
   ...). The readers of a stream are one product of their masks with the first rows of the former.
2. Autograd records each layer's heads and each MLP by itself, from what they read to what they
   write by `write_weight`. Products by that matrix and by masks are taken back by hand.
3. Backward, stream by stream from the logits down: what a component's output is worth is one
   product of masks with the gradients of all later readers; autograd takes it to what the component
   read, and the gradient replaces the read in the buffer. With the differences it is the gradient
   of the masks.

`masked.py: resumed_logits` is the slow twin, and the way to second derivatives.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.precision import products_in
from graphcircuits.graph import Block
from graphcircuits.subject.attention import attend
from graphcircuits.subject.components import Components, Rules, Vectors
from graphcircuits.subject.layers import TransformerConfig

Masks = Float[Tensor, "mask edge *pos"]


@dataclass(frozen=True, eq=False)
class MaskedRun:
    """What masked runs on the same prompts share."""

    subject: Components
    own: Float[Tensor, "batch pos d_model"]
    """What `input` writes, less what it writes where its edges are cut."""
    writers: Float[Tensor, "writer corrupted_batch pos d_model"]
    """What cut edges carry."""
    streams: Float[Tensor, "stream batch pos d_model"]
    """What readers read where every edge is cut."""
    columns: slice
    """Positions of which the last stream is returned."""
    precision: str

    def last_read(
        self, masks: Masks, slow: Callable[[Masks], Tensor], *, keep: bool
    ) -> Float[Tensor, "mask batch column d_model"]:
        """What `logits` reads under each mask, with gradients by the masks.

        What the backward pass needs is kept, or computed again then. `slow` gives the same by
        operations that have second derivatives.
        """
        return _LastRead.apply(masks, self, slow, keep)

    @torch.no_grad()
    def gradients(
        self, masks: Masks, metric: Callable[[Tensor], Tensor]
    ) -> tuple[Float[Tensor, "mask prompt"], Masks]:
        """The losses of every mask, and the gradient of their mean over prompts by the mask."""
        states = _States(self, masks, keep=True)
        last = states.forward()
        with torch.enable_grad(), products_in(self.precision):
            last.requires_grad_()
            losses = metric(self.subject.unembed(last))
            (grad,) = torch.autograd.grad(losses.mean(-1).sum(), last)
        return losses.detach(), states.backward(grad)


class _LastRead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, masks: Masks, run: MaskedRun, slow: Callable[[Masks], Tensor], keep: bool
    ) -> Tensor:
        ctx.save_for_backward(masks)
        ctx.run, ctx.slow = run, slow
        states = _States(run, masks, keep=keep)
        last = states.forward()
        ctx.states = states if keep else None
        return last

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (masks,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            last = ctx.slow(masks)
            return torch.autograd.grad(last, masks, grad, create_graph=True)[0], None, None, None
        # The pass backward consumes the states: a second one computes them again.
        states, ctx.states = ctx.states, None
        if states is None:
            states = _States(ctx.run, masks, keep=True)
            states.forward()
        return states.backward(grad), None, None, None


@dataclass(eq=False)
class _States:
    """One run under some masks, and the same run backward."""

    run: MaskedRun
    masks: Masks
    keep: bool
    """Whether what the pass backward needs is kept."""
    recorded: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """What each block of readers read, and what its components made of it."""

    def __post_init__(self) -> None:
        graph, size = self.run.subject.graph, self.run.own.numel()
        self.differences = self.run.own.new_empty(graph.n_writers, len(self.masks), size)
        rows = graph.n_readers if self.keep else graph.readers_per_layer
        self.reads = self.run.own.new_empty(rows, len(self.masks), size)

    def forward(self) -> Float[Tensor, "mask batch column d_model"]:
        """What `logits` reads."""
        run, blocks = self.run, self.run.subject.graph.stream_blocks
        self.differences[0] = run.own.flatten()
        done = 1
        with products_in(run.precision):
            for block in blocks[:-1]:
                made = self._made(block)
                done += self._write(made, block, done)
            return self._read(blocks[-1])[0][..., run.columns, :].clone()

    def _read(self, block: Block) -> Float[Tensor, "reader mask batch pos d_model"]:
        """What the readers of a block read."""
        stream = self.run.streams[block.stream]
        read = self.reads[block.readers if self.keep else slice(block.n_readers)]
        read.copy_(stream.flatten())
        mixing, seen = self._mixing(block), self.differences[: block.n_writers]
        if mixing.ndim == 3:
            read.transpose(0, 1).baddbmm_(mixing, seen.transpose(0, 1))
            return read.unflatten(2, stream.shape)
        read = read.unflatten(2, stream.shape)
        return read.add_(torch.einsum("mrwp,wmbpd->rmbpd", mixing, seen.unflatten(2, stream.shape)))

    def _made(self, block: Block) -> Tensor:
        """What components make of what they read: z of heads, the hidden vector of an MLP."""
        read = self._read(block)
        if not self.keep:
            return _component(self.run.subject, read, block)
        with torch.enable_grad():
            # By `data`, since autograd would take the reads of other blocks, in the same buffer,
            # for changes of this one.
            leaf = read.data.requires_grad_()
            made = _component(self.run.subject, leaf, block)
        self.recorded.append((leaf, made))
        return made.detach()

    def _write(self, made: Tensor, block: Block, first: int) -> int:
        """Add what components write to the differences; how many they are."""
        W = _write_weight(self.run.subject, block)
        rows, d_model = self.differences[first : first + len(W)], W.shape[-1]
        corrupted = self.run.writers[first : first + len(W), None]
        rows.unflatten(2, self.run.own.shape).copy_(corrupted)
        rows.view(len(W), -1, d_model).baddbmm_(made.flatten(1, -2), W, beta=-1)
        return len(W)

    def backward(self, grad: Float[Tensor, "mask batch column d_model"]) -> Masks:
        """The gradient by the masks; after it the states mean nothing."""
        run, graph = self.run, self.run.subject.graph
        found = torch.empty_like(self.masks)
        *blocks, logits = graph.stream_blocks
        last = self.reads[-1].unflatten(1, run.own.shape).zero_()
        last[..., run.columns, :] = grad
        with products_in(run.precision):
            mixing = self._matrix()
            self._correlate(found, logits)
            done = graph.n_writers
            for block in reversed(blocks):
                leaf, made = self.recorded.pop()
                W = _write_weight(run.subject, block)
                done -= len(W)
                # All readers from the first one on that reads a writer do so too.
                later = next(x.first_reader for x in graph.stream_blocks if x.n_writers > done)
                worth = self._worth(mixing, later, slice(done, done + len(W)))
                worth = torch.bmm(worth.view(len(W), -1, W.shape[-1]), W.transpose(1, 2))
                (pulled,) = torch.autograd.grad(made, leaf, worth.view_as(made))
                self.reads[block.readers] = pulled.flatten(2)
                self._correlate(found, block)
        return found

    def _worth(
        self, mixing: Float[Tensor, "mask reader writer *pos"], later: int, writers: slice
    ) -> Float[Tensor, "chosen mask state"]:
        """The gradients of some writers' outputs, given those of all readers from `later` on."""
        grads, taken = self.reads[later:], mixing[:, later:, writers]
        worth = torch.empty_like(self.differences[writers])
        if taken.ndim == 3:
            out = worth.transpose(0, 1)
            torch.bmm(taken.transpose(1, 2), grads.transpose(0, 1), out=out)
            return worth
        shape = self.run.own.shape
        pulled = torch.einsum("mrwp,rmbpd->wmbpd", taken, grads.unflatten(2, shape))
        worth.unflatten(2, shape).copy_(pulled)
        return worth

    def _correlate(self, found: Masks, block: Block) -> None:
        """Write the gradients of a block's masks, given those of what its readers read."""
        grads, seen = self.reads[block.readers], self.differences[: block.n_writers]
        size = (block.n_readers, block.n_writers)
        out = found[:, block.edges].unflatten(1, size)
        if out.ndim == 3:
            # A GPU multiplies a few rows of a hundred thousand numbers slowly, and prompt by prompt
            # ten times as fast.
            parts = len(self.run.own) if out.is_cuda else 1
            grads, seen = (x.unflatten(2, (parts, -1)).flatten(1, 2) for x in (grads, seen))
            products = torch.bmm(grads.transpose(0, 1), seen.permute(1, 2, 0))
            torch.sum(products.unflatten(0, (-1, parts)), 1, out=out)
            return
        grads, seen = (x.unflatten(2, self.run.own.shape) for x in (grads, seen))
        out.copy_(torch.einsum("rmbpd,wmbpd->mrwp", grads, seen))

    def _mixing(self, block: Block) -> Float[Tensor, "mask reader writer *pos"]:
        return self.masks[:, block.edges].unflatten(1, (block.n_readers, block.n_writers))

    def _matrix(self) -> Float[Tensor, "mask reader writer *pos"]:
        """The masks by reader and writer; where there is no edge, whatever memory held."""
        graph, (n_masks, _, *pos) = self.run.subject.graph, self.masks.shape
        matrix = self.masks.new_empty(n_masks, graph.n_readers, graph.n_writers, *pos)
        for block in graph.stream_blocks:
            matrix[:, block.readers, : block.n_writers] = self._mixing(block)
        return matrix


# Components


def _component(
    subject: Components, read: Float[Tensor, "reader mask batch pos d_model"], block: Block
) -> Float[Tensor, "writer mask batch pos _"]:
    """What the heads (z) or the MLP (its hidden vector) of a layer make of what they read."""
    layer, config = block.layer, subject.config
    if block.kind == "mlp":
        *_, hidden = subject.mlp(read, layer)
        return hidden
    read = subject.normalize("attn_norm", read, layer)
    W = torch.cat([subject.weights[f"W_{name}"][layer] for name in "QKV"])
    vectors = torch.bmm(read.flatten(1, 3), W).unflatten(1, read.shape[1:4])
    if config.biases:
        bias = torch.cat([subject.weights[f"b_{name}"][layer] for name in "QKV"])
        vectors = vectors + bias[:, None, None, None]
    q, k, v = vectors.split((config.n_heads, config.n_groups, config.n_groups))
    return subject.attend(q, k, v, layer=layer, dim=-5)


def _write_weight(subject: Components, block: Block) -> Float[Tensor, "writer _ d_model"]:
    if block.kind == "mlp":
        return subject.write_weight("W_out", block.layer)[None]
    return subject.write_weight("W_O", block.layer)


class Fused(Rules):
    """Attention by one operation where there is one: it has no second derivatives."""

    def attend(
        self, config: TransformerConfig, layer: int, q: Vectors, k: Vectors, v: Vectors
    ) -> Vectors:
        window, pos = config.window(layer), q.shape[-2]
        if config.score_cap is not None or (window is not None and window < pos):
            return attend(config, layer, q, k, v)
        shape = q.shape[1:-2]
        q, k, v = (x.flatten(1, -3) for x in (q, k, v))
        causal, scale = config.causal, config.score_scale
        z = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
        return z.unflatten(1, shape)


FUSED = Fused()
