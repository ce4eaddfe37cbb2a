"""How often a subject is right on the prompts of a task."""

import torch

from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs


@torch.no_grad()
def share_right(subject: Transformer, pairs: Pairs) -> float:
    """Share of prompts on which the right answer's logit is above the incorrect one's; the largest
    of all for cross-entropy."""
    pairs = pairs.to(subject.device)
    logits, targets = subject.logits(pairs.clean), pairs.targets
    assert targets is not None
    if pairs.incorrect is None:
        right = logits.argmax(-1) == targets
    else:
        both = logits.gather(-1, torch.stack([targets, pairs.incorrect], -1))
        right = both[..., 0] > both[..., 1]
    return (right | ~pairs.scored).all(-1).float().mean().item()
