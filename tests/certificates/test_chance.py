"""Random circuits: what they keep of the circuit that they stand beside, and where they end."""

from collections import Counter

import pytest
import torch

import graphcircuits as gc
from graphcircuits.certificates.chance import by_chance, random_connected, rewired
from graphcircuits.certificates.judging import share_interval
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from tests.certificates.judges import PLANTED, drawn, planted, tiny

pytestmark = pytest.mark.usefixtures("unchecked")
GRAPHS = (
    ComponentGraph(2, 4),
    ComponentGraph(1, 2),
    ComponentGraph(3, 4, n_kv_heads=2),
    ComponentGraph(2, 2, parallel=True),
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ends(circuit: Circuit) -> tuple[Counter[str], Counter[str]]:
    """How many edges each writer and each reader has, by the names of the edges."""
    sides = [name.split("->") for name in circuit]
    return Counter(a for a, _ in sides), Counter(b for _, b in sides)


@pytest.mark.parametrize("graph", GRAPHS)
def test_rewired_circuits_have_the_same_degrees(graph: ComponentGraph) -> None:
    moved = 0
    for seed in range(16):
        circuit = drawn(graph, 0.2 + 0.03 * seed, seed)
        before, other = circuit.mask.clone(), rewired(circuit, generator(seed))
        assert ends(other) == ends(circuit)
        assert len(other) == len(circuit)
        assert torch.equal(circuit.mask, before)
        moved += len(other - circuit)
    assert moved > 0


def test_nothing_to_exchange() -> None:
    graph = GRAPHS[0]
    for names in ([], ["input->m0"], ["input->m0", "input->m1"], ["input->m0", "m0->m1"]):
        circuit = Circuit.from_names(graph, names)
        # A single edge, one writer, and where m0 would have to read itself.
        assert rewired(circuit, generator()) == circuit


@pytest.mark.parametrize("graph", GRAPHS)
def test_random_circuits_are_on_paths_and_no_larger(graph: ComponentGraph) -> None:
    for size in (1, 3, 10, 30, graph.n_edges // 2, 13):
        circuit = random_connected(graph, size, generator(size))
        assert circuit.pruned() == circuit
        assert 0 < len(circuit) <= size
        if size <= graph.n_edges // 2:
            assert len(circuit) == size


def test_random_circuits_differ_and_follow_the_generator() -> None:
    several = {random_connected(GRAPHS[0], 12, generator(seed)) for seed in range(10)}
    assert len(several) == 10
    assert random_connected(GRAPHS[0], 12, generator(3)) in several


def test_paths_reach_every_edge() -> None:
    graph = GRAPHS[1]
    met = torch.zeros(graph.n_edges, dtype=torch.bool)
    source = generator()
    for _ in range(60):
        met |= random_connected(graph, 5, source).mask
    assert met.all()


def test_a_planted_circuit_is_not_matched_by_chance() -> None:
    subject, _, judge = planted()
    line = by_chance(judge, Circuit.from_names(subject.graph, PLANTED), 0.05, generator(), n=20)
    assert (line.passed, line.value) == (True, 0.0)
    assert line.details["connected"]["edges"] == pytest.approx(3)
    assert line.interval == pytest.approx(share_interval(0, line.details["connected"]["circuits"]))
    assert line.details["connected"]["best"] < 0.9


def test_a_circuit_that_does_nothing_is_matched_by_chance() -> None:
    """Counted by hand: how many of the same random circuits are at least as faithful."""
    subject, pairs, judge = planted()
    idle = Circuit.from_names(subject.graph, ["input->a0.h3<q>", "a0.h3->logits"])
    line = by_chance(judge, idle, 0.05, generator(), n=8)
    assert not line.passed
    source = generator()
    connected = [random_connected(subject.graph, 2, source) for _ in range(8)]
    exchanged = [rewired(idle, source) for _ in range(8)]
    (ours,) = gc.faithfulness(subject, pairs, [idle])
    shares = {}
    for name, some in (("connected", connected), ("same degrees", exchanged)):
        if others := [one for one in some if one != idle]:
            values = gc.faithfulness(subject, pairs, others)
            as_good = sum(value >= ours for value in values)
            shares[name] = as_good / len(values)
            assert line.details[name]["as_good"] == as_good
            assert line.details[name]["mean"] == pytest.approx(sum(values) / len(values))
            assert line.details[name]["best"] == pytest.approx(max(values))
    assert line.value == pytest.approx(max(shares.values()))
    assert {*line.details} == {*shares}


def test_where_there_is_no_other_circuit() -> None:
    subject, _, judge = tiny()
    everything = Circuit.from_mask(subject.graph, torch.ones(subject.graph.n_edges) > 0)
    direct = Circuit.from_names(subject.graph, ["input->logits"])
    for circuit in (everything, direct):
        with pytest.raises(ValueError, match="no other circuit of this size or these degrees"):
            by_chance(judge, circuit, 0.05, generator(), n=3)
