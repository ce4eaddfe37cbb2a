"""Objectives: departure as the loss, order of scores found before."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from graphcircuits.engine.relaxed import best_edges, ranks
from graphcircuits.engine.stack import Stack
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.objectives import (
    distill_loss,
    faithfulness_loss,
)
from tests.predictor.graphs import seeded
from tests.training.examples import make_judged

pytestmark = pytest.mark.usefixtures("unchecked")

GIVEN: dict[str, Any] = {"temperature": 0.3, "noise": 0.3}


def small_stack() -> Stack:
    return Stack.of([x.item for x in make_judged(count=2)[:2] if x.item is not None])


def test_faithfulness_is_the_mean_departure_of_the_masks() -> None:
    stack = small_stack()
    scores = torch.randn(len(stack), stack.graph.n_edges, generator=seeded(1))
    masks = best_edges(scores, 3, **GIVEN, generator=seeded(5))
    settings = TrainConfig(masks=3, **GIVEN, rows=0)
    found = faithfulness_loss(scores, stack, settings, seeded(5))
    torch.testing.assert_close(found, stack.departure(masks).abs().mean())
    generator = seeded(5)
    rows = torch.randperm(4, generator=generator)[:2]
    masks = best_edges(scores, 3, **GIVEN, generator=generator)
    found = faithfulness_loss(scores, stack, replace(settings, rows=2), seeded(5))
    torch.testing.assert_close(found, stack.departure(masks, rows).abs().mean())


@pytest.mark.slow
def test_scores_that_follow_the_gradient_have_a_smaller_cmd() -> None:
    stack = small_stack()
    scores = torch.randn(len(stack), stack.graph.n_edges, generator=seeded(1)).requires_grad_()
    before = stack.cmd(scores)
    optimizer = torch.optim.Adam([scores], lr=0.1)
    for step in range(40):
        optimizer.zero_grad()
        loss = faithfulness_loss(scores, stack, TrainConfig(masks=8, **GIVEN), seeded(step))
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
