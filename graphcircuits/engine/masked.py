"""Run a subject with a real-valued mask on every edge. For each mask:

1. The `input` writer embeds the clean tokens. Every writer is kept as its difference from the
   corrupted output of the same writer.
2. A reader reads constants + the corrupted outputs of its writers + the sum over them of
   mask * difference. Readers of a stream read the same prefix of writers, so a layer's q, k and v
   readers are one matrix product: (reader, prefix) masks times the (prefix, ...) differences.
3. The component computes as usual, and its difference joins the others.

Masks of 1 give the plain run, masks of 0 the corrupted one: the tests check both on every
architecture, and single masks against patching by definition. `resumed_logits` does this from any
stream on, where the writers before it are known. This is the primitive of the package: it is
differentiable and takes many masks at once, and what else runs edges is a faster special case.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from graphcircuits.engine.gradients import FUSED, MaskedRun
from graphcircuits.engine.memory import Footprint, at_once, explained, keep_freed_memory
from graphcircuits.engine.precision import check_precision, products_in
from graphcircuits.graph import Block, ComponentGraph
from graphcircuits.subject.components import PLAIN, Components
from graphcircuits.subject.transformer import Transformer

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
    columns: slice = slice(None),
    memory_limit: int | None = None,
    precision: str = "full",
) -> Float[Tensor, "..."]:
    """Logits, or what `metric` makes of them, with every edge between clean (1) and corrupted (0).

    `masks` has the axes (mask, edge), or (mask, edge, pos) for a value at every position; one mask
    alone, (edge,), gives a result without the mask axis. `corrupted` (batch or 1, pos, writer,
    d_model) comes from `ablated_writers` or from the `writers` of a run. `metric` maps logits
    (mask, batch, pos, d_vocab_out) to values whose first axis is mask; logits are computed at the
    positions of `columns` alone. Masks run in chunks whose activations stay below `memory_limit`
    bytes (one mask at least); if gradients are wanted and the chunks do not fit together, they are
    computed again in the backward pass. `precision` is one of those of `engine/precision.py`.
    """
    _check_masks(subject, tokens, masks)
    check_writers(subject, tuple(tokens.shape), corrupted)
    check_precision(precision)
    if precision == "bfloat16":
        subject, corrupted = subject.to(torch.bfloat16), corrupted.bfloat16()
    wanted = _gradients(subject, masks, corrupted)
    chunk, numbers, recompute = _chunking(subject, tokens, masks, wanted, memory_limit)
    embedded = subject.embed(tokens)
    by_writer = corrupted.permute(2, 0, 1, 3)
    wide = with_wide_heads(subject)
    run = _prepared(wide, embedded, by_writer, columns, precision)

    def slow(some: Float[Tensor, "mask edge *pos"]) -> Float[Tensor, "mask batch column d_model"]:
        moved = [run.own.expand(len(some), 1, *run.own.shape)]
        return last_read(wide, some, by_writer, run.streams, 0, moved)[..., columns, :]

    def judge(read: Float[Tensor, "mask batch column d_model"]) -> Float[Tensor, "mask ..."]:
        with products_in(precision):
            logits = wide.unembed(read)
        return logits if metric is None else metric(logits)

    def evaluate(some: Float[Tensor, "mask edge *pos"]) -> Float[Tensor, "mask ..."]:
        if wanted == "masks":
            read = run.last_read(some, slow, keep=not recompute)
            return checkpoint(judge, read, use_reentrant=False) if recompute else judge(read)
        if recompute:
            return checkpoint(lambda some: judge(slow(some)), some, use_reentrant=False)
        return judge(slow(some))

    parts = (masks if masks.ndim > 1 else masks[None]).to(embedded).split(chunk)
    with explained(subject, "masks", len(parts[0]), numbers):
        joined = torch.cat([evaluate(some) for some in parts])
    return joined if masks.ndim > 1 else joined[0]


def masked_gradients(
    subject: Transformer,
    tokens: Int[Tensor, "batch pos"],
    masks: Float[Tensor, "mask edge *pos"],
    corrupted: Float[Tensor, "corrupted_batch pos writer d_model"],
    metric: Metric,
    *,
    columns: slice = slice(None),
    memory_limit: int | None = None,
    precision: str = "full",
) -> tuple[Float[Tensor, "mask batch"], Float[Tensor, "mask edge *pos"]]:
    """The losses of every mask, and the gradient of their mean over prompts by the mask.

    What `masked_logits` and autograd give, in one pass that a CUDA graph can capture if a
    `memory_limit` is given: nothing in it waits for a GPU, which tokens there are trusted for.
    `metric` gives losses (mask, batch).
    """
    _check_masks(subject, tokens, masks)
    check_writers(subject, tuple(tokens.shape), corrupted)
    check_precision(precision)
    if precision == "bfloat16":
        subject, corrupted = subject.to(torch.bfloat16), corrupted.bfloat16()
    chunk, *_ = _chunking(subject, tokens, masks, "masks", memory_limit)
    embedded = (subject.embed_trusted if tokens.is_cuda else subject.embed)(tokens)
    by_writer = corrupted.permute(2, 0, 1, 3)
    run = _prepared(with_wide_heads(subject), embedded, by_writer, columns, precision)
    parts = masks.detach().to(embedded).split(chunk)
    losses, gradients = zip(*[run.gradients(some, metric) for some in parts], strict=True)
    return torch.cat(losses), torch.cat(gradients).to(masks.dtype)


def _prepared(
    subject: Transformer,
    embedded: Float[Tensor, "batch pos d_model"],
    writers: Float[Tensor, "writer corrupted_batch pos d_model"],
    columns: slice,
    precision: str,
) -> MaskedRun:
    """What the masked runs on some prompts share, attending by one operation on a GPU."""
    keep_freed_memory()
    streams = corrupted_streams(subject, writers, len(embedded))
    fuses = subject.device.type == "cuda" and subject.rules is PLAIN
    run = replace(subject, rules=FUSED) if fuses else subject
    return MaskedRun(run, embedded - writers[0], writers, streams, columns, precision)


def resumed_logits(
    subject: Components,
    masks: Float[Tensor, "mask edge *pos"],
    writers: Float[Tensor, "writer corrupted_batch pos d_model"],
    streams: Float[Tensor, "stream batch pos d_model"],
    stream: int,
    moved: list[Float[Tensor, "mask _ batch pos d_model"]],
    known: Float[Tensor, "known batch pos d_model"] | None = None,
    columns: slice = slice(None),
) -> Float[Tensor, "mask batch column d_vocab_out"]:
    """Logits from a stream on; what it takes is what `last_read` takes."""
    read = last_read(subject, masks, writers, streams, stream, moved, known)
    return subject.unembed(read[..., columns, :])


def last_read(
    subject: Components,
    masks: Float[Tensor, "mask edge *pos"],
    writers: Float[Tensor, "writer corrupted_batch pos d_model"],
    streams: Float[Tensor, "stream batch pos d_model"],
    stream: int,
    moved: list[Float[Tensor, "mask _ batch pos d_model"]],
    known: Float[Tensor, "known batch pos d_model"] | None = None,
) -> Float[Tensor, "mask batch pos d_model"]:
    """What `logits` reads, given the differences of all writers that come before a stream.

    `writers` is what cut edges carry, `streams` what readers read where every edge is cut. The
    differences of the first writers may be the same for all masks, `known`; the others are `moved`.
    """
    *blocks, logits = [block for block in subject.graph.blocks if block.stream >= stream]
    first = 0 if known is None else len(known)
    differences, done = moved[0], sum(each.shape[1] for each in moved)
    if grad := torch.is_grad_enabled():
        differences = moved[0] if len(moved) == 1 else torch.cat(moved, dim=1)
    else:
        # With room for all that follow: to append is to copy once.
        shape = (len(masks), logits.n_writers - first, *differences.shape[2:])
        differences = differences.new_empty(shape)
        torch.cat(moved, dim=1, out=differences[:, :done])
    vectors: dict[str, Tensor] = {}

    # One split has one gradient, where slices would have one each as large as the masks.
    sizes = [block.n_readers * block.n_writers for block in (*blocks, logits)]
    by_block = iter(masks[:, -sum(sizes) :].split(sizes, dim=1))

    def read(block: Block) -> Float[Tensor, "mask reader batch pos d_model"]:
        mixing = next(by_block).unflatten(1, (block.n_readers, block.n_writers))
        n_moved = block.n_writers - first
        seen = differences if n_moved == differences.shape[1] else differences[:, :n_moved]
        return _mixed(streams[block.stream], mixing, known, seen)

    for block in blocks:
        if block.kind == "mlp":
            out = mlp_outputs(subject, read(block), block.layer)
        else:
            vectors[block.kind] = head_vectors(subject, read(block), block.kind, block.layer)
            if block.kind != "v":
                continue
            out = head_outputs(subject, vectors, block.layer)
        last = done + out.shape[1]
        corrupted = writers[first + done : first + last]
        if grad:
            differences = torch.cat([differences, out.sub_(corrupted)], dim=1)
        else:
            torch.sub(out, corrupted, out=differences[:, done:last])
        done = last
    return read(logits).squeeze(1)


def _mixed(
    stream: Float[Tensor, "batch pos d_model"],
    block: Float[Tensor, "mask reader writer *pos"],
    known: Float[Tensor, "known batch pos d_model"] | None,
    moved: Float[Tensor, "mask moved batch pos d_model"],
) -> Float[Tensor, "mask reader batch pos d_model"]:
    """What readers read: the corrupted stream and the masked sum of their writers' differences."""
    if block.ndim == 4:
        return stream + torch.einsum("mrwp,mwbpd->mrbpd", block, moved)
    start = stream.flatten()
    if known is None:
        start = start.expand(*block.shape[:2], -1)
        return torch.baddbmm(start, block, moved.flatten(2)).unflatten(2, stream.shape)
    # What is the same for all masks is one product for all of them.
    shared = block[:, :, : len(known)].flatten(0, 1)
    read = torch.addmm(start, shared, known.flatten(1)).unflatten(0, block.shape[:2])
    if moved.shape[1]:
        read = read.baddbmm_(block[:, :, len(known) :], moved.flatten(2))
    return read.unflatten(2, stream.shape)


