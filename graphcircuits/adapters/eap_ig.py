"""Scores that EAP-IG (Hanna et al. 2024) saved, as results that our measures take.

1. `read_graph` reads its JSON or `.pt`. `Result.load` does so too and leaves the numbers alone.
2. EAP-IG's scores are effects with signs: the change of a loss when the edge is noised. A score of
   ours grows with the chance to be in the circuit, so `read_graph` takes absolute values, as
   EAP-IG's own `apply_topn` does, and keeps theirs as `signed`. MIB's evaluation keeps the sign
   unless it is started with `--absolute`: `absolute=False` gives that reading.
3. EAP-IG gives every head its own keys and values. Where heads share them, the effect of the one
   edge into a group is the sum of the effects of its heads, signs included, to first order: with
   `n_kv_heads` they are added up first. (`Result.on`, which has to suit any scores, takes the
   best of them.)
"""

from dataclasses import replace
from pathlib import Path

from graphcircuits.result.files import added_up
from graphcircuits.result.result import Result


def read_graph(path: str | Path, *, absolute: bool = True, n_kv_heads: int | None = None) -> Result:
    """A result from EAP-IG's `.json` or `.pt`, on a graph whose heads share keys if told so."""
    result = Result.load(path)
    if n_kv_heads is not None:
        scores, graph = result.scores, replace(result.graph, n_kv_heads=n_kv_heads)
        shared = graph != result.graph
        # For its checks and its circuit, in which an edge is if any head of the group has it.
        result = result.on(graph)
        result = replace(result, scores=added_up(graph, scores)) if shared else result
    return replace(result, scores=result.scores.abs()) if absolute else result
