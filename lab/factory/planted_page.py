"""What became of planted language models: a page of tables, the data behind it, and a picture.

1. The reports lie in the files of the models, and few of these ship. What is in the folder takes
   the place of what `planted.reports` has stored; the rest stays as it is.
2. `models` has a line for each: its size, its loss beside that of the twin that saw text alone, how
   many calls pass, and how long it trained. A second table has a line for each call.
3. The picture has the learning curves: text of models and twins, and the worst call of each model.

python -m lab.factory planted-page [DIR] [--page docs/results/planted-models.md]
    [--figure docs/figures/planted-models.png]
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from graphcircuits.cases.collection import DOES
from graphcircuits.cases.language import language_records
from graphcircuits.drawing.library import COLOURS, RULE, need_library, save_figure
from graphcircuits.evaluation.text_tables import markdown_table
from lab.factory.planted.judge import MOST_LOST
from lab.factory.planted.make import path_of
from lab.factory.planted.reports import REPORTS, Report, read_reports, report_of, write_reports
from lab.factory.planted.train import SHARES
from lab.programs import parser

MODEL_COLUMNS = (
    *("model", "split", "architecture", "layers", "heads", "width", "tokens", "parameters"),
    *("calls", "pass", "loss", "twin", "perplexity ratio", "steps", "prompts", "windows"),
    *("on", "seconds", "side by side"),
)
CALL_COLUMNS = ("case", "edges", *SHARES, "passes")


def model_row(report: Report) -> list[str]:
    """A line of the table of models; the ratio is of perplexities, to that of the twin."""
    design, calls = report["design"], report["calls"].values()
    split = report["split"] if report["fold"] is None else f"fold {report['fold']}"
    return [
        *(report["case"], split),
        *(str(design[x]) for x in ("architecture", "layers", "heads", "width", "vocabulary")),
        f"{report['parameters']:,}",
        *(str(len(calls)), str(sum(call["passed"] for call in calls))),
        *(f"{report[x]:.3f}" for x in ("loss", "twin_loss", "perplexity_ratio")),
        *map(str, (report["steps"], report["training"]["rows"], report["training"]["text_rows"])),
        "H200" if "--device cuda" in report["command"] else "CPU",
        *(f"{report['seconds']:.0f}", str(report["together"])),
    ]


def call_rows(report: Report) -> list[list[str]]:
    """The lines of its calls."""
    return [
        [
            f"{report['case']}@{name}",
            str(call["edges"]),
            *(f"{call[share]:.3f}" for share in SHARES),
            "yes" if call["passed"] else "no",
        ]
        for name, call in report["calls"].items()
    ]


def task_lines(reports: Sequence[Report]) -> list[str]:
    """The language tasks that a model or its twin does, and how many of each do."""
    names = dict.fromkeys(name for report in reports for name in report["tasks"])
    lines = []
    for name in names:
        counts = [
            sum(report[key].get(name, 0) >= DOES for report in reports)
            for key in ("tasks", "twin_tasks")
        ]
        if any(counts):
            lines.append(f"`{name}` {counts[0]} models and {counts[1]} twins")
    return lines


def whole_command(report: Report) -> str:
    """The command that the file records, with the settings that it leaves out."""
    words, training = report["command"], report["training"]
    minutes = None if training["seconds"] is None else f"{training['seconds'] / 60:.2f}"
    for flag, value in (
        ("--steps", training["steps"]),
        ("--rows", training["rows"]),
        ("--text-rows", training["text_rows"]),
        ("--minutes", minutes),
    ):
        if value is not None and f"{flag} " not in words:
            words += f" {flag} {value}"
    return words


def page(reports: Sequence[Report], data: str, figure: str) -> str:
    """The page as Markdown."""
    passed = sum(call["passed"] for report in reports for call in report["calls"].values())
    total = sum(len(report["calls"]) for report in reports)
    within = [report for report in reports if report["perplexity_ratio"] <= MOST_LOST]
    both = sum(call["passed"] for report in within for call in report["calls"].values())
    known = [report for report in reports if report["tasks"]]
    commands = dict.fromkeys(map(whole_command, reports))
    return "\n\n".join(
        [
            "# Planted language models",
            f"{len(reports)} models with {total} calls, of which {passed} pass all four checks. "
            f"{len(within)} models have at most {MOST_LOST} times the perplexity of their twins, "
            f"and {both} of the calls that pass are theirs. What the columns mean: [planted "
            "language models](../planted-language-models.md). Prompts and windows of text are "
            "those of a step, seconds those of all that trained side by side, on an H200 with "
            "other processes on the card, on a CPU with one thread beside other work; losses are "
            "in nats a token.",
            markdown_table(list(MODEL_COLUMNS), [model_row(report) for report in reports]),
            f"![Learning curves]({figure})",
            "Above, the held-out loss of models (lines) and twins (dots); below, the worst of the "
            "four shares of any call of each model.",
            f"Language tasks done ({DOES:.0%} of 128 prompts right), of the {len(known)} models "
            f"whose figures are kept: {'; '.join(task_lines(known)) or 'none'}.",
            markdown_table(
                list(CALL_COLUMNS), [row for report in reports for row in call_rows(report)]
            ),
            f"Data with all curves: {data}. The files of {len(reports) - len(known)} models are "
            "not kept: their figures are those of this page when it was first written, in three "
            "digits, and their settings are taken from files of the same run.",
            f"Models by {' and '.join(f'`{x}`' for x in commands)}, settings that a file's own "
            "command leaves out added from its report; page by `python -m lab.factory planted-page "
            "build/planted`.",
        ]
    )


def draw_curves(reports: Sequence[Report], path: Path) -> None:
    """A column of panels for each design: text above, programs below."""
    need_library("the picture")
    from matplotlib.figure import Figure

    designs = list(dict.fromkeys(tuple(report["design"].items()) for report in reports))
    figure = Figure(figsize=(1.0 + 1.9 * len(designs), 3.8), layout="constrained")
    panels = figure.subplots(2, len(designs), squeeze=False, sharey="row")
    for column, design in zip(panels.T, designs, strict=True):
        some = [report for report in reports if tuple(report["design"].items()) == design]
        for number, report in enumerate(some):
            steps = [row["step"] for row in report["curve"]]
            style = {"color": COLOURS[number % len(COLOURS)], "linewidth": 1.0}
            column[0].plot(steps, [row["loss"] for row in report["curve"]], **style)
            column[0].plot(steps, [row["twin"] for row in report["curve"]], ":", **style)
            worst = [min(row[share] for share in SHARES) for row in report["curve"]]
            column[1].plot(steps, worst, label=report["case"], **style)
        about = dict(design)
        column[0].set_title(f"{about['architecture']}, {about['layers']} layers", fontsize=8)
        column[1].set_xlabel("step", fontsize=7)
        column[1].set_ylim(0, 1.03)
        column[1].legend(fontsize=5, frameon=False, loc="lower right")
        for axes in column:
            axes.tick_params(labelsize=6)
            axes.grid(color=RULE, linewidth=0.6)
    panels[0, 0].set_ylabel("nats a token", fontsize=7)
    panels[1, 0].set_ylabel("worst share of any call", fontsize=7)
    save_figure(figure, path)


def main(given: Sequence[str]) -> None:
    """Take in the reports of the folder, and write the page, its data and the picture."""
    words = parser("lab.factory planted-page", __doc__)
    words.add_argument("folder", type=Path, nargs="?", help="where `lab.factory planted` wrote")
    words.add_argument("--page", type=Path, default=REPORTS.with_name("planted-models.md"))
    words.add_argument("--figure", type=Path, default=Path("docs/figures/planted-models.png"))
    chosen = words.parse_args(given)
    data = chosen.page.with_suffix(".jsonl.gz")
    by_id = read_reports(data)
    for id in language_records():
        if chosen.folder is not None and (path := path_of(chosen.folder, id)).exists():
            by_id[id] = report_of(path)
    reports = [by_id[id] for id in language_records() if id in by_id]
    if not reports:
        raise FileNotFoundError(
            f"no planted language model in {chosen.folder}; make them with: "
            "python -m lab.factory planted DIR --models all"
        )
    write_reports(reports, data)
    figure = f"../figures/{chosen.figure.name}"
    chosen.page.write_text(page(reports, data.name, figure) + "\n")
    draw_curves(reports, chosen.figure)
    sys.stdout.write(f"wrote {chosen.page}, {data} and {chosen.figure}\n")
