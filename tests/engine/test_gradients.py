"""Gradients of masked runs against those of plain autograd, their memory, and precisions."""

from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.masked import ablated_writers, masked_logits
from graphcircuits.subject.transformer import Transformer
from tests.subjects import SOME, make_subject, make_tokens


def loss(logits: Tensor) -> Tensor:
    """A scalar for each mask."""
    return logits.sin().sum((-3, -2, -1)) + logits[..., 0, :].square().sum((-2, -1))


def random_masks(subject: Transformer, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    masks = torch.rand(*shape, generator=generator, dtype=torch.float64) * 1.5 - 0.25
    return masks.requires_grad_()


def gradient(subject: Transformer, masks: Tensor, *, plain: bool = False, **options: Any) -> Tensor:
    """The gradient by masks; plainly recorded where corrupted outputs ask for one as well."""
    clean, other = (make_tokens(subject, seed=seed) for seed in (1, 2))
    corrupted = ablated_writers(subject, other).detach().requires_grad_(plain)
    value = masked_logits(subject, clean, masks, corrupted, metric=loss, **options)
    return torch.autograd.grad(value.double().sin().sum(), masks)[0]


@pytest.mark.parametrize("architecture", SOME)
@pytest.mark.parametrize("positions", [(), (5,)])
def test_gradients_are_those_of_plain_autograd(
    architecture: str, positions: tuple[int, ...]
) -> None:
    subject = make_subject(architecture)
    masks = random_masks(subject, 3, subject.graph.n_edges, *positions)
    expected = gradient(subject, masks, plain=True)
    assert float(expected.abs().max()) > 1e-3
    for limit in (2**30, 1):
        found = gradient(subject, masks, memory_limit=limit)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    some: Any = {"columns": slice(1, 3)}
    torch.testing.assert_close(
        gradient(subject, masks, **some),
        gradient(subject, masks, plain=True, **some),
        rtol=1e-9,
        atol=1e-9,
    )
