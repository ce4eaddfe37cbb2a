"""Box plots as the paper draws them.

1. A `Box` is five quantiles, whiskers to the last case within 1.5 interquartile ranges of the box,
   the cases beyond, and how far each quantile varies over seeds.
2. A `Slot` is a place on the axis with a label, and the boxes that stand there side by side; a
   `SlotGroup` has a heading.
3. `box_figure` draws them: ours with solid outlines, published ones dashed, and beside each box a
   capped dotted interval of one standard deviation over seeds, up and down, for every quantile.
   `draw_boxes` writes that to a file.
"""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphcircuits.compare.figures import quantiles
from graphcircuits.drawing.library import (
    STYLE,
    SUFFIXES,
    known_suffix,
    need_library,
    plain,
    save_figure,
)
from lab.paper.published import Published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SUFFIXES", "Box", "Slot", "SlotGroup", "box_figure", "draw_boxes"]

COLOURS = {False: ("#0173b2", "#cfe3f0"), True: ("#56565e", "#ececef")}
"""Line and filling, by whether a box is published."""
SLOT, WIDTH, BESIDE, GAP = 1.0, 0.44, 0.17, 0.35
"""Units of the axis: from slot to slot, all boxes of a slot, between them, and more from group to
group."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """What is drawn of a method."""

    quantiles: tuple[float, ...]
    whiskers: tuple[float, float]
    outliers: tuple[float, ...] = ()
    spread: tuple[float, ...] | None = None
    published: bool = False

    @classmethod
    def of_cases(cls, values: Sequence[float], spread: tuple[float, ...] | None = None) -> "Box":
        """The box of a method's cases, seeds averaged within each."""
        five = quantiles(values)
        _, q1, _, q3, _ = five
        reach = 1.5 * (q3 - q1)
        low = min((value for value in values if q1 - reach <= value <= q1), default=q1)
        high = max((value for value in values if q3 <= value <= q3 + reach), default=q3)
        beyond = tuple(value for value in values if not low <= value <= high)
        return cls(quantiles=five, whiskers=(low, high), outliers=beyond, spread=spread)

    @classmethod
    def of_published(cls, row: Published) -> "Box":
        """Whiskers end at the extremes where the paper prints no others."""
        whiskers = row.whiskers or (row.quantiles[0], row.quantiles[-1])
        return cls(
            quantiles=row.quantiles,
            whiskers=whiskers,
            outliers=row.outliers,
            spread=row.spread,
            published=True,
        )


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A place on the axis."""

    label: str
    """Broken at its commas, and where it is long."""
    boxes: tuple[Box, ...]


@dataclass(frozen=True, kw_only=True)
class SlotGroup:
    """Slots under a heading, set apart from others by a line."""

    title: str
    slots: tuple[Slot, ...]


def draw_boxes(
    path: str | Path,
    groups: Sequence[SlotGroup],
    *,
    title: str,
    axis: str = "Edge AUROC",
    limits: tuple[float, float] | None = (-0.02, 1.03),
) -> None:
    """Write `box_figure` to a file; by suffix SVG, PNG or PDF."""
    known_suffix(path)
    save_figure(box_figure(groups, title=title, axis=axis, limits=limits), path)


def box_figure(
    groups: Sequence[SlotGroup],
    *,
    title: str,
    axis: str = "Edge AUROC",
    limits: tuple[float, float] | None = (-0.02, 1.03),
) -> "Figure":
    """The groups drawn from left to right."""
    if not any(group.slots for group in groups):
        raise ValueError("a box plot needs at least one box, got none.")
    need_library("the box plot")
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.legend_handler import HandlerLine2D

    groups = [group for group in groups if group.slots]
    n_slots = sum(len(group.slots) for group in groups)
    length = n_slots * SLOT + (len(groups) - 1) * GAP
    with matplotlib.rc_context(STYLE):
        # A figure of its own, without pyplot: no window system and no state that outlives the call.
        figure = Figure(figsize=(max(6.0, 0.9 + 0.98 * length), 4.7), layout="constrained")
        axes = figure.subplots()
        places: list[float] = []
        start = 0.0
        for number, group in enumerate(groups):
            if number:
                axes.axvline(start - (SLOT + GAP) / 2, color="#c4c4cc", linewidth=0.8)
            for slot in group.slots:
                places.append(start)
                _draw_slot(axes, start, slot.boxes)
                start += SLOT
            middle = (places[-len(group.slots)] + places[-1]) / 2
            heading = plain(group.title.replace(", ", "\n"))
            axes.text(middle, 1.02, heading, transform=axes.get_xaxis_transform(), **_HEADING)
            start += GAP
        labels = [_broken(slot.label) for group in groups for slot in group.slots]
        axes.set_xticks(places, labels, fontsize=7.5)
        axes.tick_params(axis="x", length=0)
        axes.tick_params(axis="y", labelsize=8)
        axes.set_xlim(-0.6, places[-1] + 0.6)
        axes.set_ylabel(axis, fontsize=9)
        if limits is not None:
            axes.set_ylim(*limits)
        axes.grid(axis="y", color="#e4e4e8", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(plain(title), fontsize=9.5)
        boxes = [box for group in groups for slot in group.slots for box in slot.boxes]
        handles = _legend(boxes)
        # What the longest entry takes, in inches.
        column = 0.6 + 0.058 * max(max(map(len, text.split("\n"))) for text in handles.values())
        figure.legend(
            list(handles),
            list(handles.values()),
            handler_map={one: HandlerLine2D(numpoints=2) for one in handles if _has_caps(one)},
            loc="outside lower center",
            ncols=max(1, min(len(handles), int(figure.get_figwidth() / column))),
            fontsize=7.5,
            frameon=False,
        )
    return figure


_HEADING: dict[str, Any] = {
    "ha": "center",
    "va": "bottom",
    "fontsize": 8.5,
    "fontweight": "bold",
}


_DOTTED = (0, (1, 1))
_CIRCLE: dict[str, Any] = {
    "linestyle": "",
    "marker": "o",
    "markersize": 3.4,
    "markerfacecolor": "white",
    "markeredgewidth": 0.8,
}


def _broken(label: str) -> str:
    lines = [
        textwrap.fill(part, 14, break_on_hyphens=False, break_long_words=False)
        for part in label.split(", ")
    ]
    return plain("\n".join(lines))


def _draw_slot(axes: Any, middle: float, boxes: Sequence[Box]) -> None:
    each = WIDTH / len(boxes)
    for place, box in enumerate(boxes):
        # Room for the intervals is on the right of every box.
        centre = middle - 0.05 + (place - (len(boxes) - 1) / 2) * (each + BESIDE)
        _draw_box(axes, centre, each, box)


def _draw_box(axes: Any, centre: float, width: float, box: Box) -> None:
    dark, light = COLOURS[box.published]
    style = (0, (3.2, 1.8)) if box.published else "solid"
    line = {"linestyle": style, "color": dark, "linewidth": 0.9}
    _, q1, median, q3, _ = box.quantiles
    low, high = box.whiskers
    stats = {"q1": q1, "med": median, "q3": q3, "whislo": low, "whishi": high}
    axes.bxp(
        [stats],
        positions=[centre],
        widths=width,
        capwidths=0.45 * width,
        patch_artist=True,
        manage_ticks=False,
        showfliers=False,
        boxprops={"linestyle": style, "edgecolor": dark, "facecolor": light, "linewidth": 0.9},
        whiskerprops=line,
        capprops=line,
        medianprops={"color": dark, "linewidth": 1.9, "solid_capstyle": "butt"},
    )
    # Cases of one value stand side by side.
    for value, count in Counter(box.outliers).items():
        across = [centre + 0.07 * (place - (count - 1) / 2) for place in range(count)]
        axes.plot(across, [value] * count, **_CIRCLE, color=dark)
    if box.spread is not None:
        _draw_spread(axes, centre + width / 2 + 0.05, box.quantiles, box.spread, dark)


def _draw_spread(
    axes: Any, start: float, values: Sequence[float], spread: Sequence[float], colour: str
) -> None:
    """The intervals on one line, and on others beside it where they would overlap."""
    tops: list[float] = []
    for value, deviation in zip(values, spread, strict=True):
        ends = [value - deviation, value + deviation]
        lane = next((n for n, top in enumerate(tops) if top <= ends[0]), len(tops))
        tops[lane:] = [ends[1], *tops[lane + 1 :]]
        side = start + 0.04 * lane
        axes.plot([side, side], ends, color=colour, linewidth=0.9, linestyle=_DOTTED)
        for end in ends:
            axes.plot([side - 0.022, side + 0.022], [end, end], color=colour, linewidth=0.8)


def _legend(boxes: Sequence[Box]) -> dict[Any, str]:
    """What every style of line means, of those that are there."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    ours, theirs = COLOURS[False], COLOURS[True]
    found: dict[Any, str] = {}
    if any(not box.published for box in boxes):
        patch = Patch(facecolor=ours[1], edgecolor=ours[0])
        found[patch] = "ours (solid): the middle half of the cases, seeds averaged"
    if any(box.published for box in boxes):
        patch = Patch(facecolor=theirs[1], edgecolor=theirs[0], linestyle="dashed")
        found[patch] = "published (dashed), on InterpBench's weights"
    found[Line2D([], [], color="#333338", linewidth=1.9)] = "thick line: median over cases"
    whisker = Line2D([], [], color="#333338", linewidth=0.9, marker="|", markersize=6)
    found[whisker] = "whiskers: to the last case within 1.5 interquartile ranges of the box"
    if any(
        box.published and box.whiskers == box.quantiles[:: len(box.quantiles) - 1] for box in boxes
    ):
        found[whisker] += ",\nof published boxes to the extremes where no others are printed"
    if any(box.spread is not None for box in boxes):
        dotted = Line2D([], [], color="#333338", linewidth=0.9, linestyle=_DOTTED, marker="|")
        found[dotted] = "dotted: each of the five quantiles ± 1 standard deviation over seeds"
    if any(box.outliers for box in boxes):
        circle = Line2D([], [], **_CIRCLE, color="#333338")
        found[circle] = "circle: a case beyond the whiskers"
    return found


def _has_caps(handle: Any) -> bool:
    return getattr(handle, "get_marker", str)() == "|"
