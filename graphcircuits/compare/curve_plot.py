"""Faithfulness curves as a picture: one panel per task or grid of sizes, one line per result.

Circuits of no edge have no place on a logarithmic axis and are left out. Colours follow the order
of the names, the same in every panel, so that one legend serves all.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphcircuits.compare.evaluate import FaithfulnessCurve

SUFFIXES = (".svg", ".png", ".pdf")
LOWEST, HIGHEST = -0.25, 1.35
"""The part of the axis that is drawn: a curve may leave it far on either side."""
COLOURS = (
    "#0173b2",
    "#de8f05",
    "#029e73",
    "#d55e00",
    "#cc78bc",
    "#ca9161",
    "#56565e",
    "#56b4e9",
    "#fbafe4",
    "#949494",
)

Panels = Mapping[str, Mapping[str, FaithfulnessCurve]]
"""Titles, and under each the curves by name."""


def missing_library(what: str) -> list[str]:
    """The problem with a plot where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return [f"{what} needs matplotlib; install it with: pip install 'graphcircuits[plot]'"]
    return []


def plot_curves(path: str | Path, panels: Panels, *, title: str = "", columns: int = 3) -> None:
    """Draw the panels, at most so many in a row; by suffix SVG, PNG or PDF."""
    if Path(path).suffix not in SUFFIXES:
        raise ValueError(f"a plot is written as {', '.join(SUFFIXES)}, got {path}.")
    if problems := missing_library("the plot"):
        raise ImportError(problems[0])
    import matplotlib
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    # A figure of its own, without pyplot: no window system and no state that outlives the call.
    figure = Figure(figsize=(1.2 + 3.1 * columns, 1.1 + 2.5 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    lines: dict[str, Any] = {}
    for axes, (panel, curves) in zip(grid.flat, panels.items(), strict=False):
        for name, curve in curves.items():
            lines[name] = _draw(axes, curve, names.index(name))
        axes.axhline(1.0, color="#8a8a94", linewidth=0.8, linestyle="dotted")
        axes.set_xscale("log")
        axes.set_ylim(LOWEST, HIGHEST)
        axes.set_title(panel, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.grid(color="#e4e4e8", linewidth=0.6)
        axes.set_axisbelow(True)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("faithfulness", fontsize=8)
    for axes in list(grid.flat)[max(0, len(panels) - columns) : len(panels)]:
        axes.set_xlabel("edges in the circuit", fontsize=8)
    if title:
        figure.suptitle(title, fontsize=10)
    figure.legend(
        [lines[name] for name in names],
        names,
        loc="outside lower center",
        ncols=min(len(names), 2 * columns + 2),
        fontsize=8,
        frameon=False,
    )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # Fixed ids and no date: the same curves give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "graphcircuits"}):
        metadata = {"Date": None} if Path(path).suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=150)


def _draw(axes: Any, curve: FaithfulnessCurve, place: int) -> Any:
    """One line; those beyond the colours are dashed."""
    points = zip(curve.sizes, curve.faithfulness, strict=True)
    sizes, values = zip(*[(size, value) for size, value in points if size > 0], strict=True)
    style = ("solid", "dashed", "dotted", "dashdot")[place // len(COLOURS) % 4]
    (line,) = axes.plot(
        sizes,
        values,
        color=COLOURS[place % len(COLOURS)],
        linestyle=style,
        linewidth=1.3,
        marker="o",
        markersize=2.5,
    )
    return line
