"""Sums over contexts: some readers at a time, and numbers too small to count."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from graphcircuits.engine.passes import Pass
from graphcircuits.predictor.invariant import BETWEEN_STATISTICS, STATISTICS
from graphcircuits.predictor.measure import contract as module
from graphcircuits.predictor.measure.contract import SUMS, contract
from tests.predictor.cases import make_task


def test_every_statistic_is_a_sum() -> None:
    assert set(SUMS) == {*STATISTICS, *BETWEEN_STATISTICS}


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("share", [1.0, 0.75])
@pytest.mark.parametrize("architecture", ["plain", "grouped-keys", "parallel"])
def test_readers_one_by_one_give_what_all_together_give(
    architecture: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, pairs = make_task(architecture)
    # Without a run between nothing changes in it.
    names = [name for name in SUMS if share < 1 or not name.startswith("own")]
    together = contract(subject, pairs, names, share)
    monkeypatch.setattr(module, "CPU_BUFFER", 1)
    alone = contract(subject, pairs, names, share)
    for name, values in vars(together).items():
        torch.testing.assert_close(getattr(alone, name), values)


@pytest.mark.usefixtures("unchecked")
def test_what_the_place_of_the_gradient_does_not_touch() -> None:
    """Outputs and losses are those of the two ends."""
    subject, pairs = make_task("llama")
    clean, between = (contract(subject, pairs, ("effect",), share) for share in (1.0, 0.75))
    for name in ("written", "losses"):
        torch.testing.assert_close(getattr(between, name), getattr(clean, name))
    for name in ("edges", "received"):
        assert not torch.allclose(getattr(between, name), getattr(clean, name))


@pytest.mark.usefixtures("unchecked")
def test_gradients_without_full_precision_are_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors are many times slower on such numbers."""
    subject, pairs = make_task()
    subject = subject.to(torch.float32)
    size = 1e-40

    def tiny(*given: Any) -> Pass:
        run = with_gradients(*given)
        return replace(run, gradients=tuple(x * 0 + size for x in run.gradients))

    with_gradients = module.with_gradients
    monkeypatch.setattr(module, "with_gradients", tiny)
    found = contract(subject, pairs, STATISTICS)
    assert not found.edges.any()
    size = 1e-20
    found = contract(subject, pairs, STATISTICS)
    assert found.edges.any()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("share", [1.0, 0.75])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_gradients_of_half_precision_count(dtype: torch.dtype, share: float) -> None:
    """What is too small is so in the precision of the products, which is single at least."""
    subject, pairs = make_task()
    expected = contract(subject, pairs, ("effect", "clean"), share)
    found = contract(subject.to(dtype), pairs, ("effect", "clean"), share)
    assert found.edges.dtype == torch.float32
    near = 0.02 if dtype == torch.float16 else 0.15
    for name in ("edges", "received"):
        one, other = getattr(found, name).double(), getattr(expected, name)
        torch.testing.assert_close(one, other, rtol=near, atol=near * float(other.mean()))
