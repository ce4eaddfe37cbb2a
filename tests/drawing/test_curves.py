"""Curves of faithfulness: what is drawn, and what the legend says of it."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graphcircuits.drawing.library import save_figure
from graphcircuits.result.curve import FaithfulnessCurve

CURVE = FaithfulnessCurve(n_edges=16, sizes=(0, 4, 16), faithfulness=(0.0, -0.5, 1.0), n_pairs=8)


def test_a_curve_has_a_point_at_every_size_but_none() -> None:
    figure = CURVE.plot()
    line, one, keep, enough = figure.axes[0].get_lines()
    assert np.asarray(line.get_xydata()).tolist() == [[4.0, -0.5], [16.0, 1.0]]
    assert one.get_linestyle() == ":"
    assert keep.get_ydata() == [0.9, 0.9]
    assert np.asarray(enough.get_xydata()).tolist() == [[16.0, 0.9]]
    assert figure.axes[0].get_ylabel() == "faithfulness by output"
    words = figure.axes[0].get_legend()
    assert words is not None
    assert [text.get_text() for text in words.get_texts()] == [
        "faithfulness of the best edges",
        "1: as good as the whole subject",
        "16 edges keep 0.9",
    ]
    never = replace(CURVE, faithfulness=(0.0, 0.5, 0.8), by="loss").plot().axes[0]
    assert len(never.get_lines()) == 2
    assert never.get_ylabel() == "faithfulness by loss"
    low, high = figure.axes[0].get_ylim()
    assert low < -0.5 < 1 < high


def test_it_draws_on_axes_that_are_there() -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    assert CURVE.plot(axes) is figure
    assert len(axes.get_lines()) == 4


def test_curves_that_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = FaithfulnessCurve(n_edges=9, sizes=(0,), faithfulness=(0.0,), n_pairs=1)
    with pytest.raises(ValueError, match=r"with at least one edge, got sizes \[0\]"):
        empty.plot()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"plot\(\) needs matplotlib; install it with: pip inst"):
        CURVE.plot()


@pytest.mark.slow
def test_files_are_the_same_each_time(tmp_path: Path) -> None:
    for suffix in ("svg", "pdf"):
        for name in "ab":
            save_figure(CURVE.plot(), tmp_path / f"new/{name}.{suffix}")
        a, b = ((tmp_path / f"new/{name}.{suffix}").read_bytes() for name in "ab")
        assert a == b
    assert "faithfulness" in (tmp_path / "new/a.svg").read_text()
    with pytest.raises(ValueError, match=r"a plot is written as \.svg, \.png, \.pdf, got a\.gif"):
        save_figure(CURVE.plot(), "a.gif")
