"""Curves of faithfulness over circuit sizes as figures of matplotlib: one, or panels of several.

Sizes are on a logarithmic axis, which has no zero, so circuits of no edge are left out. Points are
the sizes that were measured; the dotted line is at 1, where the circuit does as well as the whole
subject. A curve alone has a dashed line at KEEP, and a mark at the size that takes. The legend says
so. In panels, colours follow the order of the names, so that one legend serves all.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphcircuits.drawing.library import COLOURS, FAINT, RULE, need_library, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOWEST, HIGHEST = -0.25, 1.35
"""The range of the axis that panels side by side draw: a curve may leave it far on either side."""
KEEP = 0.9
"""The share of the behaviour that a line is drawn at: what proposed circuits keep."""
ONE = "1: as good as the whole subject"
POINT = "size that was measured"

Points = tuple[Sequence[int], Sequence[float]]
"""Sizes, and the faithfulness at each."""


def curve_figure(
    sizes: Sequence[int],
    faithfulness: Sequence[float],
    *,
    by: str,
    enough: int | None = None,
    ax: "Axes | None" = None,
) -> "Figure":
    """Draw it on `ax`, or on a figure of its own; `enough` edges keep KEEP."""
    need_library("plot()")
    from matplotlib.figure import Figure

    if not any(size > 0 for size in sizes):
        raise ValueError(
            f"a curve is drawn of circuits with at least one edge, got sizes {list(sizes)}."
        )
    if ax is None:
        figure = Figure(figsize=(4.2, 3.0), layout="constrained")
        axes: Any = figure.subplots()
    else:
        parent = ax.get_figure(root=True)
        assert parent is not None
        figure, axes = parent, ax
    draw_curve(axes, sizes, faithfulness, color=COLOURS[0], label="faithfulness of the best edges")
    frame(axes)
    if enough:
        words = f"{enough:,} edges keep {KEEP:g}"
        axes.axhline(KEEP, color=FAINT, linewidth=0.7, linestyle="dashed")
        axes.plot([enough], [KEEP], color=COLOURS[1], linestyle="", marker="D", label=words)
    low, high = min(faithfulness), max(faithfulness)
    axes.set_ylim(min(-0.05, low - 0.05), max(1.1, high + 0.05))
    axes.set_xlabel("edges in the circuit", fontsize=8)
    axes.set_ylabel(f"faithfulness by {by}", fontsize=8)
    axes.legend(fontsize=7, frameon=True, framealpha=0.85, edgecolor="none")
    return figure


def draw_curve(axes: Any, sizes: Sequence[int], values: Sequence[float], **style: Any) -> Any:
    """The line of one curve, and a point at every size that was measured."""
    points = [(size, value) for size, value in zip(sizes, values, strict=True) if size > 0]
    (line,) = axes.plot(
        [size for size, _ in points],
        [value for _, value in points],
        linewidth=1.3,
        marker="o",
        markersize=2.8,
        **style,
    )
    return line


def frame(axes: Any) -> Any:
    """A logarithmic axis, a grid, and the dotted line at 1, which it gives back."""
    line = axes.axhline(1.0, color=FAINT, linewidth=0.9, linestyle="dotted", label=ONE)
    axes.set_xscale("log")
    axes.tick_params(labelsize=7)
    axes.grid(color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    return line


def panels_figure(panels: Mapping[str, Mapping[str, Points]], *, title: str = "") -> "Figure":
    """Draw panels by title, each with curves by name; at most three panels in a row."""
    need_library("the plot")
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    # A figure of its own, without pyplot: no window system and no state that outlives the call.
    figure = Figure(figsize=(1.2 + 3.1 * columns, 1.1 + 2.5 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    lines: dict[str, Any] = {}
    for axes, (panel, curves) in zip(grid.flat, panels.items(), strict=False):
        for name, curve in curves.items():
            style = _style(names.index(name))
            lines[name] = draw_curve(axes, *curve, **style)
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
    return figure


def _style(number: int) -> dict[str, Any]:
    """Colour and style of a line; those beyond the colours are dashed."""
    style = ("solid", "dashed", "dotted", "dashdot")[number // len(COLOURS) % 4]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": style}
