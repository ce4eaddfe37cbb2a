"""The component graph of a transformer, its one edge order, and circuits as sets of its edges.

1. `ComponentGraph` lists writers and readers in topological order. Writers: `input`, then a layer
   at a time its heads `a0.h0`, `a0.h1`, ... and its MLP `m0`. Readers: a layer at a time the
   queries of all heads `a0.h0<q>`, ..., the keys `a0.h0<k>`, ..., the values `a0.h0<v>`, ..., the
   MLP `m0`; last `logits`. With grouped keys one reader serves a group of heads and is named after
   the group: `a0.g0<k>`, `a0.g0<v>`.
2. Every reader reads a prefix of the writers, so edges are numbered reader by reader and writer by
   writer: edge = offsets[reader] + writer. Every tensor with an `edge` axis uses that order.
3. `Circuit` is a set of edges of one graph, with set algebra and views.

The graph knows sizes, not weights. Nothing loops over edges until names are asked for.

Axis names used in every signature of the package: batch, pos, d_model, head, d_head, kv (group of
heads that share keys and values), source, dest, node, edge, head_edge, feature, mask, layer,
writer, reader, d_mlp, d_vocab, d_vocab_out.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property

import networkx as nx
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

_WRITER = re.compile(r"input|a(\d+)\.h(\d+)|m(\d+)")
_READER = re.compile(r"logits|a(\d+)\.([hg])(\d+)<([qkv])>|m(\d+)")


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
    """Sizes of a transformer's component graph; everything else is derived from them."""

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

    @cached_property
    def n_edges(self) -> int:
        layers = self.n_layers
        before_layers = layers + self.writers_per_layer * layers * (layers - 1) // 2
        own_heads = 0 if self.parallel else layers * self.n_heads
        return self.readers_per_layer * before_layers + own_heads + self.n_writers

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
        found: list[Block] = []
        reader = edge = 0
        layers = [(layer, kind) for layer in range(self.n_layers) for kind in counts]
        for layer, kind in [*layers, (self.n_layers, "logits")]:
            stream, count = 2 * layer + (kind == "mlp"), counts.get(kind, 1)
            head_layers = layer + (kind == "mlp" and not self.parallel)
            reads = 1 + layer + head_layers * self.n_heads
            found.append(Block(kind, layer, stream, reader, count, reads, edge, head_layers))
            reader += count
            edge += count * reads
        return tuple(found)

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
    def reader_component(self) -> Int[Tensor, " reader"]:
        """The writer each reader belongs to: the first head for a group, -1 for `logits`."""
        components = [self.components_of(reader) for reader in range(self.n_readers)]
        return torch.tensor([writers[0] if writers else -1 for writers in components])

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

    @cached_property
    def writer_names(self) -> tuple[str, ...]:
        heads = range(self.n_heads)
        layers = [[f"a{n}.h{h}" for h in heads] + [f"m{n}"] for n in range(self.n_layers)]
        return ("input", *(name for layer in layers for name in layer))

    @cached_property
    def reader_names(self) -> tuple[str, ...]:
        letter = self._group_letter
        names = []
        for layer in range(self.n_layers):
            names += [f"a{layer}.h{head}<q>" for head in range(self.n_heads)]
            names += [f"a{layer}.{letter}{g}<{kv}>" for kv in "kv" for g in range(self.n_groups)]
            names.append(f"m{layer}")
        return (*names, "logits")

    @property
    def _group_letter(self) -> str:
        return "h" if self.n_groups == self.n_heads else "g"

    # Edges

    @cached_property
    def edge_dests(self) -> Int[Tensor, " edge"]:
        """The reader of each edge."""
        return torch.arange(self.n_readers).repeat_interleave(self.reads)

    @cached_property
    def edge_sources(self) -> Int[Tensor, " edge"]:
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

    def edge_index(self, name: str) -> int:
        """The number of a named edge, by parsing the name."""
        source, arrow, dest = name.partition("->")
        writer, reader = self._writer_index(source), self._reader_index(dest)
        if not arrow or writer is None or reader is None:
            raise ValueError(f"unknown edge {name!r}; {self._near_misses(source, dest)}")
        layer, slot = divmod(reader, self.readers_per_layer)
        reads = 1 + layer * self.writers_per_layer
        if slot == self.readers_per_layer - 1 and not self.parallel:
            reads += self.n_heads
        if writer >= reads:
            raise ValueError(
                f"unknown edge {name!r}; {dest} reads only the writers up to "
                f"{self.writer_names[reads - 1]}, and {source} comes after them."
            )
        return self._starts[reader] + writer

    def edge_indices(self, names: Iterable[str]) -> Int[Tensor, " chosen"]:
        """The numbers of named edges, in the order given."""
        return torch.tensor([self.edge_index(name) for name in names], dtype=torch.int64)

    def _writer_index(self, name: str) -> int | None:
        match = _WRITER.fullmatch(name)
        if match is None:
            return None
        head_layer, head, mlp_layer = match.groups()
        index = 0
        if head is not None and int(head) < self.n_heads:
            index = 1 + int(head_layer) * self.writers_per_layer + int(head)
        elif mlp_layer is not None:
            index = (int(mlp_layer) + 1) * self.writers_per_layer
        # Comparing the names refuses `a00.h1` and heads out of range.
        known = index < self.n_writers and self.writer_names[index] == name
        return index if known else None

    def _reader_index(self, name: str) -> int | None:
        match = _READER.fullmatch(name)
        if match is None:
            return None
        head_layer, _, head, kind, mlp_layer = match.groups()
        index = self.n_readers - 1
        if kind is not None:
            block = {"q": 0, "k": self.n_heads, "v": self.n_heads + self.n_groups}[kind]
            index = int(head_layer) * self.readers_per_layer + block + int(head)
        elif mlp_layer is not None:
            index = (int(mlp_layer) + 1) * self.readers_per_layer - 1
        known = index < self.n_readers and self.reader_names[index] == name
        return index if known else None

    def _near_misses(self, source: str, dest: str) -> str:
        hints = []
        if self._writer_index(source) is None:
            near = get_close_matches(source, self.writer_names, n=3, cutoff=0.4)
            hints.append(f"no writer {source!r} (near: {', '.join(near) or 'none'})")
        if self._reader_index(dest) is None:
            near = get_close_matches(dest, self.reader_names, n=3, cutoff=0.4)
            hints.append(f"no reader {dest!r} (near: {', '.join(near) or 'none'})")
        return "; ".join(hints) + f" in a graph of {self.n_layers} layers x {self.n_heads} heads."

    # Head level: q, k and v of a head are one

    @cached_property
    def head_edges(self) -> tuple[str, ...]:
        """Names such as `input->a0.h1` and `a0.h0->m1`; `input->logits` is left out."""
        names = []
        for dest in (*self.writer_names[1:], "logits"):
            reader = self._reader_index(f"{dest}<q>" if dest.startswith("a") else dest)
            assert reader is not None
            names += [f"{source}->{dest}" for source in self.writer_names[: self.reads[reader]]]
        names.remove("input->logits")
        return tuple(names)

    @cached_property
    def _promotion(self) -> Int[Tensor, "head_edge 3"]:
        """The q, k and v edge of every head-level edge; other edges stand three times."""
        heads = torch.arange(self.n_heads)
        groups = heads // (self.n_heads // self.n_groups)
        keys = self.n_heads + groups
        mlp = torch.full((1, 3), self.readers_per_layer - 1)
        slots = torch.cat([torch.stack([heads, keys, keys + self.n_groups], dim=1), mlp])
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


