"""Automatic circuit discovery by greedy removal (Conmy et al. 2023), at many thresholds at once.

1. Edges are visited in reverse topological order, which is the edge order backwards. An edge is
   removed, and from then on carries its writer's corrupted output, if that raises the loss by no
   more than the threshold.
2. Thresholds that have decided alike so far share one row, a mask over the edges: there is one row
   at first, and a visit splits a row when its thresholds disagree. No two rows are ever equal, so
   no work is done twice.
3. A visit computes only what follows the visited edge: below it every edge is still in place, and
   the values are those of the clean run. In its layer only the component that reads it changes, or
   all heads where they are coupled. From there on it is a masked run that is resumed.
4. Where all that leaves a component is removed, what enters it cannot matter; nor can an edge
   whose writer does not change. Such edges are removed unseen.
5. On large graphs some edges alone may be visited: the best by EAP-IG, or named ones. The others
   stay in place, and rank below them in EAP-IG's order.

An edge's score is the largest threshold it survives, 0 if none. The loss is measured from the clean
run where it is a distance (kl, l1), as published: removal is then judged by what it changes, not by
whether it happens to help. Prompts that do not fit in memory go in parts, whose clean and corrupted
runs are then made anew at every visit. The tests compare decisions with those of a search by plain
masked runs.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.engine.masked import head_outputs, head_vectors, mlp_outputs, resumed_logits
from graphcircuits.engine.memory import Footprint, at_once, keep_freed_memory
from graphcircuits.graph import Block
from graphcircuits.methods.prepare import Progress, Stop, for_scoring, from_clean_run, prepare
from graphcircuits.methods.shortlist import shortlist
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

THRESHOLDS = tuple(10 ** (-5 + 6 * step / 15) for step in range(16))
"""From 1e-5 to 10, evenly spaced in logarithm."""


@torch.no_grad()
def acdc(
    subject: Transformer,
    pairs: Pairs,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    top: int | None = None,
    edges: Sequence[str] | None = None,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, " edge"]:
    """The largest threshold that each edge survives, 0 if none.

    Thresholds are rises of the mean loss, any number of them, each above 0. Only the `top` best
    edges by EAP-IG, or the named `edges`, are visited where either is given. Stopped early, the
    edges not yet visited survive all. Memory stays below `memory_limit` bytes where one row and one
    prompt allow it.
    """
    ordered = _checked(thresholds)
    if ordered[0] == 0:
        raise ValueError("thresholds must be above 0, got 0; acdc_circuit takes a threshold of 0.")
    tested = shortlist(subject, pairs, top, edges, memory_limit)
    chosen = None if tested is None else tested.edges
    rows = _search(subject, pairs, ordered, memory_limit, progress, chosen)
    largest = torch.tensor([ordered[high - 1] for _, high in rows.spans], dtype=torch.float64)
    scores = largest.to(rows.masks)[:, None].where(rows.masks > 0, 0.0).amax(0)
    return scores if tested is None else tested.completed(scores, tested.below)


@torch.no_grad()
def acdc_circuit(
    subject: Transformer,
    pairs: Pairs,
    *,
    threshold: float,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> Circuit:
    """The edges that survive one threshold; those not yet visited too, if stopped early."""
    ordered = _checked([threshold])
    rows = _search(subject, pairs, ordered, memory_limit, progress)
    return Circuit.from_mask(subject.graph, rows.masks[0].cpu() > 0)


def _checked(thresholds: Sequence[float]) -> list[float]:
    bad = [value for value in thresholds if math.isnan(value) or value < 0]
    if bad or len(thresholds) == 0:
        raise ValueError(f"thresholds must be numbers from 0, got {bad or 'none'}.")
    return sorted(set(thresholds))


@dataclass(frozen=True)
class _Rows:
    """The circuits so far, one in each row."""

    spans: list[tuple[int, int]]
    """The thresholds of each row, as a range of the ordered ones."""
    losses: Float[Tensor, " row"]
    masks: Float[Tensor, "row edge"]

    def decided(
        self, edge: int, losses: Float[Tensor, " row"], thresholds: list[float]
    ) -> tuple["_Rows", list[int]]:
        """The rows once an edge is removed wherever its loss rises by at most the threshold.

        `losses` are those without the edge. With the rows come those that they were made of.
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
        if not any(removed):
            return self, origins
        cut = torch.tensor(removed, device=losses.device)
        masks = self.masks[origins]
        masks[:, edge].masked_fill_(cut, 0.0)
        return _Rows(spans, losses[origins].where(cut, self.losses[origins]), masks), origins


