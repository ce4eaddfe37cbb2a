"""A circuit as one self-contained HTML page: components by layer, edges as curves, no script.

Columns run left to right in the order the model computes: input, then a layer at a time its heads
and its MLP, then logits. Query, key and value edges of a head have their own colours. Where scores
are given, better edges are thicker, and pointing at one shows its score, and its probability where
there is one.
"""

import math
from collections.abc import Mapping
from html import escape

from graphcircuits.circuit import Circuit
from graphcircuits.viewer.page import page

COLUMN, ROW, WIDTH, HEIGHT, MARGIN = 150, 74, 112, 44, 60
COLOURS = {"q": "#0173b2", "k": "#de8f05", "v": "#029e73", "": "#56565e"}
LEGEND = {"q": "query", "k": "key", "v": "value", "": "MLP or logits input"}

_STYLE = """
rect { fill: #f4f4f6; stroke: #9a9aa4; rx: 7px; } .used rect { fill: #fff; stroke: #1c1c22; }
text { font-size: 13px; text-anchor: middle; fill: #8a8a94; } .used text { fill: #1c1c22; }
text.note { font-size: 10px; } path { fill: none; opacity: .85; }
.legend span { margin-right: 1.2rem; } .legend i { display: inline-block; width: 1.6rem;
  height: .2rem; vertical-align: middle; margin-right: .4rem; }
@media (prefers-color-scheme: dark) { body { background: #18181c; color: #ececf1; }
  rect { fill: #24242a; } .used rect { fill: #18181c; stroke: #ececf1; }
  .used text { fill: #ececf1; } }
"""


def circuit_page(
    circuit: Circuit,
    *,
    title: str,
    text: str = "",
    notes: Mapping[str, str] | None = None,
    scores: Mapping[str, float] | None = None,
    probabilities: Mapping[str, float] | None = None,
) -> str:
    """The page; `notes` gives a word to write under a component, such as its variable.

    `scores` gives a number for each edge of the circuit, and so does `probabilities`.
    """
    place = _places(circuit)
    width = max(x for x, _ in place.values()) + WIDTH + MARGIN
    height = max(y for _, y in place.values()) + HEIGHT + MARGIN
    used, drawn = set(), []
    low, high = (min(scores.values()), max(scores.values())) if scores else (0.0, 0.0)
    for edge, writer, ends in circuit.links():
        slot = edge[-2] if edge.endswith(">") else ""
        score = None if scores is None else scores[edge]
        stroke = 1.8 if score is None else 0.8 + 3 * (score - low) / (high - low or 1.0)
        hint = edge if score is None else f"{edge} {score:.4g}"
        hint += "" if probabilities is None else f", {probabilities[edge]:.0%} likely"
        for end in ends:
            used |= {writer, end}
            drawn.append(_curve(place[writer], place[end], slot, stroke, hint))
    drawn += [
        _box(name, spot, name in used, (notes or {}).get(name, "")) for name, spot in place.items()
    ]
    legend = "".join(
        f'<span><i style="background:{COLOURS[slot]}"></i>{word}</span>'
        for slot, word in LEGEND.items()
    )
    content = (
        f'<p class="legend">{legend}</p>'
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(drawn)}</svg>'
    )
    return page(content, title=title, text=text, style=_STYLE)


def _places(circuit: Circuit) -> dict[str, tuple[int, float]]:
    """The upper left corner of every component, heads of a layer in one column, centred."""
    graph = circuit.graph
    columns = [["input"]]
    for layer in range(graph.n_layers):
        columns.append([f"a{layer}.h{head}" for head in range(graph.n_heads)])
        columns.append([f"m{layer}"])
    columns.append(["logits"])
    tallest = max(map(len, columns))
    return {
        name: (MARGIN + COLUMN * i, MARGIN + ROW * (row + (tallest - len(column)) / 2))
        for i, column in enumerate(columns)
        for row, name in enumerate(column)
    }


def _curve(
    start: tuple[int, float], end: tuple[int, float], slot: str, width: float, hint: str
) -> str:
    (x1, y1), (x2, y2) = start, end
    x1, y1 = x1 + WIDTH, y1 + HEIGHT / 2
    y2 += HEIGHT / 2 + {"q": -12, "k": 0, "v": 12, "": 0}[slot]
    # Long edges bend away from the row they would otherwise run through; past one column of heads
    # there is a gap between two of them where their number is even.
    between_heads = y1 == y2 and x2 - x1 < 2 * COLUMN and (start[1] - MARGIN) % ROW != 0
    straight = x2 - x1 < COLUMN or between_heads
    lift = 0 if straight else -ROW * 0.45 * math.log2((x2 - x1) / COLUMN + 1)
    reach = max(30.0, (x2 - x1) / 3)
    return (
        f'<path d="M{x1:.0f} {y1:.0f} C{x1 + reach:.0f} {y1 + lift:.0f} {x2 - reach:.0f} '
        f'{y2 + lift:.0f} {x2:.0f} {y2:.0f}" stroke="{COLOURS[slot]}" stroke-width="{width:.2f}">'
        f"<title>{escape(hint)}</title></path>"
    )


def _box(name: str, spot: tuple[int, float], used: bool, note: str) -> str:
    x, y = spot
    shown = note if len(note) <= 18 else note[:17] + "…"
    lines = (
        f'<text x="{x + WIDTH / 2:.0f}" y="{y + (19 if note else 27):.0f}">{escape(name)}</text>'
    )
    if note:
        lines += (
            f'<text class="note" x="{x + WIDTH / 2:.0f}" y="{y + 34:.0f}">{escape(shown)}</text>'
        )
    hint = escape(f"{name} {note}".strip())
    return (
        f'<g class="{"used" if used else "unused"}"><title>{hint}</title>'
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}"/>{lines}</g>'
    )
