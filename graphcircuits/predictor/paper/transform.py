"""The graphs the predictor learns on: directed line graph and incidence graph.

1. An edge e1 precedes an edge e2 when e1 arrives at a reader of the component that e2 leaves. Read
   and write of a component are nodes apart, so the reader *feeds* the writer; with grouped keys one
   key or value reader feeds every head of its group.
2. Line graph: one node per edge, an arc from e1 to e2 where e1 precedes e2. Incidence graph: one
   node per writer, reader and edge, in that order, and three relations: `writer` (writer to edge),
   `reader` (edge to reader), `next` (edge to edge, as in the line graph).
3. The predecessors of an edge depend on its writer alone. `Neighbourhoods` holds each such set once
   and the set every node reads, so its size is linear in the edges where the arcs are not.
4. Sums over predecessors and successors go through these sets: gather into the sets, hand back to
   the nodes. Of a large graph `pieces` gives some nodes at a time, so that what is computed of
   their states need not be held for all of them.

Connectivity: `observed` keeps these arcs, `none` has no arcs at all, `complete` joins every node to
all later ones of a topological order (reader by reader: the edges that arrive there, the reader
itself, the writers it completes).

Paper: Graph Transformations, and the connectivity conditions in Graph Learning Models.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.graph import ComponentGraph

Transformation = Literal["line", "incidence"]
Connectivity = Literal["observed", "none", "complete"]
NodeStates = Float[Tensor, "*context node width"]

TRANSFORMATIONS: tuple[Transformation, ...] = ("line", "incidence")
CONNECTIVITIES: tuple[Connectivity, ...] = ("observed", "none", "complete")
DENSE = 2**18
"""Sets times nodes up to which a GPU sums by products of matrices instead of scattering: faster, in
full precision for short number formats, and the same every time."""


@dataclass(frozen=True, eq=False)
class Endpoints:
    """A component graph as arrays, in any numbering of its writers, readers and edges."""

    n_writers: int
    n_readers: int
    edge_writers: Int[Tensor, " edge"]
    """The writer of each edge."""
    edge_readers: Int[Tensor, " edge"]
    """The reader of each edge."""
    feeding: Int[Tensor, " feed"]
    """A reader; `fed` has, at the same index, a writer that computes from it."""
    fed: Int[Tensor, " feed"]
    writer_rank: Int[Tensor, " writer"]
    """The rank of each writer in the order of computation: 0, 1, ... without gaps."""
    reader_rank: Int[Tensor, " reader"]

    @classmethod
    def of(cls, graph: ComponentGraph) -> "Endpoints":
        """The graph's own numbering, which is already the order of computation."""
        feeds = [(r, w) for r in range(graph.n_readers) for w in graph.components_of(r)]
        feeding, fed = torch.tensor(feeds).unbind(1)
        return cls(
            n_writers=graph.n_writers,
            n_readers=graph.n_readers,
            edge_writers=graph.edge_writers,
            edge_readers=graph.edge_readers,
            feeding=feeding,
            fed=fed,
            writer_rank=torch.arange(graph.n_writers),
            reader_rank=torch.arange(graph.n_readers),
        )


