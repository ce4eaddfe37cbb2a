"""Plain runs with the gradients that tell readers apart, and what writers put out in them.

Attribution and the features of the predictor are products of gradients at readers and outputs of
writers, and on large models these products, not the runs, decide time and memory. So values stay in
lists by layer, which stacking would copy, and gradients are taken to the stream a block or a layer
at a time: all at once would be too many. The tests compare gradients and outputs with those of the
run that holds everything (`Transformer.run`), and the run `between` two others with the masked run
in which all masks are alike.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.memory import CPU_BUFFER
from graphcircuits.graph import ComponentGraph
from graphcircuits.subject.components import Rules
from graphcircuits.subject.states import LayerStates, Trace
from graphcircuits.subject.transformer import Transformer


@dataclass(frozen=True)
class RunLayer:
    """What a layer of a run leaves for others: what its readers read, its components computed."""

    at_heads: Float[Tensor, "run pos d_model"]
    at_mlp: Float[Tensor, "run pos d_model"]
    z: Float[Tensor, "run pos head d_head"]
    hidden: Float[Tensor, "run pos d_mlp"]

    @classmethod
    def of(cls, states: LayerStates) -> "RunLayer":
        """These values of a layer, without gradients."""
        return cls(*(getattr(states, each.name).detach() for each in fields(cls)))


@dataclass(frozen=True)
class Pass:
    """A plain run; its values stay where they were computed, since stacking them is a copy."""

    subject: Transformer
    layers: list[RunLayer]
    stream: Float[Tensor, "run pos d_model"]
    """What `logits` reads."""
    logits: Float[Tensor, "run column d_vocab_out"]
    """At the columns that the loss reads."""
    gradients: tuple[Tensor, ...] = ()
    """Of the loss at the readers of all layers in order, then at what `logits` reads."""
    losses: Float[Tensor, "step batch"] | None = None


def detached(subject: Transformer, trace: Trace) -> Pass:
    """What stays of a run, without gradients."""
    layers = [RunLayer.of(layer) for layer in trace.layers]
    return Pass(subject, layers, trace.layers[-1].after.detach(), trace.logits.detach())


def with_gradients(
    subject: Transformer,
    streams: Float[Tensor, "run pos d_model"],
    columns: slice,
    loss: Callable[[Float[Tensor, "run column d_vocab_out"]], Float[Tensor, "step batch"]],
) -> Pass:
    """A run from what `input` writes, with gradients of the sum of its losses.

    `loss` takes the logits at `columns`, the only ones that are computed.
    """
    with torch.enable_grad():
        # All follows from the stream, so it alone has to ask for gradients.
        trace = subject.trace(streams.requires_grad_(), columns)
        losses = loss(trace.logits)
        total = losses.sum()
    wanted = [reader for layer in trace.layers for reader in layer.readers]
    gradients = torch.autograd.grad(total, [*wanted, trace.layers[-1].after])
    return replace(detached(subject, trace), gradients=gradients, losses=losses.detach())


def halves(run: Pass) -> tuple[Pass, Pass]:
    """The two runs that a batch was made of, without gradients."""
    size = len(run.stream) // 2

    def half(rows: slice) -> Pass:
        layers = [RunLayer(*(getattr(x, f.name)[rows] for f in fields(x))) for x in run.layers]
        return Pass(run.subject, layers, run.stream[rows], run.logits[rows])

    return half(slice(size)), half(slice(size, None))


# Between two runs


@dataclass(frozen=True, eq=False)
class _Between(Rules):
    """Readers read `share` of the stream of the run, and for the rest that of another run."""

    share: float
    others: Sequence[Float[Tensor, "batch pos d_model"]]

    def read(
        self, stream: Float[Tensor, "*batch pos d_model"], index: int
    ) -> Float[Tensor, "*batch pos d_model"]:
        return self.others[index].lerp(stream, self.share)


def between(subject: Transformer, corrupted: Pass, share: float) -> Transformer:
    """The subject in a run between the corrupted and the clean one.

    Each reader reads share * (the stream of this run) + (1 - share) * (that of the corrupted run):
    the masked run in which all masks are `share`, at the cost of a plain one. Share 1 is the clean
    run, 0 the corrupted one. Where the clean run is right beyond doubt its loss is flat, and where
    all is corrupted nothing passes through two components at once; in between gradients see both.
    The product of a reader's gradient and the change of a writer in this run is the gradient by the
    edge's mask.

    Args:
        corrupted: A run of the subject on the corrupted prompts.
        share: Above 0 and at most 1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}.")
    streams = [x for layer in corrupted.layers for x in (layer.at_heads, layer.at_mlp)]
    # Rules that watch plain runs are left out: this is a masked run.
    return replace(subject, rules=_Between(share, [*streams, corrupted.stream]))