@dataclass(frozen=True)
class Circuit:
    """A set of edges of one graph."""

    graph: ComponentGraph
    edges: frozenset[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", frozenset(self.edges))
        unknown = []
        for name in self.edges:
            try:
                self.graph.edge_index(name)
            except ValueError as error:
                unknown.append(str(error))
        if unknown:
            raise ValueError(
                f"{len(unknown)} of {len(self.edges)} edges are not in the graph: "
                + " | ".join(sorted(unknown))
            )

    @classmethod
    def from_names(cls, graph: ComponentGraph, names: Iterable[str]) -> "Circuit":
        return cls(graph, frozenset(names))

    @classmethod
    def from_mask(cls, graph: ComponentGraph, mask: Bool[Tensor, " edge"]) -> "Circuit":
        if mask.shape != (graph.n_edges,):
            raise ValueError(f"mask must have shape ({graph.n_edges},), got {tuple(mask.shape)}.")
        chosen = mask.nonzero().flatten().tolist()
        return cls(graph, frozenset(graph.edge_name(edge) for edge in chosen))

    @cached_property
    def mask(self) -> Bool[Tensor, " edge"]:
        mask = torch.zeros(self.graph.n_edges, dtype=torch.bool)
        mask[self.graph.edge_indices(self.edges)] = True
        return mask

    def __len__(self) -> int:
        return len(self.edges)

    def __contains__(self, name: object) -> bool:
        return name in self.edges

    def __iter__(self) -> Iterator[str]:
        """Names in edge order."""
        return iter(sorted(self.edges, key=self.graph.edge_index))

    def __or__(self, other: "Circuit") -> "Circuit":
        return Circuit(self.graph, self.edges | self._same_graph(other).edges)

    def __and__(self, other: "Circuit") -> "Circuit":
        return Circuit(self.graph, self.edges & self._same_graph(other).edges)

    def __sub__(self, other: "Circuit") -> "Circuit":
        return Circuit(self.graph, self.edges - self._same_graph(other).edges)

    def __xor__(self, other: "Circuit") -> "Circuit":
        return Circuit(self.graph, self.edges ^ self._same_graph(other).edges)

    def __le__(self, other: "Circuit") -> bool:
        return self.edges <= self._same_graph(other).edges

    def _same_graph(self, other: "Circuit") -> "Circuit":
        if other.graph != self.graph:
            raise ValueError(
                f"circuits live on different graphs: {self.graph} and {other.graph}; "
                "bring one over with .on(graph)."
            )
        return other

    def on(self, graph: ComponentGraph) -> "Circuit":
        """The same names on another graph."""
        return Circuit(graph, self.edges)

    @property
    def nodes(self) -> tuple[frozenset[str], frozenset[str]]:
        """The endpoints: names of writers, names of readers."""
        ends = [name.split("->") for name in self.edges]
        return frozenset(source for source, _ in ends), frozenset(dest for _, dest in ends)

    @property
    def components(self) -> frozenset[str]:
        """Components that an edge of the circuit touches."""
        return frozenset(self.to_networkx().nodes)

    def head_level(self) -> frozenset[str]:
        """The head-level edges that hold a circuit edge; `input->logits` is left out."""
        promoted = self.graph.promote(self.mask).tolist()
        names = zip(self.graph.head_edges, promoted, strict=True)
        return frozenset(name for name, chosen in names if chosen)

    def pruned(self) -> "Circuit":
        """Without the edges that lie on no path from `input` to `logits`."""
        graph = nx.DiGraph(self.to_networkx())
        from_input = {"input"} | (nx.descendants(graph, "input") if "input" in graph else set())
        to_logits = {"logits"} | (nx.ancestors(graph, "logits") if "logits" in graph else set())
        kept = [
            name
            for name in self.edges
            if name.split("->")[0] in from_input and to_logits.intersection(self._dests(name))
        ]
        return Circuit(self.graph, frozenset(kept))

    def _dests(self, name: str) -> list[str]:
        """The components an edge arrives at: every head of the group for a grouped reader."""
        reader = int(self.graph.edge_dests[self.graph.edge_index(name)])
        writers = self.graph.components_of(reader)
        return [self.graph.writer_names[writer] for writer in writers] or ["logits"]

    def to_networkx(self) -> nx.MultiDiGraph:
        """Nodes with `kind` input, head, mlp or logits; edges with `kind` q, k, v or ''."""
        kinds = {"i": "input", "a": "head", "m": "mlp", "l": "logits"}
        graph = nx.MultiDiGraph()
        for name in self:
            source = name.split("->")[0]
            kind = name[-2] if name.endswith(">") else ""
            for dest in self._dests(name):
                graph.add_node(source, kind=kinds[source[0]])
                graph.add_node(dest, kind=kinds[dest[0]])
                graph.add_edge(source, dest, kind=kind)
        return graph

    def is_isomorphic(self, other: "Circuit") -> bool:
        """Equal up to renaming components of one kind; q, k and v edges are told apart."""
        return nx.is_isomorphic(
            self.to_networkx(),
            other.to_networkx(),
            node_match=nx.isomorphism.categorical_node_match("kind", None),
            edge_match=nx.isomorphism.categorical_multiedge_match("kind", None),
        )

    def to_dot(self) -> str:
        """Graphviz source: components as boxes, edges labelled q, k or v."""
        graph = self.to_networkx()
        lines = [f'  "{node}" [shape=box];' for node in graph.nodes]
        for source, dest, kind in graph.edges(data="kind"):
            label = f' [label="{kind}"]' if kind else ""
            lines.append(f'  "{source}" -> "{dest}"{label};')
        return "\n".join(["digraph circuit {", *lines, "}"]) + "\n"