@dataclass(frozen=True, eq=False)
class Tile:
    """Predecessor sets of one shape: every reader of a row attends to every member of that row."""

    members: Int[Tensor, "group member"]
    readers: Int[Tensor, "group reader"]


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """Predecessor sets, each held once and shared by the nodes that read it."""

    n_nodes: int
    n_groups: int
    member_node: Int[Tensor, " member"]
    """A node that is in a predecessor set; `member_group` has the number of that set. Sorted by
    set."""
    member_group: Int[Tensor, " member"]
    group_of: Int[Tensor, " node"]
    """The set that holds the predecessors of a node, or -1 where it has none."""
    order: Int[Tensor, " node"] | None
    """Set only for the complete DAG: every node before i in this order precedes i, and there are
    no groups."""
    edge_nodes: Int[Tensor, " edge"]
    """The node of each edge of the component graph."""
    lengths: tuple[int, ...] = ()
    """Where several complete DAGs stand side by side: how many nodes of the order each one has."""
    alive: Bool[Tensor, "*case node"] | None = None
    """Which nodes are heard and counted; all of them if None."""
    whole: "Neighbourhoods | None" = None
    """The same sets with all nodes alive, which know what does not depend on that."""

    def among(self, alive: Bool[Tensor, "*case node"]) -> "Neighbourhoods":
        """The same sets, in which only living nodes are heard and counted."""
        # Asking a GPU would wait for it.
        if alive.device.type == "cpu" and bool(alive.all()):
            return self
        return replace(self, alive=alive, whole=self)

    def to(self, device: torch.device | str) -> "Neighbourhoods":
        held = {each.name: getattr(self, each.name) for each in fields(self)}
        moved = {name: x.to(device) for name, x in held.items() if isinstance(x, Tensor)}
        return replace(self, whole=None, **moved)

    def check(self, h: Tensor, axis: int = -2) -> None:
        """Refuse states of another graph, which a gather would take without a word."""
        if h.shape[axis] != self.n_nodes:
            raise ValueError(
                f"expected states of {self.n_nodes} nodes, got {h.shape[axis]}; "
                "build the neighbourhoods from the graph the states belong to."
            )

    @cached_property
    def degrees(self) -> tuple[Float[Tensor, "*case node 1"], Float[Tensor, "*case node 1"]]:
        """How many predecessors and how many successors each node has."""
        return self.sums(self._ones)

    @property
    def _ones(self) -> Float[Tensor, "*case node 1"]:
        shape = (self.n_nodes,) if self.alive is None else self.alive.shape
        return torch.ones(*shape, 1, device=self.group_of.device)

    @cached_property
    def reading(self) -> Int[Tensor, " node"]:
        """`group_of` with an extra, empty set instead of -1."""
        if self.whole is not None:
            return self.whole.reading
        return self.group_of.where(self.group_of >= 0, self.n_groups)

    @cached_property
    def matrices(self) -> tuple[Float[Tensor, "group node"], Float[Tensor, "group node"]]:
        """Which nodes are in each set, and which read it."""
        if self.whole is not None:
            return self.whole.matrices
        shape = (self.n_groups + 1, self.n_nodes)
        members, readers = torch.zeros(2, *shape, device=self.group_of.device)
        members.index_put_((self.member_group, self.member_node), members.new_ones(()), True)
        readers[self.reading, torch.arange(self.n_nodes, device=readers.device)] = 1.0
        readers[-1] = 0.0
        return members, readers

    def sums_by_matrices(self, h: Tensor) -> bool:
        """Whether sums over neighbours of these states go by `matrices`."""
        return h.is_cuda and (self.n_groups + 1) * self.n_nodes <= DENSE

    def sums(self, h: NodeStates) -> tuple[Tensor, Tensor]:
        """At every node the sum of `h` over its predecessors, and over its successors."""
        if self.alive is not None:
            h = h * self.alive[..., None]
        return sum_over_predecessors(h, self), sum_over_successors(h, self)

    @cached_property
    def runs(self) -> tuple[Int[Tensor, " node"], Int[Tensor, " member"], Int[Tensor, " member"]]:
        """The number of each node's run, that is of nodes which follow each other and are in the
        same sets, as the edges of a reader are; then of every set of a run the run, and the set."""
        if self.whole is not None:
            return self.whole.runs
        by_node = self.member_node.argsort(stable=True)
        node, group = self.member_node[by_node], self.member_group[by_node]
        count = torch.bincount(node, minlength=self.n_nodes)
        # The same member of the node before, where both are in as many sets.
        before = torch.arange(len(node), device=node.device) - count[node]
        starts = count != count.roll(1)
        starts[node[group != group[before.clamp_min(0)]]] = True
        starts[:1] = True
        run_of = starts.cumsum(0) - 1
        first = starts[node]
        return run_of, run_of[node[first]], group[first]

    def sums_by_set(
        self, pieces: Iterable[Float[Tensor, "_ width"]], like: Float[Tensor, "_ width"]
    ) -> tuple[Float[Tensor, "group width"], Float[Tensor, "run width"]]:
        """The sum of states over the members of each set, the predecessors of whoever reads it,
        and over the successors of the nodes of each run. Not for complete DAGs.

        `pieces` are the states of all nodes in their order, some at a time. There are as many sets
        and runs as components, so these sums are small.
        """
        run_of, run, group = self.runs
        by_run = like.new_zeros(int(run_of[-1]) + 1, like.shape[-1])
        by_reading = like.new_zeros(self.n_groups + 1, like.shape[-1])
        start = 0
        for states in pieces:
            here = slice(start, start + len(states))
            if self.alive is not None:
                states = states * self.alive[here, None]
            by_run.index_add_(0, run_of[here], states)
            by_reading.index_add_(0, self.reading[here], states)
            start = here.stop
        before = torch.zeros_like(by_reading).index_add_(0, group, by_run[run])
        return before, torch.zeros_like(by_run).index_add_(0, run, by_reading[group])

    @cached_property
    def degrees_by_set(self) -> tuple[Float[Tensor, "group 1"], Float[Tensor, "run 1"]]:
        """How many members each set has, and how many successors the nodes of each run."""
        return self.sums_by_set([self._ones], self._ones)

    @cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """The sets that somebody reads, those of one shape together: for a component graph a few
        tiles per layer, because heads of one layer see the same number of edges."""
        sizes = torch.bincount(self.member_group, minlength=self.n_groups)
        audiences = torch.bincount(self.reading, minlength=self.n_groups + 1)[:-1]
        by_group = self.reading.argsort(stable=True)
        first_member, first_reader = sizes.cumsum(0) - sizes, audiences.cumsum(0) - audiences
        shapes, shape_of = torch.stack([sizes, audiences]).unique(dim=1, return_inverse=True)
        tiles = []
        for shape, (size, audience) in enumerate(shapes.T.tolist()):
            if not size or not audience:
                continue
            groups = (shape_of == shape).nonzero()
            members = first_member[groups] + torch.arange(size, device=groups.device)
            readers = first_reader[groups] + torch.arange(audience, device=groups.device)
            tiles.append(Tile(self.member_node[members], by_group[readers]))
        return tuple(tiles)

    @cached_property
    def tiled_members(self) -> Int[Tensor, " member"]:
        """The members of all tiles, one after the other."""
        return torch.cat([self.group_of[:0], *(tile.members.flatten() for tile in self.tiles)])

    @cached_property
    def tiled_readers(self) -> Int[Tensor, " reader"]:
        """The readers of all tiles, one after the other."""
        return torch.cat([self.group_of[:0], *(tile.readers.flatten() for tile in self.tiles)])

    @cached_property
    def tiled_row(self) -> Int[Tensor, " node"]:
        """The row of each node in `tiled_readers`, or the one behind the last for no set."""
        listed = self.tiled_readers
        row = torch.full_like(self.group_of, len(listed))
        row[listed] = torch.arange(len(listed), device=listed.device)
        return row


