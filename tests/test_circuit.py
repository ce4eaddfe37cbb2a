"""Circuits against sets of names: algebra, views, pruning; and their files."""

import itertools
import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import graphcircuits
from graphcircuits.circuit import JSON_EDGES, Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.store import StoreError, load_artifact, save_artifact
from graphcircuits.result.result import Result
from tests.graphs import graphs

GRAPH = ComponentGraph(2, 4)
SEEDS = st.integers(0, 999)
DENSITIES = st.sampled_from([0.02, 0.1, 0.3, 0.7])


def draw(graph: ComponentGraph, seed: int, density: float) -> set[str]:
    """Names drawn at random: from almost none to most of the graph."""
    drawn = torch.rand(graph.n_edges, generator=torch.Generator().manual_seed(seed)) < density
    return {name for name, inside in zip(graph.edge_names, drawn.tolist(), strict=True) if inside}


def parse(graph: ComponentGraph, name: str) -> tuple[str, list[str]]:
    """The writer of an edge, and the components it arrives at, from its name alone."""
    writer, reader = name.split("->")
    component = reader.partition("<")[0]
    layer, letter, number = component.partition(".g")
    if not letter:
        return writer, [component]
    heads = graph.n_heads // graph.n_groups
    return writer, [f"{layer}.h{int(number) * heads + head}" for head in range(heads)]


# A set of names


@given(graphs(), SEEDS, SEEDS, DENSITIES)
def test_the_algebra_is_that_of_sets(
    graph: ComponentGraph, one: int, other: int, density: float
) -> None:
    x, y = draw(graph, one, density), draw(graph, other, 0.5)
    a, b = Circuit.from_names(graph, x), Circuit.from_names(graph, y)
    assert ((a | b).edges, (a & b).edges) == (x | y, x & y)
    assert ((a - b).edges, (a ^ b).edges) == (x - y, x ^ y)
    assert (a <= b, a & b <= a, a <= a | b) == (x <= y, True, True)
    assert (a == b, a & b == b & a) == (x == y, True)
    assert hash(a | b) == hash(b | a)
    assert len({a, b, Circuit.from_names(graph, sorted(x))}) == len({frozenset(x), frozenset(y)})
    assert a != x


@given(graphs(), SEEDS, DENSITIES)
def test_names_and_mask_say_the_same(graph: ComponentGraph, seed: int, density: float) -> None:
    names = draw(graph, seed, density)
    circuit = Circuit.from_names(graph, names)
    assert circuit.edges == names
    assert list(circuit) == [name for name in graph.edge_names if name in names]
    assert circuit.mask.tolist() == [name in names for name in graph.edge_names]
    assert len(circuit) == len(names)
    assert [name in circuit for name in graph.edge_names] == circuit.mask.tolist()
    assert Circuit.from_mask(graph, circuit.mask) == Circuit(graph, circuit.mask) == circuit
    assert Circuit.from_names(graph, itertools.chain(circuit, circuit)) == circuit


def test_what_is_no_edge_is_in_no_circuit() -> None:
    whole = Circuit.from_mask(GRAPH, torch.ones(GRAPH.n_edges, dtype=torch.bool))
    for name in ("input->a0.h1", "m1->m0", "m7->logits", "nonsense", "", "->", 3, None):
        assert name not in whole


def test_a_circuit_keeps_its_own_mask() -> None:
    mask = torch.zeros(GRAPH.n_edges, dtype=torch.bool)
    circuit = Circuit.from_mask(GRAPH, mask)
    mask[:] = True
    assert len(circuit) == 0


def test_circuits_print_some_of_their_edges() -> None:
    assert repr(Circuit.from_names(GRAPH, ["m0->logits", "input->m0"])) == (
        f"Circuit({GRAPH}, 2 edges: input->m0, m0->logits)"
    )
    whole = Circuit.from_names(GRAPH, GRAPH.edge_names)
    assert repr(whole).startswith(f"Circuit({GRAPH}, 110 edges: input->a0.h0<q>, ")
    assert repr(whole).endswith(", and 100 more)")
    assert repr(whole - whole).endswith("0 edges: none)")


