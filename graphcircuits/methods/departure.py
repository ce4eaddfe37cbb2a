"""How far circuits of the best edges are from the subject's own output, and the gradient of that.

A circuit's departure is its divergence from the output of the whole subject, divided by that of the
run with every edge cut: 1 - faithfulness by output. The tests compare it with `faithfulness`, and
its gradient with differences. Some pairs are held back from the steps, to judge what they led to.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.engine.memory import Footprint, at_once, explained
from graphcircuits.engine.relaxed import (
    Gates,
    check_gap,
    concrete,
    departure,
    log_sizes,
    ranks,
    stratified,
)
from graphcircuits.methods.prepare import MaskedLosses
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

HELD_BACK, MOST_HELD = 0.25, 16
"""The share of the pairs that steps do not see, and how many at most."""
FEWEST = 8
"""Pairs below which none is held back: they judge what was refined on them."""
COMPARED = 32
"""Pairs that are looked at to see whether corrupted prompts were drawn independently."""
INDEPENDENT = 3.0
"""Standard errors by which pairs may differ from shuffled ones and still count as independent."""

LITTLE, ENOUGH = 0.3, 0.03
"""What circuits lack at the ends of the range of sizes where a ranking turns."""

Scores = Float[Tensor, " edge"]
Turn = Float[Tensor, "2"]
"""The logarithms of the sizes between which a ranking turns from keeping little to enough."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What one step draws, and how far it goes."""

    learning_rate: float = 0.1
    masks: int = 4
    near: int = 2
    """How many of them have a size at which the ranking turns from keeping little to enough."""
    prompts: int = 16
    """At most; fewer where memory does not take them."""
    spread: float = 0.3
    """How near to the threshold, in logits of the ranking, gates are random."""
    gates: Gates = concrete
    precision: str = "tf32"
    """Of products on a GPU (`engine.precision`); the gradient's direction is off by 4e-6."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """How far circuits of the best edges are from faithful."""

    subject: Transformer
    pairs: Pairs
    """Those that steps see."""
    recipe: Recipe
    losses: MaskedLosses
    """Of these pairs and, behind them, of those held back."""
    clean: Float[Tensor, " prompt"]
    """The loss of every clean run."""
    gap: float
    """By how much the mean loss is larger when every edge is cut."""
    shuffled: bool
    """Whether steps pair clean and corrupted prompts anew."""
    judges: Int[Tensor, " judge"]
    """The pairs that rankings are judged on, which steps do not see where there are enough."""
    sizes: Int[Tensor, " size"]
    """Those at which rankings are judged."""
    prompts: int
    """Prompts per step."""
    memory_limit: int | None

    @classmethod
    @torch.no_grad()
    def of(
        cls, subject: Transformer, pairs: Pairs, recipe: Recipe, memory_limit: int | None
    ) -> "Objective":
        """That of pairs whose loss is the distance from the subject's output."""
        pairs = pairs.up_to_last_column() if subject.config.causal else pairs
        size = Footprint(subject, pairs.clean.shape[1])
        chunks = list(pairs.split(at_once(subject, size.passing, memory_limit)))
        clean, empty = (
            torch.cat([some.loss(subject.logits(getattr(some, kind))) for some in chunks]).float()
            for kind in ("clean", "corrupted")
        )
        check_gap([float(clean.mean())], [float(empty.mean())])
        held = min(MOST_HELD, int(HELD_BACK * len(pairs))) if len(pairs) >= FEWEST else 0
        seen = pairs[: len(pairs) - held]
        first = len(seen) if held else 0
        precision = recipe.precision if subject.device.type == "cuda" else "full"
        fitting = at_once(subject, size.masked(grad=True), memory_limit)
        return cls(
            subject=subject,
            pairs=seen,
            recipe=recipe,
            losses=MaskedLosses(subject, pairs, memory_limit, precision),
            clean=clean,
            gap=float(empty.mean() - clean.mean()),
            shuffled=exchangeable(subject, pairs),
            judges=torch.arange(first, len(pairs), device=subject.device),
            sizes=torch.tensor(log_sizes(subject.graph.n_edges), device=subject.device),
            prompts=min(recipe.prompts, len(seen), fitting),
            memory_limit=memory_limit,
        )

    def gradient(self, values: Scores, turn: Turn, generator: torch.Generator) -> Scores:
        """The direction in which the mean departure over log sizes falls, by the edges' values.

        It is the sum over masks of gradients by the value of each edge, and every mask's is divided
        by its root mean square over the edges near the threshold: an edge of a circuit of ten
        matters a thousand times as much as one of a circuit of ten thousand, and both are to move.
        """
        recipe, n_masks = self.recipe, self.recipe.masks
        rows, partners = self.prompts_for_step(generator)
        best = values.sort(descending=True).values
        last = self.drawn_sizes(turn, generator) - 1
        thresholds = (best[last] + best[last + 1]) / 2
        above = ((values - thresholds[:, None]) / recipe.spread).requires_grad_()
        masks = recipe.gates(above, generator)
        size = Footprint(self.subject, self.pairs.clean.shape[1]).masked(grad=True)
        with explained(self.subject, "masks", n_masks, self.prompts * size):
            _, by_mask = self.losses.gradients(masks, rows, partners)
        (slopes,) = torch.autograd.grad(masks, above, by_mask)
        return in_own_units(slopes, above.detach().sigmoid()).sum(0)

    def drawn_sizes(self, turn: Turn, generator: torch.Generator) -> Int[Tensor, " mask"]:
        """Numbers of edges below all: those near the turn, and the others from all sizes, each one
        from one of as many equal ranges of their logarithm."""
        n_masks, near, n_edges = self.recipe.masks, self.recipe.near, self.subject.graph.n_edges
        given = {"generator": generator, "device": generator.device, "dtype": torch.float64}
        share = torch.cat([stratified(torch.rand(n, **given)) for n in (near, n_masks - near)])
        low, high = torch.zeros_like(share), torch.full_like(share, math.log(n_edges))
        low[:near], high[:near] = turn
        return (low + share * (high - low)).exp().long().clamp(1, n_edges - 1)

    def prompts_for_step(
        self, generator: torch.Generator
    ) -> tuple[Int[Tensor, " prompt"], Int[Tensor, " prompt"]]:
        """Clean prompts drawn for a step, and the corrupted ones that stand beside them."""
        given = {"generator": generator, "device": self.subject.device}
        rows = torch.randperm(len(self.pairs), **given)[: self.prompts]
        if not self.shuffled:
            return rows, rows
        return rows, torch.randint(len(self.pairs), rows.shape, **given)

    @torch.no_grad()
    def judge(self, values: Scores) -> tuple[float, Turn]:
        """`log_area` of the best edges, kept or cut, on the pairs that judge, and where the ranking
        turns there."""
        masks = (ranks(values) < self.sizes[:, None]).to(values)
        total = torch.zeros(len(masks), device=values.device)
        size = Footprint(self.subject, self.pairs.clean.shape[1]).masked(grad=False)
        for some in self.judges.split(at_once(self.subject, size, self.memory_limit)):
            total += self.departures(masks, some, some) * len(some)
        errors = (total / len(self.judges)).clamp(0, 1).double()
        x = self.sizes.double().log()
        begin, end = ((errors > lacking).sum() for lacking in (LITTLE, ENOUGH))
        turn = x[torch.stack([(begin - 1).clamp(min=0), end.clamp(max=len(x) - 1)])]
        return float(torch.trapezoid(errors, x) / (x[-1] - x[0])), turn

    def departures(
        self,
        masks: Float[Tensor, "mask edge"],
        rows: Int[Tensor, " prompt"],
        partners: Int[Tensor, " prompt"],
    ) -> Float[Tensor, " mask"]:
        """1 - faithfulness of every mask on some prompts, corrupted as others are."""
        return departure(self.losses(masks, rows, partners), self.clean[rows], self.gap)


def in_own_units(
    slopes: Float[Tensor, "*mask edge"], masks: Float[Tensor, "*mask edge"]
) -> Float[Tensor, "*mask edge"]:
    """Each mask's slopes over their root mean square among the edges near its threshold.

    Over all edges it would shrink with the graph: far from the threshold slopes are next to 0.
    """
    n_near = 4 * (masks * (1 - masks)).sum(-1, keepdim=True)
    unit = (slopes.square().sum(-1, keepdim=True) / n_near.clamp(min=1)).sqrt()
    return slopes / unit.clamp(min=torch.finfo(unit.dtype).tiny)


@torch.no_grad()
def exchangeable(subject: Transformer, pairs: Pairs) -> bool:
    """Whether the pairs look as if clean and corrupted prompts were drawn independently.

    Then any corrupted prompt may stand beside any clean one. They do not where a pair shares more
    tokens, or fewer, than two prompts at random, or where its corrupted run is further from the
    target, or nearer: one that was made to give another answer.
    """
    pairs = pairs[:COMPARED]
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
