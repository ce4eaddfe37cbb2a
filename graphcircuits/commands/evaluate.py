"""`graphcircuits evaluate`: how faithful the circuits of results are, on prompts they never saw."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphcircuits.commands.checks import (
    device_there,
    distinct,
    known_dtype,
    prompt_count,
    refuse,
    seed_range,
    suffix,
    writable,
)
from graphcircuits.commands.output import (
    Json,
    print_json,
    print_table,
    printable,
    save,
    say,
)
from graphcircuits.commands.programs import planted, program_file, without_subject
from graphcircuits.commands.progress import late_progress
from graphcircuits.commands.subjects import (
    Device,
    Dtype,
    Model,
    TaskName,
    Words,
    is_case,
    model_prompts,
    own_pairs,
    own_subject,
    placed,
    prompt_problems,
    title_of,
)

if TYPE_CHECKING:
    from graphcircuits.evaluation.curves import Evaluation
    from graphcircuits.result.result import Result
    from graphcircuits.subject.transformer import Transformer
    from graphcircuits.task.pairs import Pairs

SIZES = ("mib", "log", "both")


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
    model: Model = None,
    task: TaskName = None,
    pairs_file: Annotated[
        Path | None,
        typer.Option(help="Read the prompt pairs from this file: .csv or .jsonl, with token ids."),
    ] = None,
    words: Words = False,
    pairs: Annotated[
        int, typer.Option(help="Prompt pairs to draw of a task, a case or a program.")
    ] = 64,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Draws those prompts. By default 1000 above that of the results, so that the "
            "prompts are others than those they were found on."
        ),
    ] = None,
    sizes: Annotated[
        str,
        typer.Option(
            help="mib (ten parts of all edges, as on MIB's leaderboard), log (from one edge to all "
            "in equal ratios), both, or numbers of edges with commas between."
        ),
    ] = "both",
    device: Device = "cpu",
    dtype: Dtype = None,
    out: Annotated[Path | None, typer.Option(help="Write the curves: .json, .csv, .md.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the curves: .svg, .png, .pdf. Needs the extra 'plot'."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say how much of the behaviour the best edges of results keep, all other edges corrupted.

    Prompts are drawn afresh. Faithfulness is 1 where the circuit alone does as well as the whole
    subject, 0 where it does as badly as with every edge corrupted. Results of one subject are
    compared side by side: CPR is the area under a curve (larger is better), CMD its distance from 1
    (smaller is better).
    """
    import warnings
    from dataclasses import replace

    from graphcircuits.drawing.library import SUFFIXES as PLOTS
    from graphcircuits.drawing.library import missing_library
    from graphcircuits.evaluation import curves
    from graphcircuits.result.result import Result
    from graphcircuits.task.accuracy import LEAST_RIGHT, OftenWrong, wrong_text

    files, subjects = _sorted(results)
    refuse(
        _problems(files, subjects, model, pairs_file),
        prompt_problems(
            subjects[0] if subjects else None, model, task=task, pairs_file=pairs_file, words=words
        ),
        prompt_count("--pairs", pairs),
        [] if seed is None else seed_range(seed),
        known_dtype(dtype),
        device_there(device),
        suffix("--out", out, *curves.SUFFIXES),
        suffix("--plot", plot, *PLOTS),
        [] if plot is None else missing_library("--plot"),
        writable({"--out": out, "--plot": plot}, read=[*map(Path, files), pairs_file]),
    )
    counts = _counts(sizes)
    loaded = {file: Result.load(file) for file in files}
    subject = subjects[0] if subjects else None
    if subject is None and model is None:
        subject = _named_case(loaded)
    chosen, said = _seed(loaded, seed)
    with late_progress() as bar:
        step = bar.add_task("loading", total=len(files))
        transformer, prompts, title, about = _given(
            subject,
            model,
            task,
            pairs_file,
            words=words,
            n_pairs=pairs,
            seed=chosen,
            device=device,
            dtype=dtype,
        )
        bar.update(step, description=f"{title}: faithfulness")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OftenWrong)  # said below
            found = curves.evaluate(
                transformer,
                prompts,
                dict(zip(curves.file_names(files), loaded.values(), strict=True)),
                sizes=counts,
                progress=lambda done, total: bar.update(step, completed=done, total=total),
            )
    drawn = pairs_file is None
    notes = [*(said if drawn else []), *_others(loaded, title, about)]
    found = replace(
        found,
        subject=title,
        task=about,
        seed=chosen if drawn else None,
        notes=(*notes, *found.notes),
    )
    if found.right is not None and found.right < LEAST_RIGHT:
        say(f"warning: {wrong_text(found.right, found.n_pairs)}", err=True)
    saved = save({out: found.save, plot: found.plot})
    if as_json:
        print_json(found.record())
    else:
        _show(found)
    saved.tell(quiet=as_json)


