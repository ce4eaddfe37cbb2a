"""`graphcircuits interact`: which edges act together, and how much."""

from pathlib import Path
from typing import Annotated, Any

import typer

from graphcircuits.commands import checks, options
from graphcircuits.commands.inputs import SubjectWords
from graphcircuits.commands.options import flag
from graphcircuits.commands.output import Json, print_json, print_table, save, say, write
from graphcircuits.commands.progress import late_progress

LEAST_ORDER, LARGEST_ORDER = 3, 100
"""Of a quadrature: beyond, its points cost much and are no longer exact to the last digits."""
LARGE_ERROR = 0.01
"""Share of an integral from which on its error estimate is worth a word."""


def interact(
    case: Annotated[
        str | None,
        typer.Argument(
            help="A case such as ib-13; your own model: a file or a folder; or, with --model, your "
            "own program as path/to/file.py:name, or nothing."
        ),
    ] = None,
    pairs: options.PairsArgument = None,
    model: options.Model = None,
    task: options.TaskName = None,
    reader: Annotated[
        str | None, flag("All edges into one reader, such as m1 or 'a1.h0<q>'.")
    ] = None,
    edges: Annotated[
        list[str] | None, flag("Only these edges: 'input->m1,a0.h0->m1', or given several times.")
    ] = None,
    draw: options.Draw = 32,
    seed: Annotated[int, flag("Draws those prompts.")] = 0,
    words: options.Words = False,
    top: Annotated[int, flag("Pairs of edges to list.")] = 10,
    integrals: Annotated[int, flag("Pairs of edges whose exact integral is computed as well.")] = 0,
    order: Annotated[int, flag("Order of the integral's quadrature.")] = 8,
    decay: Annotated[bool, flag("Fit how fast the local form becomes right.", "--decay")] = False,
    by_position: Annotated[
        bool, flag("With --json: the matrices at each position.", "--by-position")
    ] = False,
    html: Annotated[Path | None, flag("Write heat maps as a page.")] = None,
    svg: Annotated[Path | None, flag("Write heat maps as a picture.")] = None,
    device: options.Device = "cpu",
    dtype: options.Precision = "float64",
    as_json: Json = False,
) -> None:
    """Interactions of edges: how far their joint effect is from the sum of their single effects.

    Edges into one reader are also compared at each position of what it reads: by the definition
    (finite), its Hessian (local) and, for some pairs, the exact integral. Numbers are averages over
    prompts, and at a read over positions as well. Without --reader and --edges the edges with the
    largest single effects are paired.
    """
    from graphcircuits.interactions.report import InteractionReport
    from graphcircuits.viewer.heatmap import heat_maps
    from graphcircuits.viewer.page import page

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
    checks.refuse(
        checks.when(reader is not None and edges is not None, "give --reader or --edges, not both"),
        checks.in_range("--top", top, 1),
        checks.in_range("--integrals", integrals, 0),
        checks.in_range("--order", order, LEAST_ORDER, LARGEST_ORDER),
        checks.suffix("--html", html, ".html", ".htm"),
        checks.suffix("--svg", svg, ".svg"),
        checks.writable({"--html": html, "--svg": svg}, read=given.files),
        given.problems(draw="--draw"),
        checks.when(by_position and not as_json, "--by-position goes with --json"),
    )
    inputs = given.load()
    title, prompts = inputs.subject.name, inputs.pairs
    with late_progress() as bar:
        step = bar.add_task(f"interactions in {title}", total=None)
        report = InteractionReport.of(
            inputs.subject,
            prompts,
            reader,
            None if edges is None else [name.strip() for one in edges for name in one.split(",")],
            bar.follow(step),
        )
        if (integrals or decay) and not report.smooth:
            raise ValueError(f"--integrals and --decay do not apply. {report.remarks[0]}")
        if by_position and report.finite is None:
            raise ValueError(f"--by-position does not apply. {report.remarks[0]}")
        record = report.record(top, integrals, order, decay=decay, by_position=by_position)
    record["remarks"] += _doubts(record.get("integrals", []), order)
    record = {"subject": title, "task": prompts.task, "pairs": len(prompts), **record}
    about = f"{title}: edge interactions" + (f" at {report.reader}" if report.reader else "")
    panels = {name: x.tolist() for name, x in report.panels.items()}
    text = " ".join([prompts.task, *record["remarks"]])

    def picture() -> str:
        return heat_maps(report.labels, panels, title=about)

    saved = save(
        {
            svg: lambda path: write(path, picture()),
            html: lambda path: write(path, page(picture(), title=about, text=text)),
        }
    )
    if as_json:
        print_json(record)
    else:
        say(f"{about}, {len(prompts)} pairs of prompts")
        _print(record)
    saved.tell(quiet=as_json)


def _print(record: dict[str, Any]) -> None:
    columns = ["edge", "edge", "single", "single", "joint", "interaction", "mean |.|"]
    at_read = [name for name in ("finite", "local") if record["interactions"][0][name] is not None]
    rows = []
    for row in record["interactions"]:
        values = [*row["single"], row["joint"], row["interaction"], row["size"]]
        values += [row[name] for name in at_read]
        rows.append([*row["edges"], *(f"{value:.4g}" for value in values)])
    titles = [*columns, *(f"{name} at a position" for name in at_read)]
    print_table(titles, rows, numbers=len(titles) - 2)
    for row in record.get("integrals", []):
        say(
            f"integral of {' and '.join(row['edges'])}: {row['integral']:.6g} "
            f"(error about {row['error']:.1e}; finite {row['finite']:.6g})"
        )
    if "decay" in record:
        say(
            f"the error of the local form falls with power {record['decay']['slope']:.3f} "
            "of the message size"
        )
    for line in record["remarks"]:
        say(line)


def _doubts(integrals: list[dict[str, Any]], order: int) -> list[str]:
    """What to do about integrals whose error estimate is large."""
    shares = [row["error"] / row["size"] for row in integrals if row["size"] > 0]
    if max(shares, default=0.0) <= LARGE_ERROR:
        return []
    said = f"The error estimate is up to {max(shares):.0%} of the integral: "
    if order < LARGEST_ORDER:
        better = min(2 * order, LARGEST_ORDER)
        return [f"{said}raise --order, which is {order}, to {better} or more."]
    return [f"{said}the read is too sharp for this quadrature; rely on the finite form."]
