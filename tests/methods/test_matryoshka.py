"""Masks of all sizes from one ranking: their sums, their order, their gradients, what they find."""

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.methods.matryoshka import mattr, nested
from tests.methods.tasks import make_pairs, planted, ranks_right
from tests.subjects import make_subject


def make_scores(n: int = 30, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(n, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
def test_masks_have_their_size_and_lie_in_each_other(scale: float) -> None:
    sizes = torch.tensor([0.2, 1.0, 3.5, 17.0, 29.0, 29.9], dtype=torch.float64)
    scores = make_scores(scale=scale)
    masks = nested(scores, sizes, 0.5)
    torch.testing.assert_close(masks.sum(-1), sizes, rtol=0, atol=1e-6)
    assert (masks.diff(dim=0) >= -1e-12).all()
    assert (masks[:, scores.argsort()].diff(dim=1) >= -1e-12).all()


def test_one_among_very_many() -> None:
    masks = nested(torch.zeros(70_000), torch.tensor([1.0, 70_000.0]), 0.5)
    torch.testing.assert_close(masks.sum(-1), torch.tensor([1.0, 70_000.0]), rtol=1e-3, atol=0)


def test_cold_masks_are_the_best_edges() -> None:
    scores = make_scores()
    masks = nested(scores, torch.tensor([4.0], dtype=torch.float64), 1e-4)
    assert masks[0].round().nonzero().flatten().tolist() == sorted(scores.topk(4).indices.tolist())


def test_gradients_are_those_of_differences() -> None:
    sizes = torch.tensor([2.0, 9.5, 20.0], dtype=torch.float64)
    scores = make_scores().requires_grad_()
    assert torch.autograd.gradcheck(lambda given: nested(given, sizes, 0.5), scores)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("sizes", ["log", "uniform"])
def test_it_finds_planted_circuits(sizes: str) -> None:
    case = load_case("ib-44")
    scores = mattr(case.subject(), case.pairs(32), sizes=sizes, steps=100)
    assert auroc(scores, case.circuit) > 0.97


def test_a_few_steps_tell_most_edges_apart() -> None:
    subject, circuit = planted(make_subject())
    pairs = make_pairs(subject, batch=8)
    scores = mattr(subject, pairs, steps=10, samples=2, learning_rate=0.2)
    assert ranks_right(scores, circuit) > 0.9


def test_options_are_checked() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    with pytest.raises(ValueError, match="sizes must be one of log, uniform, got 'all'"):
        mattr(subject, pairs, sizes="all")
    with pytest.raises(ValueError, match="temperature must be above 0, got 0"):
        mattr(subject, pairs, temperature=0.0)