@dataclass(frozen=True)
class _Heads:
    """The heads of a layer, row by row."""

    q: Float[Tensor, "row head batch pos d_head"]
    k: Float[Tensor, "row kv batch pos d_head"]
    v: Float[Tensor, "row kv batch pos d_head"]
    written: Float[Tensor, "row head batch pos d_model"]
    """What they write, minus the corrupted outputs."""

    def of_rows(self, rows: list[int]) -> "_Heads":
        if rows == list(range(len(self.q))):
            return self
        return _Heads(*(getattr(self, each.name)[rows] for each in fields(self)))


@dataclass(frozen=True)
class _Reader:
    """A reader whose edges are visited."""

    block: Block
    index: int
    """Which reader of the block it is."""
    served: range
    """The writers that compute from it: a head or those of a group, or the layer's, if coupled."""
    leaving: Int[Tensor, " edge"]
    """The edges that leave them."""

    @property
    def first_edge(self) -> int:
        return self.block.first_edge + self.index * self.block.n_writers

    def mixing(self, masks: Float[Tensor, "row edge"]) -> Float[Tensor, "row 1 writer"]:
        """The masks of its edges."""
        return masks[:, None, self.first_edge : self.first_edge + self.block.n_writers]


def _readers(subject: Transformer) -> Iterator[_Reader]:
    """The readers in the order of a search."""
    graph = subject.graph
    writers = graph.edge_writers.to(subject.device)
    for block in reversed(graph.blocks):
        for index in reversed(range(block.n_readers)):
            served = graph.components_of(block.first_reader + index)
            if subject.config.coupled_heads and block.kind in "qkv":
                first = 1 + block.layer * graph.writers_per_layer
                served = range(first, first + graph.n_heads)
            leaving = (writers >= served.start) & (writers < served.stop)
            yield _Reader(block, index, served, leaving.nonzero().flatten())


