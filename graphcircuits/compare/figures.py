"""The bench's results as people read them: a table in four formats and a box plot.

1. A `Row` is one method: quantiles over cases, their spread over seeds, time and memory. They are
   quantiles of AUROC where circuits are known, and of CMD where they are not: two kinds of table.
2. `PUBLISHED` are the figures that the paper prints for InterpBench's 16 held-out cases: its own
   two methods, and the baselines that it takes from figure 9 of InterpBench. They were measured on
   other weights, so they stand in a block of their own.
3. `to_markdown`, `to_csv` and `to_latex` write the rows, `breakdown_text` means of parts of the
   cases; `box_plot` draws them as the paper does,
   with whiskers to the last case within 1.5 interquartile ranges of the box.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcircuits.compare.evaluate import QUANTILES, Summary

_START, _END = ("Method", "Min.", "Q1", "Median", "Q3", "Max."), ("Seconds", "Memory")
HEADER = (*_START, "AUPRC", "P@size", "CPR", "CMD", *_END)
"""Of a table that begins with AUROC."""
CMD_HEADER = (*_START, "Mean", "CPR", "Wins", *_END)
"""Of a table that begins with CMD."""
PUBLISHED_TITLE = "Published figures, on InterpBench's weights"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a method reached."""

    method: str
    summary: Summary
    """Quantiles of AUROC, or of CMD where no circuit is known."""
    case_means: tuple[float, ...]
    """The same of every case, seeds averaged."""
    auprc: float | None
    """Median over cases; None where no circuit is known."""
    precision: float | None
    """At the true size, which makes it the recall as well; median over cases, or None."""
    cpr: float
    """Mean over cases."""
    cmd: float
    """Mean over cases."""
    wins: float
    """Cases on which its CMD is the smallest; methods that tie share a case."""
    seconds: float
    """Median wall time of a case."""
    peak_bytes: int | None
    """Largest memory of a case; None where the system could not tell."""


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Means of every method over parts of the cases."""

    title: str
    sizes: Mapping[str, int]
    """How many cases each part has."""
    means: Mapping[str, Mapping[str, float]]
    """By method and part; none where all its runs failed."""


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


def header(rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns of a table of these rows."""
    return CMD_HEADER if rows and rows[0].auprc is None else HEADER


def cells(row: Row | Published, *, plus_minus: str = " ± ") -> list[str]:
    """The cells of a row under its header; a published row has none after the quantiles."""
    if isinstance(row, Published):
        quantiles = _quantiles(row.quantiles, row.spread, plus_minus)
        return [row.method, *quantiles, *[""] * (len(HEADER) - len(_START))]
    summary = row.summary
    if row.auprc is None or row.precision is None:
        middle = [f"{row.cmd:.3f}", f"{row.cpr:.3f}", f"{row.wins:.1f}"]
    else:
        middle = [f"{value:.3f}" for value in (row.auprc, row.precision, row.cpr, row.cmd)]
    return [
        row.method,
        *_quantiles(summary.quantiles, summary.spread, plus_minus),
        *middle,
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
    parts = [title, _markdown(header(rows), [cells(row) for row in rows])]
    if published:
        cut = [cells(row)[: len(_START)] for row in published]
        parts += [f"{PUBLISHED_TITLE}:", _markdown(_START, cut)]
    return "\n\n".join(parts) + "\n"


def breakdown_text(breakdown: Breakdown) -> str:
    """A line that says what it is, and a table: a row per method, a column per part."""
    columns = ["Method", *(f"{name} ({size})" for name, size in breakdown.sizes.items())]
    rows = [
        [method, *(f"{means[name]:.3f}" if name in means else "" for name in breakdown.sizes)]
        for method, means in breakdown.means.items()
    ]
    return f"{breakdown.title}, in brackets how many they are:\n\n{_markdown(columns, rows)}"


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---", *(["---:"] * (len(columns) - 1))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def to_csv(rows: Sequence[Row], published: Sequence[Published]) -> str:
    """Numbers in full, one line per method, with a column that says which are published."""
    deviations = [f"{name}_std" for name in QUANTILES]
    names = ["method", "published", "measure", "cases", "seeds", *QUANTILES, *deviations]
    more = ["auprc", "precision_at_size", "cpr", "cmd", "wins", "seconds", "peak_bytes"]
    lines: list[list[object]] = [[*names, *more]]
    for row in rows:
        summary, measure = row.summary, "cmd" if row.auprc is None else "auroc"
        numbers = [*summary.quantiles, *(summary.spread or [""] * 5)]
        truth = [_blank(row.auprc), _blank(row.precision)]
        cost = [row.cpr, row.cmd, row.wins, row.seconds, _blank(row.peak_bytes)]
        about = [row.method, "no", measure, summary.n_cases, summary.n_seeds]
        lines.append([*about, *numbers, *truth, *cost])
    for row in published:
        seeds = "" if row.spread is None else 5
        numbers = [*row.quantiles, *(row.spread or [""] * 5)]
        lines.append([row.method, "yes", "auroc", 16, seeds, *numbers, *[""] * len(more)])
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
    columns = header(rows)
    blocks = [[cells(row, plus_minus=r"$\pm$") for row in rows]]
    if published:
        heading = rf"\multicolumn{{{len(columns)}}}{{@{{}}l}}{{\textit{{{_tex(PUBLISHED_TITLE)}}}}}"
        blocks.append([[heading], *(cells(row, plus_minus=r"$\pm$") for row in published)])
    body = [[" & ".join(map(_tex_cell, row)) + r" \\" for row in block] for block in blocks]
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \begin{{tabular}}{{@{{}}l{'r' * (len(columns) - 1)}@{{}}}}",
        r"    \toprule",
        "    " + " & ".join(map(_tex, columns)) + r" \\",
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
    if header(rows) == HEADER:
        axes.set_ylim(-0.02, 1.03)
        axes.set_ylabel("Edge AUROC")
    else:
        axes.set_ylabel("CMD, smaller is better")
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
