"""What every method does before it starts, and what the methods share.

A `Progress` callback hears of every step of an iterative method; by raising `Stop` it ends the
method, which then returns the scores so far. Any other exception, an interrupt from the keyboard
included, passes through: methods keep no state, so nothing is left half done.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.engine.graphed import Graphed
from graphcircuits.engine.masked import masked_gradients, masked_logits
from graphcircuits.engine.memory import Footprint, at_once, bytes_for
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs, check_losses

SHARED = {"direction": ("noising", "denoising"), "pool": ("abs", "sum")}
"""Options that several methods have, with the words that they know."""

Progress = Callable[[int, int], None]
"""Called with the steps done and the steps in all."""
Signed = Callable[[Float[Tensor, " edge"]], None]
"""Called once with the mean effect of noising each edge on the loss: above 0 where the edge helps,
below where it hinders."""


class Stop(Exception):
    """Raised by a progress callback to end an iterative method and keep the scores so far."""


@torch.no_grad()
def prepare(subject: Transformer, pairs: Pairs, memory_limit: int | None = None) -> Pairs:
    """The pairs on the subject's device, with targets; an error where no method can use them.

    The runs take at most `memory_limit` bytes (one prompt at least).
    """
    pairs = on_device(subject, pairs)
    size = at_once(subject, Footprint(subject, pairs.clean.shape[1]).passing, memory_limit)
    parts, losses = [], []
    for part in pairs.split(size):
        clean_logits = subject.logits(part.clean)
        ready = part.with_targets_from(clean_logits) if part.needs_targets else part
        losses.append((ready.loss(clean_logits), ready.loss(subject.logits(part.corrupted))))
        parts.append(ready)
    check_losses(*(torch.cat(each) for each in zip(*losses, strict=True)))
    if not pairs.needs_targets:
        return pairs
    return parts[0] if len(parts) == 1 else Pairs.concatenate(parts)


def on_device(subject: Transformer, pairs: Pairs) -> Pairs:
    """The pairs on the subject's device; what `prepare` can refuse without running the subject."""
    if pairs.identical:
        raise ValueError(
            "clean and corrupted prompts are identical, so all scores would be zero; "
            "give corrupted prompts that differ from the clean ones."
        )
    # Moving pairs checks them once more.
    return pairs if pairs.clean.device == subject.device else pairs.to(subject.device)


@torch.no_grad()
def from_clean_run(subject: Transformer, pairs: Pairs, memory_limit: int | None = None) -> Pairs:
    """The same pairs with the clean run as target where the loss is a distance (kl, l1)."""
    if pairs.loss_name not in ("kl", "l1"):
        return pairs
    size = at_once(subject, Footprint(subject, pairs.clean.shape[1]).passing, memory_limit)
    bare = replace(pairs, targets=None)
    logits = torch.cat([subject.logits(part) for part in pairs.clean.split(size)])
    return bare.with_targets_from(logits)


def to_clean_output(subject: Transformer, pairs: Pairs, memory_limit: int | None = None) -> Pairs:
    """The same prompts, with the distance to the clean run's output as their loss.

    It is what masks are trained on: the answer of a language model leaves room above it, so that
    gates trained on a logit difference or a cross-entropy find circuits that answer far more surely
    than the subject does. No circuit can win at the subject's own output.
    """
    bare = pairs.by_output(subject.config.d_vocab_out)
    return from_clean_run(subject, bare, memory_limit)


@dataclass(frozen=True, eq=False)
class MaskedLosses:
    """Losses under masks (mask, edge) on prompts that are drawn step by step.

    Cut edges carry what the corrupted prompts of `partners` give, the same rows unless others are
    named. That comes from one run, where what it leaves takes at most half of the memory, else from
    runs on demand.
    """

    subject: Transformer
    pairs: Pairs
    memory_limit: int | None
    precision: str = "full"

    def __call__(
        self,
        masks: Float[Tensor, "mask edge"],
        rows: Int[Tensor, " prompt"],
        partners: Int[Tensor, " prompt"] | None = None,
    ) -> Float[Tensor, "mask prompt"]:
        """The losses, with gradients by the masks."""
        return masked_logits(
            self.subject,
            self.pairs.clean[rows],
            masks,
            self._carried(rows if partners is None else partners),
            metric=partial(self.pairs.loss_at_columns, rows=rows),
            columns=self.pairs.columns,
            memory_limit=self.memory_limit,
            precision=self.precision,
        )

    def gradients(
        self,
        masks: Float[Tensor, "mask edge"],
        rows: Int[Tensor, " prompt"],
        partners: Int[Tensor, " prompt"],
    ) -> tuple[Float[Tensor, "mask prompt"], Float[Tensor, "mask edge"]]:
        """The losses, and the gradient of each mask's mean loss, by steps that a GPU repeats."""
        losses, gradients = self._step(masks.detach(), rows, partners)
        return losses, gradients

    @cached_property
    def _step(self) -> Callable[..., tuple[Tensor, ...]]:
        pairs, limit = self.pairs, bytes_for(self.subject.device, self.memory_limit)

        def step(masks: Tensor, rows: Tensor, partners: Tensor) -> tuple[Tensor, Tensor]:
            return masked_gradients(
                self.subject,
                pairs.clean[rows],
                masks,
                self._carried(partners),
                partial(pairs.loss_at_columns, rows=rows),
                columns=pairs.columns,
                memory_limit=limit,
                precision=self.precision,
            )

        # Runs on demand check their tokens, and a user's own loss may do anything.
        repeats = self._whole is not None and isinstance(pairs.loss_name, str)
        return Graphed(step) if repeats else step

    def _carried(self, partners: Int[Tensor, " prompt"]) -> Float[Tensor, "prompt pos writer d"]:
        if self._whole is None:
            return self._run(self.pairs.corrupted[partners])
        return self._whole[partners]

    @cached_property
    def _whole(self) -> Float[Tensor, "batch pos writer d_model"] | None:
        pair = Footprint(self.subject, self.pairs.clean.shape[1]).pair
        fits = 2 * len(self.pairs) <= at_once(self.subject, pair, self.memory_limit)
        return self._run(self.pairs.corrupted) if fits else None

    @torch.no_grad()
    def _run(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos writer d_model"]:
        return self.subject.run(tokens).writers


def for_scoring(subject: Transformer, *, widen: bool = True) -> Transformer:
    """The same subject, its weights asking for no gradients and, if told, in single precision.

    Half precision has too few digits where scores are differences of losses, or where gates are
    trained by small steps.
    """
    dtype = torch.promote_types(subject.dtype, torch.float32) if widen else subject.dtype
    if dtype == subject.dtype and not any(w.requires_grad for w in subject.weights.values()):
        return subject
    weights = {name: weight.detach().to(dtype) for name, weight in subject.weights.items()}
    return replace(subject, weights=weights)


def flat_loss(what: str, advice: str) -> ValueError:
    """The refusal of gradients that are all zero; `advice` is what to do instead."""
    return ValueError(
        f"the gradient of the loss is zero at every {what}, so all scores would be zero; without "
        "answers the loss is the distance to the clean run's own output, which is flat there: "
        f"{advice}."
    )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")


def check_shared(**options: str) -> None:
    """Refuse words that the options in SHARED do not know."""
    for name, value in options.items():
        check_choice(name, value, SHARED[name])


def check_positive(**values: int | float) -> None:
    """Refuse options that must be above zero."""
    problems = [f"{name} must be above 0, got {x}" for name, x in values.items() if x <= 0]
    if problems:
        raise ValueError("; ".join(problems) + ".")
