"""Graphs for the predictor's tests, and slow twins: dense adjacencies and renumberings."""

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from jaxtyping import Bool, Int
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor.paper.transform import (
    CONNECTIVITIES,
    TRANSFORMATIONS,
    Connectivity,
    Endpoints,
    Transformation,
    neighbourhoods,
)

RELATIONS = ("writer", "reader", "next")
GRAPHS = {
    "plain": ComponentGraph(2, 3),
    "grouped": ComponentGraph(2, 4, n_kv_heads=2),
    "parallel": ComponentGraph(2, 2, parallel=True),
    "smallest": ComponentGraph(1, 1),
}
SETTINGS: list[tuple[Transformation, Connectivity]] = [
    (t, c) for t in TRANSFORMATIONS for c in CONNECTIVITIES
]

# Plain numbers only: the type checker of the test session draws random numbers where it checks
# names, which a strategy must not do. `thinned` makes the graph of a choice.
CHOICES = st.tuples(
    st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.booleans(), st.integers(0, 10**6)
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def states(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def thinned(choice: tuple[int, int, int, bool, int]) -> Endpoints:
    """A component graph that keeps about half of its edges, renumbered."""
    n_layers, groups, heads_per_group, parallel, seed = choice
    graph = ComponentGraph(n_layers, groups * heads_per_group, n_kv_heads=groups, parallel=parallel)
    kept = torch.rand(graph.n_edges, generator=seeded(seed)) < 0.5
    ends = Endpoints.of(graph)
    ends = replace(ends, edge_writers=ends.edge_writers[kept], edge_readers=ends.edge_readers[kept])
    return renumbered(ends, seed).ends


@dataclass(frozen=True, eq=False)
class Renumbered:
    ends: Endpoints
    writers: Int[Tensor, " writer"]
    """The old number of each writer, by its new number."""
    readers: Int[Tensor, " reader"]
    edges: Int[Tensor, " edge"]

    def nodes(self, transformation: Transformation) -> Int[Tensor, " node"]:
        """The old node of each new node."""
        if transformation == "line":
            return self.edges
        n_writers, n_readers = len(self.writers), len(self.readers)
        return torch.cat(
            [self.writers, n_writers + self.readers, n_writers + n_readers + self.edges]
        )


def renumbered(ends: Endpoints, seed: int) -> Renumbered:
    """The same graph under random numbers for writers, readers, edges and feeds."""
    generator = seeded(seed)
    writers, readers, edges, feeds = (
        torch.randperm(count, generator=generator)
        for count in (ends.n_writers, ends.n_readers, len(ends.edge_writers), len(ends.fed))
    )
    new_writer, new_reader = writers.argsort(), readers.argsort()
    changed = replace(
        ends,
        edge_writers=new_writer[ends.edge_writers[edges]],
        edge_readers=new_reader[ends.edge_readers[edges]],
        feeding=new_reader[ends.feeding[feeds]],
        fed=new_writer[ends.fed[feeds]],
        writer_rank=ends.writer_rank[writers],
        reader_rank=ends.reader_rank[readers],
    )
    return Renumbered(changed, writers, readers, edges)


def line_graph(graph: ComponentGraph | Endpoints) -> Int[Tensor, "2 arc"]:
    """Every arc of the directed line graph, edge before edge, sorted."""
    ends = graph if isinstance(graph, Endpoints) else Endpoints.of(graph)
    arcs = [
        torch.cartesian_prod(
            (ends.edge_readers == reader).nonzero().flatten(),
            (ends.edge_writers == writer).nonzero().flatten(),
        )
        for reader, writer in zip(ends.feeding.tolist(), ends.fed.tolist(), strict=True)
    ]
    return torch.cat([*arcs, torch.empty(0, 2, dtype=torch.int64)]).unique(dim=0).T


def incidence_graph(graph: ComponentGraph | Endpoints) -> dict[str, Int[Tensor, "2 arc"]]:
    """Every arc of the incidence graph by relation; nodes are writers, readers, then edges."""
    ends = graph if isinstance(graph, Endpoints) else Endpoints.of(graph)
    first = ends.n_writers + ends.n_readers
    edges = first + torch.arange(len(ends.edge_writers))
    arcs = (
        torch.stack([ends.edge_writers, edges]),
        torch.stack([edges, ends.n_writers + ends.edge_readers]),
        line_graph(ends) + first,
    )
    return dict(zip(RELATIONS, arcs, strict=True))


def precedes(
    graph: ComponentGraph | Endpoints, transformation: Transformation, connectivity: Connectivity
) -> Bool[Tensor, "node node"]:
    """Whether the node of the row precedes that of the column, arc by arc."""
    n = neighbourhoods(graph, transformation, connectivity)
    dense = torch.zeros(n.n_nodes, n.n_nodes, dtype=torch.bool)
    if connectivity == "complete":
        assert n.order is not None
        order = n.order.tolist()
        for place, node in enumerate(order):
            dense[order[:place], node] = True
    elif connectivity == "observed":
        relations = (
            [line_graph(graph)] if transformation == "line" else incidence_graph(graph).values()
        )
        for arcs in relations:
            dense[arcs[0], arcs[1]] = True
    return dense
