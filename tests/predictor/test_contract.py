"""Sums over contexts: some readers at a time, and numbers too small to count."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from graphcircuits.engine.passes import Pass
from graphcircuits.predictor import contract as module
from graphcircuits.predictor.contract import SUMS, contract
from graphcircuits.predictor.invariant import FAR_STATISTICS, STATISTICS
from tests.predictor.cases import make_task

NONE = torch.empty(0, dtype=torch.int64)


def test_every_statistic_is_a_sum() -> None:
    assert set(SUMS) == {*STATISTICS, *FAR_STATISTICS}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", ["plain", "grouped-keys", "parallel"])
def test_readers_one_by_one_give_what_all_together_give(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, pairs = make_task(architecture)
    drawn = torch.tensor([1, 4])
    together = contract(subject, pairs, tuple(SUMS), drawn)
    monkeypatch.setattr(module, "CPU_BUFFER", 1)
    alone = contract(subject, pairs, tuple(SUMS), drawn)
    for name, values in vars(together).items():
        torch.testing.assert_close(getattr(alone, name), values)


@pytest.mark.usefixtures("unchecked")
def test_one_end_gives_what_both_ends_give() -> None:
    subject, pairs = make_task("llama")
    near = contract(subject, pairs, STATISTICS, NONE)
    both = contract(subject, pairs, (*STATISTICS, *FAR_STATISTICS), NONE)
    torch.testing.assert_close(both.edges[: len(STATISTICS)], near.edges)
    for name in ("written", "received", "losses"):
        torch.testing.assert_close(getattr(both, name), getattr(near, name))


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
    found = contract(subject, pairs, STATISTICS, NONE)
    assert not found.edges.any()
    size = 1e-20
    found = contract(subject, pairs, STATISTICS, NONE)
    assert found.edges.any()
