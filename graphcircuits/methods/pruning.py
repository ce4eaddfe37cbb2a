"""Edge pruning: train edge gates towards a given sparsity (Bhaskar et al. 2024).

1. Every edge has a hard-concrete gate; a closed one lets the corrupted value through.
2. The expected share of closed gates is driven to a goal that rises from 0 over the first part of
   training: loss + a * gap + b * gap^2 is minimized over the gates and maximized over the
   multipliers a and b (a Lagrangian), the gap being goal minus share.
3. A gate's score is its location: larger means more likely open.

The published method also gates nodes, to save memory in large models; here edges alone.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.methods.hard_concrete import Locations, Training, fit, probability_open
from graphcircuits.methods.prepare import Progress, prepare, settled
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

START = 3.0
"""Where gates start: almost surely open, so that training leaves from the whole subject."""


def edge_pruning(
    subject: Transformer,
    pairs: Pairs,
    *,
    sparsity: float = 0.95,
    warmup: float = 0.7,
    steps: int = 300,
    learning_rate: float = 0.1,
    multiplier_rate: float = 0.1,
    prompts: int = 32,
    samples: int = 2,
    memory_limit: int | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, " edge"]:
    """Locations of edge gates.

    `sparsity` is the share of edges to close, aimed at after a share `warmup` of the steps;
    `multiplier_rate` is the step size of the multipliers' ascent: 1 meets the goal closely in a
    few hundred steps, the default falls short of it but ranks edges better. Each of `steps` draws
    `prompts` prompts and `samples` samples of all gates. Without a generator the seed is 0.
    Memory stays below `memory_limit` bytes where one sample on the prompts of a step allows it.
    """
    problems = [
        f"{name} must be in 0..1, got {value}"
        for name, value in (("sparsity", sparsity), ("warmup", warmup))
        if not 0 <= value <= 1
    ]
    if problems:
        raise ValueError("; ".join(problems) + ".")
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
    multipliers = [0.0, 0.0]

    def lagrangian(locations: Locations, step: int) -> Float[Tensor, ""]:
        goal = sparsity * min(1.0, (step + 1) / max(1.0, warmup * steps))
        gap = goal - (1 - probability_open(locations).mean())
        term = multipliers[0] * gap + multipliers[1] * gap.square()
        # Ascent: each multiplier grows by its own gradient.
        multipliers[0] += multiplier_rate * gap.item()
        multipliers[1] += multiplier_rate * gap.item() ** 2
        return term

    return fit(subject, pairs, start, lambda gates: gates, lagrangian, training)
