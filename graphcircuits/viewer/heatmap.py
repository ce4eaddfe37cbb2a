"""Square matrices over the same labels as heat maps side by side: one SVG.

Blue is below zero, red above, and no colour zero, on light and on dark ground, as the reader's
system asks for; people who see colours in any way tell the two apart. Each panel has its own scale,
written under it. Pointing at a cell shows its two labels and its value. No script, nothing from
outside. A program that knows no style sheets shows the light picture.
"""

from collections.abc import Mapping, Sequence
from html import escape

CELL, GAP, LETTER, HEAD, FOOT = 46, 34, 7.2, 30, 48
Colour = tuple[int, int, int]
LIGHT: dict[str, Colour] = {
    "ground": (255, 255, 255),
    "below": (33, 102, 172),
    "above": (178, 24, 43),
    "ink": (28, 28, 34),
    "line": (228, 228, 232),
}
DARK: dict[str, Colour] = {
    "ground": (24, 24, 28),
    "below": (95, 170, 245),
    "above": (255, 123, 114),
    "ink": (236, 236, 241),
    "line": (58, 58, 66),
}
BLACK: Colour = (0, 0, 0)
WHITE: Colour = (255, 255, 255)
"""What values are written in: one of the two can be read on any cell."""
WRITTEN = 12
"""Most labels for which values are written into the cells."""
FAINT = 0.005
"""Share of the largest value below which a value is not written."""
LEGEND = "blue: below zero; red: above; no colour: zero; full colour: a panel's largest"

Matrix = Sequence[Sequence[float]]


def _hex(colour: Colour) -> str:
    return "#" + "".join(f"{channel:02x}" for channel in colour)


# Every rule names the picture, so that none reaches the page around it. The colours of the light
# picture stand at its elements.
_STYLE = (
    ".heat text{font:12px system-ui,sans-serif}.heat .name{font-weight:600}"
    ".heat .value{font-size:9px;text-anchor:middle}@media (prefers-color-scheme:dark){"
    + "".join(f".heat .{name}{{fill:{_hex(DARK[name])}}}" for name in ("ground", "below", "above"))
    + f".heat .cell{{stroke:{_hex(DARK['line'])}}}.heat text{{fill:{_hex(DARK['ink'])}}}"
    + f".heat .value{{fill:{_hex(WHITE)}}}.heat .black{{fill:{_hex(BLACK)}}}}}"
)


def heat_maps(labels: Sequence[str], panels: Mapping[str, Matrix], *, title: str) -> str:
    """The SVG: a panel for each named matrix, whose rows and columns follow `labels`."""
    side = CELL * len(labels)
    margin = 12 + LETTER * max(map(len, labels))
    step = margin + side + GAP
    bottom = HEAD + side + margin + FOOT
    width = max(step * len(panels), 24 + 0.85 * LETTER * len(LEGEND))
    drawn = [
        _panel(labels, name, matrix, left=step * column + margin, margin=margin)
        for column, (name, matrix) in enumerate(panels.items())
    ]
    drawn.append(f'<text x="12" y="{bottom - 10:.0f}" fill="{_hex(LIGHT["ink"])}">{LEGEND}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="heat" '
        f'viewBox="0 0 {width:.0f} {bottom:.0f}" width="{width:.0f}" height="{bottom:.0f}" '
        f'role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f'<rect class="ground" width="100%" height="100%" fill="{_hex(LIGHT["ground"])}"/>'
        f"{''.join(drawn)}</svg>\n"
    )


def _panel(labels: Sequence[str], name: str, matrix: Matrix, *, left: float, margin: float) -> str:
    top, side, ink = HEAD, CELL * len(labels), f'fill="{_hex(LIGHT["ink"])}"'
    largest = max((abs(value) for row in matrix for value in row), default=0.0)
    markup = [f'<text class="name" x="{left:.0f}" y="{top - 10}" {ink}>{escape(name)}</text>']
    for column, label in enumerate(labels):
        middle = CELL * column + CELL / 2 + 4
        markup.append(
            f'<text x="{left - 6:.0f}" y="{top + middle:.0f}" text-anchor="end" {ink}>'
            f"{escape(label)}</text>"
            f'<text transform="translate({left + middle:.0f} {top + side + 8}) rotate(-90)" '
            f'text-anchor="end" {ink}>{escape(label)}</text>'
        )
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            hint = f"{labels[i]}, {labels[j]}: {value:.4g}"
            share = value / largest if largest else 0.0
            x, y = left + CELL * j, top + CELL * i
            markup.append(_cell(x, y, share, hint, value if len(labels) <= WRITTEN else None))
    scale = f"full colour ±{largest:.3g}"
    markup.append(f'<text x="{left:.0f}" y="{top + side + margin + 14:.0f}" {ink}>{scale}</text>')
    return "".join(markup)


def _cell(x: float, y: int, share: float, hint: str, value: float | None) -> str:
    """One square; `share` of the largest absolute value says how much of the colour it has."""
    kind = "below" if share < 0 else "above"
    square = f'x="{x:.0f}" y="{y:.0f}" width="{CELL}" height="{CELL}"'
    markup = [f'<rect class="cell ground" {square} fill="{_hex(LIGHT["ground"])}" '
             f'stroke="{_hex(LIGHT["line"])}"/>']  # fmt: skip
    if share:
        markup.append(
            f'<rect class="{kind}" {square} fill="{_hex(LIGHT[kind])}" '
            f'fill-opacity="{abs(share):.3f}"/>'
        )
    if value and abs(share) >= FAINT:
        ink = value_ink(mixed(LIGHT, kind, share))
        other = " black" if value_ink(mixed(DARK, kind, share)) == BLACK else ""
        markup.append(
            f'<text class="value{other}" x="{x + CELL / 2:.0f}" y="{y + CELL / 2 + 3:.0f}" '
            f'fill="{_hex(ink)}">{value:.2g}</text>'
        )
    return f"<g><title>{escape(hint)}</title>{''.join(markup)}</g>"


def mixed(colours: Mapping[str, Colour], kind: str, share: float) -> Colour:
    """What a cell looks like: the colour of its kind over the ground."""
    red, green, blue = (
        round(below + (full - below) * abs(share))
        for below, full in zip(colours["ground"], colours[kind], strict=True)
    )
    return red, green, blue


def contrast(one: Colour, other: Colour) -> float:
    """Of two colours, from 1 to 21, as the Web Content Accessibility Guidelines have it."""
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Colour) -> float:
    channels = (channel / 255 for channel in colour)
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def value_ink(cell: Colour) -> Colour:
    """Black or white, whichever can be read better on a cell."""
    return BLACK if contrast(cell, BLACK) >= contrast(cell, WHITE) else WHITE
