"""Trainings as a picture: the loss by step, and what held-out cases say, where there are any.

One panel for each figure and one line for each seed, with a point at every step that was recorded
and a ring around the one whose weights were chosen.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphcircuits.drawing.library import (
    COLOURS,
    RULE,
    known_suffix,
    need_library,
    plain,
    save_figure,
)
from graphcircuits.training.validation import means

if TYPE_CHECKING:
    from matplotlib.figure import Figure

History = Mapping[int, Mapping[str, Any]]
"""By step: the `loss`, and under `cases` the figures of every held-out case."""
PANELS = {
    "loss": "training loss",
    "head": "held-out AUROC, by head",
    "qkv": "held-out AUROC, q/k/v apart",
    "cmd": "held-out CMD, smaller is better",
}


def history_figure(
    histories: Mapping[int, History], *, chosen: Mapping[int, int] | None = None, title: str = ""
) -> "Figure":
    """Draw trainings by seed; `chosen` gives the step whose weights each of them ended with."""
    need_library("the plot")
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    series = {seed: _series(history) for seed, history in histories.items()}
    shown = [name for name in PANELS if any(name in figures for figures in series.values())]
    if not shown:
        raise ValueError("a plot of a training needs at least one recorded step, got none.")
    figure = Figure(figsize=(1.2 + 3.2 * len(shown), 3.4), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, name in zip(panels, shown, strict=True):
        for number, (seed, figures) in enumerate(series.items()):
            style = {"color": COLOURS[number % len(COLOURS)], "linewidth": 1.2}
            points = figures.get(name, {})
            axes.plot(list(points), list(points.values()), **_DOT, **style)
            if (step := (chosen or {}).get(seed)) in points:
                axes.plot([step], [points[step]], **_RING, color=style["color"], linestyle="")
        axes.set_title(PANELS[name], fontsize=9)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.grid(color=RULE, linewidth=0.6)
        axes.set_axisbelow(True)
    handles = [
        Line2D([], [], color=COLOURS[number % len(COLOURS)], linewidth=1.2, label=f"seed {seed}")
        for number, seed in enumerate(series)
    ]
    grey: dict[str, Any] = {"color": "#56565e", "linestyle": ""}
    handles.append(Line2D([], [], **_DOT, **grey, label="recorded step"))
    if chosen:
        handles.append(Line2D([], [], **_RING, **grey, label="step whose weights are kept"))
    if title:
        figure.suptitle(plain(title), fontsize=10)
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=max(1, min(len(handles), int(figure.get_figwidth() / 1.9))),
        fontsize=7.5,
        frameon=False,
    )
    return figure


def plot_histories(
    path: str | Path,
    histories: Mapping[int, History],
    *,
    chosen: Mapping[int, int] | None = None,
    title: str = "",
) -> None:
    """Write the figure; by suffix SVG, PNG or PDF."""
    known_suffix(path)
    save_figure(history_figure(histories, chosen=chosen, title=title), path)


_DOT: dict[str, Any] = {"marker": "o", "markersize": 2.8}
_RING = _DOT | {"markersize": 7.5, "markerfacecolor": "none", "markeredgewidth": 1.1}


def _series(history: History) -> dict[str, dict[int, float]]:
    """Every figure by step: the loss, and means over held-out cases."""
    series: dict[str, dict[int, float]] = {}
    for step, record in sorted(history.items()):
        for name, value in {"loss": record["loss"], **means(record["cases"])}.items():
            series.setdefault(name, {})[step] = value
    return series