def neighbourhoods(
    graph: ComponentGraph | Endpoints,
    transformation: Transformation = "line",
    connectivity: Connectivity = "observed",
) -> Neighbourhoods:
    """The predecessor sets of a transformed graph, in time and memory linear in the edges."""
    for name, value, known in (
        ("transformation", transformation, TRANSFORMATIONS),
        ("connectivity", connectivity, CONNECTIVITIES),
    ):
        if value not in known:
            raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(known)}.")
    ends = graph if isinstance(graph, Endpoints) else Endpoints.of(graph)
    n_components = ends.n_writers + ends.n_readers if transformation == "incidence" else 0
    n_edges = len(ends.edge_writers)
    n_nodes = n_components + n_edges
    edge_nodes = torch.arange(n_components, n_nodes)
    if connectivity != "observed":
        nobody = torch.empty(0, dtype=torch.int64)
        order = _order(ends, transformation) if connectivity == "complete" else None
        nowhere = torch.full((n_nodes,), -1)
        return Neighbourhoods(n_nodes, 0, nobody, nobody, nowhere, order, edge_nodes)
    arriving, fed = _arrivals(ends)
    nodes, groups, group_of, n_groups = edge_nodes[arriving], fed, ends.edge_writers, ends.n_writers
    if transformation == "incidence":
        # Sets of writers first (read by the edges that leave), then sets of readers.
        writers, into = torch.arange(ends.n_writers), ends.n_writers + ends.edge_readers
        nodes, groups = torch.cat([writers, nodes, edge_nodes]), torch.cat([writers, groups, into])
        n_groups = ends.n_writers + ends.n_readers
        reader_sets = torch.arange(ends.n_writers, n_groups)
        group_of = torch.cat([torch.full_like(writers, -1), reader_sets, group_of])
    # A set without members is no set: such nodes have no predecessors.
    filled = torch.bincount(groups, minlength=n_groups) > 0
    group_of = group_of.where((group_of >= 0) & filled[group_of], -1)
    by_group = groups.argsort(stable=True)
    return Neighbourhoods(
        n_nodes=n_nodes,
        n_groups=n_groups,
        member_node=nodes[by_group],
        member_group=groups[by_group],
        group_of=group_of,
        order=None,
        edge_nodes=edge_nodes,
    )


