"""What the layers of both graph learners are made of.

Every branch of a layer is h + scale * branch(LayerNorm(h)) with a learned scale that starts small,
so that a deep stack starts close to the identity (Scalable Message Passing Neural Networks, which
the paper follows). Weights and what dropout drops are drawn from generators that are passed in,
never from global state: trainings in several threads do not disturb each other.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graphcircuits.predictor.transform import Neighbourhoods

START_SCALE = 0.1
"""Of every branch. The published block starts at 1e-6, which wastes the first steps of the short
trainings used here."""


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
        kept = torch.empty_like(h).bernoulli_(1 - self.rate, generator=noise)
        return h * (kept / (1 - self.rate) if self.rate < 1 else kept)


class Branch(nn.Module):
    """A residual branch behind its own normalization."""

    def __init__(self, width: int, branch: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.branch = branch
        self.dropout = Dropout(dropout)
        self.scale = nn.Parameter(torch.tensor(START_SCALE))

    def forward(
        self,
        h: Float[Tensor, "*context node width"],
        *structure: Neighbourhoods,
        noise: torch.Generator | None = None,
    ) -> Float[Tensor, "*context node width"]:
        """`structure` is the graph where the branch needs it, nothing where it does not."""
        return h + self.scale * self.dropout(self.branch(self.norm(h), *structure), noise)


def feed_forward(width: int, expansion: int, generator: torch.Generator) -> nn.Sequential:
    """A network with one hidden layer, applied to each node by itself."""
    hidden = expansion * width
    return nn.Sequential(
        linear(width, hidden, generator), nn.SiLU(), linear(hidden, width, generator)
    )


def check_sizes(**sizes: int) -> None:
    """Refuse every size below 1, all at once."""
    problems = [
        f"{name} must be at least 1, got {size}" for name, size in sizes.items() if size < 1
    ]
    if problems:
        raise ValueError("; ".join(problems) + ".")
