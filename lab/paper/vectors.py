"""The six features of a case as lists of vectors, those of one width together.

1. Every vector has a role (its place in FEATURES) and lies in the coordinates of a component.
   States and gradients are listed once for each writer or reader, messages and transported
   gradients once for each edge, as in `align`.
2. `vector_lists` makes the lists of a case, values standardized as the aligner asks; where a
   vector stands depends on the graph and its transformation alone (`VectorLayout`), so cases of one
   graph can be stacked once their widths are filled up to one.
3. `VectorLayout.gather` puts aligned vectors side by side at their nodes.

Made once for a case, then used by every step of a training: `align` makes them anew, a block at a
time, and so takes models of any size.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from graphcircuits.graph import Block, ComponentGraph
from graphcircuits.predictor.measure.features import FEATURES, Features
from graphcircuits.predictor.paper.align import factors
from graphcircuits.predictor.paper.transform import Transformation
from graphcircuits.subject.sites import Interfaces

WIDTHS = {
    "stream": ("input",),
    "head": ("z", "q", "k", "v"),
    "hidden": ("hidden",),
    "mlp": ("mlp",),
    "logits": ("logits",),
}
"""Fields of `Interfaces` whose vectors are equally wide."""


@dataclass(frozen=True, eq=False)
class VectorList:
    """The vectors of one width: what each is."""

    role: Int[Tensor, " vector"]
    component: Int[Tensor, " vector"]
    """Whose coordinates it lies in, among the components of this width."""
    n_components: int

    def to(self, device: torch.device | str) -> "VectorList":
        return VectorList(self.role.to(device), self.component.to(device), self.n_components)


@dataclass(frozen=True, eq=False)
class VectorLayout:
    """Where the vectors of a graph stand."""

    lists: Mapping[str, VectorList]
    """By name of the width, in the order of WIDTHS."""
    nodes: Int[Tensor, "node role"]
    """The vector that a node has in each role, counted through all lists; the number behind the
    last where it has none."""

    def to(self, device: torch.device | str) -> "VectorLayout":
        moved = {name: one.to(device) for name, one in self.lists.items()}
        return VectorLayout(moved, self.nodes.to(device))

    def gather(
        self, aligned: Float[Tensor, "*lead vector row d_align"]
    ) -> Float[Tensor, "*lead row node width"]:
        """Aligned vectors side by side at every node, zeros where it has none."""
        rows = F.pad(aligned.transpose(-2, -3), (0, 0, 0, 1))
        return (
            rows.index_select(-2, self.nodes.flatten()).unflatten(-2, self.nodes.shape).flatten(-2)
        )


def vector_lists(
    features: Features, transformation: Transformation, *, standardize: bool
) -> tuple[VectorLayout, dict[str, Float[Tensor, "vector context width"]]]:
    """The layout of a graph, and the values of every vector at every context, by width."""
    listing = _Listing(features, transformation, standardize)
    listing.components()
    listing.edges()
    return listing.finished()


class _Listing:
    """Lists in the making: parts of each, in the order in which they are added."""

    def __init__(
        self, features: Features, transformation: Transformation, standardize: bool
    ) -> None:
        self.features, self.graph = features, features.graph
        self.transformation = transformation
        self.factors = factors(features, standardize=standardize)
        self.starts = _starts(features.clean)
        self.parts: dict[str, list[tuple[int, Tensor, Tensor, Tensor]]] = {x: [] for x in WIDTHS}

    def add(
        self, field: str, owners: range, role: str, nodes: Int[Tensor, " vector"], values: Tensor
    ) -> None:
        """Values (context, vector, width) of one role, in the coordinates of some components of a
        field; where a component has several vectors, they follow each other."""
        width = next(name for name, fields in WIDTHS.items() if field in fields)
        kind = "gradient" if role.endswith("gradient") else "state"
        side = "writer" if field in ("input", "z", "hidden") else "reader"
        component = self.starts[field] + torch.tensor(owners)
        each = values.shape[1] // len(owners)
        scaled = (values * self.factors[kind, side]).transpose(0, 1)
        self.parts[width].append(
            (FEATURES.index(role), component.repeat_interleave(each), nodes, scaled)
        )

    def components(self) -> None:
        """States and gradients. In the line graph an edge has those of its ends."""
        graph, both = self.graph, self.transformation == "incidence"
        of_writers = [n for n, role in enumerate(FEATURES[:3]) if both or role.startswith("writer")]
        of_readers = [n for n, role in enumerate(FEATURES[:3]) if both or role.startswith("reader")]
        states = (self.features.clean, self.features.corrupted, self.features.gradient)
        heads = [1 + x * graph.writers_per_layer + h for x in _layers(graph) for h in _heads(graph)]
        mlps = [(x + 1) * graph.writers_per_layer for x in _layers(graph)]
        for role in of_writers:
            for field, writers in (("input", [0]), ("z", heads), ("hidden", mlps)):
                values = _flat(states[role], field)
                owners = range(len(writers))
                self.add(field, owners, FEATURES[role], torch.tensor(writers), values)
        for role in of_readers:
            for block in graph.blocks:
                readers = graph.n_writers + torch.arange(graph.n_readers)[block.readers]
                values = states[role].read(block)
                self.add(block.kind, _owners(block), FEATURES[role], readers, values)

    def edges(self) -> None:
        """Messages in the coordinates of readers, transported gradients in those of writers."""
        graph = self.graph
        offset = graph.n_nodes
        for found in self.features.edge_vectors():
            block = found.block
            numbers = torch.arange(graph.n_edges)[block.edges].view(block.n_readers, -1) + offset
            for role in ("message_clean", "message_corrupted"):
                values = getattr(found, role).flatten(1, 2)
                self.add(block.kind, _owners(block), role, numbers.flatten(), values)
            layers = torch.arange(max(block.head_layers, block.layer))
            in_layer = 1 + layers[:, None] * graph.writers_per_layer
            heads = (in_layer + torch.arange(graph.n_heads))[: block.head_layers].flatten()
            mlps = (in_layer + graph.n_heads)[: block.layer].flatten()
            for field, writers, values in (
                ("input", torch.tensor([0]), found.transported_input[:, :, None]),
                ("z", heads, found.transported_heads.flatten(2, 3)),
                ("hidden", mlps, found.transported_mlps),
            ):
                if not len(writers):
                    continue
                by_writer = values.transpose(1, 2).flatten(1, 2)
                nodes, owners = numbers[:, writers].T.flatten(), range(len(writers))
                self.add(field, owners, "transported_gradient", nodes, by_writer)

    def finished(self) -> tuple[VectorLayout, dict[str, Tensor]]:
        graph = self.graph
        lists, values, start = {}, {}, 0
        absent = sum(len(nodes) for parts in self.parts.values() for _, _, nodes, _ in parts)
        table = torch.full((graph.n_nodes + graph.n_edges, len(FEATURES)), absent)
        for width, parts in self.parts.items():
            for role, _, nodes, vectors in parts:
                table[nodes, role] = start + torch.arange(len(nodes))
                start += len(vectors)
            role = torch.cat([torch.full((len(x[1]),), x[0]) for x in parts])
            n_components = sum(
                _flat(self.features.clean, field).shape[1] for field in WIDTHS[width]
            )
            lists[width] = VectorList(role, torch.cat([x[1] for x in parts]), n_components)
            values[width] = torch.cat([x[3] for x in parts])
        if self.transformation == "line":
            ends = (
                table[graph.edge_writers][:, :2],
                table[graph.n_writers + graph.edge_readers][:, 2:3],
            )
            table = torch.cat([*ends, table[graph.n_nodes :, 3:]], dim=1)
        return VectorLayout(lists, table), values


def _flat(vectors: Interfaces, field: str) -> Float[Tensor, "context component coordinate"]:
    values = getattr(vectors, field)
    return values.reshape(len(values), -1, values.shape[-1])


def _starts(vectors: Interfaces) -> dict[str, int]:
    """Where the components of a field begin among those of their width."""
    found = {}
    for names in WIDTHS.values():
        start = 0
        for field in names:
            found[field] = start
            start += _flat(vectors, field).shape[1]
    return found


def _layers(graph: ComponentGraph) -> range:
    return range(graph.n_layers)


def _heads(graph: ComponentGraph) -> range:
    return range(graph.n_heads)


def _owners(block: Block) -> range:
    """The numbers of a block's readers among those of its kind."""
    first = 0 if block.kind == "logits" else block.layer * block.n_readers
    return range(first, first + block.n_readers)
