"""`graphcircuits localize`: the circuit of a case, of a model of your own, or of your program."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import typer

from graphcircuits.commands.checks import (
    above,
    device_there,
    in_range,
    known_dtype,
    one_of,
    prompt_count,
    refuse,
    seed_range,
    suffix,
    writable,
)
from graphcircuits.commands.interrupt import deferred
from graphcircuits.commands.localize_report import conclude, tell
from graphcircuits.commands.options import method_options
from graphcircuits.commands.output import INTERRUPTED, Json, printable, save, say
from graphcircuits.commands.programs import is_program, planted, without_subject
from graphcircuits.commands.progress import late_progress
from graphcircuits.commands.subjects import (
    Device,
    Dtype,
    Model,
    TaskName,
    Words,
    is_path,
    model_prompts,
    own_pairs,
    own_subject,
    placed,
    prompt_problems,
    title_of,
)

if TYPE_CHECKING:
    from graphcircuits.circuit import Circuit
    from graphcircuits.corpus.case import Case
    from graphcircuits.subject.transformer import Transformer
    from graphcircuits.task.pairs import Pairs


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
        typer.Option(
            help="gcl (the trained predictor), exact, eap, eap-ig, eap-gp, relp, nap, acdc, "
            "sp-edge, sp-node, edge-pruning, ugs, pgexplainer or random. By default gcl on "
            "subjects of a kind where it was measured to win, and eap-ig on all others."
        ),
    ] = None,
    pairs: Annotated[
        int, typer.Option(help="Prompt pairs to draw for a case, your program or a task.")
    ] = 64,
    seed: Annotated[int, typer.Option(help="Draws those prompts and seeds the method.")] = 0,
    edges: Annotated[
        int | None,
        typer.Option(
            help="Edges of the circuit: the best ones. By default those that gcl finds likely; "
            "with other methods as few as keep 0.8 of the behaviour, or 20 where the true circuit "
            "is known."
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            help="Edges that exact and acdc test: the best by eap-ig; the others rank below them. "
            "By default all, one run each, which takes long on large graphs."
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option of the method, NAME=VALUE; may be given several times."),
    ] = None,
    refine: Annotated[
        float | None,
        typer.Option(
            help="Refine the scores for this number of seconds: gradient steps that make the best "
            "edges more faithful on these prompts. Ctrl-C stops early and keeps the result so far."
        ),
    ] = None,
    refine_steps: Annotated[
        int | None, typer.Option(help="Refine for this number of steps, not for a time.")
    ] = None,
    refine_checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="A .safetensors file for its progress: the same command continues from it."
        ),
    ] = None,
    fleet: Annotated[
        str,
        typer.Option(
            help="Which subject of the case: planted, public or natural. The true circuit of a "
            "natural one is not known."
        ),
    ] = "planted",
    architecture: Annotated[
        str | None,
        typer.Option(
            help="Architecture of the subject, such as llama. By default plain, or the only one."
        ),
    ] = None,
    model: Model = None,
    task: TaskName = None,
    pairs_file: Annotated[
        Path | None,
        typer.Option(
            help="Read the prompt pairs from this file: .csv or .jsonl, with token ids. Without it "
            "a program draws its own."
        ),
    ] = None,
    words: Words = False,
    vocab: Annotated[
        str | None,
        typer.Option(help="Tokens of the program. By default the subject's; others are refused."),
    ] = None,
    max_seq_len: Annotated[
        int | None,
        typer.Option(
            help="Longest input of the program, BOS counted. By default the subject's; another "
            "length is refused."
        ),
    ] = None,
    causal: Annotated[
        bool, typer.Option("--causal", help="Refuse a subject whose attention is not causal.")
    ] = False,
    level: Annotated[str, typer.Option(help="AUROC by head, or with q, k, v apart: qkv.")] = "head",
    out: Annotated[
        Path | None,
        typer.Option(help="Write all scores: .json (as EAP-IG and MIB), .csv, .dot, .safetensors."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a page to look at it: the circuit, how faithful it is, attention on some "
            "prompts, and the true circuit where it is known: .html."
        ),
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Rank the edges of a transformer by how likely they are in the circuit of a task.

    It then measures how much of the behaviour the circuit keeps when all other edges are
    corrupted, on the prompts it was found on and on fresh ones. Where the true circuit is known
    (for a case or for your own program) the ranking is compared with it.
    """
    import warnings
    from dataclasses import replace

    from graphcircuits import methods
    from graphcircuits.compare.evaluate import LEVELS
    from graphcircuits.compare.proposal import fresh_seed
    from graphcircuits.corpus.architectures import ARCHITECTURES
    from graphcircuits.fleets.recipes import FLEETS
    from graphcircuits.result import SUFFIXES

    refuse(
        prompt_count("--pairs", pairs),
        seed_range(seed),
        one_of("--level", level, LEVELS),
        in_range("--edges", edges, 1),
        in_range("--top", top, 1),
        _untested(method, top),
        _refining(refine, refine_steps, refine_checkpoint),
        suffix("--out", out, *SUFFIXES),
        suffix("--html", html, ".html", ".htm"),
        device_there(device),
        known_dtype(dtype),
        writable(
            {"--out": out, "--html": html, "--refine-checkpoint": refine_checkpoint},
            read=[None if model is None else Path(model), pairs_file],
        ),
        one_of("--fleet", fleet, FLEETS),
        [] if architecture is None else one_of("--architecture", architecture, [*ARCHITECTURES]),
        _misplaced(case, model, vocab, max_seq_len, causal),
        _no_choice(model, fleet, architecture),
        prompt_problems(case, model, task=task, pairs_file=pairs_file, words=words),
    )
    if method is not None:
        method_options(method, option or [])  # before anything is loaded
    own = None
    if case is not None and model is not None:
        own, transformer = planted(
            case, Path(model), vocab=vocab, max_seq_len=max_seq_len, causal=causal
        )
        prompts = (
            own.pairs(pairs, seed=seed)
            if pairs_file is None
            else own_pairs(pairs_file, model, transformer, words=words)
        )
        truth, title, about = _truth(own, transformer), own.id, printable(own.task)
    elif model is not None:
        transformer, truth = own_subject(model, device, dtype)
        prompts, about = model_prompts(
            model,
            transformer,
            task=task,
            pairs_file=pairs_file,
            words=words,
            n=pairs,
            seed=seed,
        )
        title = title_of(model)
    else:
        chosen = _Chosen(fleet, architecture)
        transformer, prompts, truth, title, about = _given(case, chosen, pairs, seed, pairs_file)
    transformer = placed(transformer, device, dtype)
    drawn = pairs_file is None
    with late_progress() as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", methods.BeyondTraining)  # the notes below say it
        step = bar.add_task(f"choosing a method for {title}", total=None)
        choice = method or methods.default_method(transformer, prompts, seed=seed)
        name = choice if isinstance(choice, str) else choice.method
        options = method_options(name, option or []) | ({} if top is None else {"top": top})

        bar.update(step, description=f"{name} on {title}")
        with deferred() as interruption:

            def progress(done: int, total: int) -> None:
                bar.update(step, completed=done, total=total)
                interruption.check()

            result = methods.localize(
                transformer,
                prompts,
                choice,
                seed=seed,
                progress=progress,
                refine_seconds=refine,
                refine_steps=refine_steps,
                refine_checkpoint=refine_checkpoint,
                **options,
            )
            if refine is None and refine_steps is None:
                interruption.check()
        bar.remove_task(step)
        bar.add_task(f"faithfulness of {name} on {title}", total=None)
        found = conclude(
            replace(result, subject=title, task=about),
            transformer,
            prompts,
            edges=edges,
            truth=truth,
            level=level,
            fresh=_drawn(own or case, task, transformer, pairs, fresh_seed(seed))
            if drawn
            else None,
            drawn=seed if drawn else None,
            kept=html is not None or _keeps_curve(out, transformer),
        )
    saved = save(
        {
            out: lambda path: found.result.save(path, circuit=found.circuit),
            html: lambda path: found.result.show(
                path,
                circuit=found.circuit,
                truth=truth,
                notes=None if truth is None else _variables(own or case),
            ),
        }
    )
    tell(found, as_json=as_json)
    saved.tell(quiet=as_json)
    if interruption.asked:
        _say_cut_short(refine_checkpoint)


