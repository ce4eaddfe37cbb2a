"""Refine scores on the very case they were given for: gradient steps on faithfulness itself.

1. The start is the ranking of the given scores, whatever method they come from: an edge's value is
   the logit of its place in it, so that effects and logits of any scale begin alike.
2. Each step draws some sizes from 1 to all edges, more often where the start is far from faithful,
   and weighs them so that every size counts alike, as in the area of CMD. For each it draws a mask
   that keeps about so many of the best edges: gates near 0 or 1 far from the threshold, random near
   it. Edges that are cut carry corrupted values.
3. The loss is the mean distance of faithfulness from 1 on prompts drawn at random. Where clean and
   corrupted prompts were drawn independently of each other, each step pairs them anew, which keeps
   the ranking from fitting the few pairs there are.
4. A step follows the running mean of the gradient, divided by the root mean square over all edges
   and steps so far, at a rate that falls to 0 over the steps or the seconds that were given. Adam
   would divide by that of every edge alone, and edges that do next to nothing would wander as far
   as those that matter: what the start knows of them would be lost.
5. The refined ranking is kept if its circuits, edges kept or cut, are closer to faithful on the
   pairs than those of the start. It is told in the values of the start: the edge that is best now
   gets the best of the given scores.

No labels are used. 2 and 3 are in `departure`, checkpoints in `refine_files`. docs/research has
what was tried: refine.md, and estimators.md on how gates are drawn.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.methods.departure import Objective, Recipe, Sizes
from graphcircuits.methods.prepare import Progress, Stop, prepare, settled
from graphcircuits.methods.refine_files import RefineState, load_state, save_state
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

STEPS = 300
"""Steps, where neither steps nor seconds are given."""
MOMENTS = (0.9, 0.999)
"""How much a step keeps of the running means of the gradient and of its square."""
SAVED = 30.0
"""Seconds between two checkpoints."""

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
    """Mean distance of faithfulness from 1 over all sizes, on the given pairs."""
    after: float

    def told(self) -> str:
        """In one sentence."""
        made = f"refined in {self.steps} steps" + (" and then stopped" if self.stopped else "")
        if not self.after < self.before:
            return f"{made}: nothing better was found, the scores are those of the method"
        return (
            f"{made}: mean distance of faithfulness from 1 on these pairs from "
            f"{self.before:.3f} to {self.after:.3f}"
        )


def refine(
    subject: Transformer,
    pairs: Pairs,
    scores: Scores,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
    memory_limit: int | None = None,
) -> Scores:
    """The scores in an order whose best edges are closer to faithful on the pairs, over all sizes.

    `scores` are those of any method. It takes `steps` steps, or as many as fit into `seconds`
    seconds; 300 steps where neither is given. An interrupt from the keyboard, or a `Stop` raised by
    `progress`, ends it with what it has reached. `checkpoint` is a `.safetensors` file, written
    now and then and at the end; where it exists, refining goes on from there, and ends where an
    unbroken run of as many steps ends. Without a generator the seed is 0. Memory stays below
    `memory_limit` bytes where one mask on one prompt allows it.
    """
    return refinement(
        subject,
        pairs,
        scores,
        steps=steps,
        seconds=seconds,
        generator=generator,
        progress=progress,
        checkpoint=checkpoint,
        memory_limit=memory_limit,
    ).scores


def refinement(
    subject: Transformer,
    pairs: Pairs,
    scores: Scores,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
    memory_limit: int | None = None,
    recipe: Recipe | None = None,
) -> Refinement:
    """`refine`, with what there is to know of it, and by a recipe of one's own."""
    began = time.perf_counter()
    check_length(steps, seconds, checkpoint)
    _check_scores(subject, scores)
    recipe, about = recipe or Recipe(), {"steps": steps, "seconds": seconds}
    if steps is None and seconds is None:
        about["steps"] = STEPS
    subject = settled(subject)
    pairs = prepare(subject, pairs, memory_limit)
    objective = Objective.of(subject, pairs, recipe, memory_limit)
    start = rank_logits(scores.detach()).to(subject.device)
    ready = time.perf_counter()
    errors = objective.errors(start)
    judging = time.perf_counter() - ready
    clock = _Clock(**about, spent=ready - began + 2 * judging)
    state = RefineState.at(start, generator or torch.Generator().manual_seed(0))
    if checkpoint is not None and Path(checkpoint).exists():
        state = load_state(Path(checkpoint), about, start)
    sizes = Sizes.aimed(objective.judged, errors, len(start))
    saved = time.perf_counter()
    try:
        while (share := clock.share(state)) < 1:
            since = time.perf_counter()
            gradient = objective.gradient(state.values, sizes, state.generator)
            advance(state, gradient, recipe.learning_rate * (1 - share))
            now = time.perf_counter()
            state.elapsed += now - since
            if checkpoint is not None and now - saved > SAVED:
                save_state(Path(checkpoint), about, start, state)
                saved = now
            if progress is not None:
                progress(state.step, clock.total(state))
    except (Stop, KeyboardInterrupt):
        pass  # what has been reached so far is judged and returned
    if checkpoint is not None:
        save_state(Path(checkpoint), about, start, state)
    before, after = (objective.area(each) for each in (errors, objective.errors(state.values)))
    better = after < before
    return Refinement(
        scores=dealt(scores, state.values.to(scores.device)) if better else scores.clone(),
        steps=state.step,
        stopped=clock.share(state) < 1,
        before=before,
        after=min(before, after),
    )


