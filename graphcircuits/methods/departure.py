"""How far circuits of the best edges are from faithful, and the gradient of that by the ranking.

The measure is that of training a predictor (`engine.relaxed`), on one subject and within limits of
memory; the tests compare it with `faithfulness`, and its gradient with differences.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.engine.memory import Footprint, at_once, explained
from graphcircuits.engine.relaxed import (
    check_gap,
    concrete,
    departure,
    mean_distance,
    ranks,
    stratified,
)
from graphcircuits.methods.prepare import MaskedLosses, masked_losses
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

JUDGED = 32
"""Prompts on which start and end are judged, at most."""
SIZES = 12
"""Sizes in equal ratios at which they are judged, and as many at equal distances."""
INDEPENDENT = 3.0
"""Standard errors by which pairs may differ from shuffled ones and still count as independent."""

Scores = Float[Tensor, " edge"]
Gates = Callable[[Float[Tensor, "mask edge"], torch.Generator], Float[Tensor, "mask edge"]]
"""Draws masks; given is how far every edge lies above the threshold of each, in spreads."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What one step draws, and how far it goes."""

    learning_rate: float = 0.1
    masks: int = 4
    prompts: int = 16
    """At most; fewer where memory does not take them."""
    spread: float = 0.3
    """How near to the threshold, in logits of the ranking, gates are random."""
    gates: Gates = concrete


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of edges, drawn where it matters and weighed to make up for it."""

    cumulative: Float[Tensor, " size"]
    weights: Float[Tensor, " size"]

    @classmethod
    def aimed(cls, judged: Int[Tensor, " judged"], errors: Tensor, n_edges: int) -> "Sizes":
        """Half of the draws are uniform, half as dense as errors are large."""
        at = np.arange(1, n_edges + 1)
        dense = torch.from_numpy(np.interp(at, judged.numpy(), errors.double().cpu().numpy()))
        density = 0.5 / n_edges + 0.5 * dense / dense.sum().clamp(min=1e-12)
        return cls(cumulative=density.cumsum(0), weights=1 / (n_edges * density))

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`n` sizes, one of each part of the range, and their weights."""
        uniform = torch.rand(n, generator=generator, dtype=torch.float64)
        drawn = torch.searchsorted(self.cumulative, stratified(uniform))
        drawn = drawn.clamp(max=len(self.weights) - 1)
        return drawn + 1, self.weights[drawn]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """How far circuits of the best edges are from faithful."""

    subject: Transformer
    pairs: Pairs
    recipe: Recipe
    losses: MaskedLosses
    clean: Float[Tensor, " prompt"]
    """The loss of every clean run."""
    gap: float
    """By how much the mean loss is larger when every edge is cut."""
    shuffled: bool
    """Whether steps pair clean and corrupted prompts anew."""
    judged: Int[Tensor, " size"]
    prompts: int
    """Prompts per step."""
    memory_limit: int | None

    @classmethod
    @torch.no_grad()
    def of(
        cls, subject: Transformer, pairs: Pairs, recipe: Recipe, memory_limit: int | None
    ) -> "Objective":
        """That of pairs with targets."""
        pairs = pairs.up_to_last_column() if subject.config.causal else pairs
        size = Footprint(subject, pairs.clean.shape[1])
        chunks = list(pairs.split(at_once(subject, size.passing, memory_limit)))
        clean, empty = (
            torch.cat([some.loss(subject.logits(getattr(some, kind))) for some in chunks]).float()
            for kind in ("clean", "corrupted")
        )
        check_gap([float(clean.mean())], [float(empty.mean())])
        n_edges = subject.graph.n_edges
        ratios, distances = (f(1, n_edges, SIZES) for f in (np.geomspace, np.linspace))
        judged = np.unique(np.concatenate([ratios, distances]).round().astype(np.int64))
        fitting = at_once(subject, size.masked(grad=True), memory_limit)
        return cls(
            subject=subject,
            pairs=pairs,
            recipe=recipe,
            losses=masked_losses(subject, pairs, memory_limit),
            clean=clean,
            gap=float(empty.mean() - clean.mean()),
            shuffled=exchangeable(subject, pairs),
            judged=torch.from_numpy(judged),
            prompts=min(recipe.prompts, len(pairs), fitting),
            memory_limit=memory_limit,
        )

    def gradient(self, values: Scores, sizes: Sizes, generator: torch.Generator) -> Scores:
        """An estimate of the gradient of the mean distance from 1, by the values of the edges."""
        recipe, device = self.recipe, self.subject.device
        values = values.detach().requires_grad_()
        rows, partners = self.prompts_for_step(generator)
        kept, weights = sizes.draw(recipe.masks, generator)
        thresholds = values.detach().sort(descending=True).values[kept.to(device) - 1]
        masks = recipe.gates((values - thresholds[:, None]) / recipe.spread, generator)
        numbers = self.prompts * Footprint(self.subject, self.pairs.clean.shape[1]).masked(
            grad=True
        )
        with explained(self.subject, "masks", recipe.masks, numbers):
            loss = mean_distance(self.departures(masks, rows, partners), weights)
            return torch.autograd.grad(loss, values)[0]

    def prompts_for_step(
        self, generator: torch.Generator
    ) -> tuple[Int[Tensor, " prompt"], Int[Tensor, " prompt"]]:
        """Clean prompts drawn for a step, and the corrupted ones that stand beside them."""
        rows = torch.randperm(len(self.pairs), generator=generator)[: self.prompts]
        partners = rows
        if self.shuffled:
            partners = torch.randint(len(self.pairs), rows.shape, generator=generator)
        return rows.to(self.subject.device), partners.to(self.subject.device)

    @torch.no_grad()
    def errors(self, values: Scores) -> Float[Tensor, " size"]:
        """The distance from 1 of the best edges, kept or cut, at every size that is judged."""
        n = min(JUDGED, len(self.pairs))
        masks = (ranks(values) < self.judged.to(values.device)[:, None]).to(values)
        total = torch.zeros(len(masks), device=values.device)
        size = Footprint(self.subject, self.pairs.clean.shape[1]).masked(grad=False)
        rows = torch.arange(n, device=self.subject.device)
        for some in rows.split(at_once(self.subject, size, self.memory_limit)):
            total += self.departures(masks, some, some) * len(some)
        return total.abs() / n

    def area(self, errors: Float[Tensor, " size"]) -> float:
        """The mean of the errors over all sizes."""
        share = self.judged.double() / self.subject.graph.n_edges
        return float(torch.trapezoid(errors.double().cpu(), share))

    def departures(
        self,
        masks: Float[Tensor, "mask edge"],
        rows: Int[Tensor, " prompt"],
        partners: Int[Tensor, " prompt"],
    ) -> Float[Tensor, " mask"]:
        """1 - faithfulness of every mask on some prompts, corrupted as others are."""
        return departure(self.losses(masks, rows, partners), self.clean[rows], self.gap)


