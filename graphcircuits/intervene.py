"""Run a subject with a real-valued mask on every edge. For each mask:

1. The `input` writer embeds the clean tokens. Every writer is kept as its difference from the
   corrupted output of the same writer.
2. A reader reads constants + the corrupted outputs of its writers + the sum over them of
   mask * difference. Readers of a stream read the same prefix of writers, so a layer's q, k and v
   readers are one matrix product: (reader, prefix) masks times the (prefix, ...) differences.
3. The component computes as usual, and its difference joins the others.

Masks of 1 give the plain run, masks of 0 the corrupted one.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from graphcircuits.graph import ComponentGraph
from graphcircuits.layers import attend
from graphcircuits.transformer import Transformer

MEMORY_LIMIT = 2**30
"""Bytes that the activations of one chunk may take."""

CPU_BUFFER = 6 * 2**20
"""Bytes of the largest tensor of a chunk on a CPU; larger ones leave its caches and are slower."""

Metric = Callable[[Float[Tensor, "mask batch pos d_vocab_out"]], Float[Tensor, "mask ..."]]
ABLATIONS = ("corrupted", "zero", "mean")


def ablated_writers(
    subject: Transformer, tokens: Int[Tensor, "batch pos"], ablation: str = "corrupted"
) -> Float[Tensor, "batch_or_1 pos writer d_model"]:
    """What a cut edge carries: the outputs on `tokens`, zero, or their mean over the batch."""
    if ablation not in ABLATIONS:
        raise ValueError(f"ablation must be one of {', '.join(ABLATIONS)}, got {ablation!r}.")
    writers = subject.run(tokens).writers
    if ablation == "corrupted":
        return writers
    mean = writers.mean(0, keepdim=True)
    return mean if ablation == "mean" else torch.zeros_like(mean)


def masked_logits(
    subject: Transformer,
    tokens: Int[Tensor, "batch pos"],
    masks: Shaped[Tensor, "..."],
    corrupted: Float[Tensor, "..."],
    *,
    metric: Metric | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Float[Tensor, "..."]:
    """Logits, or what `metric` makes of them, with every edge between clean (1) and corrupted (0).

    `masks` has the axes (mask, edge), or (mask, edge, pos) for a value at every position; one mask
    alone, (edge,), gives a result without the mask axis. `corrupted` (batch or 1, pos, writer,
    d_model) comes from `ablated_writers` or from the `writers` of a run. `metric` maps logits
    (mask, batch, pos, d_vocab_out) to values whose first axis is mask. Masks run in chunks whose
    activations stay below `memory_limit` bytes (one mask at least); if gradients are wanted and
    the chunks do not fit together, they are computed again in the backward pass.
    """
    _check_masks(subject, tokens, masks)
    check_writers(subject, tuple(tokens.shape), corrupted)
    chunk, recompute = _chunking(subject, tokens, masks, corrupted, memory_limit)
    embedded = subject.embed(tokens)
    by_writer = corrupted.permute(2, 0, 1, 3)
    streams = _corrupted_streams(subject, by_writer, len(tokens))
    wide = _with_wide_heads(subject)
    keep_freed_memory()

    def evaluate(part: Float[Tensor, "mask edge *pos"]) -> Float[Tensor, "mask ..."]:
        blocks = _mask_blocks(subject.graph, part)
        logits = _masked_forward(wide, embedded, blocks, by_writer, streams)
        return logits if metric is None else metric(logits)

    parts = (masks if masks.ndim > 1 else masks[None]).to(embedded).split(chunk)
    if recompute:
        results = [checkpoint(evaluate, part, use_reentrant=False) for part in parts]
    else:
        results = [evaluate(part) for part in parts]
    joined = torch.cat(results)
    return joined if masks.ndim > 1 else joined[0]


def _masked_forward(
    subject: Transformer,
    embedded: Float[Tensor, "batch pos d_model"],
    blocks: list[Float[Tensor, "mask _ _ *pos"]],
    corrupted: Float[Tensor, "writer corrupted_batch pos d_model"],
    streams: Float[Tensor, "stream batch pos d_model"],
) -> Float[Tensor, "mask batch pos d_vocab_out"]:
    config, weights = subject.config, subject.weights
    differences = (embedded - corrupted[0]).expand(len(blocks[0]), 1, *embedded.shape)
    for layer in range(config.n_layers):
        *qkv_blocks, mlp_block = blocks[4 * layer : 4 * layer + 4]
        vectors = []
        for name, block in zip("QKV", qkv_blocks, strict=True):
            read = _mixed(streams[2 * layer], block, differences)
            read = subject.normalize("attn_norm", read, layer)
            bias = subject.bias(f"b_{name}", layer)
            vector = _project(read, weights[f"W_{name}"][layer], bias)
            vectors.append(subject.expand_groups(vector, dim=1))
        heads = _project(attend(config, *vectors), weights["W_O"][layer])
        first = differences.shape[1]
        mlp_writer = first + config.n_heads
        with_heads = torch.cat([differences, heads.sub_(corrupted[first:mlp_writer])], dim=1)

        below = differences if config.parallel else with_heads
        *_, hidden = subject.mlp(_mixed(streams[2 * layer + 1], mlp_block, below), layer)
        mlp = (hidden @ weights["W_out"][layer]).sub_(corrupted[mlp_writer])
        differences = torch.cat([with_heads, mlp], dim=1)
    return subject.unembed(_mixed(streams[-1], blocks[-1], differences).squeeze(1))


def _mask_blocks(
    graph: ComponentGraph, masks: Float[Tensor, "mask edge *pos"]
) -> list[Float[Tensor, "mask _ _ *pos"]]:
    """The masks of each layer's q, k, v and MLP readers, and of `logits`.

    Edges run reader by reader, and the readers of a block read the same writers.
    """
    readers = [*([graph.n_heads, graph.n_groups, graph.n_groups, 1] * graph.n_layers), 1]
    first_readers = torch.tensor([0, *readers[:-1]]).cumsum(0)
    shapes = list(zip(readers, graph.reads[first_readers].tolist(), strict=True))
    parts = masks.split([reader * writer for reader, writer in shapes], dim=1)
    return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]


def _mixed(
    stream: Float[Tensor, "batch pos d_model"],
    block: Float[Tensor, "mask reader writer *pos"],
    differences: Float[Tensor, "mask writer batch pos d_model"],
) -> Float[Tensor, "mask reader batch pos d_model"]:
    """What readers read: the corrupted stream and the masked sum of their writers' differences."""
    if block.ndim == 4:
        return stream + torch.einsum("mrwp,mwbpd->mrbpd", block, differences)
    start = stream.flatten().expand(*block.shape[:2], -1)
    return torch.baddbmm(start, block, differences.flatten(2)).unflatten(2, stream.shape)


