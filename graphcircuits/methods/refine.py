"""Refine scores on the very case they were given for: gradient steps on faithfulness itself.

1. The start is the ranking of the given scores, whatever method they come from: an edge's value is
   the logit of its rank, so that effects and logits of any scale begin alike.
2. Each step draws some sizes from 1 to all edges, evenly over their logarithm: a circuit of ten
   edges counts as much as one of ten thousand. For each it draws a mask that keeps about so many of
   the best edges: gates near 0 or 1 far from the threshold, random near it. Edges that are cut
   carry corrupted values.
3. The loss is 1 - faithfulness by output on prompts drawn at random: a loss that names answers can
   be won at by circuits that do nothing else. Where clean and corrupted prompts were drawn
   independently of each other, each step pairs them anew, which keeps the ranking from fitting the
   few pairs there are.
4. A step follows the running mean of the gradient, divided by the root mean square over all edges
   and steps so far, at a rate that falls to 0 over the steps or the seconds that were given. Adam
   would divide by that of every edge alone, and edges that do next to nothing would wander as far
   as those that matter: what the start knows of them would be lost.
5. A quarter of the pairs is held back from the steps. The given ranking is judged on them by
   `log_area`, and so is, after each quarter of the way, the one reached, in which edges count along
   paths (`predictor.paths`). The best of these is the result. It has the scores of the start: the
   edge that is best now gets the best of the given scores.

A checkpoint holds the ranking that was refined, the values it has come to and the best so far, the
averages of the gradient, the steps and seconds that it took, and the state of the generator: going
on from it takes the very steps that an unbroken run takes.

No labels are used. 2 and 3 are in `departure`. docs/research has what was tried: refine.md, and
estimators.md on how gates are drawn.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.io.store import StoreError, load_artifact, save_artifact, taken_apart
from graphcircuits.methods.departure import Objective, Recipe
from graphcircuits.methods.prepare import Progress, Stop, for_scoring, prepare
from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

STEPS = 300
"""Steps, where neither steps nor seconds are given."""
MOMENTS = (0.9, 0.999)
"""The decay of the running means of the gradient and of its square, as in Adam."""
SAVED = 30.0
"""Seconds between two checkpoints."""
KIND = "refine-checkpoint"
TENSORS = ("values", "first", "best")
"""Of a checkpoint, those of the state."""
NUMBERS = ("area", "step", "elapsed", "looks")
LOOKS = 4
"""Times that the ranking is judged on the way, the end included."""
REMEDY = "give another file, or delete it to start afresh"

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
    first: Scores
    """The running mean of the gradient."""
    second: Float[Tensor, ""]
    """That of the mean of its squares."""
    best: Scores
    """The values, along paths, that were judged best so far."""
    area: float
    """Their `log_area`."""
    step: int
    elapsed: float
    """Seconds that the steps took."""
    looks: int
    """Times that the values were judged on the way."""
    generator: torch.Generator

    @classmethod
    def at(cls, start: Scores, area: float, generator: torch.Generator) -> "RefineState":
        zeros, square = torch.zeros_like(start), start.new_zeros((), dtype=torch.float64)
        return cls(start.clone(), zeros, square, start.clone(), area, 0, 0.0, 0, generator)


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
    """The scores in an order whose best edges are closer to faithful on the pairs, over all sizes.

    It takes `steps` steps, or as many as fit into `seconds` seconds; 300 steps where neither is
    given. An interrupt from the keyboard, or a `Stop` raised by `progress`, ends it with what it
    has reached. `checkpoint` is a `.safetensors` file, written now and then and at the end; where
    it exists, refining goes on from there, and ends where an unbroken run of as many steps ends.
    Without a generator the seed is 0. Memory stays below `memory_limit` bytes where one mask on one
    prompt allows it.
    """
    began = time.perf_counter()
    _check_length(steps, seconds, checkpoint)
    recipe, about = recipe or Recipe(), {"steps": steps, "seconds": seconds}
    if steps is None and seconds is None:
        about["steps"] = STEPS
    subject = for_scoring(subject)
    pairs = prepare(subject, pairs.by_output(subject.config.d_vocab_out), memory_limit)
    objective = Objective.of(subject, pairs, recipe, memory_limit)
    start = rank_logits(scores.detach()).to(subject.device)
    ready = time.perf_counter()
    before = objective.area(start)
    judging = time.perf_counter() - ready
    clock = _Clock(**about, spent=ready - began + (1 + LOOKS) * judging)
    seed = generator.initial_seed() if generator is not None else 0
    state = RefineState.at(start, before, torch.Generator(subject.device).manual_seed(seed))
    if checkpoint is not None and Path(checkpoint).exists():
        state = load_state(Path(checkpoint), about, start)
    saved = time.perf_counter()
    try:
        while (share := clock.share(state)) < 1:
            since = time.perf_counter()
            gradient = objective.gradient(state.values, state.generator)
            advance(state, gradient, recipe.learning_rate * (1 - share))
            if subject.device.type == "cuda":
                torch.cuda.synchronize(subject.device)
            now = time.perf_counter()
            state.elapsed += now - since
            _look(objective, state, clock.share(state))
            if checkpoint is not None and now - saved > SAVED:
                save_state(Path(checkpoint), about, start, state)
                saved = now
            if progress is not None:
                progress(state.step, clock.total(state))
    except (Stop, KeyboardInterrupt):
        pass  # what has been reached so far is judged and returned
    if checkpoint is not None:
        save_state(Path(checkpoint), about, start, state)
    # Behind the checkpoint: a run that goes on from there judges where an unbroken one does.
    _look(objective, state, 1.0)
    better = state.area < before
    values = state.best.to(scores.device)
    return Refinement(
        scores=sort_by_rank(scores, values) if better else scores.clone(),
        steps=state.step,
        stopped=clock.share(state) < 1,
        before=before,
        after=state.area,
    )


def _look(objective: Objective, state: RefineState, share: float) -> None:
    """Judge the values where another part of the way is over, and take note of the best."""
    if (looks := int(LOOKS * min(1.0, share))) <= state.looks:
        return
    state.looks = looks
    # Edges on no path do nothing and get no gradient, so that steps leave them where they were.
    values = along_paths(rank_logits(state.values), objective.subject.graph)
    area = objective.area(values)
    if area < state.area:
        state.area, state.best = area, values


# Rankings


def rank_logits(scores: Scores) -> Scores:
    """The logit of every edge's rank; ties are broken by edge order, as ever."""
    n = len(scores)
    ranks = torch.empty(n, dtype=torch.float64, device=scores.device)
    best_first = scores.argsort(descending=True, stable=True)
    ranks[best_first] = torch.arange(n, dtype=torch.float64, device=scores.device)
    return (1 - (ranks + 0.5) / n).logit().float()


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