def test_unknown_circuit_edges_are_all_listed() -> None:
    with pytest.raises(ValueError, match="2 of 3 edges are not in the graph") as caught:
        Circuit.from_names(GRAPH, ["input->m0", "input->m7", "a9.h0->m0"])
    assert "'input->m7'" in str(caught.value)
    assert "'a9.h0->m0'" in str(caught.value)
    with pytest.raises(ValueError, match=r"^500 of 500 .*'input->m10'.* \| and 490 more$"):
        Circuit.from_names(GRAPH, [f"input->m{layer}" for layer in range(2, 502)])


def test_circuits_of_different_graphs_do_not_mix() -> None:
    one = Circuit.from_names(GRAPH, ["input->m0"])
    two = Circuit.from_names(ComponentGraph(3, 4), ["input->m0"])
    assert one != two
    assert one.on(two.graph) == two
    for mix in (Circuit.__or__, Circuit.__and__, Circuit.__sub__, Circuit.__xor__, Circuit.__le__):
        with pytest.raises(ValueError, match=r"different graphs.*\.on\(graph\)"):
            mix(one, two)
    with pytest.raises(ValueError, match="1 of 1 edges are not in the graph"):
        Circuit.from_names(ComponentGraph(3, 4), ["m2->logits"]).on(GRAPH)
    with pytest.raises(ValueError, match=r"mask must have shape \(110,\), got \(109,\)"):
        Circuit.from_mask(GRAPH, torch.zeros(109, dtype=torch.bool))


def test_large_circuits_need_no_names() -> None:
    graph = ComponentGraph(24, 16)
    scores = torch.rand(graph.n_edges, generator=torch.Generator().manual_seed(0))
    result = Result(graph=graph, scores=scores)
    half, pruned = result.circuit(fraction=0.5), result.circuit(fraction=0.5).pruned()
    assert pruned <= half
    assert pruned == half & pruned.on(graph) != half
    assert len({half, pruned, half | pruned}) == 2
    assert len(half) == 231_877 // 2
    assert half.components == {*graph.writer_names, "logits"}
    assert {"edges"}.isdisjoint(vars(half) | vars(pruned))
    assert {"edge_names", "edge_writers", "edge_readers"}.isdisjoint(vars(graph))


# Pruning


def slowly_pruned(graph: ComponentGraph, names: set[str]) -> set[str]:
    """Names of the edges on paths, by walking from both ends until nothing is added."""
    ends = {name: parse(graph, name) for name in names}
    reached, useful = {"input"}, {"logits"}
    for _ in range(2 * graph.n_layers + 1):
        for writer, components in ends.values():
            reached.update(components if writer in reached else ())
            useful.update([writer] if useful.intersection(components) else ())
    return {
        name
        for name, (writer, components) in ends.items()
        if writer in reached and useful.intersection(components)
    }


@given(graphs(), SEEDS, DENSITIES)
def test_pruning_keeps_what_both_ends_reach(
    graph: ComponentGraph, seed: int, density: float
) -> None:
    names = draw(graph, seed, density)
    assert Circuit.from_names(graph, names).pruned().edges == slowly_pruned(graph, names)


@given(graphs(), st.lists(st.integers(0, 10**6), max_size=30))
def test_pruning_keeps_the_edges_on_paths(graph: ComponentGraph, drawn: list[int]) -> None:
    names = {graph.edge_name(edge % graph.n_edges) for edge in drawn}
    paths = nx.DiGraph()
    paths.add_nodes_from(["input", "logits"])
    ends = {name: parse(graph, name) for name in names}
    paths.add_edges_from(
        (writer, component) for writer, components in ends.values() for component in components
    )
    found = nx.all_simple_paths(paths, "input", "logits")
    steps = {step for path in found for step in itertools.pairwise(path)}
    assert Circuit.from_names(graph, names).pruned().edges == {
        name
        for name, (writer, components) in ends.items()
        if any((writer, component) in steps for component in components)
    }


def test_nothing_and_everything_pruned() -> None:
    for graph in (GRAPH, ComponentGraph(1, 1), ComponentGraph(3, 6, n_kv_heads=2, parallel=True)):
        whole = Circuit.from_names(graph, graph.edge_names)
        assert whole.pruned() == whole
        assert (whole - whole).pruned() == whole - whole
        no_input = {name for name in graph.edge_names if not name.startswith("input->")}
        assert len(Circuit.from_names(graph, no_input).pruned()) == 0


# Views


