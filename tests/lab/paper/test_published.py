"""The published figures are those that the paper prints, in its table and in its figure."""

import json
from typing import Any

import pytest

from graphcircuits.methods import METHODS
from lab import ROOT
from lab.paper.published import (
    BASELINES,
    BY_CONFIGURATION,
    EXPLAINER,
    HIGHLIGHTED,
    OUR_NAMES,
    PUBLISHED,
    short_words,
    words,
)
from lab.paper.sweep_rows import CONFIGURATIONS

FACTS = json.loads((ROOT / "tests" / "data" / "paper_results.json").read_text())
LONG = {"SP, edge": "Edge-wise Subnetwork Probing", "SP, node": "Node-wise Subnetwork Probing"}


@pytest.mark.parametrize("place", range(20))
def test_the_table(place: int) -> None:
    printed, row = FACTS["table"][place], PUBLISHED[place]
    if row.configuration is None:
        assert LONG.get(row.method, row.method) == printed["method"]
    else:
        assert words(row.configuration) == (
            printed["method"],
            printed["transformation"],
            printed["connectivity"],
        )
    assert row.cross_validation == printed["cross_validation"]
    assert [round(value, 3) for value in row.quantiles] == printed["quantiles"]
    assert (None if row.spread is None else list(row.spread)) == printed["spread"]


def test_the_table_is_whole() -> None:
    assert len(FACTS["table"]) == len(PUBLISHED) == 20
    assert tuple(BY_CONFIGURATION) == CONFIGURATIONS
    assert set(OUR_NAMES) == {row.method for row in (EXPLAINER, *BASELINES)}
    assert set(OUR_NAMES.values()) <= set(METHODS)


@pytest.mark.parametrize("place", range(8))
def test_the_figure(place: int) -> None:
    drawn: dict[str, Any] = FACTS["figure"][place]
    row = HIGHLIGHTED[place]
    assert row.whiskers is not None
    assert list(row.quantiles[1:4]) == drawn["box"]
    assert list(row.whiskers) == drawn["whiskers"]
    assert list(row.outliers) == drawn["outliers"]
    ends = [*drawn["whiskers"], *drawn["outliers"]]
    assert [row.quantiles[0], row.quantiles[4]] == [min(ends), max(ends)]
    if drawn["intervals"] is not None:
        assert row.spread is not None
        assert [list(pair) for pair in zip(row.quantiles, row.spread, strict=True)] == (
            drawn["intervals"]
        )


def test_the_figure_is_whole() -> None:
    assert len(FACTS["figure"]) == len(HIGHLIGHTED) == 8
    labels = [drawn["label"] for drawn in FACTS["figure"]]
    assert labels[2:] == [row.method for row in HIGHLIGHTED[2:]]


def test_short_words() -> None:
    assert short_words("dirgnn-line-observed") == "DirGraphConv, line graph"
    assert short_words("dagformer-incidence-none") == (
        "Quadratic DAGformer, incidence graph, no message passing"
    )
    assert HIGHLIGHTED[1].method == "GCL, DirGraphConv, line graph, no message passing"


def test_published_figures_are_consistent() -> None:
    assert len(HIGHLIGHTED) == 8
    for one in HIGHLIGHTED:
        low, *_, high = one.quantiles
        assert list(one.quantiles) == sorted(one.quantiles)
        # The extremes are where the whiskers end, or lie beyond them.
        assert one.whiskers is not None
        assert low == min(one.whiskers[0], *one.outliers, 1.0)
        assert high == max(one.whiskers[1], *one.outliers, 0.0)
        assert all(not one.whiskers[0] <= outlier <= one.whiskers[1] for outlier in one.outliers)
