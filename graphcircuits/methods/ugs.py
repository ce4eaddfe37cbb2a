"""Uniform gradient sampling: train the probability that each edge is kept (Li & Janson 2024).

1. Every edge is kept with a probability p, the sigmoid of its location. Its gate is drawn as 1, as
   0 or, in a window of probability w = p (1 - p) between the two, uniformly from 0..1; its mean is
   p. What a gate does not let through is replaced by the corrupted value.
2. Keeping an edge changes the expected loss by the mean slope of the loss over gates from 0 to 1,
   the others being drawn. So the slope at a gate that fell into its window, divided by w, estimates
   the gradient at p, and the slope itself that at the location. The estimate has no bias where the
   loss is linear in each gate, and samples differ from those of a kept-or-cut choice by little.
3. Adam minimizes loss + sparsity * (mean probability). A gate's score is its location.

Departures from the paper: ablation is by corrupted activations alone (its optimal constants are
another question); all masks of a step are judged on all its prompts, where the paper draws masks
for each; slopes are divided by the chance of the window and not by how many samples fell into it,
which would give edges that are almost settled less than their share; components have no penalty of
their own, and edges on no path are not cut before a run.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.methods.hard_concrete import Locations, Training, fit
from graphcircuits.methods.prepare import Progress, prepare, settled
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

START = 1.0
"""Where locations start: an edge is kept with a probability of 0.73."""


def ugs(
    subject: Transformer,
    pairs: Pairs,
    *,
    sparsity: float = 10.0,
    steps: int = 200,
    learning_rate: float = 0.1,
    prompts: int = 4,
    samples: int = 16,
    memory_limit: int | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, " edge"]:
    """Locations of the edges' probabilities.

    `sparsity` weighs the mean probability of an edge against the loss; each of `steps` draws
    `prompts` prompts and `samples` masks. Without a generator the seed is 0. Memory stays below
    `memory_limit` bytes where one mask on the prompts of a step allows it.
    """
    training = Training(
        steps=steps,
        learning_rate=learning_rate,
        prompts=prompts,
        samples=samples,
        generator=generator,
        progress=progress,
        memory_limit=memory_limit,
    )
    subject = settled(subject)
    pairs = prepare(subject, pairs, memory_limit)
    start = torch.full((subject.graph.n_edges,), START)

    def mean_kept(locations: Locations, _: int) -> Float[Tensor, ""]:
        return sparsity * locations.sigmoid().mean()

    return fit(subject, pairs, start, lambda gates: gates, mean_kept, training, draw)


def draw(locations: Locations, n: int, generator: torch.Generator) -> Float[Tensor, "sample gate"]:
    """`n` independent samples of every gate; the gradient is 1 in the window and 0 outside."""
    # The generator is on the CPU, so that every device sees the same draws.
    uniform = torch.rand(n, len(locations), generator=generator, dtype=torch.float64)
    kept = locations.sigmoid()
    # A probability that has been rounded to 0 or 1 has no window to divide by.
    window = (kept * (1 - kept)).detach().clamp(min=1e-6)
    return ((kept - uniform.to(kept)) / window + 0.5).clamp(0, 1)
