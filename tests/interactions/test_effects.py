"""Whole edges: every number equals plain masked runs."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.engine.resume import single_edge
from graphcircuits.interactions import edge_interactions
from graphcircuits.methods.prepare import prepare
from tests.methods.tasks import make_pairs, output_sum
from tests.subjects import make_subject

EDGES = ["input->m1", "a0.h1->m1", "a0.h1->a1.h2<k>", "m1->logits"]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", ["relu", "llama"])
def test_four_masked_runs(architecture: str) -> None:
    subject = make_subject(architecture)
    edges = EDGES if architecture != "llama" else [e.replace("h2<k>", "g1<k>") for e in EDGES]
    pairs = prepare(subject, make_pairs(subject))
    found = edge_interactions(subject, pairs, edges)
    corrupted = subject.run(pairs.corrupted).writers

    def loss(*cut: str) -> Tensor:
        mask = torch.ones(subject.graph.n_edges, dtype=torch.float64)
        mask[subject.graph.edge_indices(cut)] = 0
        return pairs.loss(masked_logits(subject, pairs.clean, mask, corrupted))

    clean, single = loss(), torch.stack([loss(edge) for edge in edges])
    torch.testing.assert_close(found.single, single - clean)
    for i, j in combinations(range(len(edges)), 2):
        both = loss(edges[i], edges[j])
        expected = both - single[i] - single[j] + clean
        for row, column in ((i, j), (j, i)):
            torch.testing.assert_close(found.joint[row, column], both - clean)
            torch.testing.assert_close(found.interaction[row, column], expected)
    assert found.interaction.diagonal().abs().max() == 0
    assert found.interaction.abs().max() > 1e-3


def test_single_effects_are_those_of_one_edge_at_a_time() -> None:
    subject = make_subject()
    pairs = make_pairs(subject, "cross-entropy")
    seen: list[tuple[int, int]] = []
    found = edge_interactions(
        subject, pairs, EDGES, memory_limit=1, progress=lambda *run: seen.append(run)
    )
    runs = (1 + 4 + 6) * len(pairs)
    assert seen == sorted(seen)
    assert (seen[-1], len(seen)) == ((runs, runs), runs)
    clean, corrupted = subject.run(pairs.clean), subject.run(pairs.corrupted)
    edges = subject.graph.edge_indices(EDGES)
    losses = single_edge(clean, corrupted.writers, edges, metric=pairs.loss)
    torch.testing.assert_close(found.single, losses - pairs.loss(clean.logits))


def test_edges_into_logits_add_up_under_a_linear_loss() -> None:
    subject = make_subject()
    edges = [f"{writer}->logits" for writer in subject.graph.writer_names]
    found = edge_interactions(subject, make_pairs(subject, output_sum), edges)
    assert found.single.abs().max() > 0.1
    assert found.interaction.abs().max() < 1e-12


@pytest.mark.parametrize(
    ("edges", "text"),
    [
        ([], "an interaction needs two or more different edges, got none"),
        (["input->m0"], "two or more different edges, got input->m0"),
        (["input->m0", "input->m0"], "two or more different edges, got input->m0, input->m0"),
        (["input->m0", "input->m9"], "unknown edge 'input->m9'"),
    ],
)
def test_refusals(edges: list[str], text: str) -> None:
    subject = make_subject()
    with pytest.raises(ValueError, match=text):
        edge_interactions(subject, make_pairs(subject), edges)
