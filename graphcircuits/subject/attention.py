"""Attention of heads: queries, keys and values in, the heads' vectors before W_O out.

1. Queries and keys are rotated, where positions are rotary (`rotate`).
2. Scores are scaled, capped (`soft_cap`) and made a pattern over the keys that each position sees
   (`attention_pattern`).
3. The pattern mixes the values (`attend`).

The maps take any leading axes, so that the plain run and the interventions share them.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.subject.layers import TransformerConfig


def attend(
    config: TransformerConfig,
    layer: int,
    q: Float[Tensor, "*#lead pos d_head"],
    k: Float[Tensor, "*#lead pos d_head"],
    v: Float[Tensor, "*#lead pos d_head"],
) -> Float[Tensor, "*lead pos d_head"]:
    """A head's vectors before W_O, from its values and its queries and keys as scores take them."""
    # Keys down, queries across: a softmax over the last axis is several times slower on a CPU
    # where that axis is short.
    scores = k @ q.transpose(-1, -2)
    pattern = attention_pattern(config, layer, scores[..., None, :]).squeeze(-2)
    return (v.transpose(-1, -2) @ pattern).transpose(-1, -2)


def attention_pattern(
    config: TransformerConfig, layer: int, scores: Float[Tensor, "*lead key alternative pos"]
) -> Float[Tensor, "*lead key alternative pos"]:
    """Attention over the keys of each position, for several alternative sets of scores."""
    scale = config.score_scale
    if config.score_cap is not None:
        scores, scale = soft_cap(scores * scale, config.score_cap), 1.0
    if not config.causal:
        return (scores * scale).softmax(-3)
    pos = scores.shape[-1]
    nothing = torch.full((pos, pos), float("-inf"), dtype=scores.dtype, device=scores.device)
    unseen, window = nothing.tril(-1), config.window(layer)
    if window is not None and window < pos:
        unseen += nothing.triu(window)
    return torch.add(unseen[:, None], scores, alpha=scale).softmax(-3)


def soft_cap(x: Float[Tensor, "*any"], cap: float | None) -> Float[Tensor, "*any"]:
    """x where it is small, never beyond the cap; all of x where there is none."""
    return x if cap is None else cap * (x / cap).tanh()


def rotate(
    config: TransformerConfig, layer: int, x: Float[Tensor, "*lead pos d_head"]
) -> Float[Tensor, "*lead pos d_head"]:
    """Rotary positions: coordinate i turns with coordinate i + rotary_dim / 2."""
    half = config.rotary_size // 2
    places = torch.arange(x.shape[-2], device=x.device, dtype=torch.float64)
    angles = places[:, None] * _frequencies(config, layer, x.device)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin, rest)
    return torch.cat(turned, dim=-1)


def _frequencies(
    config: TransformerConfig, layer: int, device: torch.device
) -> Float[Tensor, " half"]:
    """Radians per position that each pair of coordinates turns."""
    half, base, scaling = config.rotary_size // 2, config.rotary_base, config.rotary_scaling
    if config.window_rotary_base is not None and config.window(layer) is not None:
        base, scaling = config.window_rotary_base, None
    exponents = torch.arange(half, device=device, dtype=torch.float64) / half
    frequencies = base**-exponents
    if scaling is None:
        return frequencies
    kept = 0.0
    if scaling.kind == "llama3":
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        turns = frequencies * scaling.original_n_ctx / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)
