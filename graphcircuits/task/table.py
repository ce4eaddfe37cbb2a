"""Prompts and answers as tensors of one width: what files and texts are turned into.

`PromptTable` is what `Pairs` is made of; `filled` brings prompts of several lengths to one. Prompts
stand at the front and are padded at the end: a causal subject never looks ahead, so no scored
position sees the padding, and no attention mask is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptTable:
    """Columns as tensors; values at unscored positions are 0."""

    clean: Int[Tensor, "batch pos"]
    corrupted: Int[Tensor, "batch pos"]
    scored: Bool[Tensor, "batch pos"]
    correct: Int[Tensor, "batch pos"] | None = None
    incorrect: Int[Tensor, "batch pos"] | None = None
    target: Float[Tensor, "batch pos *d_vocab_out"] | None = None
    loss: str | None = None

    def default_loss(self) -> str:
        """What the columns suggest: logit-diff with correct and incorrect classes, cross-entropy
        with correct ones, l1 with numbers, else kl."""
        if self.loss is not None:
            return self.loss
        if self.correct is not None:
            return "cross-entropy" if self.incorrect is None else "logit-diff"
        return "l1" if self.target is not None and self.target.ndim == 2 else "kl"


def filled(prompts: Sequence[Sequence[int]], pad: int | None) -> Int[Tensor, "batch pos"]:
    """Prompts of one width; `pad` is read only where one is shorter."""
    width = max(map(len, prompts))
    return torch.tensor([[*ids, *[pad] * (width - len(ids))] for ids in prompts])
