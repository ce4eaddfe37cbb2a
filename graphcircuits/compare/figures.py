"""The rows of a bench as people read them: cells, CSV, and a box plot.

They have quantiles of AUROC where circuits are known, and of `log_area` where they are not: two
kinds of table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphcircuits.certificates.certificate import NAMES as QUESTIONS
from graphcircuits.drawing.curves import KEEP
from graphcircuits.drawing.library import need_library, plain
from graphcircuits.evaluation.text_tables import markdown_table, with_spread
from graphcircuits.io.files import csv_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTILES = ("min", "q1", "median", "q3", "max")
_START, _END = ("Method", "Min.", "Q1", "Median", "Q3", "Max."), ("Seconds", "Memory")
_EDGES = f"Edges {KEEP:g}"
HEADER = (*_START, "AUPRC", "P@size", _EDGES, "CPR", "CMD", *_END)
"""Of a table that begins with AUROC."""
AREA_HEADER = (*_START, "Mean", _EDGES, "CPR", "CMD", "Wins", *_END)
"""Of a table that begins with `log_area`."""
NAMES = {"auroc": "AUROC", "log_area": "log area"}
COLUMNS = {"precision": "precision_at_size", "needed": f"edges_for_{KEEP:g}"}
"""What figures are called in CSV files, where it is not their name."""
CERTIFIED = ("circuit_edges", "passes", *QUESTIONS, *(f"{name} passes" for name in QUESTIONS))
"""Figures of a certificate: the value of every question, and as 0 or 1 whether it passes."""
ABOUT_CERTIFIED = "Certificates on unseen prompts, of each question the mean and how many pass"
CERTIFIED_HEADER = ("Method", "Circuits", "Pass all", *map(str.capitalize, QUESTIONS), "Edges")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Five quantiles over cases, in the order of QUANTILES."""

    quantiles: tuple[float, ...]
    spread: tuple[float, ...] | None
    """Standard deviation of each quantile over seeds (n - 1); None below two common seeds."""
    n_cases: int
    n_seeds: int
    """Seeds that every case has."""


def summarize(values: Mapping[str, Mapping[int, float]]) -> Summary:
    """Quantiles over cases of `values[case][seed]`, seeds averaged within a case first.

    Quantiles between two cases are interpolated.
    """
    if not values or not all(values.values()):
        empty = [case for case, by_seed in values.items() if not by_seed]
        raise ValueError(f"every case needs a value, and there must be a case; empty: {empty}.")
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in values.values())))
    means = [float(np.mean(list(by_seed.values()))) for by_seed in values.values()]
    spread = None
    if len(seeds) > 1:
        by_seed = [quantiles([values[case][seed] for case in values]) for seed in seeds]
        spread = tuple(np.std(by_seed, axis=0, ddof=1).tolist())
    return Summary(
        quantiles=quantiles(means), spread=spread, n_cases=len(values), n_seeds=len(seeds)
    )


def quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """Minimum, quartiles and maximum."""
    return tuple(np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist())


# Rows


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a method reached."""

    method: str
    summary: Summary
    """Quantiles of AUROC, or of `log_area` where no circuit is known."""
    case_means: tuple[float, ...]
    """The same of every case, seeds averaged."""
    auprc: float | None
    """Median over cases; None where no circuit is known."""
    precision: float | None
    """At the true size, which makes it the recall as well; median over cases, or None."""
    needed: float
    """Best edges that keep KEEP, geometric mean over cases."""
    log_area: float
    cpr: float
    cmd: float
    """All three are means over cases."""
    wins: float
    """Cases on which its `log_area` is the smallest; methods that tie share a case."""
    seconds: float
    """Median wall time of a case."""
    peak_bytes: int | None
    """Largest memory of a case; None where the system could not tell."""


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Means of every method over groups of the cases."""

    title: str
    sizes: Mapping[str, int]
    """How many cases each group has."""
    means: Mapping[str, Mapping[str, float]]
    """By method and group; none where all its runs failed."""


# Tables


