"""Objectives: masks near the threshold, departure as the loss, order of scores found before."""

from typing import Any

import pytest
import torch

from graphcircuits.engine.stack import Stack, ranks
from graphcircuits.training.objectives import (
    at_constant_size,
    distill_loss,
    faithfulness_loss,
    relaxed_masks,
)
from tests.predictor.graphs import seeded
from tests.training.examples import make_judged

pytestmark = pytest.mark.usefixtures("unchecked")

GIVEN: dict[str, Any] = {"temperature": 0.3, "noise": 0.3}


def small_stack() -> Stack:
    return Stack.of([x.item for x in make_judged(count=2)[:2] if x.item is not None])


def test_sizes_are_drawn_evenly_one_from_each_range() -> None:
    """Sharp masks have the k best edges and no other; no circuit is empty or whole."""
    scores = torch.randn(3, 40, generator=seeded(1))
    masks = relaxed_masks(scores, 8, temperature=1e-7, noise=0.0, generator=seeded(0))
    assert ((masks == 0) | (masks == 1)).all()
    kept = (masks == 1).sum(-1)
    assert torch.equal((kept - 1) // 5, torch.arange(8).expand(3, 8))
    assert len(kept.unique()) > 8
    order = ranks(scores)[:, None].expand_as(masks)
    assert torch.equal(masks == 1, order < kept[..., None])
    few = relaxed_masks(scores[:, :2], 8, temperature=1e-7, noise=0.0, generator=seeded(0))
    assert (few.sum(-1) == 1).all()


def test_noise_moves_scores_by_a_logistic_part() -> None:
    """An edge that is ahead by a, of two, is the one that is kept with the chance that the
    difference of two logistic numbers, each times the noise, is below a."""
    scores = torch.tensor([[0.6, 0.0]])
    masks = relaxed_masks(scores, 20_000, temperature=1e-7, noise=0.3, generator=seeded(0))
    one, other = torch.rand(2, 200_000, generator=seeded(1)).logit()
    expected = (0.3 * (one - other) < 0.6).float().mean()
    assert float(masks[0, :, 0].mean()) == pytest.approx(float(expected), abs=0.01)


def test_masks_are_random_near_the_threshold() -> None:
    scores = torch.linspace(-3, 3, 30)[None]
    one = relaxed_masks(scores, 4, **GIVEN, generator=seeded(0))
    same = relaxed_masks(scores, 4, **GIVEN, generator=seeded(0))
    other = relaxed_masks(scores, 4, **GIVEN, generator=seeded(1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert (one[0, 0, -1], one[0, 3, 0]) == pytest.approx((1, 0), abs=0.6)


def test_the_size_of_a_circuit_has_no_gradient() -> None:
    scores = torch.randn(1, 10, generator=seeded(1), dtype=torch.float64).requires_grad_()
    masks = relaxed_masks(scores, 5, **GIVEN, generator=seeded(0))
    for size in masks.sum(-1).flatten():
        (slopes,) = torch.autograd.grad(size, scores, retain_graph=True)
        assert slopes.abs().max() < 1e-12
    # Of single edges there is one.
    (slopes,) = torch.autograd.grad(masks[0, 2, 0], scores)
    assert slopes[0, 0] > 0.1


def test_the_gradient_is_that_of_masks_whose_threshold_keeps_their_size() -> None:
    """By differences: scores are moved, and the threshold is found anew that keeps the sum."""
    temperature, weights = 0.5, torch.randn(6, generator=seeded(2), dtype=torch.float64)
    scores = torch.randn(6, generator=seeded(1), dtype=torch.float64).requires_grad_()
    threshold = torch.full((1,), 0.2, dtype=torch.float64)
    masks = at_constant_size(scores, threshold, temperature)
    torch.testing.assert_close(masks, ((scores - threshold) / temperature).sigmoid())
    (masks @ weights).backward()
    size = float(masks.detach().sum())

    def constrained(moved: torch.Tensor) -> float:
        low, high = moved.min() - 20, moved.max() + 20
        for _ in range(80):
            middle = (low + high) / 2
            above = ((moved - middle) / temperature).sigmoid().sum() > size
            low, high = (middle, high) if above else (low, middle)
        return float(((moved - low) / temperature).sigmoid() @ weights)

    steps = 1e-5 * torch.eye(6, dtype=torch.float64)
    at = scores.detach()
    found = [(constrained(at + step) - constrained(at - step)) / 2e-5 for step in steps]
    assert scores.grad is not None
    assert scores.grad.tolist() == pytest.approx(found, abs=1e-6)


def test_faithfulness_is_the_mean_departure_of_the_masks() -> None:
    stack = small_stack()
    scores = torch.randn(len(stack), stack.graph.n_edges, generator=seeded(1))
    masks = relaxed_masks(scores, 3, **GIVEN, generator=seeded(5))
    found = faithfulness_loss(scores, stack, masks=3, **GIVEN, generator=seeded(5))
    torch.testing.assert_close(found, stack.departure(masks).abs().mean())
    generator = seeded(5)
    rows = torch.randperm(4, generator=generator)[:2]
    masks = relaxed_masks(scores, 3, **GIVEN, generator=generator)
    found = faithfulness_loss(scores, stack, masks=3, **GIVEN, rows=2, generator=seeded(5))
    torch.testing.assert_close(found, stack.departure(masks, rows).abs().mean())


@pytest.mark.slow
def test_scores_that_follow_the_gradient_have_a_smaller_cmd() -> None:
    stack = small_stack()
    scores = torch.randn(len(stack), stack.graph.n_edges, generator=seeded(1)).requires_grad_()
    before = stack.cmd(scores)
    optimizer = torch.optim.Adam([scores], lr=0.1)
    for step in range(40):
        optimizer.zero_grad()
        loss = faithfulness_loss(scores, stack, masks=8, **GIVEN, generator=seeded(step))
        loss.backward()
        optimizer.step()
    assert (stack.cmd(scores) < 0.7 * before).all()


def test_distilled_scores_are_judged_by_their_order() -> None:
    targets = torch.randn(2, 30, generator=seeded(1))
    place = -ranks(targets).float()
    known = torch.tensor([True, True])
    right = distill_loss(100 * place, targets, known, generator=seeded(0))
    wrong = distill_loss(-100 * place, targets, known, generator=seeded(0))
    flat = distill_loss(0 * place, targets, known, generator=seeded(0))
    assert right < 1e-6 < flat < wrong
    # Only the order of targets counts, and only where they are known.
    again = distill_loss(place, targets.exp(), known, generator=seeded(0))
    assert torch.equal(again, distill_loss(place, targets, known, generator=seeded(0)))
    one = torch.tensor([False, True])
    mixed = torch.stack([-place[0], 100 * place[1]])
    assert distill_loss(mixed, targets, one, generator=seeded(0)) < 1e-6
    assert distill_loss(mixed, targets, ~(one | True), generator=seeded(0)) == 0


def test_distill_pulls_the_higher_edge_up() -> None:
    scores = torch.zeros(1, 3, requires_grad=True)
    targets = torch.tensor([[0.1, 5.0, 2.0]])
    distill_loss(scores, targets, torch.tensor([True]), generator=seeded(0)).backward()
    assert scores.grad is not None
    low, high, middle = scores.grad[0].tolist()
    assert high < 0 < low
    assert high < middle < low
