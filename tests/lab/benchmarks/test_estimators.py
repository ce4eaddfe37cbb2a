"""Estimators of the gradient over masks: true gradients, and which estimators have no bias."""

import pytest
import torch
from torch import Tensor

from lab.benchmarks.estimators import (
    ESTIMATORS,
    MASKS,
    Distances,
    all_masks,
    best_edges_gradient,
    estimates,
    independent_gradient,
    quality,
)

BY_NAME = {each.name: each for each in ESTIMATORS}
LOCATIONS = torch.tensor([-1.0, 0.2, 1.5])


def multilinear(masks: Tensor) -> Tensor:
    a, b, c = masks.unbind(-1)
    return 2 * a - 3 * a * b + 1.5 * b * c - c


def curved(masks: Tensor) -> Tensor:
    """The same on kept-or-cut masks, and another function between them."""
    return multilinear(masks) + (masks * (1 - masks)).sum(-1)


def test_the_sum_over_all_masks() -> None:
    """The expectation of what is linear in each gate is its value at the probabilities."""
    leaf = LOCATIONS.double().requires_grad_()
    (expected,) = torch.autograd.grad(multilinear(leaf.sigmoid()), leaf)
    found = independent_gradient(LOCATIONS, multilinear(all_masks(3)))
    torch.testing.assert_close(found, expected)


def test_the_gradient_of_the_best_edges() -> None:
    """Of two edges the first is best with a chance that an integral gives."""
    distances = torch.tensor([0.7, 0.9, 0.1, 0.0])  # none, the second, the first, both
    spread, values = 0.5, torch.tensor([0.3, 0.0])
    grid = torch.linspace(-20, 20, 20_001, dtype=torch.float64)
    density = (grid / spread).sigmoid() * (-grid / spread).sigmoid() / spread
    leaf = values.double().requires_grad_()
    first = torch.trapezoid(density * ((leaf[0] - leaf[1] + grid) / spread).sigmoid(), grid)
    (expected,) = torch.autograd.grad((first * 0.1 + (1 - first) * 0.9) / 2, leaf)
    generator = torch.Generator().manual_seed(0)
    found = best_edges_gradient(values, spread, distances, generator, draws=2**18)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.004)
    assert expected.abs().min() > 0.1


@pytest.mark.parametrize(
    ("name", "function", "biased"),
    [
        ("score function", multilinear, False),
        ("score function", curved, False),
        ("score function, baseline", curved, False),
        ("uniform gradient sampling", multilinear, False),
        ("straight-through", multilinear, False),
        ("straight-through", curved, True),
        ("soft mask, no noise", curved, True),
        ("concrete, temperature 1", curved, True),
    ],
)
def test_bias(name: str, function: Distances, biased: bool) -> None:
    truth = independent_gradient(LOCATIONS, function(all_masks(3)))
    many = LOCATIONS.expand(40_000 * MASKS, -1)
    drawn = estimates(BY_NAME[name], many, function, torch.Generator().manual_seed(0))
    found = quality(drawn.double().unflatten(0, (-1, MASKS)).mean(1), truth)
    assert (found.bias > 0.05) == biased
    assert found.bias < 0.02 or biased


def test_a_baseline_lessens_the_spread() -> None:
    truth = independent_gradient(LOCATIONS, 5 + multilinear(all_masks(3)))
    many = LOCATIONS.expand(1000 * MASKS, -1)
    spreads = []
    for name in ("score function", "score function, baseline"):
        drawn = estimates(
            BY_NAME[name], many, lambda m: 5 + multilinear(m), torch.Generator().manual_seed(0)
        )
        spreads.append(quality(drawn.double().unflatten(0, (-1, MASKS)).mean(1), truth).spread)
    assert spreads[1] < 0.5 * spreads[0]
