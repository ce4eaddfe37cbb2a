"""What cuts cost, against `faithfulness` of the cut circuits; padded circuits; a backup by hand."""

import pytest
import torch

import graphcircuits as gc
from graphcircuits.certificates import cuts
from graphcircuits.certificates.cuts import (
    EdgeCosts,
    complete,
    edge_costs,
    minimal,
    necessary,
    parts_of,
    without,
)
from graphcircuits.circuit import Circuit
from graphcircuits.task.pairs import Pairs
from tests.certificates.judges import PLANTED, backed_up, drawn, judging, of_edges, planted, tiny


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# Necessary


def test_necessary_is_the_faithfulness_of_all_other_edges() -> None:
    subject, pairs, judge = tiny()
    circuit = drawn(subject.graph, 0.5, 0)
    others = [edge for edge in range(subject.graph.n_edges) if edge not in circuit.edge_numbers]
    line = necessary(judge, circuit, 0.5)
    expected = gc.faithfulness(subject, pairs, [of_edges(subject.graph, others)])
    assert [line.value] == pytest.approx(expected)
    assert line.interval is not None
    assert line.interval[0] <= line.value <= line.interval[1]
    assert necessary(judge, circuit, line.value + 0.01).passed
    assert not necessary(judge, circuit, line.value - 0.01).passed


def test_without_all_edges_nothing_is_left() -> None:
    subject, _, judge = tiny()
    everything = without(of_edges(subject.graph, []))
    assert len(everything) == subject.graph.n_edges
    line = necessary(judge, everything, 0.5)
    assert (line.value, line.passed) == (0.0, True)
    assert line.interval == pytest.approx((0, 0))


# Minimal


def test_costs_are_those_of_circuits_without_each_edge() -> None:
    subject, pairs, judge = tiny()
    circuit = drawn(subject.graph, 0.8, 1)
    costs = edge_costs(judge, circuit, 100, generator())
    assert costs.edges == circuit.edge_numbers
    (whole,) = gc.faithfulness(subject, pairs, [circuit])
    for edge, cost in zip(costs.edges, costs.by_prompt.mean(1).tolist(), strict=True):
        rest = of_edges(subject.graph, [one for one in circuit.edge_numbers if one != edge])
        (left,) = gc.faithfulness(subject, pairs, [rest])
        assert cost == pytest.approx(whole - left, abs=1e-9)
    assert float(costs.by_prompt.abs().max()) > 0.01


def test_of_many_edges_some_are_drawn() -> None:
    subject, _, judge = tiny()
    circuit = drawn(subject.graph, 0.8, 1)
    every = edge_costs(judge, circuit, 100, generator())
    some = edge_costs(judge, circuit, 4, generator())
    assert len(some.edges) == 4
    assert some.edges == sorted(some.edges)
    assert {*some.edges} < {*every.edges}
    rows = [every.edges.index(edge) for edge in some.edges]
    assert torch.allclose(some.by_prompt, every.by_prompt[rows])
    line = minimal(circuit, some, 0.5)
    assert line.sentence.startswith(f"of 4 edges drawn from {len(circuit)}, ")
    hits = round(line.value * 4)
    assert line.interval == pytest.approx(cuts.share_interval(hits, 4))


def test_useless_edges_fail_and_are_named() -> None:
    """On paths of their own, so that they are no dead ends, but nothing depends on them."""
    subject, _, judge = planted()
    useless = ("input->a0.h3<q>", "input->a0.h3<k>", "a0.h3->logits")
    needed = Circuit.from_names(subject.graph, PLANTED)
    padded = Circuit.from_names(subject.graph, [*PLANTED, *useless])
    assert padded.pruned() == padded
    good, bad = (
        minimal(circuit, edge_costs(judge, circuit, 100, generator()), 0.95)
        for circuit in (needed, padded)
    )
    assert (good.passed, good.value, good.details["idle"]) == (True, 1.0, [])
    assert not bad.passed
    assert bad.value == pytest.approx(0.5)
    assert {*bad.details["idle"]} == {*useless}
    assert {*bad.details["costs"]} == {*PLANTED, *useless}
    assert all(bad.details["costs"][edge] > 0.5 for edge in PLANTED)


def test_dead_ends_are_idle() -> None:
    subject, _, judge = planted()
    dead = Circuit.from_names(subject.graph, [*PLANTED, "input->a1.h2<v>"])
    line = minimal(dead, edge_costs(judge, dead, 100, generator()), 0.95)
    assert line.details["idle"] == ["input->a1.h2<v>"]


