"""The `.pt` files in which EAP-IG keeps a graph and its scores, read as data.

`Graph.to_pt` saves a mapping: `cfg` (sizes), `src_nodes` and `dst_nodes` (names of writers and
readers), and the matrices `edges_scores` and `edges_in_graph`, a row per writer and a column per
reader; beside them scores of nodes and neurons, which are no part of a result. Their order of
writers and readers is ours, so an edge of ours is one entry of a matrix. Entries where a reader
cannot read the writer are not looked at.

EAP-IG's scores have signs. They stay as they are, and are the signed effects of the result: whether
the sign counts is for the reader to say (`adapters.eap_ig`). A file whose scores are all zero
scores its circuit 1, as in JSON.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.files import StoreError, short
from graphcircuits.io.pickles import read_saved
from graphcircuits.io.store import DTYPES
from graphcircuits.result.files import NO_EDGE_SCORES, effects_in

_PARTS = ("cfg", "src_nodes", "dst_nodes", "edges_scores", "edges_in_graph")


def from_pt_file(path: str | Path) -> dict[str, Any]:
    """The fields of a result in a graph that EAP-IG saved."""
    content = read_saved(path)
    if missing := [name for name in _PARTS if name not in content]:
        raise StoreError(
            f"{path} is not a graph of EAP-IG: it lacks {', '.join(missing)}; expected what its "
            "Graph.to_pt writes."
        )
    n_layers, n_heads, d_model, parallel = _read_cfg(content["cfg"])
    # Compared before the graph is built: one of the sizes in a file can exceed any memory.
    shape = (1 + n_layers * (n_heads + 1), n_layers * (3 * n_heads + 1) + 1)
    scores = _matrix(content, "edges_scores", shape, (*DTYPES.values(),))
    marked = _matrix(content, "edges_in_graph", shape, (torch.bool,))
    graph = ComponentGraph(n_layers, n_heads, parallel=parallel)
    for field, names in (("src_nodes", graph.writer_names), ("dst_nodes", graph.reader_names)):
        if content[field] != list(names):
            raise ValueError(
                f"{field} must be {names[0]}, {names[1]}, ..., {names[-1]}, "
                f"got {short(content[field])}."
            )
    edges = (graph.edge_writers, graph.edge_readers)
    scores, marked = scores[edges], marked[edges]
    if not scores.any():
        if any(_has_scores(content.get(name)) for name in ("nodes_scores", "neurons_scores")):
            raise ValueError(NO_EDGE_SCORES)
        scores = marked.to(scores.dtype)
    return {
        "graph": graph,
        "scores": scores,
        "signed": effects_in(scores),
        "d_model": d_model or None,
        "chosen": Circuit.from_mask(graph, marked) if marked.any() else None,
    }


def _read_cfg(cfg: object) -> tuple[int, int, int | None, bool]:
    """Layers, heads, width if it is known, and whether attention and MLP are in parallel."""
    settings = cfg if isinstance(cfg, dict) else {}
    n_layers, n_heads = settings.get("n_layers"), settings.get("n_heads")
    if not (type(n_layers) is int and type(n_heads) is int and min(n_layers, n_heads) > 0):
        raise ValueError("cfg must hold n_layers and n_heads, whole numbers from 1.")
    d_model, parallel = settings.get("d_model"), settings.get("parallel_attn_mlp", False)
    if type(d_model) not in (int, type(None)) or type(parallel) is not bool:
        raise ValueError(
            f"cfg must hold a whole number as d_model and true or false as "
            f"parallel_attn_mlp, got {short(d_model)} and {short(parallel)}."
        )
    return n_layers, n_heads, d_model, parallel


def _matrix(
    content: dict[str, object], name: str, shape: tuple[int, int], dtypes: tuple[torch.dtype, ...]
) -> Tensor:
    value = content[name]
    if isinstance(value, Tensor) and value.shape == shape and value.dtype in dtypes:
        return value
    got = short(value)
    if isinstance(value, Tensor):
        got = f"{value.dtype} of shape {tuple(value.shape)}"
    kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    raise ValueError(
        f"{name} must be a matrix of {shape[0]} writers x {shape[1]} readers of {kinds}, "
        f"as its cfg says, got {got}."
    )


def _has_scores(value: object) -> bool:
    """Whether nodes or neurons are scored; NaN is EAP-IG's word for those that are not."""
    return isinstance(value, Tensor) and bool((value == value).logical_and(value != 0).any())