@given(graphs(), SEEDS, DENSITIES)
def test_views_follow_the_names(graph: ComponentGraph, seed: int, density: float) -> None:
    names = draw(graph, seed, density)
    circuit = Circuit.from_names(graph, names)
    ends = {name: parse(graph, name) for name in names}
    assert {
        name: (writer, list(components)) for name, writer, components in circuit.links()
    } == ends
    assert [name for name, _, _ in circuit.links()] == list(circuit)
    assert circuit.nodes == (
        {writer for writer, _ in ends.values()},
        {name.split("->")[1] for name in names},
    )
    assert circuit.components == {
        part for writer, components in ends.values() for part in (writer, *components)
    }
    merged = {
        f"{writer}->{component}" for writer, components in ends.values() for component in components
    }
    assert circuit.head_level() == merged - {"input->logits"}
    drawn = [
        f'"{writer}" -> "{component}"'
        for writer, components in ends.values()
        for component in components
    ]
    lines = circuit.to_dot().split("\n")
    assert sorted(line.strip(" ;").partition(" [")[0] for line in lines if "->" in line) == sorted(
        drawn
    )


def test_circuit_views() -> None:
    graph = ComponentGraph(2, 4)
    edges = ["input->a0.h1<q>", "input->a0.h1<v>", "a0.h1->m1", "m1->logits", "input->logits"]
    circuit = Circuit.from_names(graph, edges)
    writers = frozenset({"input", "a0.h1", "m1"})
    assert circuit.nodes == (writers, frozenset({"a0.h1<q>", "a0.h1<v>", "m1", "logits"}))
    assert circuit.components == {"input", "a0.h1", "m1", "logits"}
    assert circuit.head_level() == {"input->a0.h1", "a0.h1->m1", "m1->logits"}
    assert circuit.on(ComponentGraph(3, 4)).edges == circuit.edges
    assert '"input" -> "a0.h1" [label="q"];' in circuit.to_dot()
    assert '"m1" -> "logits";' in circuit.to_dot()


def test_a_group_edge_arrives_at_every_head() -> None:
    graph = ComponentGraph(1, 4, n_kv_heads=2)
    circuit = Circuit.from_names(graph, ["input->a0.g1<k>", "a0.h3->logits"])
    assert circuit.components == {"input", "a0.h2", "a0.h3", "logits"}
    assert circuit.head_level() == {"input->a0.h2", "input->a0.h3", "a0.h3->logits"}
    assert circuit.pruned() == circuit


def test_isomorphism_keeps_kinds_apart() -> None:
    graph = ComponentGraph(2, 4)

    def circuit(*edges: str) -> Circuit:
        return Circuit.from_names(graph, edges)

    one = circuit("input->a0.h1<q>", "a0.h1->m1", "m1->logits")
    assert one.is_isomorphic(circuit("input->a0.h3<q>", "a0.h3->m0", "m0->logits"))
    assert not one.is_isomorphic(circuit("input->a0.h1<k>", "a0.h1->m1", "m1->logits"))
    assert not one.is_isomorphic(circuit("input->a0.h1<q>", "a0.h1->m1"))
    assert not circuit("input->m0").is_isomorphic(circuit("input->logits"))


# Files

CIRCUITS = {
    "some": Circuit.from_names(GRAPH, ["input->a0.h1<q>", "a0.h1->m1", "m1->logits"]),
    "empty": Circuit.from_names(GRAPH, []),
    "all": Circuit.from_names(GRAPH, GRAPH.edge_names),
    "grouped": Circuit.from_names(ComponentGraph(2, 4, n_kv_heads=2), ["input->a1.g0<k>"]),
    "parallel": Circuit.from_names(ComponentGraph(3, 1, parallel=True), ["m0->m2"]),
}
SUFFIXES = pytest.mark.parametrize("suffix", [".json", ".safetensors"])


@SUFFIXES
@pytest.mark.parametrize("name", CIRCUITS)
def test_files_round_trip(name: str, suffix: str, tmp_path: Path) -> None:
    circuit, path = CIRCUITS[name], tmp_path / f"circuit{suffix}"
    circuit.save(path)
    assert graphcircuits.Circuit.load(path) == circuit
    assert load_artifact(path, "circuit").config["n_heads"] == circuit.graph.n_heads


