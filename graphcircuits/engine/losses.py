"""The four losses by name, at every position: one place for what prompt pairs and stacks compute.

A run is judged by its logits at scored positions. `Pairs.loss` takes the mean over these for one
task, `Stack.losses` for many subjects at once, and both are sums of what is computed here:

kl             divergence of the outputs from a target distribution
l1             distance of a numerical output from its target
cross-entropy  of the right class
logit-diff     logit of the wrong class minus that of the right one

The tests compare the loss of pairs with its definition, and that of stacks with that of pairs.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

LOSSES = ("cross-entropy", "kl", "l1", "logit-diff")
OF_CLASSES = ("cross-entropy", "logit-diff")
"""Those whose targets are classes."""


def position_losses(
    name: str,
    logits: Float[Tensor, "*run column d_vocab_out"],
    targets: Shaped[Tensor, "..."],
    incorrect: Int[Tensor, "..."] | None = None,
) -> Float[Tensor, "*run column"]:
    """One loss at every position, lower is closer to the target.

    Args:
        name: One of LOSSES.
        logits: With any leading axes.
        targets: Distributions (..., column, d_vocab_out) of kl, numbers of l1, else the right
            classes; leading axes of one are broadcast. A position that is not scored may have any
            class that exists.
        incorrect: The wrong classes of logit-diff.
    """
    outputs = wide(logits)
    if name == "kl":
        # Classes that the target rules out add nothing, even where the model does so as well.
        log_model = outputs.log_softmax(-1).masked_fill(targets == 0, 0.0)
        return F.kl_div(log_model, targets.to(outputs.dtype), reduction="none").sum(-1)
    if name == "l1":
        return (outputs[..., 0] - targets.to(outputs.dtype)).abs()
    if name == "cross-entropy":
        return outputs.logsumexp(-1) - _pick(outputs, targets)
    assert incorrect is not None
    return _pick(outputs, incorrect) - _pick(outputs, targets)


def wide(logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The logits in single precision at least: half is too narrow for sums of exponentials."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _pick(
    outputs: Float[Tensor, "*run column d_vocab_out"], classes: Shaped[Tensor, "..."]
) -> Float[Tensor, "*run column"]:
    """The logit of each position's class."""
    index = classes.long().expand(outputs.shape[:-1])
    return outputs.gather(-1, index[..., None]).squeeze(-1)
