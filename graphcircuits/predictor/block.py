"""What the layers of both graph learners are made of.

Every branch of a layer is h + scale * branch(LayerNorm(h)) with a learned scale that starts small,
so that a deep stack starts close to the identity (Scalable Message Passing Neural Networks, which
the paper follows). Weights and what dropout drops are drawn from generators that are passed in,
never from global state: trainings in several threads do not disturb each other.

`lab/paper/stacked_layers.py` makes of several networks of one shape one, whose parameters have a
leading axis, the run, and so have the states that go in and out; `along` is where they meet.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

START_SCALE = 0.1
"""Of every branch. The published block starts at 1e-6, which wastes the first steps of the short
trainings used here."""


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm`, with a quicker way for many rows."""

    def quick(self, input: Float[Tensor, "row width"]) -> Float[Tensor, "row width"]:
        """The same up to rounding where no gradient is wanted: PyTorch's kernel takes twice the
        time on many rows as short as these, its mean and norm of rows longer than products."""
        width = input.shape[-1]
        states = input - (input @ input.new_full((width,), 1 / width)).unsqueeze_(-1)
        scale = torch.linalg.vecdot(states, states).div_(width).add_(self.eps).rsqrt_()
        return torch.addcmul(self.bias, states.mul_(scale.unsqueeze_(-1)), self.weight)


def along(
    parameter: Float[Tensor, "run ..."], x: Float[Tensor, "run ..."]
) -> Float[Tensor, "run ..."]:
    """A parameter of each run in the shape that meets states of each run, and in their dtype."""
    between = x.ndim - parameter.ndim
    shape = (parameter.shape[0], *(1,) * between, *parameter.shape[1:])
    return parameter.to(x.dtype).view(shape)


def linear(
    inputs: int, outputs: int, generator: torch.Generator, *, bias: bool = True
) -> nn.Linear:
    """A linear map drawn as `nn.Linear` draws it: uniform within 1 / sqrt(inputs)."""
    # Without storage first: the constructor's own draw would use the global generator.
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta").to_empty(device="cpu")
    bound = inputs**-0.5
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer


class Dropout(nn.Module):
    """What `nn.Dropout` does, drawn from a generator that is passed in."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(
        self, h: Float[Tensor, "*context node width"], noise: torch.Generator | None
    ) -> Float[Tensor, "*context node width"]:
        if not self.training or self.rate == 0:
            return h
        if noise is None:
            raise ValueError(
                "dropout is drawn at random while training; give a torch.Generator as noise, or "
                "call eval() first."
            )
        mask = torch.empty_like(h).bernoulli_(1 - self.rate, generator=noise)
        return h * (mask / (1 - self.rate) if self.rate < 1 else mask)


class SiLU(nn.SiLU):
    """`nn.SiLU` of a value that nobody else holds: in place where no gradient is wanted."""

    def forward(self, input: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return nn.functional.silu(input, inplace=not torch.is_grad_enabled())


class Branch(nn.Module):
    """A residual branch behind a normalization."""

    def __init__(self, width: int, branch: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = LayerNorm(width)
        self.branch = branch
        self.dropout = Dropout(dropout)
        self.scale = nn.Parameter(torch.tensor(START_SCALE))

    def forward(
        self,
        h: Float[Tensor, "*context node width"],
        *structure: object,
        noise: torch.Generator | None = None,
        normed: Float[Tensor, "*context node width"] | None = None,
    ) -> Float[Tensor, "*context node width"]:
        """`structure` is the graph where the branch needs it, nothing where it does not; `normed`
        are the states behind the normalization, where they are there already."""
        normed = self.norm(h) if normed is None else normed
        added = self.dropout(self.branch(normed, *structure), noise)
        if torch.is_grad_enabled():
            return h + self.scale * added
        return added.mul_(self.scale).add_(h)


def feed_forward(width: int, expansion: int, generator: torch.Generator) -> nn.Sequential:
    """A network with one hidden layer, applied to each node by itself."""
    hidden = expansion * width
    return nn.Sequential(linear(width, hidden, generator), SiLU(), linear(hidden, width, generator))


def check_sizes(**sizes: int) -> None:
    """Refuse every size below 1, all at once."""
    problems = [
        f"{name} must be at least 1, got {size}" for name, size in sizes.items() if size < 1
    ]
    if problems:
        raise ValueError("; ".join(problems) + ".")