def test_the_json_holds_names_in_order(tmp_path: Path) -> None:
    CIRCUITS["some"].save(tmp_path / "circuit.json")
    content = json.loads((tmp_path / "circuit.json").read_text())
    assert content["meta"] == {"edges": ["input->a0.h1<q>", "a0.h1->m1", "m1->logits"]}
    assert content["config"] == {"n_layers": 2, "n_heads": 4, "n_kv_heads": 4, "parallel": False}


@SUFFIXES
def test_changed_files_are_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"circuit{suffix}"
    CIRCUITS["some"].save(path)
    data = path.read_bytes()
    for changed in (data.replace(b"graphcircuits", b"graphcircuitz"), data[:-20], b""):
        path.write_bytes(changed)
        with pytest.raises(StoreError, match=str(path)):
            Circuit.load(path)
    other = data.replace(b"a0.h1", b"a0.h2") if suffix == ".json" else data[:-1] + b"\x00"
    assert other != data
    path.write_bytes(other)
    with pytest.raises(StoreError, match="has changed since it was written"):
        Circuit.load(path)


@SUFFIXES
def test_other_files_are_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"other{suffix}"
    save_artifact(path, kind="report", config={}, seed=0)
    with pytest.raises(StoreError, match="holds a 'report' artifact; expected 'circuit'"):
        Circuit.load(path)
    with pytest.raises(ValueError, match=r"is saved as \.json or \.safetensors, got .*\.dot"):
        CIRCUITS["some"].save(tmp_path / "circuit.dot")
    with pytest.raises(ValueError, match=r"is read from \.json or \.safetensors, got .*\.pt"):
        Circuit.load(tmp_path / "circuit.pt")


SMALL = {"n_layers": 2, "n_heads": 4, "n_kv_heads": 4, "parallel": False}


@pytest.mark.parametrize(
    ("config", "meta", "words"),
    [
        (SMALL, {}, "its meta must hold 'edges', a list of names"),
        (SMALL, {"edges": "input->m0"}, "its meta must hold 'edges', a list of names"),
        (SMALL, {"edges": [7]}, "its meta must hold 'edges', a list of names"),
        (SMALL, {"edges": ["input->m9"]}, "1 of 1 edges are not in the graph: unknown edge 'inp"),
        ({"n_layers": 2}, {"edges": []}, "missing key 'n_heads'"),
        (SMALL | {"n_layers": "2"}, {"edges": []}, "'n_layers' must be int, got '2'"),
        (SMALL | {"n_kv_heads": 3}, {"edges": []}, "n_kv_heads must divide n_heads=4, got 3"),
        (
            SMALL | {"n_layers": 10**12},
            {"edges": []},
            "names are stored for graphs of up to 262,144",
        ),
        (
            SMALL | {"n_heads": 10**9, "n_kv_heads": 1},
            {"edges": []},
            f"nodes and {JSON_EDGES:,} edges, this one has",
        ),
    ],
)
def test_whole_files_with_wrong_content(
    config: dict[str, Any], meta: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "circuit.json"
    save_artifact(path, kind="circuit", config=config, seed=None, meta=meta)
    with pytest.raises(StoreError, match="is not a whole circuit") as caught:
        Circuit.load(path)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("config", "tensors", "words"),
    [
        (SMALL, {}, "it must hold a tensor 'mask' of booleans"),
        (SMALL, {"mask": torch.zeros(110)}, "it must hold a tensor 'mask' of booleans"),
        (SMALL, {"mask": torch.zeros(9) > 0}, "mask must have shape (110,), got (9,)"),
        (SMALL | {"n_layers": 10**12}, {"mask": torch.zeros(110) > 0}, "got (110,)"),
    ],
)
def test_whole_tensors_with_wrong_content(
    config: dict[str, Any], tensors: dict[str, torch.Tensor], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "circuit.safetensors"
    save_artifact(path, kind="circuit", config=config, seed=None, tensors=tensors)
    with pytest.raises(StoreError, match="is not a whole circuit") as caught:
        Circuit.load(path)
    assert words in str(caught.value)


def test_circuits_of_very_large_graphs_are_kept_as_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphcircuits.circuit.JSON_EDGES", 109)
    with pytest.raises(ValueError, match=r"this one has 38 and 110; save it as \.safetensors"):
        CIRCUITS["some"].save(tmp_path / "circuit.json")
    CIRCUITS["some"].save(tmp_path / "circuit.safetensors")
    assert Circuit.load(tmp_path / "circuit.safetensors") == CIRCUITS["some"]
