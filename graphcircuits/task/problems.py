"""Why prompts, scored positions, targets and a loss do not make a task: every reason at once."""

from difflib import get_close_matches
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphcircuits.engine.losses import LOSSES
from graphcircuits.io.files import short

if TYPE_CHECKING:
    from graphcircuits.task.pairs import Pairs


def pair_problems(pairs: "Pairs") -> list[str]:
    """Every reason why the fields do not make a task."""
    clean, corrupted, scored = pairs.clean, pairs.corrupted, pairs.scored
    problems = []
    if isinstance(pairs.loss_name, str) and pairs.loss_name not in LOSSES:
        near = get_close_matches(pairs.loss_name[:50].lower(), LOSSES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        problems.append(
            f"unknown loss {short(pairs.loss_name)}; {hint}({', '.join(LOSSES)}, or a function)"
        )
    for name, tokens in (("clean", clean), ("corrupted", corrupted)):
        if not is_integer(tokens):
            problems.append(f"{name} must hold whole token ids, got {tokens.dtype}")
        elif tokens.numel() and tokens.min() < 0:
            problems.append(f"{name} must hold token ids from 0, got {int(tokens.min())}")
    if clean.ndim != 2 or 0 in clean.shape:
        problems.append(
            f"clean must be prompts x positions with at least one each, got {tuple(clean.shape)}"
        )
    if corrupted.shape != clean.shape:
        problems.append(
            "corrupted prompts must be as many and as long as clean ones, "
            f"{tuple(clean.shape)}, got {tuple(corrupted.shape)}"
        )
    if scored.dtype != torch.bool or scored.shape != clean.shape:
        problems.append(
            f"scored must be True or False at each of {tuple(clean.shape)} positions, "
            f"got {scored.dtype} of shape {tuple(scored.shape)}"
        )
    elif not scored.any(-1).all():
        empty = (~scored.any(-1)).nonzero().flatten().tolist()
        problems.append(
            f"every prompt needs a scored position, prompts {first_few(empty)} have none"
        )
    devices = {str(values.device) for values in pairs._tensors().values()}
    if len(devices) > 1:
        problems.append(f"all tensors must be on one device, got {', '.join(sorted(devices))}")
    # What follows reads values at scored positions, so it needs sound shapes.
    return problems or _target_problems(pairs)


def _target_problems(pairs: "Pairs") -> list[str]:
    shape, targets, problems = tuple(pairs.clean.shape), pairs.targets, []
    classes = {"targets": targets, "incorrect": pairs.incorrect}
    if not isinstance(pairs.loss_name, str):
        return [
            f"{name} must have one entry per prompt ({shape[0]}), got shape {tuple(values.shape)}"
            for name, values in classes.items()
            if values is not None and values.shape[:1] != shape[:1]
        ]
    if pairs.loss_name != "logit-diff":
        del classes["incorrect"]
        if pairs.incorrect is not None:
            problems.append(f"incorrect classes belong to logit-diff, not to {pairs.loss_name}")
    if pairs.loss_name in ("cross-entropy", "logit-diff"):
        for name, values in classes.items():
            if values is None:
                problems.append(
                    f"{pairs.loss_name} needs {name}: a class for each prompt or position"
                )
            elif not is_integer(values) or values.shape != shape:
                problems.append(
                    f"{name} of {pairs.loss_name} must be whole numbers of shape {shape} or "
                    f"{shape[:1]}, got {values.dtype} of shape {tuple(values.shape)}"
                )
            elif values[pairs.scored].min() < 0:
                problems.append(f"{name} must be classes from 0, got {int(values.min())}")
    elif targets is not None:
        axes = 2 if pairs.loss_name == "l1" else 3
        if not targets.is_floating_point() or targets.ndim != axes or targets.shape[:2] != shape:
            words = f"shape {shape}" if axes == 2 else f"shape {shape} and classes"
            problems.append(
                f"targets of {pairs.loss_name} must be floats of {words}, "
                f"got {targets.dtype} of shape {tuple(targets.shape)}"
            )
        elif not targets.isfinite().all():
            broken = (~targets.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
            problems.append(
                f"targets must be finite, prompts {first_few(broken)} hold NaN or infinity"
            )
        elif pairs.loss_name == "kl" and not targets.shape[-1]:
            problems.append("targets of kl must be distributions over at least one class, got none")
        elif pairs.loss_name == "kl":
            chances = targets[pairs.scored].double()
            if chances.min() < 0 or (chances.sum(-1) - 1).abs().max() > 1e-3:
                problems.append("targets of kl must be distributions: from 0 and summing to 1")
    return problems


def is_integer(values: Tensor) -> bool:
    """Whether the numbers are whole by their kind."""
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def first_few(items: list[int]) -> str:
    """The first five, and whether there are more."""
    return ", ".join(map(str, items[:5])) + (", ..." if len(items) > 5 else "")
