"""Transformed graphs: arcs by the definition, implicit sums against dense adjacencies."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings

from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor.paper.transform import (
    Connectivity,
    Endpoints,
    Neighbourhoods,
    Transformation,
    neighbourhoods,
    sum_over_predecessors,
    sum_over_successors,
)
from tests.predictor.graphs import (
    CHOICES,
    GRAPHS,
    SETTINGS,
    incidence_graph,
    line_graph,
    precedes,
    renumbered,
    states,
    thinned,
)


def components(graph: ComponentGraph, reader: str) -> set[str]:
    """The writers that compute from a reader, read off the names."""
    if ".g" not in reader:
        return {reader.partition("<")[0]}
    layer, _, group = reader.partition("<")[0].partition(".g")
    share = graph.n_heads // graph.n_groups
    return {f"{layer}.h{int(group) * share + head}" for head in range(share)}


@pytest.mark.parametrize("name", GRAPHS)
def test_line_graph_by_the_names(name: str) -> None:
    graph = GRAPHS[name]
    ends = [edge.split("->") for edge in graph.edge_names]
    expected = [
        (first, second)
        for first, (_, reader) in enumerate(ends)
        for second, (writer, _) in enumerate(ends)
        if writer in components(graph, reader)
    ]
    assert [tuple(arc) for arc in line_graph(graph).T.tolist()] == expected


def test_grouped_key_edges_precede_every_head_of_the_group() -> None:
    graph = GRAPHS["grouped"]
    first = graph.edge_index("input->a0.g1<k>")
    after = [graph.edge_names[e] for e in line_graph(graph)[1, line_graph(graph)[0] == first]]
    assert {name.split("->")[0] for name in after} == {"a0.h2", "a0.h3"}


@pytest.mark.parametrize("name", GRAPHS)
def test_incidence_graph_has_the_paper_counts_and_ends(name: str) -> None:
    graph = GRAPHS[name]
    arcs = incidence_graph(graph)
    assert list(arcs) == ["writer", "reader", "next"]
    total = sum(found.shape[1] for found in arcs.values())
    assert total == 2 * graph.n_edges + line_graph(graph).shape[1]
    nodes = [*graph.writer_names, *(f"<{reader}" for reader in graph.reader_names)]
    nodes += graph.edge_names
    for writer, edge in arcs["writer"].T.tolist():
        assert nodes[edge].startswith(f"{nodes[writer]}->")
    for edge, reader in arcs["reader"].T.tolist():
        assert nodes[edge].endswith(f"->{nodes[reader].removeprefix('<')}")
    assert torch.equal(arcs["next"] - graph.n_nodes, line_graph(graph))


@pytest.mark.parametrize(("transformation", "connectivity"), SETTINGS)
@pytest.mark.parametrize("name", GRAPHS)
def test_sums_are_those_of_the_dense_adjacency(
    name: str, transformation: Transformation, connectivity: Connectivity
) -> None:
    dense = precedes(GRAPHS[name], transformation, connectivity).double()
    n = neighbourhoods(GRAPHS[name], transformation, connectivity)
    h = states(2, n.n_nodes, 3).requires_grad_()
    probe = states(2, n.n_nodes, 3, seed=1)
    for implicit, explicit in (
        (sum_over_predecessors(h, n), dense.T @ h),
        (sum_over_successors(h, n), dense @ h),
    ):
        torch.testing.assert_close(implicit, explicit, rtol=0, atol=1e-10)
        found, expected = (
            torch.autograd.grad((out * probe).sum(), h)[0] for out in (implicit, explicit)
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.slow
@settings(max_examples=25)
@given(choice=CHOICES)
def test_sums_on_random_graphs(choice: tuple[int, int, int, bool, int]) -> None:
    ends = thinned(choice)
    for transformation, connectivity in SETTINGS:
        n = neighbourhoods(ends, transformation, connectivity)
        dense = precedes(ends, transformation, connectivity).double()
        h = states(n.n_nodes, 2, seed=choice[-1])
        torch.testing.assert_close(sum_over_predecessors(h, n), dense.T @ h, rtol=0, atol=1e-10)
        torch.testing.assert_close(sum_over_successors(h, n), dense @ h, rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("transformation", ["line", "incidence"])
@pytest.mark.parametrize("name", GRAPHS)
def test_sums_of_pieces_are_those_of_the_graph(
    name: str, transformation: Transformation, size: int
) -> None:
    n = neighbourhoods(GRAPHS[name], transformation)
    h = states(n.n_nodes, 3)
    run_of = n.runs[0]
    before, after = n.sums_by_set(h.split(size), h)
    for found, expected in zip((before[n.reading], after[run_of]), n.sums(h), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    n_before, n_after = n.degrees_by_set
    assert torch.equal(n_before[n.reading], n.degrees[0])
    assert torch.equal(n_after[run_of], n.degrees[1])


@settings(max_examples=25)
@given(choice=CHOICES)
def test_tiles_hold_every_arc_once(choice: tuple[int, int, int, bool, int]) -> None:
    ends = thinned(choice)
    for transformation in ("line", "incidence"):
        n = neighbourhoods(ends, transformation)
        dense = torch.zeros(n.n_nodes, n.n_nodes, dtype=torch.int64)
        for tile in n.tiles:
            for members, row in zip(tile.members, tile.readers, strict=True):
                dense[members[:, None], row] += 1
        assert torch.equal(dense, precedes(ends, transformation, "observed").long())
        # A node stands where the tiles list it, or behind them all.
        assert torch.equal(n.tiled_row[n.tiled_readers], torch.arange(len(n.tiled_readers)))
        assert (n.tiled_row[n.group_of < 0] == len(n.tiled_readers)).all()
        assert len(n.tiled_readers) + int((n.group_of < 0).sum()) == n.n_nodes


@pytest.mark.parametrize("transformation", ["line", "incidence"])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_complete_order_is_topological(name: str, transformation: Transformation) -> None:
    n = neighbourhoods(GRAPHS[name], transformation, "complete")
    assert n.order is not None
    assert n.order.sort().values.tolist() == list(range(n.n_nodes))
    observed = precedes(GRAPHS[name], transformation, "observed")
    complete = precedes(GRAPHS[name], transformation, "complete")
    assert (complete | ~observed).all()
    assert int(complete.sum()) == n.n_nodes * (n.n_nodes - 1) // 2


@pytest.mark.parametrize(("transformation", "connectivity"), SETTINGS)
def test_renumbering_components_permutes_the_sums(
    transformation: Transformation, connectivity: Connectivity
) -> None:
    ends = Endpoints.of(GRAPHS["grouped"])
    changed = renumbered(ends, seed=3)
    old, new = (neighbourhoods(each, transformation, connectivity) for each in (ends, changed.ends))
    nodes = changed.nodes(transformation)
    h = states(2, old.n_nodes, 3)
    for total in (sum_over_predecessors, sum_over_successors):
        torch.testing.assert_close(total(h[:, nodes], new), total(h, old)[:, nodes])
    # The node of new edge j is the renumbered node of the old edge.
    assert torch.equal(nodes[new.edge_nodes], old.edge_nodes[changed.edges])


def test_without_arcs_every_sum_is_zero() -> None:
    n = neighbourhoods(GRAPHS["plain"], "incidence", "none")
    h = states(n.n_nodes, 2)
    assert not sum_over_predecessors(h, n).any()
    assert not sum_over_successors(h, n).any()
    assert n.tiles == ()


def test_nodes_without_predecessors_have_no_set() -> None:
    graph = GRAPHS["plain"]
    line, incidence = (neighbourhoods(graph, kind) for kind in ("line", "incidence"))
    alone = [graph.edge_names[edge] for edge in (line.group_of < 0).nonzero().flatten()]
    assert {name.split("->")[0] for name in alone} == {"input"}
    assert (incidence.group_of < 0).nonzero().flatten().tolist() == list(range(graph.n_writers))


def test_size_is_linear_where_the_arcs_are_not() -> None:
    graph = ComponentGraph(6, 6)
    line, incidence = (neighbourhoods(graph, kind) for kind in ("line", "incidence"))
    assert len(line.member_node) <= graph.n_edges
    assert len(incidence.member_node) <= 2 * graph.n_edges + graph.n_writers
    assert line_graph(graph).shape[1] > 10 * graph.n_edges
    # Heads of a layer share a shape, so the tiles do not grow with the heads.
    assert len(line.tiles) == len(neighbourhoods(ComponentGraph(6, 3)).tiles)


def test_moving_keeps_everything() -> None:
    n = neighbourhoods(GRAPHS["grouped"], "incidence", "complete")
    moved = n.to("cpu")
    assert isinstance(moved, Neighbourhoods)
    for name, value in vars(n).items():
        same = getattr(moved, name)
        assert torch.equal(value, same) if isinstance(value, torch.Tensor) else value == same


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lines", "observed"), "unknown transformation 'lines'; choose one of line, incidence"),
        (("line", "full"), "unknown connectivity 'full'; choose one of observed, none, complete"),
    ],
)
def test_unknown_words_are_refused(arguments: tuple[Any, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        neighbourhoods(GRAPHS["smallest"], *arguments)


def test_states_of_another_graph_are_refused() -> None:
    n = neighbourhoods(GRAPHS["smallest"])
    for total in (sum_over_predecessors, sum_over_successors):
        with pytest.raises(ValueError, match=f"expected states of {n.n_nodes} nodes, got 100"):
            total(torch.zeros(2, 100, 3), n)
