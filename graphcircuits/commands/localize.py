"""`graphcircuits localize`: the circuit of a case, of a model of your own, or of your program.

`inputs` loads what the words name, `graphcircuits.methods` scores the edges, and
`graphcircuits.evaluation.localize` proposes the circuit. Here are the words and what is printed.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcircuits.commands import checks, options
from graphcircuits.commands.inputs import Inputs, SubjectWords
from graphcircuits.commands.options import flag
from graphcircuits.commands.output import INTERRUPTED, Json, print_json, print_table, save, say
from graphcircuits.commands.progress import deferred, interruptible, late_progress

if TYPE_CHECKING:
    from graphcircuits.evaluation.localize import Conclusion
    from graphcircuits.methods import Method

ROWS = 20
"""Of the table, where nobody asked for more edges."""


def localize(
    case: Annotated[
        str | None,
        typer.Argument(
            help="A case such as ib-3. With --model: your own program as path/to/file.py:name, or "
            "nothing."
        ),
    ] = None,
    method: Annotated[
        str | None,
        flag(
            "gcl (the trained predictor), exact, eap, eap-ig, ig-own, eap-gp, relp, nap, "
            "acdc, sp-edge, sp-node, edge-pruning, ugs, mattr, pgexplainer, random, or a function "
            "of your own as path/to/file.py:name. By default gcl on models like those it was "
            "trained on, and eap-ig on all others."
        ),
    ] = None,
    pairs: options.Draw = 64,
    seed: Annotated[int, flag("Draws those prompts and seeds the method.")] = 0,
    edges: Annotated[
        int | None,
        flag(
            "Number of edges in the circuit: the best ones. By default the smallest circuit "
            "found that keeps as much of the model's output as --keep says, with every method."
        ),
    ] = None,
    keep: Annotated[
        float,
        flag("How much of the model's own output the circuit keeps where --edges is left out."),
    ] = 0.9,
    top: Annotated[
        int | None,
        flag(
            "Edges that exact and acdc test: the best by eap-ig; the others rank below them. "
            "By default all, one run each, which takes long on large graphs."
        ),
    ] = None,
    option: Annotated[
        list[str] | None, flag("An option of the method, NAME=VALUE; may be given several times.")
    ] = None,
    refine: Annotated[
        float | None,
        flag(
            "Refine the scores for this number of seconds: gradient steps that make the best "
            "edges more faithful on these prompts. Ctrl-C stops early and keeps the result so far."
        ),
    ] = None,
    refine_steps: Annotated[
        int | None, flag("Refine for this number of steps, not for a time.")
    ] = None,
    fleet: Annotated[
        str,
        flag(
            "Which subject of the case: planted, public or natural. The true circuit of a "
            "natural one is not known."
        ),
    ] = "planted",
    architecture: Annotated[
        str | None,
        flag("Architecture of the subject, such as llama. By default plain, or the only one."),
    ] = None,
    model: options.Model = None,
    task: options.TaskName = None,
    pairs_file: options.PairsFile = None,
    words: options.Words = False,
    hold_out: Annotated[
        float | None,
        flag(
            "Hold back this share of the pairs of a file, such as 0.25, and say how much of "
            "the behaviour the circuit keeps on them."
        ),
    ] = None,
    only_right: Annotated[
        bool, flag("Leave out pairs that the model answers wrongly.", "--only-right")
    ] = False,
    level: Annotated[str, flag("AUROC by head, or with q, k, v apart: qkv.")] = "head",
    out: Annotated[
        Path | None, flag("Write all scores: .json (as EAP-IG and MIB), .csv, .dot, .safetensors.")
    ] = None,
    html: Annotated[
        Path | None,
        flag(
            "Write a page to look at it: the circuit, how faithful it is, attention on some "
            "prompts, and the true circuit where it is known: .html."
        ),
    ] = None,
    device: options.Device = "cpu",
    dtype: options.Dtype = None,
    as_json: Json = False,
) -> None:
    """Rank the edges of a transformer by how likely they are in the circuit of a task.

    The circuit is the smallest found, whatever the method: the fewest of the best edges that keep
    most of the model's own output, all else corrupted, without those it can do without. How much it
    keeps is measured on the prompts it was found on, on some that were held back and on fresh ones,
    with an interval. Where the true circuit is known, that of a case or of your own program, the
    ranking is compared with it.
    """
    from graphcircuits.cases.architectures import ARCHITECTURES
    from graphcircuits.evaluation.auroc import LEVELS
    from graphcircuits.evaluation.proposal import LARGE
    from graphcircuits.fleets.recipes import FLEETS
    from graphcircuits.methods import METHODS
    from graphcircuits.result.result import SUFFIXES
    from graphcircuits.task.accuracy import LEAST_RIGHT, wrong_text

    given = SubjectWords(
        case=case,
        model=model,
        fleet=fleet,
        architecture=architecture,
        task=task,
        pairs_file=pairs_file,
        words=words,
        n_pairs=pairs,
        seed=seed,
        hold_out=hold_out,
        only_right=only_right,
        device=device,
        dtype=dtype,
    )
    checks.refuse(
        checks.one_of("--level", level, LEVELS),
        checks.in_range("--edges", edges, 1),
        checks.in_range("--keep", keep, 0.01, 1),
        checks.in_range("--top", top, 1),
        checks.when(
            top is not None
            and method not in [name for name, one in METHODS.items() if "top" in one.options],
            "--top goes with methods that test edge by edge: --method exact or acdc, got "
            f"{method or 'none'}",
        ),
        checks.above("--refine", refine, 0),
        checks.in_range("--refine-steps", refine_steps, 1),
        checks.when(
            refine is not None and refine_steps is not None,
            "give --refine (seconds) or --refine-steps, not both",
        ),
        checks.suffix("--out", out, *SUFFIXES),
        checks.suffix("--html", html, ".html", ".htm"),
        checks.writable({"--out": out, "--html": html}, read=given.files),
        checks.one_of("--fleet", fleet, FLEETS),
        checks.one_of("--architecture", architecture, [*ARCHITECTURES]),
        given.problems(),
        checks.when(
            pairs_file is not None and model is None,
            "a case draws its own prompts; --pairs-file goes with --model",
        ),
    )
    if method is None and "predictor" in options.parse_options(option or []):
        method = "gcl"
    named = None if method is None else options.named_method(method)
    if named is not None:
        options.method_options(named, option or [])  # before anything is loaded
    length = {"seconds": refine, "steps": refine_steps}
    unwritten = ", ".join(str(file) for file in (out, html) if file is not None)
    missing = f"; not written: {unwritten}" if unwritten else ""
    with interruptible(lambda: f"there is no result yet{missing}."):
        inputs = given.load(fresh=True)
        small = inputs.subject.graph.n_edges < LARGE  # its curve takes no time to speak of
        looked_at = out is not None and out.suffix in (".json", ".safetensors")
        conclusion, cut_short = _run(
            inputs,
            named,
            option or [],
            top=top,
            seed=seed,
            refining=None if refine is None and refine_steps is None else length,
            edges=edges,
            keep=keep,
            level=level,
            drawn_by=seed if pairs_file is None else None,
            with_curve=html is not None or (small and looked_at),
        )
    result, truth = conclusion.result, inputs.truth
    saved = save(
        {
            out: lambda path: result.save(path),
            html: lambda path: result.show(
                path, truth=truth, notes=inputs.variables, roles=inputs.roles
            ),
        }
    )
    if as_json:
        print_json(conclusion.record())
    else:
        best = conclusion.proposal.best
        _show(conclusion, min(ROWS, best) if edges is None else best)
    for text in conclusion.warnings:
        say(f"warning: {text}", err=True)
    if conclusion.right is not None and conclusion.right < LEAST_RIGHT:
        say(f"warning: {wrong_text(conclusion.right, conclusion.n_pairs)}", err=True)
    saved.tell(quiet=as_json)
    if cut_short:
        say("interrupted: the scores are as far as they were refined.", err=True)
        raise typer.Exit(INTERRUPTED)


def _run(
    inputs: Inputs,
    method: "str | Method | None",
    option: list[str],
    *,
    top: int | None,
    seed: int,
    refining: dict[str, Any] | None,
    drawn_by: int | None,
    **judged: Any,
) -> tuple["Conclusion", bool]:
    """Score the edges, refine and conclude; whether refining was cut short by Ctrl-C."""
    import warnings

    from graphcircuits import methods
    from graphcircuits.evaluation.localize import conclude, refine

    subject, prompts = inputs.subject, inputs.pairs
    with late_progress() as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", methods.BeyondTraining)  # the notes say it
        step = bar.add_task(f"choosing a method for {subject.name}", total=None)
        # Without a name the options are those of the choice, and are read after it.
        given = {} if method is None else options.method_options(method, option)
        given |= {} if top is None else {"top": top}
        chosen = methods.choose_method(subject, prompts, method, seed=seed, **given)
        if method is None:
            chosen = chosen.with_options(options.method_options(chosen.name, option))
        bar.update(step, description=f"{chosen.name} on {subject.name}")
        with deferred() as interruption:

            def progress(done: int, total: int) -> None:
                bar.update(step, completed=done, total=total)
                interruption.check()

            result = chosen.run(progress=progress)
            if refining is None:
                interruption.check()
            else:
                result = refine(subject, prompts, result, keep=None, progress=progress, **refining)
        bar.remove_task(step)
        step = bar.add_task(f"choosing the circuit of {subject.name}", total=None)
        conclusion = conclude(
            subject,
            prompts,
            result,
            fresh=inputs.fresh,
            truth=inputs.truth,
            kind=chosen.kind,
            notes=inputs.notes,
            seed=drawn_by,
            progress=bar.follow(step),
            **judged,
        )
    return conclusion, interruption.asked


def _show(conclusion: "Conclusion", n_rows: int) -> None:
    """Print the best edges and what there is to say of them."""
    result, proposal, truth = conclusion.result, conclusion.proposal, conclusion.truth
    say(f"{result.subject}: {result.task}" if result.task else result.subject)
    say(f"{result.method}, {conclusion.n_pairs} pairs, seed {result.seed}, {result.seconds:.2f} s")
    for note in result.notes:
        if note not in conclusion.warnings:
            say(note)
    if conclusion.right is not None:
        say(f"the subject is right on {conclusion.right:.0%} of the prompts")
    rows, likely = [], result.top_probabilities(n_rows)
    for rank, (edge, score) in enumerate(result.top(n_rows)):
        rows.append([str(rank + 1), edge, f"{score:.4g}"])
        if likely is not None:
            rows[-1].append(f"{likely[rank]:.0%}")
        if truth is not None:
            rows[-1].append("yes" if edge in truth else "")
    marks = [] if likely is None else ["probability"]
    marks += [] if truth is None else ["in the true circuit"]
    print_table(["rank", "edge", "score", *marks], rows)
    if n_rows < proposal.best:
        say(f"... and {proposal.best - n_rows:,} more, which --json and --out give")
    for sentence in proposal.sentences():
        say(sentence)
    if truth is not None:
        true_edges = len(proposal.circuit & truth.on(result.graph))
        say(f"{true_edges} of the {len(truth)} true edges are among them")
        say(f"AUROC {conclusion.auroc:.4f} ({conclusion.level} level)")
