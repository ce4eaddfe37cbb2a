"""`graphcircuits bench`: all methods on all cases of a split, in one resumable run."""

import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphcircuits.commands import checks, options
from graphcircuits.commands.options import flag
from graphcircuits.commands.output import Json, print_json, print_table, save, say
from graphcircuits.commands.progress import interruptible, late_progress

if TYPE_CHECKING:
    from graphcircuits.compare.report import Report
    from graphcircuits.compare.selection import BenchConfig


def bench(
    methods: Annotated[
        str | None,
        flag(
            "Methods with commas between; NAME+paths counts each edge for the best path that "
            "it lies on. If left out, all but gcl-paper, with three floors: random, "
            "edge-frequency, gcl-blind."
        ),
    ] = None,
    cases: Annotated[
        str | None,
        flag(
            "test, pool, paper-pool (50 as the paper's pool has), interpbench-pool "
            "(InterpBench's 26 of these), deep-pool (four layers and more, nothing held out), "
            "deep-test (held-out random programs of four to seven layers), all, multitask (each "
            "task of models that have several), or ids with commas between; test if left out, or "
            "all of --subjects."
        ),
    ] = None,
    fleet: Annotated[
        str,
        flag(
            "How the subjects were trained: planted, public, or natural, on the task alone; "
            "of natural ones no circuit is known, and curves of faithfulness are compared. "
            "language: programs planted in language models."
        ),
    ] = "planted",
    subjects: Annotated[
        Path | None, flag("A folder of subjects that build wrote; the shipped ones if left out.")
    ] = None,
    seeds: Annotated[int, flag("How many seeds; each draws prompts and seeds the methods.")] = 1,
    once: Annotated[
        str | None, flag("Methods, with commas between, that run with the first seed alone.")
    ] = None,
    pairs: Annotated[int, flag("Prompt pairs of a case.")] = 64,
    labels: Annotated[
        str | None,
        flag(
            "Which edges count as true: complete (all reads of the program; also if left "
            "out), interpbench (by the public benchmark's rule) or paper (the lists that the paper "
            "used, for InterpBench's cases)."
        ),
    ] = None,
    level: Annotated[
        str | None, flag("By head (official, also if left out), or with q, k, v apart: qkv.")
    ] = None,
    by: options.By = None,
    option: options.MethodOptions = None,
    certify: Annotated[
        bool,
        flag("Certify the circuit of each run on unseen prompts; seconds a run.", "--certify"),
    ] = False,
    out: Annotated[Path, flag("Folder of the results, tables and plot.")] = Path("bench"),
    fresh: Annotated[
        bool, flag("Run everything anew, also what is in the folder.", "--fresh")
    ] = False,
    processes: Annotated[
        int, flag("Processes that compute side by side, with one thread each.")
    ] = 1,
    ray: options.Ray = None,
    markdown: Annotated[
        Path | None, flag("Write the Markdown table here as well, and NAME-cases.csv beside it.")
    ] = None,
    plot: Annotated[
        Path | None,
        flag("Draw the box plot here as well: .svg, .png, .pdf. Needs the extra 'plot'."),
    ] = None,
    device: options.Device = "cpu",
    dtype: options.Precision = "float32",
    as_json: Json = False,
) -> None:
    """Compare methods on many subjects: AUROC where the circuit is known, how many edges keep 0.9,
    areas of faithfulness, time and memory.

    Results that are already in the folder are used again, so an interrupted bench goes on where it
    was; those of a method whose revision has changed since are computed again.
    Exit code 1 if a case or a method failed.
    """
    from graphcircuits.cases import LANGUAGE
    from graphcircuits.cases.case import DEFAULT_LABELS, LABELINGS
    from graphcircuits.cases.orders import FLEETS
    from graphcircuits.compare import selection
    from graphcircuits.drawing.library import SUFFIXES, missing_library, save_figure
    from graphcircuits.evaluation.auroc import LEVELS
    from graphcircuits.result.curve import MEASURES

    aimed = [name for name, value in (("--labels", labels), ("--level", level)) if value]
    checks.refuse(
        checks.in_range("--seeds", seeds, 1, checks.MOST_SEEDS),
        checks.in_range("--pairs", pairs, 1, checks.MOST_PAIRS),
        options.one_runner(processes, ray),
        checks.one_of("--fleet", fleet, (*FLEETS, LANGUAGE)),
        checks.one_of("--labels", labels, LABELINGS),
        checks.one_of("--level", level, LEVELS),
        checks.one_of("--by", by, MEASURES),
        checks.when(
            fleet == "natural" and aimed,
            f"{' and '.join(aimed)} would compare with a circuit, and natural subjects have none",
        ),
        checks.when(
            subjects is not None and not subjects.is_dir(),
            f"--subjects must be a folder that build wrote, got {subjects}",
        ),
        options.device_on(device, ray),
        checks.known_dtype(dtype),
        checks.writable_folders({"--out": out}),
        checks.suffix("--plot", plot, *SUFFIXES),
        [] if plot is None else missing_library("--plot"),
        checks.writable({"--markdown": markdown, "--plot": plot}),
    )
    listed = selection.usual_methods(fleet)
    if methods is not None:
        listed = tuple(options.listed_methods(methods))
    cases = cases or ("test" if subjects is None else "all")
    ids, left_out = selection.select_subjects(cases, fleet, subjects)
    checks.refuse(checks.distinct("--cases", ids))
    config = selection.BenchConfig(
        cases=tuple(ids),
        methods=listed,
        seeds=tuple(range(seeds)),
        once=() if once is None else tuple(options.listed_methods(once)),
        n_pairs=pairs,
        labels=labels or DEFAULT_LABELS,
        level=level or "head",
        by=by or "output",
        options=options.options_by_method(option or [], listed),
        certify=certify,
        device=device,
        dtype=dtype,
        subjects=None if subjects is None else str(subjects),
        split=cases if cases in selection.ALL_SELECTIONS else "",
    )
    if left_out:
        why = "no subject is shipped" if subjects is None else "no case of the corpus"
        say(f"left out, {why}: {', '.join(left_out)}", err=True)
    report = _run(config, out, fresh=fresh, processes=processes, ray=ray)
    undrawn = missing_library("the box plot")
    if report.runs and undrawn:
        say(f"no box plot: {undrawn[0]}", err=True)

    def draw(path: Path) -> None:
        save_figure(report.plot(), path)

    saved = save(
        {
            out: lambda folder: report.write(folder).values(),
            markdown: report.write_page,
            None if undrawn else out / "boxplot.svg": draw,
            plot: draw,
        }
        if report.runs
        else {}
    )
    if as_json:
        print_json(report.record())
    else:
        _show(report)
    for problem in report.problems():
        say(problem, err=True)
    if report.failures:
        say(f"{len(report.runs)} of {config.n_runs} results are in {out}", err=True)
    saved.tell(quiet=as_json)
    if report.failures:
        raise typer.Exit(1)


