"""Invariants by the gradient of a run between: against masks and against plain runs."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.engine.passes import between, kept
from graphcircuits.predictor.invariant import (
    BETWEEN_STATISTICS,
    FAR_STATISTICS,
    Invariants,
    context_table,
    measure,
    statistics_of,
    table,
)
from graphcircuits.predictor.paper.transform import TRANSFORMATIONS
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.methods.tasks import make_pairs
from tests.predictor.cases import dense, make_task
from tests.predictor.graphs import seeded
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
        cut = kept(subject, subject.trace(subject.embed(pairs.corrupted)))
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
        for name, x in {"effect": change, "clean": clean, "far": corrupted, "own": own}.items()
    }
    norms = gradient.norm(dim=-1)[:, readers]
    reach, bound = (norms * x.norm(dim=-1)[:, writers] for x in (change, clean))
    pooled = [
        *three_ways(product["own"], len(pairs)),
        *three_ways(product["effect"], len(pairs)),
        reach.mean(0),
        three_ways(product["clean"], len(pairs))[1],
    ]
    single = [product["effect"], product["clean"], product["far"], reach, bound]
    return Invariants(
        subject.graph,
        statistics=torch.stack(pooled).abs(),
        written=torch.stack([x.norm(dim=-1).mean(0) for x in (clean, change)]),
        received=gradient.norm(dim=-1).mean(0),
        sample=torch.stack(single, dim=-1),
    )


def assert_same(one: Invariants, other: Invariants) -> None:
    for name in ("statistics", "written", "received"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-8, atol=1e-13)
    for transformation in TRANSFORMATIONS:
        tables = (table(found, transformation) for found in (one, other))
        torch.testing.assert_close(*tables, rtol=1e-7, atol=1e-9)


def in_order(contexts: Tensor) -> Tensor:
    return contexts[contexts.sum((1, 2)).argsort()]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_statistics_are_those_of_three_whole_runs(architecture: str) -> None:
    subject, pairs = make_task(architecture)
    expected = twin(subject, pairs)
    found = measure(subject, pairs, share=SHARE, sample=pairs.clean.numel(), generator=seeded(0))
    assert_same(found, expected)
    torch.testing.assert_close(in_order(found.sample), in_order(expected.sample))
    torch.testing.assert_close(in_order(context_table(found)), in_order(context_table(expected)))


@pytest.mark.parametrize("architecture", ["plain", "llama"])
def test_the_far_end_does_not_move(architecture: str) -> None:
    """Its gradient is that of the clean run when the prompts exchange their roles."""
    subject, pairs = make_task(architecture)
    near, both = (measure(subject, pairs, share=SHARE, both_ends=x) for x in (False, True))
    assert statistics_of(share=SHARE, both_ends=True) == (*BETWEEN_STATISTICS, *FAR_STATISTICS)
    torch.testing.assert_close(both.statistics[: len(BETWEEN_STATISTICS)], near.statistics)
    exchanged = replace(pairs, clean=pairs.corrupted, corrupted=pairs.clean)
    expected = three_ways(dense(subject, exchanged).sample[..., 0], len(pairs)).abs()
    torch.testing.assert_close(both.statistics[len(BETWEEN_STATISTICS) :], expected)


@pytest.mark.parametrize("both_ends", [False, True])
def test_chunks_change_nothing(both_ends: bool) -> None:
    subject, pairs = make_task("grouped-keys", batch=4)
    whole, chunked = (
        measure(
            subject,
            pairs,
            share=SHARE,
            both_ends=both_ends,
            sample=7,
            generator=seeded(0),
            memory_limit=limit,
        )
        for limit in (2**30, 1)
    )
    assert_same(chunked, whole)
    torch.testing.assert_close(in_order(chunked.sample), in_order(whole.sample))


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
