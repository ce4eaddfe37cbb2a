"""Edge attribution patching (EAP) and its integrated-gradients form (EAP-IG).

1. The subject runs on clean and corrupted prompts. An edge's first-order effect on a prompt is
   (corrupted - clean output of its writer) . (gradient of the loss at its reader's input), summed
   over positions: what noising the edge would do if the rest were linear.
2. EAP takes the gradient at the clean run (Syed et al. 2023). EAP-IG (Hanna et al. 2024) averages
   it along a path from corrupted to clean, at the midpoints of equal steps, which converges faster
   than their right ends. Over inputs, the path interpolates the input embeddings; over
   activations, it interpolates the outputs of one group of writers at a time (the input, the heads
   of a layer, an MLP) with everything below it clean.
3. A score pools an edge's effects on the prompts.

Plain passes give all that is needed. Gradients are made a layer at a time, and prompts and steps
go in chunks, so that memory bounds neither the number of edges nor of prompts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.intervene import MEMORY_LIMIT, keep_freed_memory
from graphcircuits.layers import weight_shapes
from graphcircuits.methods.prepare import POOLS, check_choice, check_positive, prepare
from graphcircuits.task import Pairs
from graphcircuits.transformer import Run, Transformer

PATHS = ("inputs", "activations")


def eap(
    subject: Transformer,
    graph: ComponentGraph,
    pairs: Pairs,
    *,
    pool: str = "abs",
    memory_limit: int = MEMORY_LIMIT,
) -> Float[Tensor, " edge"]:
    """First-order effect of noising each edge, from gradients at the clean run.

    `pool` takes the mean over prompts of absolute effects ("abs") or the absolute value of the mean
    effect ("sum"), in which effects of opposite signs cancel. Memory stays below `memory_limit`
    bytes where one prompt allows it.
    """
    return _attribute(subject, graph, pairs, "inputs", torch.ones(1), pool, memory_limit)


def eap_ig(
    subject: Transformer,
    graph: ComponentGraph,
    pairs: Pairs,
    *,
    over: str = "inputs",
    steps: int = 5,
    pool: str = "abs",
    memory_limit: int = MEMORY_LIMIT,
) -> Float[Tensor, " edge"]:
    """Effect of noising each edge, from gradients averaged along a path from corrupted to clean.

    `over` names the path: "inputs" takes `steps` passes, "activations" that many for each group of
    writers. `pool` and `memory_limit` as in `eap`. With "sum", and before the absolute value, the
    scores of the edges leaving `input` add up to the loss gap as `steps` grow.
    """
    check_choice("over", over, PATHS)
    check_positive(steps=steps)
    shares = (torch.arange(steps) + 0.5) / steps
    return _attribute(subject, graph, pairs, over, shares, pool, memory_limit)


def _attribute(
    subject: Transformer,
    graph: ComponentGraph,
    pairs: Pairs,
    over: str,
    shares: Float[Tensor, " step"],
    pool: str,
    memory_limit: int,
) -> Float[Tensor, " edge"]:
    """Pooled effects, with gradients averaged over these shares of clean on the path."""
    check_choice("pool", pool, POOLS)
    pairs = prepare(subject, graph, pairs)
    dtype = torch.promote_types(subject.dtype, torch.float32)
    total = torch.zeros(graph.n_edges, dtype=dtype, device=subject.device)
    prompts, steps = _chunks(subject, pairs, len(shares), memory_limit)
    keep_freed_memory()
    for start in range(0, len(pairs), prompts):
        part = pairs[start : start + prompts]
        found = effects(subject, part, over, shares.split(steps))
        total += (found.abs() if pool == "abs" else found).sum(0)
    if not total.any():
        raise ValueError(
            "the gradient of the loss is zero at every edge, so all scores would be zero; a loss "
            "whose targets are the clean run's own outputs is flat there: use eap-ig or exact."
        )
    return total.abs() / len(pairs)


def effects(
    subject: Transformer,
    pairs: Pairs,
    over: str,
    shares: tuple[Float[Tensor, " _"], ...],
) -> Float[Tensor, "batch edge"]:
    """Signed first-order effect of noising each edge on each prompt's loss.

    Gradients are averaged over the shares of clean, one pass for each tensor of them.
    """
    graph = subject.graph
    with torch.no_grad():
        clean, corrupted = subject.run(pairs.clean), subject.run(pairs.corrupted)
        # Writer by writer for each prompt: a prefix of the writers is a slice.
        deltas = (corrupted.writers - clean.writers).transpose(1, 2).contiguous()
    dtype = torch.promote_types(subject.dtype, torch.float32)
    found = deltas.new_zeros(len(pairs), graph.n_edges, dtype=dtype)
    steps = sum(len(some) for some in shares)
    for path in _paths(clean, deltas, over):
        for some in shares:
            run = path.run(pairs, 1 - some.to(deltas))
            _add_effects(found, graph, path, run, deltas, steps)
    return found


@dataclass(frozen=True)
class _Path:
    """A line from corrupted to clean on which one group of writers moves.

    `suffix` is what follows the group, as a subject that reads a stream in place of embeddings.
    """

    suffix: Transformer
    first_layer: int
    """The layer of the whole subject that is the suffix's first."""
    writers: tuple[int, int]
    """The writers to score along this path, as a range."""
    stream: Float[Tensor, "batch pos d_model"]
    """Behind the group, in the clean run."""
    change: Float[Tensor, "batch pos d_model"]
    """What full corruption of the group adds to the stream."""

    def run(self, pairs: Pairs, shares: Float[Tensor, " step"]) -> Run:
        """One run on all prompts for each share of corruption, step by step, with gradients."""
        streams = self.stream + shares[:, None, None, None] * self.change
        subject, tokens = reading_streams(self.suffix, streams.flatten(0, 1))

        def loss(logits: Float[Tensor, "run pos d_vocab_out"]) -> Float[Tensor, ""]:
            return pairs.loss(logits.unflatten(0, (len(shares), -1))).sum()

        return subject.run(tokens, loss)


