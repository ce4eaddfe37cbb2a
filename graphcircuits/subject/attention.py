"""Attention of heads: queries, keys and values in, the heads' vectors before W_O out.

1. Queries and keys are rotated, where positions are rotary (`rotate`).
2. Scores are scaled, capped (`soft_cap`) and made a pattern over the keys that each position sees
   (`attention_pattern`).
3. The pattern mixes the values (`attend`).

The maps take any leading axes, so that the plain run and the interventions share them.
"""

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.subject.layers import RotaryScaling, TransformerConfig


def attend(
    config: TransformerConfig,
    layer: int,
    q: Float[Tensor, "*#lead pos d_head"],
    k: Float[Tensor, "*#lead pos d_head"],
    v: Float[Tensor, "*#lead pos d_head"],
    unseen: Float[Tensor, "pos pos"] | None = None,
) -> Float[Tensor, "*lead pos d_head"]:
    """A head's vectors before W_O, from its values and its queries and keys as scores take them.

    `unseen` as in `attention_pattern`.
    """
    # Keys down, queries across: a softmax over the last axis is several times slower on a CPU
    # where that axis is short.
    scores = k @ q.transpose(-1, -2)
    pattern = attention_pattern(config, layer, scores[..., None, :], unseen).squeeze(-2)
    return (v.transpose(-1, -2) @ pattern).transpose(-1, -2)


def attention_pattern(
    config: TransformerConfig,
    layer: int,
    scores: Float[Tensor, "*lead key alternative pos"],
    unseen: Float[Tensor, "key pos"] | None = None,
) -> Float[Tensor, "*lead key alternative pos"]:
    """Attention over the keys of each position, for several alternative sets of scores.

    `unseen`, minus infinity where a position does not see a key and else zero, stands for what the
    configuration says of that.
    """
    scale = config.score_scale
    if config.score_cap is not None:
        scores, scale = soft_cap(scores * scale, config.score_cap), 1.0
    if unseen is None and not config.causal:
        return (scores * scale).softmax(-3)
    if unseen is None:
        unseen = _unseen(scores.shape[-1], config.window(layer), scores.device, scores.dtype)
    return torch.add(unseen[:, None], scores, alpha=scale).softmax(-3)


def soft_cap(x: Float[Tensor, "*any"], cap: float | None) -> Float[Tensor, "*any"]:
    """x where it is small, never beyond the cap; all of x where there is none."""
    return x if cap is None else cap * (x / cap).tanh()


def rotate(
    config: TransformerConfig, layer: int, x: Float[Tensor, "*lead pos d_head"]
) -> Float[Tensor, "*lead pos d_head"]:
    """Rotary positions: coordinate i turns with coordinate i + rotary_dim / 2."""
    return turned(x, *turns(config, layer, x.shape[-2], x.device, x.dtype))


def turns(
    config: TransformerConfig, layer: int, pos: int, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, "pos rotary_dim"], Float[Tensor, "pos rotary_dim"]]:
    """The tables of a layer's rotation, for `turned`."""
    base, scaling = config.rotary_base, config.rotary_scaling
    if config.window_rotary_base is not None and config.window(layer) is not None:
        base, scaling = config.window_rotary_base, None
    return _turns(config.rotary_size // 2, base, scaling, pos, device, dtype)


def turned(
    x: Float[Tensor, "*lead pos d_head"],
    cos: Float[Tensor, "pos rotary_dim"],
    sin: Float[Tensor, "pos rotary_dim"],
) -> Float[Tensor, "*lead pos d_head"]:
    """The leading coordinates rotated, the others as they are."""
    size = cos.shape[-1]
    turning, rest = x.split((size, x.shape[-1] - size), dim=-1)
    rotated = torch.addcmul(turning * cos, turning.roll(size // 2, dims=-1), sin)
    return rotated if size == x.shape[-1] else torch.cat([rotated, rest], dim=-1)


# What depends on positions alone is the same in every layer and run, and on a GPU the many small
# steps to it would take longer than a layer: the last few of these tables are cached.


@lru_cache(maxsize=16)
@torch.inference_mode(mode=False)
@torch.no_grad()
def _unseen(
    pos: int, window: int | None, device: torch.device, dtype: torch.dtype
) -> Float[Tensor, "key pos"]:
    """Minus infinity where a position does not see a key, else zero."""
    nothing = torch.full((pos, pos), float("-inf"), dtype=dtype, device=device)
    unseen = nothing.tril(-1)
    return unseen if window is None or window >= pos else unseen + nothing.triu(window)


@lru_cache(maxsize=16)
@torch.inference_mode(mode=False)
@torch.no_grad()
def _turns(
    half: int,
    base: float,
    scaling: RotaryScaling | None,
    pos: int,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "pos rotary_dim"], Float[Tensor, "pos rotary_dim"]]:
    """What each coordinate is multiplied by in a rotation, and the one that it turns with."""
    positions = torch.arange(pos, device=device, dtype=torch.float64)
    angles = positions[:, None] * _frequencies(half, base, scaling, device)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], dim=-1).to(dtype), torch.cat([-sin, sin], dim=-1).to(dtype)


def _frequencies(
    half: int, base: float, scaling: RotaryScaling | None, device: torch.device
) -> Float[Tensor, " half"]:
    """Radians per position that each pair of coordinates turns."""
    exponents = torch.arange(half, device=device, dtype=torch.float64) / half
    frequencies = base**-exponents
    if scaling is None:
        return frequencies
    unscaled = 0.0
    if scaling.kind == "llama3":
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        turns = frequencies * scaling.original_n_ctx / (2 * math.pi)
        unscaled = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (unscaled + (1 - unscaled) / scaling.factor)
