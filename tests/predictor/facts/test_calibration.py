"""Calibration: best lines and step functions by slow twins, cases of equal weight, and files."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.predictor.facts.calibration import (
    Isotonic,
    Platt,
    calibration_from_json,
    calibration_to_json,
    case_weights,
    fit_calibration,
    log_loss,
)
from lab.needed import best_edges
from tests.predictor.graphs import seeded


def make_edges(
    cases: int = 6, edges: int = 50, scale: float = 1.5, bias: float = -1.0, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Edges whose true probability is a line on the scale of log odds."""
    generator = seeded(seed)
    logits = 2 * torch.randn(cases * edges, generator=generator, dtype=torch.float64)
    p = (scale * logits + bias).sigmoid()
    labels = torch.rand(len(p), generator=generator, dtype=torch.float64) < p
    return logits, labels, torch.arange(cases).repeat_interleave(edges)


def drawn_in(labels: Tensor) -> Tensor:
    """Platt's targets."""
    inside = int(labels.sum())
    outside = len(labels) - inside
    return torch.where(labels, (inside + 1) / (inside + 2), 1 / (outside + 2)).double()


def test_the_line_is_where_the_log_loss_is_flat() -> None:
    logits, labels, cases = make_edges()
    found = fit_calibration(logits, labels, cases, kind="platt")
    assert isinstance(found, Platt)
    line = torch.tensor([found.scale, found.bias], dtype=torch.float64, requires_grad=True)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        line[0] * logits + line[1], drawn_in(labels), weight=case_weights(cases), reduction="sum"
    )
    (slope,) = torch.autograd.grad(losses, line)
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=2e-5, rtol=0)


def test_many_edges_give_the_line_they_were_drawn_from() -> None:
    found = fit_calibration(*make_edges(edges=20_000), kind="platt")
    assert isinstance(found, Platt)
    assert found.scale == pytest.approx(1.5, abs=0.05)
    assert found.bias == pytest.approx(-1.0, abs=0.05)


def test_the_step_function_is_the_largest_of_the_least_means() -> None:
    """Isotonic regression in closed form: max over starts of min over ends of weighted means."""
    logits, labels, cases = make_edges(cases=3, edges=15)
    cases[:5] = 7  # weights differ
    order = logits.argsort()
    y, w = drawn_in(labels)[order], case_weights(cases)[order]

    def mean(first: int, last: int) -> float:
        part = slice(first, last + 1)
        return float((y[part] @ w[part]) / w[part].sum())

    n = len(y)
    slow = [
        max(min(mean(first, last) for last in range(place, n)) for first in range(place + 1))
        for place in range(n)
    ]
    found = fit_calibration(logits, labels, cases, kind="isotonic")
    torch.testing.assert_close(found(logits[order]).double(), torch.tensor(slow).double())


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_larger_logits_are_never_less_likely(kind: str) -> None:
    found = fit_calibration(*make_edges(), kind=kind)
    grid = torch.linspace(-20, 20, 999)
    p = found(grid)
    assert p.dtype == torch.float32
    assert (p.diff() >= 0).all()
    assert 0 < p[0] < p[-1] < 1 if kind == "isotonic" else 0 <= p[0] < p[-1] <= 1


def test_equal_logits_are_equally_likely() -> None:
    logits = torch.tensor([0.0, 0.0, 1.0, 1.0])
    labels = torch.tensor([True, False, True, False])
    found = fit_calibration(logits, labels, torch.tensor([0, 0, 1, 1]), kind="isotonic")
    torch.testing.assert_close(found(logits), torch.full((4,), 0.5))


def test_cases_weigh_the_same_whatever_their_size_and_order() -> None:
    logits, labels, cases = make_edges()
    once = fit_calibration(logits, labels, cases)
    # All edges of one case three times over: the same case.
    own = cases == 2
    rows = torch.cat([torch.arange(len(cases)), *2 * [own.nonzero().flatten()]])
    assert case_weights(cases[rows])[cases[rows] == 2].sum() == pytest.approx(1 / 6)
    more = fit_calibration(logits[rows], labels[rows], cases[rows], kind="platt")
    assert isinstance(once, Platt)
    assert isinstance(more, Platt)
    # Only Platt's targets know the number of edges.
    assert more.scale == pytest.approx(once.scale, abs=0.02)
    shuffled = torch.randperm(len(cases), generator=seeded(1))
    names = torch.randperm(6, generator=seeded(2))[cases]
    same = fit_calibration(logits[shuffled], labels[shuffled], names[shuffled], kind="platt")
    assert isinstance(same, Platt)
    assert (same.scale, same.bias) == pytest.approx((once.scale, once.bias))