def _run(
    config: "BenchConfig", out: Path, *, fresh: bool, processes: int, ray: str | None
) -> "Report":
    """Run the bench with a progress bar."""
    from graphcircuits.compare.bench import finished
    from graphcircuits.compare.runs import BenchRun, Failure
    from graphcircuits.jobs.runner import runner_of

    stored = 0
    with (
        interruptible(
            lambda: (
                f"{stored} of {config.n_runs} results are kept in {out}; the same command"
                f"{' without --fresh' if fresh else ''} goes on from there."
            )
        ),
        late_progress() as bar,
        closing(runner_of(processes, ray)) as runner,
    ):
        overall = bar.add_task("bench", total=config.n_runs)
        current = bar.add_task("this run", total=1, visible=False)

        def heard(outcome: BenchRun | Failure) -> None:
            nonlocal stored
            stored += isinstance(outcome, BenchRun)
            bar.update(current, visible=False)
            bar.update(overall, description=f"{outcome.case} {outcome.method or ''}")
            # A case that cannot be loaded takes all its runs with it.
            runs = 1 if outcome.method else config.n_runs // len(config.cases)
            reused = isinstance(outcome, BenchRun) and outcome.reused
            bar.advance(overall, runs, reused=reused)

        return finished(
            config,
            out,
            heard=heard,
            command=shlex.join(["graphcircuits", *sys.argv[1:]]),
            fresh=fresh,
            runner=runner,
            resources=options.resources_on(config.device, ray),
            retries=0 if ray is None else options.RETRIES,
            step=bar.follow(current),
        )


def _show(report: "Report") -> None:
    from graphcircuits.compare import figures

    labels = f"AUROC ({report.config.labels} labels, {report.config.level} level)"
    say(f"{report.title}, {labels if report.has_truth else 'log area'}")
    if report.worked_out:
        names = ", ".join(report.worked_out)
        say(f"labels worked out, their published lists not being at hand: {names}")
    rows = report.rows()
    columns = figures.header(rows)
    shown = [figures.cells(row) for row in rows]
    print_table(list(columns), shown, numbers=len(columns) - 1)
    for other in report.other_labels():
        say("")
        say(f"AUROC ({other.config.labels} labels, {other.config.level} level)")
        cut = [figures.cells(row)[:6] for row in other.rows()]
        print_table(list(figures.HEADER[:6]), cut, numbers=5)
    if report.config.certify:
        columns, shown = figures.CERTIFIED_HEADER, figures.certified_rows(report.certified())
        say(f"{figures.ABOUT_CERTIFIED}:")
        print_table(list(columns), shown, numbers=len(columns) - 1)
