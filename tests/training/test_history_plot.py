"""Trainings as a picture: which panels there are, what is drawn, and where it comes from."""

import sys
from typing import Any

import pytest

from graphcircuits.training.history_plot import history_figure, plot_histories

CASES = {"a": {"head": 0.5, "qkv": 0.6}, "b": {"head": 1.0, "qkv": 0.8, "cmd": 0.25}}
HISTORIES: dict[int, dict[int, dict[str, Any]]] = {
    0: {10: {"loss": 3.0, "cases": CASES}, 20: {"loss": 1.0, "cases": CASES}},
    4: {10: {"loss": 2.0, "cases": {}}},
}


def points(line: Any) -> list[list[float]]:
    return line.get_xydata().tolist()


@pytest.mark.slow
def test_a_panel_for_every_figure_and_a_line_for_every_seed() -> None:
    figure = history_figure(HISTORIES, chosen={0: 20}, title="costs $5")
    assert [axes.get_title() for axes in figure.axes] == [
        "training loss",
        "held-out AUROC, by head",
        "held-out AUROC, q/k/v apart",
        "held-out CMD, smaller is better",
    ]
    loss, head, _, cmd = figure.axes
    first, ring, second = loss.get_lines()
    assert points(first) == [[10.0, 3.0], [20.0, 1.0]]
    assert points(ring) == [[20.0, 1.0]]
    assert points(second) == [[10.0, 2.0]]
    assert points(head.get_lines()[0]) == [[10.0, 0.75], [20.0, 0.75]]
    assert points(cmd.get_lines()[0]) == [[10.0, 0.25], [20.0, 0.25]]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "seed 0",
        "seed 4",
        "recorded step",
        "step whose weights are kept",
    ]
    alone = history_figure({4: HISTORIES[4]})
    assert [axes.get_title() for axes in alone.axes] == ["training loss"]


def test_what_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"a plot is written as \.svg, \.png, \.pdf, got a\.gif"):
        plot_histories("a.gif", HISTORIES)
    with pytest.raises(ValueError, match="needs at least one recorded step, got none"):
        history_figure({0: {}})
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="the plot needs matplotlib; install it with: pip"):
        history_figure(HISTORIES)