# Rankings


def rank_logits(scores: Scores) -> Scores:
    """The logit of every edge's place in the ranking; ties are broken by edge order, as ever."""
    n = len(scores)
    places = torch.empty(n, dtype=torch.float64, device=scores.device)
    best_first = scores.argsort(descending=True, stable=True)
    places[best_first] = torch.arange(n, dtype=torch.float64, device=scores.device)
    return (1 - (places + 0.5) / n).logit().float()


def dealt(scores: Scores, values: Scores) -> Scores:
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
    kept, kept_square = MOMENTS
    state.first.mul_(kept).add_(gradient, alpha=1 - kept)
    square = float(gradient.double().square().mean())
    state.second = kept_square * state.second + (1 - kept_square) * square
    size = (state.second / (1 - kept_square**state.step)) ** 0.5
    if size > 0:
        state.values.sub_(state.first, alpha=rate / (1 - kept**state.step) / size)


@dataclass(frozen=True, kw_only=True)
class _Clock:
    """How much of a run is over."""

    steps: int | None
    seconds: float | None
    spent: float
    """Seconds that everything but the steps takes."""

    def share(self, state: RefineState) -> float:
        if self.steps is not None:
            return state.step / self.steps
        assert self.seconds is not None
        left = self.seconds - self.spent
        return 1.0 if left <= 0 else state.elapsed / left

    def total(self, state: RefineState) -> int:
        """Steps in all: an estimate where seconds were given."""
        if self.steps is not None:
            return self.steps
        return max(state.step, round(state.step / self.share(state)))


# Refusals


def check_length(
    steps: int | None,
    seconds: float | None,
    checkpoint: str | Path | None,
    *,
    prefix: str = "",
) -> None:
    """Refuse what says how long to refine, and in which file, if it makes no sense.

    `prefix` is what stands before the names.
    """
    problems = []
    if steps is not None and seconds is not None:
        problems.append(
            f"give {prefix}steps or {prefix}seconds, not both, got {steps} and {seconds}"
        )
    if steps is not None and (type(steps) is not int or steps < 1):
        problems.append(f"{prefix}steps must be a whole number above 0, got {steps!r}")
    if seconds is not None and (type(seconds) not in (int, float) or not 0 < seconds < math.inf):
        problems.append(f"{prefix}seconds must be a finite number above 0, got {seconds!r}")
    if checkpoint is not None and Path(checkpoint).suffix != ".safetensors":
        problems.append(f"{prefix}checkpoint must be a .safetensors file, got {checkpoint}")
    if prefix and checkpoint is not None and steps is None and seconds is None:
        problems.append(f"{prefix}checkpoint goes with {prefix}steps or {prefix}seconds")
    if problems:
        raise ValueError("; ".join(problems) + ".")


def _check_scores(subject: Transformer, scores: Scores) -> None:
    n_edges = subject.graph.n_edges
    if scores.shape != (n_edges,) or not scores.is_floating_point():
        raise ValueError(
            f"scores must be one real number for each of {n_edges} edges, got {scores.dtype} of "
            f"shape {tuple(scores.shape)}."
        )
    if not scores.isfinite().all():
        raise ValueError(
            f"scores must be finite, {int((~scores.isfinite()).sum())} of {n_edges} are not."
        )
