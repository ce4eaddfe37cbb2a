"""The same circuit in a larger subject, padded with heads and layers that do nothing.

What is known of an edge does not change: its columns and its prior are equal up to the rounding of
sums, and its places exactly. Nor does a score that nothing but these goes into. Messages are means
over neighbours, of which there are more, so scores of a graph learner do change. With silent heads
the shipped predictor's order of the edges hardly does; silent layers add more neighbours than there
were, but the circuit stays ahead.
"""

import pytest
import torch
from torch import Tensor

from graphcircuits.cases import load_case
from graphcircuits.methods.shipped import blind_to, shipped
from graphcircuits.predictor.invariant import measure, statistics_of, table
from graphcircuits.predictor.measure.scaling import SCALINGS
from graphcircuits.predictor.model import read_case
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.methods.tasks import ranks_right
from tests.predictor.cases import make_task, small, widened
from tests.predictor.graphs import seeded
from tests.predictor.test_model import predictor_of
from tests.tiers import some

pytestmark = pytest.mark.usefixtures("unchecked")

ARCHITECTURES = ["plain", "grouped-keys", "parallel", "gpt-2", "llama"]
SIZES = [(2, 0), (0, 1), (1, 2)]
"""Silent groups of heads, and silent layers."""


def padded(subject: Transformer, pairs: Pairs, groups: int, layers: int) -> tuple[Transformer, ...]:
    larger = widened(subject, groups, layers)
    one, other = (x.logits(pairs.clean) for x in (larger, subject))
    torch.testing.assert_close(one, other, rtol=0, atol=1000 * torch.finfo(one.dtype).eps)
    assert larger.graph.n_edges > 1.3 * subject.graph.n_edges
    return subject, larger


def old_of(subject: Transformer, larger: Transformer) -> Tensor:
    return larger.graph.edge_indices(subject.graph.edge_names)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.75, 1.0])
@pytest.mark.parametrize(("groups", "layers"), SIZES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_columns_and_places_of_edges_stay(
    architecture: str, groups: int, layers: int, share: float
) -> None:
    subject, pairs = make_task(architecture)
    both = padded(subject, pairs, groups, layers)
    old = old_of(*both)
    one, other = (table(measure(x, pairs, share=share), "line") for x in both)
    torch.testing.assert_close(other[old], one, rtol=1e-9, atol=1e-9)
    own = len(statistics_of(share)) * len(SCALINGS)
    places = [*range(SCALINGS.index("rank"), own, len(SCALINGS))]
    assert torch.equal(other[old][:, places], one[:, places])


@pytest.mark.parametrize(("groups", "layers"), SIZES)
@pytest.mark.parametrize("share", [0.75, 1.0])
def test_without_messages_scores_stay(share: float, groups: int, layers: int) -> None:
    subject, pairs = make_task("grouped-keys")
    alone = small(connectivity="none", share=share)
    both = padded(subject, pairs, groups, layers)
    readings = [read_case(alone, x, pairs, generator=seeded(0)) for x in both]
    one, other = (predictor_of(alone)(x, generator=seeded(0)) for x in readings)
    torch.testing.assert_close(other[old_of(*both)], one, rtol=1e-8, atol=1e-8)
    assert one.std() > 1e-2


def rank_correlation(one: Tensor, other: Tensor) -> float:
    ranks = torch.stack([x.argsort().argsort().double() for x in (one, other)])
    return float(torch.corrcoef(ranks)[0, 1])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_silent_heads_hardly_change_the_order_of_the_shipped_predictor(architecture: str) -> None:
    subject, pairs = make_task(architecture)
    both = padded(subject.to(torch.float32), pairs, 2, 0)
    one, other = (
        shipped("default").predict_case(x, pairs, generator=seeded(0)).logits for x in both
    )
    assert rank_correlation(one, other[old_of(*both)]) >= 0.95


@pytest.mark.parametrize(("groups", "layers"), [(4, 0), (0, 1), (8, 2)])
@pytest.mark.parametrize("id", some(["ib-3", "ib-13", "tb-sort"], ["ib-3"]))
def test_a_planted_circuit_stays_ahead_of_the_other_edges(
    id: str, groups: int, layers: int
) -> None:
    """By a predictor that has not seen the case; edges that were added are behind it too."""
    case = load_case(id)
    subject, pairs = case.subject(), case.pairs(32)
    both = padded(subject, pairs, groups, layers)
    ensemble = shipped(blind_to(id))
    one, other = (ensemble.predict_case(x, pairs, generator=seeded(0)).logits for x in both)
    before = ranks_right(one, case.circuit)
    assert before > 0.98
    old = old_of(*both)
    assert ranks_right(other[old], case.circuit) >= before - 0.01
    added = torch.ones(len(other), dtype=torch.bool)
    added[old] = False
    gaps = other[old][case.circuit.mask][:, None] - other[added]
    assert (gaps > 0).double().mean() > 0.99
