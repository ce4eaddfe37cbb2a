"""`graphcircuits evaluate`: how faithful the circuits of results are, on prompts they never saw."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphcircuits.commands import checks, options
from graphcircuits.commands.inputs import SubjectWords
from graphcircuits.commands.options import flag
from graphcircuits.commands.output import Json, print_json, print_table, save, say
from graphcircuits.commands.programs import is_case, split_name
from graphcircuits.commands.progress import late_progress

if TYPE_CHECKING:
    from graphcircuits.evaluation.curves import Evaluation
    from graphcircuits.result.result import Result

SIZES = ("log", "mib", "both")


def evaluate(
    results: Annotated[
        list[str],
        typer.Argument(
            help="Files that localize wrote with --out, or of EAP-IG or MIB: .json, .pt, "
            ".safetensors. Among them the case they are of, such as ib-3, or your program as "
            "path/to/file.py:name with --model. Without either, the case that the files name.",
            metavar="RESULT...",
        ),
    ],
    model: options.Model = None,
    task: options.TaskName = None,
    pairs_file: options.PairsFile = None,
    words: options.Words = False,
    pairs: options.Draw = 64,
    seed: Annotated[
        int | None,
        flag(
            "Draws those prompts. By default 1000 above that of the results, so that the "
            "prompts are others than those they were found on."
        ),
    ] = None,
    by: options.By = None,
    sizes: Annotated[
        str,
        flag(
            "log (from one edge to all in equal ratios), mib (ten parts of all edges, by the "
            "loss, as on MIB's leaderboard), both, or numbers of edges with commas between."
        ),
    ] = "both",
    device: options.Device = "cpu",
    dtype: options.Dtype = None,
    out: Annotated[Path | None, flag("Write the curves: .json, .csv, .md.")] = None,
    plot: Annotated[
        Path | None, flag("Draw the curves: .svg, .png, .pdf. Needs the extra 'plot'.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say how much of the behaviour the best edges of results keep, all other edges corrupted.

    Prompts are drawn afresh. Faithfulness is 1 where the circuit alone does as the whole subject,
    0 where it does as badly as with every edge corrupted. Results of one subject are compared side
    by side: how many of the best edges it takes to keep 0.8, 0.9 and 0.95 and the area above the
    curve over log sizes (smaller is better), and MIB's areas: CPR, under the curve (larger is
    better), and CMD, its distance from 1 (smaller is better).
    """
    import warnings
    from dataclasses import replace

    from graphcircuits.drawing.library import SUFFIXES as PLOTS
    from graphcircuits.drawing.library import missing_library
    from graphcircuits.evaluation import curves
    from graphcircuits.result.curve import MEASURES
    from graphcircuits.result.result import Result
    from graphcircuits.task.accuracy import LEAST_RIGHT, OftenWrong, wrong_text

    subjects = [x for x in results if is_case(x) or split_name(x)[0].suffix == ".py"]
    files = [text for text in results if text not in subjects]
    given = SubjectWords(
        case=subjects[0] if subjects else None,
        model=model,
        task=task,
        pairs_file=pairs_file,
        words=words,
        n_pairs=pairs,
        seed=0 if seed is None else seed,
        device=device,
        dtype=dtype,
    )
    checks.refuse(
        checks.distinct("RESULT", files),
        checks.when(
            not files, "give at least one result, such as a file that localize wrote with --out"
        ),
        checks.when(len(subjects) > 1, f"give one case or program, got {', '.join(subjects)}"),
        checks.when(pairs_file is not None and model is None, "--pairs-file goes with --model"),
        given.problems(),
        checks.one_of("--by", by, MEASURES),
        checks.suffix("--out", out, *curves.SUFFIXES),
        checks.suffix("--plot", plot, *PLOTS),
        [] if plot is None else missing_library("--plot"),
        checks.writable({"--out": out, "--plot": plot}, read=[*map(Path, files), *given.files]),
    )
    counts = _counts(sizes)
    loaded = [Result.load(file) for file in files]
    drawn_by, note = curves.fresh_draw(loaded, seed)
    given = replace(given, seed=drawn_by)
    if given.case is None and model is None:
        given = replace(given, case=named_case(loaded))
    with late_progress() as bar:
        step = bar.add_task("loading", total=len(files))
        inputs = given.load()
        bar.update(step, description="faithfulness")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OftenWrong)  # said below
            evaluation = curves.evaluate(
                inputs.subject,
                inputs.pairs,
                dict(zip(curves.file_names(files), loaded, strict=True)),
                by=by,
                sizes=counts,
                progress=bar.follow(step),
            )
    if pairs_file is None:
        evaluation = replace(evaluation, seed=drawn_by, notes=(note, *evaluation.notes))
    if evaluation.right is not None and evaluation.right < LEAST_RIGHT:
        say(f"warning: {wrong_text(evaluation.right, evaluation.n_pairs)}", err=True)
    saved = save({out: evaluation.save, plot: evaluation.plot})
    if as_json:
        print_json(evaluation.record())
    else:
        _show(evaluation)
    saved.tell(quiet=as_json)


# What was typed


def _counts(sizes: str) -> str | list[int]:
    if sizes in SIZES:
        return sizes
    numbers = sizes.replace(" ", "").split(",")
    if not all(text.isascii() and text.isdecimal() and len(text) < 16 for text in numbers):
        raise ValueError(
            f"--sizes must be {', '.join(SIZES)} or numbers of edges with commas between, "
            f"got {sizes!r}."
        )
    return [int(text) for text in numbers]


def named_case(results: "list[Result]") -> str:
    """The case that all files name as their subject."""
    names = {result.subject for result in results}
    if len(names) == 1 and is_case(name := names.pop()):
        return name
    raise ValueError(
        "the files do not say which case they are of: give it, such as ib-3, or --model with "
        "--task or --pairs-file."
    )


def _show(evaluation: "Evaluation") -> None:
    say(": ".join(text for text in (evaluation.subject, evaluation.task) if text))
    right = evaluation.right
    share = "" if right is None else f", the subject is right on {right:.0%} of them"
    say(f"{evaluation.n_pairs} pairs{share}")
    for note in evaluation.notes:
        say(note)
    for grid in evaluation.grids:
        say("")
        say(evaluation.heading(grid))
        header, cells = evaluation.rows(grid)
        print_table(header, cells, numbers=len(header))
    for sentence in evaluation.circuits():
        say(sentence)
