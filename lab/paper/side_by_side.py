"""Several predictors of one shape at once, on several cases of one graph at once.

`stacked_layers.stacked` gives parameters a leading axis, the run; here states have the axes run and
case in front. What the network reads is one of two:

`StackedVectors`  for `tabpfn`: vectors of every case, listed as in `vectors`; cases of one graph
                  that differ in width are filled up with coordinates that are not known
`StackedTables`   for `invariant`: the numbers that each node knows

Runs may look at different cases. Graph learning may be done in a shorter number format than the
rest, which stays in that of the parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.predictor.block import along
from graphcircuits.predictor.invariant import InvariantAligner
from graphcircuits.predictor.model import Predictor
from graphcircuits.predictor.paper.align import TabpfnAligner
from graphcircuits.predictor.paper.pool import DeepSets, SetMean
from graphcircuits.predictor.paper.transform import Neighbourhoods
from lab.paper.vectors import VectorLayout


@dataclass(frozen=True, eq=False)
class StackedVectors:
    """The features of cases of one graph, for each run."""

    layout: VectorLayout
    values: Mapping[str, Float[Tensor, "run case vector pair position width"]]
    known: Mapping[str, Bool[Tensor, "run case width"]]
    """Which coordinates a case has."""
    identifiers: Mapping[str, Float[Tensor, "run case component width identifier"]]
    scored: Bool[Tensor, "run case pair position"]


@dataclass(frozen=True, eq=False)
class StackedTables:
    """What each node knows in cases of one graph, for each run."""

    nodes: Float[Tensor, "run case node column"]


def stacked_logits(
    predictor: Predictor,
    structure: Neighbourhoods,
    content: StackedVectors | StackedTables,
    *,
    noise: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "run case edge"]:
    """One logit per edge of every case, by each of the stacked predictors.

    `noise` draws what dropout drops, in training only; `dtype` is that of graph learning.
    """
    nodes = _aligned(predictor, content)
    own = nodes.dtype
    states = predictor.drop(nodes.to(dtype or own), noise)
    states = predictor.learner(states, structure, noise)
    edges = states.index_select(-2, structure.edge_nodes)
    if isinstance(content, StackedVectors):
        assert predictor.pool is not None
        edges = edges.unflatten(2, content.scored.shape[2:])
        edges = pooled(predictor.pool, edges, content.scored)
    return predictor.readout(predictor.norm(edges.to(own))).squeeze(-1)


def pooled(
    pool: DeepSets,
    h: Float[Tensor, "*lead pair position edge width"],
    scored: Bool[Tensor, "*lead pair position"],
) -> Float[Tensor, "*lead edge width"]:
    """What `pool` gives for several cases or runs at once, by which positions are scored."""
    by_pair = _set_means(pool.positions, h, scored)
    return _set_means(pool.pairs, by_pair, scored.any(-1))


def _set_means(
    stage: SetMean, h: Float[Tensor, "*lead row edge width"], counts: Bool[Tensor, "*lead row"]
) -> Float[Tensor, "*lead edge width"]:
    """One stage for many sets at once; the rows of a set that count are those in it."""
    weights = counts / counts.sum(-1, keepdim=True).clamp_min(1)
    rows = stage.inner(h)
    return stage.outer(torch.einsum("...rew,...r->...ew", rows, weights.to(rows.dtype)))


def _aligned(predictor: Predictor, content: StackedVectors | StackedTables) -> Tensor:
    """States of every node, (run, case, node, width) with an axis for contexts before the node
    where they are looked at one by one."""
    align = predictor.align
    if isinstance(content, StackedTables):
        assert isinstance(align, InvariantAligner)
        nodes = content.nodes
        return align.project((nodes - along(align.mean, nodes)) / along(align.deviation, nodes))
    assert isinstance(align, TabpfnAligner)
    aligned = [
        align.summaries(
            content.values[name].flatten(3, 4),
            content.identifiers[name][:, :, listed.component],
            listed.role,
            content.known[name],
        )
        for name, listed in content.layout.lists.items()
    ]
    return predictor.embed(content.layout.gather(torch.cat(aligned, dim=2)))
