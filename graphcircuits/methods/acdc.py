"""Automatic circuit discovery by greedy removal (Conmy et al. 2023), at many thresholds at once.

1. Edges are visited in reverse topological order, which is the edge order backwards. An edge is
   removed, and from then on carries its writer's corrupted output, if that raises the loss by no
   more than the threshold.
2. Thresholds that have decided alike so far share one row, a mask over the edges: there is one row
   at first, and a visit splits a row when its thresholds disagree. No two rows are ever equal, so
   no work is done twice.
3. A visit computes only what follows the visited edge: below it every edge is still in place, and
   the values are those of the clean run. In its layer only the component that reads it changes.
4. Where all that leaves a component is removed, what enters it cannot matter; nor can an edge
   whose writer does not change. Such edges are removed unseen.

An edge's score is the largest threshold it survives, 0 if none. The loss is measured from the clean
run where it is a distance (kl, l1), as published: removal is then judged by what it changes, not by
whether it happens to help.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.graph import Circuit, ComponentGraph
from graphcircuits.intervene import MEMORY_LIMIT, keep_freed_memory
from graphcircuits.layers import attend
from graphcircuits.methods.prepare import Progress, Stop, from_clean_run, prepare, settled
from graphcircuits.task import Pairs
from graphcircuits.transformer import Run, Transformer

THRESHOLDS = tuple(10 ** (-5 + 6 * step / 15) for step in range(16))
"""From 1e-5 to 10, evenly spaced in logarithm."""


@torch.no_grad()
def acdc(
    subject: Transformer,
    graph: ComponentGraph,
    pairs: Pairs,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    memory_limit: int = MEMORY_LIMIT,
    progress: Progress | None = None,
) -> Float[Tensor, " edge"]:
    """The largest threshold that each edge survives, 0 if none.

    Thresholds are rises of the mean loss, any number of them, each above 0. Stopped early, the
    edges not yet visited survive all. Activations stay below `memory_limit` bytes where one row
    allows it.
    """
    ordered = _checked(thresholds)
    if ordered[0] == 0:
        raise ValueError("thresholds must be above 0, got 0; acdc_circuit takes a threshold of 0.")
    rows = _search(subject, graph, pairs, ordered, memory_limit, progress)
    largest = torch.tensor([ordered[high - 1] for _, high in rows.spans], dtype=torch.float64)
    return largest.to(rows.masks)[:, None].where(rows.masks > 0, 0.0).amax(0)


@torch.no_grad()
def acdc_circuit(
    subject: Transformer,
    graph: ComponentGraph,
    pairs: Pairs,
    *,
    threshold: float,
    memory_limit: int = MEMORY_LIMIT,
    progress: Progress | None = None,
) -> Circuit:
    """The edges that survive one threshold; those not yet visited too, if stopped early."""
    ordered = _checked([threshold])
    rows = _search(subject, graph, pairs, ordered, memory_limit, progress)
    return Circuit.from_mask(graph, rows.masks[0].cpu() > 0)


def _checked(thresholds: Sequence[float]) -> list[float]:
    bad = [value for value in thresholds if math.isnan(value) or value < 0]
    if bad or len(thresholds) == 0:
        raise ValueError(f"thresholds must be numbers from 0, got {bad or 'none'}.")
    return sorted(set(thresholds))


@dataclass(frozen=True)
class _Rows:
    """The circuits found so far, one a row, and the values that a visit of an edge needs."""

    spans: list[tuple[int, int]]
    """The thresholds of each row, as a range of the ordered ones."""
    losses: Float[Tensor, " row"]
    masks: Float[Tensor, "row edge"]
    alive: Float[Tensor, " row"]
    """1 where something leaves the component that reads."""
    read: Float[Tensor, "row batch pos d_model"]
    """What the reader reads, its removed edges being corrupted."""
    q: Float[Tensor, "row head batch pos d_head"]
    k: Float[Tensor, "row kv batch pos d_head"]
    v: Float[Tensor, "row kv batch pos d_head"]
    heads: Float[Tensor, "row head batch pos d_model"]
    """What the heads of the reader's layer write, minus the corrupted outputs."""

    def decide(
        self, edge: int, change: Tensor, losses: Float[Tensor, " row"], thresholds: list[float]
    ) -> "_Rows":
        """The rows once an edge is removed wherever its loss rises by at most the threshold.

        `losses` are those without the edge, `change` is what the read loses with it.
        """
        rises = (losses - self.losses).tolist()
        spans, origins, removed = [], [], []
        for row, ((low, high), rise) in enumerate(zip(self.spans, rises, strict=True)):
            split = bisect_left(thresholds, rise, low, high)
            for span, cut in (((low, split), False), ((split, high), True)):
                if span[0] < span[1]:
                    spans.append(span)
                    origins.append(row)
                    removed.append(cut)
        rows = self if len(origins) == len(self.spans) else self._taken(origins)
        cut = torch.tensor(removed, device=losses.device)
        if not any(removed):
            return replace(rows, spans=spans)
        masks = rows.masks.clone()
        masks[:, edge].masked_fill_(cut, 0.0)
        return replace(
            rows,
            spans=spans,
            losses=losses[origins].where(cut, rows.losses),
            masks=masks,
            read=(rows.read - change).where(cut[:, None, None, None], rows.read),
        )

    def _taken(self, origins: list[int]) -> "_Rows":
        names = [each.name for each in fields(self) if each.name != "spans"]
        return replace(self, **{name: getattr(self, name)[origins] for name in names})