def header(rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns of a table of these rows."""
    return AREA_HEADER if rows and rows[0].auprc is None else HEADER


def cells(row: Row) -> list[str]:
    """The cells of a row under its header."""
    summary = row.summary
    if row.auprc is None or row.precision is None:
        before, after = [row.log_area], [f"{row.wins:.1f}"]
    else:
        before, after = [row.auprc, row.precision], []
    areas = [f"{row.cpr:.3f}", f"{row.cmd:.3f}"]
    return [
        row.method,
        *with_spread(summary.quantiles, summary.spread),
        *(f"{value:.3f}" for value in before),
        f"{row.needed:,.1f}",
        *areas,
        *after,
        f"{row.seconds:.3g}",
        "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f} MiB",
    ]


def certified_rows(certified: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """The rows under CERTIFIED_HEADER, of means by method."""
    rows = []
    for method, told in certified.items():
        both = [(told.get(name), told.get(f"{name} passes")) for name in QUESTIONS]
        values = ["-" if value is None else f"{value:.2f} ({share:.0%})" for value, share in both]
        start = [method, f"{told['circuits']:,}", f"{told['passes']:.0%}"]
        rows.append([*start, *values, f"{told['circuit_edges']:,.1f}"])
    return rows


def breakdown_text(breakdown: Breakdown) -> str:
    """A line that says what it is, and a table: a row per method, a column per group."""
    columns = ["Method", *(f"{name} ({size})" for name, size in breakdown.sizes.items())]
    rows = [
        [method, *(f"{means[name]:.3f}" if name in means else "" for name in breakdown.sizes)]
        for method, means in breakdown.means.items()
    ]
    return f"{breakdown.title}, in brackets how many they are:\n\n{markdown_table(columns, rows)}"


def to_csv(rows: Sequence[Row], certified: Mapping[str, Mapping[str, Any]]) -> str:
    """Numbers in full, one line per method, with those of certificates where there are any."""
    judged = ("circuits", *CERTIFIED) if certified else ()
    names = ["method", "measure", "cases", "seeds", *QUANTILES, *(f"{x}_std" for x in QUANTILES)]
    areas = ("needed", "log_area", "cpr", "cmd", "wins")
    more = ("auprc", "precision", *areas, "seconds", "peak_bytes")
    lines: list[list[object]] = [[*names, *(COLUMNS.get(name, name) for name in more), *judged]]
    for row in rows:
        summary, measure = row.summary, "log_area" if row.auprc is None else "auroc"
        numbers = [*summary.quantiles, *(summary.spread or [""] * 5)]
        told = [certified.get(row.method, {}).get(name) for name in judged]
        about = [row.method, measure, summary.n_cases, summary.n_seeds]
        lines.append([*about, *numbers, *(getattr(row, name) for name in more), *told])
    return csv_text(lines)


# The box plot


def row_figure(rows: Sequence[Row], *, title: str) -> "Figure":
    """A box per row over its cases: quartiles, whiskers to the last case within 1.5 interquartile
    ranges of the box, circles for the cases beyond."""
    if not rows:
        raise ValueError("a box plot needs at least one row, got none.")
    need_library("the box plot")
    from matplotlib.figure import Figure

    is_auroc = header(rows) == HEADER
    # A figure of its own, without pyplot: no window system and no state that outlives the call.
    figure = Figure(figsize=(max(6.0, 0.9 + 0.8 * len(rows)), 4.7), layout="constrained")
    axes = figure.subplots()
    line = {"color": "#0173b2", "linewidth": 0.9}
    axes.boxplot(
        [row.case_means for row in rows],
        widths=0.44,
        patch_artist=True,
        boxprops={"edgecolor": "#0173b2", "facecolor": "#cfe3f0", "linewidth": 0.9},
        whiskerprops=line,
        capprops=line,
        medianprops={"color": "#0173b2", "linewidth": 1.9},
        flierprops={"marker": "o", "markersize": 3.4, "markeredgecolor": "#0173b2"},
    )
    # Names are broken at their hyphens: side by side they would overlap.
    names = [plain(row.method.replace("-", "-\n").replace("+", "\n+")) for row in rows]
    axes.set_xticks(range(1, len(rows) + 1), names, fontsize=7.5)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_ylabel("Edge AUROC" if is_auroc else "Log area, smaller is better", fontsize=9)
    if is_auroc:
        axes.set_ylim(-0.02, 1.03)
    axes.grid(axis="y", color="#e4e4e8", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(plain(title), fontsize=9.5)
    return figure
