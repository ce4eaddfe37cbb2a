"""A circuit as a figure of matplotlib, for papers: boxes and routes of `layout`, and a legend.

1. Components are boxes. Under the name of a head stand the slots that an edge arrives at: a circle
   for the query, a square for the key, a triangle for the value.
2. Edges are arrows in the colour of the slot they arrive at. Against a true circuit they have other
   colours and styles: hits are solid, misses dashed, false alarms dotted.
3. Where edges have scores, better ones are thicker.
4. The legend names every colour, shape, style and width that is there, and no other.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphcircuits.drawing.layout import Box, CircuitLayout, Route, layout, port
from graphcircuits.drawing.library import FAINT, INK, need_library, plain
from graphcircuits.graph import ComponentGraph

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SLOT_COLOURS = {"q": "#0173b2", "k": "#de8f05", "v": "#029e73", "": "#56565e"}
SLOT_WORDS = {"q": "query", "k": "key", "v": "value", "": "MLP or logits input"}
SLOT_MARKS = {"q": "o", "k": "s", "v": "^"}
TRUTH = {
    "hit": ("#0173b2", "solid", "hit: in both circuits"),
    "miss": ("#d55e00", (0, (4.5, 2.2)), "miss: only in the true circuit"),
    "false": ("#cc78bc", (0, (1.1, 1.5)), "false alarm: only in this circuit"),
}
"""Colour, line style and meaning of edges against a true circuit."""
THIN, THICK, PLAIN = 0.9, 3.2, 1.3
"""Widths of the lowest and the highest score, and without scores; in points."""
SCALE = 0.85
"""Points of the figure per unit of the layout."""
NARROW = 5.2
"""The least width of a figure in inches, for the legend to fit."""
HEAD = (7.0, 3.2)
"""Length of an arrowhead and half of its width, in units of the layout."""


def circuit_figure(
    graph: ComponentGraph,
    edges: Sequence[int],
    *,
    truth: Sequence[int] | None = None,
    scores: Mapping[int, float] | None = None,
    title: str = "",
    ax: "Axes | None" = None,
) -> "Figure":
    """Draw the edges, by number, and those of `truth` as well if a true circuit is given.

    With `scores` of all edges that are drawn, widths follow them. On `ax` where one is given, else
    on a figure of its own that is as large as the circuit asks for.
    """
    need_library("plot()")
    drawn = layout(graph, [*edges, *(truth or ())])
    kinds = kinds_of(edges, truth)
    widths = widths_of([route.edge for route in drawn.routes], scores)
    handles = _legend(drawn, kinds, scores)
    axes, figure, unit = _canvas(drawn, handles, title, ax)
    _draw_breaks(axes, drawn, unit)
    for (x, y), (x2, y2) in drawn.shared:
        axes.plot([x, x2], [y, y2], color="#c4c4cc", linewidth=1.4, zorder=0.6)
    _draw_routes(axes, drawn.routes, kinds, widths)
    slots = {(route.reader, route.slot) for route in drawn.routes}
    for box in drawn.boxes:
        _draw_box(axes, box, [slot for slot in "qkv" if (box.name, slot) in slots], kinds, unit)
    return figure


def kinds_of(edges: Sequence[int], truth: Sequence[int] | None) -> dict[int, str]:
    """`hit`, `miss` or `false` by edge; empty without a truth."""
    if truth is None:
        return {}
    chosen, true = set(edges), set(truth)
    kinds = {edge: "hit" if edge in true else "false" for edge in chosen}
    return kinds | dict.fromkeys(true - chosen, "miss")


def widths_of(edges: Sequence[int], scores: Mapping[int, float] | None) -> dict[int, float]:
    """Points by edge: from thin to thick as the scores go from the lowest to the highest."""
    if scores is None:
        return dict.fromkeys(edges, PLAIN)
    low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
    share = {edge: (scores[edge] - low) / (high - low) if high > low else 0.5 for edge in edges}
    return {edge: THIN + (THICK - THIN) * strength for edge, strength in share.items()}


def _canvas(
    drawn: CircuitLayout, handles: Mapping[Any, str], title: str, ax: "Axes | None"
) -> tuple[Any, "Figure", float]:
    """Axes in the units of the layout, their figure, and the points per unit."""
    from matplotlib.figure import Figure

    wide, tall = drawn.width * SCALE / 72, drawn.height * SCALE / 72
    if ax is None:
        width = max(NARROW, wide)
        columns = _columns(handles, width)
        legend = 0.12 + 0.165 * math.ceil(len(handles) / columns)
        heading = 0.3 if title else 0.0
        figure = Figure(figsize=(width, tall + legend + heading))
        whole = tall + legend + heading
        axes = figure.add_axes(((1 - wide / width) / 2, legend / whole, wide / width, tall / whole))
        if title:
            figure.text(0.5, 1 - 0.1 / whole, plain(title), ha="center", va="top", fontsize=9)
        position: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 0.0)}
        holder: Any = figure
    else:
        axes, position = ax, {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0)}
        parent = ax.get_figure(root=True)
        assert parent is not None
        figure, holder = parent, ax
        columns = _columns(handles, ax.get_position().width * figure.get_figwidth())
        if title:
            ax.set_title(plain(title), fontsize=9)
    axes.set(xlim=(0, drawn.width), ylim=(drawn.height, 0), aspect="equal")
    axes.set_axis_off()
    holder.legend(
        list(handles),
        list(handles.values()),
        **position,
        ncols=columns,
        fontsize=7,
        frameon=False,
        handlelength=2.6,
        columnspacing=1.6,
        borderaxespad=0.3,
    )
    box = axes.get_position()
    across, up = (box.width * figure.get_figwidth(), box.height * figure.get_figheight())
    return axes, figure, 72 * min(across / drawn.width, up / drawn.height)


def _columns(handles: Mapping[Any, str], width: float) -> int:
    """How many entries of the legend stand side by side in so many inches."""
    longest = max(map(len, handles.values()), default=1)
    return max(1, min(len(handles), int(width / (0.55 + 0.054 * longest))))


def _draw_breaks(axes: Any, drawn: CircuitLayout, unit: float) -> None:
    for name, y in drawn.breaks:
        axes.plot([4, drawn.width - 4], [y, y], color="#c4c4cc", linewidth=0.7, zorder=0.5)
        axes.text(
            4, y - 2, name, color=FAINT, fontsize=7 * unit, ha="left", va="bottom",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}, zorder=2.5,
        )  # fmt: skip


def _draw_routes(
    axes: Any, routes: Sequence[Route], kinds: Mapping[int, str], widths: Mapping[int, float]
) -> None:
    from matplotlib.collections import PathCollection
    from matplotlib.path import Path

    # Thin ones last, so that no thick one hides them.
    order = sorted(routes, key=lambda route: -widths[route.edge])
    looks = [
        TRUTH[kinds[route.edge]][:2] if kinds else (SLOT_COLOURS[route.slot], "solid")
        for route in order
    ]
    colours, styles = [colour for colour, _ in looks], [style for _, style in looks]
    lines, heads = [], []
    for route in order:
        steps = curve(route.points, widths[route.edge])
        codes = [{"M": Path.MOVETO, "L": Path.LINETO, "C": Path.CURVE4}[code] for code, _ in steps]
        lines.append(Path([point for _, point in steps], codes))
        heads.append(Path([*arrowhead(route.points[-1], widths[route.edge]), (0, 0)], closed=True))
    strokes = [widths[route.edge] for route in order]
    axes.add_collection(
        PathCollection(
            lines, facecolors="none", edgecolors=colours, linewidths=strokes, linestyles=styles
        ),
        autolim=False,
    )
    axes.add_collection(PathCollection(heads, facecolors=colours, edgecolors="none"), autolim=False)


def curve(
    points: Sequence[tuple[float, float]], width: float
) -> list[tuple[str, tuple[float, float]]]:
    """The way as moves, lines and cubic curves that leave and arrive vertically.

    A curve between rows stays between them, as its control points do. The last line ends inside the
    arrowhead.
    """
    steps: list[tuple[str, tuple[float, float]]] = [("M", points[0])]
    end = (points[-1][0], points[-1][1] + head_size(width)[0] * 0.8)
    for (x1, y1), (x2, y2) in zip(points, [*points[1:-1], end], strict=False):
        if x1 == x2:
            steps.append(("L", (x2, y2)))
            continue
        half = (y1 + y2) / 2
        steps += [("C", (x1, half)), ("C", (x2, half)), ("C", (x2, y2))]
    return steps


def head_size(width: float) -> tuple[float, float]:
    """Length and half of the width of an arrowhead on a line of so many points."""
    grow = 0.8 + 0.25 * width
    return HEAD[0] * min(1.25, grow), HEAD[1] * grow


def arrowhead(tip: tuple[float, float], width: float) -> list[tuple[float, float]]:
    """Three corners; arrows point upwards."""
    (x, y), (length, half) = tip, head_size(width)
    return [(x, y), (x - half, y + length), (x + half, y + length)]


def _draw_box(
    axes: Any, box: Box, slots: Sequence[str], kinds: Mapping[int, str], unit: float
) -> None:
    from matplotlib.patches import FancyBboxPatch

    edge = FAINT if box.folded else INK
    axes.add_patch(
        FancyBboxPatch(
            (box.x, box.y), box.width, box.height, boxstyle="round,pad=0,rounding_size=5",
            facecolor="white", edgecolor=edge, linewidth=0.6 if box.folded else 0.9, zorder=3,
            linestyle=(0, (2, 1.5)) if box.folded else "solid",
        )
    )  # fmt: skip
    centre = box.y + box.height * (0.36 if slots else 0.5)
    size = (8 if box.folded else 10) * unit
    axes.text(
        box.middle, centre, box.name, ha="center", va="center", fontsize=size, color=edge, zorder=4
    )
    for slot in slots:
        x, y = port(box, slot), box.y + box.height * 0.79
        colour = INK if kinds else SLOT_COLOURS[slot]
        axes.plot(
            [x - 3.4], [y], SLOT_MARKS[slot], color=colour, markersize=4.6 * unit,
            markeredgewidth=0, zorder=4,
        )  # fmt: skip
        axes.text(
            x + 1.4, y, slot, ha="left", va="center_baseline", fontsize=7.5 * unit, color=INK,
            zorder=4,
        )  # fmt: skip


def _legend(
    drawn: CircuitLayout, kinds: Mapping[int, str], scores: Mapping[int, float] | None
) -> dict[Any, str]:
    """What everything means, of what is there."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries: dict[Any, str] = {}
    for kind, (colour, style, words) in TRUTH.items():
        if count := list(kinds.values()).count(kind):
            line = Line2D([], [], color=colour, linestyle=style, linewidth=1.6)
            entries[line] = f"{words} ({count})"
    there = {route.slot for route in drawn.routes} - ({""} if kinds else set())
    for slot in (slot for slot in SLOT_WORDS if slot in there):
        colour = INK if kinds else SLOT_COLOURS[slot]
        line = Line2D(
            [], [], color=colour, linewidth=0 if kinds else 1.6, marker=SLOT_MARKS.get(slot, ""),
            markersize=4.6, markeredgewidth=0,
        )  # fmt: skip
        entries[line] = f"{'arrives at the' if kinds else 'to the'} {SLOT_WORDS[slot]}"
    if scores and drawn.routes:
        low, high = min(scores.values()), max(scores.values())
        ends = ((THICK, "highest", high), (THIN, "lowest", low)) if low < high else ()
        for width, which, score in ends:
            line = Line2D([], [], color=INK, linewidth=width)
            entries[line] = f"{which} score, {score:.3g}"
    if any(box.folded for box in drawn.boxes):
        patch = Patch(facecolor="white", edgecolor=FAINT, linestyle=(0, (2, 1.5)), linewidth=0.6)
        entries[patch] = "components without an edge"
    if drawn.shared:
        entries[Line2D([], [], color="#c4c4cc", linewidth=1.4)] = "shared keys and values"
    if drawn.breaks:
        entries[Line2D([], [], color="#c4c4cc", linewidth=0.7)] = "layers without an edge"
    return entries
