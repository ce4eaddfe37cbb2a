"""Rerun a subject from one reader on, for many changes of what it reads.

For a reader of some layer, and what it would read more than in a finished run:

1. Below the reader nothing changes: the run's own states are reused.
2. In the reader's layer only the component that reads is computed: new queries, keys or values of
   one head (or of a group's heads) and its attention, or the MLP. Where heads are coupled by a norm
   of all of them, all attend anew. If a head changed, the MLP of the layer follows, unless it reads
   in parallel.
3. Later layers are computed in full, and the logits.

A masked run computes everything, and here most of it would be what it was: patching one edge at a
time is many times faster this way, and the tests check that it equals the masked run with that edge
cut. Edges into the heads of a layer are attended together, then finished head by head.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.engine.masked import Metric, check_writers
from graphcircuits.engine.memory import Footprint, at_once, explained, keep_freed_memory
from graphcircuits.graph import Block
from graphcircuits.subject.attention import attention_pattern
from graphcircuits.subject.layers import TransformerConfig
from graphcircuits.subject.transformer import Run

Change = Float[Tensor, "edge batch pos d_model"]
"""What a reader reads more, for each of some edges."""
Finished = Iterator[tuple[Int[Tensor, " part"], Float[Tensor, "part batch pos d_vocab_out"]]]


@torch.no_grad()
def single_edge(
    base: Run,
    other: Float[Tensor, "..."],
    edges: Int[Tensor, " edge"] | None = None,
    *,
    metric: Metric | None = None,
    memory_limit: int | None = None,
) -> Float[Tensor, "edge ..."]:
    """Logits, or what `metric` makes of them, when one edge of a run carries another output.

    `base` on clean prompts and `other` from corrupted ones corrupt one edge at a time (noising);
    the other way round, one edge at a time is clean (denoising). The rows follow `edges`, all
    edges of the graph where None. `other` (batch or 1, pos, writer, d_model) comes from a run's
    `writers` or from `ablated_writers`. Activations stay below `memory_limit` bytes (one edge
    at least).
    """
    graph = base.subject.graph
    check_writers(base.subject, tuple(base.states.input.shape[:2]), other)
    wanted = torch.arange(graph.n_edges) if edges is None else edges.cpu()
    if wanted.numel() == 0 or wanted.min() < 0 or wanted.max() >= graph.n_edges:
        raise ValueError(
            f"edges must be one or more of 0..{graph.n_edges - 1}, got {wanted.tolist()}."
        )
    chosen = torch.zeros(graph.n_edges, dtype=torch.bool)
    chosen[wanted] = True
    changes = (other - base.writers).permute(2, 0, 1, 3).contiguous()
    batch, pos = base.states.input.shape[:2]
    numbers = batch * Footprint(base.subject, pos).passing
    largest = batch * pos * base.subject.config.d_mlp
    chunk = min(graph.n_writers, at_once(base.subject, numbers, memory_limit, largest=largest))
    keep_freed_memory()
    row_of, results = chosen.cumsum(0) - 1, None
    with explained(base.subject, "edges", chunk, numbers):
        for ids, logits in _changed_runs(base, changes, chosen, chunk):
            values = logits if metric is None else metric(logits)
            # Results kept apart would lie between the blocks that the next run needs.
            if results is None:
                results = values.new_empty(int(chosen.sum()), *values.shape[1:])
            results[row_of[ids].to(values.device)] = values
    assert results is not None
    return results[row_of[wanted].to(other.device)]


def _changed_runs(
    base: Run,
    changes: Float[Tensor, "writer batch pos d_model"],
    chosen: Bool[Tensor, " edge"],
    chunk: int,
) -> Finished:
    """Edges, some at a time, with the logits when each alone carries its writer's change."""
    for block in base.subject.graph.blocks:
        starts = block.first_edge + torch.arange(block.n_readers)[:, None] * block.n_writers
        wanted = chosen[block.edges].view(block.n_readers, block.n_writers)
        asked = wanted.any(0).nonzero().flatten()
        for writers in asked.split(chunk) if len(asked) else ():
            low, high = int(writers[0]), int(writers[-1]) + 1
            # A slice is not copied, and asking for all edges makes one.
            whole = high - low == len(writers)
            change = changes[low:high] if whole else changes[writers]
            edges = starts + writers
            if block.kind not in "qkv":
                yield edges[0], _without_heads(base, block, change)
                continue
            readers = wanted[:, writers].any(1).nonzero().flatten().tolist()
            by_reader = _changes_by_heads(base, block, readers, change)
            for reader, by_head in zip(readers, by_reader, strict=True):
                some = wanted[reader, writers]
                yield edges[reader, some], _with_heads(base, block.layer, by_head.of(some))


