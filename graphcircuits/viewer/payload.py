"""What the page of a circuit receives: one JSON object, tables as base64.

1. Results are brought to one graph, that of the true circuit where one is given. A graph is known
   by its sizes: the page derives components, edges and their names from them, as `graph.py` does.
2. A result's scores go as little-endian float32 in edge order. Rounding to float32 can tie or
   overflow scores that differ, and the page ranks by what it is given, so `ranked_alike` moves such
   scores by as few of float32's steps as keep `Result.ranking`.
3. Circuits go as bitmaps: edge i is bit i % 8 of byte i // 8. A chosen circuit that is the best of
   its result goes as a number of edges; of one that is the best without those on no path from
   input to logits, that number goes besides, since faithfulness was measured at it.
4. Prompts go with the attention patterns of their clean and corrupted runs, one byte per entry.
5. A certificate goes as its verdict, a row of texts for each question, and circuits to lay over the
   graph by name: the certified one, the core, rivals. How often each edge came back, and its
   probability, go as float32; the latter is NaN for edges outside that never came back, of which a
   certificate that was read from a file says nothing.
"""

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.task.stored import StoredPrompts

if TYPE_CHECKING:
    from graphcircuits.certificates.certificate import Certificate
    from graphcircuits.result.result import Result

VERSION = 1
START = 20
"""Edges that are shown at first where no circuit was chosen."""
_LARGEST = 1e38
"""Of scores on a page: close to float32's largest, with room for its steps."""


def result_payload(
    results: "Sequence[Result]",
    *,
    names: Sequence[str] | None = None,
    truth: Circuit | None = None,
    truth_name: str = "",
    notes: Mapping[str, str] | None = None,
    roles: Mapping[str, object] | None = None,
    title: str | None = None,
    certificate: "Certificate | None" = None,
) -> dict[str, Any]:
    """Of one result or several of one subject, the first being the one that is looked at; `names`
    tells them apart.

    The circuit of a result is its chosen one, `truth` the true one where it is known. `notes` gives
    a word to write under a component, such as its variable, `roles` a sentence on what it does.
    The circuit of the first is that of the `certificate`, if one is given.
    """
    if not results:
        raise ValueError("a page needs at least one result, got none.")
    names = distinct(names or _names(results))
    results = on_one_graph(results, names, truth, certificate)
    first = results[0]
    chosen = START if first.chosen is None else len(first.chosen)
    shown = [prompts for prompts in (result.prompts for result in results) if prompts is not None]
    return _payload(
        first.graph,
        notes,
        roles,
        title=title or f"Circuit of {first.subject or 'a subject'}",
        text=list(dict.fromkeys(result.task for result in results if result.task)),
        results=[_result(result, name) for result, name in zip(results, names, strict=True)],
        truth=None if truth is None else _truth(truth, truth_name or "the true circuit"),
        certificate=None if certificate is None else _certificate(certificate),
        prompts=_prompts(shown[0]) if shown else [],
        start={"edges": min(chosen, first.graph.n_edges)},
    )


