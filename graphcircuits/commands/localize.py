"""`graphcircuits localize`: the circuit of a case, or of a subject and prompts of your own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphcircuits.commands.output import (
    Json,
    late_progress,
    parse_options,
    print_json,
    print_table,
)
from graphcircuits.commands.subjects import own_subject, tokenizer_of

if TYPE_CHECKING:
    from graphcircuits.circuit import Circuit
    from graphcircuits.result import Result
    from graphcircuits.task import Pairs
    from graphcircuits.transformer import Transformer

EDGES = 20
"""Of a circuit, where neither the user nor the method says how many."""


def localize(
    case: Annotated[
        str | None, typer.Argument(help="A case such as ib-3; leave it out with --subject.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="gcl (the trained predictor), exact, eap, eap-ig, acdc, sp-edge, sp-node, "
            "edge-pruning, pgexplainer or random. By default gcl for planted subjects, such as "
            "those of cases, and eap-ig for all others."
        ),
    ] = None,
    pairs: Annotated[int, typer.Option(help="Prompt pairs to draw for a case.")] = 64,
    seed: Annotated[int, typer.Option(help="Draws a case's prompts and seeds the method.")] = 0,
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
    subject: Annotated[
        Path | None,
        typer.Option(
            help="Your own subject: a .safetensors file of ours, a folder in InterpBench's layout, "
            "or a folder of a Hugging Face model."
        ),
    ] = None,
    pairs_file: Annotated[
        Path | None, typer.Option(help="Its prompt pairs: .csv or .jsonl, with token ids.")
    ] = None,
    words: Annotated[
        bool, typer.Option("--words", help="The pairs file holds words, not token ids.")
    ] = False,
    level: Annotated[str, typer.Option(help="AUROC by head, or with q, k, v apart: qkv.")] = "head",
    out: Annotated[
        Path | None,
        typer.Option(help="Write all scores: .json (as EAP-IG and MIB), .csv, .dot, .safetensors."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Where to write the picture; by default circuit.html, none with --json."),
    ] = None,
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Write no picture.")] = False,
    as_json: Json = False,
) -> None:
    """Rank the edges of a transformer by how likely they are in the circuit of a task."""
    import warnings
    from dataclasses import replace

    from graphcircuits import methods
    from graphcircuits.evaluate import auroc

    html = _picture(html, wanted=not (no_picture or as_json))
    _check(level, edges, out, html)
    options = parse_options(option or [])
    if method is not None:
        methods.options_of(method)  # an unknown method is reported before anything is loaded
    transformer, prompts, truth, title, task = _given(case, pairs, seed, subject, pairs_file, words)
    with late_progress() as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", methods.BeyondTraining)  # the notes below say it
        step = bar.add_task(f"{method or 'localize'} on {title}", total=1)
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
    if out is not None:
        result.save(out, circuit=circuit)
    if html is not None:
        result.show(html, circuit=circuit)
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
        return
    typer.echo(f"{title}: {task}" if task else title)
    typer.echo(f"{result.method}, {len(prompts)} pairs, seed {seed}, {result.seconds:.2f} s")
    for note in result.notes:
        typer.echo(note)
    rows = []
    for rank, (edge, score) in enumerate(result.top(len(circuit)), start=1):
        rows.append([str(rank), edge, f"{score:.4g}"])
        if truth is not None:
            rows[-1].append("yes" if edge in truth else "")
    marks = [] if truth is None else ["in the true circuit"]
    print_table(["rank", "edge", "score", *marks], rows)
    typer.echo(f"{len(circuit)} of {result.graph.n_edges} edges in the circuit")
    if truth is not None:
        found = len(circuit & truth.on(result.graph))
        typer.echo(f"{found} of the {len(truth)} true edges are among them")
        typer.echo(f"AUROC {quality:.4f} ({level} level)")
    for path in filter(None, (out, html)):
        typer.echo(f"wrote {path}")


def _picture(html: Path | None, *, wanted: bool) -> Path | None:
    """Where the picture goes; a place that was named is used in any case."""
    if html is not None or not wanted:
        return html
    return Path("circuit.html")


def _size(result: "Result", edges: int | None) -> int:
    """How many edges the circuit gets: at least one, at most all."""
    if edges is None:
        edges = int((result.scores > 0).sum()) if result.method == "gcl" else EDGES
    return max(1, min(edges, result.graph.n_edges))


def _check(level: str, edges: int | None, out: Path | None, html: Path | None) -> None:
    """Refuse what would only fail once the method has run."""
    from graphcircuits.evaluate import LEVELS
    from graphcircuits.result import SUFFIXES

    problems = []
    if level not in LEVELS:
        problems.append(f"--level must be one of {', '.join(LEVELS)}, got {level!r}")
    if edges is not None and edges < 1:
        problems.append(f"--edges must be at least 1, got {edges}")
    if out is not None and out.suffix not in SUFFIXES:
        problems.append(f"--out must end in {', '.join(SUFFIXES)}, got {out}")
    if html is not None and html.suffix not in (".html", ".htm"):
        problems.append(f"--html must end in .html, got {html}")
    if problems:
        raise ValueError("; ".join(problems) + ".")


def _given(
    case: str | None,
    n_pairs: int,
    seed: int,
    subject: Path | None,
    pairs_file: Path | None,
    words: bool,
) -> tuple["Transformer", "Pairs", "Circuit | None", str, str]:
    """Subject, prompts, the true circuit where it is known, and what to call subject and task."""
    if (case is None) == (subject is None):
        raise ValueError(
            "give a case, such as graphcircuits localize ib-3, or your own subject with --subject "
            f"and --pairs-file; got {'both' if case else 'neither'}."
        )
    if case is not None:
        from graphcircuits.benchmark import load_case

        if pairs_file is not None or words:
            raise ValueError(
                "a case draws its own prompts; --pairs-file and --words go with --subject."
            )
        loaded = load_case(case)
        prompts = loaded.pairs(n_pairs, seed=seed)
        return loaded.subject(), prompts, loaded.circuit, loaded.id, loaded.task
    from graphcircuits.task import Pairs

    assert subject is not None
    if pairs_file is None:
        raise ValueError("your own subject needs prompts: give --pairs-file pairs.csv or .jsonl.")
    transformer, truth = own_subject(subject)
    tokenizer = tokenizer_of(subject, transformer) if words else None
    prompts = Pairs.load(pairs_file, tokenizer=tokenizer)
    return transformer, prompts, truth, subject.stem, ""
