"""Refine scores on the very case they were given for: gradient steps on faithfulness itself.

1. The start is the ranking of the given scores, whatever method they come from: an edge's value is
   the logit of its rank, so that effects and logits of any scale begin alike.
2. Each step draws some sizes: half of them evenly over the logarithm of all, as a circuit of ten
   edges counts as much as one of ten thousand; half in the range where the ranking turns from
   keeping little to keeping enough, which decides how small a circuit can be. For each it draws a
   mask that keeps about so many of the best edges: gates near 0 or 1 far from the threshold, random
   near it. Edges that are cut carry corrupted values.
3. The loss is 1 - faithfulness by output on prompts drawn at random: a loss that names answers can
   be won at by circuits that do nothing else. Where clean and corrupted prompts were drawn
   independently of each other, each step pairs them anew, which keeps the ranking from fitting the
   few pairs there are.
4. A step follows the running mean of the gradient, divided by the root mean square over all edges
   and steps so far, at a rate that falls to 0 over the steps or the seconds that were given. Adam
   would divide by that of every edge alone, and edges that do next to nothing would wander as far
   as those that matter: what the start knows of them would be lost.
5. A quarter of the pairs is held back from the steps. The ranking, counted along paths
   (`predictor.paths`), is judged on them by `log_area` at the start, on the way at shares that
   double, and at the end, which also says where it turns. On the way that is the ranking of the
   mean of the values so far, later ones counting more: single ones are noisy until the rate has
   fallen. The best of these rankings is the result, the start included, so that a long way cannot
   fit few pairs too well unseen. It has the scores of the start: the edge that is best now gets the
   best of the given scores.

No labels are used. 2 and 3 are in `departure`. docs/research has what was tried: refine.md, and
estimators.md on how gates are drawn.
"""

import math
import time
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.methods.departure import Objective, Recipe, Turn
from graphcircuits.methods.prepare import Progress, Stop, for_scoring, prepare
from graphcircuits.predictor.looking import rank_logits
from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

