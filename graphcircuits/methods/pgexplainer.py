"""PGExplainer for circuits: an MLP that scores edges by what their linear maps are like.

1. Every edge is described by numbers from the parameters alone (`descriptors`), standardized over
   the edges of the subject.
2. An MLP turns them into one logit per edge. An edge is kept with probability sigmoid(logit); a
   sample is a concrete (relaxed Bernoulli) variable, sigmoid((logit + logistic noise) /
   temperature), and the temperature falls from hot to cold.
3. The subject runs on clean prompts with the sample as its edge masks: as far as an edge is
   dropped, it carries its corrupted value.
4. Adam fits the MLP to
   distance / distance of the corrupted run
   + size * mean probability + entropy * mean entropy of keeping an edge.
   The distance is that of the output to the clean run's: KL divergence, or the absolute difference
   where the output is one number. Divided so, it is 0 for the clean run and 1 for the corrupted one
   in every task, and one size weight serves tasks of all kinds.
5. An edge's score is its logit after the last step.

This is the paper's adaptation of PGExplainer (Luo et al. 2020): one MLP per subject and task,
fitted without labels. Size and entropy are of the probabilities, not of the samples that stand for
them, which only adds noise. All edges start as almost surely kept, so that the fit leaves from the
whole subject and not from one in which every edge is half corrupted. The tests fit a twin that runs
the subject edge by edge, and get the same scores.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.engine.memory import Footprint, at_once
from graphcircuits.engine.relaxed import concrete
from graphcircuits.methods.descriptors import describe, standardized
from graphcircuits.methods.gates import Descent
from graphcircuits.methods.prepare import (
    MaskedLosses,
    Progress,
    check_positive,
    for_scoring,
    prepare,
    to_clean_output,
)
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

START = 3.0
"""Logit of every edge before the first step: kept with a probability of 0.95."""

Distance = Callable[[Float[Tensor, "sample edge"], Int[Tensor, " prompt"]], Float[Tensor, ""]]
"""How far outputs under these masks are from the clean ones, on these prompts; 1 = corrupted."""


@dataclass(frozen=True)
class Fit:
    """How an explainer is fitted; the defaults are the method's."""

    size: float = 0.03
    entropy: float = 0.01
    learning_rate: float = 0.005
    hot: float = 5.0
    """Temperature of the first step; it falls geometrically."""
    cold: float = 1.0
    """Temperature of the last step."""
    steps: int = 300
    prompts: int = 8
    """Prompts per step, at most all; none is repeated until fewer are left than a step takes."""
    samples: int = 8
    """Masks per step. Many masks on few prompts cost as much as few masks on many, and tell more:
    the noise is mostly that of the masks."""
    width: int = 64
    """Of both hidden layers."""

    def __post_init__(self) -> None:
        names = ("learning_rate", "hot", "cold", "steps", "prompts", "samples", "width")
        check_positive(**{name: getattr(self, name) for name in names})
        negative = [name for name in ("size", "entropy") if getattr(self, name) < 0]
        if negative:
            values = ", ".join(f"{name}={getattr(self, name)}" for name in negative)
            raise ValueError(
                f"size and entropy weigh penalties and cannot be negative, got {values}."
            )

    def temperature(self, step: int) -> float:
        return self.hot * (self.cold / self.hot) ** (step / max(1, self.steps - 1))


def pgexplainer(
    subject: Transformer,
    pairs: Pairs,
    *,
    size: float = Fit.size,
    entropy: float = Fit.entropy,
    learning_rate: float = Fit.learning_rate,
    hot: float = Fit.hot,
    cold: float = Fit.cold,
    steps: int = Fit.steps,
    prompts: int = Fit.prompts,
    samples: int = Fit.samples,
    width: int = Fit.width,
    memory_limit: int | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, " edge"]:
    """Logits of keeping each edge.

    `size` and `entropy` weigh the two penalties; the temperature falls from `hot` to `cold`. Each
    of `steps` draws `prompts` prompts and `samples` masks; `width` is that of the MLP's two hidden
    layers. Without a generator the seed is 0. Memory stays below `memory_limit` bytes where one
    mask on the prompts of a step allows it.
    """
    options = Fit(size, entropy, learning_rate, hot, cold, steps, prompts, samples, width)
    subject = for_scoring(subject)
    pairs = to_clean_output(subject, prepare(subject, pairs, memory_limit), memory_limit)
    described = standardized(describe(subject)).to(subject.dtype)
    distance = engine_distance(subject, pairs, memory_limit)
    return fit(described, distance, len(pairs), options, generator=generator, progress=progress)


