"""InterpBench's reading of scores, against counting by hand and against ours."""

import pytest
import torch

from graphcircuits import auroc, load_case, localize
from lab.benchmarks.interpbench_protocol import (
    THRESHOLDS,
    every_threshold,
    mask_gradients,
    readings,
    sharpened,
    staircase,
    staircase_auroc,
)


def test_stairs_lie_below_their_points() -> None:
    assert staircase([(0.0, 1.0)]) == 1.0
    assert staircase([(0.5, 0.5), (1.0, 1.0)]) == pytest.approx(0.25)
    # A point that is worse than one before adds nothing, and neither does the way to (1, 1).
    assert staircase([(0.2, 0.6), (0.4, 0.5)]) == pytest.approx(0.48)
    assert staircase([(0.0, 0.0)]) == 0.0


def test_fixed_thresholds_lose_what_is_small_or_negative() -> None:
    circuit = load_case("ib-8").labels("interpbench")
    scores = torch.rand(circuit.graph.n_edges, generator=torch.Generator().manual_seed(0))
    right = scores.where(circuit.mask, torch.tensor(0.0))
    assert staircase_auroc(0.5 + right, circuit, every_threshold(0.5 + right)) == 1.0
    assert staircase_auroc(right, circuit) == auroc(right, circuit) == 1.0
    # The same order, below all thresholds but 0, or with the other sign.
    tiny = (1e-3 + right) * 1e-9
    assert auroc(tiny, circuit) == 1.0
    assert staircase_auroc(tiny, circuit) == 0.0
    assert staircase_auroc(-right, circuit) == 0.0
    # Without ties the stairs at every score are the rank statistic.
    order = graph_level_distinct(scores, circuit.graph.n_edges)
    assert staircase_auroc(order, circuit, every_threshold(order)) == pytest.approx(
        auroc(order, circuit)
    )
    assert len(THRESHOLDS) == 19


def graph_level_distinct(scores: torch.Tensor, n: int) -> torch.Tensor:
    """Distinct scores in the same order."""
    return torch.arange(n, dtype=torch.float64)[scores.argsort().argsort()]


@pytest.mark.slow
def test_effects_are_those_of_eap_and_a_sure_subject_has_none() -> None:
    case = load_case("ib-8")
    subject, pairs = case.subject(), case.pairs(16, 0)
    found = mask_gradients(subject, pairs, "eap")
    positions = int(pairs.scored[0].sum())
    expected = localize(subject, pairs, method="eap").scores * positions
    torch.testing.assert_close(found.abs().mean(0), expected, rtol=1e-4, atol=1e-7)
    circuit = case.labels("interpbench", subject.graph)
    # Twenty times surer, no gradient at the clean run reaches the smallest threshold.
    sure = readings("eap", subject, sharpened(pairs, 20.0), circuit)
    assert sure["summed, 19 thresholds"] == 0.0
    along = readings("eap-ig", subject, sharpened(pairs, 20.0), circuit)
    assert along["summed, 19 thresholds"] > 0.9
    numbers = load_case("ib-3").pairs(2, 0)
    assert sharpened(numbers, 20.0) is numbers
