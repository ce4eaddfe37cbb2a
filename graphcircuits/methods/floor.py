"""The floor that every method must beat: independent uniform scores."""

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.methods.prepare import prepare
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs


def random_scores(
    subject: Transformer,
    pairs: Pairs,
    *,
    generator: torch.Generator | None = None,
) -> Float[Tensor, " edge"]:
    """Uniform in 0..1. The pairs are only checked, as by every other method."""
    prepare(subject, pairs)
    return torch.rand(subject.graph.n_edges, generator=generator)
