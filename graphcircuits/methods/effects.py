"""What attribution is made of: plain runs, gradients of the loss in them, and effects of edges.

1. `with_gradients` runs the subject and takes the gradients that tell its readers apart; `kept` is
   what stays of a run. Values stay in lists by layer, since stacking them is a copy.
2. `writer_deltas` are the differences between the writers of two runs.
3. `add_effects` multiplies the two for every edge: (difference of its writer) . (gradient at its
   reader's input), summed over positions. Gradients of heads are taken to the stream for a few
   layers at once, so that memory does not bound the number of edges.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.memory import CPU_BUFFER
from graphcircuits.graph import ComponentGraph
from graphcircuits.subject.states import Trace
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

# Passes


@dataclass(frozen=True)
class _Layer:
    """What is kept of a layer."""

    at_heads: Float[Tensor, "run pos d_model"]
    at_mlp: Float[Tensor, "run pos d_model"]
    z: Float[Tensor, "run pos head d_head"]
    hidden: Float[Tensor, "run pos d_mlp"]


@dataclass(frozen=True)
class Pass:
    """A plain run; its values stay where they were computed, since stacking them is a copy."""

    subject: Transformer
    layers: list[_Layer]
    stream: Float[Tensor, "run pos d_model"]
    """What `logits` reads."""
    logits: Float[Tensor, "run column d_vocab_out"]
    """At the columns that the loss reads."""
    gradients: tuple[Tensor, ...] = ()
    """Of the loss at the readers of all layers in order, then at what `logits` reads."""
    losses: Float[Tensor, "step batch"] | None = None


def kept(subject: Transformer, trace: Trace) -> Pass:
    names = [field.name for field in fields(_Layer)]
    layers = [_Layer(*(getattr(x, name).detach() for name in names)) for x in trace.layers]
    return Pass(subject, layers, trace.layers[-1].after.detach(), trace.logits.detach())


def with_gradients(
    subject: Transformer, streams: Float[Tensor, "run pos d_model"], pairs: Pairs
) -> Pass:
    """A run on each prompt, once or for several steps in a row, with gradients of its loss."""
    with torch.enable_grad():
        # All follows from the stream, so it alone has to ask for gradients.
        trace = subject.trace(streams.requires_grad_(), pairs.columns)
        losses = pairs.loss_at_columns(trace.logits.unflatten(0, (-1, len(pairs))))
    wanted = [reader for layer in trace.layers for reader in layer.readers]
    gradients = torch.autograd.grad(losses.sum(), [*wanted, trace.layers[-1].after])
    return replace(kept(subject, trace), gradients=gradients, losses=losses.detach())


@torch.no_grad()
def writer_deltas(
    subject: Transformer, clean: Pass, corrupted: Pass
) -> Float[Tensor, "writer batch pos d_model"]:
    """Corrupted minus clean output of every writer, in single precision at least."""
    graph = subject.graph
    dtype = torch.promote_types(subject.dtype, torch.float32)
    first = corrupted.layers[0].at_heads.to(dtype) - clean.layers[0].at_heads
    deltas = first.new_empty(graph.n_writers, *first.shape)
    deltas[0] = first
    for layer, (own, other) in enumerate(zip(clean.layers, corrupted.layers, strict=True)):
        low = 1 + layer * graph.writers_per_layer
        mlp = low + graph.n_heads
        by_head = (other.z - own.z).permute(2, 0, 1, 3).flatten(1, 2)
        W_O, W_out = (subject.write_weight(name, layer) for name in ("W_O", "W_out"))
        _write(by_head, W_O, deltas[low:mlp].flatten(1, 2))
        _write(other.hidden - own.hidden, W_out, deltas[mlp])
    return deltas


def _write(vectors: Tensor, W: Tensor, out: Tensor) -> None:
    """Put vectors @ W where it belongs; on the way only where that has more digits."""
    if out.dtype == W.dtype:
        torch.matmul(vectors, W, out=out)
    else:
        out.copy_(vectors @ W)


# Effects


def add_effects(
    found: Float[Tensor, "batch_or_1 edge"],
    graph: ComponentGraph,
    run: Pass,
    deltas: Float[Tensor, "writer batch pos d_model"],
    *,
    first_layer: int,
    writers: tuple[int, int],
) -> None:
    """Add the effects of a range of writers in a run that starts at a layer, summed over steps."""
    low, high = writers
    # One row holds everything that is summed: a prompt, or all of them.
    by_writer = deltas.view(len(deltas), len(found), -1)
    blocks = graph.stream_blocks[2 * first_layer :]
    for block, gradients in zip(blocks, _gradient_blocks(run, deltas.shape[1]), strict=True):
        seen = min(high, block.n_writers)
        if seen <= low:
            continue
        readers = gradients.reshape(block.n_readers, len(found), -1).transpose(0, 1)
        products = readers.to(found.dtype) @ by_writer[low:seen].permute(1, 2, 0)
        edges = found[:, block.edges].view(-1, block.n_readers, block.n_writers)
        edges[:, :, low:seen] += products


def _gradient_blocks(run: Pass, batch: int) -> Iterator[Float[Tensor, "reader batch pos d_model"]]:
    """Gradients at readers that read the same writers: a layer's heads, its MLP, ..., `logits`.

    They are summed over the steps of the run. Those of an MLP and of `logits` are taken to the
    stream by the backward pass, those of heads here, since they share one norm and one stream.
    """
    layers = range(len(run.layers))
    size = _layers_at_once(run, batch)
    for some in (layers[start : start + size] for start in layers[::size]):
        for layer, heads in zip(some, _head_gradients(run, some, batch), strict=True):
            yield heads
            yield _over_steps(run.gradients[4 * layer + 3], batch)[None]
    yield _over_steps(run.gradients[-1], batch)[None]


def _head_gradients(
    run: Pass, some: range, batch: int
) -> Float[Tensor, "layer reader batch pos d_model"]:
    """Gradients at the heads' readers of some layers, taken to the stream."""
    subject, weights, layers = run.subject, run.subject.weights, slice(some.start, some.stop)
    parts = [run.gradients[4 * layer + kind] for layer in some for kind in range(3)]
    vectors = torch.cat([part.permute(2, 0, 1, 3) for part in parts])
    # Without a norm in between, the map to the stream is the same in every step.
    same = "attn_norm_w" not in weights
    vectors = _over_steps(vectors, batch, 1) if same else vectors
    W = torch.cat([weights[name][layers] for name in ("W_Q", "W_K", "W_V")], dim=1)
    heads = torch.bmm(vectors.flatten(1, 2), W.flatten(0, 1).mT)
    heads = heads.view(*W.shape[:2], *vectors.shape[1:3], -1)
    if same:
        return heads
    streams = torch.stack([run.layers[layer].at_heads for layer in some])[:, None]
    return _over_steps(subject.pull_through_norm("attn_norm", streams, heads, layers), batch, 2)


def _over_steps(values: Tensor, batch: int, axis: int = 0) -> Tensor:
    """The sum over the steps of a run, which lie along this axis step by step."""
    if values.shape[axis] == batch:
        return values
    return values.unflatten(axis, (-1, batch)).sum(axis)


def _layers_at_once(run: Pass, batch: int) -> int:
    """Layers whose head gradients take no more than a quarter of what the writers take."""
    graph = run.subject.graph
    steps = run.stream.shape[0] // batch
    layer = steps * (graph.readers_per_layer - 1)
    room = graph.n_writers // 4
    if not run.stream.is_cuda:
        room = min(room, CPU_BUFFER // (run.stream[:batch].numel() * run.stream.itemsize))
    return max(1, room // layer)
