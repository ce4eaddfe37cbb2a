"""Faithfulness curves as a picture: one panel per task or grid of sizes, one line per result.

Circuits of no edge have no place on a logarithmic axis and are left out. Colours follow the order
of the names, the same in every panel, so that one legend serves all. It also says what the points
and the dotted line are.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphcircuits.drawing.curves import HIGHEST, LOWEST, ONE, POINT, draw_curve, frame
from graphcircuits.drawing.library import (
    COLOURS,
    SUFFIXES,
    known_suffix,
    missing_library,
    need_library,
    plain,
    save_figure,
)
from graphcircuits.evaluation.evaluate import FaithfulnessCurve

__all__ = ["COLOURS", "SUFFIXES", "Panels", "missing_library", "plot_curves"]

Panels = Mapping[str, Mapping[str, FaithfulnessCurve]]
"""Titles, and under each the curves by name."""


def plot_curves(path: str | Path, panels: Panels, *, title: str = "", columns: int = 3) -> None:
    """Draw the panels, at most so many in a row; by suffix SVG, PNG or PDF."""
    known_suffix(path)
    need_library("the plot")
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    # A figure of its own, without pyplot: no window system and no state that outlives the call.
    figure = Figure(figsize=(1.2 + 3.1 * columns, 1.1 + 2.5 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    lines: dict[str, Any] = {}
    for axes, (panel, curves) in zip(grid.flat, panels.items(), strict=False):
        for name, curve in curves.items():
            style = _style(names.index(name))
            lines[name] = draw_curve(axes, curve.sizes, curve.faithfulness, **style)
        lines[ONE] = frame(axes)
        axes.set_ylim(LOWEST, HIGHEST)
        axes.set_title(plain(panel), fontsize=9)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("faithfulness", fontsize=8)
    for axes in list(grid.flat)[max(0, len(panels) - columns) : len(panels)]:
        axes.set_xlabel("edges in the circuit", fontsize=8)
    if title:
        figure.suptitle(plain(title), fontsize=10)
    point = Line2D([], [], color="#56565e", linestyle="", marker="o", markersize=2.8)
    handles = {lines[name]: name for name in names} | {lines[ONE]: ONE, point: POINT}
    # What the longest entry takes, in inches.
    column = 0.6 + 0.062 * max(map(len, handles.values()))
    figure.legend(
        list(handles),
        [plain(words) for words in handles.values()],
        loc="outside lower center",
        ncols=max(1, min(len(handles), int(figure.get_figwidth() / column))),
        fontsize=8,
        frameon=False,
    )
    save_figure(figure, path)


def _style(place: int) -> dict[str, Any]:
    """Colour and style of a line; those beyond the colours are dashed."""
    style = ("solid", "dashed", "dotted", "dashdot")[place // len(COLOURS) % 4]
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": style}