@dataclass(frozen=True)
class _Setting:
    """What stays the same throughout a search."""

    pairs: Pairs
    clean: Run
    corrupted: Run
    memory_limit: int
    differences: Float[Tensor, "writer batch pos d_model"]
    """Clean minus corrupted outputs."""
    outgoing: list[Tensor]
    """The edges that leave each writer."""
    changes: list[bool]
    """Whether each writer differs between the runs at all."""

    @property
    def subject(self) -> Transformer:
        return self.clean.subject

    def corrupted_output(self, first: int, last: int) -> Float[Tensor, "writer batch pos d_model"]:
        return self.corrupted.writers[:, :, first:last].permute(2, 0, 1, 3)


def _search(
    subject: Transformer,
    graph: ComponentGraph,
    pairs: Pairs,
    thresholds: list[float],
    memory_limit: int,
    progress: Progress | None,
) -> _Rows:
    subject = settled(subject)
    pairs = from_clean_run(subject, prepare(subject, graph, pairs))
    clean, corrupted = subject.run(pairs.clean), subject.run(pairs.corrupted)
    differences = (clean.writers - corrupted.writers).permute(2, 0, 1, 3).contiguous()
    sources = graph.edge_sources
    outgoing = [(sources == writer).nonzero().flatten() for writer in range(graph.n_writers)]
    changes = differences.flatten(1).any(1).tolist()
    setting = _Setting(pairs, clean, corrupted, memory_limit, differences, outgoing, changes)
    keep_freed_memory()
    rows = _first_row(setting, len(thresholds))
    done = 0
    for reader in reversed(range(graph.n_readers)):
        rows = _at_reader(setting, rows, reader)
        for writer in reversed(range(int(graph.reads[reader]))):
            losses = _losses_without(setting, rows, reader, writer)
            edge = int(graph.offsets[reader]) + writer
            rows = rows.decide(edge, differences[writer], losses, thresholds)
            done += 1
            try:
                if progress is not None:
                    progress(done, graph.n_edges)
            except Stop:
                return rows
        if graph.reader_kinds[reader] in "qkv":
            rows = _with_new_heads(setting, rows, reader)
    return rows


def _first_row(setting: _Setting, n_thresholds: int) -> _Rows:
    """All edges in place, for all thresholds."""
    clean, subject, like = setting.clean, setting.subject, setting.differences
    return _Rows(
        spans=[(0, n_thresholds)],
        losses=setting.pairs.loss(clean.logits).mean().double()[None],
        masks=like.new_ones(1, subject.graph.n_edges),
        alive=like.new_ones(1),
        read=clean.streams[-1:],
        **_clean_heads(setting, subject.config.n_layers - 1, 1),
    )


def _clean_heads(setting: _Setting, layer: int, rows: int) -> dict[str, Tensor]:
    """q, k, v and outputs of a layer's heads in the clean run, for every row."""
    graph, states = setting.subject.graph, setting.clean.states
    first = 1 + layer * graph.writers_per_layer
    found = {name: getattr(states, name)[layer].permute(2, 0, 1, 3) for name in "qkv"}
    found["heads"] = setting.differences[first : first + graph.n_heads]
    return {name: values.expand(rows, *values.shape) for name, values in found.items()}


def _at_reader(setting: _Setting, rows: _Rows, reader: int) -> _Rows:
    """The rows with the values of the clean run at a reader none of whose edges is decided."""
    graph = setting.subject.graph
    stream = setting.clean.streams[int(graph.reader_stream[reader])]
    components = graph.components_of(reader)
    alive = torch.ones_like(rows.alive)
    if components:
        leaving = torch.cat([setting.outgoing[writer] for writer in components])
        alive = rows.masks[:, leaving.to(rows.masks.device)].amax(1)
    rows = replace(rows, alive=alive, read=stream.expand(len(rows.spans), *stream.shape))
    if graph.reader_kinds[reader] == "mlp":
        layer = int(graph.reader_layer[reader])
        rows = replace(rows, **_clean_heads(setting, layer, len(rows.spans)))
    return rows


