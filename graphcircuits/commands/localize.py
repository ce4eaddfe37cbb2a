"""`graphcircuits localize`: the circuit of a case, of a model of your own, or of your program."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphcircuits.commands.checks import (
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
from graphcircuits.commands.options import method_options
from graphcircuits.commands.output import (
    Json,
    late_progress,
    print_json,
    print_table,
    printable,
    save,
    say,
)
from graphcircuits.commands.programs import is_program, planted, without_subject
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
    from graphcircuits.result import Result
    from graphcircuits.subject.transformer import Transformer
    from graphcircuits.task.pairs import Pairs

EDGES = 20
"""Of a circuit, where neither the user nor the method says how many."""


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
            help="gcl (the trained predictor), exact, eap, eap-ig, acdc, sp-edge, sp-node, "
            "edge-pruning, pgexplainer or random. By default gcl for planted subjects, such as "
            "those of cases, and eap-ig for all others."
        ),
    ] = None,
    pairs: Annotated[
        int, typer.Option(help="Prompt pairs to draw for a case, your program or a task.")
    ] = 64,
    seed: Annotated[int, typer.Option(help="Draws those prompts and seeds the method.")] = 0,
    edges: Annotated[
        int | None,
        typer.Option(
            help="Edges of the circuit: the best ones. By default those that gcl holds for likely, "
            "and 20 with other methods."
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option of the method, NAME=VALUE; may be given several times."),
    ] = None,
    model: Model = None,
    task: TaskName = None,
    pairs_file: Annotated[
        Path | None,
        typer.Option(
            help="Its prompt pairs instead: .csv or .jsonl, with token ids. A program draws its "
            "own if left out."
        ),
    ] = None,
    words: Words = False,
    vocab: Annotated[
        str | None,
        typer.Option(help="The program's tokens: the subject's if left out, refused if others."),
    ] = None,
    max_seq_len: Annotated[
        int | None, typer.Option(help="Its longest input, with BOS: the same holds.")
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
        Path | None, typer.Option(help="Write a picture of the circuit as a page: .html.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Rank the edges of a transformer by how likely they are in the circuit of a task.

    Where the true circuit is known, that of a case or of your own program, the ranking is compared
    with it.
    """
    import warnings
    from dataclasses import replace

    from graphcircuits import methods
    from graphcircuits.compare.evaluate import LEVELS, auroc
    from graphcircuits.result import SUFFIXES

    refuse(
        prompt_count("--pairs", pairs),
        seed_range(seed),
        one_of("--level", level, LEVELS),
        in_range("--edges", edges, 1),
        suffix("--out", out, *SUFFIXES),
        suffix("--html", html, ".html", ".htm"),
        device_there(device),
        known_dtype(dtype),
        writable(
            {"--out": out, "--html": html},
            read=[None if model is None else Path(model), pairs_file],
        ),
        _misplaced(case, model, vocab, max_seq_len, causal),
        prompt_problems(case, model, task=task, pairs_file=pairs_file, words=words),
    )
    if method is not None:
        method_options(method, option or [])  # before anything is loaded
    if case is not None and model is not None:
        own, transformer = planted(
            case, Path(model), vocab=vocab, max_seq_len=max_seq_len, causal=causal
        )
        prompts = (
            own.pairs(pairs, seed=seed)
            if pairs_file is None
            else own_pairs(pairs_file, model, transformer, words=words)
        )
        truth, title, about = own.circuit, own.id, printable(own.task)
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
        transformer, prompts, truth, title, about = _given(case, pairs, seed, pairs_file)
    transformer = placed(transformer, device, dtype)
    name = methods.default_method(transformer, prompts)[0] if method is None else method
    options = method_options(name, option or [])
    with late_progress() as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", methods.BeyondTraining)  # the notes below say it
        step = bar.add_task(f"{name} on {title}", total=1)
        result = methods.localize(
            transformer,
            prompts,
            method,
            seed=seed,
            progress=lambda done, total: bar.update(step, completed=done, total=total),
            **options,
        )
    result = replace(result, subject=title, task=about)
    circuit = result.circuit(edges=_size(result, edges))
    quality = None if truth is None else auroc(result, truth, level)
    saved = save(
        {
            out: lambda path: result.save(path, circuit=circuit),
            html: lambda path: result.show(path, circuit=circuit),
        }
    )
    if as_json:
        print_json(
            {
                "subject": title,
                "task": about,
                "method": result.method,
                "options": dict(result.options),
                "notes": list(result.notes),
                "seed": seed,
                "pairs": len(prompts),
                "seconds": result.seconds,
                "auroc": quality,
                "level": level,
                "circuit": list(circuit),
                "ranking": [
                    {"edge": edge, "score": score}
                    for edge, score in result.top(result.graph.n_edges)
                ],
            }
        )
        saved.tell(quiet=True)
        return
    say(f"{title}: {about}" if about else title)
    say(f"{result.method}, {len(prompts)} pairs, seed {seed}, {result.seconds:.2f} s")
    for note in result.notes:
        say(note)
    rows = []
    for rank, (edge, score) in enumerate(result.top(len(circuit)), start=1):
        rows.append([str(rank), edge, f"{score:.4g}"])
        if truth is not None:
            rows[-1].append("yes" if edge in truth else "")
    marks = [] if truth is None else ["in the true circuit"]
    print_table(["rank", "edge", "score", *marks], rows)
    say(f"{len(circuit)} of {result.graph.n_edges} edges in the circuit")
    if truth is not None:
        found = len(circuit & truth.on(result.graph))
        say(f"{found} of the {len(truth)} true edges are among them")
        say(f"AUROC {quality:.4f} ({level} level)")
    saved.tell()


def _size(result: "Result", edges: int | None) -> int:
    """How many edges the circuit gets: at least one, at most all."""
    from graphcircuits.methods import find_method

    if edges is None:
        line = find_method(result.method).threshold
        edges = EDGES if line is None else int((result.scores > line).sum())
    return max(1, min(edges, result.graph.n_edges))


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


def _given(
    case: str | None, n_pairs: int, seed: int, pairs_file: Path | None
) -> tuple["Transformer", "Pairs", "Circuit | None", str, str]:
    """The subject of a case, its prompts and true circuit, and what to call subject and task."""
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
    return (
        loaded.subject(),
        loaded.pairs(n_pairs, seed=seed),
        loaded.circuit,
        loaded.id,
        loaded.task,
    )
