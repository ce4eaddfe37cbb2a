"""`graphcircuits view`: results as one page to look at, beside the true circuit where it is known.

The page is one file that opens from disk; docs/viewer.md says what it shows.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcircuits.commands import checks
from graphcircuits.commands.options import flag
from graphcircuits.commands.output import Json, print_json, printable, save, say, write
from graphcircuits.commands.programs import is_case

if TYPE_CHECKING:
    from graphcircuits.certificates.certificate import Certificate
    from graphcircuits.circuit import Circuit
    from graphcircuits.result.result import Result

CIRCUITS = (".json", ".safetensors", ".pt")
"""Files that a true circuit is read from."""


def view(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="Files that localize wrote with --out, or of EAP-IG or MIB: .json, .safetensors, "
            ".pt. Several are shown side by side, and must be of one subject.",
            metavar="RESULT...",
        ),
    ],
    truth: Annotated[
        str | None,
        flag(
            "A circuit to compare with: a case such as ib-3, a circuit that was saved as "
            ".json or .safetensors, or the circuit marked in a file of EAP-IG or MIB.",
            metavar="CASE|FILE",
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        flag(
            "A certificate of the first result's circuit, as certify wrote it: .json. What was "
            "measured stands beside the circuit, with how often each edge came back, the core and "
            "rivals."
        ),
    ] = None,
    out: Annotated[
        Path | None, flag("Where to write the page: .html. By default beside the first result.")
    ] = None,
    open_: Annotated[bool, flag("Then open it in the browser of this machine.", "--open")] = False,
    as_json: Json = False,
) -> None:
    """Write a page to look at results: their circuits by size, and how faithful these are.

    The page is one file, needs no network and no server, and can be sent to others.
    """
    import webbrowser

    from graphcircuits.evaluation.curves import file_names
    from graphcircuits.result.result import Result
    from graphcircuits.viewer.page import viewer_page
    from graphcircuits.viewer.payload import on_one_graph, result_payload

    known = None if truth is None else Path(truth)
    page = results[0].with_suffix(".html") if out is None else out
    checks.refuse(
        checks.distinct("RESULT", [str(path) for path in results]),
        [
            f"{name} is a case, not a file: make one with graphcircuits localize {name} --out "
            f"{name}.json, and view that"
            for name in map(str, results)
            if is_case(name) and not Path(name).exists()
        ],
        checks.suffix("--out", page, ".html", ".htm"),
        checks.suffix("--certificate", certificate, ".json"),
        checks.writable({"--out": page}, read=[*results, known, certificate]),
    )
    names = file_names(results)
    loaded = [Result.load(path) for path in results]
    certified = None if certificate is None else _certificate(certificate)
    compared = _truth(truth, on_one_graph(loaded, names))
    circuit = compared.get("truth")
    loaded = on_one_graph(loaded, names, circuit, certified)
    payload = result_payload(
        loaded,
        # A result by itself is called what it says of itself.
        names=names if len(loaded) > 1 or not loaded[0].method else None,
        certificate=certified,
        **compared,
    )
    text = viewer_page(payload)
    verdict = None if certified is None else certified.verdict
    saved = save({page: lambda path: write(path, text)})
    shown = [_shown(result, circuit) for result in loaded]
    if as_json:
        files = [{"file": str(path), **about} for path, about in zip(results, shown, strict=True)]
        record = {"page": str(page), "bytes": len(text.encode())}
        record |= {"truth": compared.get("truth_name"), "certificate": verdict}
        print_json(record | {"results": files})
    else:
        for name, about in zip(names, shown, strict=True):
            say(f"{name}: {_sentence(about)}")
        if verdict is not None:
            say(f"certificate: {verdict}")
    saved.tell(quiet=as_json)
    if open_ and not webbrowser.open(page.resolve().as_uri()):
        say(f"warning: no browser was found here; open {page} by hand", err=True)


def _truth(given: str | None, results: "list[Result]") -> dict[str, Any]:
    """The circuit to compare with, what to call it, the variables of its components, and what these
    do, as arguments of a page."""
    if given is None:
        return {}
    if not is_case(given):
        return {"truth": _circuit_file(Path(given)), "truth_name": printable(Path(given).name)}
    from graphcircuits.cases import load_case

    case, graph = load_case(given), results[0].graph
    if (graph.n_layers, graph.n_heads) != (case.graph.n_layers, case.graph.n_heads):
        raise ValueError(
            f"--truth {given} is of {case.graph.in_words}, the results of {graph.in_words}; give "
            "the case that they are of."
        )
    notes = {component: printable(text) for component, text in case.variables.items()}
    roles = {component: printable(role.text) for component, role in case.roles.items()}
    named = {"truth": case.labels(graph=graph), "truth_name": f"the circuit of {case.id}"}
    return {**named, "notes": notes, "roles": roles}


def _circuit_file(path: Path) -> "Circuit":
    """A circuit of ours, or the one that a result has chosen."""
    from graphcircuits.circuit import Circuit
    from graphcircuits.io.store import StoreError
    from graphcircuits.result.result import Result

    if path.suffix not in CIRCUITS:
        raise ValueError(
            f"--truth must be a case, such as ib-3, or a file that ends in {', '.join(CIRCUITS)}, "
            f"got {path}."
        )
    try:
        chosen = Result.load(path).chosen
    except StoreError:
        if path.suffix == ".pt":
            raise
        return Circuit.load(path)
    if chosen is None:
        raise ValueError(f"--truth {path} is a result in which no circuit is marked.")
    return chosen


def _certificate(path: Path) -> "Certificate":
    from graphcircuits.certificates.certificate import Certificate
    from graphcircuits.io.store import StoreError

    try:
        return Certificate.load(path)
    except StoreError as error:
        raise StoreError(f"--certificate must be a file that certify wrote: {error}") from error


def _shown(result: "Result", truth: "Circuit | None") -> dict[str, Any]:
    """What the page says of a result at first, for machines."""
    from graphcircuits.viewer.payload import START

    edges = min(START, result.graph.n_edges)
    circuit = result.circuit(edges=edges) if result.chosen is None else result.chosen
    return {
        "subject": result.subject,
        "task": result.task,
        "method": result.method,
        "graph_edges": result.graph.n_edges,
        "circuit_edges": len(circuit),
        "curve": result.curve is not None,
        "prompts": 0 if result.prompts is None else len(result.prompts),
        "hits": None if truth is None else len(circuit & truth),
        "misses": None if truth is None else len(truth - circuit),
        "false_alarms": None if truth is None else len(circuit - truth),
    }


def _sentence(about: dict[str, Any]) -> str:
    text = f"{about['circuit_edges']:,} of {about['graph_edges']:,} edges"
    if about["hits"] is None:
        return text
    return (
        f"{text}; {about['hits']} of the true circuit's, {about['misses']} missed, "
        f"{about['false_alarms']} false {'alarm' if about['false_alarms'] == 1 else 'alarms'}"
    )
