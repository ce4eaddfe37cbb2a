"""The figures of the familiarity table: ranks with ties, pairs, halves of the cases."""

import math

import pytest
import torch

from graphcircuits.predictor.facts.familiarity import Familiarity
from lab.benchmarks.familiarity import (
    Row,
    auroc,
    by_kind,
    by_measure,
    calibrations,
    rank_correlation,
)


def test_figures_by_hand() -> None:
    assert rank_correlation([1.0, 2.0, 3.0, 10.0], [5.0, 6.0, 7.0, 8.0]) == pytest.approx(1)
    assert rank_correlation([1.0, 2.0, 3.0], [-1.0, -20.0, -300.0]) == pytest.approx(-1)
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    assert rank_correlation([0.0, 1.0, 1.0, 2.0], [1.0, 2.0, 3.0, 4.0]) == pytest.approx(
        4.5 / (4.5 * 5) ** 0.5
    )
    assert auroc([3.0, 1.0, 2.0, 2.0], [True, False, True, False]) == pytest.approx(3.5 / 4)
    assert math.isnan(auroc([1.0, 2.0], [True, True]))


def test_tables_of_a_few_rows() -> None:
    generator = torch.Generator().manual_seed(0)

    def row(kind: str, gcl: float, strangeness: float) -> Row:
        logits = torch.randn(30, generator=generator)
        known = Familiarity(0.5, strangeness, strangeness, 0.1)
        return Row(kind, "plain", gcl, 0.1, known, logits, logits > 0.5)

    rows = [row("planted", 0.1, 0.5) for _ in range(4)] + [row("natural", 0.2, 2.0)] * 4
    header, *found = by_kind(rows)
    assert header[3:5] == ["gcl", "eap-ig"]
    assert ["natural", "all", "4", "0.2000", "0.1000", "100%", "2.00", "100%"] in found
    assert ["planted", "plain", "4", "0.1000", "0.1000", "0%", "0.50", "0%"] in found
    assert ["strangeness", "all", "1.00", "1.00", "1.00"] in list(by_measure(rows))
    kinds = [line[0] for line in calibrations(rows)]
    assert kinds == ["subjects", "all", "natural", "planted"]
