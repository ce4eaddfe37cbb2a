"""Edge attribution patching (EAP) and its integrated-gradients form (EAP-IG).

1. The subject runs on clean and corrupted prompts. An edge's first-order effect on a prompt is
   (corrupted - clean output of its writer) . (gradient of the loss at its reader's input), summed
   over positions: what noising the edge would do if the rest were linear.
2. EAP takes the gradient at the clean run (Syed et al. 2023) or, denoising, at the corrupted one.
   EAP-IG (Hanna et al. 2024) averages it along a path from corrupted to clean, at the midpoints of
   equal steps, which converges faster than their right ends, as published. Over inputs, the path
   interpolates the input embeddings; over activations, it interpolates the outputs of one group of
   writers at a time (the input, the heads of a layer, an MLP) with everything below it clean.
3. A score pools an edge's effects on the prompts: by default the mean of absolute values, where the
   papers add up signed effects (`pool="sum"`); docs/research/pooling.md has the comparison.

Plain passes give all that is needed, and none is made twice: the gradients of EAP come from its
clean run. Values stay in lists by layer, gradients are taken to the stream a layer at a time, and
prompts and steps go in chunks, so that memory bounds neither the number of edges nor of prompts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.memory import (
    CPU_BUFFER,
    Footprint,
    at_once,
    explained,
    keep_freed_memory,
)
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods.prepare import (
    DIRECTIONS,
    POOLS,
    check_choice,
    check_positive,
    placed,
    settled,
)
from graphcircuits.subject.states import Trace
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs, check_losses

PATHS = ("inputs", "activations")
RULES = ("midpoint", "right")

Stream = Float[Tensor, "batch pos d_model"]
Walk = Callable[
    [Transformer, Pairs, Stream, Stream, Float[Tensor, "batch column d_vocab_out"]],
    Float[Tensor, "step batch pos d_model"],
]
"""A path of its own: what `input` writes at each point, given what it writes in the clean and in
the corrupted run, and the corrupted logits at the columns that the loss reads."""


def eap(
    subject: Transformer,
    pairs: Pairs,
    *,
    direction: str = "noising",
    pool: str = "abs",
    memory_limit: int | None = None,
) -> Float[Tensor, " edge"]:
    """First-order effect of each edge, from gradients at one end.

    `direction` says at which: "noising" an edge of the clean run, or "denoising" one of the
    corrupted run. `pool` takes the mean over prompts of absolute effects ("abs") or the absolute
    value of the mean effect ("sum"), in which effects of opposite signs cancel. Memory stays below
    `memory_limit` bytes where one prompt allows it.
    """
    check_choice("direction", direction, DIRECTIONS)
    shares = torch.ones(1) if direction == "noising" else torch.zeros(1)
    return attribute(subject, pairs, "inputs", shares, pool, memory_limit)


def eap_ig(
    subject: Transformer,
    pairs: Pairs,
    *,
    over: str = "inputs",
    steps: int = 5,
    rule: str = "midpoint",
    pool: str = "abs",
    memory_limit: int | None = None,
) -> Float[Tensor, " edge"]:
    """Effect of noising each edge, from gradients averaged along a path from corrupted to clean.

    `over` names the path: "inputs" takes `steps` passes, "activations" that many for each group of
    writers. `rule` says where in each step the gradient is taken: at its middle, or at its "right"
    end, the clean one, as published. `pool` and `memory_limit` as in `eap`. With "sum", and before
    the absolute value, the scores of the edges leaving `input` add up to the loss gap as `steps`
    grow.
    """
    check_choice("over", over, PATHS)
    check_choice("rule", rule, RULES)
    check_positive(steps=steps)
    shares = (torch.arange(steps) + (0.5 if rule == "midpoint" else 1.0)) / steps
    return attribute(subject, pairs, over, shares, pool, memory_limit)


def attribute(
    subject: Transformer,
    pairs: Pairs,
    over: str | Walk,
    shares: Float[Tensor, " step"],
    pool: str,
    memory_limit: int | None,
) -> Float[Tensor, " edge"]:
    """Pooled effects, with gradients averaged over these shares of clean on the path.

    A walk has points of its own, as many as there are shares.
    """
    check_choice("pool", pool, POOLS)
    subject = settled(subject, widen=False)
    pairs = placed(subject, pairs)
    pairs = pairs.up_to_last_column() if subject.config.causal else pairs
    dtype = torch.promote_types(subject.dtype, torch.float32)
    total = torch.zeros(subject.graph.n_edges, dtype=dtype, device=subject.device)
    prompts, steps, numbers = _chunks(subject, pairs, len(shares), memory_limit)
    keep_freed_memory()
    losses = []
    by_prompt = pool == "abs"
    with explained(subject, "prompts", prompts, numbers):
        for part in pairs.split(prompts):
            found, *both = _effects(subject, part, over, shares.split(steps), by_prompt=by_prompt)
            total += found.abs_().sum(0) if by_prompt else found[0]
            losses.append(both)
    clean, corrupted = (torch.cat(each) for each in zip(*losses, strict=True))
    check_losses(clean, corrupted)
    if not total.any():
        raise ValueError(
            "the gradient of the loss is zero at every edge, so all scores would be zero; a loss "
            "whose targets are the clean run's own outputs is flat there: use eap-ig, exact or the "
            "gradient at the corrupted run (denoising)."
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
    return _effects(subject, pairs, over, shares, by_prompt=True)[0]


def _effects(
    subject: Transformer,
    pairs: Pairs,
    over: str | Walk,
    shares: tuple[Float[Tensor, " _"], ...],
    *,
    by_prompt: bool,
) -> tuple[Float[Tensor, "batch_or_1 edge"], Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Signed effects, summed over prompts unless told, and the clean and the corrupted losses."""
    points = torch.cat(shares).tolist()
    # At an end of the path its own run gives the gradients.
    end = points[0] if over == "inputs" and points in ([0.0], [1.0]) else None
    embedded, other = (subject.embed(x).detach() for x in (pairs.clean, pairs.corrupted))
    with torch.no_grad():
        if pairs.needs_targets:
            pairs = pairs.with_targets_from(subject.logits(pairs.clean))
        clean = None if end == 1.0 else _kept(subject, subject.trace(embedded, pairs.columns))
        corrupted = None if end == 0.0 else _kept(subject, subject.trace(other, pairs.columns))
    clean = clean or _with_gradients(subject, embedded, pairs)
    corrupted = corrupted or _with_gradients(subject, other, pairs)
    deltas = _deltas(subject, clean, corrupted)
    found = deltas.new_zeros(len(pairs) if by_prompt else 1, subject.graph.n_edges)
    if end is None:
        runs = _runs(subject, pairs, over, shares, (clean, corrupted), deltas)
    else:
        (whole,) = _paths(subject, clean, deltas, "inputs")
        runs = [(whole, clean if end == 1.0 else corrupted)]
    for path, run in runs:
        _add_effects(found, subject.graph, path, run, deltas)
    found /= len(points)
    losses = [
        pairs.loss_at_columns(run.logits) if run.losses is None else run.losses[0]
        for run in (clean, corrupted)
    ]
    return found, losses[0], losses[1]


