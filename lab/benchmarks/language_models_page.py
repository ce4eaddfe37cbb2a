"""The page of `lab.benchmarks.language_models`: tables and a figure, from what its store holds.

1. `read_store` reads all models and units. Of a unit that is missing or failed the cell is empty,
   and so is a mean that it belongs to; failures are listed.
2. `page` writes Markdown: what was done and how, then per model its tasks, and one table per number
   with methods as rows, tasks as columns and their mean; the best of a column is bold.
   `data_rows` are the same numbers for a CSV file beside it.
3. The figure has one panel per model and task and one line per method, over log-spaced sizes.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

from graphcircuits.drawing.curves import Points, panels_figure
from graphcircuits.drawing.library import save_figure
from graphcircuits.evaluation.text_tables import csv_text
from graphcircuits.io.files import write_atomic
from graphcircuits.io.store import StoreError, read_json
from graphcircuits.result.curve import CROSSINGS

TITLES = {
    "smollm2": "SmolLM2-135M-Instruct",
    "stories15M": "stories15M",
    "gemma3": "Gemma 3 270M",
}
"""What models are called whose files have other names."""

CAPTION = (
    "A panel is a model and a task, a line a method, and a point a size that was measured. The "
    "dotted line is at 1, where the circuit does as well as the whole model. What lies beyond "
    "-0.25 and 1.35 is not drawn."
)

Units = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By task and method."""


@dataclass(frozen=True)
class Model:
    """A model of the store."""

    name: str
    about: Mapping[str, Any]
    units: Units
    failures: Sequence[str]

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name)

    @property
    def tasks(self) -> list[str]:
        return [name for name, about in self.about["tasks"].items() if not about["reason"]]


@dataclass(frozen=True)
class Column:
    """A number of a unit, and how it is shown."""

    name: str
    """In the CSV file."""
    title: str
    value: Callable[[Mapping[str, Any]], float | None]
    digits: int
    best: Callable[[Sequence[float]], float] | None
    mean: Callable[[Sequence[float]], float] = mean
    """Over tasks."""


def _needed(share: float) -> Column:
    return Column(
        f"edges_for_{share:g}",
        f"Edges that keep {share:g} of the output (smaller is better; geometric mean)",
        lambda u: u["curves"]["log"]["edges_for"][f"{share:g}"],
        0,
        min,
        geometric_mean,
    )


NUMBERS = (
    *map(_needed, CROSSINGS),
    Column(
        "log_area",
        "Log area, by output (smaller is better)",
        lambda u: u["curves"]["log"]["log_area"],
        3,
        min,
    ),
    Column(
        "cmd_mib",
        "CMD, MIB's sizes, by loss (smaller is better)",
        lambda u: u["curves"]["mib"]["cmd"],
        3,
        min,
    ),
    Column(
        "cpr_mib",
        "CPR, MIB's sizes, by loss (larger is better)",
        lambda u: u["curves"]["mib"]["cpr"],
        3,
        max,
    ),
    Column("seconds", "Seconds of the method", lambda u: u["seconds"], 2, None),
    Column(
        "memory_mib",
        "Memory of the method, MiB above the model",
        lambda u: None if u["peak_bytes"] is None else u["peak_bytes"] / 2**20,
        0,
        None,
    ),
)


def read_store(store: Path, methods: Sequence[str]) -> list[Model]:
    """All models that were prepared, with the units that there are."""
    models = []
    for file in sorted(store.glob("*/model.json")):
        about = read_json(file)
        units: dict[str, dict[str, Any]] = {}
        failures = []
        for task, told in about["tasks"].items():
            if told["reason"]:
                continue
            units[task] = {}
            for method in methods:
                unit = _unit(file.parent / task / f"{method}.json")
                if unit is not None and "failure" in unit:
                    failures.append(f"{method} on {task} ({unit['failure']})")
                elif unit is not None:
                    units[task][method] = unit
        models.append(Model(file.parent.name, about, units, failures))
    if not any(by_method for model in models for by_method in model.units.values()):
        raise ValueError(f"{store} holds no results; run without --only-page first.")
    return models


