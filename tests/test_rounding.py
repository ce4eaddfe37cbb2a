"""Another machine's rounding: the same twice, other last bits elsewhere, never more than that."""

import torch

from tests.rounding import Rounding


def test_last_bits_depend_on_the_place_and_on_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(2, 50, 50, generator=generator, dtype=torch.float64)
    plain = x @ y
    with Rounding():
        whole, again, half = x @ y, x @ y, x[25:] @ y
        copied = plain.clone().flip(0).flip(0)
    assert torch.equal(whole, again)
    assert torch.equal(copied, plain)
    for one, other in ((whole, plain), (whole[25:], half)):
        assert (one != other).double().mean() > 0.2
        torch.testing.assert_close(one, other, rtol=1e-15, atol=0)


def test_gradients_are_rounded_too() -> None:
    x = torch.linspace(0.1, 2, 300, dtype=torch.float64).view(3, 100).requires_grad_()
    with Rounding():
        (found,) = torch.autograd.grad((x @ x.T).exp().sum(), x)
    (expected,) = torch.autograd.grad((x @ x.T).exp().sum(), x)
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected)
