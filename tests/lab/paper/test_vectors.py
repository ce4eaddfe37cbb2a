"""Vectors listed once for a case: aligned and gathered they are what `align` makes of it."""

import pytest
import torch

from graphcircuits.predictor.measure.features import FEATURES, Features, features
from graphcircuits.predictor.paper.align import TabpfnAligner
from graphcircuits.predictor.paper.transform import TRANSFORMATIONS, Transformation
from lab.paper.vectors import WIDTHS, vector_lists
from tests.methods.tasks import make_pairs
from tests.predictor.graphs import seeded
from tests.subjects import make_subject


def make_features(architecture: str) -> Features:
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")
    scored = pairs.scored.nonzero()
    drawn = torch.randperm(len(scored), generator=seeded(0))
    return features(subject, pairs, contexts=scored[drawn[:3].sort().values])


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize(
    ("architecture", "standardize"),
    [("llama", True), ("plain", True), ("neox", False), ("gpt-2", False)],
)
def test_lists_hold_what_edges_have(
    architecture: str, transformation: Transformation, standardize: bool
) -> None:
    made = make_features(architecture)
    aligner = TabpfnAligner(
        6, heads=2, identifiers=5, standardize=standardize, generator=seeded(7)
    ).double()
    drawn = aligner.draw(made, seeded(2))
    layout, values = vector_lists(made, transformation, standardize=standardize)
    aligned = []
    for width, listed in layout.lists.items():
        table = torch.cat([drawn[x].reshape(-1, *drawn[x].shape[-2:]) for x in WIDTHS[width]])
        assert len(table) == listed.n_components
        aligned.append(aligner.summaries(values[width], table[listed.component], listed.role))
    found = layout.gather(torch.cat(aligned))
    torch.testing.assert_close(found, aligner.align(made, drawn, transformation))


@pytest.mark.usefixtures("unchecked")
def test_every_vector_is_listed_once() -> None:
    made = make_features("plain")
    layout, values = vector_lists(made, "line", standardize=False)
    n_vectors = sum(len(listed.role) for listed in layout.lists.values())
    graph = made.graph
    assert n_vectors == 2 * graph.n_writers + graph.n_readers + 3 * graph.n_edges
    assert layout.nodes.shape == (graph.n_edges, len(FEATURES))
    assert layout.nodes.unique().tolist() == list(range(n_vectors))
    for width, listed in layout.lists.items():
        assert values[width].shape[:2] == (len(listed.role), len(made))
