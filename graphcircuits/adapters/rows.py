"""Weights as linear layers of other libraries hold them: one row per output, heads side by side.

GGUF, llama2.c and most families of Hugging Face store a layer so. `stored_shape` says in which
shape, `from_rows` and `to_rows` go from there to our weights of one layer and back.
"""

import math

from torch import Tensor

from graphcircuits.subject.transformer import TransformerConfig, weight_shapes

Shape = tuple[int, ...]
WHOLE = ("W_E", "W_pos", "W_U", "b_U", "final_norm_w", "final_norm_b")
"""Weights that are not stacked over layers."""
_BY_HEAD = ("W_Q", "W_K", "W_V")
_TURNED = ("W_in", "W_gate", "W_out", "W_U")


def layer_shapes(config: TransformerConfig) -> dict[str, Shape]:
    """Our weights of one layer, with their shapes."""
    shapes = weight_shapes(config)
    return {name: shape[1:] for name, shape in shapes.items() if name not in WHOLE}


def stored_shape(name: str, shape: Shape) -> Shape:
    """The shape in which a weight of ours, of this shape, is stored."""
    if name in _BY_HEAD:
        return shape[0] * shape[2], shape[1]
    if name == "W_O":
        return shape[2], shape[0] * shape[1]
    if name in _TURNED:
        return shape[::-1]
    return shape if name in ("W_E", "W_pos") else (math.prod(shape),)


def from_rows(name: str, rows: Tensor, shape: Shape) -> Tensor:
    """A weight of ours, of this shape, from its rows."""
    if name in _BY_HEAD:
        return rows.unflatten(0, (shape[0], -1)).mT
    if name == "W_O":
        return rows.T.unflatten(0, (shape[0], -1))
    if name in _TURNED:
        return rows.T
    return rows.unflatten(0, shape) if len(shape) > rows.ndim else rows


def to_rows(name: str, weight: Tensor) -> Tensor:
    """The rows of a weight of ours."""
    if name in _BY_HEAD:
        return weight.mT.flatten(0, 1)
    if name == "W_O":
        return weight.flatten(0, 1).T
    if name in _TURNED:
        return weight.T
    return weight if name in ("W_E", "W_pos") else weight.flatten()


def halves(rows: Tensor, n_heads: int) -> Tensor:
    """Rows of queries or keys whose neighbours turn together, as a subject has them: by halves."""
    pairs = rows.unflatten(0, (n_heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2)
