"""Padding: a padded prompt has the logits it has alone, and masks that mean nothing are refused."""

import pytest
import torch
from torch import Tensor

from tests.subjects import make_subject, make_tokens

CAUSAL = ("plain", "rotary", "no-positions", "gpt-2", "neox", "llama")
LENGTHS = (5, 2, 1, 4)


def padded(side: str, extra: int = 0) -> tuple[list[Tensor], Tensor, Tensor]:
    """Prompts alone, and as one batch with its mask; padding holds what is no token."""
    subject = make_subject()
    alone = [make_tokens(subject, seed, 1, length)[0] for seed, length in enumerate(LENGTHS)]
    width = max(LENGTHS) + extra
    tokens, mask = torch.full((len(alone), width), 999), torch.zeros(len(alone), width).long()
    for row, prompt in enumerate(alone):
        at = width - len(prompt) if side == "left" else 0
        tokens[row, at : at + len(prompt)], mask[row, at : at + len(prompt)] = prompt, 1
    return alone, tokens, mask


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("architecture", CAUSAL)
def test_padded_is_unpadded(architecture: str, side: str) -> None:
    subject = make_subject(architecture)
    # Wider than the context: what no prompt fills takes no position.
    alone, tokens, mask = padded(side, extra=4)
    logits = subject.logits(tokens, mask)
    assert logits.shape == (*tokens.shape, subject.config.d_vocab_out)
    for prompt, found, real in zip(alone, logits, mask.bool(), strict=True):
        torch.testing.assert_close(found[real], subject.logits(prompt[None])[0], rtol=0, atol=1e-12)
        assert (found[~real] == 0).all()
    assert torch.equal(subject.logits(tokens, mask.bool()), logits)


def test_a_mask_of_ones_changes_nothing() -> None:
    subject = make_subject()
    tokens = make_tokens(subject)
    assert torch.equal(subject.logits(tokens, torch.ones_like(tokens)), subject.logits(tokens))


def test_gradients_pass_through_the_shift() -> None:
    subject = make_subject("llama")
    _, tokens, mask = padded("left")
    weights = {name: w.clone().requires_grad_() for name, w in subject.weights.items()}
    tuned = type(subject)(subject.config, weights)
    tuned.logits(tokens, mask).square().sum().backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in weights.values())


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        ([[1, 1, 1]], r"must be of the tokens' shape \(2, 3\), got \(1, 3\)\."),
        ([[1, 1, 1], [0, 0, 0]], r"the attention mask leaves prompt 1 without one\."),
        ([[0, 1, 1], [1, 0, 1]], r"on the left or right only, but has holes in prompt 1\."),
        ([[1, 0, 1], [1, 0, 1]], r"but has holes in prompts 0, 1\."),
        ([[1, 1, 2], [1, 1, 1]], r"1 or True at real tokens .*got torch.int64 with values from 1"),
        ([[0.0, 0.0, -1e9]] * 2, r"got torch.float32 with values from -1000000000.0 to 0.0\."),
    ],
)
def test_masks_that_are_refused(mask: list, problem: str) -> None:
    subject = make_subject()
    with pytest.raises(ValueError, match=problem):
        subject.logits(make_tokens(subject, batch=2, pos=3), torch.tensor(mask))


def test_bidirectional_subjects_see_padding() -> None:
    subject = make_subject("bidirectional")
    tokens = make_tokens(subject)
    with pytest.raises(ValueError, match="an attention mask needs a causal subject"):
        subject.logits(tokens, torch.ones_like(tokens))