# Checkpoints


def save_state(
    path: Path, about: Mapping[str, Any], start: Float[Tensor, " edge"], state: RefineState
) -> None:
    """Write a checkpoint; `about` says how long the run is to be, `start` what it began with."""
    tensors = {name: getattr(state, name) for name in TENSORS}
    tensors |= {"start": start, "generator": state.generator.get_state()}
    meta = {name: getattr(state, name) for name in NUMBERS} | {"second": float(state.second)}
    save_artifact(path, kind=KIND, config=about, seed=None, tensors=tensors, meta=meta)


def load_state(path: Path, about: Mapping[str, Any], start: Float[Tensor, " edge"]) -> RefineState:
    """Read a checkpoint of the run that began with this start; any other is refused."""
    artifact = load_artifact(path, KIND)
    with taken_apart(path, "checkpoint"):
        tensors = {name: artifact.tensors[name].to(start) for name in ("start", *TENSORS)}
        if any(tensor.shape != start.shape for tensor in tensors.values()):
            raise StoreError(f"{path} refines other scores: {REMEDY}.")
        # Gradients on a GPU differ in the last digits, so that near ties may have changed places.
        if (tensors["start"] - start).abs().mean() > 1e-3:
            raise StoreError(f"{path} refines other scores: {REMEDY}.")
        if dict(artifact.config) != dict(about):
            raise StoreError(
                f"{path} refines for {_length(artifact.config)}, not {_length(about)}: {REMEDY}."
            )
        generator = torch.Generator(start.device)
        generator.set_state(artifact.tensors["generator"].cpu())
        meta = artifact.meta
        return RefineState(
            # Memory of its own is aligned as in a run that never stopped.
            values=tensors["values"].clone(),
            first=tensors["first"].clone(),
            second=start.new_tensor(float(meta["second"]), dtype=torch.float64),
            best=tensors["best"].clone(),
            area=float(meta["area"]),
            step=int(meta["step"]),
            elapsed=float(meta["elapsed"]),
            looks=int(meta["looks"]),
            generator=generator,
        )


def _length(about: Mapping[str, Any]) -> str:
    if about["seconds"] is not None:
        return f"{about['seconds']:g} seconds"
    return f"{about['steps']} steps"


# Refusals


def _check_length(steps: int | None, seconds: float | None, checkpoint: str | Path | None) -> None:
    """Refuse what says how long to refine, and in which file, if it makes no sense."""
    problems = []
    if steps is not None and seconds is not None:
        problems.append(f"give steps or seconds, not both, got {steps} and {seconds}")
    if steps is not None and (type(steps) is not int or steps < 1):
        problems.append(f"steps must be a whole number above 0, got {steps!r}")
    if seconds is not None and (type(seconds) not in (int, float) or not 0 < seconds < math.inf):
        problems.append(f"seconds must be a finite number above 0, got {seconds!r}")
    if checkpoint is not None and Path(checkpoint).suffix != ".safetensors":
        problems.append(f"checkpoint must be a .safetensors file, got {checkpoint}")
    if problems:
        raise ValueError("; ".join(problems) + ".")
