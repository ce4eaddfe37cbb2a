"""The `graphcircuits` command: parsing and printing; the work is in the package."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import graphcircuits
from graphcircuits.commands.bench import bench
from graphcircuits.commands.cost import cost
from graphcircuits.commands.interact import interact
from graphcircuits.commands.localize import localize
from graphcircuits.commands.output import Json, print_json, print_table, shown, write
from graphcircuits.commands.train import train

if TYPE_CHECKING:
    from graphcircuits.benchmark.case import Case
    from graphcircuits.rasp import SOp, Value
    from graphcircuits.rasp.compile import CompiledModel

app = typer.Typer(
    name="graphcircuits",
    help="Find the circuit a transformer uses for a task; build transformers with a known circuit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command()(bench)
app.command()(cost)
app.command()(interact)
app.command()(localize)
app.command()(train)


def main() -> None:
    """Entry point: a caller's mistake is one line on standard error and exit code 2."""
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _version(wanted: bool) -> bool:
    if wanted:
        print(graphcircuits.__version__)
        raise typer.Exit
    return wanted


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
        print_json(rows)
        return
    columns = ["id", "split", "layers", "output", "vocab", "max_seq_len", "task"]
    print_table(columns, [[shown(row[column]) for column in columns] for row in rows])


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
        write(dot, circuit.to_dot())
    if html:
        from graphcircuits.viewer.circuit import circuit_page

        about = f"The true circuit ({labels} labels) of the compiled program."
        write(html, circuit_page(circuit, title=title, text=about, notes=notes))
    if as_json:
        print_json(_compiled_record(model, title, labels))
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
    print_table(["component", "reads", "computes"], rows)
    print(f"circuit ({labels}), {len(circuit)} of {circuit.graph.n_edges} edges:")
    for edge in circuit:
        print(f"  {edge}")
    for path in filter(None, (dot, html)):
        print(f"wrote {path}")


@app.command()
def build(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Cases to build; all of them if none is named.")
    ] = None,
    family: Annotated[str | None, typer.Option(help="Only one family, such as ib.")] = None,
    program: Annotated[
        str | None, typer.Option(help="Your own program instead, as path/to/file.py:name.")
    ] = None,
    vocab: Annotated[str | None, typer.Option(help="Its tokens, as for compile.")] = None,
    max_seq_len: Annotated[int | None, typer.Option(help="Its longest input, with BOS.")] = None,
    causal: Annotated[bool, typer.Option("--causal", help="Give it causal attention.")] = False,
    out: Annotated[Path, typer.Option(help="Directory to write subjects to.")] = Path("subjects"),
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Keep the subjects that are there, and go on where it was cut off.",
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    steps: Annotated[int, typer.Option(help="Training steps at most.")] = 6000,
    rows: Annotated[int, typer.Option(help="Inputs a step and subject.")] = 256,
    lr: Annotated[float, typer.Option(help="Adam's highest learning rate.")] = 3e-3,
    strict_weight: Annotated[float, typer.Option(help="Weight of the strict loss.")] = 1.0,
    edge_weight: Annotated[
        float, typer.Option(help="Weight of the edge loss; 0 is the public procedure.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of inputs and weights.")] = 0,
    widen: Annotated[float, typer.Option(help="Factor on the subjects' width.")] = 1.0,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so long, with what is there.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Workers that prepare the data.")] = 1,
    as_json: Json = False,
) -> None:
    """Train a subject for each case: a transformer with the program's circuit planted in it.

    Every finished subject is written at once. A build that was stopped or killed goes on with
    --resume, given the same cases and settings, and ends with the same files. What did not pass
    lies in failed/; the same settings give it again, others train it anew. Exit code 1 if a subject
    did not pass.
    """
    import shlex
    import time

    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    from graphcircuits.benchmark import build as builder
    from graphcircuits.benchmark.unfinished import begun, lasting
    from graphcircuits.siit.train import SiitConfig

    if program is None:
        cases = _listed_cases(ids, family)
    else:
        cases = [_own_case(program, vocab, max_seq_len, causal)]
    there = begun(out, [case.id for case in cases])
    if there and not resume:
        raise ValueError(
            f"{out} already holds {len(there)} of these subjects, finished or in training, such as "
            f"{there[0]}; add --resume to keep them and go on, or name another --out."
        )
    config = builder.BuildConfig(
        siit=SiitConfig(
            steps=steps, rows=rows, lr=lr, strict_weight=strict_weight, edge_weight=edge_weight
        ),
        seed=seed,
        widen=widen,
        processes=processes,
    )
    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    command = shlex.join(["graphcircuits", *lasting(sys.argv[1:])])
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    wide = None if sys.stderr.isatty() else 160
    with Progress(*columns, console=Console(stderr=True, width=wide)) as bar:
        task = bar.add_task("computing the programs' answers", total=None)

        def show(step: int, passed: int, total: int) -> None:
            bar.update(task, description=f"step {step}: {passed} of {total} in this fleet pass")

        built = []
        for one in builder.build(
            cases, out, config, device=device, command=command, progress=show, deadline=deadline
        ):
            built.append(one)
            bar.console.print(_build_line(one.report), markup=False, highlight=False)
    missing = [case.id for case in cases if not builder.subject_path(out, case.id).exists()]
    if as_json:
        print_json([one.report for one in built])
    else:
        print(f"{len(cases) - len(missing)} of {len(cases)} subjects in {out}")
    failed = [one.id for one in built if not one.verdict.passed]
    left = [id for id in missing if id not in failed]
    if failed:
        hint = "other settings, such as --seed, --steps or --widen, train them anew"
        print(f"not passed: {', '.join(failed)}; {hint}", file=sys.stderr)
    if left:
        print(f"out of time: {', '.join(left)}; --resume goes on with them", file=sys.stderr)
    if missing:
        raise typer.Exit(1)


