"""A circuit as a small SVG picture that stands within a page: boxes and routes of `layout`.

No script, no style sheet and no id: nothing leaks into the page around it, and several pictures
get along. Lines and letters take the page's own colour, and nothing has a ground, so that it is
readable on light and on dark pages alike.
"""

from collections.abc import Mapping, Sequence
from html import escape

from graphcircuits.drawing.figure import (
    SLOT_COLOURS,
    SLOT_WORDS,
    arrowhead,
    curve,
    widths_of,
)
from graphcircuits.drawing.layout import Box, Break, Route, layout, port
from graphcircuits.graph import ComponentGraph

BUDGET = 40_000
"""Bytes of a picture; beyond them some edges are left out."""
SLOT_SIGNS = {"q": "●", "k": "■", "v": "▲"}


def still_svg(
    graph: ComponentGraph, edges: Sequence[int], scores: Mapping[int, float] | None = None
) -> tuple[str, int]:
    """The picture, and how many of the first edges it shows: as many as the budget allows."""
    count = len(edges)
    while True:
        shown = edges[:count]
        picture = _svg(graph, shown, scores)
        if len(picture.encode()) <= BUDGET or count <= 1:
            return picture, count
        count //= 2


def legend_html(graph: ComponentGraph, edges: Sequence[int]) -> str:
    """What the colours and signs of these edges mean."""
    kinds = [name[-2] if (name := graph.edge_name(edge)).endswith(">") else "" for edge in edges]
    entries = []
    for slot, words in SLOT_WORDS.items():
        if slot in kinds:
            colour = SLOT_COLOURS[slot] if slot else "inherit"
            sign = f"→ {SLOT_SIGNS[slot]}" if slot else "→"
            entries.append(f'<span style="color:{colour}">{sign}</span> {words}')
    return " &#160; ".join(entries)


def _svg(graph: ComponentGraph, edges: Sequence[int], scores: Mapping[int, float] | None) -> str:
    drawn = layout(graph, edges)
    shown = None if scores is None else {edge: scores[edge] for edge in edges}
    widths = widths_of(edges, shown)
    slots = {(route.reader, route.slot) for route in drawn.routes}
    names = dict(zip(sorted(edges), graph_names(graph, sorted(edges)), strict=True))
    shapes = [_line(line, drawn.width) for line in drawn.breaks]
    lines = "".join(f"M{x:.0f} {y:.0f}L{x2:.0f} {y2:.0f}" for (x, y), (x2, y2) in drawn.shared)
    if lines:
        shapes.append(f'<path d="{lines}" stroke="currentColor" stroke-opacity=".3"/>')
    for route in drawn.routes:
        hint = names[route.edge] + ("" if shown is None else f" {shown[route.edge]:.4g}")
        shapes.append(_edge(route, widths[route.edge], hint))
    for box in drawn.boxes:
        shapes.append(_box(box, [slot for slot in "qkv" if (box.name, slot) in slots]))
    label = f"circuit of {len(edges)} edges, input at the bottom, logits on top"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {drawn.width:.0f} '
        f'{drawn.height:.0f}" width="{drawn.width:.0f}" height="{drawn.height:.0f}" role="img" '
        f'aria-label="{escape(label)}" style="max-width:100%;height:auto" fill="none" '
        f'font-family="sans-serif" font-size="11" text-anchor="middle">{"".join(shapes)}</svg>'
    )


def graph_names(graph: ComponentGraph, edges: Sequence[int]) -> list[str]:
    return [graph.edge_name(edge) for edge in edges]


def _line(line: Break, width: float) -> str:
    return (
        f'<path d="M4 {line.y:.0f}H{width - 4:.0f}" stroke="currentColor" stroke-opacity=".3"/>'
        f'<text x="4" y="{line.y - 3:.0f}" text-anchor="start" font-size="9" fill="currentColor" '
        f'fill-opacity=".7">{escape(line.name)}</text>'
    )


def _edge(route: Route, width: float, hint: str) -> str:
    colour = SLOT_COLOURS[route.slot] if route.slot else "currentColor"
    steps, words = curve(route.points, width), []
    for step, (code, (x, y)) in enumerate(steps):
        # The three points of a curve stand behind one letter.
        again = code == "C" and steps[step - 1][0] == "C"
        words.append(f"{' ' if again else code}{x:.0f} {y:.0f}")
    head = " ".join(f"{x:.1f},{y:.1f}" for x, y in arrowhead(route.points[-1], width))
    faint = "" if route.slot else ' opacity=".75"'
    return (
        f"<g{faint}><title>{escape(hint)}</title>"
        f'<path d="{"".join(words)}" stroke="{colour}" stroke-width="{width:.1f}"/>'
        f'<polygon points="{head}" fill="{colour}"/></g>'
    )


def _box(box: Box, slots: Sequence[str]) -> str:
    style = ' stroke-dasharray="3 2" opacity=".6"' if box.folded else ""
    middle = box.y + box.height * (0.36 if slots else 0.5) + 4
    signs = "".join(
        f'<text x="{port(box, slot):.0f}" y="{box.y + box.height - 5:.0f}" font-size="8" '
        f'fill="currentColor"><tspan fill="{SLOT_COLOURS[slot]}">{SLOT_SIGNS[slot]}</tspan>'
        f"{slot}</text>"
        for slot in slots
    )
    return (
        f'<g{style}><rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" '
        f'height="{box.height:.0f}" rx="5" stroke="currentColor"/><text x="{box.middle:.0f}" '
        f'y="{middle:.0f}" fill="currentColor" font-size="{9 if box.folded else 11}">'
        f"{escape(box.name)}</text>{signs}</g>"
    )
