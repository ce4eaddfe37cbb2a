"""Metrics against counting by hand."""

import itertools
import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import graphcircuits
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.auroc import auprc, auroc, precision_at_size
from graphcircuits.graph import ComponentGraph
from graphcircuits.result.result import Result

GRAPH = ComponentGraph(1, 2)
SIZE = GRAPH.n_edges
METRICS = [auroc, auprc, precision_at_size]


LISTS = st.tuples(
    st.lists(st.integers(-2, 2), min_size=SIZE, max_size=SIZE),
    st.lists(st.booleans(), min_size=SIZE, max_size=SIZE),
)
"""Scores with many ties, and membership."""
levels = st.sampled_from(["head", "qkv"])


def build(lists: tuple[list[int], list[bool]]) -> tuple[Tensor, Circuit]:
    """Scores, and a circuit with something in it and something out of it."""
    scores, truth = lists
    mask = torch.tensor(truth)
    mask[GRAPH.edge_indices(["input->m0", "m0->logits"])] = torch.tensor([True, False])
    return torch.tensor(scores, dtype=torch.float64), Circuit.from_mask(GRAPH, mask)


def by_level(scores: Tensor, circuit: Circuit, level: str) -> tuple[list[float], list[bool]]:
    """Scores and truth edge by edge; at head level by name, without the graph's own promotion."""
    names = zip(GRAPH.edge_names, scores.tolist(), circuit.mask.tolist(), strict=True)
    if level == "qkv":
        _, values, truth = zip(*names, strict=True)
        return list(values), list(truth)
    merged: dict[str, tuple[float, bool]] = {}
    for name, value, inside in names:
        name = name.partition("<")[0]
        best, any_inside = merged.get(name, (-math.inf, False))
        merged[name] = max(best, value), any_inside or inside
    del merged["input->logits"]
    return [v for v, _ in merged.values()], [t for _, t in merged.values()]


@given(LISTS, levels)
def test_auroc_counts_pairs(lists: tuple[list[int], list[bool]], level: str) -> None:
    values, truth = by_level(*build(lists), level)
    inside = [v for v, t in zip(values, truth, strict=True) if t]
    outside = [v for v, t in zip(values, truth, strict=True) if not t]
    wins = [(a > b) + 0.5 * (a == b) for a, b in itertools.product(inside, outside)]
    assert auroc(*build(lists), level) == pytest.approx(statistics.mean(wins), abs=1e-12)


@given(LISTS, levels)
def test_auprc_walks_the_thresholds(lists: tuple[list[int], list[bool]], level: str) -> None:
    values, truth = by_level(*build(lists), level)
    total, recall_before, area = sum(truth), 0.0, 0.0
    for threshold in sorted(set(values), reverse=True):
        taken = [t for v, t in zip(values, truth, strict=True) if v >= threshold]
        recall = sum(taken) / total
        area += (recall - recall_before) * sum(taken) / len(taken)
        recall_before = recall
    assert auprc(*build(lists), level) == pytest.approx(area, abs=1e-12)


@given(LISTS)
def test_precision_is_the_mean_over_orders_of_ties(lists: tuple[list[int], list[bool]]) -> None:
    values, truth = by_level(*build(lists), "qkv")
    size = sum(truth)
    cut = sorted(values, reverse=True)[size - 1]
    above = [t for v, t in zip(values, truth, strict=True) if v > cut]
    tied = [t for v, t in zip(values, truth, strict=True) if v == cut]
    hits = sum(above) + (size - len(above)) * sum(tied) / len(tied)
    assert precision_at_size(*build(lists), "qkv") == pytest.approx(hits / size, abs=1e-12)


@given(LISTS, levels)
def test_growing_transforms_change_nothing(lists: tuple[list[int], list[bool]], level: str) -> None:
    scores, circuit = build(lists)
    # Number by number: the exp of a tensor may round equal numbers differently.
    powers = torch.tensor([math.exp(score) for score in scores.tolist()], dtype=scores.dtype)
    for metric in METRICS:
        for changed in (powers, 3 * scores - 7, scores.to(torch.bfloat16)):
            assert metric(changed, circuit, level) == metric(scores, circuit, level)


@given(LISTS, levels)
def test_turning_the_scores_round_mirrors_auroc(
    lists: tuple[list[int], list[bool]], level: str
) -> None:
    scores, circuit = build(lists)
    if level == "head":
        # The maximum over q, k and v does not turn round with the sign; give them one score.
        same = GRAPH.promote(scores)
        index = {name: n for n, name in enumerate(GRAPH.head_edges)}
        merged = [index.get(name.partition("<")[0], 0) for name in GRAPH.edge_names]
        scores = same[merged]
    mirrored = auroc(scores, circuit, level) + auroc(-scores, circuit, level)
    assert mirrored == pytest.approx(1.0, abs=1e-12)


def test_exact_cases() -> None:
    circuit = Circuit.from_names(GRAPH, ["input->a0.h0<q>", "a0.h0->logits"])
    perfect = circuit.mask.double()
    for metric in METRICS:
        assert metric(perfect, circuit, "head") == metric(perfect, circuit, "qkv") == 1.0
    assert auroc(-perfect, circuit, "qkv") == 0.0
    flat = torch.zeros(SIZE)
    assert auroc(flat, circuit) == 0.5
    assert auprc(flat, circuit) == pytest.approx(2 / len(GRAPH.head_edges))
    assert precision_at_size(flat, circuit) == pytest.approx(2 / len(GRAPH.head_edges))
    # A wrong slot of the right head is right at head level only.
    slots = Circuit.from_names(GRAPH, ["input->a0.h0<v>", "a0.h0->logits"]).mask.double()
    assert auroc(slots, circuit, "head") == 1.0
    assert auroc(slots, circuit, "qkv") < 1.0
    # At head level the edge from input to logits is not looked at.
    flooded = perfect.clone()
    flooded[GRAPH.edge_index("input->logits")] = 9.0
    assert auroc(flooded, circuit, "head") == 1.0


def test_results_and_the_public_name() -> None:
    circuit = Circuit.from_names(GRAPH, ["input->m0"])
    scores = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    assert graphcircuits.auroc(Result(graph=GRAPH, scores=scores), circuit) == auroc(
        scores, circuit
    )


def test_refusals() -> None:
    circuit = Circuit.from_names(GRAPH, ["input->m0"])
    scores = torch.zeros(SIZE)
    empty, whole = circuit - circuit, Circuit.from_names(GRAPH, GRAPH.edge_names)
    only_skipped = Circuit.from_names(GRAPH, ["input->logits"])
    for truth in (empty, whole, only_skipped):
        for metric in METRICS:
            with pytest.raises(ValueError, match=r"some and not all of the 8 edges at the head le"):
                metric(scores, truth, "head")
    with pytest.raises(ValueError, match="level must be one of head, qkv, got 'edge'"):
        auroc(scores, circuit, "edge")
    with pytest.raises(ValueError, match=f"one number for each of {SIZE} edges, got shape"):
        auroc(torch.zeros(3), circuit)
    with pytest.raises(ValueError, match="scores must be numbers, got 1 NaN"):
        auroc(torch.where(circuit.mask, torch.nan, scores), circuit)
    other = ComponentGraph(2, 2)
    with pytest.raises(ValueError, match=r"bring it over with circuit\.on\(graph\)"):
        auroc(Result(graph=other, scores=torch.zeros(other.n_edges)), circuit)
