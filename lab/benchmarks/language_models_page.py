"""The page of `lab.benchmarks.language_models`: tables and a figure, from what its store holds.

1. `read_store` reads all models and units. What is missing or failed leaves its cells empty;
   failures are listed.
2. `page` writes Markdown: what was done and how, then per model its tasks, one table with a row per
   method, and one of the edges that each method needs on each task; the best of a column is bold.
   Edges are geometric means over tasks of those over seeds of prompts. `data_rows` are the numbers
   of all units for a CSV file beside it.
3. The figure: edges for .9 of the output against seconds, one panel per model.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING, Any

import numpy as np

from graphcircuits.drawing.library import need_library, save_figure
from graphcircuits.io.files import csv_text, write_atomic
from graphcircuits.io.store import StoreError, read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "smollm2": "SmolLM2-135M-Instruct",
    "stories15M": "stories15M",
    "gemma3": "Gemma 3 270M",
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B",
}
"""What models are called whose files have other names."""
BASE = "eap-ig"
"""The method that the others are compared with, unless another one is named."""
MUCH = 1.2
"""Times the edges of that one, above which a task is worse by much."""
DRAWS = 2000
"""Of tasks and seeds, for an interval."""

Unit = Mapping[str, Any]
Units = Mapping[str, Mapping[str, Mapping[int, Unit]]]
"""By task, method and seed."""


@dataclass(frozen=True)
class Model:
    """A model of the store."""

    name: str
    about: Mapping[str, Any]
    units: Units
    failures: Sequence[str]
    base: str = BASE
    command: str = ""
    """What made its units, where it was not `make models`."""

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name)

    @property
    def every(self) -> list[Unit]:
        """All units that there are."""
        return [
            unit
            for by_method in self.units.values()
            for by_seed in by_method.values()
            for unit in by_seed.values()
        ]

    def having(self, methods: Sequence[str]) -> list[str]:
        """Those of the methods that ran on it at all."""
        return [name for name in methods if any(by[name] for by in self.units.values())]

    @property
    def tasks(self) -> list[str]:
        return [name for name, about in self.about["tasks"].items() if not about["reason"]]


@dataclass(frozen=True)
class Column:
    """A number of a unit, how tasks and seeds are put together, and how it is shown."""

    name: str
    """In the CSV file."""
    title: str
    value: Callable[[Unit], float | None]
    together: Callable[[Sequence[float]], float]
    digits: int
    best: Callable[[Sequence[float]], float] | None


def _edges_for(share: float) -> Column:
    return Column(
        f"edges_for_{share}",
        f"edges for {share:g}",
        lambda unit: unit["edges_for"][str(share)],
        geometric_mean,
        0,
        min,
    )


NINETY = _edges_for(0.9)
NUMBERS = (
    _edges_for(0.8),
    NINETY,
    _edges_for(0.95),
    Column("log_area", "log area", lambda u: u["log_area"], mean, 3, min),
    Column("cmd", "CMD", lambda u: u["cmd"], mean, 3, min),
    Column("cpr", "CPR", lambda u: u["cpr"], mean, 3, max),
    Column("seconds", "seconds", lambda u: u["seconds"], mean, 2, None),
    Column(
        "memory_mib",
        "MiB",
        lambda u: None if u["peak_bytes"] is None else u["peak_bytes"] / 2**20,
        mean,
        0,
        None,
    ),
)


def read_store(
    store: Path, methods: Sequence[str], base: str = BASE, command: str = ""
) -> list[Model]:
    """All models that were prepared, with the units that there are."""
    models = []
    for file in sorted(store.glob("*/model.json")):
        about, units, failures = read_json(file), {}, []
        for task, told in about["tasks"].items():
            if told["reason"]:
                continue
            units[task] = {method: {} for method in methods}
            for method in methods:
                for seed in range(about["seeds"]):
                    unit = _unit(file.parent / task / str(seed) / f"{method}.json")
                    if unit is not None and "failure" in unit:
                        failures.append(f"{method} on {task}, seed {seed} ({unit['failure']})")
                    elif unit is not None:
                        units[task][method][seed] = unit
        models.append(Model(file.parent.name, about, units, failures, base, command))
    if not any(model.every for model in models):
        raise ValueError(f"{store} holds no results; run without --only-page first.")
    return models


def _unit(path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except (OSError, StoreError):
        return None


def write_page(
    store: Path,
    out: Path,
    figure: Path | None,
    methods: Sequence[str],
    remark: str = "",
    base: str = BASE,
    command: str = "",
) -> None:
    """Write the page and, if it is to have one, its figure, quality against seconds.

    `remark` is a sentence on how the units came about, which they do not say themselves.
    """
    models, link = read_store(store, methods, base, command), None
    if figure is not None:
        save_figure(quality_figure(models, methods), figure)
        link = Path(os.path.relpath(figure.resolve(), out.resolve().parent)).as_posix()
    data = out.with_suffix(".csv")
    text = page(models, methods, figure=link, data=data.name, remark=remark)
    write_atomic(out, text.encode())
    write_atomic(data, csv_text(data_rows(models, methods)).encode())


def data_rows(models: Sequence[Model], methods: Sequence[str]) -> list[list[object]]:
    """Every number of every unit, under a line that names them."""
    names = [number.name for number in NUMBERS]
    rows: list[list[object]] = [["model", "task", "seed", "method", *names]]
    for model in models:
        for unit in model.every:
            numbers = [number.value(unit) for number in NUMBERS]
            cells = ["" if x is None else float(f"{x:.6g}") for x in numbers]
            rows.append([model.title, unit["task"], unit["seed"], unit["method"], *cells])
    return rows


# Figures


def quality_figure(models: Sequence[Model], methods: Sequence[str]) -> "Figure":
    """Edges for .9 of the output against seconds, both in ratios; what refines is one line."""
    need_library("the plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(models), 4.0), layout="constrained")
    grid = figure.subplots(1, len(models), squeeze=False)
    for axes, model in zip(grid.flat, models, strict=True):
        points = {
            method: (seconds, edges)
            for method in methods
            if (seconds := _overall(model, method, NUMBERS[-2]))
            and (edges := _overall(model, method, NINETY))
        }
        refined = [xy for name, xy in points.items() if name.startswith("refine-")]
        axes.plot(*zip(*refined, strict=True), color="#b3261e", marker="o") if refined else None
        for name, (seconds, edges) in points.items():
            if not name.startswith("refine-"):
                axes.plot([seconds], [edges], color="#3b5bdb", marker="s", linestyle="")
            axes.annotate(name, (seconds, edges), (4, 4), textcoords="offset points", fontsize=7)
        axes.set(xscale="log", yscale="log", title=model.title)
        axes.set_xlabel("seconds", fontsize=8)
    grid[0, 0].set_ylabel("edges that keep .9 of the output", fontsize=8)
    return figure


# The page


def page(
    models: Sequence[Model],
    methods: Sequence[str],
    *,
    figure: str | None,
    data: str,
    remark: str = "",
) -> str:
    """The page as Markdown."""
    units = [unit for model in models for unit in model.every]
    first = units[0]
    parts = [
        "# Circuits of language models",
        "How few edges do the job in language models nobody here trained. The best edges of a "
        "method stay, all others are corrupted, and the circuit is judged by how much of the "
        "model's own output it keeps ([evaluate.md](../evaluate.md)), on prompts that no method "
        "saw. *Edges for .9* is the smallest number of best edges at which, and above which, .9 is "
        "kept; *log area* the mean over log sizes of what is lacking. CMD and CPR are MIB's, by "
        "the loss of the task at MIB's sizes.",
        f"Made by {_commands(models)}, in "
        f"{' and '.join(_distinct(u['dtype'] for u in units))}, with graphcircuits "
        f"{first['package']}, PyTorch {first['torch']} and Python {first['python']}. "
        f"Circuits were found on {first['pairs']} pairs of each task, and each number is over "
        "tasks and seeds of prompts: geometric means of edges, means of the others. Intervals hold "
        f"95% of {DRAWS:,} draws of tasks and of seeds within each. Seconds are of the method "
        "alone, memory is what it needed beyond the model.",
        *([remark] if remark else []),
        f"Every number is in [{data}]({data}).",
        *([f"![Edges for .9 of the output against seconds]({figure})"] if figure else []),
        "Options of the methods, apart from seeds and memory limits:",
        _table(
            ["method", "options"],
            [[m, _options(units, m)] for m in methods if any(u["method"] == m for u in units)],
            right=0,
        ),
    ]
    for model in models:
        parts += _model(model, methods)
    return "\n\n".join(parts) + "\n"


def _model(model: Model, methods: Sequence[str]) -> list[str]:
    about = model.about
    parts = [
        f"## {model.title}",
        f"{about['layers']} layers x {about['heads']} heads, {about['edges']:,} edges, "
        f"{about['parameters'] / 1e6:,.0f} million parameters. It is right on these tasks, which "
        f"are the first of the library on which it answers at least {about['least']:.0%} of other "
        "prompts rightly:",
        _table(
            ["task", "right", "of prompts", "fresh pairs", "tokens"],
            [
                [
                    task,
                    f"{about['tasks'][task]['right']:.0%}",
                    *(str(about["tasks"][task][k]) for k in ("asked", "fresh", "tokens")),
                ]
                for task in model.tasks
            ],
            right=4,
        ),
    ]
    left_out: dict[str, list[str]] = {}
    for task, told in about["tasks"].items():
        if told["reason"]:
            left_out.setdefault(told["reason"], []).append(task)
    if left_out:
        shown = [f"{', '.join(tasks)} ({reason})" for reason, tasks in left_out.items()]
        parts.append(f"Left out: {'; '.join(shown)}.")
    if model.failures:
        parts.append(f"Failed: {'; '.join(model.failures)}.")
    return [
        *parts,
        "### Methods",
        _methods_table(model, model.having(methods)),
        "### Edges for .9, by task",
        _tasks_table(model, model.having(methods)),
    ]


def _methods_table(model: Model, methods: Sequence[str]) -> str:
    """Methods as rows, numbers over all tasks as columns, and edges for .9 against the base's,
    on the prompts that both have."""
    columns = [[_overall(model, method, number) for method in methods] for number in NUMBERS]
    rows = []
    for row, method in enumerate(methods):
        cells = [_cell(c[row], c, number) for c, number in zip(columns, NUMBERS, strict=True)]
        seeds = {len(model.units[task][method]) for task in model.tasks}
        rows.append([method, "/".join(map(str, sorted(seeds))), *cells, *_against(model, method)])
    titles = [number.title for number in NUMBERS]
    above = [f"tasks above {model.base}", f"above {MUCH:g} times"]
    header = ["method", "seeds", *titles, f"of {model.base}'s edges for .9", *above]
    return _table(header, rows, right=len(header) - 1)


def _tasks_table(model: Model, methods: Sequence[str]) -> str:
    columns = [[_on_task(model, task, m, NINETY) for m in methods] for task in model.tasks]
    rows = [
        [method, *(_cell(column[row], column, NINETY) for column in columns)]
        for row, method in enumerate(methods)
    ]
    return _table(["method", *model.tasks], rows, right=len(model.tasks))


def _on_task(model: Model, task: str, method: str, number: Column) -> float | None:
    """The number of a method on a task, over seeds."""
    values = [number.value(unit) for unit in model.units[task][method].values()]
    known = [value for value in values if value is not None]
    return number.together(known) if known else None


def _overall(model: Model, method: str, number: Column) -> float | None:
    """The number of a method over tasks, where none is missing."""
    values = [_on_task(model, task, method, number) for task in model.tasks]
    known = [value for value in values if value is not None]
    return number.together(known) if known and len(known) == len(values) else None


def _against(model: Model, method: str) -> list[str]:
    """The ratio of edges for .9 to those of the base with its interval, and tasks on which it is
    above 1 and MUCH; over seeds that both have."""
    if model.base not in next(iter(model.units.values()), {}):
        return ["", "", ""]
    ratios = []
    for task in model.tasks:
        own, base = model.units[task][method], model.units[task][model.base]
        both = [seed for seed in own if seed in base]
        edges = [(NINETY.value(own[seed]), NINETY.value(base[seed])) for seed in both]
        ratios.append([math.log(a / b) for a, b in edges if a and b])
    if method == model.base or not all(ratios):
        return ["", "", ""]
    generator = np.random.default_rng(0)
    drawn = [
        mean(
            float(np.mean(generator.choice(ratios[task], len(ratios[task]))))
            for task in generator.integers(len(ratios), size=len(ratios))
        )
        for _ in range(DRAWS)
    ]
    low, high = np.exp(np.quantile(drawn, (0.025, 0.975)))
    middle = math.exp(mean(mean(logs) for logs in ratios))
    worse, much = (sum(mean(logs) > math.log(x) for logs in ratios) for x in (1, MUCH))
    ratio = f"{middle:.2f} [{low:.2f}, {high:.2f}]"
    return [ratio, *(f"{count} of {len(ratios)}" for count in (worse, much))]


def _commands(models: Sequence[Model]) -> str:
    """What was made where; times of several machines cannot be compared."""
    titles: dict[str, list[str]] = {}
    for model in models:
        for device, machine in _distinct((u["device"], u["machine"]) for u in model.every):
            made = f"`{model.command or f'make models DEVICE={device}'}` on {machine}"
            titles.setdefault(made, []).append(model.title)
    if len(titles) == 1:
        return next(iter(titles))
    told = " and ".join(f"{made} ({', '.join(names)})" for made, names in titles.items())
    return f"{told}, whose times and memory cannot be compared"


def _cell(value: float | None, column: Sequence[float | None], number: Column) -> str:
    if value is None:
        return ""
    shown = f"{value:,.{number.digits}f}"
    known = [one for one in column if one is not None]
    return f"**{shown}**" if number.best is not None and value == number.best(known) else shown


def _options(units: Sequence[Mapping[str, Any]], method: str) -> str:
    """As they were used, the same in all units."""
    found = [unit["options"] for unit in units if unit["method"] == method]
    if not found:
        return ""
    shown = {k: v for k, v in found[0].items() if k not in ("memory_limit", "seed")}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _distinct(items: Any) -> list[Any]:
    return list(dict.fromkeys(items))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: int) -> str:
    """Markdown; the last `right` columns stand to the right."""
    rule = ["---"] * (len(header) - right) + ["---:"] * right
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rows))
