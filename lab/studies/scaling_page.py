"""Trainings side by side: a table and a plot of held-out CMD, with intervals over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from graphcircuits.drawing.library import COLOURS, known_suffix, need_library, save_figure

T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Quantiles of Student's distribution that 95% lie between, by degrees of freedom from 1."""
NORMAL_95 = 1.96
FIGURES = {"cmd": "CMD", "qkv": "AUROC"}


@dataclass(frozen=True, kw_only=True)
class Record:
    """One training, and what it reaches on what was held out."""

    grid: str
    name: str
    count: int | None
    seed: int | None
    examples: int
    step: int
    figures: dict[str, dict[str, float]]
    """By kind of subject: cmd, and where circuits are known qkv and head."""


@dataclass(frozen=True)
class SeedInterval:
    """A mean over seeds, and how far it is known."""

    mean: float
    half: float | None
    """Half of the 95% interval; None for a single seed."""
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + ("" if self.half is None else f" ± {self.half:.4f}")


def interval(values: Sequence[float]) -> SeedInterval:
    """By Student's distribution."""
    n = len(values)
    if n < 2:
        return SeedInterval(values[0], None, n)
    t = T_95[n - 2] if n - 2 < len(T_95) else NORMAL_95
    return SeedInterval(mean(values), t * stdev(values) / n**0.5, n)


Row = tuple[str, str, int | None]
"""Grid, name and number of subjects."""


def by_row(records: Sequence[Record]) -> dict[Row, list[Record]]:
    """The records of each setting, settings in the order of appearance, smaller counts first."""
    found: dict[Row, list[Record]] = {}
    for record in records:
        found.setdefault((record.grid, record.name, record.count), []).append(record)
    return found


def columns(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Kinds of held-out subjects with the figures that there are of them."""
    return list(
        dict.fromkeys(
            (kind, figure)
            for record in records
            for kind, figures in record.figures.items()
            for figure in FIGURES
            if figure in figures
        )
    )


def table(records: Sequence[Record]) -> str:
    """Markdown: a row per setting; means over seeds with their 95% intervals."""
    shown = columns(records)
    heads = [f"{FIGURES[figure]}, {kind}" for kind, figure in shown]
    lines = [
        f"| Grid | Learned from, or how | Examples | Seeds | {' | '.join(heads)} |",
        f"| --- | --- | ---: | ---: {'| ---: ' * len(shown)}|",
    ]
    for (grid, name, _), found in by_row(records).items():
        cells = []
        for kind, figure in shown:
            values = [x.figures[kind][figure] for x in found if figure in x.figures.get(kind, {})]
            cells.append(str(interval(values)) if values else "")
        examples = found[0].examples or ""
        lines.append(f"| {grid} | {name} | {examples} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(path: str | Path, records: Sequence[Record], kind: str | None = None) -> None:
    """CMD on held-out subjects of one kind: curves over sizes, and a row per other setting."""
    known_suffix(path)
    need_library("the plot")
    from matplotlib.figure import Figure

    kind = kind or columns(records)[0][0]
    rows = {
        row: interval([x.figures[kind]["cmd"] for x in found if kind in x.figures])
        for row, found in by_row(records).items()
    }
    others = {row: x for row, x in rows.items() if row[0] not in ("sizes", "references")}
    curves = {row: x for row, x in rows.items() if row[0] == "sizes"}
    figure = Figure(figsize=(10, max(3.5, 1 + 0.28 * len(others))), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_sizes(left, curves)
    _draw_rows(right, others)
    for place, (row, x) in enumerate((r, x) for r, x in rows.items() if r[0] == "references"):
        style = {"color": "#56565e", "linestyle": ("-", "--", ":")[place % 3], "linewidth": 1}
        left.axhline(x.mean, label=row[1], **style)
        right.axvline(x.mean, **style)
    left.set(xscale="log", xlabel="tasks to learn from", ylabel=f"CMD, held-out {kind} subjects")
    right.set(xlabel=f"CMD, held-out {kind} subjects")
    left.legend(fontsize=8)
    figure.supxlabel(
        "points: means over seeds; bars with caps: their 95% intervals; "
        "grey lines: methods that learn nothing",
        fontsize=8,
    )
    save_figure(figure, path)


def _draw_sizes(axes: Any, curves: dict[Row, SeedInterval]) -> None:
    for place, name in enumerate(dict.fromkeys(row[1] for row in curves)):
        own = sorted((row[2] or 0, x) for row, x in curves.items() if row[1] == name)
        axes.errorbar(
            [count for count, _ in own],
            [x.mean for _, x in own],
            yerr=[x.half or 0.0 for _, x in own],
            marker="o",
            capsize=3,
            color=COLOURS[place % len(COLOURS)],
            label=name,
        )


def _draw_rows(axes: Any, rows: dict[Row, SeedInterval]) -> None:
    for place, x in enumerate(rows.values()):
        axes.errorbar(x.mean, -place, xerr=x.half or 0.0, marker="o", capsize=3, color=COLOURS[0])
    axes.set_yticks([-place for place in range(len(rows))], [row[1] for row in rows], fontsize=8)