# Readers


def gradient_blocks(run: Pass, batch: int) -> Iterator[Float[Tensor, "reader batch pos d_model"]]:
    """Gradients at readers that read the same writers: a layer's heads, its MLP, ..., `logits`.

    They are in the order of `ComponentGraph.stream_blocks`, and summed over the steps of the run.
    Those of an MLP and of `logits` are taken to the stream by the backward pass, those of heads
    here, since they share one norm and one stream.
    """
    layers = range(len(run.layers))
    size = _layers_at_once(run, batch)
    for some in (layers[start : start + size] for start in layers[::size]):
        for layer, heads in zip(some, _head_gradients(run, some, batch), strict=True):
            yield heads
            yield _over_steps(run.gradients[4 * layer + 3], batch)[None]
    yield _over_steps(run.gradients[-1], batch)[None]


def layer_gradients(run: Pass) -> Iterator[Float[Tensor, "reader run pos d_model"]]:
    """Gradients at the readers of a layer, heads first and then the MLP; at last of `logits`."""
    for layer in range(len(run.layers)):
        (heads,) = _head_gradients(run, range(layer, layer + 1), len(run.stream))
        yield torch.cat([heads, run.gradients[4 * layer + 3][None]])
    yield run.gradients[-1][None]


def _head_gradients(
    run: Pass, some: range, batch: int
) -> Float[Tensor, "layer reader batch pos d_model"]:
    """Gradients at the heads' readers of some layers, taken to the stream."""
    subject, weights, layers = run.subject, run.subject.weights, slice(some.start, some.stop)
    by_kind = [run.gradients[4 * layer + kind] for layer in some for kind in range(3)]
    vectors = torch.cat([each.permute(2, 0, 1, 3) for each in by_kind])
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


# Writers


@torch.no_grad()
def outputs(
    subject: Transformer,
    first: Float[Tensor, "run pos d_model"],
    layers: Iterable[tuple[Tensor, Tensor]],
) -> Float[Tensor, "writer run pos d_model"]:
    """What each writer adds to the stream, in the precision of `first`, the output of `input`.

    `layers` gives z and hidden of each layer; all of it is linear, so differences may be given.
    """
    graph = subject.graph
    written = first.new_empty(graph.n_writers, *first.shape)
    written[0] = first
    for layer, (z, hidden) in enumerate(layers):
        low = 1 + layer * graph.writers_per_layer
        mlp = low + graph.n_heads
        W_O, W_out = (subject.write_weight(name, layer) for name in ("W_O", "W_out"))
        _write(z.permute(2, 0, 1, 3).flatten(1, 2), W_O, written[low:mlp].flatten(1, 2))
        _write(hidden, W_out, written[mlp])
    return written


def _write(vectors: Tensor, W: Tensor, out: Tensor) -> None:
    """Put vectors @ W where it belongs; on the way only where that has more digits."""
    if out.dtype == W.dtype:
        torch.matmul(vectors, W, out=out)
    else:
        out.copy_(vectors @ W)


# Edges


@torch.no_grad()
def writer_deltas(
    subject: Transformer, clean: Pass, corrupted: Pass
) -> Float[Tensor, "writer batch pos d_model"]:
    """Corrupted minus clean output of every writer, in single precision at least."""
    dtype = torch.promote_types(subject.dtype, torch.float32)
    first = corrupted.layers[0].at_heads.to(dtype) - clean.layers[0].at_heads
    both = zip(clean.layers, corrupted.layers, strict=True)
    return outputs(subject, first, ((b.z - a.z, b.hidden - a.hidden) for a, b in both))


def add_effects(
    total: Float[Tensor, "batch_or_1 edge"],
    graph: ComponentGraph,
    run: Pass,
    deltas: Float[Tensor, "writer batch pos d_model"],
    *,
    first_layer: int,
    writers: tuple[int, int],
) -> None:
    """Add the effects of a range of writers in a run that starts at a layer, summed over steps.

    An edge's effect is (difference of its writer) . (gradient at its reader), over positions.
    """
    low, high = writers
    # One row holds everything that is summed: a prompt, or all of them.
    by_writer = deltas.view(len(deltas), len(total), -1)
    blocks = graph.stream_blocks[2 * first_layer :]
    for block, gradients in zip(blocks, gradient_blocks(run, deltas.shape[1]), strict=True):
        seen = min(high, block.n_writers)
        if seen <= low:
            continue
        readers = gradients.reshape(block.n_readers, len(total), -1).transpose(0, 1)
        products = readers.to(total.dtype) @ by_writer[low:seen].permute(1, 2, 0)
        edges = total[:, block.edges].view(-1, block.n_readers, block.n_writers)
        edges[:, :, low:seen] += products