def _say_cut_short(checkpoint: Path | None) -> NoReturn:
    """After Ctrl-C: what there is stands for what was reached, and how to go on."""
    how = (
        "with --refine-checkpoint FILE another time, the same command would go on from there."
        if checkpoint is None
        else f"the same command goes on from {checkpoint}."
    )
    say(f"interrupted: the scores are as far as they were refined; {how}", err=True)
    raise typer.Exit(INTERRUPTED)


def _untested(method: str | None, top: int | None) -> list[str]:
    """`--top` where nothing can be left out."""
    from graphcircuits.methods import METHODS, options_of

    if top is None or method in [name for name, one in METHODS.items() if "top" in options_of(one)]:
        return []
    got = "none" if method is None else method
    return [f"--top goes with methods that test edge by edge: --method exact or acdc, got {got}"]


def _refining(seconds: float | None, steps: int | None, checkpoint: Path | None) -> list[str]:
    """How long to refine, and where to keep it."""
    both = seconds is not None and steps is not None
    neither = seconds is None and steps is None and checkpoint is not None
    return [
        *([] if seconds is None else above("--refine", seconds, 0)),
        *in_range("--refine-steps", steps, 1),
        *suffix("--refine-checkpoint", checkpoint, ".safetensors"),
        *(["give --refine (seconds) or --refine-steps, not both"] if both else []),
        *(["--refine-checkpoint goes with --refine or --refine-steps"] if neither else []),
    ]


