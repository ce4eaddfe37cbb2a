"""The component graph of a transformer, and the one order of its edges.

1. `ComponentGraph` lists writers and readers in topological order. Writers: `input`, then a layer
   at a time its heads `a0.h0`, `a0.h1`, ... and its MLP `m0`. Readers: a layer at a time the
   queries of all heads `a0.h0<q>`, ..., the keys `a0.h0<k>`, ..., the values `a0.h0<v>`, ..., the
   MLP `m0`; last `logits`. With grouped keys one reader serves a group of heads and is named after
   the group: `a0.g0<k>`, `a0.g0<v>`.
2. Every reader reads a prefix of the writers, so edges are numbered reader by reader and writer by
   writer: edge = offsets[reader] + writer. Every tensor with an `edge` axis uses that order.
3. Names are a view: made from edge numbers, and parsed to them, when they are asked for.

The graph knows sizes, not weights. Nothing loops over edges until names are asked for.

Axis names used in every signature of the package: batch, pos, d_model, head, d_head, kv (group of
heads that share keys and values), node, edge, head_edge, feature, mask, layer, writer, reader,
d_mlp, d_vocab, d_vocab_out.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property

import torch
from jaxtyping import Int, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """Readers that follow each other and read the same writers, the first `n_writers`.

    Their edges follow each other too, reader by reader and writer by writer.
    """

    kind: str
    """`q`, `k`, `v`, `mlp` or `logits`; `qkv` where those three are taken together."""
    layer: int
    stream: int
    """The sum they read: 2 layer for q, k, v, 2 layer + 1 for the MLP; logits last."""
    first_reader: int
    n_readers: int
    n_writers: int
    first_edge: int
    head_layers: int
    """Layers whose heads are read; of MLPs they read those of all layers below `layer`."""

    @property
    def readers(self) -> slice:
        return slice(self.first_reader, self.first_reader + self.n_readers)

    @property
    def edges(self) -> slice:
        return slice(self.first_edge, self.first_edge + self.n_readers * self.n_writers)


@dataclass(frozen=True)
class ComponentGraph:
    """Sizes of a transformer's component graph; everything else is derived from them.

    Args:
        n_layers: Layers of the transformer.
        n_heads: Attention heads of a layer.

    Example:
        >>> import graphcircuits as gc
        >>> graph = gc.ComponentGraph(2, 4)
        >>> graph.n_edges
        110
        >>> graph.edge_index("m0->logits")
        104

    See docs/architecture.md, and Tan et al. 2026, A Transformer as a Component-Level DAG.
    """

    n_layers: int
    n_heads: int
    n_kv_heads: int | None = field(default=None, kw_only=True)
    """Groups of heads that share keys and values; None means every head has its own."""
    parallel: bool = field(default=False, kw_only=True)
    """Attention and MLP of a layer read the same stream: the MLP skips its own layer's heads."""

    def __post_init__(self) -> None:
        if self.n_kv_heads is None:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if self.n_layers < 1 or self.n_heads < 1:
            raise ValueError(
                "n_layers and n_heads must be at least 1, "
                f"got n_layers={self.n_layers}, n_heads={self.n_heads}."
            )
        if self.n_groups < 1 or self.n_heads % self.n_groups:
            raise ValueError(
                f"n_kv_heads must divide n_heads={self.n_heads}, got {self.n_kv_heads}."
            )

    # Sizes

    @property
    def in_words(self) -> str:
        """Its sizes, such as `2 layers x 4 heads`."""
        groups = "" if self.n_groups == self.n_heads else f" ({self.n_groups} keys)"
        parallel = ", attention and MLP in parallel" if self.parallel else ""
        return f"{self.n_layers} layers x {self.n_heads} heads{groups}{parallel}"

    @property
    def n_groups(self) -> int:
        """Key readers (and value readers) of a layer."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def writers_per_layer(self) -> int:
        return self.n_heads + 1

    @property
    def readers_per_layer(self) -> int:
        return self.n_heads + 2 * self.n_groups + 1

    @property
    def n_writers(self) -> int:
        return 1 + self.n_layers * self.writers_per_layer

    @property
    def n_readers(self) -> int:
        return self.n_layers * self.readers_per_layer + 1

    @property
    def n_nodes(self) -> int:
        """Reads and writes counted apart, as in the paper."""
        return self.n_writers + self.n_readers

    @property
    def n_edges(self) -> int:
        # Counted without tensors: files of unknown origin are checked against it first.
        layers = self.n_layers
        before = layers + self.writers_per_layer * (layers * (layers - 1) // 2)
        own_heads = 0 if self.parallel else layers * self.n_heads
        return self.readers_per_layer * before + own_heads + self.n_writers

    # Readers and writers

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The readers by layer and kind: each layer's q, k, v and MLP, and `logits`."""
        groups = self.n_groups
        return self._table({"q": self.n_heads, "k": groups, "v": groups, "mlp": 1})

    @cached_property
    def stream_blocks(self) -> tuple[Block, ...]:
        """The readers by stream: those of each layer's heads, its MLP, and `logits`."""
        return self._table({"qkv": self.readers_per_layer - 1, "mlp": 1})

    def _table(self, counts: dict[str, int]) -> tuple[Block, ...]:
        blocks: list[Block] = []
        reader = edge = 0
        layers = [(layer, kind) for layer in range(self.n_layers) for kind in counts]
        for layer, kind in [*layers, (self.n_layers, "logits")]:
            stream, count = 2 * layer + (kind == "mlp"), counts.get(kind, 1)
            head_layers = layer + (kind == "mlp" and not self.parallel)
            reads = 1 + layer + head_layers * self.n_heads
            blocks.append(Block(kind, layer, stream, reader, count, reads, edge, head_layers))
            reader += count
            edge += count * reads
        return tuple(blocks)

    def _by_reader(self, values: Iterable[int]) -> Int[Tensor, " reader"]:
        """Values of the blocks, once for each reader."""
        counts = torch.tensor([block.n_readers for block in self.blocks])
        return torch.tensor(list(values)).repeat_interleave(counts)

    @cached_property
    def reads(self) -> Int[Tensor, " reader"]:
        """How many writers each reader sees: always the first ones."""
        return self._by_reader(block.n_writers for block in self.blocks)

    @cached_property
    def offsets(self) -> Int[Tensor, " reader"]:
        """The first edge of each reader."""
        return self.reads.cumsum(0) - self.reads

    @cached_property
    def writer_layer(self) -> Int[Tensor, " writer"]:
        """-1 for `input`."""
        layers = torch.arange(self.n_layers).repeat_interleave(self.writers_per_layer)
        return torch.cat([torch.tensor([-1]), layers])

    @cached_property
    def reader_layer(self) -> Int[Tensor, " reader"]:
        """n_layers for `logits`."""
        return self._by_reader(block.layer for block in self.blocks)

    @cached_property
    def reader_stream(self) -> Int[Tensor, " reader"]:
        """The sum each reader reads, as in `Block.stream`."""
        return self._by_reader(block.stream for block in self.blocks)

    @cached_property
    def stream_reads(self) -> Int[Tensor, " stream"]:
        """How many writers each stream sums."""
        return torch.tensor([block.n_writers for block in self.stream_blocks])

    @cached_property
    def reader_kinds(self) -> tuple[str, ...]:
        """`q`, `k`, `v`, `mlp` or `logits`, by reader."""
        return tuple(block.kind for block in self.blocks for _ in range(block.n_readers))

    @cached_property
    def head_slots(self) -> Int[Tensor, "head 3"]:
        """The query, key and value reader of each head, counted from the first of its layer."""
        heads = torch.arange(self.n_heads)
        keys = self.n_heads + heads // (self.n_heads // self.n_groups)
        return torch.stack([heads, keys, keys + self.n_groups], dim=1)

    def components_of(self, reader: int) -> range:
        """The writers that compute from this reader: all heads of a group, none for `logits`."""
        layer, slot = divmod(reader, self.readers_per_layer)
        first = 1 + layer * self.writers_per_layer
        if layer == self.n_layers:
            return range(0)
        if slot < self.n_heads:
            return range(first + slot, first + slot + 1)
        if slot == self.readers_per_layer - 1:
            return range(first + self.n_heads, first + self.writers_per_layer)
        heads_per_group = self.n_heads // self.n_groups
        start = first + (slot - self.n_heads) % self.n_groups * heads_per_group
        return range(start, start + heads_per_group)

    def served(self, block: Block) -> slice:
        """The writers that compute from one of `stream_blocks`: a layer's heads, or its MLP."""
        mlp = (block.layer + 1) * self.writers_per_layer
        return slice(mlp, mlp + 1) if block.kind == "mlp" else slice(mlp - self.n_heads, mlp)

    @cached_property
    def writer_names(self) -> tuple[str, ...]:
        heads = range(self.n_heads)
        layers = [[f"a{n}.h{h}" for h in heads] + [f"m{n}"] for n in range(self.n_layers)]
        return ("input", *(name for layer in layers for name in layer))

    @cached_property
    def reader_names(self) -> tuple[str, ...]:
        letter = "h" if self.n_groups == self.n_heads else "g"
        names = []
        for layer in range(self.n_layers):
            names += [f"a{layer}.h{head}<q>" for head in range(self.n_heads)]
            names += [f"a{layer}.{letter}{g}<{kv}>" for kv in "kv" for g in range(self.n_groups)]
            names.append(f"m{layer}")
        return (*names, "logits")

    # Edges

    @cached_property
    def edge_readers(self) -> Int[Tensor, " edge"]:
        """The reader of each edge."""
        return torch.arange(self.n_readers).repeat_interleave(self.reads)

    @cached_property
    def edge_writers(self) -> Int[Tensor, " edge"]:
        """The writer of each edge."""
        starts = self.offsets.repeat_interleave(self.reads)
        return torch.arange(self.n_edges).sub_(starts)

    @cached_property
    def edge_names(self) -> list[str]:
        prefixes = [f"{writer}->" for writer in self.writer_names]
        return [
            prefix + reader
            for reader, count in zip(self.reader_names, self.reads.tolist(), strict=True)
            for prefix in prefixes[:count]
        ]

    def edge_name(self, edge: int) -> str:
        if not 0 <= edge < self.n_edges:
            raise IndexError(f"edge must be in 0..{self.n_edges - 1}, got {edge}.")
        reader = bisect_right(self._starts, edge) - 1
        return f"{self.writer_names[edge - self._starts[reader]]}->{self.reader_names[reader]}"

    @cached_property
    def _starts(self) -> list[int]:
        return self.offsets.tolist()

    def ends(
        self, edges: Int[Tensor, " chosen"]
    ) -> tuple[Int[Tensor, " chosen"], Int[Tensor, " chosen"]]:
        """The writers and the readers of some edges, without a table of all edges."""
        readers = torch.searchsorted(self.offsets, edges, right=True) - 1
        return edges - self.offsets[readers], readers

    def names_of(self, edges: Int[Tensor, " chosen"]) -> list[str]:
        """The names of some edges, in the order given."""
        if len(edges) and not 0 <= int(edges.min()) <= int(edges.max()) < self.n_edges:
            raise IndexError(
                f"edges must be in 0..{self.n_edges - 1}, "
                f"got {int(edges.min())}..{int(edges.max())}."
            )
        writers, readers = self.writer_names, self.reader_names
        ends = zip(*(side.tolist() for side in self.ends(edges)), strict=True)
        return [f"{writers[writer]}->{readers[reader]}" for writer, reader in ends]

    def find_edge(self, name: str) -> int | None:
        """The number of a named edge; None if the graph has no such edge."""
        from_name, _, to_name = name.partition("->")
        writer, reader = self._writer_number.get(from_name), self._reader_number.get(to_name)
        if writer is None or reader is None or writer >= self._read_counts[reader]:
            return None
        return self._starts[reader] + writer

    def edge_index(self, name: str) -> int:
        """The number of a named edge; an unknown name is an error that says what is near."""
        edge = self.find_edge(name)
        if edge is None:
            raise ValueError(self.why_unknown(name))
        return edge

    def edge_indices(self, names: Iterable[str]) -> Int[Tensor, " chosen"]:
        """The numbers of named edges, in the order given."""
        return torch.tensor([self.edge_index(name) for name in names], dtype=torch.int64)

    @cached_property
    def _read_counts(self) -> list[int]:
        return self.reads.tolist()

    @cached_property
    def _writer_number(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.writer_names)}

    @cached_property
    def _reader_number(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.reader_names)}

    def why_unknown(self, name: str) -> str:
        """What is wrong with the name of an edge that the graph does not have."""
        writer, _, reader = name.partition("->")
        hints = []
        for kind, end, names in (
            ("writer", writer, self.writer_names),
            ("reader", reader, self.reader_names),
        ):
            if end not in names:
                near = get_close_matches(end, names, n=3, cutoff=0.4)
                hints.append(f"no {kind} {end!r} (near: {', '.join(near) or 'none'})")
        if hints:
            sizes = f"{self.n_layers} layers x {self.n_heads} heads"
            return f"unknown edge {name!r}; {'; '.join(hints)} in a graph of {sizes}."
        last = self._read_counts[self._reader_number[reader]] - 1
        return (
            f"unknown edge {name!r}; {reader} reads only the writers up to "
            f"{self.writer_names[last]}, and {writer} comes after them."
        )

    # Head level: q, k and v of a head are one

    @cached_property
    def head_edges(self) -> tuple[str, ...]:
        """Names such as `input->a0.h1` and `a0.h0->m1`; `input->logits` is left out."""
        names = []
        for component in (*self.writer_names[1:], "logits"):
            name = f"{component}<q>" if component.startswith("a") else component
            reads = self._read_counts[self._reader_number[name]]
            names += [f"{writer}->{component}" for writer in self.writer_names[:reads]]
        names.remove("input->logits")
        return tuple(names)

    @cached_property
    def _promotion(self) -> Int[Tensor, "head_edge 3"]:
        """The q, k and v edge of every head-level edge; other edges stand three times."""
        mlp = torch.full((1, 3), self.readers_per_layer - 1)
        slots = torch.cat([self.head_slots, mlp])
        layers = torch.arange(self.n_layers)[:, None, None] * self.readers_per_layer
        logits = torch.full((1, 3), self.n_readers - 1)
        readers = torch.cat([(layers + slots).flatten(0, 1), logits])
        counts = self.reads[readers[:, 0]]
        starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
        writers = torch.arange(int(counts.sum())) - starts
        edges = self.offsets[readers].repeat_interleave(counts, dim=0) + writers[:, None]
        input_to_logits = self._starts[-1]
        return edges[edges[:, 0] != input_to_logits]

    def promote(self, scores: Shaped[Tensor, "*batch edge"]) -> Shaped[Tensor, "*batch head_edge"]:
        """Head-level scores in the order of `head_edges`: the maximum over q, k and v."""
        by_kind = scores[..., self._promotion.to(scores.device)]
        return by_kind.any(-1) if scores.dtype == torch.bool else by_kind.amax(-1)