# Passes


@dataclass(frozen=True)
class _Layer:
    """What is kept of a layer."""

    at_heads: Float[Tensor, "run pos d_model"]
    at_mlp: Float[Tensor, "run pos d_model"]
    z: Float[Tensor, "run pos head d_head"]
    hidden: Float[Tensor, "run pos d_mlp"]


@dataclass(frozen=True)
class _Pass:
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


def _kept(subject: Transformer, trace: Trace) -> _Pass:
    names = [field.name for field in fields(_Layer)]
    layers = [_Layer(*(getattr(x, name).detach() for name in names)) for x in trace.layers]
    return _Pass(subject, layers, trace.layers[-1].after.detach(), trace.logits.detach())


def _with_gradients(
    subject: Transformer, streams: Float[Tensor, "run pos d_model"], pairs: Pairs
) -> _Pass:
    """A run on each prompt, once or for several steps in a row, with gradients of its loss."""
    with torch.enable_grad():
        # All follows from the stream, so it alone has to ask for gradients.
        trace = subject.trace(streams.requires_grad_(), pairs.columns)
        losses = pairs.loss_at_columns(trace.logits.unflatten(0, (-1, len(pairs))))
    wanted = [reader for layer in trace.layers for reader in layer.readers]
    gradients = torch.autograd.grad(losses.sum(), [*wanted, trace.layers[-1].after])
    return replace(_kept(subject, trace), gradients=gradients, losses=losses.detach())