def _listed_cases(ids: list[str] | None, family: str | None) -> "list[Case]":
    """The cases named; or all of a family, but for those with nothing to train."""
    from graphcircuits.benchmark import case_ids, load_case
    from graphcircuits.benchmark.split import is_constant

    if ids:
        return [load_case(id) for id in ids]
    return [case for case in map(load_case, case_ids(family=family)) if not is_constant(case)]


def _own_case(program: str, vocab: str | None, max_seq_len: int | None, causal: bool) -> "Case":
    from graphcircuits.benchmark.case import Case

    loaded, tokens = _own_program(program, vocab, max_seq_len)
    path, _, name = program.rpartition(":")
    assert max_seq_len is not None
    return Case(
        id=name,
        name=name,
        task=f"{name} of {path}",
        build=lambda: loaded,
        vocab=tokens,
        max_seq_len=max_seq_len,
        causal=causal,
    )


def _own_program(
    target: str, vocab: str | None, max_seq_len: int | None
) -> "tuple[SOp, tuple[Value, ...]]":
    from graphcircuits.rasp.load import load_program, parse_vocab

    path, colon, name = target.rpartition(":")
    if not colon:
        raise ValueError(f"your own program is path/to/file.py:name, got {target!r}.")
    if vocab is None or max_seq_len is None:
        raise ValueError("your own program needs --vocab and --max-seq-len.")
    return load_program(Path(path), name), parse_vocab(vocab)


def _build_line(report: dict[str, Any]) -> str:
    return (
        f"{report['case']:28} {'passed' if report['passed'] else 'FAILED'}  "
        f"accuracy {report['accuracy']:.4f}  interchange {report['worst_interchange']:.4f}  "
        f"strict {report['worst_strict']:.4f}  {report['steps']} steps"
    )


def _compiled(
    target: str, vocab: str | None, max_seq_len: int | None, causal: bool
) -> tuple["CompiledModel", str]:
    from graphcircuits.rasp.compile import compile_program

    if ":" in target:
        program, tokens = _own_program(target, vocab, max_seq_len)
        assert max_seq_len is not None
        model = compile_program(program, vocab=tokens, max_seq_len=max_seq_len, causal=causal)
        path, _, name = target.rpartition(":")
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


if __name__ == "__main__":
    main()
