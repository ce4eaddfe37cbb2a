"""Prompts of several lengths in one batch, padded on the left or on the right.

1. `to_front` moves the real tokens of each prompt to the front, so that they stand at the positions
   they would have alone, and cuts what no prompt fills.
2. The subject runs without a mask: it is causal, so no real token sees what stands behind it.
3. `to_place` moves the outputs back to where their tokens stood.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.subject.layers import TransformerConfig


def to_front(
    config: TransformerConfig, tokens: Int[Tensor, "batch pos"], attention_mask: Tensor
) -> tuple[Int[Tensor, "batch longest"], Bool[Tensor, "batch pos"]]:
    """The real tokens of each prompt, then token 0; and the mask as booleans.

    `attention_mask` is 1 or True at real tokens. What stands elsewhere is not read.
    """
    real = _checked(config, tokens, attention_mask)
    lengths = real.sum(-1)
    positions = torch.arange(int(lengths.max()), device=tokens.device)
    front = tokens.new_zeros(len(tokens), len(positions))
    front[positions < lengths[:, None]] = tokens[real]
    return front, real


def to_place(
    values: Float[Tensor, "batch longest *shape"], real: Bool[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos *shape"]:
    """Values of tokens at the front, back where the tokens stood; zeros where there was padding."""
    positions = torch.arange(values.shape[1], device=values.device)
    spread = values.new_zeros(*real.shape, *values.shape[2:])
    spread[real] = values[positions < real.sum(-1, keepdim=True)]
    return spread


def _checked(
    config: TransformerConfig, tokens: Tensor, attention_mask: Tensor
) -> Bool[Tensor, "batch pos"]:
    """The mask as booleans; whatever the shift could not do right is an error."""
    if not config.causal:
        raise ValueError(
            "an attention mask needs a causal subject: in this one every token sees every other, "
            "padding too; run prompts of one length at a time."
        )
    shape, given = tuple(tokens.shape), tuple(attention_mask.shape)
    if given != shape:
        raise ValueError(f"the attention mask must be of the tokens' shape {shape}, got {given}.")
    real = attention_mask.to(tokens.device).bool()
    if attention_mask.is_floating_point() or not (attention_mask.to(tokens.device) == real).all():
        raise ValueError(
            "the attention mask must be 1 or True at real tokens and 0 or False at padding, got "
            f"{attention_mask.dtype} with values from {attention_mask.min().item()} to "
            f"{attention_mask.max().item()}."
        )
    if not real.any(-1).all():
        raise ValueError(
            f"every prompt needs a token, but the attention mask leaves {_rows(~real.any(-1))} "
            "without one."
        )
    # A block of real tokens starts once.
    starts = real[:, 0].long() + (real[:, 1:] & ~real[:, :-1]).sum(-1)
    if (starts > 1).any():
        raise ValueError(
            "the attention mask must keep the tokens of a prompt together, with padding on the "
            f"left or right only, but has holes in {_rows(starts > 1)}."
        )
    return real


def _rows(which: Bool[Tensor, " batch"]) -> str:
    rows = which.nonzero().flatten().tolist()
    more = ", ..." if len(rows) > 5 else ""
    return ("prompt " if len(rows) == 1 else "prompts ") + ", ".join(map(str, rows[:5])) + more
