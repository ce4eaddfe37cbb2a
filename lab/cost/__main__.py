"""`python -m lab.cost`: what each method takes on a subject, counted and measured."""

import shlex
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcircuits.cli import run
from graphcircuits.commands.checks import refuse, writable
from graphcircuits.commands.inputs import SubjectWords
from graphcircuits.commands.options import (
    Device,
    Draw,
    Dtype,
    MethodOptions,
    Model,
    PairsArgument,
    TaskName,
    Words,
    listed_methods,
    options_by_method,
)
from graphcircuits.commands.output import Json, print_json, print_table, save, say, write
from graphcircuits.commands.progress import late_progress
from graphcircuits.evaluation.text_tables import markdown_table

if TYPE_CHECKING:
    from graphcircuits.methods import Progress
    from graphcircuits.subject.transformer import Transformer
    from graphcircuits.task.pairs import Pairs
    from lab.cost.cost import Cost

HEADER = (
    "Method",
    "Forward",
    "Backward",
    "Edge runs",
    "Steps",
    "Span",
    "Span in passes",
    "Subject GFLOP",
    "Own GFLOP",
    "Work in passes",
    "Seconds",
    "Memory (MiB)",
)
ABOUT = (
    "Forward and backward passes and edge runs are for each prompt pair. Steps follow one another "
    "by the method's nature; span is the longest chain of matrix products. A pass, as the unit of "
    "span and of work, is a plain forward one on all pairs. Subject GFLOP are products with the "
    "subject's weights and its attention, own GFLOP all others, on all pairs. Seconds and memory "
    "are of one run without counting."
)


def cost(
    case: Annotated[
        str | None,
        typer.Argument(
            help="A case such as ib-3, or several with commas between; your own model: a file or a "
            "folder; or, with --model, your own program as path/to/file.py:name, or nothing."
        ),
    ] = None,
    pairs: PairsArgument = None,
    model: Model = None,
    task: TaskName = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods with commas between; all of them if left out.")
    ] = None,
    option: MethodOptions = None,
    draw: Draw = 64,
    seed: Annotated[int, typer.Option(help="Draws those prompts and seeds the methods.")] = 0,
    words: Words = False,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables as Markdown.")] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Count the work and the span of methods on a subject, and measure their time and memory.

    Every method runs twice, once to be counted and once to be measured. Exit code 1 if a method
    failed on a subject; the others are reported.
    """
    given = SubjectWords.sort(
        case,
        pairs,
        model,
        task=task,
        words=words,
        n_pairs=draw,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    refuse(
        writable({"--markdown": markdown}, read=given.files),
        given.problems(draw="--draw"),
    )
    listed = listed_methods(methods)
    options = options_by_method(option or [], listed)
    several = given.case is not None and given.model is None
    ids = [id.strip() for id in str(given.case).split(",")] if several else [given.case]
    if given.pairs_file is not None and len(ids) > 1:
        raise ValueError(f"one file of prompts cannot serve {len(ids)} cases; name one case.")
    subjects = [replace(given, case=id).load() for id in ids]
    reports = []
    with late_progress() as bar:
        overall = bar.add_task("cost", total=len(subjects) * len(listed))
        current = bar.add_task("step", total=1, visible=False)

        for inputs in subjects:
            report = _CostReport(subject=inputs.subject, pairs=inputs.pairs)
            for name in listed:
                bar.update(overall, description=f"{name} on {inputs.subject.name}")
                report = report.with_cost(name, seed, bar.follow(current), options.get(name, {}))
                bar.update(current, visible=False)
                bar.advance(overall)
            reports.append(report)
    command = shlex.join(["python", "-m", "lab.cost", *sys.argv[1:]])
    saved = save({markdown: lambda path: write(path, _markdown(reports, command))})
    if as_json:
        print_json([report.record() for report in reports])
    else:
        for report in reports:
            say(report.about)
            print_table(list(HEADER), report.rows(), numbers=len(HEADER) - 1)
    failures = [failure for report in reports for failure in report.failures]
    for failure in failures:
        say(f"failed: {failure}", err=True)
    saved.tell(quiet=as_json)
    if failures:
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class _CostReport:
    """The costs on one subject."""

    subject: "Transformer"
    pairs: "Pairs"
    costs: "tuple[Cost, ...]" = ()
    failures: tuple[str, ...] = ()

    def with_cost(
        self, method: str, seed: int, step: "Progress", options: dict[str, Any]
    ) -> "_CostReport":
        from lab.cost.cost import cost

        try:
            found = cost(self.subject, self.pairs, method, seed=seed, progress=step, **options)
        except (ValueError, OSError) as error:
            failure = f"{method} on {self.subject.name}: {error}"
            return replace(self, failures=(*self.failures, failure))
        return replace(self, costs=(*self.costs, found))

    @property
    def about(self) -> str:
        config, graph = self.subject.config, self.subject.graph
        return (
            f"{self.subject.name}: {config.n_layers} layers x {config.n_heads} heads, d_model "
            f"{config.d_model}, {graph.n_edges} edges, {len(self.pairs)} pairs of "
            f"{self.pairs.clean.shape[1]} tokens"
        )

    def rows(self) -> list[list[str]]:
        """One row per method, under HEADER."""
        rows = []
        for cost in self.costs:
            counts = cost.counts
            passes = (counts.forwards, counts.backwards, counts.evaluations)
            peak = "" if cost.peak_bytes is None else f"{cost.peak_bytes / 2**20:.1f}"
            rows.append(
                [
                    cost.method,
                    *(f"{number:.6g}" for number in passes),
                    str(counts.steps),
                    str(counts.span),
                    f"{counts.span_in_passes:.1f}",
                    f"{counts.subject_flops / 1e9:.4g}",
                    f"{counts.own_flops / 1e9:.4g}",
                    f"{counts.work_in_passes:.1f}",
                    f"{cost.seconds:.3f}",
                    peak,
                ]
            )
        return rows

    def record(self) -> dict[str, Any]:
        """What --json prints."""
        graph = self.subject.graph
        return {
            "subject": self.subject.name,
            "layers": graph.n_layers,
            "edges": graph.n_edges,
            "pairs": len(self.pairs),
            "tokens": self.pairs.clean.shape[1],
            "methods": [asdict(cost) for cost in self.costs],
            "failures": list(self.failures),
        }


def _markdown(reports: list[_CostReport], command: str) -> str:
    """One table per subject, what is in it, and how to make it again."""
    parts = []
    for report in reports:
        lines = [f"## {report.about}", "", markdown_table(HEADER, report.rows())]
        if report.failures:
            lines += ["", *(f"- failed: {failure}" for failure in report.failures)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join([*parts, f"{ABOUT}\n", f"Made with `{command}`.\n"])


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(cost)

if __name__ == "__main__":
    run(app)
