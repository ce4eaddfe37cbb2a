"""Gradients of masked runs against those of plain autograd, second ones, precisions, and steps that
a GPU repeats."""

from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.graphed import CALLS_BEFORE, Graphed
from graphcircuits.engine.masked import ablated_writers, masked_gradients, masked_logits
from graphcircuits.methods.prepare import MaskedLosses
from graphcircuits.subject.transformer import Transformer
from tests.methods.tasks import make_pairs
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


@pytest.mark.parametrize("architecture", SOME)
@pytest.mark.parametrize("limit", [None, 1])
def test_losses_and_gradients_in_one_pass(architecture: str, limit: int | None) -> None:
    """Those of the mean over prompts, mask by mask, however many masks go at once."""
    subject = make_subject(architecture)
    clean, other = (make_tokens(subject, seed=seed) for seed in (1, 2))
    corrupted = ablated_writers(subject, other)
    masks = random_masks(subject, 3, subject.graph.n_edges)

    def by_prompt(logits: Tensor) -> Tensor:
        return logits.sin().sum((-2, -1))

    losses, gradients = masked_gradients(
        subject, clean, masks, corrupted, by_prompt, memory_limit=limit
    )
    expected = masked_logits(subject, clean, masks, corrupted, metric=by_prompt)
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-9, atol=1e-9)
    (wanted,) = torch.autograd.grad(expected.mean(1).sum(), masks)
    torch.testing.assert_close(gradients, wanted, rtol=1e-9, atol=1e-9)


def test_a_second_derivative_is_the_difference_of_gradients() -> None:
    subject = make_subject()
    clean, other = (make_tokens(subject, seed=seed) for seed in (1, 2))
    corrupted = ablated_writers(subject, other)
    masks = random_masks(subject, 1, subject.graph.n_edges)
    way = torch.randn(masks.shape, generator=torch.Generator().manual_seed(3), dtype=masks.dtype)

    def slope(at: Tensor, *, again: bool = False) -> Tensor:
        value = masked_logits(subject, clean, at, corrupted, metric=loss).sum()
        return torch.autograd.grad(value, at, create_graph=again)[0]

    (found,) = torch.autograd.grad((slope(masks, again=True) * way).sum(), masks)
    step = 1e-5
    ahead, behind = (slope((masks + s * way).detach().requires_grad_()) for s in (step, -step))
    torch.testing.assert_close(found, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("precision", "off"), [("tf32", 1e-12), ("bfloat16", 0.1)])
def test_precisions_give_nearly_the_same_gradient(precision: str, off: float) -> None:
    """TF32 is nothing to a CPU; the bound of bfloat16 is some ten of its roundings."""
    subject = make_subject()
    clean, other = (make_tokens(subject, seed=seed) for seed in (1, 2))
    corrupted = ablated_writers(subject, other)
    masks = random_masks(subject, 3, subject.graph.n_edges)

    def found(precision: str) -> Tensor:
        def by_prompt(logits: Tensor) -> Tensor:
            return logits.double().log_softmax(-1)[..., 0].sum(-1)

        given: Any = {"precision": precision}
        return masked_gradients(subject, clean, masks, corrupted, by_prompt, **given)[1]

    exact, rounded = found("full"), found(precision)
    assert rounded.dtype == masks.dtype
    assert float((rounded - exact).norm() / exact.norm()) < off


def test_precisions_have_names() -> None:
    subject = make_subject()
    masks = random_masks(subject, 1, subject.graph.n_edges)
    with pytest.raises(
        ValueError, match="precision must be one of full, tf32, bfloat16, got 'fp8'"
    ):
        gradient(subject, masks, precision="fp8")


def test_on_a_cpu_a_step_is_called_as_it_is() -> None:
    calls: list[int] = []

    def step(x: Tensor) -> tuple[Tensor, ...]:
        calls.append(len(x))
        return (x + 1,)

    repeated = Graphed(step)
    for number in range(CALLS_BEFORE + 2):
        (found,) = repeated(torch.full((2,), float(number)))
        assert found.tolist() == [number + 1.0] * 2
    assert len(calls) == CALLS_BEFORE + 2


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", SOME)
def test_repeated_steps_are_those_of_a_cpu(architecture: str) -> None:
    """Captured after some calls, with other masks and prompts at every call."""
    subject = make_subject(architecture)
    pairs = make_pairs(subject).by_output(subject.config.d_vocab_out)
    pairs = pairs.with_targets_from(subject.logits(pairs.clean)) if pairs.needs_targets else pairs
    here = MaskedLosses(subject, pairs, None)
    there = MaskedLosses(subject.to("cuda"), pairs.to("cuda"), None)
    generator = torch.Generator().manual_seed(4)
    for _ in range(CALLS_BEFORE + 3):
        masks = torch.rand(2, subject.graph.n_edges, generator=generator, dtype=torch.float64)
        rows, partners = (torch.randint(len(pairs), (2,), generator=generator) for _ in range(2))
        expected = here.gradients(masks, rows, partners)
        found = there.gradients(masks.cuda(), rows.cuda(), partners.cuda())
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-9, atol=1e-9)