@dataclass(frozen=True)
class _Chunk:
    """Prompts that run at once, and what stays the same for them throughout a search."""

    subject: Transformer
    pairs: Pairs
    clean_losses: Float[Tensor, " batch"]
    writers: Float[Tensor, "writer batch pos d_model"]
    """What cut edges carry: the corrupted outputs."""
    streams: Float[Tensor, "stream batch pos d_model"]
    """What readers read in the corrupted run."""
    differences: Float[Tensor, "writer batch pos d_model"]
    """Clean minus corrupted outputs."""

    @classmethod
    def of(cls, subject: Transformer, pairs: Pairs) -> "_Chunk":
        clean, corrupted = (subject.run(x) for x in (pairs.clean, pairs.corrupted))
        writers = corrupted.writers.permute(2, 0, 1, 3)
        differences = (clean.writers.permute(2, 0, 1, 3) - writers).contiguous()
        losses = pairs.loss(clean.logits)
        return cls(subject, pairs, losses, writers, corrupted.streams, differences)

    def logits_without(
        self,
        masks: Float[Tensor, "row edge"],
        heads: _Heads | None,
        rows_of_heads: Int[Tensor, " row"] | slice,
        reader: _Reader,
        writer: int,
    ) -> Float[Tensor, "row batch pos d_vocab_out"]:
        """Logits of some rows without one more edge."""
        subject, block, layer = self.subject, reader.block, reader.block.layer
        mixing = reader.mixing(masks).clone()
        mixing[..., writer] = 0
        read = self._read(block, mixing)
        if block.kind == "logits":
            return subject.unembed(read.squeeze(1))
        if heads is None:
            first = reader.served.start
            moved = [mlp_outputs(subject, read, layer) - self.writers[first : first + 1]]
        else:
            first = 1 + layer * subject.graph.writers_per_layer
            _, moved = self._reread(heads, rows_of_heads, read, reader)
        # Of the writers, those before `first` are the clean run's.
        known = self.differences[:first]
        return resumed_logits(
            subject, masks, self.writers, self.streams, block.stream + 1, moved, known
        )

    def heads(self, masks: Float[Tensor, "row edge"], block: Block) -> _Heads | None:
        """The heads of a block's layer under these masks; None where it is not they that read."""
        if block.kind not in "qkv":
            return None
        subject, vectors = self.subject, {}
        for each in subject.graph.blocks[4 * block.layer : 4 * block.layer + 3]:
            mixing = masks[:, each.edges].view(len(masks), each.n_readers, each.n_writers)
            read = self._read(each, mixing)
            vectors[each.kind] = head_vectors(subject, read, each.kind, block.layer)
        first = 1 + block.layer * subject.graph.writers_per_layer
        corrupted = self.writers[first : first + subject.config.n_heads]
        written = head_outputs(subject, vectors, block.layer) - corrupted
        return _Heads(**vectors, written=written)

    def updated(self, heads: _Heads, masks: Float[Tensor, "row edge"], reader: _Reader) -> _Heads:
        """The heads once all edges into one of their readers are decided."""
        read = self._read(reader.block, reader.mixing(masks))
        vector, moved = self._reread(heads, slice(None), read, reader)
        vectors = _replaced(getattr(heads, reader.block.kind), reader.index, vector)
        return replace(heads, written=torch.cat(moved, dim=1), **{reader.block.kind: vectors})

    def _read(
        self, block: Block, mixing: Float[Tensor, "row reader writer"]
    ) -> Float[Tensor, "row reader batch pos d_model"]:
        """What readers read below which no edge has been removed yet."""
        stream = self.streams[block.stream]
        known = self.differences[: block.n_writers].flatten(1)
        read = torch.addmm(stream.flatten(), mixing.flatten(0, 1), known)
        return read.view(*mixing.shape[:2], *stream.shape)

    def _reread(
        self,
        heads: _Heads,
        rows: Int[Tensor, " row"] | slice,
        read: Float[Tensor, "row 1 batch pos d_model"],
        reader: _Reader,
    ) -> tuple[Float[Tensor, "row 1 batch pos d_head"], list[Tensor]]:
        """The new vector of a q, k or v reader, and what the heads of its layer then write."""
        subject, served = self.subject, reader.served
        kind, layer, index = reader.block.kind, reader.block.layer, reader.index
        first = 1 + layer * subject.graph.writers_per_layer
        some = slice(served.start - first, served.stop - first)
        per_group = subject.config.heads_per_group
        groups = slice(some.start // per_group, (some.stop - 1) // per_group + 1)
        vectors = {"q": heads.q[rows, some], "k": heads.k[rows, groups], "v": heads.v[rows, groups]}
        vector = head_vectors(subject, read, kind, layer, slice(index, index + 1))
        at = index - (some.start if kind == "q" else groups.start)
        vectors[kind] = _replaced(vectors[kind], at, vector)
        out = head_outputs(subject, vectors, layer, some)
        moved = out - self.writers[served.start : served.stop]
        return vector, [heads.written[rows, : some.start], moved, heads.written[rows, some.stop :]]


def _replaced(
    vectors: Float[Tensor, "row reader batch pos d_head"],
    index: int,
    vector: Float[Tensor, "row 1 batch pos d_head"],
) -> Float[Tensor, "row reader batch pos d_head"]:
    if vectors.shape[1] == 1:
        return vector
    return torch.cat([vectors[:, :index], vector, vectors[:, index + 1 :]], dim=1)


@dataclass(frozen=True)
class _Prompts:
    """All prompts of a search, as many at a time as fit in memory."""

    subject: Transformer
    pairs: Pairs
    at_once: int
    rows: int
    """How many rows fit beside them."""

    @classmethod
    def of(
        cls, subject: Transformer, pairs: Pairs, n_thresholds: int, memory_limit: int | None
    ) -> "_Prompts":
        """There is at most one row for each threshold; it holds the heads of a layer."""
        config, size = subject.config, Footprint(subject, pairs.clean.shape[1])
        vectors = config.n_heads * config.d_model + 2 * config.n_groups * config.d_head
        held = size.pair + 2 * n_thresholds * pairs.clean.shape[1] * vectors
        row = size.masked(grad=False)
        prompts = min(len(pairs), at_once(subject, held + row, memory_limit))
        rows = at_once(subject, prompts * row, memory_limit, taken=prompts * held)
        return cls(subject, pairs, prompts, rows)

    @cached_property
    def whole(self) -> _Chunk | None:
        """All prompts, where they fit at once: then it is made once for the whole search."""
        return _Chunk.of(self.subject, self.pairs) if self.at_once == len(self.pairs) else None

    def chunks(self) -> Iterator[_Chunk]:
        if self.whole is not None:
            yield self.whole
            return
        for pairs in self.pairs.split(self.at_once):
            yield _Chunk.of(self.subject, pairs)

    def losses_without(
        self, rows: _Rows, reader: _Reader, writer: int, heads: _Heads | None
    ) -> Float[Tensor, " row"]:
        """The loss of every row without one more edge; the same where the edge cannot matter.

        The rows' `heads` are given where all prompts are one chunk.
        """
        alive = torch.ones_like(rows.losses, dtype=torch.bool)
        if reader.served:
            alive = rows.masks[:, reader.leaving].any(1)
        losses = rows.losses.masked_fill(alive, 0.0)
        alive = alive.nonzero().flatten()
        for chunk in self.chunks() if len(alive) else ():
            for some in alive.split(self.rows):
                masks, current, rows_of_heads = rows.masks[some], heads, some
                if self.whole is None:
                    current = chunk.heads(masks, reader.block)
                if self.whole is None or len(some) == len(rows.spans):
                    rows_of_heads = slice(None)
                logits = chunk.logits_without(masks, current, rows_of_heads, reader, writer)
                losses[some] += chunk.pairs.loss(logits).double().sum(-1) / len(self.pairs)
        if losses.isnan().any():
            name = self.subject.graph.edge_name(reader.first_edge + writer)
            raise ValueError(f"the loss is NaN without {name}; look at the loss and the logits.")
        return losses


def _search(
    subject: Transformer,
    pairs: Pairs,
    thresholds: list[float],
    memory_limit: int | None,
    progress: Progress | None,
    edges: Int[Tensor, " edge"] | None = None,
) -> _Rows:
    """The rows once all edges are decided, or some of them."""
    subject = for_scoring(subject)
    pairs = prepare(subject, pairs, memory_limit)
    pairs = from_clean_run(subject, pairs, memory_limit)
    prompts = _Prompts.of(subject, pairs, len(thresholds), memory_limit)
    keep_freed_memory()
    loss, whole = 0.0, prompts.whole
    changes = torch.zeros(subject.graph.n_writers, dtype=torch.bool)
    for chunk in prompts.chunks():
        loss += chunk.clean_losses.double().sum().item()
        changes |= chunk.differences.flatten(1).any(1).cpu()
    like = subject.weights["W_E"]
    losses = like.new_full((1,), loss / len(pairs), dtype=torch.float64)
    rows = _Rows([(0, len(thresholds))], losses, like.new_ones(1, subject.graph.n_edges))
    done, heads = 0, None
    chosen = set(range(subject.graph.n_edges) if edges is None else edges.tolist())
    for reader in _readers(subject):
        if reader.block.kind not in "qkv":
            heads = None
        visited = [w for w in range(reader.block.n_writers) if reader.first_edge + w in chosen]
        if not visited:
            continue
        if whole is not None and heads is None:
            heads = whole.heads(rows.masks, reader.block)
        for writer in reversed(visited):
            losses = rows.losses
            if changes[writer]:
                losses = prompts.losses_without(rows, reader, writer, heads)
            rows, origins = rows.decided(reader.first_edge + writer, losses, thresholds)
            heads = heads and heads.of_rows(origins)
            done += 1
            try:
                if progress is not None:
                    progress(done, len(chosen))
            except Stop:
                return rows
        if whole is not None and heads is not None:
            heads = whole.updated(heads, rows.masks, reader)
    return rows
