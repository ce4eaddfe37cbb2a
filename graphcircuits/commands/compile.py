"""`graphcircuits compile`: a program as a transformer, and the circuit it has."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcircuits.commands import checks
from graphcircuits.commands.options import flag
from graphcircuits.commands.output import Json, print_json, print_table, printable, save, say, write

if TYPE_CHECKING:
    from graphcircuits.circuit import Circuit
    from graphcircuits.rasp.compile import CompiledModel

LABELS = ("complete", "interpbench")


def compile_(
    program: Annotated[
        str,
        typer.Argument(
            help="A case such as ib-3, or your own program as path/to/file.py:name; the name may "
            "be left out where the file has only one."
        ),
    ],
    vocab: Annotated[
        str | None, flag('Tokens of your own program: "a,b,c", "0,1,2", or a JSON list.')
    ] = None,
    max_seq_len: Annotated[
        int | None, flag("Longest input of your own program, the BOS token counted.")
    ] = None,
    causal: Annotated[
        bool, flag("Compile your own program with causal attention.", "--causal")
    ] = False,
    labels: Annotated[
        str,
        flag(
            "Which reads are in the circuit: complete (all that the program makes), or "
            "interpbench (without those that another writer passes on)."
        ),
    ] = "complete",
    dot: Annotated[Path | None, flag("Write the circuit as a DOT file.")] = None,
    html: Annotated[Path | None, flag("Write a page to look at it: .html.")] = None,
    as_json: Json = False,
) -> None:
    """Compile a RASP program to a transformer: layers, heads, what sits where, the true circuit."""
    checks.refuse(
        checks.one_of("--labels", labels, LABELS),
        checks.suffix("--html", html, ".html", ".htm"),
        checks.writable({"--dot": dot, "--html": html}),
    )
    from graphcircuits.cases.roles import find_roles

    model, title = _compiled(program, vocab, max_seq_len, causal)
    roles = find_roles(model.tables, model.components)
    circuit = model.labels(labels)  # pyright: ignore[reportArgumentType]

    def write_page(path: Path) -> None:
        from graphcircuits.viewer.page import viewer_page
        from graphcircuits.viewer.payload import circuit_payload

        about = f"The true circuit ({labels} labels) of the compiled program."
        notes = {one.name: printable(", ".join(one.writes)) for one in model.components}
        shown = {name: printable(role.text) for name, role in roles.items()}
        payload = circuit_payload(circuit, title=title, text=about, notes=notes, roles=shown)
        write(path, viewer_page(payload))

    saved = save({dot: lambda path: write(path, circuit.to_dot()), html: write_page})
    if as_json:
        told = {name: {"kind": role.kind, "text": role.text} for name, role in roles.items()}
        print_json(_record(model, circuit, title, labels) | {"roles": told})
    else:
        _print(model, circuit, title, labels)
        say("what each component does:")
        for role in roles.values():
            say(f"  {role.component} ({role.kind}): {printable(role.text)}")
    saved.tell(quiet=as_json)


def _compiled(
    program: str, vocab: str | None, max_seq_len: int | None, causal: bool
) -> tuple["CompiledModel", str]:
    """The model, and what to call it."""
    from graphcircuits.commands.programs import is_program, own_case, split_name

    if is_program(program):
        case = own_case(program, vocab, max_seq_len, causal)
        return case.compiled, printable(f"{case.id} ({split_name(program)[0]})")
    from graphcircuits.cases import load_case

    case = load_case(program)
    if vocab is not None or max_seq_len is not None or causal:
        raise ValueError(
            f"case {program!r} brings its own vocabulary, length and masking; "
            "leave out --vocab, --max-seq-len and --causal."
        )
    return case.compiled, f"{case.id} {case.name}: {case.task}"


def _record(model: "CompiledModel", circuit: "Circuit", title: str, labels: str) -> dict[str, Any]:
    """What --json prints."""
    config = model.transformer.config
    sizes = ("n_layers", "n_heads", "d_model", "d_head", "d_mlp", "causal")
    return {
        "title": title,
        **{name: getattr(config, name) for name in sizes},
        "components": [
            {
                "component": component.name,
                "reads": {slot: list(read) for slot, read in component.reads.items()},
                "writes": list(component.writes),
            }
            for component in model.components
        ],
        "labels": labels,
        "circuit": list(circuit),
    }


def _print(model: "CompiledModel", circuit: "Circuit", title: str, labels: str) -> None:
    config = model.transformer.config
    say(title)
    say(
        f"{config.n_layers} layers x {config.n_heads} heads, d_model {config.d_model}, "
        f"d_head {config.d_head}, d_mlp {config.d_mlp}, "
        f"{'causal' if config.causal else 'bidirectional'} attention"
    )
    rows = []
    for component in model.components:
        reads = {slot: ", ".join(read) for slot, read in component.reads.items() if read}
        named = [f"{slot}: {read}" if component.is_head else read for slot, read in reads.items()]
        rows.append([component.name, "; ".join(named), ", ".join(component.writes)])
    print_table(["component", "reads", "computes"], rows)
    say(f"circuit ({labels}), {len(circuit)} of {circuit.graph.n_edges} edges:")
    for edge in circuit:
        say(f"  {edge}")