def _paths(
    clean: Run, deltas: Float[Tensor, "batch writer pos d_model"], over: str
) -> Iterator[_Path]:
    subject, graph = clean.subject, clean.subject.graph
    if over == "inputs":
        yield _Path(subject, 0, (0, graph.n_writers), clean.streams[0], deltas[:, 0])
        return
    yield _Path(subject, 0, (0, 1), clean.streams[0], deltas[:, 0])
    for layer in range(graph.n_layers):
        first = 1 + layer * graph.writers_per_layer
        mlp = first + graph.n_heads
        # In parallel the layer's MLP does not read its heads, which then come after it.
        behind = 2 * layer + (2 if graph.parallel else 1)
        suffix = _suffix(subject, layer, with_mlp=not graph.parallel)
        heads = deltas[:, first:mlp].sum(1)
        yield _Path(suffix, layer, (first, mlp), clean.streams[behind], heads)
        suffix = _suffix(subject, layer, with_mlp=False)
        yield _Path(suffix, layer, (mlp, mlp + 1), clean.streams[2 * layer + 2], deltas[:, mlp])


def _suffix(subject: Transformer, layer: int, *, with_mlp: bool) -> Transformer:
    """The subject from a layer on, with that layer's heads and, if told, its MLP silent."""
    silent = ("W_O", "b_O") if with_mlp else ("W_O", "b_O", "W_out", "b_out")
    layered = [
        name
        for name in subject.weights
        if name not in ("W_E", "W_pos", "W_U", "b_U") and not name.startswith("final_norm")
    ]
    weights = dict(subject.weights)
    for name in layered:
        kept = weights[name][layer:]
        if name in silent:
            kept = torch.cat([torch.zeros_like(kept[:1]), kept[1:]])
        weights[name] = kept
    config = replace(subject.config, n_layers=subject.config.n_layers - layer)
    return Transformer(config, weights)


def reading_streams(
    subject: Transformer, streams: Float[Tensor, "batch pos d_model"]
) -> tuple[Transformer, Int[Tensor, "batch pos"]]:
    """A subject whose embeddings are the given vectors, and the tokens that stand for them."""
    config = replace(
        subject.config,
        d_vocab=streams.shape[0] * streams.shape[1],
        positions="none" if subject.config.positions == "learned" else subject.config.positions,
        tied_unembedding=False,
    )
    own = subject.weights | {"W_E": streams.flatten(0, 1), "W_U": subject.unembedding}
    weights = {name: own[name] for name in weight_shapes(config)}
    tokens = torch.arange(config.d_vocab, device=streams.device)
    return Transformer(config, weights), tokens.view(streams.shape[:2])


def _add_effects(
    found: Float[Tensor, "batch edge"],
    graph: ComponentGraph,
    path: _Path,
    run: Run,
    deltas: Float[Tensor, "batch writer pos d_model"],
    steps: int,
) -> None:
    """Add the part of a run, some of `steps`, to the effects of the path's writers."""
    low, high = path.writers
    reader = path.first_layer * graph.readers_per_layer
    for gradients in _gradient_blocks(run):
        count = gradients.shape[2]
        start, reads = int(graph.offsets[reader]), int(graph.reads[reader])
        reader += count
        seen = min(high, reads)
        if seen <= low:
            continue
        over_steps = gradients.unflatten(0, (-1, len(found))).sum(0).transpose(1, 2)
        block = over_steps.flatten(2) @ deltas[:, low:seen].flatten(2).transpose(1, 2)
        edges = found[:, start : start + count * reads].view(-1, count, reads)
        edges[:, :, low:seen] += block / steps


def _gradient_blocks(run: Run) -> Iterator[Float[Tensor, "run pos reader d_model"]]:
    """Gradients at readers that read the same writers: a layer's heads, its MLP, ..., `logits`."""
    subject = run.subject
    for layer in range(subject.config.n_layers):
        gradients = run.layer_gradients(layer)
        yield gradients[:, :, :-1]
        yield gradients[:, :, -1:]
    assert run.gradients is not None
    read = run.gradients.logits @ subject.unembedding.T * subject.config.logit_scale
    yield subject.pull_through_norm("final_norm", run.streams[-1], read)[:, :, None]


def _chunks(subject: Transformer, pairs: Pairs, steps: int, memory_limit: int) -> tuple[int, int]:
    """Prompts a chunk and steps a pass whose numbers fit in memory, one each at least."""
    config, graph, pos = subject.config, subject.graph, pairs.clean.shape[1]
    layer = (2 * config.n_heads + 2 * config.n_groups) * config.d_head + 3 * config.d_mlp
    states = config.n_layers * (layer + 2 * config.d_model) + config.d_vocab_out
    patterns = config.n_layers * config.n_heads * pos
    run = pos * (4 * states + 3 * patterns + 3 * graph.readers_per_layer * config.d_model)
    writers = 5 * pos * graph.n_writers * config.d_model
    room = memory_limit // subject.dtype.itemsize
    at_once = max(1, min(steps, (room - writers - 2 * graph.n_edges) // run))
    prompts = room // (writers + 2 * graph.n_edges + at_once * run)
    return max(1, prompts), at_once
