"""One curve of faithfulness over circuit sizes as a figure of matplotlib, and what panels share.

Sizes are on a logarithmic axis, where circuits of no edge have no place and are left out. Points
are the sizes that were measured; the dotted line is at 1, where the circuit does as well as the
whole subject. The legend says both.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphcircuits.drawing.library import COLOURS, FAINT, RULE, need_library

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOWEST, HIGHEST = -0.25, 1.35
"""The part of the axis that panels side by side draw: a curve may leave it far on either side."""
ONE = "1: as good as the whole subject"
POINT = "size that was measured"


def curve_figure(
    sizes: Sequence[int],
    faithfulness: Sequence[float],
    *,
    label: str = "faithfulness of the best edges",
    ax: "Axes | None" = None,
) -> "Figure":
    """Draw it on `ax`, or on a figure of its own."""
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
    draw_curve(axes, sizes, faithfulness, color=COLOURS[0], label=label)
    frame(axes)
    low, high = min(faithfulness), max(faithfulness)
    axes.set_ylim(min(-0.05, low - 0.05), max(1.1, high + 0.05))
    axes.set_xlabel("edges in the circuit", fontsize=8)
    axes.set_ylabel("faithfulness", fontsize=8)
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