def _unit(path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except (OSError, StoreError):
        return None


def write_page(store: Path, out: Path, figure: Path, methods: Sequence[str]) -> None:
    """Write the page and its figure."""
    models = read_store(store, methods)
    save_figure(panels_figure(_panels(models, methods), columns=4), figure)
    link = Path(os.path.relpath(figure.resolve(), out.resolve().parent)).as_posix()
    data = out.with_suffix(".csv")
    write_atomic(out, page(models, methods, figure=link, data=data.name).encode())
    write_atomic(data, csv_text(data_rows(models, methods)).encode())


def data_rows(models: Sequence[Model], methods: Sequence[str]) -> list[list[object]]:
    """Every number of every unit, under a line that names them."""
    rows: list[list[object]] = [["model", "task", "method", *(number.name for number in NUMBERS)]]
    for model in models:
        for task, by_method in model.units.items():
            for method in (name for name in methods if name in by_method):
                numbers = [number.value(by_method[method]) for number in NUMBERS]
                rows.append([model.title, task, method, *("" if x is None else x for x in numbers)])
    return rows


def _panels(models: Sequence[Model], methods: Sequence[str]) -> dict[str, dict[str, Points]]:
    panels = {}
    for model in models:
        for task, by_method in model.units.items():
            panels[f"{model.title}: {task}"] = {
                method: (curve["sizes"], curve["faithfulness"])
                for method in methods
                if method in by_method and (curve := by_method[method]["curves"]["log"])
            }
    return {title: curves for title, curves in panels.items() if curves}


def _commands(units: Sequence[Mapping[str, Any]]) -> str:
    """What was made where; times of several machines cannot be compared."""
    devices = _distinct((u["device"], u["machine"]) for u in units)
    if len(devices) == 1:
        ((device, machine),) = devices
        return f"`make models DEVICE={device}` on {machine}"
    told = []
    for device, machine in devices:
        own = _distinct(
            u["method"] for u in units if (u["device"], u["machine"]) == (device, machine)
        )
        told.append(f"`make models DEVICE={device}` on {machine} ({', '.join(own)})")
    return f"{' and '.join(told)}, whose times and memory cannot be compared"


def page(models: Sequence[Model], methods: Sequence[str], *, figure: str, data: str) -> str:
    """The page as Markdown."""
    units = [u for m in models for by_method in m.units.values() for u in by_method.values()]
    first = units[0]
    parts = [
        "# Circuits of language models",
        "How faithful the circuits are that methods find in language models nobody here trained: "
        "the best edges stay, all others are corrupted, and faithfulness is the part of the gap "
        "between the corrupted and the whole model that is closed ([evaluate.md](../evaluate.md)). "
        "Circuits are judged on prompts that no method saw. CMD and CPR are MIB's, by the loss of "
        "the task; all else, and the figure, is by output: how near a circuit comes to the model's "
        "own output.",
        f"Made by {_commands(units)}, in "
        f"{' and '.join(_distinct(u['dtype'] for u in units))}, with graphcircuits "
        f"{first['package']}, PyTorch {first['torch']} and Python {first['python']}. "
        f"Circuits were found on {first['pairs']} pairs of each task. "
        "Memory is what the method needed beyond the model. A CPR above 1 belongs to circuits that "
        "answer more surely than the model does. "
        "`gcl` was trained on small subjects, eight small language models among them, and has seen "
        "neither of these models.",
        f"Every number is in [{data}]({data}).",
        "Options of the methods, apart from seeds and memory limits:",
        _table(["method", "options"], [[m, _options(units, m)] for m in methods], right=0),
        f"![Faithfulness curves]({figure})",
        "",
        CAPTION,
    ]
    for model in models:
        parts += _model(model, methods)
    return "\n\n".join(parts) + "\n"


def _model(model: Model, methods: Sequence[str]) -> list[str]:
    about = model.about
    parts = [
        f"## {model.title}",
        f"{about['layers']} layers x {about['heads']} heads, {about['edges']:,} edges, "
        f"{about['parameters'] / 1e6:.0f} million parameters. It is right on these tasks, which "
        f"are the first of the library on which it answers at least {about['least']:.0%} of other "
        "prompts rightly:",
        _table(
            ["task", "right", "of prompts", "fresh pairs", "tokens"],
            [
                [
                    task,
                    f"{told['right']:.0%}",
                    *(str(told[k]) for k in ("asked", "fresh", "tokens")),
                ]
                for task, told in about["tasks"].items()
                if not told["reason"]
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
    for number in NUMBERS:
        parts += [f"### {number.title}", _numbers(model, methods, number)]
    return parts


def _numbers(model: Model, methods: Sequence[str], number: Column) -> str:
    """Methods as rows, tasks as columns, and the mean where no task is missing."""
    values: dict[str, list[float | None]] = {}
    for method in methods:
        units = [model.units[task].get(method) for task in model.tasks]
        row = [None if unit is None else number.value(unit) for unit in units]
        known = [value for value in row if value is not None]
        values[method] = [*row, number.mean(known) if known and len(known) == len(row) else None]
    columns = list(zip(*values.values(), strict=True))
    rows = [
        [method, *(_cell(v, column, number) for v, column in zip(row, columns, strict=True))]
        for method, row in values.items()
    ]
    return _table(["method", *model.tasks, "mean"], rows, right=len(model.tasks) + 1)


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
