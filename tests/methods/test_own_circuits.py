"""Gradients at one's own circuits: against differences, a slow twin, and the start itself."""

import math

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.masked import ablated_writers, masked_logits
from graphcircuits.methods.eap import eap_ig
from graphcircuits.methods.own_circuits import ig_own
from graphcircuits.methods.prepare import to_clean_output
from graphcircuits.predictor.looking import circuit_sizes, worths
from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.methods.tasks import make_pairs, planted, ranks_right
from tests.subjects import make_subject


def distance(subject: Transformer, pairs: Pairs, mask: Tensor) -> Tensor:
    """From the clean output, by definition."""
    cut = ablated_writers(subject, pairs.corrupted)
    return pairs.loss(masked_logits(subject, pairs.clean, mask, cut)).mean()


def rank_logits_by_loop(scores: Tensor) -> Tensor:
    order = sorted(range(len(scores)), key=lambda edge: (-float(scores[edge]), edge))
    shares = {edge: 1 - (rank + 0.5) / len(order) for rank, edge in enumerate(order)}
    logits = [math.log(shares[edge] / (1 - shares[edge])) for edge in range(len(order))]
    return torch.tensor(logits, dtype=torch.float64)


def test_worths_are_differences_of_the_loss() -> None:
    subject = make_subject(n_heads=2).to(torch.float64)
    pairs = to_clean_output(subject, make_pairs(subject, "cross-entropy"))
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(subject.graph.n_edges, generator=generator, dtype=torch.float64)
    ends = torch.tensor([1.0, 0.0], dtype=torch.float64)[:, None].expand(2, len(mask))
    whole, cut = (float(distance(subject, pairs, end)) for end in ends)
    found = worths(subject, pairs)(mask[None])[1][0] * (cut - whole)
    for edge in range(0, len(mask), 7):
        ends = [mask.index_fill(0, torch.tensor(edge), mask[edge] + step) for step in (1e-5, -1e-5)]
        less, more = (float(distance(subject, pairs, each)) for each in ends)
        assert float(found[edge]) == pytest.approx((more - less) / 2e-5, rel=1e-4, abs=1e-8)


def test_it_equals_a_slow_twin() -> None:
    subject = make_subject(n_heads=2).to(torch.float64)
    graph = subject.graph
    pairs = to_clean_output(subject, make_pairs(subject, "cross-entropy"))
    spread, rate = 0.7, 0.2
    start = along_paths(rank_logits_by_loop(eap_ig(subject, pairs)), graph)
    values = rank_logits_by_loop(start)
    for size in (graph.n_edges ** (3 / 4), graph.n_edges ** (2 / 4), graph.n_edges ** (1 / 4)):
        threshold = sorted(values.tolist())[-round(size)]
        mask = ((values - threshold) / spread).sigmoid().requires_grad_()
        (slope,) = torch.autograd.grad(distance(subject, pairs, mask), mask)
        mask = mask.detach()
        change = -slope * mask * (1 - mask)
        near = 4 * float((mask * (1 - mask)).sum())
        values = values + rate * change / (change.square().sum() / max(1, near)).sqrt()
    twin = along_paths(rank_logits_by_loop(values), graph)
    found = ig_own(subject, pairs, sizes=3, spread=spread, rate=rate)
    assert torch.equal(found.argsort(descending=True), twin.argsort(descending=True))


def test_without_a_rate_it_is_the_start() -> None:
    subject = make_subject(n_heads=2)
    pairs = make_pairs(subject)
    start = along_paths(rank_logits_by_loop(eap_ig(subject, pairs)), subject.graph)
    found = ig_own(subject, pairs, rate=0.0)
    assert torch.equal(found.argsort(descending=True), start.argsort(descending=True))


def test_sizes_are_in_equal_ratios() -> None:
    assert circuit_sizes(torch.tensor(10_000), 3).tolist() == [1000, 100, 10]
    assert circuit_sizes(torch.tensor([3, 10_000]), 4)[0].tolist() == [2, 2, 2, 1]


def test_it_finds_a_planted_circuit() -> None:
    subject, circuit = planted(make_subject())
    assert ranks_right(ig_own(subject, make_pairs(subject, batch=8)), circuit) > 0.9


def test_options_are_checked() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    with pytest.raises(ValueError, match="sizes must be above 0, got 0; spread must be above 0"):
        ig_own(subject, pairs, sizes=0, spread=0.0)
    with pytest.raises(ValueError, match=r"rate must be at least 0, got -1\.0"):
        ig_own(subject, pairs, rate=-1.0)
