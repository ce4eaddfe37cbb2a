"""The certificate as one page that opens from disk: the lines, the edges, the core and rivals."""

from html import escape
from typing import TYPE_CHECKING

from graphcircuits.drawing.notebook import picture_html, table_html

if TYPE_CHECKING:
    from graphcircuits.certificates.certificate import Certificate
    from graphcircuits.circuit import Circuit

EDGES = 200
"""Rows of the table of edges."""
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;
color:#1a1a1a;background:#fff}
table{border-collapse:collapse;width:100%}
th,td{padding:.3rem .6rem;border-bottom:1px solid #ccc;vertical-align:top;text-align:left}
.verdict{font-size:1.3rem;font-weight:600}
svg{max-width:100%;height:auto}
@media (prefers-color-scheme:dark){body{color:#eee;background:#16181c}th,td{border-color:#444}}
"""


def certificate_page(certificate: "Certificate") -> str:
    """HTML without scripts and without anything from outside."""
    circuit = certificate.circuit
    title = ": ".join(text for text in (certificate.subject, certificate.task) if text)
    title = title or "A circuit"
    size = f"{len(circuit):,} of {circuit.graph.n_edges:,} edges"
    told = (
        f"{size}. Judged on {certificate.n_fresh} fresh pairs; searched again by "
        f"{certificate.search} on {certificate.n_pairs} pairs. {certificate.seconds:.1f} s."
    )
    verdict = certificate.verdict[0].upper() + certificate.verdict[1:]
    blocks = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="verdict">{escape(verdict)}</p>',
        f"<p>{escape(told)}</p>",
        table_html(["question", "", "value", "asked", "found"], certificate.rows()),
        *(f"<p>{escape(note)}.</p>" for note in certificate.notes),
        "<h2>The circuit</h2>",
        picture_html(circuit.graph, circuit.edge_numbers),
        *_edges(certificate),
    ]
    if certificate.core is not None:
        told = "edges that came back in most fresh searches"
        blocks += _other(f"The stable core: {len(certificate.core):,} {told}", certificate.core)
    for number, rival in enumerate(certificate.rivals, start=1):
        shared = len(rival & circuit)
        told = f"{len(rival):,} edges that keep as much, {shared:,} of them the circuit's"
        blocks += _other(f"Rival {number}: {told}", rival)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>Certificate: {escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(blocks)}</main></body></html>\n"
    )


def _edges(certificate: "Certificate") -> list[str]:
    rows = certificate.most_likely()
    if certificate.edges is None or not rows:
        return []
    columns = ["edge", "in the circuit", "came back"]
    columns += [] if rows[0]["probability"] is None else ["probability"]
    cells = [
        [
            row["edge"],
            "yes" if row["in_circuit"] else "no",
            f"{row['came_back']:.0%}",
            *([] if row["probability"] is None else [f"{row['probability']:.0%}"]),
        ]
        for row in rows[:EDGES]
    ]
    known = "No probabilities: " if rows[0]["probability"] is None else "Probabilities are "
    meaning = f"<p>{escape(known + certificate.edges.meaning)}</p>"
    return ["<h2>Its edges</h2>", meaning, table_html(columns, cells, total=len(rows))]


def _other(title: str, circuit: "Circuit") -> list[str]:
    return [f"<h2>{escape(title)}</h2>", picture_html(circuit.graph, circuit.edge_numbers)]
