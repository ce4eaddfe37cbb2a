"""Scores of edges by the paths they lie on: an edge carries no more than the best of them.

Of the best edges of a subject, those on no path from `input` to `logits` do nothing: their writer
puts out the same as in the corrupted run, or nothing uses their reader. A path is as good as its
worst edge. So an edge counts for the best path that it lies on, and is chosen when that path is:

1. from `input` on, `reached` is how good the best path to each writer is;
2. from `logits` back, `heard` is how good the best path from each reader is;
3. an edge's score is the least of its logit and these two. Edges of one bottleneck would tie: a
   small share of what an edge loses is left to it, so that the better ones come first.

Time and memory are linear in the edges, which are taken block by block.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.graph import Block, ComponentGraph
from graphcircuits.predictor.measure.scaling import edge_ends

LEFT = 1e-3
"""The share of what an edge loses that is left to it."""

Scores = Float[Tensor, "*case edge"]


def along_paths(scores: Float[Tensor, "*case edge"], graph: ComponentGraph) -> Scores:
    """Each score, or less where no path through the edge is as good; of several cases at once."""
    lead = scores.shape[:-1]
    reached = scores.new_full((*lead, graph.n_writers), torch.inf)
    heard = scores.new_full((*lead, graph.n_readers), torch.inf)
    leaving = scores.new_full((*lead, graph.n_writers), -torch.inf)
    blocks = graph.stream_blocks
    for block in blocks[:-1]:
        upstream = reached[..., None, : block.n_writers]
        best = torch.minimum(_rectangle(scores, block), upstream).amax(-1)
        reached[..., graph.served(block)] = _by_writer(graph, block, best)
    for block in reversed(blocks):
        readers = block.readers
        if block is not blocks[-1]:
            heard[..., readers] = _by_reader(graph, block, leaving[..., graph.served(block)])
        best = torch.minimum(_rectangle(scores, block), heard[..., readers, None]).amax(-2)
        here = leaving[..., : block.n_writers]
        here.copy_(torch.maximum(here, best))
    writers, readers = edge_ends(graph, scores.device)
    bound = torch.minimum(reached.index_select(-1, writers), heard.index_select(-1, readers))
    return scores.lerp(torch.minimum(scores, bound), 1 - LEFT)


def _rectangle(scores: Scores, block: Block) -> Float[Tensor, "*case reader writer"]:
    return scores[..., block.edges].unflatten(-1, (block.n_readers, block.n_writers))


def _by_writer(
    graph: ComponentGraph, block: Block, best: Float[Tensor, "*case reader"]
) -> Float[Tensor, "*case writer"]:
    """The best reader of each writer."""
    if block.kind == "mlp":
        return best
    queries, keys, values = best.split([graph.n_heads, graph.n_groups, graph.n_groups], dim=-1)
    groups = torch.maximum(keys, values)[..., None]
    return torch.maximum(queries.unflatten(-1, (graph.n_groups, -1)), groups).flatten(-2)


def _by_reader(
    graph: ComponentGraph, block: Block, best: Float[Tensor, "*case writer"]
) -> Float[Tensor, "*case reader"]:
    """The best writer that each reader feeds."""
    if block.kind == "mlp":
        return best
    groups = best.unflatten(-1, (graph.n_groups, -1)).amax(-1)
    return torch.cat([best, groups, groups], dim=-1)