@torch.no_grad()
def corrupted_distance(
    subject: Transformer, pairs: Pairs, memory_limit: int | None = None
) -> Float[Tensor, ""]:
    """The mean distance of the corrupted runs from the clean ones."""
    size = at_once(subject, Footprint(subject, pairs.clean.shape[1]).passing, memory_limit)
    chunks = pairs.split(size)
    distance = torch.cat([some.loss(subject.logits(some.corrupted)) for some in chunks]).mean()
    if distance <= 0:
        raise ValueError(
            "the corrupted runs have the outputs of the clean ones at all scored positions, so no "
            "edge is needed to preserve them; check the scored positions and corrupted prompts."
        )
    return distance


def engine_distance(
    subject: Transformer, pairs: Pairs, memory_limit: int | None = None
) -> Distance:
    """What a fit minimizes, for pairs from `to_clean_output`: all sampled masks in one call."""
    whole = corrupted_distance(subject, pairs, memory_limit)
    losses = MaskedLosses(subject, pairs, memory_limit)
    return lambda masks, rows: losses(masks, rows).mean() / whole


def fit(
    described: Float[Tensor, "edge descriptor"],
    distance: Distance,
    n_prompts: int,
    options: Fit,
    *,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, " edge"]:
    """The logits after fitting an MLP on the descriptions."""
    descent = Descent(options.steps, options.learning_rate, options.prompts, generator, progress)
    weights = initial_weights(described, options.width, descent.draws)

    def objective(rows: Int[Tensor, " prompt"], step: int) -> Float[Tensor, ""]:
        logits = edge_logits(weights, described)
        masks = logits.expand(options.samples, -1)
        masks = concrete(masks, descent.draws, options.temperature(step))
        return distance(masks, rows.to(described.device)) + penalty(logits, options)

    descent.minimize(weights, objective, n_prompts)
    with torch.no_grad():
        return edge_logits(weights, described)


def initial_weights(
    described: Float[Tensor, "edge descriptor"], width: int, generator: torch.Generator
) -> list[Float[Tensor, "..."]]:
    """Weights and biases of the three layers; the last is zero, so that all logits are `START`."""
    weights = []
    for d_in, d_out in ((described.shape[1], width), (width, width)):
        # The generator is on the CPU, so that every device sees the same draws.
        normal = torch.randn(d_in, d_out, generator=generator, dtype=torch.float64)
        weights += [normal * math.sqrt(2 / d_in), torch.zeros(d_out)]
    weights += [torch.zeros(width, 1), torch.zeros(1)]
    return [weight.to(described).requires_grad_() for weight in weights]


def edge_logits(
    weights: list[Float[Tensor, "..."]], described: Float[Tensor, "edge descriptor"]
) -> Float[Tensor, " edge"]:
    """The MLP's output, above where every edge starts."""
    W_1, b_1, W_2, b_2, W_3, b_3 = weights
    hidden = F.relu(described @ W_1 + b_1)
    hidden = F.relu(hidden @ W_2 + b_2)
    return START + (hidden @ W_3 + b_3).squeeze(1)


def penalty(logits: Float[Tensor, " edge"], options: Fit) -> Float[Tensor, ""]:
    """size * mean probability + entropy * mean entropy (in nats) of keeping an edge."""
    probability = logits.sigmoid()
    # -p log p - (1 - p) log(1 - p), finite for any logit.
    entropy = F.softplus(logits) - probability * logits
    return options.size * probability.mean() + options.entropy * entropy.mean()