def _losses_without(
    setting: _Setting, rows: _Rows, reader: int, writer: int
) -> Float[Tensor, " row"]:
    """The loss of every row without one more edge; the same where the edge cannot matter."""
    losses = rows.losses.clone()
    alive = rows.alive.nonzero().flatten()
    matters = setting.changes[writer] and len(alive)
    for some in alive.split(_rows_at_once(setting)) if matters else ():
        read = rows.read[some] - setting.differences[writer]
        logits = _logits_from(setting, rows, some, reader, read)
        losses[some] = setting.pairs.loss(logits).mean(-1).double()
    if losses.isnan().any():
        name = setting.subject.graph.edge_name(int(setting.subject.graph.offsets[reader]) + writer)
        raise ValueError(f"the loss is NaN without {name}; look at the loss and the logits.")
    return losses


def _logits_from(
    setting: _Setting,
    rows: _Rows,
    some: Int[Tensor, " part"],
    reader: int,
    read: Float[Tensor, "part batch pos d_model"],
) -> Float[Tensor, "part batch pos d_vocab_out"]:
    """Logits of some rows when a reader reads this."""
    subject, graph = setting.subject, setting.subject.graph
    kind, layer = graph.reader_kinds[reader], int(graph.reader_layer[reader])
    if kind == "logits":
        return subject.unembed(read)
    first = 1 + layer * graph.writers_per_layer
    mlp = first + graph.n_heads
    masks = rows.masks[some]
    if kind == "mlp":
        moved = _mlp_difference(setting, read[:, None], layer)
        return _finish(setting, masks, mlp, [moved], 2 * layer + 2)
    served = graph.components_of(reader)
    low, high = served.start - first, served.stop - first
    changed = _head_differences(setting, rows, some, reader, _vector(setting, reader, read))
    written = [rows.heads[some, :low], changed, rows.heads[some, high:]]
    return _finish(setting, masks, first, written, 2 * layer + 1)


def _finish(
    setting: _Setting,
    masks: Float[Tensor, "part edge"],
    fixed: int,
    written: list[Float[Tensor, "part _ batch pos d_model"]],
    stream: int,
) -> Float[Tensor, "part batch pos d_vocab_out"]:
    """Logits from a stream on: the first `fixed` writers are clean, the next ones have moved."""
    subject, graph = setting.subject, setting.subject.graph
    shape = setting.differences.shape[1:]
    # With room for all that follow: to append is to copy once.
    moved = masks.new_empty(len(masks), graph.n_writers - fixed, *shape)
    done = sum(each.shape[1] for each in written)
    torch.cat(written, dim=1, out=moved[:, :done])
    known = setting.differences[:fixed].flatten(1)
    while True:
        layer, is_mlp = divmod(stream, 2)
        reader = layer * graph.readers_per_layer + (graph.readers_per_layer - 1) * is_mlp
        last = stream == 2 * graph.n_layers
        count = 1 if last or is_mlp else graph.readers_per_layer - 1
        start, reads = int(graph.offsets[reader]), int(graph.reads[reader])
        block = masks[:, start : start + count * reads].unflatten(1, (count, reads))
        base = setting.corrupted.streams[stream].flatten()
        read = torch.addmm(base, block[:, :, :fixed].flatten(0, 1), known)
        read = read.unflatten(0, block.shape[:2])
        if reads > fixed:
            read.baddbmm_(block[:, :, fixed:], moved[:, : reads - fixed].flatten(2))
        read = read.unflatten(2, shape)
        if last:
            return subject.unembed(read.squeeze(1))
        if is_mlp:
            out = _mlp_difference(setting, read, layer)
        else:
            out = _attention_difference(setting, read, layer)
        moved[:, done : done + out.shape[1]] = out
        done += out.shape[1]
        stream += 1


def _mlp_difference(
    setting: _Setting, read: Float[Tensor, "part 1 batch pos d_model"], layer: int
) -> Float[Tensor, "part 1 batch pos d_model"]:
    """What an MLP writes, minus its corrupted output."""
    writer = (layer + 1) * setting.subject.graph.writers_per_layer
    *_, hidden = setting.subject.mlp(read, layer)
    out = hidden @ setting.subject.weights["W_out"][layer]
    return out - setting.corrupted_output(writer, writer + 1)