def test_what_counts_as_idle_depends_on_the_size() -> None:
    """A tenth of an even share: 1/200 of twenty edges, never more than 1/100."""
    subject = planted()[0]
    twenty = of_edges(subject.graph, range(20))
    costs = torch.tensor([0.0051, 0.0049]).double().repeat(10)[:, None].expand(-1, 8)
    line = minimal(twenty, EdgeCosts([*range(20)], costs), 0.5)
    assert line.details["measurable_from"] == pytest.approx(0.005)
    assert (line.value, line.interval) == (0.5, (0.5, 0.5))
    three = of_edges(subject.graph, range(3))
    costs = torch.tensor([0.011, 0.009, 0.5]).double()[:, None].expand(-1, 3)
    line = minimal(three, EdgeCosts([0, 1, 2], costs), 0.5)
    assert line.value == pytest.approx(2 / 3)
    # Of three prompts no interval is given.
    assert line.interval is None


# Complete


def test_the_parts_are_what_components_write_and_halves() -> None:
    subject = planted()[0]
    circuit = drawn(subject.graph, 0.3, 2)
    parts = parts_of(circuit, generator())
    graph = subject.graph
    by_component = [part for part in parts if not part.name.startswith("half")]
    assert len(by_component) + cuts.RANDOM_PARTS == len(parts)
    writers = {graph.writer_names[int(graph.edge_writers[edge])] for edge in circuit.edge_numbers}
    assert {part.name for part in by_component} == writers - {"input"}
    for part in by_component:
        names = graph.names_of(part.edges.nonzero().flatten())
        assert names == [one for one in circuit if one.startswith(f"{part.name}->")]
    counts = [int(part.edges.sum()) for part in by_component]
    assert counts == sorted(counts, reverse=True)
    assert all(of_mask(subject, part.edges) <= circuit for part in parts)


def of_mask(subject: gc.Transformer, mask: torch.Tensor) -> Circuit:
    return Circuit.from_mask(subject.graph, mask)


def test_the_value_is_the_largest_distance_of_any_part() -> None:
    subject, pairs, judge = tiny()
    circuit = drawn(subject.graph, 0.5, 3)
    line = complete(judge, circuit, 0.6, generator())
    apart = {}
    for part in parts_of(circuit, generator()):
        cut = {*part.edges.nonzero().flatten().tolist()}
        inside = of_edges(subject.graph, [one for one in circuit.edge_numbers if one not in cut])
        outside = [one for one in range(subject.graph.n_edges) if one not in cut]
        a, b = gc.faithfulness(subject, pairs, [inside, of_edges(subject.graph, outside)])
        apart[part.name] = abs(max(b, 0) - max(a, 0))
        assert line.details["by_part"][part.name] == pytest.approx({"circuit": a, "subject": b})
    assert line.value == pytest.approx(max(apart.values()))
    assert line.value > 0.05
    assert apart[line.details["part"]] == pytest.approx(line.value)


def test_of_all_edges_circuit_and_subject_are_the_same() -> None:
    subject, _, judge = tiny()
    everything = without(of_edges(subject.graph, []))
    line = complete(judge, everything, 0.01, generator())
    assert line.passed
    assert line.value == pytest.approx(0, abs=1e-9)


@pytest.mark.usefixtures("unchecked")
def test_a_backup_is_found_and_named() -> None:
    subject, circuit = backed_up()
    clean = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [0, 3]])
    scored = torch.ones(clean.shape, dtype=torch.bool)
    pairs = Pairs(clean=clean, corrupted=clean.roll(1, 0), scored=scored, loss_name="l1")
    # What is written by hand is what it says.
    logits = subject.logits(clean)[..., 0]
    assert logits.tolist() == (clean - 2.0).tolist()
    judge = judging(subject, pairs)
    assert judge.kept(circuit) == pytest.approx(1)
    line = complete(judge, circuit, 0.6, generator())
    assert not line.passed
    assert line.value == pytest.approx(1)
    assert line.details["backups"] == pytest.approx({"m1": 1})
    assert line.sentence.endswith("; m1 takes over")
    # With m1 it is complete.
    names = [*circuit, "input->m1", "m1->logits"]
    whole = complete(judge, Circuit.from_names(subject.graph, names), 0.6, generator())
    assert whole.passed
    assert whole.value == pytest.approx(0, abs=1e-9)
    assert whole.details["backups"] == {}


def test_a_circuit_of_the_input_alone_has_no_part() -> None:
    subject, _, judge = tiny()
    direct = Circuit.from_names(subject.graph, ["input->logits"])
    quiet = torch.Generator().manual_seed(0)
    parts = parts_of(direct, quiet)
    assert {part.name[:4] for part in parts} <= {"half"}
    with pytest.raises(ValueError, match="a circuit of the input alone has no part to cut"):
        complete(judge, of_edges(subject.graph, []), 0.6, generator())