def head_vectors(
    subject: Components,
    read: Float[Tensor, "mask reader batch pos d_model"],
    kind: str,
    layer: int,
    readers: slice = slice(None),
) -> Float[Tensor, "mask reader batch pos d_head"]:
    """Queries, keys or values that some readers of a layer make of what each of them reads."""
    name = kind.upper()
    read = subject.normalize("attn_norm", read, layer)
    vectors = read.flatten(2, 3) @ subject.weights[f"W_{name}"][layer, readers]
    bias = subject.bias(f"b_{name}", layer)
    if bias is not None:
        vectors += bias[readers, None]
    return vectors.unflatten(2, read.shape[2:4])


def head_outputs(
    subject: Components,
    vectors: Mapping[str, Float[Tensor, "mask _ batch pos d_head"]],
    layer: int,
    heads: slice = slice(None),
) -> Float[Tensor, "mask head batch pos d_model"]:
    """What some heads of a layer write, given their queries, keys and values."""
    z = subject.attend(*(vectors[kind] for kind in "qkv"), layer=layer, dim=-4)
    W_O = subject.write_weight("W_O", layer)[heads]
    return (z.flatten(2, 3) @ W_O).unflatten(2, z.shape[2:4])


def mlp_outputs(
    subject: Components, read: Float[Tensor, "mask 1 batch pos d_model"], layer: int
) -> Float[Tensor, "mask 1 batch pos d_model"]:
    """What an MLP writes."""
    *_, hidden = subject.mlp(read, layer)
    return hidden @ subject.write_weight("W_out", layer)


