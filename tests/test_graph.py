"""The component graph: counts, names, order."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.graph import ComponentGraph
from tests.graphs import graphs


def component(name: str) -> tuple[int, int]:
    """Where a writer or reader stands: its layer, and 0 for attention or 1 for an MLP."""
    if name in ("input", "logits"):
        return (-1, 0) if name == "input" else (1000, 0)
    return int(name[1:].split(".")[0]), int(name.startswith("m"))


def enumerated(graph: ComponentGraph) -> list[str]:
    """The edges by the definition: every writer to every later reader, in order."""
    edges = []
    for reader, writer in itertools.product(graph.reader_names, graph.writer_names):
        start, end = component(writer), component(reader)
        beside = start[0] == end[0] and (graph.parallel or start[1] == end[1])
        if start < end and not beside:
            edges.append(f"{writer}->{reader}")
    return edges


@pytest.mark.parametrize(
    ("layers", "nodes", "edges"),
    [(2, 38, 110), (3, 56, 262), (4, 74, 479), (6, 110, 1108), (7, 128, 1520)],
)
def test_counts_of_the_paper(layers: int, nodes: int, edges: int) -> None:
    graph = ComponentGraph(layers, 4)
    assert (graph.n_nodes, graph.n_edges) == (nodes, edges)
    assert len(graph.edge_names) == edges


@given(graphs())
def test_edges_are_those_of_the_definition(graph: ComponentGraph) -> None:
    assert graph.edge_names == enumerated(graph)
    assert graph.n_edges == len(graph.edge_names) == int(graph.reads.sum())


@given(graphs())
def test_names_round_trip(graph: ComponentGraph) -> None:
    everything = range(graph.n_edges)
    assert [graph.edge_name(edge) for edge in everything] == graph.edge_names
    assert graph.names_of(torch.arange(graph.n_edges).flip(0)) == graph.edge_names[::-1]
    assert [graph.find_edge(name) for name in graph.edge_names] == list(everything)
    assert graph.edge_indices(graph.edge_names).tolist() == list(everything)


@given(graphs())
def test_endpoints_agree_with_names_and_offsets(graph: ComponentGraph) -> None:
    writers, readers = graph.edge_writers, graph.edge_readers
    ends = zip(writers.tolist(), readers.tolist(), strict=True)
    names = [
        f"{graph.writer_names[writer]}->{graph.reader_names[reader]}" for writer, reader in ends
    ]
    assert names == graph.edge_names
    assert torch.equal(graph.offsets[readers] + writers, torch.arange(graph.n_edges))
    some = torch.arange(graph.n_edges)[::3].flip(0)
    assert all(map(torch.equal, graph.ends(some), (writers[some], readers[some])))


@given(graphs())
def test_readers_know_layer_kind_stream_and_component(graph: ComponentGraph) -> None:
    for reader, name in enumerate(graph.reader_names):
        layer, is_mlp = component(name)
        kind = graph.reader_kinds[reader]
        assert int(graph.reader_layer[reader]) == min(layer, graph.n_layers)
        assert kind == ("logits" if name == "logits" else "mlp" if is_mlp else name[-2])
        stream = int(graph.reader_stream[reader])
        assert stream == 2 * min(layer, graph.n_layers) + is_mlp
        assert int(graph.stream_reads[stream]) == int(graph.reads[reader])
        served = [graph.writer_names[writer] for writer in graph.components_of(reader)]
        if kind == "q":
            assert served == [name.removesuffix("<q>")]
        if kind in ("mlp", "logits"):
            assert served == ([name] if kind == "mlp" else [])
    for writer, name in enumerate(graph.writer_names):
        assert int(graph.writer_layer[writer]) == component(name)[0]


def test_groups_serve_consecutive_heads() -> None:
    graph = ComponentGraph(1, 4, n_kv_heads=2)
    assert graph.reader_names[4:8] == ("a0.g0<k>", "a0.g1<k>", "a0.g0<v>", "a0.g1<v>")
    assert [list(graph.components_of(reader)) for reader in range(4, 8)] == [[1, 2], [3, 4]] * 2


def test_every_head_its_own_keys_is_the_same_graph() -> None:
    assert ComponentGraph(2, 4) == ComponentGraph(2, 4, n_kv_heads=4)
    assert hash(ComponentGraph(2, 4)) == hash(ComponentGraph(2, 4, n_kv_heads=4))
    assert ComponentGraph(2, 4) != ComponentGraph(2, 4, parallel=True)


def test_a_graph_of_forty_million_edges_stays_lazy() -> None:
    graph = ComponentGraph(80, 64)
    assert graph.n_edges == 39_667_961
    assert "reads" not in vars(graph)
    name = "a40.h3->m77"
    assert graph.edge_name(graph.edge_index(name)) == name
    assert "edge_writers" not in vars(graph)
    assert "edge_names" not in vars(graph)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("input->a0.h1", "no reader 'a0.h1' (near: a0.h1<"),
        ("a0.h9->m1", "no writer 'a0.h9' (near: a0.h"),
        ("a00.h1->m1", "no writer 'a00.h1'"),
        ("m2->logits", "no writer 'm2'"),
        ("input->a0.h4<q>", "no reader 'a0.h4<q>'"),
        ("input->a0.h01<q>", "no reader 'a0.h01<q>'"),
        ("input->a0.g0<k>", "no reader 'a0.g0<k>'"),
        ("nonsense", "no writer 'nonsense' (near: none); no reader ''"),
        ("a1.h0->a0.h0<q>", "reads only the writers up to input, and a1.h0 comes after"),
        ("m1->m1", "reads only the writers up to a1.h3, and m1 comes after"),
    ],
)
def test_unknown_edges_are_explained(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"unknown edge '{name}'") as caught:
        ComponentGraph(2, 4).edge_index(name)
    assert hint in str(caught.value)
    assert ComponentGraph(2, 4).find_edge(name) is None


def test_numbers_out_of_range() -> None:
    with pytest.raises(IndexError, match=r"edge must be in 0\.\.109, got 110"):
        ComponentGraph(2, 4).edge_name(110)
    with pytest.raises(IndexError, match=r"edges must be in 0\.\.109, got -1\.\.3"):
        ComponentGraph(2, 4).names_of(torch.tensor([3, -1]))
    assert ComponentGraph(2, 4).names_of(torch.tensor([], dtype=torch.int64)) == []
    with pytest.raises(ValueError, match="must be at least 1, got n_layers=0"):
        ComponentGraph(0, 4)
    with pytest.raises(ValueError, match="n_kv_heads must divide n_heads=4, got 3"):
        ComponentGraph(2, 4, n_kv_heads=3)


# Head level


@given(graphs(), st.integers(0, 99))
def test_promotion_is_the_maximum_over_q_k_v(graph: ComponentGraph, seed: int) -> None:
    scores = torch.randn(graph.n_edges, generator=torch.Generator().manual_seed(seed))
    expected: dict[str, float] = {}
    for edge, name in enumerate(graph.edge_names):
        writer = name.split("->")[0]
        components = [
            graph.writer_names[c] for c in graph.components_of(int(graph.edge_readers[edge]))
        ]
        for component in components or ["logits"]:
            score = float(scores[edge])
            expected[f"{writer}->{component}"] = max(
                score, expected.get(f"{writer}->{component}", score)
            )
    del expected["input->logits"]
    promoted = graph.promote(scores)
    assert dict(zip(graph.head_edges, promoted.tolist(), strict=True)) == expected
    assert torch.equal(graph.promote(scores > 0), promoted > 0)
    assert torch.equal(graph.promote(torch.stack([scores, -scores]))[0], promoted)


def test_head_level_counts() -> None:
    graph = ComponentGraph(2, 4)
    assert len(graph.head_edges) == 53
    assert "input->logits" not in graph.head_edges
    assert graph.head_edges[:6] == (
        *(f"input->a0.h{head}" for head in range(4)),
        "input->m0",
        "a0.h0->m0",
    )
