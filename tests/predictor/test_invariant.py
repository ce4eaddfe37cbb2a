"""Invariants: against slow twins and EAP, under symmetries, and their scalings by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.methods.eap import eap
from graphcircuits.predictor.invariant import (
    STATISTICS,
    InvariantAligner,
    Invariants,
    measure,
    scaled,
    statistics_of,
    table,
    table_width,
)
from graphcircuits.predictor.measure.scaling import FLOOR, NEGLIGIBLE, SCALINGS
from graphcircuits.predictor.paper.transform import TRANSFORMATIONS, neighbourhoods
from graphcircuits.subject.sites import READER_KINDS, WRITER_KINDS, kinds
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.predictor.cases import (
    dense,
    edge_by_edge,
    make_task,
    old_edges,
    reordered,
    rotated,
    with_positions,
)
from tests.predictor.graphs import seeded, states
from tests.predictor.measure.test_features import rebased
from tests.subjects import make_subject

FIELDS = ("statistics", "written", "received")
SHARES = (1.0, 0.75)
"""Gradients of the clean run, and of one between."""


def assert_same(one: Invariants, other: Invariants, rtol: float = 1e-9) -> None:
    for name in FIELDS:
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=rtol, atol=1e-14)
    for transformation in TRANSFORMATIONS:
        tables = (table(found, transformation) for found in (one, other))
        torch.testing.assert_close(*tables, rtol=1e-7, atol=1e-9)


# Measuring


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "architecture", ["plain", "bidirectional", "grouped-keys", "gated", "parallel", "logit-scale"]
)
def test_statistics_are_those_of_the_six_features(architecture: str) -> None:
    subject, pairs = make_task(architecture)
    found = measure(subject, pairs).statistics
    torch.testing.assert_close(found, edge_by_edge(subject, pairs), rtol=1e-9, atol=1e-14)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", ["plain", "gpt-2", "neox", "llama", "parallel"])
def test_statistics_are_those_of_written_vectors_and_gradients(architecture: str) -> None:
    subject, pairs = make_task(architecture)
    assert_same(measure(subject, pairs), dense(subject, pairs))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", ["plain", "gpt-2", "llama", "grouped-keys"])
def test_the_effect_by_pair_is_edge_attribution_patching(architecture: str) -> None:
    subject, pairs = make_task(architecture)
    found = measure(subject, pairs).statistics[STATISTICS.index("effect_by_pair")]
    torch.testing.assert_close(found, eap(subject, pairs), rtol=1e-9, atol=1e-14)


@pytest.mark.gpu
@pytest.mark.parametrize("memory_limit", [1, 2**30])
def test_a_gpu_measures_what_a_cpu_does(memory_limit: int) -> None:
    subject, pairs = make_task()
    subject = subject.to(torch.float32)
    near, far = (
        measure(subject.to(where), pairs, memory_limit=memory_limit) for where in ("cuda", "cpu")
    )
    for name in FIELDS:
        found = getattr(near, name)
        assert found.device.type == "cuda"
        torch.testing.assert_close(found.cpu(), getattr(far, name), rtol=1e-3, atol=1e-5)


def test_positions_that_are_not_scored_count_too() -> None:
    """A loss at the last position reaches back to the others."""
    subject, pairs = make_task()
    scored = torch.zeros_like(pairs.scored)
    scored[:, -1] = True
    pairs = replace(pairs, scored=scored)
    assert_same(measure(subject, pairs), dense(subject, pairs))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["plain", "llama"])
def test_chunks_change_nothing(architecture: str) -> None:
    subject, pairs = make_task(architecture, batch=4)
    whole, chunked = (measure(subject, pairs, memory_limit=limit) for limit in (2**30, 1))
    assert_same(chunked, whole)


def test_what_says_nothing_is_refused() -> None:
    subject, pairs = make_task()
    weights = {name: weight.clone() for name, weight in subject.weights.items()}
    weights["W_O"][1, 2] = torch.inf
    with pytest.raises(ValueError, match=r"output of a1\.h2 is NaN or infinite"):
        measure(Transformer(subject.config, weights), pairs)
    constant = replace(pairs, loss_name=lambda logits, _: 0 * logits.sum((1, 2)))
    with pytest.raises(ValueError, match="loss is constant"):
        measure(subject, constant)
    flat = replace(pairs, loss_name=lambda logits, _: (logits.detach() + 0 * logits).sum((1, 2)))
    with pytest.raises(ValueError, match="gradient of the loss is zero at every component"):
        measure(subject, flat)


def test_moving_moves_everything() -> None:
    moved = measure(*make_task()).to(torch.float32)
    assert {getattr(moved, name).dtype for name in FIELDS} == {torch.float32}


# Symmetries


def both(
    subject: Transformer, other: Transformer, pairs: Pairs, share: float = 1.0
) -> list[Invariants]:
    """Everything that can be measured, of two subjects."""
    return [measure(x, pairs, share=share) for x in (subject, other)]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 2}, {"norm": "layer"}])
def test_a_change_of_basis_inside_components_is_not_seen(
    options: dict[str, Any], share: float
) -> None:
    subject, pairs = make_task("relu", **options)
    other, *_ = rebased(subject, stream=False)
    assert not torch.allclose(other.weights["W_V"], subject.weights["W_V"])
    one, same = both(subject, other, pairs, share)
    assert_same(same, one)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("architecture", ["plain", "gated", "grouped-keys"])
def test_a_rotation_of_the_stream_is_not_seen(architecture: str, share: float) -> None:
    subject, pairs = make_task(architecture)
    other = rotated(subject)
    torch.testing.assert_close(other.logits(pairs.clean), subject.logits(pairs.clean))
    assert not torch.allclose(other.weights["W_E"], subject.weights["W_E"])
    one, same = both(subject, other, pairs, share)
    assert_same(same, one)


def test_the_order_of_pairs_does_not_matter() -> None:
    subject, pairs = make_task("llama", batch=4)
    assert_same(measure(subject, pairs[[2, 0, 3, 1]]), measure(subject, pairs))


def test_the_order_of_positions_does_not_matter() -> None:
    """To a subject that cannot tell positions apart."""
    subject, pairs = make_task("no-positions", causal=False)
    moved = with_positions(pairs, torch.tensor([3, 1, 4, 0, 2]))
    assert_same(measure(subject, moved), measure(subject, pairs))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(
    ("architecture", "order"), [("plain", [2, 0, 3, 1]), ("grouped-keys", [3, 2, 0, 1])]
)
def test_heads_may_be_renumbered(architecture: str, order: list[int], share: float) -> None:
    subject, pairs = make_task(architecture)
    other = reordered(subject, 0, order)
    torch.testing.assert_close(other.logits(pairs.clean), subject.logits(pairs.clean))
    one, same = both(subject, other, pairs, share)
    old = old_edges(subject.graph, 0, order)
    torch.testing.assert_close(same.statistics, one.statistics[:, old])
    torch.testing.assert_close(table(same, "line"), table(one, "line")[old])


@pytest.mark.parametrize("share", SHARES)
def test_the_size_of_the_loss_is_not_seen(share: float) -> None:
    subject, pairs = make_task()

    def smaller(logits: Tensor, own: Pairs) -> Tensor:
        return 1e-4 * replace(own, loss_name="cross-entropy").loss(logits)

    one, other = (
        measure(subject, x, share=share) for x in (pairs, replace(pairs, loss_name=smaller))
    )
    torch.testing.assert_close(other.statistics, 1e-4 * one.statistics)
    for transformation in TRANSFORMATIONS:
        torch.testing.assert_close(table(other, transformation), table(one, transformation))


# Scaling

SMALLEST = ComponentGraph(1, 1)
"""Edges: input to q, k, v, m0; a0.h0 to m0; input, a0.h0 and m0 to logits."""
VALUES = torch.tensor(
    [8.0, 4.0, 4.0, 1.0, 3.0, 0.0, 5.0, 0.5 * NEGLIGIBLE * 8], dtype=torch.float64
)
BY_HAND = {
    "case": [1, 1 / 2, 1 / 2, 1 / 8, 3 / 8, FLOOR, 5 / 8, FLOOR],
    "reader_share": [1, 1, 1, 1 / 4, 3 / 4, 0, 1, 0],
    "reader_top": [1, 1, 1, 1 / 3, 1, FLOOR, 1, FLOOR],
    "writer_share": [8 / 17, 4 / 17, 4 / 17, 1 / 17, 3 / 8, 0, 5 / 8, 0],
    "writer_top": [1, 1 / 2, 1 / 2, 1 / 8, 3 / 5, FLOOR, 1, FLOOR],
    "rank": [1, 3.5, 3.5, 6, 5, 7, 2, 7],
}


def test_scalings_by_hand() -> None:
    """All but shares are logarithms; what is negligible is zero; ties count half."""
    found = scaled(torch.stack([VALUES, 100 * VALUES]), SMALLEST)
    assert found.shape == (SMALLEST.n_edges, 2, len(SCALINGS))
    assert tuple(BY_HAND) == SCALINGS
    for place, (name, values) in enumerate(BY_HAND.items()):
        expected = torch.tensor(values, dtype=torch.float64)
        if name not in ("reader_share", "writer_share"):
            expected = expected.log()
        for row in range(2):
            torch.testing.assert_close(found[:, row, place], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_to_measure_gives_numbers(dtype: torch.dtype) -> None:
    """No gradient at all, no change at all, or values at the edge of what can be held."""
    graph = ComponentGraph(2, 2)
    for size in (0.0, 1e-37, 1e37):
        found = Invariants(
            graph,
            statistics=size * states(len(STATISTICS), graph.n_edges).abs().to(dtype),
            written=size * states(2, graph.n_writers).abs().to(dtype),
            received=torch.zeros(graph.n_readers, dtype=dtype),
        )
        for transformation in TRANSFORMATIONS:
            nodes = table(found, transformation)
            assert nodes.isfinite().all()
            assert nodes.abs().max() <= -math.log(FLOOR) + 1e-4


def test_rounding_below_the_largest_does_not_count() -> None:
    """Differences that only rounding makes must not become places."""
    subject, pairs = make_task()
    weights = {name: weight.clone() for name, weight in subject.weights.items()}
    weights["W_O"][0, 1] *= 1e-12
    silent = measure(Transformer(subject.config, weights), pairs, share=0.75)
    weights["W_O"][0, 1] = 0
    gone = measure(Transformer(subject.config, weights), pairs, share=0.75)
    torch.testing.assert_close(table(silent, "line"), table(gone, "line"), rtol=1e-6, atol=1e-8)


# Tables


@pytest.mark.parametrize("architecture", ["plain", "grouped-keys", "parallel"])
def test_kinds_are_those_of_the_names(architecture: str) -> None:
    graph = make_subject(architecture).graph
    writers, readers = kinds(graph)
    letters = {"i": "input", "a": "head", "m": "mlp"}
    assert [WRITER_KINDS[kind] for kind in writers] == [
        letters[name[0]] for name in graph.writer_names
    ]
    assert [READER_KINDS[kind] for kind in readers] == list(graph.reader_kinds)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("architecture", ["plain", "grouped-keys"])
def test_an_edge_of_the_line_graph_knows_what_three_nodes_of_the_incidence_graph_know(
    architecture: str, share: float
) -> None:
    subject, pairs = make_task(architecture)
    found, graph = measure(subject, pairs, share=share), subject.graph
    assert len(found.statistics) == len(statistics_of(share))
    line, incidence = (table(found, transformation) for transformation in TRANSFORMATIONS)
    width = table_width(share)
    assert line.shape == (graph.n_edges, width)
    assert incidence.shape == (graph.n_nodes + graph.n_edges, width)
    edge_nodes = neighbourhoods(graph, "incidence").edge_nodes
    at_writer = incidence[graph.edge_writers]
    at_reader = incidence[graph.n_writers + graph.edge_readers]
    torch.testing.assert_close(incidence[edge_nodes] + at_writer + at_reader, line)
    own = len(found.statistics) * len(SCALINGS)
    torch.testing.assert_close(
        incidence[edge_nodes, :own], scaled(found.statistics, graph).flatten(1)
    )
    assert not incidence[edge_nodes, own:].any()
    assert not incidence[: graph.n_nodes, :own].any()


def test_columns_of_components_by_hand() -> None:
    graph = SMALLEST
    found = Invariants(
        graph,
        statistics=VALUES.expand(len(STATISTICS), -1),
        written=torch.tensor([[4.0, 2.0, 1.0], [0.0, 3.0, 3.0]], dtype=torch.float64),
        received=torch.tensor([1.0, 0.0, 2.0, 2.0, 5.0], dtype=torch.float64),
    )
    nodes = table(found, "incidence")[: graph.n_nodes, len(STATISTICS) * len(SCALINGS) :]
    log, kind = math.log, [0.0] * 5
    # Logarithms of clean norm and change, and of their places; then the kind: input, head, mlp.
    writers = [
        [0, log(FLOOR), 0, log(3), 1, 0, 0, *[0.0] * 7],
        [log(1 / 2), 0, log(2), log(1.5), 0, 1, 0, *[0.0] * 7],
        [log(1 / 4), 0, log(3), log(1.5), 0, 0, 1, *[0.0] * 7],
    ]
    norms = [(1, 4), (None, 5), (2, 2.5), (2, 2.5), (5, 1)]
    readers = []
    for number, (norm, place) in enumerate(norms):
        one_hot = [*kind[:number], 1.0, *kind[number + 1 :]]
        logarithm = log(FLOOR) if norm is None else log(norm / 5)
        readers.append([*[0.0] * 7, logarithm, log(place), *one_hot])
    expected = torch.tensor([*writers, *readers], dtype=torch.float64)
    torch.testing.assert_close(nodes, expected)


# The aligner


def test_training_tables_are_standardized() -> None:
    nodes = torch.cat([table(measure(*make_task(seed=seed)), "line") for seed in (0, 1)])
    aligner = InvariantAligner(3, generator=seeded(0)).double()
    raw = aligner(nodes)
    torch.testing.assert_close(raw, aligner.project(nodes))
    aligner.standardize_by(nodes)
    found = aligner(nodes)
    # Columns that never vary must not explode.
    assert found.abs().max() < 100
    torch.testing.assert_close(found.mean(0), aligner.project.bias)
    centred = (nodes - nodes.mean(0)) / nodes.std(0).clamp_min(1e-3)
    torch.testing.assert_close(found, centred @ aligner.project.weight.T + aligner.project.bias)
    assert {"mean", "deviation"} <= aligner.state_dict().keys()