def circuit_payload(
    circuit: Circuit,
    *,
    title: str,
    text: str | Sequence[str] = (),
    notes: Mapping[str, str] | None = None,
    roles: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Of a circuit alone, without scores."""
    return _payload(
        circuit.graph,
        notes,
        roles,
        title=title,
        text=[text] if isinstance(text, str) else list(text),
        results=[],
        truth=_truth(circuit, title),
        certificate=None,
        prompts=[],
        start={"edges": len(circuit)},
    )


def on_one_graph(
    results: "Sequence[Result]",
    names: Sequence[str],
    truth: Circuit | None = None,
    certificate: "Certificate | None" = None,
) -> "list[Result]":
    """The results on the graph of the true circuit and the certificate or, without these, on a
    graph that suits all. The circuit of the first is the certified one, if there is one.

    Files of EAP-IG and MIB know no shared keys and values; their scores are brought to a graph that
    has them.
    """
    given = {} if truth is None else {"the true circuit": truth.graph}
    given |= {} if certificate is None else {"the certificate": certificate.circuit.graph}
    graphs = dict.fromkeys(given.values() or [result.graph for result in results])
    for graph in graphs if len(set(given.values())) < 2 else ():
        try:
            brought = [result.on(graph) for result in results]
        except ValueError:
            continue
        if certificate is not None:
            brought[0] = replace(brought[0], chosen=certificate.circuit)
        return brought
    differing = [
        f"{name} is of {result.graph.in_words}" for name, result in zip(names, results, strict=True)
    ]
    differing += [f"{what} is of {graph.in_words}" for what, graph in given.items()]
    raise ValueError(f"what one page shows must be of one subject: {'; '.join(differing)}.")


def distinct(names: Iterable[str]) -> list[str]:
    """The names, numbered where several would be the same."""
    names = list(names)
    counts, seen = Counter(names), Counter[str]()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(f"{name} ({seen[name]})" if counts[name] > 1 else name)
    return numbered


def ranked_alike(scores: Float[Tensor, " edge"]) -> Float32[np.ndarray, " edge"]:
    """The scores in single precision, ranked as they are: ties by edge order, no others."""
    order = scores.sort(descending=True, stable=True).indices.numpy()
    rounded = scores.double().numpy().clip(-_LARGEST, _LARGEST).astype(np.float32)
    # Floats as whole numbers that grow with them by one a step; the two zeros are one.
    steps = rounded.view(np.int32).astype(np.int64)
    steps = np.where(steps < 0, -(steps & 0x7FFFFFFF), steps)[order]
    # Down the ranking, an edge that precedes the last one in edge order must score less than it,
    # any other no more: y[i] = min(x[i], y[i-1] - back[i]), a running minimum of x + sum(back).
    back = np.diff(order, prepend=-1) < 0
    lower = back.cumsum()
    steps = np.minimum.accumulate(steps + lower) - lower
    bits = np.where(steps < 0, -steps | 0x80000000, steps).astype(np.uint32)
    separated = np.empty_like(rounded)
    separated[order] = bits.view(np.float32)
    return separated


def _payload(
    graph: ComponentGraph,
    notes: Mapping[str, str] | None,
    roles: Mapping[str, object] | None,
    **content: Any,
) -> dict[str, Any]:
    """The content, under what every page has."""
    told = {**(notes or {}), **(roles or {})}
    unknown = [name for name in told if name not in (*graph.writer_names, "logits")]
    if unknown:
        raise ValueError(
            f"notes and roles are for components such as a0.h0, m0 or logits, got {unknown[:3]} "
            f"for a graph of {graph.n_layers} layers x {graph.n_heads} heads."
        )
    return {
        "version": VERSION,
        "graph": {
            "n_layers": graph.n_layers,
            "n_heads": graph.n_heads,
            "n_kv_heads": graph.n_groups,
            "parallel": graph.parallel,
        },
        "component_notes": dict(notes or {}),
        "component_roles": {name: str(role) for name, role in (roles or {}).items()},
        **content,
    }


def _result(result: "Result", name: str) -> dict[str, Any]:
    curve = result.curve
    size = edges = best = None
    if result.chosen is not None:
        size = len(result.chosen)
        if result.circuit(edges=size) != result.chosen:
            size, edges, best = None, bitmap(result.chosen.mask), _best_edges(result, result.chosen)
    return {
        "name": name,
        "subject": result.subject,
        "task": result.task,
        "method": result.method,
        "notes": list(result.notes),
        "scores": _base64(ranked_alike(result.scores).astype("<f4")),
        "probabilities": _floats(result.probabilities),
        "chosen": size,
        "chosen_edges": edges,
        "chosen_best": best,
        "curve": None if curve is None else curve.to_json(),
    }


def _best_edges(result: "Result", circuit: Circuit) -> int | None:
    """The number of best edges of which the circuit has those on a path from input to logits."""
    inside = circuit.mask[result.ranking()].nonzero()
    size = int(inside[-1]) + 1 if len(inside) else 0
    return size if result.circuit(edges=size, prune=True) == circuit else None


def _names(results: "Sequence[Result]") -> list[str]:
    """Subject and method; of several results of one subject the method alone."""
    one = len(results) > 1 and len({result.subject for result in results}) == 1
    labels = [("" if one else result.subject, result.method) for result in results]
    return [", ".join(filter(None, named)) or "a result" for named in labels]


def _truth(circuit: Circuit, name: str) -> dict[str, Any]:
    return {"name": name, "edges": bitmap(circuit.mask)}


def _certificate(certificate: "Certificate") -> dict[str, Any]:
    rivals = {f"rival {i}": rival for i, rival in enumerate(certificate.rivals, start=1)}
    circuits = {"the certified circuit": certificate.circuit, "core": certificate.core, **rivals}
    chances = certificate.edges
    back = None if chances is None else chances.came_back
    likely = None if chances is None else chances.probability
    if back is not None and likely is not None:
        likely = likely.where(certificate.circuit.mask | (back > 0), torch.nan)
    return {
        "of": [text for text in (certificate.subject, certificate.task) if text],
        "verdict": certificate.verdict,
        "rows": certificate.rows(),
        "judged": [certificate.n_fresh, certificate.n_pairs, certificate.search],
        "notes": list(certificate.notes),
        "circuits": [_truth(one, name) for name, one in circuits.items() if one is not None],
        "meaning": "" if chances is None else chances.meaning,
        "came_back": _floats(back),
        "probability": _floats(likely),
    }


def _prompts(prompts: StoredPrompts) -> list[dict[str, Any]]:
    return [
        {
            "clean": list(prompts.clean[pair]),
            "corrupted": list(prompts.corrupted[pair]),
            "answer": prompts.answers[pair],
            "patterns": _base64(prompts.patterns[pair].numpy()),
            "patterns_corrupted": _base64(prompts.patterns_corrupted[pair].numpy()),
        }
        for pair in range(len(prompts))
    ]


def bitmap(mask: Bool[Tensor, " edge"]) -> str:
    """A mask as base64, eight edges per byte, the first in the lowest bit."""
    return _base64(np.packbits(mask.numpy(), bitorder="little"))


def _floats(values: Tensor | None) -> str | None:
    return None if values is None else _base64(values.numpy().astype("<f4"))


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()
