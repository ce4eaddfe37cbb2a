"""The norms of a subject: what they compute, what of it depends on the prompt, gradients back.

1. `normalize` is a reader's norm of its own input.
2. `norm_scale` gives the one number per stream and position that makes it more than a linear map.
3. `rms_scale` is that number for an RMS norm over any axes.
4. `pull_through_norm` takes a gradient at its output to its input.

The maps take any leading axes, so that the plain run and the interventions share them.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from graphcircuits.subject.layers import TransformerConfig


def normalize(
    config: TransformerConfig,
    stream: Float[Tensor, "*lead d_model"],
    weight: Float[Tensor, " d_model"] | None,
    bias: Float[Tensor, " d_model"] | None,
) -> Float[Tensor, "*lead d_model"]:
    """A reader's norm of its own input."""
    match config.norm:
        case "none":
            return stream
        case "layer":
            return F.layer_norm(stream, (config.d_model,), weight, bias, config.norm_eps)
        case "rms":
            return F.rms_norm(stream, (config.d_model,), weight, config.norm_eps)


def norm_scale(
    config: TransformerConfig, stream: Float[Tensor, "*lead d_model"]
) -> tuple[Float[Tensor, "*lead d_model"], Float[Tensor, "*lead 1"]]:
    """The stream as a norm centres it, and what the norm then multiplies it by."""
    if config.norm == "none":
        return stream, torch.ones_like(stream[..., :1])
    if config.norm == "layer":
        stream = stream - stream.mean(-1, keepdim=True)
    return stream, (stream.square().mean(-1, keepdim=True) + config.norm_eps).rsqrt()


def rms_scale(
    x: Float[Tensor, "..."], eps: float, axes: tuple[int, ...] = (-1,)
) -> Float[Tensor, "..."]:
    """What an RMS norm over some axes multiplies by, in single precision at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide.square().mean(axes, keepdim=True) + eps).rsqrt()


def pull_through_norm(
    config: TransformerConfig,
    stream: Float[Tensor, "*#lead d_model"],
    weight: Float[Tensor, " d_model"] | None,
    grad: Float[Tensor, "*lead d_model"],
) -> Float[Tensor, "*lead d_model"]:
    """The gradient at a norm's input, given the one at its output."""
    if config.norm == "none":
        return grad
    stream, inverse = norm_scale(config, stream)
    unit = stream * inverse
    scaled = grad if weight is None else grad * weight
    pulled = scaled - unit * (scaled * unit).mean(-1, keepdim=True)
    if config.norm == "layer":
        pulled = pulled - scaled.mean(-1, keepdim=True)
    return pulled * inverse