def corrupted_streams(
    subject: Transformer, corrupted: Float[Tensor, "writer corrupted_batch pos d_model"], batch: int
) -> Float[Tensor, "stream batch pos d_model"]:
    """What readers read when every edge is cut: corrupted outputs and constants."""
    prefixes = _prefixes(subject.graph, corrupted.device, corrupted.dtype)
    sums = (prefixes @ corrupted.flatten(1)).unflatten(1, corrupted.shape[1:])
    streams = sums + subject.constants[:, None, None]
    return streams.expand(-1, batch, -1, -1).contiguous()


@lru_cache(maxsize=16)
@torch.inference_mode(mode=False)
@torch.no_grad()
def _prefixes(
    graph: ComponentGraph, device: torch.device, dtype: torch.dtype
) -> Float[Tensor, "stream writer"]:
    """One where a stream sums a writer; made once, since sending it to a GPU waits for it."""
    return (torch.arange(graph.n_writers) < graph.stream_reads[:, None]).to(device, dtype)


def with_wide_heads(subject: Transformer) -> Transformer:
    """The same function with zeros added up to a d_head that a CPU multiplies fast."""
    config, weights = subject.config, subject.weights
    extra = -config.d_head % 16
    if subject.device.type != "cpu" or not extra or config.d_head < 3:
        return subject
    if config.qk_norm != "none":
        # The zeros would count in the mean square.
        return subject
    wide = {n: F.pad(w, (0, extra)) for n, w in weights.items() if n[2:] in ("Q", "K", "V")}
    wide["W_O"] = F.pad(weights["W_O"], (0, 0, 0, extra))
    # Scores are divided by the root of d_head, which has grown, unless their scale is given.
    for name in wide.keys() & {"W_Q", "b_Q"} if config.attention_scale is None else ():
        wide[name] = wide[name] * (1 + extra / config.d_head) ** 0.5
    rotary_dim = config.rotary_size if config.positions == "rotary" else None
    wide_config = replace(config, d_head=config.d_head + extra, rotary_dim=rotary_dim)
    return replace(subject, config=wide_config, weights=weights | wide)


def _gradients(subject: Transformer, masks: Tensor, corrupted: Tensor) -> str:
    """By what gradients are wanted: "nothing", the "masks" alone, or "more"."""
    if not torch.is_grad_enabled():
        return "nothing"
    if corrupted.requires_grad or any(w.requires_grad for w in subject.weights.values()):
        return "more"
    return "masks" if masks.requires_grad else "nothing"


def _chunking(
    subject: Transformer,
    tokens: Int[Tensor, "batch pos"],
    masks: Float[Tensor, "..."],
    wanted: str,
    memory_limit: int | None,
) -> tuple[int, int, bool]:
    """Masks a chunk, the numbers of one, and whether chunks are computed again for gradients."""
    n_masks = len(masks) if masks.ndim > 1 else 1
    batch, pos = tokens.shape
    size = Footprint(subject, pos)
    numbers = batch * (size.recorded if wanted == "more" else size.masked(grad=wanted == "masks"))
    largest = batch * max(pos * subject.config.d_mlp, size.writers)
    together = at_once(subject, numbers, memory_limit)
    chunk = at_once(subject, numbers, memory_limit, largest=largest)
    return chunk, numbers, wanted != "nothing" and n_masks > together


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
    # On a GPU the question would wait for all that is under way.
    if masks.device.type == "cpu" and masks.isnan().any():
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
