"""Run circuits: edges are kept or cut, and what the cuts leave unchanged is not computed.

A component can differ from the run in which every edge is cut if it has a kept edge from `input` or
from another such component. Others put out what their cut edges carry. It reads what it reads in
the cut run + the sum over its kept edges of their writers' differences from it, all masks in one
product, and its own difference joins them.

The values are those of `masked_logits`, which takes any masks and has gradients; the tests compare
the two. A circuit of few edges costs a small share of a plain run here, one of all edges not much
more than a plain run, and a faithfulness curve is mostly circuits of few edges: that is why there
is a second run. Tensors lie component by component, then mask by mask, so that no product copies
its operands.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.engine.passes import RunLayer
from graphcircuits.graph import Block
from graphcircuits.subject.states import Trace
from graphcircuits.subject.transformer import Transformer


@dataclass(frozen=True, eq=False)
class CutRun:
    """The run in which every edge is cut."""

    layers: list[RunLayer]
    stream: Float[Tensor, "batch_or_1 pos d_model"]
    """What `logits` reads."""
    repeats: bool
    """Whether components that read nothing else put out just what cut edges carry."""

    @classmethod
    def of_trace(cls, trace: Trace) -> "CutRun":
        """Cut edges carry what a plain run has on them."""
        layers = [RunLayer.of(layer) for layer in trace.layers]
        return cls(layers, trace.layers[-1].after, repeats=True)

    @classmethod
    def of_zeros(cls, subject: Transformer, pos: int) -> "CutRun":
        """Cut edges carry nothing: readers read the constants of their stream."""
        config = subject.config
        zeros = subject.weights["W_E"].new_zeros
        z = zeros(1, pos, config.n_heads, config.d_head)
        hidden = zeros(1, pos, config.d_mlp)
        *streams, last = subject.constants[:, None, None].expand(-1, -1, pos, -1).unbind()
        both = zip(streams[::2], streams[1::2], strict=True)
        return cls([RunLayer(*each, z, hidden) for each in both], last, repeats=False)

    @classmethod
    def of_mean(cls, traces: Iterator[Trace]) -> "CutRun":
        """Cut edges carry the mean over all prompts of the traces."""
        count, sums, like = 0, [], []
        for trace in traces:
            run = cls.of_trace(trace)
            like = [run.stream, *(value for x in run.layers for value in vars(x).values())]
            count += len(run.stream)
            wide = torch.promote_types(run.stream.dtype, torch.float32)
            new = [value.sum(0, keepdim=True, dtype=wide) for value in like]
            sums = [a + b for a, b in zip(sums, new, strict=True)] if sums else new
        last, *rest = [(total / count).to(x.dtype) for total, x in zip(sums, like, strict=True)]
        width = len(fields(RunLayer))
        layers = [RunLayer(*rest[i : i + width]) for i in range(0, len(rest), width)]
        return cls(layers, last, repeats=False)


@torch.no_grad()
def circuit_logits(
    subject: Transformer,
    tokens: Int[Tensor, "batch pos"],
    masks: Bool[Tensor, "mask edge"],
    cut: CutRun,
    columns: slice = slice(None),
) -> Float[Tensor, "mask batch column d_vocab_out"]:
    """Logits at these columns when just the edges of each mask are kept, all masks at once.

    Masks are looked at on the CPU: there it costs no waiting for a GPU.
    """
    steps = _steps(subject, masks, cut.repeats)
    change = subject.embed(tokens) - cut.layers[0].at_heads
    shape = (len(masks), *change.shape)
    mixings = torch.from_numpy(np.concatenate([step.mixing.ravel() for step in steps])).to(change)
    by_step = mixings.split([step.mixing.size for step in steps])
    differences = change.new_empty(1 + sum(len(step.writers) for step in steps), *shape)
    differences[0] = change
    done, logits = 1, None
    for step, flat in zip(steps, by_step, strict=True):
        mixing, block = flat.view(step.mixing.shape), step.block
        seen = differences[: mixing.shape[2]]
        if block.kind == "logits":
            read = _read(cut.stream[:, columns], mixing, seen[..., columns, :])
            logits = subject.unembed(read[0])
            continue
        layer = cut.layers[block.layer]
        stream = layer.at_mlp if block.kind == "mlp" else layer.at_heads
        read = _read(stream, mixing, seen)
        out = differences[done : done + len(step.writers)]
        if block.kind == "mlp":
            *_, hidden = subject.mlp(read, block.layer)
            W_out = subject.write_weight("W_out", block.layer)
            torch.matmul(hidden - layer.hidden, W_out, out=out)
        else:
            _add_heads(subject, step, read, layer.z, out)
        done += len(step.writers)
    assert logits is not None
    return logits


def _read(
    stream: Float[Tensor, "batch_or_1 pos d_model"],
    mixing: Float[Tensor, "mask reader writer"],
    seen: Float[Tensor, "writer mask batch pos d_model"],
) -> Float[Tensor, "reader mask batch pos d_model"]:
    """What readers read: the cut stream and the differences of their kept writers."""
    read = seen.new_empty(mixing.shape[1], *seen.shape[1:])
    start = stream.expand(seen.shape[2:]).flatten().expand(*mixing.shape[:2], -1)
    by_mask = seen.flatten(2).transpose(0, 1)
    torch.baddbmm(start, mixing, by_mask, out=read.flatten(2).transpose(0, 1))
    return read


def _add_heads(
    subject: Transformer,
    step: "_Step",
    read: Float[Tensor, "reader mask batch pos d_model"],
    cut_z: Float[Tensor, "batch_or_1 pos all_heads d_head"],
    out: Float[Tensor, "head mask batch pos d_model"],
) -> None:
    """Write the differences of heads, given what their q, k and v readers read."""
    layer, heads, groups = step.block.layer, step.heads, step.groups
    whole = len(heads) == subject.config.n_heads
    read = subject.normalize("attn_norm", read, layer)
    vectors = []
    for kind, some in zip("QKV", read.split((len(heads), len(groups), len(groups))), strict=True):
        W = subject.weights[f"W_{kind}"][layer]
        chosen = slice(None) if whole else heads if kind == "Q" else groups
        projected = torch.bmm(some.flatten(1, 3), W[chosen])
        bias = subject.bias(f"b_{kind}", layer)
        if bias is not None:
            projected += bias[chosen, None]
        vectors.append(projected.unflatten(1, some.shape[1:4]))
    q, k, v = vectors
    if not whole:
        group_of = [groups.index(head // subject.config.heads_per_group) for head in heads]
        k, v = k[group_of], v[group_of]
    z = subject.attend(q, k, v, layer, dim=-5)
    by_head, W_O = cut_z.permute(2, 0, 1, 3), subject.write_weight("W_O", layer)
    if not whole:
        by_head, W_O = by_head[heads], W_O[heads]
    torch.bmm((z - by_head[:, None]).flatten(1, 3), W_O, out=out.flatten(1, 3))


# Which components can differ


@dataclass(frozen=True)
class _Step:
    """Components of one block that are computed."""

    block: Block
    heads: list[int]
    groups: list[int]
    """Of the layer's; empty where the block is not of heads."""
    writers: Sequence[int]
    """What they write, counted from the first writer of the graph."""
    mixing: Bool[np.ndarray, "mask reader writer"]
    """Which of their edges are kept: of their readers, and of the writers that can differ."""