def rerun(
    base: Run, reader: int, change: Float[Tensor, "alternative batch pos d_model"]
) -> Float[Tensor, "alternative batch pos d_vocab_out"]:
    """Logits when a reader reads so much more than in the run, and nothing else is changed."""
    block = next(block for block in base.subject.graph.blocks if reader < block.readers.stop)
    if block.kind not in "qkv":
        return _without_heads(base, block, change)
    (by_head,) = _changes_by_heads(base, block, [reader - block.first_reader], change)
    return _with_heads(base, block.layer, by_head)


def _without_heads(
    base: Run, block: Block, change: Change
) -> Float[Tensor, "edge batch pos d_vocab_out"]:
    """Logits when an MLP, or `logits`, reads `change` more."""
    if block.kind == "logits":
        return base.subject.unembed(base.streams[-1] + change)
    return _finish(base, block.layer, None, _Change(change))


def _with_heads(
    base: Run, layer: int, by_head: "_Change"
) -> Float[Tensor, "edge batch pos d_vocab_out"]:
    """Logits when the heads of a layer write `by_head` more."""
    return _finish(base, layer, by_head, None if base.subject.config.parallel else by_head)


def _changes_by_heads(
    base: Run, block: Block, readers: list[int], change: Change
) -> Iterator["_Change"]:
    """What the heads of a layer write more when each of these readers in turn reads `change` more.

    One reader at a time: where heads are coupled, all of them change.
    """
    if base.subject.config.coupled_heads:
        for reader in readers:
            yield _change_by_layer(base, block, reader, change)
        return
    W_O = base.subject.write_weight("W_O", block.layer).unflatten(0, (block.n_readers, -1))
    z_changes = _changed_heads(base, block, readers, change)
    for reader, z_change in zip(readers, z_changes, strict=True):
        yield _Change(z_change, W_O[reader].flatten(0, 1))


def _change_by_layer(base: Run, block: Block, reader: int, change: Change) -> "_Change":
    """The change that all heads of a layer make, computed in full, when one reader reads more."""
    subject, layer = base.subject, block.layer
    new = _changed_reads(base, layer, block.kind, [reader], change)[:, 0].transpose(0, 1)
    vectors = {name: getattr(base.states, name)[layer].transpose(1, 2) for name in "qkv"}
    others = vectors[block.kind].expand(len(change), -1, -1, -1, -1)
    pieces = (others[:, :, :reader], new[:, :, None], others[:, :, reader + 1 :])
    vectors[block.kind] = torch.cat(pieces, dim=2)
    z = subject.attend(*vectors.values(), layer=layer)
    moved = (z - base.states.z[layer].transpose(1, 2)).transpose(2, 3).flatten(3)
    return _Change(moved, subject.write_weight("W_O", layer).flatten(0, 1))