def test_steps_are_taken_only_where_no_line_will_do() -> None:
    logits, labels, cases = make_edges(edges=400)
    assert isinstance(fit_calibration(logits, labels, cases), Platt)
    # Certain from -1 on: far from a line.
    step = (logits > -1) ^ (torch.rand(len(logits), generator=seeded(4)) < 0.3) & (logits < 2)
    found = fit_calibration(logits, step, cases)
    assert isinstance(found, Isotonic)
    assert float(found(logits).mean()) == pytest.approx(float(step.double().mean()), abs=0.03)


def test_scores_that_part_the_labels_or_say_the_contrary() -> None:
    logits = torch.linspace(-2, 2, 40)
    cases = torch.zeros(40, dtype=torch.long)
    parted = fit_calibration(logits, logits > 0, cases)
    assert parted(logits)[0] < 0.05 < 0.95 < parted(logits)[-1]
    contrary = fit_calibration(logits, logits < -1, cases)
    assert isinstance(contrary, Platt)
    assert contrary.scale == 0
    base = drawn_in(logits < -1).mean()
    torch.testing.assert_close(contrary(logits), base.float().expand(40))


def test_log_loss_is_that_of_torch() -> None:
    p, y = torch.tensor([0.2, 0.9]).double(), torch.tensor([0.0, 1.0]).double()
    expected = torch.nn.functional.binary_cross_entropy(p, y).item()
    assert log_loss(p, y, torch.ones(2).double()) == pytest.approx(expected)


def test_needed_edges_are_the_best_ties_in_edge_order() -> None:
    assert best_edges(torch.tensor([1.0, 3.0, 3.0, 3.0]), 2).tolist() == [False, True, True, False]
    assert not best_edges(torch.tensor([1.0]), 0).any()


# Files


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_json_brings_it_back(kind: str) -> None:
    found = fit_calibration(*make_edges(), kind=kind)
    assert calibration_from_json(json.loads(json.dumps(calibration_to_json(found)))) == found


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "must be of the kind platt or isotonic, got None"),
        ({"kind": "spline"}, "must be of the kind platt or isotonic"),
        ({"kind": "platt", "scale": 1.0}, "must be of the kind platt or isotonic"),
        ({"kind": "platt", "scale": "1", "bias": 0}, "must hold numbers"),
        ({"kind": ["platt"], "scale": 1.0, "bias": 0}, "must be of the kind platt or isotonic"),
        ({"kind": "platt", "scale": 10**400, "bias": 0}, "must hold numbers"),
        ({"kind": "platt", "scale": [1.0], "bias": [0.0]}, "must hold numbers"),
        ({"kind": "isotonic", "logits": 1.0, "probabilities": 0.5}, "must hold numbers"),
        ({"kind": "platt", "scale": -1.0, "bias": 0}, "scale must be a number from 0"),
        ({"kind": "isotonic", "logits": [0, 0], "probabilities": [0, 1]}, "growing logits"),
        ({"kind": "isotonic", "logits": [0, 1], "probabilities": [1, 0]}, "growing logits"),
        ({"kind": "isotonic", "logits": [0, 1], "probabilities": [0, 2]}, r"in 0\.\.1"),
        ({"kind": "isotonic", "logits": [0, 1], "probabilities": [0]}, "as many growing prob"),
        (
            {"kind": "isotonic", "logits": [0, float("inf")], "probabilities": [0, 1]},
            "must be finite",
        ),
    ],
)
def test_what_is_no_calibration_is_refused(found: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calibration_from_json(found)


def test_what_cannot_be_fitted_is_refused() -> None:
    logits, labels, cases = make_edges(cases=1, edges=4)
    with pytest.raises(ValueError, match="inside and outside of circuits, got 4 of 4 inside"):
        fit_calibration(logits, torch.ones_like(labels), cases)
    with pytest.raises(ValueError, match="logits must be finite, 4 are not"):
        fit_calibration(logits / 0, torch.tensor([True, False, True, False]), cases)
    with pytest.raises(ValueError, match="kind must be one of platt, isotonic, got 'spline'"):
        fit_calibration(logits, labels, cases, kind="spline")
