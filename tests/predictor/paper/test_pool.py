"""Deep Sets pooling: a hand loop, and order of positions and pairs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphcircuits.predictor.paper.pool import DeepSets
from tests.predictor.graphs import seeded, states

PAIR = torch.tensor([7, 3, 3, 7, 7, 12])


def by_hand(model: DeepSets, h: Tensor, pair: Tensor) -> Tensor:
    """Edge by edge, pair by pair, position by position."""
    edges = []
    for edge in range(h.shape[1]):
        pooled_pairs = []
        for name in sorted(set(pair.tolist())):
            inner = [model.positions.inner(h[c, edge]) for c in range(len(h)) if pair[c] == name]
            by_pair = model.positions.outer(sum(inner, torch.tensor(0.0)) / len(inner))
            pooled_pairs.append(model.pairs.inner(by_pair))
        mean = sum(pooled_pairs, torch.tensor(0.0)) / len(pooled_pairs)
        edges.append(model.pairs.outer(mean))
    return torch.stack(edges)


def test_pooling_is_the_hand_loop() -> None:
    model = DeepSets(4, generator=seeded(0)).double()
    h = states(6, 5, 4)
    expected = by_hand(model, h, PAIR)
    torch.testing.assert_close(model(h, PAIR), expected, rtol=1e-10, atol=1e-10)


@settings(max_examples=20)
@given(pairs=st.lists(st.integers(0, 3), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_order_of_contexts_does_not_matter(pairs: list[int], seed: int) -> None:
    """Any permutation: positions within a pair, and pairs among each other."""
    model = DeepSets(3, generator=seeded(seed)).double()
    pair, h = torch.tensor(pairs), states(len(pairs), 4, 3, seed=seed)
    shuffle = torch.randperm(len(pairs), generator=seeded(seed + 1))
    pooled = model(h, pair)
    torch.testing.assert_close(model(h[shuffle], pair[shuffle]), pooled, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model(h, 5 - pair), pooled, rtol=1e-10, atol=1e-10)


def test_edges_are_pooled_apart() -> None:
    model = DeepSets(4).double()
    h = states(6, 5, 4)
    changed = h.clone()
    changed[:, 2] += 1
    moved = (model(changed, PAIR) - model(h, PAIR)).abs().amax(-1) > 0
    assert moved.tolist() == [False, False, True, False, False]


def test_pairs_weigh_the_same_however_many_positions_they_have() -> None:
    """Repeating a position of one pair moves nothing where the pair has only that position."""
    model = DeepSets(4).double()
    h = states(3, 5, 4)
    repeated = model(h[[0, 0, 0, 1, 2]], torch.tensor([0, 0, 0, 1, 2]))
    torch.testing.assert_close(repeated, model(h, torch.arange(3)))


def test_weights_come_from_the_generator_alone() -> None:
    before = torch.random.get_rng_state()
    one, same = (DeepSets(4, generator=seeded(1)).state_dict() for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(value, same[name]) for name, value in one.items())


@pytest.mark.usefixtures("unchecked")
def test_contexts_and_pairs_must_match() -> None:
    model = DeepSets(4)
    with pytest.raises(ValueError, match="got 3 contexts and 2 pairs"):
        model(torch.zeros(3, 5, 4), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="needs at least one context"):
        model(torch.zeros(0, 5, 4), torch.empty(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        DeepSets(0)