def _arrivals(ends: Endpoints) -> tuple[Int[Tensor, " member"], Int[Tensor, " member"]]:
    """Each edge once for every writer that its reader feeds: the edge, and that writer."""
    by_reader = ends.edge_readers.argsort(stable=True)
    count = torch.bincount(ends.edge_readers, minlength=ends.n_readers)
    first = count.cumsum(0) - count
    repeats = count[ends.feeding]
    shift = first[ends.feeding] - (repeats.cumsum(0) - repeats)
    rows = torch.arange(int(repeats.sum())) + shift.repeat_interleave(repeats)
    return by_reader[rows], ends.fed.repeat_interleave(repeats)


def _order(ends: Endpoints, transformation: Transformation) -> Int[Tensor, " node"]:
    """A topological order by the ranks of components, so that it follows them when renumbered."""
    rank, step = ends.reader_rank, ends.n_writers
    edges = rank[ends.edge_readers] * 3 * step + ends.writer_rank[ends.edge_writers]
    if transformation == "line":
        return edges.argsort(stable=True)
    readers = (rank * 3 + 1) * step
    # A writer follows the last reader that feeds it, if any.
    last = torch.full_like(ends.writer_rank, -1)
    last = last.scatter_reduce(0, ends.fed, rank[ends.feeding], "amax")
    writers = (last * 3 + 2) * step + ends.writer_rank
    return torch.cat([writers, readers, edges]).argsort(stable=True)


def sum_over_predecessors(h: NodeStates, n: Neighbourhoods) -> NodeStates:
    """At every node the sum of `h` over its predecessors, in linear time."""
    n.check(h)
    if n.order is not None:
        return _sum_of_earlier(h, n.order, n.lengths)
    if n.sums_by_matrices(h):
        members, readers = (matrix.to(h.dtype) for matrix in n.matrices)
        return readers.mT @ (members @ h)
    sums = h.new_zeros(*h.shape[:-2], n.n_groups + 1, h.shape[-1])
    sums = sums.index_add(-2, n.member_group, h.index_select(-2, n.member_node))
    return sums.index_select(-2, n.reading)


def sum_over_successors(h: NodeStates, n: Neighbourhoods) -> NodeStates:
    """At every node the sum of `h` over the nodes it precedes: the transpose of the above."""
    n.check(h)
    if n.order is not None:
        return _sum_of_earlier(h, n.order.flip(0), n.lengths[::-1])
    if n.sums_by_matrices(h):
        members, readers = (matrix.to(h.dtype) for matrix in n.matrices)
        return members.mT @ (readers @ h)
    sums = h.new_zeros(*h.shape[:-2], n.n_groups + 1, h.shape[-1]).index_add(-2, n.reading, h)
    return torch.zeros_like(h).index_add(-2, n.member_node, sums.index_select(-2, n.member_group))


def _sum_of_earlier(
    h: NodeStates, order: Int[Tensor, " node"], lengths: tuple[int, ...]
) -> NodeStates:
    """The sum over all nodes of the same DAG that stand before each one in the order."""
    before = []
    for dag in h.index_select(-2, order).split(lengths or (len(order),), dim=-2):
        sums = dag.cumsum(-2)
        before += [torch.zeros_like(sums[..., :1, :]), sums[..., :-1, :]]
    return torch.cat(before, dim=-2).index_select(-2, order.argsort())