def _drawn(
    given: "str | Case | None", task: str | None, transformer: "Transformer", n: int, seed: int
) -> "Pairs":
    """Prompts of a case, a program's or one of the corpus, or of a task."""
    if given is None:
        from graphcircuits import tasks

        assert task is not None
        return tasks.find(task)(transformer.tokenizer, n=n, seed=seed)
    from graphcircuits.corpus import load_case

    case = load_case(given) if isinstance(given, str) else given
    return case.pairs(n, seed=seed)


def _keeps_curve(out: Path | None, transformer: "Transformer") -> bool:
    """Whether the file is one that is looked at later, and its curve takes no time to speak of."""
    from graphcircuits.compare.proposal import LARGE

    small = transformer.graph.n_edges < LARGE
    return small and out is not None and out.suffix in (".json", ".safetensors")


def _variables(given: "str | Case | None") -> dict[str, str] | None:
    """What components compute, where a program says so."""
    from graphcircuits.corpus import load_case

    case = load_case(given) if isinstance(given, str) else given
    return None if case is None else {k: printable(v) for k, v in case.variables.items()}


def _misplaced(
    case: str | None,
    model: str | None,
    vocab: str | None,
    max_seq_len: int | None,
    causal: bool,
) -> list[str]:
    """Words that do not go together."""
    if case is None or model is None:
        typed = vocab is not None or max_seq_len is not None or causal
        problem = "--vocab, --max-seq-len and --causal go with a program of your own and --subject"
        return [*([problem] if typed else []), *([] if case is None else without_subject(case))]
    if not is_program(case):
        return [f"{_CHOICE}; got both {case} and {model}"]
    return []


_CHOICE = (
    "give a case, such as graphcircuits localize ib-3, or your own model with --model and --task "
    "or --pairs-file"
)


class _Chosen(NamedTuple):
    """Which of a case's subjects is meant."""

    fleet: str
    architecture: str | None


def _no_choice(model: str | None, fleet: str, architecture: str | None) -> list[str]:
    """A choice among a case's subjects, beside a model."""
    if model is None or (fleet == "planted" and architecture is None):
        return []
    return ["--fleet and --architecture choose among the subjects of a case, not with --model"]


def _truth(case: "Case", subject: "Transformer") -> "Circuit | None":
    """The circuit that the subject was trained to have, in its own graph."""
    return None if subject.fleet == "natural" else case.labels(graph=subject.graph)


def _given(
    case: str | None, chosen: _Chosen, n_pairs: int, seed: int, pairs_file: Path | None
) -> tuple["Transformer", "Pairs", "Circuit | None", str, str]:
    """The subject of a case, its prompts and true circuit, and what to call subject and task."""
    from dataclasses import replace

    from graphcircuits.corpus import load_case

    if case is None:
        raise ValueError(f"{_CHOICE}; got neither.")
    if pairs_file is not None:
        raise ValueError("a case draws its own prompts; --pairs-file goes with --model.")
    if is_path(case):
        raise ValueError(
            f"{case} is a path, not a case; give it as --model {case}, with --task or --pairs-file."
        )
    loaded = load_case(case)
    subject = loaded.subject(*chosen)
    truth = _truth(loaded, subject)
    title = replace(loaded.shipped(*chosen), case=loaded.id).id
    return subject, loaded.pairs(n_pairs, seed=seed), truth, title, loaded.task
