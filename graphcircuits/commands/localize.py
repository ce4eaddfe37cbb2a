"""`graphcircuits localize`: the circuit of a case, of a subject of your own, or of your program."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphcircuits.commands.checks import (
    in_range,
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
from graphcircuits.commands.subjects import is_path, own_pairs, own_subject

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
            help="A case such as ib-3. With --subject: your own program as path/to/file.py:name, "
            "or nothing."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="gcl (the trained predictor), exact, eap, eap-ig, eap-gp, relp, nap, acdc, "
            "sp-edge, sp-node, edge-pruning, ugs, pgexplainer or random. By default gcl for "
            "planted subjects, such as those of cases, and eap-ig for all others."
        ),
    ] = None,
    pairs: Annotated[
        int, typer.Option(help="Prompt pairs to draw for a case or your program.")
    ] = 64,
    seed: Annotated[int, typer.Option(help="Draws those prompts and seeds the method.")] = 0,
    edges: Annotated[
        int | None,
        typer.Option(
            help="Edges of the circuit: the best ones. By default those that gcl holds for likely, "
            "and 20 with other methods."
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
    subject: Annotated[
        Path | None,
        typer.Option(
            help="Your own subject: a .safetensors file of ours, a folder in InterpBench's layout, "
            "or a folder of a Hugging Face model. With a program: what build made of it."
        ),
    ] = None,
    pairs_file: Annotated[
        Path | None,
        typer.Option(
            help="Its prompt pairs: .csv or .jsonl, with token ids. A program draws its own if "
            "left out."
        ),
    ] = None,
    words: Annotated[
        bool, typer.Option("--words", help="The pairs file holds words, not token ids.")
    ] = False,
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
        in_range("--top", top, 1),
        _untested(method, top),
        suffix("--out", out, *SUFFIXES),
        suffix("--html", html, ".html", ".htm"),
        writable({"--out": out, "--html": html}, read=[subject, pairs_file]),
        _misplaced(case, subject, pairs_file, words, vocab, max_seq_len, causal),
    )
    if method is not None:
        method_options(method, option or [])  # before anything is loaded
    if case is not None and subject is not None:
        own, transformer = planted(
            case, subject, vocab=vocab, max_seq_len=max_seq_len, causal=causal
        )
        prompts = (
            own.pairs(pairs, seed=seed)
            if pairs_file is None
            else own_pairs(pairs_file, subject, transformer, words=words)
        )
        truth, title, task = own.circuit, own.id, printable(own.task)
    else:
        transformer, prompts, truth, title, task = _given(
            case, pairs, seed, subject, pairs_file, words
        )
    name = methods.default_method(transformer, prompts)[0] if method is None else method
    options = method_options(name, option or []) | ({} if top is None else {"top": top})
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
    result = replace(result, subject=title, task=task)
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
                "task": task,
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
    say(f"{title}: {task}" if task else title)
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


def _untested(method: str | None, top: int | None) -> list[str]:
    """`--top` where nothing can be left out."""
    from graphcircuits.methods import METHODS, options_of

    if top is None or method in [name for name, one in METHODS.items() if "top" in options_of(one)]:
        return []
    got = "none" if method is None else method
    return [f"--top goes with methods that test edge by edge: --method exact or acdc, got {got}"]


def _size(result: "Result", edges: int | None) -> int:
    """How many edges the circuit gets: at least one, at most all."""
    from graphcircuits.methods import find_method

    if edges is None:
        line = find_method(result.method).threshold
        edges = EDGES if line is None else int((result.scores > line).sum())
    return max(1, min(edges, result.graph.n_edges))


def _misplaced(
    case: str | None,
    subject: Path | None,
    pairs_file: Path | None,
    words: bool,
    vocab: str | None,
    max_seq_len: int | None,
    causal: bool,
) -> list[str]:
    """Words that do not go together."""
    if case is None or subject is None:
        typed = vocab is not None or max_seq_len is not None or causal
        problem = "--vocab, --max-seq-len and --causal go with a program of your own and --subject"
        return [*([problem] if typed else []), *([] if case is None else without_subject(case))]
    if not is_program(case):
        return [
            "give a case, such as graphcircuits localize ib-3, or your own subject with --subject "
            f"and --pairs-file; got both {case} and {subject}"
        ]
    return ["--words goes with --pairs-file"] if words and pairs_file is None else []


def _given(
    case: str | None,
    n_pairs: int,
    seed: int,
    subject: Path | None,
    pairs_file: Path | None,
    words: bool,
) -> tuple["Transformer", "Pairs", "Circuit | None", str, str]:
    """Subject, prompts, the true circuit where it is known, and what to call subject and task."""
    if case is None and subject is None:
        raise ValueError(
            "give a case, such as graphcircuits localize ib-3, or your own subject with --subject "
            "and --pairs-file; got neither."
        )
    if case is not None:
        from graphcircuits.corpus import load_case

        if pairs_file is not None or words:
            raise ValueError(
                "a case draws its own prompts; --pairs-file and --words go with --subject."
            )
        if is_path(case):
            raise ValueError(
                f"{case} is a path, not a case; give it as --subject {case}, with --pairs-file."
            )
        loaded = load_case(case)
        prompts = loaded.pairs(n_pairs, seed=seed)
        return loaded.subject(), prompts, loaded.circuit, loaded.id, loaded.task
    assert subject is not None
    if pairs_file is None:
        raise ValueError("your own subject needs prompts: give --pairs-file pairs.csv or .jsonl.")
    transformer, truth = own_subject(subject)
    prompts = own_pairs(pairs_file, subject, transformer, words=words)
    return transformer, prompts, truth, printable(subject.stem), ""
