"""The `.pt` files in which EAP-IG keeps a graph and its scores, read as data.

`Graph.to_pt` saves a mapping: `cfg` (sizes), `src_nodes` and `dst_nodes` (names of writers and
readers), and the matrices `edges_scores` and `edges_in_graph`, a row per writer and a column per
reader; beside them scores of nodes and neurons, which are no part of a result. Their order of
writers and readers is ours, so an edge of ours is one entry of a matrix. Entries where a reader
cannot read the writer are not looked at.

EAP-IG's scores have signs. They stay as they are: whether the sign counts is for the reader to say
(`adapters.eap_ig`). A file whose scores are all zero scores its circuit 1, as in JSON.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.files import StoreError, short
from graphcircuits.graph import ComponentGraph
from graphcircuits.plain_weights import read_saved
from graphcircuits.store import DTYPES

_PARTS = ("cfg", "src_nodes", "dst_nodes", "edges_scores", "edges_in_graph")


def from_pt_file(path: str | Path) -> dict[str, Any]:
    """The fields of a result in a graph that EAP-IG saved."""
    content = read_saved(path)
    if missing := [name for name in _PARTS if name not in content]:
        raise StoreError(
            f"{path} is not a graph of EAP-IG: it lacks {', '.join(missing)}; expected what its "
            "Graph.to_pt writes."
        )
    cfg = content["cfg"]
    sizes = [cfg.get(name) if isinstance(cfg, dict) else None for name in ("n_layers", "n_heads")]
    if not all(type(size) is int and size > 0 for size in sizes):
        raise StoreError(f"{path}: cfg must hold n_layers and n_heads, whole numbers from 1.")
    n_layers, n_heads = sizes
    d_model, parallel = cfg.get("d_model"), cfg.get("parallel_attn_mlp", False)
    if type(d_model) not in (int, type(None)) or type(parallel) is not bool:
        raise StoreError(
            f"{path}: cfg must hold a whole number as d_model and true or false as "
            f"parallel_attn_mlp, got {short(d_model)} and {short(parallel)}."
        )
    shape = (1 + n_layers * (n_heads + 1), n_layers * (3 * n_heads + 1) + 1)
    scores, marked = content["edges_scores"], content["edges_in_graph"]
    kinds = {"edges_scores": (*DTYPES.values(),), "edges_in_graph": (torch.bool,)}
    for name, values in (("edges_scores", scores), ("edges_in_graph", marked)):
        # Before the graph is built: one of the sizes in a file can be larger than any memory.
        if not isinstance(values, Tensor) or values.shape != shape:
            found = tuple(values.shape) if isinstance(values, Tensor) else short(values)
            raise StoreError(
                f"{path}: {name} must have shape {shape} for {n_layers} layers x {n_heads} heads, "
                f"got {found}."
            )
        if values.dtype not in kinds[name]:
            raise StoreError(f"{path}: {name} cannot be of {values.dtype}.")
    assert isinstance(scores, Tensor)
    assert isinstance(marked, Tensor)
    graph = ComponentGraph(n_layers, n_heads, parallel=parallel)
    for part, names in (("src_nodes", graph.writer_names), ("dst_nodes", graph.reader_names)):
        if content[part] != list(names):
            raise StoreError(
                f"{path}: {part} must be {names[0]}, {names[1]}, ..., {names[-1]}, "
                f"got {short(content[part])}."
            )
    edges = (graph.edge_writers, graph.edge_readers)
    scores, marked = scores[edges], marked[edges]
    if not scores.any():
        if any(isinstance(x, Tensor) and (x.nan_to_num() != 0).any() for x in _node_scores(content)):
            raise StoreError(
                f"{path} scores nodes, not edges; a result needs a score for each edge."
            )
        scores = marked.to(scores.dtype)
    return {
        "graph": graph,
        "scores": scores,
        "d_model": d_model or None,
        "chosen": Circuit.from_mask(graph, marked) if marked.any() else None,
    }


def _node_scores(content: dict[str, object]) -> list[object]:
    return [content.get("nodes_scores"), content.get("neurons_scores")]