def _project(
    x: Float[Tensor, "mask head batch pos d_in"],
    W: Float[Tensor, "head d_in d_out"],
    bias: Float[Tensor, "head d_out"] | None = None,
) -> Float[Tensor, "mask head batch pos d_out"]:
    """Each head's own linear map."""
    out = x.flatten(2, 3) @ W
    if bias is not None:
        out += bias[:, None]
    return out.unflatten(2, x.shape[2:4])


def _corrupted_streams(
    subject: Transformer, corrupted: Float[Tensor, "writer corrupted_batch pos d_model"], batch: int
) -> Float[Tensor, "stream batch pos d_model"]:
    """What readers read when every edge is cut: corrupted outputs and constants."""
    reads = subject.graph.stream_reads.to(corrupted.device)
    prefixes = torch.arange(len(corrupted), device=corrupted.device) < reads[:, None]
    sums = (prefixes.to(corrupted) @ corrupted.flatten(1)).unflatten(1, corrupted.shape[1:])
    streams = sums + subject.constants[:, None, None]
    return streams.expand(-1, batch, -1, -1).contiguous()


def _with_wide_heads(subject: Transformer) -> Transformer:
    """The same function with zeros added up to a d_head that a CPU multiplies fast."""
    config, weights = subject.config, subject.weights
    extra = -config.d_head % 16
    if subject.device.type != "cpu" or not extra or config.d_head < 3:
        return subject
    wide = {
        name: F.pad(weights[name], (0, extra)) for name in weights if name[2:] in ("Q", "K", "V")
    }
    wide["W_O"] = F.pad(weights["W_O"], (0, 0, 0, extra))
    # Scores are divided by the root of d_head, which has grown.
    for name in wide.keys() & {"W_Q", "b_Q"}:
        wide[name] = wide[name] * (1 + extra / config.d_head) ** 0.5
    rotary_dim = config.rotary_size if config.positions == "rotary" else None
    wide_config = replace(config, d_head=config.d_head + extra, rotary_dim=rotary_dim)
    return Transformer(wide_config, weights | wide)