def _steps(subject: Transformer, masks: Bool[Tensor, "mask edge"], repeats: bool) -> list[_Step]:
    """The components that differ in any of the masks, in the order of computation, and logits.

    By NumPy: PyTorch would wake its threads for every one of these short steps.
    """
    graph = subject.graph
    by_mask = masks.cpu().numpy()
    in_any = np.logical_or.reduce(by_mask, axis=0)
    moves = np.zeros(graph.n_writers, dtype=bool)
    moves[0] = True
    steps = []
    for block in graph.stream_blocks:
        seen = moves[: block.n_writers].nonzero()[0]
        edges = in_any[block.edges].reshape(block.n_readers, block.n_writers)
        reached = np.logical_or.reduce(edges[:, seen], axis=1) | (not repeats)
        first = 1 + block.layer * graph.writers_per_layer
        heads, groups, readers, writers = [], [], [0], []
        if block.kind == "qkv":
            by_head = np.logical_or.reduce(reached[graph.head_slots.numpy()], axis=1)
            heads = by_head.nonzero()[0].tolist()
            if heads and subject.config.coupled_heads:
                heads = list(range(graph.n_heads))
            groups = sorted({head // (graph.n_heads // graph.n_groups) for head in heads})
            readers = [*heads, *(graph.n_heads + group for group in groups)]
            readers += [graph.n_heads + graph.n_groups + group for group in groups]
            writers = [first + head for head in heads]
        elif block.kind == "mlp" and reached[0]:
            writers = [first + graph.n_heads]
        if writers or block.kind == "logits":
            whole = by_mask[:, block.edges].reshape(-1, block.n_readers, block.n_writers)
            mixing = whole[:, readers][:, :, seen]
            steps.append(_Step(block, heads, groups, writers, mixing))
            moves[writers] = True
    return steps