@torch.no_grad()
def exchangeable(subject: Transformer, pairs: Pairs) -> bool:
    """Whether the pairs look as if clean and corrupted prompts were drawn independently.

    Then any corrupted prompt may stand beside any clean one. They do not where a pair shares more
    tokens, or fewer, than two prompts at random, or where its corrupted run is further from the
    target, or nearer: one that was made to give another answer.
    """
    pairs = pairs[:JUDGED]
    n = len(pairs)
    if n < 8 or not (pairs.scored == pairs.scored[:1]).all():
        return False
    logits = subject.trace(subject.embed(pairs.corrupted), pairs.columns).logits

    def unlike(measure: Callable[[int], Float[Tensor, " prompt"]]) -> bool:
        """Whether own partners and others differ by more than chance."""
        others = torch.stack([measure(shift) for shift in range(1, n)]).double().mean(0)
        gaps = measure(0).double() - others
        return bool(gaps.mean().abs() > INDEPENDENT * gaps.std() / n**0.5)

    def shared(shift: int) -> Float[Tensor, " prompt"]:
        return (pairs.clean == pairs.corrupted.roll(shift, 0)).float().mean(1)

    return not (
        unlike(shared) or unlike(lambda shift: pairs.loss_at_columns(logits.roll(shift, 0)))
    )
