"""`python -m lab.paper sweep`: the paper's table, from cross-validation to held-out tests."""

import shlex
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphcircuits.commands.checks import in_range, one_of, refuse, writable_folders
from graphcircuits.commands.options import RETRIES, Device, Ray, device_on, one_runner
from graphcircuits.commands.output import INTERRUPTED, Json, print_json, print_table, printable, say
from graphcircuits.commands.progress import Progress, late_progress

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from graphcircuits.jobs.runner import Runner
    from lab.paper.configurations import SweepConfig
    from lab.paper.sweep import Means, Sweep

MOST_STACKED = 1024
STACKED_ON_GPU = 16
PRECISIONS = ("float32", "bfloat16")
COLUMNS = ("configuration", "trained", "eligible", "score", "step", "setting", "refits", "median")


class WithTable(Progress):
    """Counts under a table, once there is one."""

    _above: "Table | None" = None

    def show_above(self, table: "Table") -> None:
        """Draw this above the bars."""
        self._above = table

    def get_renderables(self) -> "Iterable[RenderableType]":
        """What is drawn on a terminal."""
        if self._above is not None:
            yield self._above
        yield from super().get_renderables()


def sweep(
    config: Annotated[
        str,
        typer.Argument(
            help="A TOML file, or the name of one that ships: paper, paper-pool, paper-invariant, "
            "interpbench-pool, its controls paper-apart, paper-public, paper-labels and paper-raw, "
            "paper-align-1, paper-align-2, paper-align-3, settings, or smoke, which takes a minute."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the trainings and the table; sweep-CONFIG if left out."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Only these of the configurations, with commas between.")
    ] = None,
    phase: Annotated[
        str,
        typer.Option(
            help="cross-validation alone; refit: choose among the settings that are finished, "
            "whatever is missing, and train no others; or all."
        ),
    ] = "all",
    minutes: Annotated[
        float | None,
        typer.Option(help="Start no training after this many minutes; 0 only reports."),
    ] = None,
    device: Device = "cpu",
    stack: Annotated[
        int | None,
        typer.Option(help="Trainings of one shape side by side; 1, or 16 on a GPU, if left out."),
    ] = None,
    precision: Annotated[str, typer.Option(help="float32, or bfloat16 where it can be.")] = (
        "float32"
    ),
    processes: Annotated[
        int, typer.Option(help="Processes that train side by side, with one thread each.")
    ] = 1,
    ray: Ray = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what there is to train, and end.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete what the folder holds, and start anew.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train configurations x settings x folds, choose, train the choices with several seeds, test.

    Trainings that are in the folder are kept: a sweep that was stopped, killed or out of disk goes
    on when the command is given again. What ran out of memory is recorded, counted as not eligible,
    and tried again then. Exit code 1 if something is missing or failed.
    """
    from graphcircuits.jobs.runner import runner_of
    from lab.paper.configurations import load_sweep
    from lab.paper.sweep import PHASES, Means, Sweep, resources_of
    from lab.paper.sweep_plan import plan_sweep
    from lab.paper.sweep_results import write_results
    from lab.paper.sweep_store import SweepStore

    if stack is None:
        stack = STACKED_ON_GPU if device.startswith("cuda") else 1
    refuse(
        one_of("--phase", phase, PHASES),
        in_range("--minutes", minutes, 0),
        in_range("--stack", stack, 1, MOST_STACKED),
        one_runner(processes, ray),
        one_of("--precision", precision, PRECISIONS),
        device_on(device, ray),
        writable_folders({"--out": out}),
        ["--dry-run changes nothing, and --fresh deletes; give one"] if dry_run and fresh else [],
    )
    settings = load_sweep(config)
    names = _names(only, settings)
    folder = out or Path(f"sweep-{Path(config).stem}")
    plan = plan_sweep(settings, precision=precision)
    if plan.left_out:
        ids = ", ".join(plan.left_out)
        say(
            f"left out, no {settings.fleet} subject to learn from: {ids}; what `graphcircuits "
            "build` made of them is taken from the folder that the sweep's file names as subjects",
            err=True,
        )
    command = ["python", "-m", "lab.paper", "sweep", config]
    command += [] if precision == "float32" else ["--precision", precision]
    store = SweepStore(folder, shlex.join(command))
    if dry_run:
        store.check(plan)
        _list_plan(Sweep(plan, store), names, stack, as_json=as_json)
        return
    with store.held():
        if fresh:
            store.clear()
        store.open(plan)
        made = Sweep(plan, store)
        means = Means(
            device=device,
            stack=stack,
            retries=0 if ray is None else RETRIES,
            resources=resources_of(device, processes, ray=ray is not None),
        )
        with closing(runner_of(processes, ray)) as runner:
            _run(made, runner, means, names, phase, minutes)
        written = write_results(made)
    _report(made, names, phase, as_json=as_json)
    for path in () if as_json else written:
        say(f"wrote {path}")
    left = made.left(phase, names)
    if left:
        say(f"{left} trainings are missing; the same command goes on with them", err=True)
    if left or made.failed:
        raise typer.Exit(1)


def _names(only: str | None, config: "SweepConfig") -> list[str]:
    if only is None:
        return list(config.names)
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in config.names]
    if unknown or not names:
        raise ValueError(
            f"--only must name configurations of the sweep ({', '.join(config.names)}), got "
            f"{', '.join(unknown) or 'none'}."
        )
    return names


def _list_plan(made: "Sweep", names: list[str], stack: int, *, as_json: bool) -> None:
    """What there is to train, and what is there."""
    from lab.paper.sweep_plan import bundles

    plan, rows = made.plan, []
    for name in names:
        jobs = made.cross_validation(name)
        rows.append(
            {
                "configuration": name,
                "settings": len(plan.config.chosen_settings(name)),
                "folds": len(plan.config.folds),
                "cross_validations": len(jobs),
                "finished": made.finished(jobs),
                "bundles": len(bundles(jobs, stack)),
                "refits": plan.config.seeds,
            }
        )
    total = sum(row["cross_validations"] + row["refits"] for row in rows)
    if as_json:
        print_json(
            {
                "configurations": rows,
                "trainings": total,
                "left": made.left("all", names),
                "pool": [case.id for case in plan.pool],
                "left_out": list(plan.left_out),
                "tests": list(plan.tests),
            }
        )
        return
    columns = [name.replace("_", "-") for name in rows[0]]
    print_table(columns, [[str(x) for x in row.values()] for row in rows], numbers=len(columns) - 1)
    say(
        f"{total} trainings, {made.left('all', names)} of them left; {len(plan.pool)} cases to "
        f"learn from, {len(plan.tests)} held-out subjects"
    )


def _run(
    made: "Sweep",
    runner: "Runner",
    means: "Means",
    names: list[str],
    phase: str,
    minutes: float | None,
) -> None:
    """Train, with a table above the bar that is kept up, or a line per bundle in a pipe."""
    import time

    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    count, total = 0, made.left(phase, names)
    try:
        with late_progress(WithTable) as bar:
            task = bar.add_task("trainings", total=total)
            if bar.on_terminal:
                bar.show_above(_table(made, names, ""))
            for one in made.run(runner, means, phase=phase, only=names, deadline=deadline):
                count += 1
                if one.failed is None and one.number + 1 < one.together:
                    continue  # the others that were side by side with it are next
                bar.update(task, completed=total - made.left(phase, names))
                told = f"{one.id}: " + (
                    f"failed, {one.failed}" if one.failed else f"{one.together} done"
                )
                if not bar.on_terminal:
                    bar.say(f"{told}; {bar.line()}")
                else:
                    bar.show_above(_table(made, names, told))
    except KeyboardInterrupt:
        say(
            f"interrupted: {count} more trainings are kept in {made.store.folder}; the same "
            "command goes on from there.",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    except OSError:
        say(f"{count} more trainings are kept; the same command goes on from there.", err=True)
        raise


def _table(made: "Sweep", names: list[str], caption: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, caption=printable(caption), caption_justify="left")
    for place, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if place in (0, 5) else "right")
    for name in names:
        table.add_row(*map(printable, _cells(made, name)))
    return table


def _cells(made: "Sweep", name: str) -> list[str]:
    from lab.paper.sweep_results import held_out_median

    jobs, chosen = made.cross_validation(name), made.selection(name)
    trained = f"{made.finished(jobs)}/{len(jobs)}"
    whole = len(made.plan.config.grid_settings())
    if chosen is None:
        return [name, trained, f"0/{whole}", "", "", "", "", ""]
    refits, median = len(made.refitted(name)), held_out_median(made, name)
    return [
        name,
        trained,
        f"{chosen.eligible}/{whole}",
        f"{chosen.score:.4f}",
        str(chosen.step),
        chosen.setting,
        f"{refits}/{made.plan.config.seeds}",
        "" if median is None else f"{median:.3f}",
    ]


def _report(made: "Sweep", names: list[str], phase: str, *, as_json: bool) -> None:
    from dataclasses import asdict

    from lab.paper.sweep_results import rows_of

    failures = [{"id": id, "why": why} for id, why in made.failed.items()]
    if as_json:
        print_json(
            {
                "folder": str(made.store.folder),
                "rows": [asdict(row) for row in rows_of(made) if row.configuration in names],
                "left": made.left(phase, names),
                "failed": failures,
                "left_out": list(made.plan.left_out),
            }
        )
        return
    print_table(list(COLUMNS), [_cells(made, name) for name in names])
    for failure in failures:
        say(f"failed: {failure['id']}: {failure['why']}", err=True)
