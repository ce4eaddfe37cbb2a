"""Searching again: prompts drawn with repeats, ways to search, and figures by hand."""

from collections import Counter
from typing import Any

import pytest
import torch

import graphcircuits as gc
from graphcircuits.certificates import searching
from graphcircuits.certificates.judging import Clock
from graphcircuits.certificates.searching import (
    Search,
    Searches,
    asked_of_searches,
    overlap,
    resampled,
    search_again,
    stable,
)
from graphcircuits.circuit import Circuit
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.fresh import prompt_hashes
from graphcircuits.task.pairs import Pairs
from tests.certificates.judges import PLANTED, of_edges, planted, tiny


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def found(graph: gc.ComponentGraph, *circuits: list[int]) -> Searches:
    """Fresh searches that found these edges."""
    chosen = [of_edges(graph, edges) for edges in circuits]
    return Searches(
        [Result(graph=graph, scores=one.mask.float(), chosen=one) for one in chosen], []
    )


# Prompts drawn again


def test_pairs_of_one_clean_prompt_are_drawn_together() -> None:
    pairs = tiny(6)[1]
    twice = Pairs.concatenate([pairs, pairs[:2]])
    size = Counter(prompt_hashes(twice))
    met: Counter[str] = Counter()
    for seed in range(20):
        again = resampled(twice, generator(seed))
        counts = Counter(prompt_hashes(again))
        assert {*counts} <= {*size}
        assert all(count % size[name] == 0 for name, count in counts.items())
        # As many prompts as there are different ones.
        assert sum(count // size[name] for name, count in counts.items()) == len(size)
        met += counts
    assert {*met} == {*size}


def test_what_is_drawn_follows_the_generator() -> None:
    pairs = tiny(6)[1]
    one, again, other = (prompt_hashes(resampled(pairs, generator(seed))) for seed in (0, 0, 1))
    assert one == again
    assert one != other


def test_every_search_sees_other_prompts_and_another_seed() -> None:
    subject, pairs, _ = tiny()
    seen: list[tuple[tuple[str, ...], int]] = []

    def find(subject: Transformer, pairs: Pairs, seed: int) -> Result:
        seen.append((tuple(prompt_hashes(pairs)), seed))
        circuit = of_edges(subject.graph, [0, seed])
        return Result(graph=subject.graph, scores=circuit.mask.float(), chosen=circuit)

    again = search_again(
        subject,
        pairs,
        Search("by hand", find),
        times=4,
        seed=3,
        clock=Clock(),
    )
    assert [seed for _, seed in seen] == [4, 5, 6, 7]
    assert len({prompts for prompts, _ in seen}) == 4
    assert [result.circuit().edge_numbers for result in again.results] == [
        [0, seed] for seed in (4, 5, 6, 7)
    ]
    assert again.problems == []


def test_searches_that_find_nothing_are_told_of() -> None:
    subject, pairs, _ = tiny()

    def find(subject: Transformer, pairs: Pairs, seed: int) -> Result:
        if seed % 2:
            raise ValueError(f"nothing by seed {seed}")
        circuit = of_edges(subject.graph, [seed])
        return Result(graph=subject.graph, scores=circuit.mask.float(), chosen=circuit)

    way = Search("by hand", find)
    again = search_again(subject, pairs, way, times=4, seed=0, clock=Clock())
    assert (len(again.results), again.problems) == (2, ["nothing by seed 1", "nothing by seed 3"])
    over = search_again(subject, pairs, way, times=4, seed=0, clock=Clock(1e-9))
    assert (over.results, over.problems) == ([], ["time was over after 0 of 4 fresh searches"])


def test_a_result_without_a_circuit_is_a_problem() -> None:
    subject, pairs, _ = tiny()

    def find(subject: Transformer, pairs: Pairs, seed: int) -> Result:
        return Result(graph=subject.graph, scores=torch.rand(subject.graph.n_edges))

    again = search_again(subject, pairs, Search("", find), times=2, seed=0, clock=Clock())
    assert again.results == []
    assert len(again.problems) == 2


# Ways to search


def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `localize` and `refine` are called with, in place of running them."""
    calls: dict[str, Any] = {}
    subject = tiny()[0]
    made = Result(graph=subject.graph, scores=torch.zeros(subject.graph.n_edges))

    def localize(*given: Any, **options: Any) -> Result:
        calls["localize"] = (given[2:], options)
        return made

    def refine(*given: Any, **options: Any) -> Result:
        calls["refine"] = options
        assert given[2] is made
        return made

    monkeypatch.setattr(searching, "localize", localize)
    monkeypatch.setattr(searching, "refine", refine)
    return calls


def of_method(method: str, **options: Any) -> Result:
    graph = tiny()[0].graph
    return Result(graph=graph, scores=torch.zeros(graph.n_edges), method=method, options=options)


def test_a_result_is_searched_for_as_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, (subject, pairs, _) = asked(monkeypatch), tiny()
    way = Search.of(of_method("eap-ig", steps=7), 0.7)
    assert way.words == "eap-ig"
    way.find(subject, pairs, 5)
    assert calls == {
        "localize": (("eap-ig",), {"keep": 0.7, "seed": 5, "keep_prompts": 0, "steps": 7})
    }


def test_a_refined_result_is_refined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, (subject, pairs, _) = asked(monkeypatch), tiny()
    way = Search.of(of_method("eap", refine_steps=9), 0.7)
    assert way.words == "eap, refined"
    way.find(subject, pairs, 5)
    assert calls == {
        "localize": (("eap",), {"keep": None, "seed": 5, "keep_prompts": 0}),
        "refine": {"keep": 0.7, "steps": 9},
    }
    Search.of(of_method("eap", refine_seconds=2.0), 0.7).find(subject, pairs, 5)
    assert calls["refine"] == {"keep": 0.7, "seconds": 2.0}


def test_other_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, (subject, pairs, _) = asked(monkeypatch), tiny()

    def mine(subject: Transformer, pairs: Pairs, seed: int) -> Result:
        return of_method("mine")

    assert Search.of(mine, 0.7) == Search("mine", mine)
    usual, named = Search.of(None, 0.6), Search.of("eap", 0.8)
    assert (usual.words, named.words) == ("the method that localize chooses", "eap")
    usual.find(subject, pairs, 1)
    assert calls["localize"] == ((None,), {"keep": 0.6, "seed": 1, "keep_prompts": 0})
    named.find(subject, pairs, 2)
    assert calls["localize"] == (("eap",), {"keep": 0.8, "seed": 2, "keep_prompts": 0})


@pytest.mark.parametrize("method", ["my-own", ""])
def test_a_method_that_is_not_known_cannot_search_again(method: str) -> None:
    told = method or "a method without a name"
    with pytest.raises(ValueError, match=f"was found by {told}, which is no method of this pack"):
        Search.of(of_method(method), 0.9)


def test_searches_ask_for_what_the_circuit_keeps_within_reason() -> None:
    assert asked_of_searches(0.83) == 0.83
    assert (asked_of_searches(0.1), asked_of_searches(1.2)) == (0.5, 0.98)


# What is found again


def test_overlap_is_that_of_jaccard() -> None:
    graph = tiny()[0].graph

    def shared(one: list[int], other: list[int]) -> float:
        return overlap(of_edges(graph, one), of_edges(graph, other))

    assert shared([0, 1, 2], [1, 2, 3]) == pytest.approx(2 / 4)
    assert shared([0, 1, 2, 3], [0]) == pytest.approx(1 / 4)
    assert (shared([0, 1], [0, 1]), shared([0], [1]), shared([], [])) == (1, 0, 1)


def test_figures_of_searches_by_hand() -> None:
    subject, _, judge = planted()
    graph = subject.graph
    circuit = Circuit.from_names(graph, PLANTED)
    a, b, c = circuit.edge_numbers
    spare = graph.edge_index("input->a0.h3<q>")
    again = found(graph, [a, b, c], [a, b, c, spare], [a, b, c], [a, b, spare])
    assert again.came_back[[a, b, c, spare]].tolist() == pytest.approx([1, 1, 0.75, 0.5])
    assert again.core == circuit
    line = stable(judge, circuit, again, 0.5, 0.95)
    overlaps = [1, 3 / 4, 1, 2 / 4]
    assert line.details["overlaps"] == pytest.approx(overlaps)
    assert line.value == pytest.approx(sum(overlaps) / 4)
    assert line.interval is not None
    assert 0.5 <= line.interval[0] < line.value < line.interval[1] <= 1
    assert line.passed
    assert line.details["sizes"] == [3, 4, 3, 3]
    # Six pairs: 3/4, 1, 3/4, and with the last one 2/4, 3/4, 2/4.
    assert line.details["among_themselves"] == pytest.approx((2 * 0.75 + 1 + 2 * 0.5 + 0.75) / 6)
    assert line.details["core"] == {"edges": 3, "kept": pytest.approx(judge.kept(circuit))}
    assert line.details["never_came_back"] == 0
    assert not stable(judge, circuit, again, 0.9, 0.95).passed


def test_edges_that_never_came_back_fail_it() -> None:
    subject, _, judge = planted()
    graph, circuit = subject.graph, Circuit.from_names(subject.graph, PLANTED)
    a, b, _ = circuit.edge_numbers
    again = found(graph, [a, b], [a, b])
    line = stable(judge, circuit, again, 0.5, 0.95)
    assert line.value == pytest.approx(2 / 3)
    assert not line.passed
    assert line.details["never_came_back"] == 1
    assert "; 1 of its edges never came back; a core of 0 edges keeps 0.00" in line.sentence
    assert stable(judge, circuit, again, 0.5, 0.6).passed
    # Two searches say nothing of how searches differ.
    assert line.interval is None
    assert stable(judge, circuit, found(graph, [a]), 0.1, 0.1).details["among_themselves"] is None


def test_a_circuit_that_every_search_finds_is_stable() -> None:
    subject, _, judge = planted()
    circuit = Circuit.from_names(subject.graph, PLANTED)
    line = stable(judge, circuit, found(subject.graph, *[circuit.edge_numbers] * 5), 1.0, 1.0)
    assert line.passed
    assert (line.value, line.interval) == (1.0, (1.0, 1.0))


def test_the_core_has_no_edges_on_no_path() -> None:
    graph = planted()[0].graph
    edges = Circuit.from_names(graph, [*PLANTED, "input->a1.h2<v>"]).edge_numbers
    assert {*found(graph, edges).core} == {*PLANTED}


def test_methods_along_paths_are_searched_again_along_paths() -> None:
    case = gc.load_case("ib-3")
    subject, pairs = case.subject(), case.pairs(8)
    result = gc.localize(subject, pairs, "eap+paths", keep=None)
    search = Search.of(result, 0.9)
    assert search.words == "eap+paths"
    assert torch.equal(search.find(subject, pairs, 0).scores, result.scores)


def test_what_no_method_found_is_not_searched_again() -> None:
    graph = gc.load_case("ib-3").graph
    result = Result(graph=graph, scores=torch.zeros(graph.n_edges), method="mine+paths")
    with pytest.raises(
        ValueError, match=r"the result was found by mine\+paths, which is no method"
    ):
        Search.of(result, 0.9)
