"""Invariants by the gradient of a run between: against masks and against plain runs."""

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.engine.passes import between, detached
from graphcircuits.predictor.invariant import (
    BETWEEN_STATISTICS,
    Invariants,
    measure,
    statistics_of,
    table,
)
from graphcircuits.predictor.paper.transform import TRANSFORMATIONS
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.methods.tasks import make_pairs
from tests.predictor.cases import make_task
from tests.subjects import make_subject

pytestmark = pytest.mark.usefixtures("unchecked")

SHARE = 0.75
ARCHITECTURES = ["plain", "grouped-keys", "parallel", "gpt-2", "llama", "norms-after"]


def rows(*names: str) -> list[int]:
    return [BETWEEN_STATISTICS.index(name) for name in names]


def three_ways(contractions: Tensor, n_pairs: int) -> Tensor:
    """Of contractions [context, edge]: mean absolute value, by pair, and absolute mean."""
    by_pair = contractions.unflatten(0, (n_pairs, -1)).sum(1)
    return torch.stack([contractions.abs().mean(0), by_pair.abs().mean(0), contractions.mean(0)])


def by_masks(subject: Transformer, pairs: Pairs) -> Tensor:
    """Gradients by a mask on every edge and position, [context, edge]."""
    size, n_pos = pairs.clean.shape
    shape = (1, subject.graph.n_edges, n_pos)
    masks = torch.full(shape, SHARE, dtype=torch.float64, requires_grad=True)
    corrupted = subject.run(pairs.corrupted).writers
    with torch.enable_grad():
        losses = pairs.loss(masked_logits(subject, pairs.clean, masks, corrupted)[0])
        found = [torch.autograd.grad(x, masks, retain_graph=True)[0][0].T for x in losses]
    assert len(found) == size
    return torch.cat(found)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_own_effects_are_gradients_by_masks(architecture: str) -> None:
    """One mask per position gives every context of every pair."""
    subject, pairs = make_task(architecture)
    found = measure(subject, pairs, share=SHARE)
    expected = three_ways(by_masks(subject, pairs), len(pairs)).abs()
    own = found.statistics[rows("own", "own_by_pair", "own_signed")]
    torch.testing.assert_close(own, expected, rtol=1e-8, atol=1e-13)
    # Signs cancel between contexts.
    assert (own[2] < 0.9 * own[0]).any()


def twin(subject: Transformer, pairs: Pairs) -> Invariants:
    """Everything from three whole runs: clean, corrupted, and between the two."""
    with torch.no_grad():
        cut = detached(subject, subject.trace(subject.embed(pairs.corrupted)))
    mixed = between(subject, cut, SHARE)
    middle = mixed.run(pairs.clean, lambda logits: pairs.loss(logits).sum())
    clean, corrupted = (
        subject.run(x).writers.flatten(0, 1) for x in (pairs.clean, pairs.corrupted)
    )
    # `input` writes what it does in the clean run, wherever that is read in part only.
    states = middle.states
    in_between = subject.written(subject.embed(pairs.clean), states.z, states.hidden).flatten(0, 1)
    gradient = middle.reader_gradients.flatten(0, 1)
    change, own = corrupted - clean, corrupted - in_between
    writers, readers = subject.graph.edge_writers, subject.graph.edge_readers
    product = {
        name: (gradient[:, readers] * x[:, writers]).sum(-1)
        for name, x in {"effect": change, "clean": clean, "own": own}.items()
    }
    norms = gradient.norm(dim=-1)[:, readers]
    reach = norms * change.norm(dim=-1)[:, writers]
    pooled = [
        *three_ways(product["own"], len(pairs)),
        *three_ways(product["effect"], len(pairs)),
        reach.mean(0),
        three_ways(product["clean"], len(pairs))[1],
    ]
    return Invariants(
        subject.graph,
        statistics=torch.stack(pooled).abs(),
        written=torch.stack([x.norm(dim=-1).mean(0) for x in (clean, change)]),
        received=gradient.norm(dim=-1).mean(0),
    )


def assert_same(one: Invariants, other: Invariants) -> None:
    for name in ("statistics", "written", "received"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-8, atol=1e-13)
    for transformation in TRANSFORMATIONS:
        tables = (table(found, transformation) for found in (one, other))
        torch.testing.assert_close(*tables, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_statistics_are_those_of_three_whole_runs(architecture: str) -> None:
    subject, pairs = make_task(architecture)
    found = measure(subject, pairs, share=SHARE)
    assert len(found.statistics) == len(statistics_of(SHARE))
    assert_same(found, twin(subject, pairs))


def test_chunks_change_nothing() -> None:
    subject, pairs = make_task("grouped-keys", batch=4)
    whole, chunked = (
        measure(subject, pairs, share=SHARE, memory_limit=limit) for limit in (2**30, 1)
    )
    assert_same(chunked, whole)


@pytest.mark.parametrize("limit", [2**30, 1])
@pytest.mark.parametrize(("loss", "outputs"), [("kl", 3), ("l1", 1)])
def test_missing_targets_are_those_of_the_clean_run(loss: str, outputs: int, limit: int) -> None:
    """There such a loss is flat; between the runs it is not."""
    subject = make_subject(d_vocab_out=outputs)
    pairs = make_pairs(subject, loss)
    assert pairs.needs_targets
    given = pairs.with_targets_from(subject.logits(pairs.clean))
    found = measure(subject, pairs, share=SHARE, memory_limit=limit)
    assert_same(found, measure(subject, given, share=SHARE))
    assert found.received.all()


def test_bad_shares_are_refused() -> None:
    subject, pairs = make_task()
    with pytest.raises(ValueError, match=r"share must be above 0 and at most 1, got 0\.0"):
        measure(subject, pairs, share=0.0)
