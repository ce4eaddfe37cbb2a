"""What a fleet's answers are worth: whether they are right, and their loss.

BOS has no answer, so logits have a position more than targets. Where the output is numerical the
first logit is the answer; else it is the class with the largest logit, of those that a subject has.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.fleets.fleet import Fleet


def are_right(
    fleet: Fleet,
    logits: Float[Tensor, "subject row pos_with_bos d_vocab_out"],
    targets: Float[Tensor, "subject row pos"],
    numerical: Bool[Tensor, " subject"],
    tolerance: float,
) -> Bool[Tensor, "subject row pos"]:
    """Whether each answer is the target, or a number near enough."""
    logits = logits[:, :, 1:]
    close = (logits[..., 0] - targets).abs() <= tolerance
    named = logits.masked_fill(~fleet.outputs[:, None, None], -torch.inf).argmax(-1)
    return torch.where(numerical[:, None, None], close, named == targets)


def row_losses(
    fleet: Fleet,
    logits: Float[Tensor, "subject row pos_with_bos d_vocab_out"],
    targets: Float[Tensor, "subject row pos"],
    scored: Bool[Tensor, "subject row pos"],
    numerical: Bool[Tensor, " subject"],
) -> Float[Tensor, "subject row"]:
    """Mean over scored positions of the cross-entropy, or of the squared error of numbers."""
    logits = logits[:, :, 1:]
    squared = (logits[..., 0] - targets).square()
    named = logits.masked_fill(~fleet.outputs[:, None, None], -1e9).log_softmax(-1)
    classes = torch.where(numerical[:, None, None], 0, targets).long()
    entropy = -named.gather(-1, classes[..., None])[..., 0]
    losses = torch.where(numerical[:, None, None], squared, entropy) * scored
    return losses.sum(-1) / scored.sum(-1).clamp(min=1)