def _changed_heads(
    base: Run, block: Block, readers: list[int], change: Change
) -> Float[Tensor, "reader edge batch pos rank"]:
    """How z changes, for all heads of a reader, when the reader reads `change` more."""
    config, states, kind, layer = base.subject.config, base.states, block.kind, block.layer
    # A q reader serves one head, a k or v reader all heads of its group.
    served = 1 if kind == "q" else config.heads_per_group
    q, z = (
        state[layer].unflatten(2, (-1, served))[:, :, readers].permute(0, 2, 3, 1, 4)
        for state in (states.q, states.z)
    )
    groups = [reader * served // config.heads_per_group for reader in readers]
    k, v = (x[layer][:, :, groups].transpose(1, 2)[:, :, None] for x in (states.k, states.v))
    new = _changed_reads(base, layer, kind, readers, change)
    q, k = (base.subject.for_scores(name, x, layer) for name, x in (("q", q), ("k", k)))
    new = new if kind == "v" else base.subject.for_scores(kind, new, layer)
    changed = _attend_alternatives(config, block, new, q, k, v)
    by_edge = (changed - z[..., None, :, :]).permute(1, 3, 0, 4, 2, 5)
    return by_edge.flatten(4).contiguous()


def _changed_reads(
    base: Run, layer: int, kind: str, readers: list[int], change: Change
) -> Float[Tensor, "batch reader edge pos d_head"]:
    """The new queries, keys or values of each reader."""
    subject = base.subject
    W = subject.weights[f"W_{kind.upper()}"][layer, readers].transpose(0, 1)
    if subject.config.norm == "none":
        old = getattr(base.states, kind)[layer][:, :, readers]
        new = (change @ W.flatten(1)).unflatten(-1, W.shape[1:]) + old
    else:
        read = subject.normalize("attn_norm", base.streams[2 * layer] + change, layer)
        new = (read @ W.flatten(1)).unflatten(-1, W.shape[1:])
        if subject.config.biases:
            new = new + subject.weights[f"b_{kind.upper()}"][layer, readers]
    return new.permute(1, 3, 0, 2, 4)


def _attend_alternatives(
    config: TransformerConfig,
    block: Block,
    new: Float[Tensor, "batch reader edge pos d_head"],
    q: Float[Tensor, "batch reader head pos d_head"],
    k: Float[Tensor, "batch reader 1 pos d_head"],
    v: Float[Tensor, "batch reader 1 pos d_head"],
) -> Float[Tensor, "batch reader head edge pos d_head"]:
    """The heads' vectors before W_O with each alternative of queries, keys or values in turn.

    The alternatives of a prompt share one side of each product: one product per prompt.
    """
    (edge, pos), kind = new.shape[2:4], block.kind
    if kind == "q":
        alternatives = new.flatten(2, 3).transpose(-1, -2)[:, :, None]
        scores = (k @ alternatives).unflatten(-1, (edge, pos))
    elif kind == "k":
        alternatives = new.transpose(2, 3).flatten(2, 3)[:, :, None]
        scores = (alternatives @ q.transpose(-1, -2)).unflatten(-2, (pos, edge))
    else:
        scores = (k @ q.transpose(-1, -2))[..., None, :]
    pattern = attention_pattern(config, block.layer, scores).flatten(-2).transpose(-1, -2)
    if kind == "v":
        alternatives = new.transpose(2, 3).flatten(3)[:, :, None]
        return (pattern @ alternatives).unflatten(-1, (edge, -1)).transpose(-2, -3)
    return (pattern @ v).unflatten(-2, (edge, pos))


@dataclass(frozen=True)
class _Change:
    """What is added to a stream for each edge: factor @ matrix (the factor alone where None).

    A head changes the stream by rank d_head, so it is cheaper to multiply its matrix by the
    weights that read the stream than to write the change out.
    """

    factor: Float[Tensor, "edge batch pos rank"]
    matrix: Float[Tensor, "rank d_model"] | None = None

    def of(self, edges: Bool[Tensor, " edge"]) -> "_Change":
        """That of some of the edges."""
        if edges.all():
            return self
        return replace(self, factor=self.factor[edges.to(self.factor.device)])

    def through(self, W: Float[Tensor, "d_model d_out"]) -> Float[Tensor, "edge batch pos d_out"]:
        return _times(self.factor, W if self.matrix is None else self.matrix @ W)

    def written_out(self) -> Change:
        return self.factor if self.matrix is None else self.factor @ self.matrix


def _times(
    x: Float[Tensor, "*lead d_in"], W: Float[Tensor, "d_in d_out"]
) -> Float[Tensor, "*lead d_out"]:
    """x @ W with W laid out by output: much faster on a CPU where the outputs are few."""
    return F.linear(x, W.T.contiguous()) if W.shape[1] < 16 else x @ W


def _changed_hidden(
    base: Run, layer: int, change: _Change
) -> Float[Tensor, "edge batch pos d_mlp"]:
    """The MLP's hidden vectors when it reads `change` more."""
    subject, states, weights = base.subject, base.states, base.subject.weights
    if subject.config.norm != "none":
        *_, hidden = subject.mlp(base.streams[2 * layer + 1] + change.written_out(), layer)
        return hidden
    pre = change.through(weights["W_in"][layer]).add_(states.pre[layer])
    if states.gate is None:
        return subject.hidden(pre, None, layer)
    gate = change.through(weights["W_gate"][layer]).add_(states.gate[layer])
    return subject.hidden(pre, gate, layer)


def _finish(
    base: Run, layer: int, by_head: _Change | None, at_mlp: _Change | None
) -> Float[Tensor, "edge batch pos d_vocab_out"]:
    """Logits from what changed in a layer: its heads' outputs, what its MLP reads."""
    subject, config = base.subject, base.subject.config
    hidden = None if at_mlp is None else _changed_hidden(base, layer, at_mlp)
    W_out = subject.write_weight("W_out", layer)
    rest = base.streams[2 * layer + 2]
    if hidden is not None:
        rest = rest - base.writers[:, :, (layer + 1) * subject.graph.writers_per_layer]
    last = layer == config.n_layers - 1
    linear = config.norm == "none" and config.logit_cap is None
    if last and linear and config.d_vocab_out < config.d_model:
        # Without norm and cap the way to the logits is linear, and the weights multiply first.
        W_U = subject.unembedding * config.logit_scale
        logits = subject.unembed(rest)
        if by_head is not None:
            logits = by_head.through(W_U) + logits
        return logits if hidden is None else _times(hidden, W_out @ W_U) + logits
    stream = rest
    if by_head is not None:
        stream = by_head.written_out() + stream
    if hidden is not None:
        stream = hidden @ W_out + stream
    for later in range(layer + 1, config.n_layers):
        stream = subject.layer(stream, later)
    return subject.unembed(stream)
