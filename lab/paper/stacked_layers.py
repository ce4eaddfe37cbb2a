"""Several networks of one shape as one: every parameter has a leading axis, the run.

`stacked` makes one of the networks, whose layers then take states with the same leading axis. What
the layers of `predictor/block.py` do for one network, those here do for several at once.
"""

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graphcircuits.predictor.block import Branch, LayerNorm, along

Module = TypeVar("Module", bound=nn.Module)


class StackedLinear(nn.Linear):
    """An `nn.Linear` for each run."""

    def forward(self, input: Float[Tensor, "run *lead inputs"]) -> Float[Tensor, "..."]:
        flat, matrices = input.flatten(1, -2), self.weight.to(input.dtype).mT
        if self.bias is None:
            mapped = torch.bmm(flat, matrices)
        else:
            mapped = torch.baddbmm(self.bias.to(input.dtype).unsqueeze(1), flat, matrices)
        return mapped.unflatten(1, input.shape[1:-1])


class StackedLayerNorm(LayerNorm):
    """A `LayerNorm` for each run."""

    def forward(self, input: Float[Tensor, "run *lead width"]) -> Float[Tensor, "run *lead width"]:
        shift, scale = along(self.bias, input), along(self.weight, input)
        return torch.addcmul(shift, normalized(input, self.eps), scale)


def normalized(x: Float[Tensor, "*lead width"], eps: float) -> Float[Tensor, "*lead width"]:
    """States less their mean, by their deviation. A GPU does it by products of matrices: many rows
    as short as these keep its own kernel waiting, at four times the time."""
    width = x.shape[-1]
    if not x.is_cuda:
        return nn.functional.layer_norm(x, (width,), eps=eps)
    return normalized_by_matrices(x, eps)


def normalized_by_matrices(
    x: Float[Tensor, "*lead width"], eps: float
) -> Float[Tensor, "*lead width"]:
    mean = torch.full((x.shape[-1],) * 2, 1 / x.shape[-1], dtype=x.dtype, device=x.device)
    centred = x - x @ mean
    return centred * (centred.square() @ mean + eps).rsqrt()


class StackedBranch(Branch):
    """A residual branch for each run."""

    def forward(
        self,
        h: Float[Tensor, "run *context node width"],
        *structure: object,
        noise: torch.Generator | None = None,
        normed: Float[Tensor, "run *context node width"] | None = None,
    ) -> Float[Tensor, "run *context node width"]:
        normed = self.norm(h) if normed is None else normed
        added = self.dropout(self.branch(normed, *structure), noise)
        return torch.addcmul(h, along(self.scale, h), added)


LAYERS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: StackedLinear,
    LayerNorm: StackedLayerNorm,
    Branch: StackedBranch,
}
"""What each layer becomes; all others take several runs as they are."""


def stacked(modules: Sequence[Module]) -> Module:
    """Networks of one shape as one whose parameters and buffers have a leading axis, the run."""
    joined = copy.deepcopy(modules[0])
    states = [module.state_dict() for module in modules]
    for path, value in joined.state_dict().items():
        *owners, name = path.split(".")
        owner = joined.get_submodule(".".join(owners))
        together = torch.stack([state[path] for state in states])
        is_parameter = isinstance(getattr(owner, name), nn.Parameter)
        assert together.shape[1:] == value.shape
        setattr(owner, name, nn.Parameter(together) if is_parameter else together)
    for layer in joined.modules():
        layer.__class__ = LAYERS.get(type(layer), type(layer))
    return joined