STEPS = 300
"""Steps, where neither steps nor seconds are given."""
MOMENTS = (0.9, 0.999)
"""The decay of the running means of the gradient and of its square, as in Adam."""
LOOKS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Shares of the way at which the ranking is judged."""

Scores = Float[Tensor, " edge"]


@dataclass(frozen=True, kw_only=True)
class Refinement:
    """Refined scores, and how they came about."""

    scores: Scores
    steps: int
    """Steps made."""
    stopped: bool
    """Whether it was ended before its time."""
    before: float
    """`log_area` of the given scores on the pairs that judge."""
    after: float

    def describe(self) -> str:
        """In one sentence."""
        made = f"refined in {self.steps} steps" + (" and then stopped" if self.stopped else "")
        if not self.after < self.before:
            return f"{made}: nothing better was found, the scores are those of the method"
        return (
            f"{made}: the mean of what circuits of all sizes lack of the output from "
            f"{self.before:.3f} to {self.after:.3f}, on pairs that the steps did not see where "
            "there were enough"
        )


@dataclass(eq=False)
class RefineState:
    """Refining after some steps; changed in place, step by step."""

    values: Scores
    mean: Scores
    """That of the values so far, weighed by their step."""
    first: Scores
    """The running mean of the gradient."""
    second: Float[Tensor, ""]
    """That of the mean of its squares."""
    best: Scores
    """The values, along paths, that were judged best so far."""
    area: float
    """Their `log_area`."""
    turn: Turn
    """Where the values turned when they were last judged."""
    step: int
    elapsed: float
    """Seconds that the steps took."""
    looks: int
    """Times that the values were judged on the way."""
    generator: torch.Generator

    @classmethod
    def at(
        cls, start: Scores, area: float, turn: Turn, generator: torch.Generator
    ) -> "RefineState":
        zeros, square = torch.zeros_like(start), start.new_zeros((), dtype=torch.float64)
        values, mean, best = (start.clone() for _ in range(3))
        return cls(values, mean, zeros, square, best, area, turn, 0, 0.0, 0, generator)


def refinement(
    subject: Transformer,
    pairs: Pairs,
    scores: Scores,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
    memory_limit: int | None = None,
    recipe: Recipe | None = None,
    avoid: Scores | None = None,
) -> Refinement:
    """The scores in an order whose best edges are closer to faithful on the pairs, over all sizes.

    It takes `steps` steps, or as many as fit into `seconds` seconds; 300 steps where neither is
    given. An interrupt from the keyboard, or a `Stop` raised by `progress`, ends it with what it
    has reached. Without a generator the seed is 0. Memory stays below `memory_limit` bytes where
    one mask on one prompt allows it. What `avoid` says of an edge pushes it down at every step, in
    root mean squares of the gradient.
    """
    began = time.perf_counter()
    _check_length(steps, seconds)
    recipe = recipe or Recipe()
    if steps is None and seconds is None:
        steps = STEPS
    subject = for_scoring(subject)
    pairs = prepare(subject, pairs.by_output(subject.config.d_vocab_out), memory_limit)
    objective = Objective.of(subject, pairs, recipe, memory_limit)
    start = rank_logits(scores.detach()).to(subject.device)
    ready = time.perf_counter()
    before, turn = objective.judge(start)
    judging = time.perf_counter() - ready
    spent = ready - began + (1 + len(LOOKS)) * judging
    left = math.inf if seconds is None else seconds - spent
    seed = generator.initial_seed() if generator is not None else 0
    state = RefineState.at(start, before, turn, torch.Generator(subject.device).manual_seed(seed))

    def over() -> float:
        """How much of the way is over."""
        if steps is not None:
            return state.step / steps
        return 1.0 if left <= 0 else state.elapsed / left

    try:
        while (share := over()) < 1:
            since = time.perf_counter()
            gradient = objective.gradient(state.values, state.turn, state.generator)
            if avoid is not None:
                gradient += avoid.to(gradient) * gradient.square().mean().sqrt()
            advance(state, gradient, recipe.learning_rate * (1 - share))
            if subject.device.type == "cuda":
                torch.cuda.synchronize(subject.device)
            state.elapsed += time.perf_counter() - since
            _look(objective, state, over())
            if progress is not None:
                # Steps in all are an estimate where seconds were given.
                progress(state.step, steps or max(state.step, round(state.step / over())))
    except (Stop, KeyboardInterrupt):
        if avoid is not None:
            raise  # nobody asked for a rival
        # what has been reached so far is judged and returned
    _look(objective, state, 1.0)
    better = state.area < before
    values = state.best.to(scores.device)
    return Refinement(
        scores=sort_by_rank(scores, values) if better else scores.clone(),
        steps=state.step,
        stopped=over() < 1,
        before=before,
        after=state.area,
    )


def _look(objective: Objective, state: RefineState, share: float) -> None:
    """Judge the ranking where it is time to, and take note of the best."""
    looks = sum(look <= share for look in LOOKS)
    if looks == state.looks:
        return
    state.looks = looks
    values = state.values if looks == len(LOOKS) else state.mean
    # Edges on no path do nothing and get no gradient, so that steps leave them where they were.
    values = along_paths(rank_logits(values), objective.subject.graph)
    area, state.turn = objective.judge(values)
    if area < state.area:
        state.area, state.best = area, values


# Rankings


def sort_by_rank(scores: Scores, values: Scores) -> Scores:
    """The scores, the best given to the edge of the largest value, and so on.

    Equal scores are spread upward to the next larger one, so that they do not hide the order.
    """
    levels, counts = scores.double().unique(return_counts=True)
    steps = levels.diff()
    above = torch.cat([steps, steps[-1:] if len(steps) else torch.ones_like(levels)])
    starts = counts.cumsum(0) - counts
    level = torch.arange(len(levels), device=scores.device).repeat_interleave(counts)
    within = torch.arange(len(scores), device=scores.device) - starts[level]
    rising = levels[level] + above[level] * within / counts[level]
    worst_first = values.argsort(descending=True, stable=True).flip(0)
    return torch.empty_like(scores).scatter_(0, worst_first, rising.to(scores.dtype))


# Steps


def advance(state: RefineState, gradient: Scores, rate: float) -> None:
    """Move the values against the running mean of the gradient."""
    state.step += 1
    decay, decay_square = MOMENTS
    state.first.mul_(decay).add_(gradient, alpha=1 - decay)
    # All on the device: reading a number back would wait for it at every step.
    state.second.mul_(decay_square).add_(gradient.double().square().mean(), alpha=1 - decay_square)
    size = (state.second / (1 - decay_square**state.step)).sqrt()
    step = state.first * (rate / (1 - decay**state.step) / size.clamp(min=1e-300)).to(state.first)
    state.values.sub_(step)
    state.mean.lerp_(state.values, 2 / (state.step + 1))


# Refusals


def _check_length(steps: int | None, seconds: float | None) -> None:
    """Refuse what says how long to refine, if it makes no sense."""
    problems = []
    if steps is not None and seconds is not None:
        problems.append(f"give steps or seconds, not both, got {steps} and {seconds}")
    if steps is not None and (type(steps) is not int or steps < 1):
        problems.append(f"steps must be a whole number above 0, got {steps!r}")
    if seconds is not None and (type(seconds) not in (int, float) or not 0 < seconds < math.inf):
        problems.append(f"seconds must be a finite number above 0, got {seconds!r}")
    if problems:
        raise ValueError("; ".join(problems) + ".")
