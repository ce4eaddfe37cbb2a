"""The bench's results as people read them: a table in four formats and a box plot.

1. A `Row` is one method: quantiles over cases, their spread over seeds, time and memory.
2. `PUBLISHED` are the figures that the paper prints for InterpBench's 16 held-out cases: its own
   two methods, and the baselines that it takes from figure 9 of InterpBench. They were measured on
   other weights, so they stand in a block of their own.
3. `to_markdown`, `to_csv` and `to_latex` write the rows; `box_plot` draws them as the paper does,
   with whiskers to the last case within 1.5 interquartile ranges of the box.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcircuits.compare.evaluate import QUANTILES, Summary

HEADER = ("Method", "Min.", "Q1", "Median", "Q3", "Max.", "AUPRC", "P@size", "Seconds", "Memory")
PUBLISHED_TITLE = "Published figures, on InterpBench's weights"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a method reached."""

    method: str
    summary: Summary
    """Quantiles of AUROC."""
    case_means: tuple[float, ...]
    """AUROC of every case, seeds averaged."""
    auprc: float
    """Median over cases."""
    precision: float
    """At the true size, which makes it the recall as well; median over cases."""
    seconds: float
    """Median wall time of a case."""
    peak_bytes: int | None
    """Largest memory of a case; None where the system could not tell."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """Printed figures of a method; the box plot needs the whiskers and what lies beyond them."""

    method: str
    quantiles: tuple[float, ...]
    whiskers: tuple[float, float]
    outliers: tuple[float, ...] = ()
    spread: tuple[float, ...] | None = None
    """Standard deviation over five seeds, where the paper has one."""


PUBLISHED = (
    Published(
        method="GCL, DirGraphConv, line graph",
        quantiles=(0.712245, 0.860784, 0.902357, 0.941667, 0.996078),
        whiskers=(0.763889, 0.996078),
        outliers=(0.712245,),
        spread=(0.009, 0.015, 0.011, 0.008, 0.005),
    ),
    Published(
        method="PGExplainer",
        quantiles=(0.668, 0.742572, 0.857979, 0.985529, 0.998039),
        whiskers=(0.668, 0.998039),
        spread=(0.041, 0.026, 0.011, 0.004, 0.0),
    ),
    Published(
        method="ACDC",
        quantiles=(0.441173, 0.839016, 0.95936, 0.987496, 1.0),
        whiskers=(0.794109, 1.0),
        outliers=(0.441173, 0.441173),
    ),
    Published(
        method="EAP-IG",
        quantiles=(0.411763, 0.766373, 0.910043, 0.986811, 1.0),
        whiskers=(0.47059, 1.0),
        outliers=(0.411763,),
    ),
    Published(
        method="SP, edge",
        quantiles=(0.313724, 0.763968, 0.884441, 1.0, 1.0),
        whiskers=(0.450974, 1.0),
        outliers=(0.313724,),
    ),
    Published(
        method="SP, node",
        quantiles=(0.156859, 0.678291, 0.851998, 0.928417, 0.970583),
        whiskers=(0.433337, 0.970583),
        outliers=(0.156859, 0.176468),
    ),
    Published(
        method="EAP",
        quantiles=(0.0, 0.0, 0.0, 0.393201, 0.989791),
        whiskers=(0.0, 0.936163),
        outliers=(0.989791,),
    ),
)


# Tables


def cells(row: Row | Published, *, plus_minus: str = " ± ") -> list[str]:
    """The cells of a row under HEADER; a published row has none after the quantiles."""
    if isinstance(row, Published):
        return [row.method, *_quantiles(row.quantiles, row.spread, plus_minus), "", "", "", ""]
    summary = row.summary
    return [
        row.method,
        *_quantiles(summary.quantiles, summary.spread, plus_minus),
        f"{row.auprc:.3f}",
        f"{row.precision:.3f}",
        f"{row.seconds:.3g}",
        "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f} MiB",
    ]


def _quantiles(
    values: Sequence[float], spread: Sequence[float] | None, plus_minus: str
) -> list[str]:
    if spread is None:
        return [f"{value:.3f}" for value in values]
    both = zip(values, spread, strict=True)
    return [f"{value:.3f}{plus_minus}{deviation:.3f}" for value, deviation in both]


def to_markdown(rows: Sequence[Row], published: Sequence[Published], *, title: str) -> str:
    """A title and one table, or two where there are published figures."""
    parts = [title, _markdown([cells(row) for row in rows])]
    if published:
        parts += [f"{PUBLISHED_TITLE}:", _markdown([cells(row)[:6] for row in published])]
    return "\n\n".join(parts) + "\n"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    width = len(rows[0]) if rows else len(HEADER)
    rule = ["---", *(["---:"] * (width - 1))]
    lines = [HEADER[:width], rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def to_csv(rows: Sequence[Row], published: Sequence[Published]) -> str:
    """Numbers in full, one line per method, with a column that says which are published."""
    deviations = [f"{name}_std" for name in QUANTILES]
    names = ["method", "published", "cases", "seeds", *QUANTILES, *deviations]
    lines: list[list[object]] = [
        [*names, "auprc", "precision_at_size", "seconds", "peak_bytes"],
    ]
    for row in rows:
        summary = row.summary
        numbers = [*summary.quantiles, *(summary.spread or [""] * 5)]
        cost = [row.auprc, row.precision, row.seconds, _blank(row.peak_bytes)]
        lines.append([row.method, "no", summary.n_cases, summary.n_seeds, *numbers, *cost])
    for row in published:
        seeds = "" if row.spread is None else 5
        numbers = [*row.quantiles, *(row.spread or [""] * 5)]
        lines.append([row.method, "yes", 16, seeds, *numbers, "", "", "", ""])
    return csv_text(lines)


def csv_text(lines: Sequence[Sequence[object]]) -> str:
    """Lines as CSV."""
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue()


def _blank(value: object) -> object:
    return "" if value is None else value


def to_latex(rows: Sequence[Row], published: Sequence[Published], *, title: str) -> str:
    """A table with the rules of `booktabs`; the title is its caption."""
    blocks = [[cells(row, plus_minus=r"$\pm$") for row in rows]]
    if published:
        heading = rf"\multicolumn{{{len(HEADER)}}}{{@{{}}l}}{{\textit{{{_tex(PUBLISHED_TITLE)}}}}}"
        blocks.append([[heading], *(cells(row, plus_minus=r"$\pm$") for row in published)])
    body = [[" & ".join(map(_tex_cell, row)) + r" \\" for row in block] for block in blocks]
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \begin{{tabular}}{{@{{}}l{'r' * (len(HEADER) - 1)}@{{}}}}",
        r"    \toprule",
        "    " + " & ".join(map(_tex, HEADER)) + r" \\",
    ]
    for block in body:
        lines += [r"    \midrule", *(f"    {line}" for line in block)]
    lines += [r"    \bottomrule", r"  \end{tabular}", rf"  \caption{{{_tex(title)}}}"]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _tex_cell(cell: str) -> str:
    return cell if "\\" in cell else _tex(cell)


def _tex(text: str) -> str:
    for sign in "&%_#":
        text = text.replace(sign, "\\" + sign)
    return text


# The box plot


def box_plot(
    path: str | Path, rows: Sequence[Row], published: Sequence[Published], *, title: str
) -> None:
    """Draw the rows as boxes, published ones dashed and to the right; by suffix SVG, PNG or PDF."""
    try:
        import matplotlib
        from matplotlib.cbook import boxplot_stats
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "the box plot needs matplotlib; install it with: pip install 'graphcircuits[plot]'"
        ) from error
    boxes: list[dict[str, Any]] = [
        boxplot_stats(row.case_means)[0] | {"label": row.method} for row in rows
    ]
    boxes += [_published_box(row) for row in published]
    places = [place + (0.6 if place >= len(rows) else 0.0) for place in range(len(boxes))]
    # A figure of its own, without pyplot: no window system and no state that outlives the call.
    figure = Figure(figsize=(max(5.0, 1.0 + 0.95 * len(boxes)), 4.2), layout="constrained")
    axes = figure.subplots()
    for part, style, colour in (
        (slice(None, len(rows)), "solid", "#0173b2"),
        (slice(len(rows), None), "dashed", "#56565e"),
    ):
        if not boxes[part]:
            continue
        line = {"linestyle": style, "color": colour}
        axes.bxp(
            boxes[part],
            positions=places[part],
            widths=0.5,
            boxprops=line,
            whiskerprops=line,
            capprops=line,
            medianprops={"color": colour, "linewidth": 1.8},
            flierprops={"marker": "o", "markersize": 3.5, "markeredgecolor": colour},
        )
    for place, row in zip(places, rows, strict=False):
        _draw_spread(axes, place + 0.34, row.summary.quantiles, row.summary.spread)
    for place, row in zip(places[len(rows) :], published, strict=True):
        _draw_spread(axes, place + 0.34, row.quantiles, row.spread)
    if published:
        axes.axvline(len(rows) - 0.2, color="#cccccc", linewidth=0.8)
    axes.set_xticks(places, [box["label"].replace(", ", "\n") for box in boxes], fontsize=7)
    axes.set_xlim(-0.6, places[-1] + 0.7)
    axes.set_ylim(-0.02, 1.03)
    axes.set_ylabel("Edge AUROC")
    axes.set_title(title, fontsize=9)
    axes.grid(axis="y", color="#e4e4e8", linewidth=0.6)
    axes.set_axisbelow(True)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # Fixed ids and no date: the same results give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "graphcircuits"}):
        metadata = {"Date": None} if Path(path).suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=150)


def _published_box(row: Published) -> dict[str, Any]:
    _, q1, median, q3, _ = row.quantiles
    low, high = row.whiskers
    numbers = {"q1": q1, "med": median, "q3": q3, "whislo": low, "whishi": high}
    return numbers | {"fliers": list(row.outliers), "label": f"{row.method}\n(published)"}


def _draw_spread(
    axes: Any, place: float, values: Sequence[float], spread: Sequence[float] | None
) -> None:
    if spread is not None:
        axes.errorbar(
            [place] * 5,
            values,
            yerr=spread,
            fmt="none",
            ecolor="#8a8a94",
            elinewidth=0.7,
            capsize=2,
        )
