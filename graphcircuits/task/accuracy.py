"""On how many prompts a subject is right.

1. The subject runs on the clean prompts, as many at once as memory allows, and only the scored
   positions are unembedded.
2. A prompt is right if at every scored position the logit of the right answer is above
   logit-diff     that of the incorrect answer
   cross-entropy  those of all other classes
   kl             likewise, for the likeliest class of a given distribution
3. A circuit of a task that the subject gets wrong explains nothing; `warn_if_wrong` says so.
"""

import warnings

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.engine.memory import MEMORY_LIMIT, Footprint, at_once
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

LEAST_RIGHT = 0.6
"""The share of right answers below which a circuit is not worth looking for. Guessing between two
answers gives a half."""


class OftenWrong(UserWarning):
    """The subject gets the task wrong on too many prompts."""


def share_right(subject: Transformer, pairs: Pairs, *, memory_limit: int = MEMORY_LIMIT) -> float:
    """The share of clean prompts that the subject answers right."""
    return right_answers(subject, pairs, memory_limit=memory_limit).float().mean().item()


def only_right(subject: Transformer, pairs: Pairs) -> Pairs:
    """The pairs whose clean prompt the subject answers right."""
    right = right_answers(subject, pairs)
    if not right.any():
        raise ValueError(
            f"the model answers none of the {len(pairs)} prompts right, so none is left; look at "
            "the answers, or choose another task or model."
        )
    return pairs if right.all() else pairs[right.to(pairs.clean.device)]


def right_answers(
    subject: Transformer, pairs: Pairs, *, memory_limit: int = MEMORY_LIMIT
) -> Bool[Tensor, " batch"]:
    """Which clean prompts the subject answers right."""
    if not has_answers(pairs):
        name = pairs.loss_name if isinstance(pairs.loss_name, str) else "an own function"
        raise ValueError(
            f"pairs with the loss {name} name no right answer to be counted; logit-diff, "
            "cross-entropy, and kl with given distributions do."
        )
    largest, classes = pairs.least_classes - 1, subject.config.d_vocab_out
    if largest >= classes:
        raise ValueError(
            f"the answers name class {largest}, but the subject has only {classes} classes, "
            f"0..{classes - 1}; were they made with the tokenizer of another model?"
        )
    chunk = at_once(subject, Footprint(subject, pairs.clean.shape[1]).passing, memory_limit)
    with torch.no_grad():
        right = [_right(subject, some) for some in pairs.to(subject.device).split(chunk)]
    return torch.cat(right)


def has_answers(pairs: Pairs) -> bool:
    """Whether the pairs name answers that can be right or wrong."""
    named = pairs.loss_name in ("logit-diff", "cross-entropy", "kl")
    return named and pairs.targets is not None


def warn_if_wrong(
    subject: Transformer, pairs: Pairs, *, least: float = LEAST_RIGHT
) -> float | None:
    """The share that is right, with a warning where it is below `least`; None where the pairs name
    no answers."""
    if not has_answers(pairs):
        return None
    share = share_right(subject, pairs)
    if share < least:
        warnings.warn(wrong_text(share, len(pairs), least), OftenWrong, stacklevel=2)
    return share


def wrong_text(share: float, count: int, least: float = LEAST_RIGHT) -> str:
    """What is to be said of a subject that is right on this share of prompts."""
    return (
        f"the model is right on {share:.0%} of {count} prompts only, below {least:.0%}; a circuit "
        "of a task that it cannot do says little. Choose another task or model, or look at the "
        "prompts."
    )


def _right(subject: Transformer, pairs: Pairs) -> Bool[Tensor, " batch"]:
    stream = subject.embed(pairs.clean)
    for layer in range(subject.config.n_layers):
        stream = subject.layer(stream, layer)
    return _right_everywhere(subject.unembed(stream[pairs.scored]), pairs)


def wrong_answers(
    logits: Float[Tensor, "batch pos d_vocab_out"], pairs: Pairs
) -> Float[Tensor, " batch"]:
    """1 for every prompt that these logits do not answer right, else 0."""
    return 1 - _right_everywhere(logits[pairs.scored], pairs).to(logits)


def _right_everywhere(
    logits: Float[Tensor, "position d_vocab_out"], pairs: Pairs
) -> Bool[Tensor, " batch"]:
    """Whether each prompt is right at all scored positions, given the logits at these."""
    assert pairs.targets is not None
    scored = pairs.scored
    targets = pairs.targets[scored]
    right = (targets.argmax(-1) if pairs.loss_name == "kl" else targets)[:, None].long()
    others = logits.scatter(-1, right, -torch.inf).amax(-1, keepdim=True)
    if pairs.loss_name == "logit-diff" and pairs.incorrect is not None:
        others = logits.gather(-1, pairs.incorrect[scored][:, None].long())
    above = logits.gather(-1, right) > others
    return torch.ones_like(scored).masked_scatter(scored, above).all(-1)