def _attention_difference(
    setting: _Setting, read: Float[Tensor, "part reader batch pos d_model"], layer: int
) -> Float[Tensor, "part head batch pos d_model"]:
    """What the heads of a layer write, minus their corrupted outputs."""
    subject, config = setting.subject, setting.subject.config
    read = subject.normalize("attn_norm", read, layer)
    reads = read.split((config.n_heads, config.n_groups, config.n_groups), dim=1)
    vectors = []
    for name, each in zip("QKV", reads, strict=True):
        vector = each.flatten(2, 3) @ subject.weights[f"W_{name}"][layer]
        if config.biases:
            vector = vector + subject.weights[f"b_{name}"][layer][:, None]
        vector = vector.unflatten(2, each.shape[2:4])
        vectors.append(subject.expand_groups(vector, dim=1))
    return _written(setting, attend(config, *vectors), layer, 0)


def _written(
    setting: _Setting, z: Float[Tensor, "part head batch pos d_head"], layer: int, head: int
) -> Float[Tensor, "part head batch pos d_model"]:
    """What heads from `head` on write, minus their corrupted outputs."""
    last = head + z.shape[1]
    W_O = setting.subject.weights["W_O"][layer, head:last]
    first = 1 + layer * setting.subject.graph.writers_per_layer
    out = (z.flatten(2, 3) @ W_O).unflatten(2, z.shape[2:4])
    return out - setting.corrupted_output(first + head, first + last)


def _vector(
    setting: _Setting, reader: int, read: Float[Tensor, "part batch pos d_model"]
) -> Float[Tensor, "part 1 batch pos d_head"]:
    """The queries, keys or values that one reader makes of what it reads."""
    subject, graph = setting.subject, setting.subject.graph
    layer, index = int(graph.reader_layer[reader]), _index_in_kind(graph, reader)
    name = graph.reader_kinds[reader].upper()
    read = subject.normalize("attn_norm", read, layer)
    vector = read @ subject.weights[f"W_{name}"][layer, index]
    bias = subject.bias(f"b_{name}", layer)
    return (vector if bias is None else vector + bias[index])[:, None]


def _head_differences(
    setting: _Setting,
    rows: _Rows,
    some: Int[Tensor, " part"] | slice,
    reader: int,
    vector: Float[Tensor, "part 1 batch pos d_head"],
) -> Float[Tensor, "part served batch pos d_model"]:
    """What the heads behind a reader write with a new vector, minus their corrupted outputs."""
    subject, graph = setting.subject, setting.subject.graph
    layer, kind = int(graph.reader_layer[reader]), graph.reader_kinds[reader]
    first = graph.components_of(reader).start - 1 - layer * graph.writers_per_layer
    count = len(graph.components_of(reader))
    group = first // subject.config.heads_per_group
    found = {
        "q": rows.q[some, first : first + count],
        "k": rows.k[some, group : group + 1],
        "v": rows.v[some, group : group + 1],
    }
    found[kind] = vector
    by_head = [found[name].expand(-1, count, -1, -1, -1) for name in "qkv"]
    return _written(setting, attend(subject.config, *by_head), layer, first)


def _with_new_heads(setting: _Setting, rows: _Rows, reader: int) -> _Rows:
    """The rows with q, k or v and the outputs of the heads behind a reader brought up to date."""
    graph = setting.subject.graph
    kind, index = graph.reader_kinds[reader], _index_in_kind(graph, reader)
    vector = _vector(setting, reader, rows.read)
    changed = _head_differences(setting, rows, slice(None), reader, vector)
    served = graph.components_of(reader)
    first = 1 + int(graph.reader_layer[reader]) * graph.writers_per_layer
    low, high = served.start - first, served.stop - first
    old = getattr(rows, kind)
    vectors = torch.cat([old[:, :index], vector, old[:, index + 1 :]], dim=1)
    heads = torch.cat([rows.heads[:, :low], changed, rows.heads[:, high:]], dim=1)
    return replace(rows, heads=heads, **{kind: vectors})


def _index_in_kind(graph: ComponentGraph, reader: int) -> int:
    """The place of a q, k or v reader among those of its kind in its layer."""
    slot = reader % graph.readers_per_layer
    return slot if slot < graph.n_heads else (slot - graph.n_heads) % graph.n_groups


def _rows_at_once(setting: _Setting) -> int:
    """As many as fit in memory: unlike masked runs, visits gain nothing from smaller tensors."""
    subject, config = setting.subject, setting.subject.config
    batch, pos = setting.pairs.clean.shape
    readers = subject.graph.readers_per_layer
    attention = readers * 3 * (config.d_model + config.d_head) + 4 * config.n_heads * pos
    writers = 2 * subject.graph.n_writers * config.d_model
    numbers = batch * pos * (attention + writers + 4 * config.d_mlp + 3 * config.d_vocab_out)
    return max(1, setting.memory_limit // (numbers * subject.dtype.itemsize))
