"""Scores along paths: against all paths one by one, and what they leave as it was."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor.paths import LEFT, along_paths
from tests.predictor.graphs import GRAPHS, seeded, states

SMALL = {
    "smallest": ComponentGraph(1, 1),
    "one layer": ComponentGraph(1, 2),
    "two layers": ComponentGraph(2, 2),
    "grouped": ComponentGraph(2, 2, n_kv_heads=1),
    "grouped in one layer": ComponentGraph(1, 4, n_kv_heads=2),
    "parallel": ComponentGraph(2, 2, parallel=True),
    "parallel and grouped": ComponentGraph(2, 2, n_kv_heads=1, parallel=True),
}


def paths(graph: ComponentGraph, writer: int = 0) -> Iterator[tuple[int, ...]]:
    """Every way from a writer to `logits`, as edges."""
    ends = zip(graph.edge_writers.tolist(), graph.edge_readers.tolist(), strict=True)
    for edge, (start, reader) in enumerate(ends):
        if start != writer:
            continue
        if reader == graph.n_readers - 1:
            yield (edge,)
            continue
        for fed in graph.components_of(reader):
            yield from ((edge, *rest) for rest in paths(graph, fed))


def best_path(scores: Tensor, graph: ComponentGraph) -> Tensor:
    """How good the best path through each edge is."""
    best = torch.full_like(scores, -torch.inf)
    values = scores.tolist()
    for path in paths(graph):
        worst = min(values[edge] for edge in path)
        for edge in path:
            best[edge] = max(float(best[edge]), worst)
    return best


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SMALL)
def test_an_edge_counts_for_the_best_of_all_paths_through_it(name: str, seed: int) -> None:
    graph = SMALL[name]
    scores = states(graph.n_edges, seed=seed)
    best = best_path(scores, graph)
    torch.testing.assert_close(along_paths(scores, graph), best + LEFT * (scores - best))


@pytest.mark.parametrize("name", GRAPHS)
def test_no_score_grows_and_the_best_path_keeps_its_own(name: str) -> None:
    graph = GRAPHS[name]
    scores = states(graph.n_edges, seed=4)
    kept, given = along_paths(scores, graph), scores.clone()
    assert torch.equal(scores, given)
    assert (kept <= scores).all()
    assert (kept < scores - 1e-3).any()
    # The worst of all edges is the worst of its paths too, and so is one of the best path.
    assert kept.min() == scores.min()
    assert (kept == best_path(scores, graph).max()).any()


@pytest.mark.parametrize("name", GRAPHS)
def test_twice_is_once_up_to_what_is_left(name: str) -> None:
    graph = GRAPHS[name]
    scores = states(graph.n_edges, seed=5)
    once = along_paths(scores, graph)
    lost = (scores - once).max()
    again = along_paths(once, graph)
    assert lost > 0.1
    assert (once - again).abs().max() <= 2 * LEFT * lost


def chain(graph: ComponentGraph, names: list[str], inside: float = 1.0) -> Tensor:
    scores = torch.full((graph.n_edges,), -1.0)
    scores[graph.edge_indices(names)] = inside
    return scores


CHAIN = ["input->a0.h1<v>", "a0.h1->m0", "m0->a1.h0<q>", "a1.h0->m1", "m1->logits"]


def test_a_chain_and_all_that_is_worse_stay_as_they_are() -> None:
    """Every other edge lies on a path that is no worse than itself."""
    graph = ComponentGraph(2, 2)
    scores = chain(graph, CHAIN)
    assert torch.equal(along_paths(scores, graph), scores)
    same = torch.full((graph.n_edges,), 0.5)
    assert torch.equal(along_paths(same, graph), same)


@pytest.mark.parametrize("missing", CHAIN)
def test_a_chain_is_as_good_as_its_worst_edge(missing: str) -> None:
    graph = ComponentGraph(2, 2)
    scores = chain(graph, CHAIN)
    scores[graph.edge_index(missing)] = 0.25
    found = along_paths(scores, graph)
    rest = graph.edge_indices([name for name in CHAIN if name != missing])
    torch.testing.assert_close(found[rest], torch.full((4,), 0.25 + LEFT * 0.75))
    assert found[graph.edge_index(missing)] == 0.25
    # What is left of the difference keeps better edges ahead.
    scores[rest[0]] = 2.0
    assert along_paths(scores, graph)[rest].argmax() == 0


@pytest.mark.parametrize("stray", ["a0.h0->m1", "input->a1.h1<k>", "a0.h0->a1.h1<v>"])
def test_an_edge_on_no_good_path_falls_behind_the_one_that_is(stray: str) -> None:
    """Nothing reaches its writer, or nobody hears its reader."""
    graph = ComponentGraph(2, 2)
    scores = chain(graph, CHAIN)
    scores[graph.edge_index(stray)] = 5.0
    found = along_paths(scores, graph)
    assert found[graph.edge_index(stray)] == pytest.approx(-1 + LEFT * 6)
    assert found[graph.edge_indices(CHAIN)].min() == 1
    # Among those that are as much in vain it is still the first.
    outside = found.index_fill(0, graph.edge_indices(CHAIN), -torch.inf)
    assert outside.argmax() == graph.edge_index(stray)


def test_a_head_of_a_group_is_reached_by_the_keys_of_all() -> None:
    graph = ComponentGraph(1, 4, n_kv_heads=2)
    scores = chain(graph, ["input->a0.g1<k>", "a0.h3->logits", "a0.h0->logits"])
    found = along_paths(scores, graph)
    assert found[graph.edge_index("a0.h3->logits")] == 1
    assert found[graph.edge_index("input->a0.g1<k>")] == 1
    assert found[graph.edge_index("a0.h0->logits")] == pytest.approx(-1 + 2 * LEFT)


def test_any_units_and_precisions() -> None:
    graph = ComponentGraph(2, 3)
    scores = torch.randn(graph.n_edges, generator=seeded(0), dtype=torch.float64)
    found = along_paths(scores, graph)
    torch.testing.assert_close(along_paths(100 * scores - 7, graph), 100 * found - 7)
    single = along_paths(scores.float(), graph)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), found, rtol=1e-5, atol=1e-5)
