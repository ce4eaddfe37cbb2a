"""Gates between 0 and 1 that gradients can open and close, and the loop that trains them.

1. A gate has one parameter, its location. A sample is a stretched logistic, cut off at 0 and 1, so
   that it is exactly 0 or 1 with positive probability (Louizos et al. 2018).
2. `probability_open` is the chance that a sample is not 0.
3. `fit` trains locations with Adam on sampled gates, these or others: each step draws prompts and
   gates, runs the subject with the gates as edge masks, and adds a penalty on the locations to the
   loss, or to the distance from the subject's own output where a circuit could win at the loss.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.engine.memory import Footprint, explained
from graphcircuits.methods.prepare import (
    Progress,
    Stop,
    check_positive,
    corrupted_outputs,
    trainable,
)
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

TEMPERATURE = 2 / 3
LOW, HIGH = -0.1, 1.1
"""The ends of the stretched interval."""

_SHIFT = TEMPERATURE * math.log(-LOW / HIGH)

Locations = Float[Tensor, " gate"]


def sample(
    locations: Locations, n: int, generator: torch.Generator
) -> Float[Tensor, "sample gate"]:
    """`n` independent samples of every gate."""
    return sample_each(locations.expand(n, -1), generator)


def sample_each(
    locations: Float[Tensor, "sample gate"], generator: torch.Generator
) -> Float[Tensor, "sample gate"]:
    """One sample of every gate, each at a location of its own."""
    # The generator is on the CPU, so that every device sees the same draws.
    uniform = torch.rand(locations.shape, generator=generator, dtype=torch.float64)
    noise = uniform.clamp(1e-7, 1 - 1e-7).logit().to(locations)
    return ((noise + locations) / TEMPERATURE).sigmoid().mul(HIGH - LOW).add(LOW).clamp(0, 1)


def probability_open(locations: Locations) -> Locations:
    """The chance that a sample is above 0."""
    return (locations - _SHIFT).sigmoid()


@dataclass(frozen=True, kw_only=True)
class Training:
    """How gates are trained."""

    steps: int
    learning_rate: float
    prompts: int
    """Prompts per step, at most all; none is repeated until fewer are left than a step takes."""
    samples: int
    """Samples of all gates per step."""
    generator: torch.Generator | None
    """None draws with seed 0."""
    progress: Progress | None
    memory_limit: int | None

    def __post_init__(self) -> None:
        names = ("steps", "learning_rate", "prompts", "samples")
        check_positive(**{name: getattr(self, name) for name in names})


def fit(
    subject: Transformer,
    pairs: Pairs,
    start: Locations,
    to_masks: Callable[[Float[Tensor, "sample gate"]], Float[Tensor, "sample edge"]],
    penalty: Callable[[Locations, int], Float[Tensor, ""]],
    training: Training,
    draw: Callable[[Locations, int, torch.Generator], Float[Tensor, "sample gate"]] = sample,
) -> Locations:
    """The locations after training from `start`.

    `to_masks` turns gates into edge masks; `penalty` is given the locations and the step. `draw`
    samples the gates: hard-concrete ones unless told.
    """
    generator = training.generator or torch.Generator().manual_seed(0)
    pairs = trainable(subject, pairs, training.memory_limit)
    pairs = pairs.up_to_last_column() if subject.config.causal else pairs
    corrupted = corrupted_outputs(subject, pairs, training.memory_limit)
    locations = start.to(subject.weights["W_E"]).clone().requires_grad_()
    optimizer = torch.optim.Adam([locations], lr=training.learning_rate)
    prompts = min(training.prompts, len(pairs))
    numbers = prompts * Footprint(subject, pairs.clean.shape[1]).masked(grad=True)
    order = torch.empty(0, dtype=torch.int64)
    for step in range(training.steps):
        if len(order) < prompts:
            order = torch.randperm(len(pairs), generator=generator)
        rows, order = order[:prompts].to(subject.device), order[prompts:]
        part = pairs[rows]
        masks = to_masks(draw(locations, training.samples, generator))
        losses = masked_logits(
            subject,
            part.clean,
            masks,
            corrupted(rows),
            metric=part.loss_at_columns,
            columns=part.columns,
            memory_limit=training.memory_limit,
        )
        objective = losses.mean() + penalty(locations, step)
        optimizer.zero_grad()
        with explained(subject, "masks", training.samples, numbers):
            objective.backward()
        optimizer.step()
        try:
            if training.progress is not None:
                training.progress(step + 1, training.steps)
        except Stop:
            break
    return locations.detach()
