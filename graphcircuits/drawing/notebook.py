"""What notebooks show of the package's values: a short table, and a still picture of circuits.

Text of any origin is escaped and cut to a length, no script and no style sheet is among it, and
nothing is computed that takes longer than drawing a few lines: what is shown is what is there.
"""

from collections.abc import Mapping, Sequence
from html import escape

from torch import Tensor

from graphcircuits.drawing.inline import graph_names, legend_html, still_svg
from graphcircuits.graph import ComponentGraph

LONGEST = 400
"""Letters of a text that are shown."""
ROWS, EDGES, WITHOUT_SCORES = 10, 20, 60
"""Rows of a table, and edges of a picture, with scores and without."""
PAIRS, TOKENS = 5, 24
"""Prompts that are shown, and tokens of each."""

# A page without a document type does not hand its colour down to tables.
_TABLE = ' style="color:inherit"'
_CELL = ' style="text-align:left;vertical-align:top"'


def cut(text: object) -> str:
    """Escaped, and not longer than shown."""
    whole = str(text)
    return escape(whole if len(whole) <= LONGEST else f"{whole[: LONGEST - 1]}…")


def facts_html(title: str, facts: Mapping[str, object]) -> str:
    """A title, and under it a table of what is known; facts without a value are left out."""
    rows = "".join(
        f'<tr><th{_CELL} scope="row">{cut(name)}</th><td{_CELL}>{cut(text)}</td></tr>'
        for name, value in facts.items()
        if value is not None and (text := str(value))
    )
    return f"<p><b>{cut(title)}</b></p><table{_TABLE}>{rows}</table>"


def table_html(header: Sequence[str], rows: Sequence[Sequence[object]], *, total: int = 0) -> str:
    """A table of a few rows; `total` says how many there are, where not all are given."""
    head = "".join(f'<th{_CELL} scope="col">{cut(name)}</th>' for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td{_CELL}>{cut(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    more = f"<p>and {total - len(rows):,} more</p>" if total > len(rows) else ""
    return f"<table{_TABLE}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def framed(*blocks: str) -> str:
    """One block of a notebook's output."""
    return f"<div>{''.join(blocks)}</div>"


def picture_html(
    graph: ComponentGraph,
    edges: Sequence[int],
    scores: Mapping[int, float] | None = None,
    *,
    total: int | None = None,
) -> str:
    """The first of the edges as a picture, what its colours mean, and how many are left out."""
    if not edges:
        return "<p>no edges</p>"
    picture, count = still_svg(graph, edges[: WITHOUT_SCORES if scores is None else EDGES], scores)
    total = len(edges) if total is None else total
    words = "first" if scores is None else "best"
    left = "" if count == total else f"<p>the {words} {count:,} of {total:,} edges</p>"
    return f"{picture}<p>{legend_html(graph, edges[:count])}</p>{left}"


def circuit_html(graph: ComponentGraph, edges: Sequence[int]) -> str:
    """A circuit: how large it is, and a picture."""
    facts = {"graph": _graph_words(graph), "edges": f"{len(edges):,} of {graph.n_edges:,}"}
    return framed(facts_html("Circuit", facts), picture_html(graph, edges))


def result_html(
    graph: ComponentGraph,
    *,
    facts: Mapping[str, object],
    notes: Sequence[str],
    best: Sequence[int],
    chosen: int | None,
    scores: Mapping[int, float],
    probabilities: Mapping[int, float] | None,
) -> str:
    """A result: what it is of, its best edges, and a picture of them.

    `best` are the edges to draw, best first, of `chosen` in the circuit that was picked, or None.
    """
    about = dict(facts) | {"graph": _graph_words(graph), "edges": f"{graph.n_edges:,}"}
    about |= {} if chosen is None else {"chosen circuit": f"{chosen:,} edges"}
    about |= {f"note {number + 1}": note for number, note in enumerate(notes[:3])}
    header = ["edge", "score", *([] if probabilities is None else ["probability"])]
    rows = [
        [
            name,
            f"{scores[edge]:.4g}",
            *([] if probabilities is None else [f"{probabilities[edge]:.0%}"]),
        ]
        for edge, name in zip(best[:ROWS], graph_names(graph, best[:ROWS]), strict=True)
    ]
    total = graph.n_edges if chosen is None else chosen
    return framed(
        facts_html("Result", about),
        table_html(header, rows, total=total),
        picture_html(graph, best, scores, total=total),
    )


def pairs_html(
    facts: Mapping[str, object],
    clean: Tensor,
    corrupted: Tensor,
    scored: Tensor,
    targets: Tensor | None,
) -> str:
    """Prompts: how many, and the first ones as token ids, those that corruption changes in bold.

    Scored positions are underlined; `targets` are the right classes there, where there are any.
    """
    count, length = clean.shape
    header = ["clean", "corrupted", *([] if targets is None else ["right"])]
    rows = []
    for row in range(min(PAIRS, count)):
        first, other, where = (x[row, :TOKENS].tolist() for x in (clean, corrupted, scored))
        marks = list(zip([a != b for a, b in zip(first, other, strict=True)], where, strict=True))
        cells = [_tokens(first, marks, length), _tokens(other, marks, length)]
        if targets is not None:
            right = targets[row][scored[row]].tolist()
            cells.append(cut(" ".join(map(str, dict.fromkeys(right[:TOKENS])))))
        rows.append("".join(f"<td{_CELL}>{cell}</td>" for cell in cells))
    head = "".join(f'<th{_CELL} scope="col">{name}</th>' for name in header)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    more = f"and {count - len(rows):,} more; " if count > len(rows) else ""
    about = {"pairs": f"{count:,} of {length:,} tokens"} | dict(facts)
    return framed(
        facts_html("Pairs", about),
        f"<table{_TABLE}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
        f"<p>{more}token ids; bold: changed by corruption, underlined: scored</p>",
    )


def _tokens(ids: Sequence[int], marks: Sequence[tuple[bool, bool]], length: int) -> str:
    words = []
    for token, (changed, scored) in zip(ids, marks, strict=True):
        word = f"<b>{token}</b>" if changed else str(token)
        words.append(f"<u>{word}</u>" if scored else word)
    return " ".join([*words, *(["…"] if length > len(ids) else [])])


def _graph_words(graph: ComponentGraph) -> str:
    grouped = "" if graph.n_groups == graph.n_heads else f" in {graph.n_groups} groups"
    parallel = ", attention and MLP in parallel" if graph.parallel else ""
    layers = "1 layer" if graph.n_layers == 1 else f"{graph.n_layers} layers"
    heads = "1 head" if graph.n_heads == 1 else f"{graph.n_heads} heads"
    return f"{layers} of {heads}{grouped}{parallel}"