# What was typed


def _sorted(given: list[str]) -> tuple[list[str], list[str]]:
    """Files of results, and what else stands among them: cases and programs."""
    others = [text for text in given if is_case(text) or program_file(text).suffix == ".py"]
    return [text for text in given if text not in others], others


def _problems(
    files: list[str], subjects: list[str], model: str | None, pairs_file: Path | None
) -> list[str]:
    """Words that do not go together, or of which there are too many or too few."""
    problems = distinct("RESULT", files)
    if not files:
        problems.append("give at least one result, such as a file that localize wrote with --out")
    if len(subjects) > 1:
        problems.append(f"give one case or program, got {', '.join(subjects)}")
    for subject in subjects[:1]:
        if is_case(subject) and model is not None:
            problems.append(f"give a case or --model, not both {subject} and {model}")
        if not is_case(subject) and model is None:
            problems += without_subject(subject)
    if pairs_file is not None and model is None:
        problems.append("--pairs-file goes with --model")
    return problems


def _counts(sizes: str) -> str | list[int]:
    if sizes in SIZES:
        return sizes
    parts = sizes.replace(" ", "").split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) < 16 for part in parts):
        raise ValueError(
            f"--sizes must be {', '.join(SIZES)} or numbers of edges with commas between, "
            f"got {sizes!r}."
        )
    return [int(part) for part in parts]


def _named_case(loaded: "dict[str, Result]") -> str:
    """The case that all files name as their subject."""
    named = {result.subject for result in loaded.values()}
    if len(named) == 1 and is_case(one := named.pop()):
        return one
    raise ValueError(
        "the files do not say which case they are of: give it, such as ib-3, or --model with "
        "--task or --pairs-file."
    )


def _seed(loaded: "dict[str, Result]", given: int | None) -> tuple[int, list[str]]:
    """What draws the prompts, and what that means for the results."""
    from graphcircuits.evaluation.proposal import fresh_seed

    known = sorted({result.seed for result in loaded.values() if result.seed is not None})
    used = f"the results were found with {' and '.join(map(str, known))}"
    if given is None:
        drawn = fresh_seed(max(known, default=0))
        return drawn, [f"fresh pairs, of seed {drawn}" + (f"; {used}" if known else "")]
    if given in known:
        return given, [f"these pairs may not be fresh: {used}, the seed that was given"]
    return given, [f"pairs of seed {given}" + (f"; {used}" if known else "")]


def _others(loaded: "dict[str, Result]", title: str, task: str) -> list[str]:
    """Results that name another subject or task than the one they are evaluated on."""
    notes = []
    for file, result in loaded.items():
        for noun, theirs, ours in (("subject", result.subject, title), ("task", result.task, task)):
            if theirs and ours and theirs != ours:
                notes.append(f"{file} was found for another {noun}: {theirs}")
    return notes


# What it means


def _given(
    subject: str | None,
    model: str | None,
    task: str | None,
    pairs_file: Path | None,
    *,
    words: bool,
    n_pairs: int,
    seed: int,
    device: str,
    dtype: str | None,
) -> tuple["Transformer", "Pairs", str, str]:
    """Subject, prompts, and what to call subject and task."""
    if subject is not None and is_case(subject):
        from graphcircuits.cases import load_case

        case, transformer = load_case(subject), load_case(subject).subject()
        title, about = case.id, case.task
    elif subject is not None:
        assert model is not None
        case, transformer = planted(subject, Path(model))
        title, about = case.id, printable(case.task)
    else:
        assert model is not None
        transformer, _ = own_subject(model, device, dtype)
        prompts, about = model_prompts(
            model,
            transformer,
            task=task,
            pairs_file=pairs_file,
            words=words,
            n=n_pairs,
            seed=seed,
        )
        return transformer, prompts, title_of(model), about
    transformer = placed(transformer, device, dtype)
    if pairs_file is None:
        return transformer, case.pairs(n_pairs, seed=seed), title, about
    assert model is not None
    return transformer, own_pairs(pairs_file, model, transformer, words=words), title, about


def _show(found: "Evaluation") -> None:
    from graphcircuits.evaluation.curves import GRIDS

    say(f"{found.subject}: {found.task}" if found.task else found.subject)
    right = "" if found.right is None else f", the subject is right on {found.right:.0%} of them"
    say(f"{found.n_pairs} pairs{right}")
    for note in found.notes:
        say(note)
    for grid in found.grids:
        say("")
        say(f"faithfulness, {GRIDS[grid]}")
        header, cells = found.rows(grid)
        print_table(header, cells, numbers=len(header))
    for sentence in found.circuits():
        say(sentence)
