"""What was said and what was true, by hand."""

import pytest
import torch

from lab.reliability import calibration_error, reliability


def test_reliability_by_hand() -> None:
    p = torch.tensor([0.05, 0.07, 0.95, 1.0, 0.5])
    labels = torch.tensor([False, True, True, True, False])
    cases = torch.tensor([0, 0, 0, 0, 1])
    low, middle, high = reliability(p, labels, cases)
    assert (low.low, low.high, low.weight) == pytest.approx((0.0, 0.1, 0.25))
    assert (low.said, low.true) == pytest.approx((0.06, 0.5))
    assert (middle.said, middle.true, middle.weight) == pytest.approx((0.5, 0.0, 0.5))
    assert (high.said, high.true) == pytest.approx((0.975, 1.0))
    expected = 0.25 * 0.44 + 0.5 * 0.5 + 0.25 * 0.025
    assert calibration_error(p, labels, cases) == pytest.approx(expected)
    assert calibration_error(labels.double(), labels, cases) == 0
