"""Gradients at one's own circuits, `ig-own`: a few looks from where a circuit will be judged.

Attribution looks at the whole subject, or at runs in which all edges are open to one degree.
A small circuit is judged in another place: with nearly all other edges cut. So look there:

1. The start is EAP-IG along paths (`predictor.paths`), on the distance from the subject's own
   output. An edge's value is the logit of its rank.
2. At a few sizes in equal ratios, large ones first, the subject runs with the best edges so far:
   a mask sigmoid((value - threshold) / spread), soft near the threshold. The gradient of the
   distance by the masks of all edges says what each would be worth to this very circuit, inside of
   it and outside.
3. Values move along the gradient by themselves, divided by its root mean square over the edges near
   the threshold: far for the few that stand out there, and hardly for the many that the start knows
   better. The last values, ranked and counted along paths, are the scores.

That is one masked run with gradients for each size, at five sizes about as much as EAP-IG itself:
a refinement (`refine`) of so many steps, without draws. docs/research/own-circuits.md has what was
tried: large sizes first, since a small circuit is looked at with the ranking that larger ones
mended; steps rather than means of ranks. The tests compare it with a slow twin.
"""

from jaxtyping import Float
from torch import Tensor

from graphcircuits.methods.departure import in_own_units
from graphcircuits.methods.eap import eap_ig
from graphcircuits.methods.prepare import check_positive, for_scoring, prepare, to_clean_output
from graphcircuits.predictor.looking import proposed, rank_logits, worths
from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

Scores = Float[Tensor, " edge"]


def ig_own(
    subject: Transformer,
    pairs: Pairs,
    *,
    steps: int = 5,
    sizes: int = 5,
    spread: float = 1.0,
    rate: float = 0.3,
    memory_limit: int | None = None,
) -> Scores:
    """Ranks of edges by EAP-IG, mended by gradients at the circuits that the ranking itself gives.

    EAP-IG takes `steps` points. Circuits of `sizes` sizes follow, soft as far as `spread` around
    their threshold, in logits of ranks; after each, values move by `rate`, in the same unit, in the
    root mean square over the edges near it. Memory stays below `memory_limit` bytes where one
    prompt allows it.
    """
    check_positive(steps=steps, sizes=sizes, spread=spread)
    if not rate >= 0:
        raise ValueError(f"rate must be at least 0, got {rate}.")
    subject = for_scoring(subject)
    graph = subject.graph
    pairs = to_clean_output(subject, prepare(subject, pairs, memory_limit), memory_limit)
    effects = eap_ig(subject, pairs, steps=steps, memory_limit=memory_limit)
    # Effects may be tiny; only their order matters to paths.
    values = rank_logits(along_paths(rank_logits(effects), graph))
    worth = worths(subject, pairs, memory_limit=memory_limit)
    for number in range(sizes):
        _, masks = proposed(values, sizes, spread)
        mask = masks[number]
        _, gains = worth(mask[None])
        values = values + rate * in_own_units(gains[0] * mask * (1 - mask), mask)
    return along_paths(rank_logits(values), graph)