# Memory


def _floats_per_mask(subject: Transformer, batch: int, pos: int, *, grad: bool) -> int:
    """Numbers that one mask's activations take at their peak, or with gradients in all."""
    config, graph = subject.config, subject.graph
    tokens = batch * pos
    readers = graph.readers_per_layer - 1
    attention = tokens * readers * (3 * config.d_model + 3 * config.d_head)
    attention += 4 * batch * config.n_heads * pos**2 + 2 * tokens * config.n_heads * config.d_model
    mlp = tokens * (3 * config.d_model + (7 if config.gated_mlp else 4) * config.d_mlp)
    logits = 3 * tokens * config.d_vocab_out
    if not grad:
        return 3 * tokens * graph.n_writers * config.d_model + max(attention, mlp, logits)
    prefixes = 2 * tokens * int(graph.stream_reads.sum()) * config.d_model
    return prefixes + config.n_layers * (attention + mlp) + logits


def _chunking(
    subject: Transformer,
    tokens: Int[Tensor, "batch pos"],
    masks: Float[Tensor, "..."],
    corrupted: Float[Tensor, "..."],
    memory_limit: int,
) -> tuple[int, bool]:
    """Masks a chunk, and whether chunks must be computed again for their gradients."""
    n_masks = len(masks) if masks.ndim > 1 else 1
    config, graph = subject.config, subject.graph
    tensors = (masks, corrupted, *subject.weights.values())
    grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    numbers = _floats_per_mask(subject, *tokens.shape, grad=grad)
    largest = tokens.numel() * max(config.d_mlp, graph.n_writers * config.d_model)
    chunk = chunk_size(subject, numbers, largest, memory_limit)
    return chunk, grad and n_masks * numbers * subject.dtype.itemsize > memory_limit


def chunk_size(subject: Transformer, numbers: int, largest: int, memory_limit: int) -> int:
    """How many masks or edges to run at once.

    `numbers` is what one of them holds at its peak, `largest` the size of its largest tensor.
    """
    chunk = memory_limit // (numbers * subject.dtype.itemsize)
    if subject.device.type == "cpu":
        chunk = min(chunk, CPU_BUFFER // (largest * subject.dtype.itemsize))
    return max(1, chunk)


def keep_freed_memory() -> None:
    """Let the C library keep freed blocks of up to 32 MiB instead of giving them back.

    glibc raises that threshold to the size of the largest block freed so far. Below it, memory
    goes back to the system after every chunk, and getting it anew takes longer than computing.
    """
    torch.empty(2**25 - 2**13, dtype=torch.uint8)


# Bad input


def _check_masks(
    subject: Transformer, tokens: Int[Tensor, "batch pos"], masks: Shaped[Tensor, "..."]
) -> None:
    n_edges, pos = subject.graph.n_edges, tokens.shape[1]
    shapes = f"({n_edges},), (mask, {n_edges}) or (mask, {n_edges}, {pos})"
    fits = {1: (n_edges,), 2: (n_edges,), 3: (n_edges, pos)}.get(masks.ndim)
    if masks.shape[min(1, masks.ndim - 1) :] != fits or len(masks) == 0:
        raise ValueError(f"masks must have shape {shapes}, got {tuple(masks.shape)}.")
    if not masks.is_floating_point():
        raise ValueError(f"masks must be floating point, got {masks.dtype}; call .float() on them.")
    if masks.isnan().any():
        raise ValueError(f"masks must be numbers, got {int(masks.isnan().sum())} NaN.")


def check_writers(
    subject: Transformer, batch_pos: tuple[int, ...], writers: Float[Tensor, "..."]
) -> None:
    """Refuse writer outputs that cannot stand in for those of a run on `batch_pos` tokens."""
    batch, pos = batch_pos
    expected = (batch, pos, subject.graph.n_writers, subject.config.d_model)
    if writers.shape not in (expected, (1, *expected[1:])):
        raise ValueError(
            f"corrupted writer outputs must have shape {expected} (or 1 in place of the batch), "
            f"got {tuple(writers.shape)}; clean and corrupted prompts must have equal shapes."
        )
    if (writers.dtype, writers.device) != (subject.dtype, subject.device):
        raise ValueError(
            f"corrupted writer outputs must be {subject.dtype} on {subject.device} like the "
            f"subject, got {writers.dtype} on {writers.device}."
        )
