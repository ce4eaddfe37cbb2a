"""Graph Circuit Learning: a trained predictor reads the circuit off in one pass.

One clean and one corrupted run of the subject and one backward pass give every edge its features;
the predictor, trained on subjects whose circuits are known, turns them into scores. The shipped
one is in `graphcircuits.predictor.ensemble`; `graphcircuits train` makes others.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.methods.prepare import placed
from graphcircuits.predictor.ensemble import find_ensemble
from graphcircuits.task import Pairs
from graphcircuits.transformer import Transformer


def gcl(
    subject: Transformer,
    graph: ComponentGraph,
    pairs: Pairs,
    *,
    predictor: str = "default",
    generator: torch.Generator | None = None,
) -> Float[Tensor, " edge"]:
    """The predictor's logit of every edge: above 0 where it holds the edge for likely.

    `predictor` is `default`, `fold-0` to `fold-4` (trained without the cases of a fold), or a file
    that `graphcircuits train` wrote. `generator` draws the contexts of predictors that look at
    single ones; without it the seed is 0.
    """
    pairs = placed(subject, graph, pairs)
    if pairs.needs_targets:
        raise ValueError(
            f"gcl reads the gradient of the loss at the clean run, but these {pairs.kind} pairs "
            "have no targets of their own: their loss is the distance to that very run, and flat "
            "there; give the right answers as targets, or use eap-ig or exact."
        )
    ensemble = find_ensemble(predictor).to(subject.device)
    generator = generator or torch.Generator().manual_seed(0)
    return ensemble.scores(subject, pairs, generator=generator)