@torch.no_grad()
def _deltas(
    subject: Transformer, clean: _Pass, corrupted: _Pass
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


# Paths


@dataclass(frozen=True)
class _Path:
    """A line from corrupted to clean on which one group of writers moves.

    `suffix` is what follows the group, as a subject of its own.
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

    def run(self, pairs: Pairs, shares: Float[Tensor, " step"]) -> _Pass:
        """One run on all prompts for each share of corruption, step by step, with gradients."""
        streams = self.stream + shares[:, None, None, None] * self.change
        streams = streams.to(self.stream.dtype)
        return _with_gradients(self.suffix, streams.flatten(0, 1), pairs)


def _runs(
    subject: Transformer,
    pairs: Pairs,
    over: str | Walk,
    shares: tuple[Float[Tensor, " _"], ...],
    ends: tuple[_Pass, _Pass],
    deltas: Float[Tensor, "writer batch pos d_model"],
) -> Iterator[tuple[_Path, _Pass]]:
    """The runs at all points, with the path that each belongs to."""
    clean, corrupted = ends
    if isinstance(over, str):
        for path in _paths(subject, clean, deltas, over):
            for some in shares:
                yield path, path.run(pairs, 1 - some.to(deltas))
        return
    first, last = (end.layers[0].at_heads for end in ends)
    streams = over(subject, pairs, first, last, corrupted.logits)
    (path,) = _paths(subject, clean, deltas, "inputs")
    for some in streams.split([len(part) for part in shares]):
        yield path, _with_gradients(subject, some.flatten(0, 1), pairs)


def _paths(
    subject: Transformer,
    clean: _Pass,
    deltas: Float[Tensor, "writer batch pos d_model"],
    over: str,
) -> Iterator[_Path]:
    graph = subject.graph
    embedded = clean.layers[0].at_heads
    if over == "inputs":
        yield _Path(subject, 0, (0, graph.n_writers), embedded, deltas[0])
        return
    yield _Path(subject, 0, (0, 1), embedded, deltas[0])
    ends = [*(layer.at_heads for layer in clean.layers[1:]), clean.stream]
    for layer, end in enumerate(ends):
        first = 1 + layer * graph.writers_per_layer
        mlp = first + graph.n_heads
        # In parallel the layer's MLP does not read its heads, which then come after it.
        behind = end if graph.parallel else clean.layers[layer].at_mlp
        suffix = _suffix(subject, layer, with_mlp=not graph.parallel)
        yield _Path(suffix, layer, (first, mlp), behind, deltas[first:mlp].sum(0))
        suffix = _suffix(subject, layer, with_mlp=False)
        yield _Path(suffix, layer, (mlp, mlp + 1), end, deltas[mlp])


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
    return Transformer(subject.config.from_layer(layer), weights)


# Effects


def _add_effects(
    found: Float[Tensor, "batch_or_1 edge"],
    graph: ComponentGraph,
    path: _Path,
    run: _Pass,
    deltas: Float[Tensor, "writer batch pos d_model"],
) -> None:
    """Add the effects of the path's writers in a run, summed over its steps."""
    low, high = path.writers
    # One row holds everything that is summed: a prompt, or all of them.
    writers = deltas.view(len(deltas), len(found), -1)
    blocks = graph.stream_blocks[2 * path.first_layer :]
    for block, gradients in zip(blocks, _gradient_blocks(run, deltas.shape[1]), strict=True):
        seen = min(high, block.n_writers)
        if seen <= low:
            continue
        readers = gradients.reshape(block.n_readers, len(found), -1).transpose(0, 1)
        edges = found[:, block.edges].view(-1, block.n_readers, block.n_writers)[:, :, low:seen]
        readers, by_row = readers.to(found.dtype), writers[low:seen].permute(1, 2, 0)
        torch.baddbmm(edges, readers, by_row, out=edges)


def _gradient_blocks(run: _Pass, batch: int) -> Iterator[Float[Tensor, "reader batch pos d_model"]]:
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
    run: _Pass, some: range, batch: int
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


def _layers_at_once(run: _Pass, batch: int) -> int:
    """Layers whose head gradients take no more than a quarter of what the writers take."""
    graph = run.subject.graph
    steps = run.stream.shape[0] // batch
    layer = steps * (graph.readers_per_layer - 1)
    room = graph.n_writers // 4
    if not run.stream.is_cuda:
        room = min(room, CPU_BUFFER // (run.stream[:batch].numel() * run.stream.itemsize))
    return max(1, room // layer)


def _chunks(
    subject: Transformer, pairs: Pairs, steps: int, memory_limit: int | None
) -> tuple[int, int, int]:
    """Prompts per chunk and steps per pass that fit in memory, one each at least.

    Third, how many numbers a prompt then holds.
    """
    size = Footprint(subject, pairs.clean.shape[1], pairs.columns.stop - pairs.columns.start)
    run = size.backward + 3 * size.readers
    prompt = 2 * size.writers + 2 * size.states + 2 * subject.graph.n_edges
    together = min(steps, at_once(subject, run, memory_limit, taken=prompt))
    numbers = prompt + together * run
    return min(len(pairs), at_once(subject, numbers, memory_limit)), together, numbers
