"""Square matrices over the same labels as heat maps side by side: one SVG, or a page around it.

Blue is below zero, red above, white zero; each panel has its own scale, written under it. Pointing
at a cell shows its two labels and its value. No script, nothing from outside.
"""

from collections.abc import Mapping, Sequence
from html import escape

from graphcircuits.viewer.page import page

CELL, GAP, LETTER, HEAD, FOOT = 46, 34, 7.2, 30, 26
BELOW, ABOVE = (33, 102, 172), (178, 24, 43)
WRITTEN = 12
"""Most labels for which values are written into the cells."""
FAINT = 0.005
"""Share of the largest value below which a value is not written."""

Matrix = Sequence[Sequence[float]]

# The colours are the cells' own, so a picture has the same ground in a dark page.
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1c1c22}.name{font-weight:600}"
    ".value{font-size:9px;text-anchor:middle}.light{fill:#fff}"
)


def heat_maps(labels: Sequence[str], panels: Mapping[str, Matrix], *, title: str) -> str:
    """The SVG: a panel for each named matrix, whose rows and columns follow `labels`."""
    side = CELL * len(labels)
    margin = 12 + LETTER * max(map(len, labels))
    step = margin + side + GAP
    bottom = HEAD + side + margin + FOOT
    width = step * len(panels)
    drawn = [
        _panel(labels, name, matrix, left=step * place + margin, margin=margin)
        for place, (name, matrix) in enumerate(panels.items())
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {bottom:.0f}" '
        f'width="{width:.0f}" height="{bottom:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(drawn)}</svg>\n'
    )


def heat_map_page(
    labels: Sequence[str], panels: Mapping[str, Matrix], *, title: str, text: str = ""
) -> str:
    """The same as a self-contained HTML page."""
    return page(heat_maps(labels, panels, title=title), title=title, text=text)


def _panel(labels: Sequence[str], name: str, matrix: Matrix, *, left: float, margin: float) -> str:
    top, side = HEAD, CELL * len(labels)
    largest = max((abs(value) for row in matrix for value in row), default=0.0)
    parts = [f'<text class="name" x="{left:.0f}" y="{top - 10}">{escape(name)}</text>']
    for place, label in enumerate(labels):
        middle = CELL * place + CELL / 2 + 4
        parts.append(
            f'<text x="{left - 6:.0f}" y="{top + middle:.0f}" text-anchor="end">'
            f"{escape(label)}</text>"
            f'<text transform="translate({left + middle:.0f} {top + side + 8}) rotate(-90)" '
            f'text-anchor="end">{escape(label)}</text>'
        )
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            hint = f"{labels[i]}, {labels[j]}: {value:.4g}"
            share = value / largest if largest else 0.0
            x, y = left + CELL * j, top + CELL * i
            parts.append(_cell(x, y, share, hint, value if len(labels) <= WRITTEN else None))
    scale = f"white 0, full colour ±{largest:.3g}"
    parts.append(f'<text x="{left:.0f}" y="{top + side + margin + 14:.0f}">{scale}</text>')
    return "".join(parts)


def _cell(x: float, y: int, share: float, hint: str, value: float | None) -> str:
    """One square; `share` of the largest absolute value gives its colour."""
    full = BELOW if share < 0 else ABOVE
    colour = "#" + "".join(f"{round(255 + (c - 255) * abs(share)):02x}" for c in full)
    written = ""
    if value and abs(share) >= FAINT:
        ink = "value light" if abs(share) > 0.55 else "value"
        written = f'<text class="{ink}" x="{x + CELL / 2:.0f}" y="{y + CELL / 2 + 3:.0f}">'
        written += f"{value:.2g}</text>"
    return (
        f'<g><title>{escape(hint)}</title><rect x="{x:.0f}" y="{y:.0f}" width="{CELL}" '
        f'height="{CELL}" fill="{colour}" stroke="#e4e4e8"/>{written}</g>'
    )
