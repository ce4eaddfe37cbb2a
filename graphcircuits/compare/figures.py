"""The bench's results as people read them: a table in four formats and a box plot.

1. A `Row` is one method: quantiles over cases, their spread over seeds, time and memory. They are
   quantiles of AUROC where circuits are known, and of CMD where they are not: two kinds of table.
2. `to_markdown`, `to_csv` and `to_latex` write the rows, `breakdown_text` means of parts of the
   cases, `kinds_text` circuits that are one of a kind and others, `contrasts_text` what one method
   has over another. Published figures (`published`) are of other weights and stand in a block of
   their own.
3. `row_figure` draws the rows as the paper does, `box_plot` writes that to a file.

`sweep_figures` does the same for the configurations of a sweep.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

from graphcircuits.compare.boxes import Box, Slot, SlotGroup, box_figure
from graphcircuits.compare.published import N_CASES, N_SEEDS, PUBLISHED_TITLE, Published
from graphcircuits.drawing.library import known_suffix, save_figure
from graphcircuits.evaluation.evaluate import QUANTILES, Summary
from graphcircuits.evaluation.intervals import Interval
from graphcircuits.evaluation.text_tables import csv_text, latex_table, markdown_table, with_spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_START, _END = ("Method", "Min.", "Q1", "Median", "Q3", "Max."), ("Seconds", "Memory")
HEADER = (*_START, "AUPRC", "P@size", "CPR", "CMD", *_END)
"""Of a table that begins with AUROC."""
CMD_HEADER = (*_START, "Mean", "CPR", "Wins", *_END)
"""Of a table that begins with CMD."""


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
class Kinds:
    """AUROC of every method where the circuit is a case's own, and where several share it."""

    sizes: Mapping[str, int]
    """How many cases each part has."""
    values: Mapping[str, Mapping[str, tuple[float, ...]]]
    """Of every case, by method and part."""


@dataclass(frozen=True, kw_only=True)
class Advantage:
    """What a method has over another, on the same cases."""

    words: str
    """What the difference is due to."""
    method: str
    other: str
    by_part: Mapping[str, Interval]
    """For all cases, and for parts of them."""


# Tables


def header(rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns of a table of these rows."""
    return CMD_HEADER if rows and rows[0].auprc is None else HEADER


def cells(row: Row | Published, *, plus_minus: str = " ± ") -> list[str]:
    """The cells of a row under its header; a published row has none after the quantiles."""
    if isinstance(row, Published):
        quantiles = with_spread(row.quantiles, row.spread, plus_minus)
        return [row.method, *quantiles, *[""] * (len(HEADER) - len(_START))]
    summary = row.summary
    if row.auprc is None or row.precision is None:
        middle = [f"{row.cmd:.3f}", f"{row.cpr:.3f}", f"{row.wins:.1f}"]
    else:
        middle = [f"{value:.3f}" for value in (row.auprc, row.precision, row.cpr, row.cmd)]
    return [
        row.method,
        *with_spread(summary.quantiles, summary.spread, plus_minus),
        *middle,
        f"{row.seconds:.3g}",
        "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f} MiB",
    ]


def to_markdown(rows: Sequence[Row], published: Sequence[Published], *, title: str) -> str:
    """A title and one table, or two where there are published figures."""
    parts = [title, markdown_table(header(rows), [cells(row) for row in rows])]
    if published:
        cut = [cells(row)[: len(_START)] for row in published]
        parts += [f"{PUBLISHED_TITLE}:", markdown_table(_START, cut)]
    return "\n\n".join(parts) + "\n"


def breakdown_text(breakdown: Breakdown) -> str:
    """A line that says what it is, and a table: a row per method, a column per part."""
    columns = ["Method", *(f"{name} ({size})" for name, size in breakdown.sizes.items())]
    rows = [
        [method, *(f"{means[name]:.3f}" if name in means else "" for name in breakdown.sizes)]
        for method, means in breakdown.means.items()
    ]
    return f"{breakdown.title}, in brackets how many they are:\n\n{markdown_table(columns, rows)}"


def kinds_text(kinds: Kinds) -> str:
    """A line that says what it is, and a table: of each part the median, mean and minimum."""
    columns = ["Method"]
    for name, size in kinds.sizes.items():
        columns += [f"Median, {name} ({size})", "Mean", "Min."]
    rows = [
        [method, *(cell for name in kinds.sizes for cell in _three(by_part.get(name, ())))]
        for method, by_part in kinds.values.items()
    ]
    what = (
        "AUROC by whether another case of the table has the same true circuit, in brackets how "
        "many cases they are"
    )
    return f"{what}:\n\n{markdown_table(columns, rows)}"


def _three(values: Sequence[float]) -> list[str]:
    if not values:
        return [""] * 3
    return [f"{value:.3f}" for value in (median(values), mean(values), min(values))]


def contrasts_text(contrasts: Sequence[Advantage], *, what: str, percent: bool = False) -> str:
    """Each difference in words, with its intervals."""
    lines = []
    for contrast in contrasts:
        told = [
            f"{part}: {in_percent(interval) if percent else interval}"
            for part, interval in contrast.by_part.items()
        ]
        names = f"`{contrast.method}` against `{contrast.other}`"
        lines.append(f"- {contrast.words} ({names}). {'; '.join(told)}.")
    return "\n".join([f"{what}:", "", *lines])


def in_percent(interval: Interval) -> str:
    """A share with its interval."""
    value, low, high = (100 * x for x in (interval.value, interval.low, interval.high))
    return f"{value:.1f}% [{low:.1f}, {high:.1f}]"


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
        seeds = "" if row.spread is None else N_SEEDS
        numbers = [*row.quantiles, *(row.spread or [""] * 5)]
        lines.append([row.method, "yes", "auroc", N_CASES, seeds, *numbers, *[""] * len(more)])
    return csv_text(lines)


def _blank(value: object) -> object:
    return "" if value is None else value


def to_latex(rows: Sequence[Row], published: Sequence[Published], *, title: str) -> str:
    """A table with the rules of `booktabs`; the title is its caption."""
    blocks = [("", [cells(row, plus_minus="±") for row in rows])]
    if published:
        blocks.append((PUBLISHED_TITLE, [cells(row, plus_minus="±") for row in published]))
    return latex_table(header(rows), blocks, caption=title)


# The box plot


def box_plot(
    path: str | Path, rows: Sequence[Row], published: Sequence[Published], *, title: str
) -> None:
    """Write `row_figure` to a file; by suffix SVG, PNG or PDF."""
    known_suffix(path)
    save_figure(row_figure(rows, published, title=title), path)


def row_figure(rows: Sequence[Row], published: Sequence[Published], *, title: str) -> "Figure":
    """The rows drawn as boxes, published ones dashed and to the right."""
    boxes = [Box.of_cases(row.case_means, row.summary.spread) for row in rows]
    slots = [Slot(label=row.method, boxes=(box,)) for row, box in zip(rows, boxes, strict=True)]
    groups = [SlotGroup(title="", slots=tuple(slots))]
    if published:
        theirs = [Slot(label=row.method, boxes=(Box.of_published(row),)) for row in published]
        groups.append(SlotGroup(title="Published, on other weights", slots=tuple(theirs)))
    is_auroc = header(rows) == HEADER
    return box_figure(
        groups,
        title=title,
        axis="Edge AUROC" if is_auroc else "CMD, smaller is better",
        limits=(-0.02, 1.03) if is_auroc else None,
    )
