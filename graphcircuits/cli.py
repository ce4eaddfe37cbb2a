"""The `graphcircuits` command: parsing and printing; the work is in the package."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import graphcircuits

if TYPE_CHECKING:
    from graphcircuits.rasp.compile import CompiledModel

app = typer.Typer(
    name="graphcircuits",
    help="Find the circuit a transformer uses for a task; build transformers with a known circuit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]


def main() -> None:
    """Entry point: a caller's mistake is one line on standard error and exit code 2."""
    try:
        app()
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _version(wanted: bool) -> None:
    if wanted:
        print(graphcircuits.__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options that come before any command."""


@app.command()
def cases(
    family: Annotated[str | None, typer.Option(help="Only one family, such as ib.")] = None,
    split: Annotated[str | None, typer.Option(help="Only one split: test, pool, ...")] = None,
    as_json: Json = False,
) -> None:
    """List the cases: programs whose circuit is known."""
    from graphcircuits.benchmark import case_ids, load_case

    rows = []
    for id in case_ids(family=family, split=split):
        case = load_case(id)
        rows.append(
            {
                "id": case.id,
                "name": case.name,
                "task": case.task,
                "layers": case.layout.n_layers,
                "output": "categorical" if case.categorical else "numerical",
                "vocab": len(case.vocab),
                "max_seq_len": case.max_seq_len,
                "causal": case.causal,
                "split": case.split,
            }
        )
    if as_json:
        _print_json(rows)
        return
    columns = ["id", "split", "layers", "output", "vocab", "max_seq_len", "task"]
    _print_table(columns, [[_shown(row[column]) for column in columns] for row in rows])


@app.command("compile")
def compile_(
    target: Annotated[
        str,
        typer.Argument(help="A case such as ib-3, or your own program as path/to/file.py:name."),
    ],
    vocab: Annotated[
        str | None,
        typer.Option(help='Tokens of your own program: "a,b,c", "0,1,2", or a JSON list.'),
    ] = None,
    max_seq_len: Annotated[
        int | None, typer.Option(help="Longest input of your own program, the BOS token counted.")
    ] = None,
    causal: Annotated[
        bool, typer.Option("--causal", help="Compile your own program with causal attention.")
    ] = False,
    labels: Annotated[
        str, typer.Option(help="Circuit labeling: interpbench (official) or complete.")
    ] = "interpbench",
    dot: Annotated[Path | None, typer.Option(help="Write the circuit as a DOT file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a picture of it as a page.")] = None,
    as_json: Json = False,
) -> None:
    """Compile a RASP program to a transformer: layers, heads, what sits where, the true circuit."""
    model, title = _compiled(target, vocab, max_seq_len, causal)
    circuit = model.labels(labels)  # pyright: ignore[reportArgumentType]
    notes = {part.name: ", ".join(part.writes) for part in model.components}
    if dot:
        _write(dot, circuit.to_dot())
    if html:
        from graphcircuits.viewer.circuit import circuit_page

        about = f"The true circuit ({labels} labels) of the compiled program."
        _write(html, circuit_page(circuit, title=title, text=about, notes=notes))
    if as_json:
        _print_json(_compiled_record(model, title, labels))
        return
    config = model.transformer.config
    print(title)
    print(
        f"{config.n_layers} layers x {config.n_heads} heads, d_model {config.d_model}, "
        f"d_head {config.d_head}, d_mlp {config.d_mlp}, "
        f"{'causal' if config.causal else 'bidirectional'} attention"
    )
    rows = [
        [
            part.name,
            "; ".join(
                f"{slot}: {', '.join(read)}" if part.is_head else ", ".join(read)
                for slot, read in part.reads.items()
                if read
            ),
            ", ".join(part.writes),
        ]
        for part in model.components
    ]
    _print_table(["component", "reads", "computes"], rows)
    print(f"circuit ({labels}), {len(circuit)} of {circuit.graph.n_edges} edges:")
    for edge in circuit:
        print(f"  {edge}")
    for path in filter(None, (dot, html)):
        print(f"wrote {path}")


def _compiled(
    target: str, vocab: str | None, max_seq_len: int | None, causal: bool
) -> tuple["CompiledModel", str]:
    from graphcircuits.rasp.compile import compile_program

    path, colon, name = target.rpartition(":")
    if colon:
        from graphcircuits.rasp.load import load_program, parse_vocab

        if vocab is None or max_seq_len is None:
            raise ValueError("your own program needs --vocab and --max-seq-len.")
        program = load_program(Path(path), name)
        model = compile_program(
            program, vocab=parse_vocab(vocab), max_seq_len=max_seq_len, causal=causal
        )
        return model, f"{name} ({path})"
    if vocab is not None or max_seq_len is not None or causal:
        raise ValueError(
            f"case {target!r} brings its own vocabulary, length and masking; "
            "leave out --vocab, --max-seq-len and --causal."
        )
    from graphcircuits.benchmark import load_case

    case = load_case(target)
    return case.compiled, f"{case.id} {case.name}: {case.task}"


def _compiled_record(model: "CompiledModel", title: str, labels: str) -> dict[str, Any]:
    config = model.transformer.config
    return {
        "title": title,
        "n_layers": config.n_layers,
        "n_heads": config.n_heads,
        "d_model": config.d_model,
        "d_head": config.d_head,
        "d_mlp": config.d_mlp,
        "causal": config.causal,
        "components": [
            {
                "component": part.name,
                "reads": {slot: list(read) for slot, read in part.reads.items()},
                "writes": list(part.writes),
            }
            for part in model.components
        ],
        "labels": labels,
        "circuit": list(model.labels(labels)),  # pyright: ignore[reportArgumentType]
    }


def _print_table(columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    # A pipe has no width of its own: give lines room instead of folding them at 80.
    Console(width=None if sys.stdout.isatty() else 160, markup=False).print(table)


def _print_json(record: object) -> None:
    print(json.dumps(record, indent=1, ensure_ascii=False))


def _shown(value: object) -> str:
    return "" if value is None else str(value)


def _write(path: Path, text: str) -> None:
    from graphcircuits.store import write_atomic

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode())
