"""What notebooks show of the package's values: a short table, and a still picture of circuits.

Text of any origin is escaped and cut to a length, no script and no style sheet is among it, and
nothing is computed that takes longer than drawing a few lines: what is shown is what is there.

A picture is a small SVG of the boxes and routes of `layout`, without an id: nothing leaks into the
page around it, and several pictures get along. Lines and letters take the page's own colour, and
nothing has a ground, so that it is readable on light and on dark pages alike.
"""

from collections.abc import Mapping, Sequence
from html import escape

from torch import Tensor

from graphcircuits.drawing.figure import SLOT_COLOURS, SLOT_WORDS, arrowhead, curve, widths_of
from graphcircuits.drawing.layout import Box, Route, layout, port
from graphcircuits.graph import ComponentGraph

LONGEST = 400
"""Letters of a text that are shown."""
ROWS, EDGES, WITHOUT_SCORES = 10, 20, 60
"""Rows of a table, and edges of a picture, with scores and without."""
PAIRS, TOKENS = 5, 24
"""Prompts that are shown, and tokens of each."""
BUDGET = 40_000
"""Bytes of a picture; beyond them some edges are left out."""
SLOT_SIGNS = {"q": "●", "k": "■", "v": "▲"}

# A page without a document type does not hand its colour down to tables.
_TABLE = ' style="color:inherit"'
_CELL = ' style="text-align:left;vertical-align:top"'


def cut(text: object) -> str:
    """Escaped, and not longer than shown."""
    whole = str(text)
    return escape(whole if len(whole) <= LONGEST else f"{whole[: LONGEST - 1]}…")


def facts_html(title: str, facts: Mapping[str, object]) -> str:
    """A title, and under it a table of what is known; facts without a value are left out."""
    rows = "".join(
        f'<tr><th{_CELL} scope="row">{cut(name)}</th><td{_CELL}>{cut(text)}</td></tr>'
        for name, value in facts.items()
        if value is not None and (text := str(value))
    )
    return f"<p><b>{cut(title)}</b></p><table{_TABLE}>{rows}</table>"


def table_html(header: Sequence[str], rows: Sequence[Sequence[object]], *, total: int = 0) -> str:
    """A table of a few rows; `total` says how many there are, where not all are given."""
    more = f"<p>and {total - len(rows):,} more</p>" if total > len(rows) else ""
    return _table(header, [[cut(value) for value in row] for row in rows]) + more


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells are finished HTML."""
    head = "".join(f'<th{_CELL} scope="col">{cut(name)}</th>' for name in header)
    cells = ["".join(f"<td{_CELL}>{cell}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table{_TABLE}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def framed(*blocks: str) -> str:
    """One block of a notebook's output."""
    return f"<div>{''.join(blocks)}</div>"


def picture_html(
    graph: ComponentGraph,
    edges: Sequence[int],
    scores: Mapping[int, float] | None = None,
    *,
    total: int | None = None,
) -> str:
    """The first of the edges as a picture, what its colours mean, and how many are left out."""
    if not edges:
        return "<p>no edges</p>"
    picture, count = still_svg(graph, edges[: WITHOUT_SCORES if scores is None else EDGES], scores)
    total = len(edges) if total is None else total
    words = "first" if scores is None else "best"
    left = "" if count == total else f"<p>the {words} {count:,} of {total:,} edges</p>"
    return f"{picture}<p>{legend_html(graph, edges[:count])}</p>{left}"


def circuit_html(graph: ComponentGraph, edges: Sequence[int]) -> str:
    """A circuit: how large it is, and a picture."""
    facts = {"graph": graph.in_words, "edges": f"{len(edges):,} of {graph.n_edges:,}"}
    return framed(facts_html("Circuit", facts), picture_html(graph, edges))


def result_html(
    graph: ComponentGraph,
    *,
    facts: Mapping[str, object],
    notes: Sequence[str],
    best: Sequence[int],
    chosen: int | None,
    scores: Tensor,
    probabilities: Tensor | None,
) -> str:
    """A result: what it is of, its best edges, and a picture of them.

    `best` are the edges to draw, best first, of `chosen` in the circuit that was picked, or None;
    `scores` and `probabilities` are of all edges.
    """
    about = dict(facts) | {"graph": graph.in_words, "edges": f"{graph.n_edges:,}"}
    about |= {} if chosen is None else {"chosen circuit": f"{chosen:,} edges"}
    about |= {f"note {number + 1}": note for number, note in enumerate(notes[:3])}
    header = ["edge", "score", *([] if probabilities is None else ["probability"])]
    rows = [[graph.edge_name(edge), f"{scores[edge]:.4g}"] for edge in best[:ROWS]]
    for edge, row in zip(best, rows, strict=False):
        row += [] if probabilities is None else [f"{probabilities[edge]:.0%}"]
    total = graph.n_edges if chosen is None else chosen
    return framed(
        facts_html("Result", about),
        table_html(header, rows, total=total),
        picture_html(graph, best, {edge: scores[edge].item() for edge in best}, total=total),
    )


def pairs_html(
    facts: Mapping[str, object],
    clean: Tensor,
    corrupted: Tensor,
    scored: Tensor,
    targets: Tensor | None,
) -> str:
    """Prompts: how many, and the first ones as token ids, those that corruption changes in bold.

    Scored positions are underlined; `targets` are the right classes there, where there are any.
    """
    count, length = clean.shape
    header = ["clean", "corrupted", *([] if targets is None else ["right"])]
    rows = []
    for row in range(min(PAIRS, count)):
        first, other, where = (x[row, :TOKENS].tolist() for x in (clean, corrupted, scored))
        marks = list(zip([a != b for a, b in zip(first, other, strict=True)], where, strict=True))
        cells = [_tokens(first, marks, length), _tokens(other, marks, length)]
        if targets is not None:
            right = targets[row][scored[row]].tolist()
            cells.append(cut(" ".join(map(str, dict.fromkeys(right[:TOKENS])))))
        rows.append(cells)
    more = f"and {count - len(rows):,} more; " if count > len(rows) else ""
    about = {"pairs": f"{count:,} of {length:,} tokens"} | dict(facts)
    return framed(
        facts_html("Pairs", about),
        _table(header, rows),
        f"<p>{more}token ids; bold: changed by corruption, underlined: scored</p>",
    )


def _tokens(ids: Sequence[int], marks: Sequence[tuple[bool, bool]], length: int) -> str:
    words = []
    for token, (changed, scored) in zip(ids, marks, strict=True):
        word = f"<b>{token}</b>" if changed else str(token)
        words.append(f"<u>{word}</u>" if scored else word)
    return " ".join([*words, *(["…"] if length > len(ids) else [])])


# Pictures


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
    shapes = [_line(*line, drawn.width) for line in drawn.breaks]
    lines = "".join(f"M{x:.0f} {y:.0f}L{x2:.0f} {y2:.0f}" for (x, y), (x2, y2) in drawn.shared)
    if lines:
        shapes.append(f'<path d="{lines}" stroke="currentColor" stroke-opacity=".3"/>')
    for route in drawn.routes:
        hint = graph.edge_name(route.edge) + ("" if shown is None else f" {shown[route.edge]:.4g}")
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


def _line(name: str, y: float, width: float) -> str:
    return (
        f'<path d="M4 {y:.0f}H{width - 4:.0f}" stroke="currentColor" stroke-opacity=".3"/>'
        f'<text x="4" y="{y - 3:.0f}" text-anchor="start" font-size="9" fill="currentColor" '
        f'fill-opacity=".7">{escape(name)}</text>'
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
