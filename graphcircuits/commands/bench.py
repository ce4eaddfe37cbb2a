"""`graphcircuits bench`: all methods on all cases of a split, in one resumable run."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcircuits.commands.checks import (
    MOST_SEEDS,
    device_there,
    distinct,
    in_range,
    known_dtype,
    one_of,
    prompt_count,
    refuse,
    writable,
    writable_folders,
)
from graphcircuits.commands.options import listed_methods, options_by_method
from graphcircuits.commands.output import (
    INTERRUPTED,
    Json,
    late_progress,
    print_json,
    print_table,
    save,
    say,
    write,
)
from graphcircuits.commands.subjects import Device

if TYPE_CHECKING:
    from graphcircuits.compare.bench import BenchConfig, Report


def bench(
    methods: Annotated[
        str | None, typer.Option(help="Methods with commas between; all of them if left out.")
    ] = None,
    cases: Annotated[
        str,
        typer.Option(
            help="test, pool, deep (four layers and more, test cases left out), all, or ids with "
            "commas between."
        ),
    ] = "test",
    seeds: Annotated[
        int, typer.Option(help="How many seeds; each draws prompts and seeds the methods.")
    ] = 1,
    pairs: Annotated[int, typer.Option(help="Prompt pairs of a case.")] = 64,
    labels: Annotated[
        str, typer.Option(help="Circuit labeling: interpbench (official), complete or paper.")
    ] = "interpbench",
    level: Annotated[str, typer.Option(help="By head (official), or with q, k, v apart: qkv.")] = (
        "head"
    ),
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option, METHOD.NAME=VALUE; may be given several times."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the results, tables and plot.")] = Path(
        "bench"
    ),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run everything anew, also what is in the folder.")
    ] = False,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the Markdown table here as well.")
    ] = None,
    device: Device = "cpu",
    dtype: Annotated[
        str, typer.Option(help="float64, float32, bfloat16 or float16, to compute in.")
    ] = "float32",
    as_json: Json = False,
) -> None:
    """Compare methods on subjects whose circuit is known: AUROC, time and memory.

    Results that are already in the folder are kept, so an interrupted bench goes on where it was;
    those of a method whose code has changed since are made again.
    Exit code 1 if a case or a method failed.
    """
    from graphcircuits.compare.bench import SELECTIONS, BenchConfig, select_cases
    from graphcircuits.compare.evaluate import LEVELS
    from graphcircuits.corpus.case import LABELINGS

    refuse(
        in_range("--seeds", seeds, 1, MOST_SEEDS),
        prompt_count("--pairs", pairs),
        one_of("--labels", labels, LABELINGS),
        one_of("--level", level, LEVELS),
        device_there(device),
        known_dtype(dtype),
        writable_folders({"--out": out}),
        writable({"--markdown": markdown}),
    )
    listed = tuple(listed_methods(methods))
    options = options_by_method(option or [], listed)
    ids, left_out = select_cases(cases)
    refuse(distinct("--cases", ids))
    config = BenchConfig(
        cases=tuple(ids),
        methods=listed,
        seeds=tuple(range(seeds)),
        n_pairs=pairs,
        labels=labels,
        level=level,
        options=options,
        device=device,
        dtype=dtype,
    )
    if left_out:
        say(f"left out, no subject is shipped: {', '.join(left_out)}", err=True)
    split = f" ({cases})" if cases in SELECTIONS else ""
    title = f"{_count(len(listed), 'method')} on {_count(len(ids), 'case')}{split}"
    report = _run(config, out, title, fresh=fresh)
    saved = save(
        {
            out: lambda folder: report.write(folder).values(),
            markdown: lambda path: write(path, report.markdown()),
            out / "boxplot.svg": lambda path: _plot(report, path),
        }
        if report.runs
        else {}
    )
    if as_json:
        print_json(_record(report))
    else:
        _show(report)
    for failure in report.failures:
        say(f"failed: {failure}", err=True)
    if report.failures:
        say(f"{len(report.runs)} of {config.n_runs} results are in {out}", err=True)
    saved.tell(quiet=as_json)
    if report.failures:
        raise typer.Exit(1)


def _plot(report: "Report", path: Path) -> tuple[Path, ...]:
    """Draw the box plot if that can be done here."""
    try:
        report.plot(path)
    except ImportError as error:
        say(f"no box plot: {error}", err=True)
        return ()
    return (path,)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _run(config: "BenchConfig", out: Path, title: str, *, fresh: bool) -> "Report":
    from graphcircuits.compare.bench import BenchRun, Failure, Report, run

    runs: list[BenchRun] = []
    failures: list[Failure] = []
    try:
        with late_progress() as bar:
            overall = bar.add_task("bench", total=config.n_runs)
            current = bar.add_task("method", total=1, visible=False)

            def step(done: int, total: int) -> None:
                bar.update(current, completed=done, total=total, visible=True)

            for one in run(config, out, fresh=fresh, step=step):
                bar.update(current, visible=False)
                bar.update(overall, description=f"{one.case} {one.method or ''}")
                if isinstance(one, BenchRun):
                    runs.append(one)
                else:
                    failures.append(one)
                # A case that cannot be loaded takes all its runs with it.
                bar.advance(overall, 1 if one.method else config.n_runs // len(config.cases))
    except KeyboardInterrupt:
        say(
            f"interrupted: {len(runs)} of {config.n_runs} results are kept in {out}; "
            f"the same command{' without --fresh' if fresh else ''} goes on from there.",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    command = shlex.join(["graphcircuits", *sys.argv[1:]])
    return Report(
        config=config, title=title, runs=tuple(runs), failures=tuple(failures), command=command
    )


def _show(report: "Report") -> None:
    from graphcircuits.compare import figures

    say(f"{report.title}, AUROC ({report.config.labels} labels, {report.config.level} level)")
    rows = [figures.cells(row, plus_minus="±") for row in report.rows()]
    print_table(list(figures.HEADER), rows, numbers=len(figures.HEADER) - 1)
    published = [figures.cells(row, plus_minus="±")[:6] for row in report.published()]
    if published:
        say("")
        say(f"{figures.PUBLISHED_TITLE}:")
        print_table(list(figures.HEADER[:6]), published, numbers=5)


def _record(report: "Report") -> dict[str, Any]:
    from dataclasses import asdict

    rows = [asdict(row) for row in report.rows()]
    return {
        "title": report.title,
        "labels": report.config.labels,
        "level": report.config.level,
        "cases": list(report.config.cases),
        "methods": rows,
        "published": [asdict(row) for row in report.published()],
        "failures": [asdict(failure) for failure in report.failures],
    }
