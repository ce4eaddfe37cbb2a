"""What every method does before it starts, and what the methods share.

1. `prepare` refuses pairs that would score every edge zero, and a loss that cannot rank edges;
   targets that are still missing are taken from the clean run. Its parts, `placed` and
   `task.check_losses`, are for methods that run the subject on all prompts anyway.
2. `from_clean_run` measures the distance to the clean run instead of the right answer.
3. `settled` gives the weights a method computes with: they ask for no gradients, and have enough
   digits.
4. `pooled` makes one number an edge of its effects on the prompts.
5. A `Progress` callback hears of every step of an iterative method; by raising `Stop` it ends the
   method, which then returns the scores so far. Any other exception, an interrupt from the
   keyboard included, passes through: methods keep no state, so nothing is left half done.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.task import Pairs, check_losses
from graphcircuits.transformer import Transformer

POOLS = ("abs", "sum")

Progress = Callable[[int, int], None]
"""Called with the steps done and the steps in all."""


class Stop(Exception):
    """Raised by a progress callback to end an iterative method and keep the scores so far."""


@torch.no_grad()
def prepare(subject: Transformer, graph: ComponentGraph, pairs: Pairs) -> Pairs:
    """The pairs on the subject's device, with targets; an error where no method can use them."""
    pairs = placed(subject, graph, pairs)
    clean_logits = subject.logits(pairs.clean)
    if pairs.needs_targets:
        pairs = pairs.with_targets_from(clean_logits)
    check_losses(pairs.loss(clean_logits), pairs.loss(subject.logits(pairs.corrupted)))
    return pairs


def placed(subject: Transformer, graph: ComponentGraph, pairs: Pairs) -> Pairs:
    """The pairs on the subject's device; what `prepare` can refuse without running the subject."""
    if graph != subject.graph:
        raise ValueError(f"the graph must be the subject's own, {subject.graph}, got {graph}.")
    if pairs.identical:
        raise ValueError(
            "clean and corrupted prompts are identical, so all scores would be zero; "
            "give corrupted prompts that differ from the clean ones."
        )
    # Moving pairs checks them once more.
    return pairs if pairs.clean.device == subject.device else pairs.to(subject.device)


@torch.no_grad()
def from_clean_run(subject: Transformer, pairs: Pairs) -> Pairs:
    """The same pairs with the clean run as target where the loss is a distance (kl, l1)."""
    if pairs.kind not in ("kl", "l1"):
        return pairs
    return replace(pairs, targets=None).with_targets_from(subject.logits(pairs.clean))


def settled(subject: Transformer, *, widen: bool = True) -> Transformer:
    """The same subject, its weights asking for no gradients and, if told, in single precision.

    Half precision has too few digits where scores are differences of losses, or where gates are
    trained by small steps.
    """
    dtype = torch.promote_types(subject.dtype, torch.float32) if widen else subject.dtype
    if dtype == subject.dtype and not any(w.requires_grad for w in subject.weights.values()):
        return subject
    weights = {name: weight.detach().to(dtype) for name, weight in subject.weights.items()}
    return replace(subject, weights=weights)


def pooled(effects: Float[Tensor, "*edge batch"], pool: str) -> Float[Tensor, "*edge"]:
    """One score an edge: the mean of absolute effects, or the absolute value of their mean."""
    check_choice("pool", pool, POOLS)
    return effects.abs().mean(-1) if pool == "abs" else effects.mean(-1).abs()


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")


def check_positive(**values: int | float) -> None:
    """Refuse options that must be above zero."""
    problems = [f"{name} must be above 0, got {value}" for name, value in values.items()]
    problems = [text for text, value in zip(problems, values.values(), strict=True) if value <= 0]
    if problems:
        raise ValueError("; ".join(problems) + ".")
