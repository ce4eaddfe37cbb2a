"""Relaxed masks: chances by counting, gradients by differences, sizes that stay."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.relaxed import (
    at_constant_size,
    best_edges,
    concrete,
    hard_concrete,
    probability_open,
    ranks,
    window,
)

pytestmark = pytest.mark.usefixtures("unchecked")

GIVEN: dict[str, Any] = {"temperature": 0.3, "noise": 0.3}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_sizes_are_drawn_evenly_over_logarithms_one_from_each_range() -> None:
    """Sharp masks have the k best edges and no other; no circuit is empty or whole."""
    scores = torch.randn(3, 256, generator=seeded(1))
    masks = best_edges(scores, 8, temperature=1e-7, noise=0.0, generator=seeded(0))
    assert ((masks == 0) | (masks == 1)).all()
    kept = (masks == 1).sum(-1)
    assert torch.equal(kept.double().log2().floor().long(), torch.arange(8).expand(3, 8))
    assert len(kept.unique()) > 8
    order = ranks(scores)[:, None].expand_as(masks)
    assert torch.equal(masks == 1, order < kept[..., None])
    few = best_edges(scores[:, :2], 8, temperature=1e-7, noise=0.0, generator=seeded(0))
    assert (few.sum(-1) == 1).all()


def test_noise_moves_scores_by_a_logistic_part() -> None:
    """An edge that is ahead by a, of two, is the one that is kept with the chance that the
    difference of two logistic numbers, each times the noise, is below a."""
    scores = torch.tensor([[0.6, 0.0]])
    masks = best_edges(scores, 20_000, temperature=1e-7, noise=0.3, generator=seeded(0))
    one, other = torch.rand(2, 200_000, generator=seeded(1)).logit()
    expected = (0.3 * (one - other) < 0.6).float().mean()
    assert float(masks[0, :, 0].mean()) == pytest.approx(float(expected), abs=0.01)


def test_masks_are_random_near_the_threshold() -> None:
    scores = torch.linspace(-3, 3, 30)[None]
    one = best_edges(scores, 4, **GIVEN, generator=seeded(0))
    same = best_edges(scores, 4, **GIVEN, generator=seeded(0))
    other = best_edges(scores, 4, **GIVEN, generator=seeded(1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one[0, 2:, -1].min() > 0.9
    assert one[0, :3, 0].max() < 0.1


def test_the_size_of_a_circuit_has_no_gradient() -> None:
    scores = torch.randn(1, 10, generator=seeded(1), dtype=torch.float64).requires_grad_()
    masks = best_edges(scores, 5, **GIVEN, generator=seeded(0))
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


def test_samples_keep_edges_with_their_probability() -> None:
    logits = torch.linspace(-3, 3, 7, dtype=torch.float64)
    for temperature in (0.3, 2.0):
        masks = concrete(logits.expand(40_000, -1), seeded(), temperature)
        share = (masks > 0.5).double().mean(0)
        torch.testing.assert_close(share, logits.sigmoid(), rtol=0, atol=0.01)


def test_cold_samples_are_nearly_zero_or_one() -> None:
    logits = torch.zeros(1000, dtype=torch.float64)
    spread = [
        (concrete(logits[None], seeded(), temperature) - 0.5).abs().mean()
        for temperature in (5.0, 1.0, 0.1)
    ]
    assert spread[0] < spread[1] < spread[2]
    assert spread[2] > 0.45


def test_gates_at_the_threshold_are_uniform() -> None:
    drawn = concrete(torch.zeros(1, 20_000), seeded())
    quarters = torch.histc(drawn, 4, 0, 1) / drawn.numel()
    torch.testing.assert_close(quarters, torch.full((4,), 0.25), rtol=0, atol=0.02)
    assert concrete(torch.full((1, 100), 12.0), seeded()).min() > 0.99


def test_the_chance_of_being_open_by_sampling() -> None:
    locations = torch.linspace(-4, 4, 9, dtype=torch.float64)
    gates = hard_concrete(locations.expand(40_000, -1), seeded())
    assert gates.min() == 0
    assert gates.max() == 1
    share = (gates > 0).double().mean(0)
    torch.testing.assert_close(share, probability_open(locations), rtol=0, atol=0.01)


def test_gates_follow_their_gradient() -> None:
    locations = torch.zeros(5, requires_grad=True)
    hard_concrete(locations.expand(2000, -1), seeded()).mean().backward()
    assert locations.grad is not None
    assert (locations.grad > 0).all()


def test_a_gate_is_kept_as_often_as_it_should() -> None:
    locations = torch.linspace(-4, 4, 9, dtype=torch.float64)
    kept = locations.sigmoid()
    width = kept * (1 - kept)
    gates = window(locations, 40_000, seeded())
    between = (gates > 0) & (gates < 1)
    for share, expected in (
        ((gates == 1).double().mean(0), kept - width / 2),
        (between.double().mean(0), width),
        (gates.mean(0), kept),
    ):
        torch.testing.assert_close(share, expected, rtol=0, atol=0.01)
    inside = gates[:, 4][between[:, 4]]
    quarters = torch.histc(inside, 4, 0, 1) / len(inside)
    torch.testing.assert_close(quarters, torch.full_like(quarters, 0.25), rtol=0, atol=0.02)


def multilinear(masks: Tensor) -> Tensor:
    """A loss that is linear in each of four gates, and in no two of them together."""
    a, b, c, d = masks.unbind(-1)
    return 2 * a - 3 * a * b + 3 * b * c * (1 - d) + 0.5 * a * b * c * d + 3 * d


def test_the_estimate_is_the_gradient_over_all_masks() -> None:
    """Kept-or-cut masks can be counted: the mean loss is a polynomial of the probabilities."""
    locations = torch.tensor([-1.5, 0.0, 1.0, 2.5], dtype=torch.float64, requires_grad=True)
    masks = torch.tensor(list(product([0.0, 1.0], repeat=4)), dtype=torch.float64)
    kept = locations.sigmoid()
    chances = torch.where(masks > 0, kept, 1 - kept).prod(1)
    (expected,) = torch.autograd.grad((chances * multilinear(masks)).sum(), locations)
    gates = window(locations, 200_000, seeded())
    (found,) = torch.autograd.grad(multilinear(gates).mean(), locations)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.006)
    assert expected.abs().min() > 0.03


def test_probabilities_that_are_rounded_to_0_or_1() -> None:
    locations = torch.tensor([-200.0, 200.0], requires_grad=True)
    gates = window(locations, 50, seeded())
    assert gates.detach().unique(dim=0).tolist() == [[0.0, 1.0]]
    gates.sum().backward()
    assert locations.grad is not None
    assert locations.grad.tolist() == [0.0, 0.0]
