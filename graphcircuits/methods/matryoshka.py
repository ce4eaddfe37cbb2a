"""Matryoshka attribution, `mattr` (Arora et al. 2026, arXiv 2609.25518): one ranking for all sizes.

Gates that are trained towards one sparsity rank edges well near that size alone. Here one score for
each edge is trained at all sizes at once:

1. All scores start at 0. Each step draws sizes, and turns the scores into one soft mask for each
   (`nested`): sigmoid((score - threshold) / temperature), with the threshold at which the mask adds
   up to the size. Masks of one ranking lie in each other like the dolls: with the size every gate
   opens further.
2. The gradient takes the threshold along, so that it says which edges to prefer and never that more
   would be better. Adam follows it.

Nothing is random but sizes and prompts, and there is no penalty. The published edge-level run takes
5,000 steps with one mask on one prompt, sizes drawn evenly (log-evenly in its variant `log`, the
better one at small sizes), and maximizes the logit difference.

Departures: the loss is the distance from the subject's own output, which is the variant `kl` of
their code, as for all gates of this package; sizes are log-uniform unless told otherwise, because
small circuits are what people want; a step takes several sizes, one from each of equal ranges, on
several prompts, and there are fewer steps; the threshold is looked for where it can be, whatever
the number of edges (their bracket of ten temperatures holds no mask of one among 70,000 edges).

The tests check size, nesting and gradients of the masks, and that planted circuits are found.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.relaxed import at_constant_size, stratified
from graphcircuits.methods.gates import Descent, Locations, fit
from graphcircuits.methods.prepare import Progress, check_choice, check_positive
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

SIZES = ("log", "uniform")
HALVINGS = 40
"""Of the range in which a threshold lies: finer than single precision tells numbers apart."""


def mattr(
    subject: Transformer,
    pairs: Pairs,
    *,
    sizes: str = "log",
    temperature: float = 0.5,
    steps: int = 300,
    learning_rate: float = 0.05,
    prompts: int = 16,
    samples: int = 4,
    memory_limit: int | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, " edge"]:
    """Scores of edges by Matryoshka attribution.

    `sizes` are drawn evenly in their logarithms ("log") or in numbers of edges ("uniform"), and
    `temperature` is how far around the threshold masks are neither 0 nor 1; each of `steps` takes
    `samples` sizes on `prompts` prompts. Without a generator the seed is 0.
    Memory stays below `memory_limit` bytes where one mask on the prompts of a step allows it.
    """
    check_choice("sizes", sizes, SIZES)
    check_positive(temperature=temperature)

    def draw(
        scores: Locations, n_masks: int, generator: torch.Generator
    ) -> Float[Tensor, "mask edge"]:
        shares = stratified(torch.rand(n_masks, generator=generator, dtype=torch.float64))
        n_edges = len(scores)
        drawn = n_edges**shares if sizes == "log" else 1 + shares * (n_edges - 1)
        return nested(scores, drawn.to(scores), temperature)

    descent = Descent(steps, learning_rate, prompts, generator, progress)
    return fit(subject, pairs, descent, samples, memory_limit, start=0.0, draw=draw)


def nested(
    scores: Float[Tensor, " edge"], sizes: Float[Tensor, " mask"], temperature: float
) -> Float[Tensor, "mask edge"]:
    """For each size a mask that adds up to it: soft around a threshold, open above it.

    Sizes are from above 0 to below the number of edges; the sums of the masks have no gradient.
    """
    with torch.no_grad():
        # All scores at the least one, or at the best, would need these thresholds.
        share = (sizes / len(scores)).clamp(max=1 - 1e-6)
        low, high = (end - temperature * share.logit()[:, None] for end in scores.aminmax())
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            sums = torch.sigmoid((scores - middle) / temperature).sum(-1, keepdim=True)
            many = sums > sizes[:, None]
            low, high = torch.where(many, middle, low), torch.where(many, high, middle)
    return at_constant_size(scores.expand(len(sizes), -1), (low + high) / 2, temperature)
