"""Uniform gradient sampling: the draws, their gradient against all masks, the circuits it finds."""

from itertools import product

import pytest
import torch
from torch import Tensor

from graphcircuits.cases import load_case
from graphcircuits.evaluation.evaluate import auroc
from graphcircuits.methods.prepare import Stop
from graphcircuits.methods.ugs import START, draw, ugs
from tests.methods.tasks import make_pairs
from tests.subjects import make_subject


def test_a_gate_is_kept_as_often_as_it_should() -> None:
    locations = torch.linspace(-4, 4, 9, dtype=torch.float64)
    kept = locations.sigmoid()
    window = kept * (1 - kept)
    gates = draw(locations, 40_000, torch.Generator().manual_seed(0))
    between = (gates > 0) & (gates < 1)
    for share, expected in (
        ((gates == 1).double().mean(0), kept - window / 2),
        (between.double().mean(0), window),
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
    gates = draw(locations, 200_000, torch.Generator().manual_seed(0))
    (found,) = torch.autograd.grad(multilinear(gates).mean(), locations)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.006)
    assert expected.abs().min() > 0.03


def test_probabilities_that_are_rounded_to_0_or_1() -> None:
    locations = torch.tensor([-200.0, 200.0], requires_grad=True)
    gates = draw(locations, 50, torch.Generator().manual_seed(0))
    assert gates.detach().unique(dim=0).tolist() == [[0.0, 1.0]]
    gates.sum().backward()
    assert locations.grad is not None
    assert locations.grad.tolist() == [0.0, 0.0]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("id", ["ib-44", "new-pointer-hop-2"])
def test_it_finds_planted_circuits(id: str) -> None:
    case = load_case(id)
    scores = ugs(case.subject(), case.pairs(32), steps=100, samples=8)
    assert auroc(scores, case.circuit) > 0.97


@pytest.mark.slow
def test_more_weight_on_sparsity_keeps_less() -> None:
    subject = make_subject(n_layers=1, n_heads=2)
    pairs = make_pairs(subject)
    shares = [
        float(ugs(subject, pairs, sparsity=weight, steps=40).sigmoid().mean())
        for weight in (0.0, 1.0, 100.0)
    ]
    assert shares[0] > shares[1] > shares[2]


def test_seed_and_stop() -> None:
    subject = make_subject(n_layers=1)
    pairs = make_pairs(subject)

    def stop_at_two(done: int, total: int) -> None:
        if done == 2:
            raise Stop

    two, stopped = (
        ugs(subject, pairs, steps=steps, progress=progress)
        for steps, progress in ((2, None), (50, stop_at_two))
    )
    assert torch.equal(two, stopped)
    assert not torch.equal(two, torch.full_like(two, START))
    other = ugs(subject, pairs, steps=2, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(two, other)
    with pytest.raises(ValueError, match="samples must be above 0, got 0"):
        ugs(subject, pairs, samples=0)
