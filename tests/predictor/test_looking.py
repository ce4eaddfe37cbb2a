"""Looks: their circuits, what edges are worth to them, and what does not change a table."""

import pytest
import torch

from graphcircuits.engine.masked import ablated_writers, masked_logits
from graphcircuits.predictor.looking import (
    COLUMNS,
    FARTHEST,
    circuit_sizes,
    look_table,
    proposed,
    rank_logits,
    worths,
)
from tests.methods.tasks import make_pairs
from tests.predictor.graphs import seeded
from tests.subjects import make_subject

pytestmark = pytest.mark.usefixtures("unchecked")


def test_values_are_logits_of_ranks_among_living_edges() -> None:
    scores = torch.tensor([0.3, 9.0, 0.3, -2.0, 7.0])
    alive = torch.tensor([True, True, True, True, False])
    shares = torch.tensor([2.5 / 4, 3.5 / 4, 1.5 / 4, 0.5 / 4])
    values = rank_logits(scores, alive)
    torch.testing.assert_close(values[alive], shares.logit())
    assert values[4] == -torch.inf
    torch.testing.assert_close(rank_logits(scores[alive]), values[alive])
    several = torch.stack([scores, -scores])
    both = rank_logits(several, alive.expand(2, -1))
    torch.testing.assert_close(both[0], values)
    torch.testing.assert_close(both[1], rank_logits(-scores, alive))


def test_circuits_are_soft_near_their_thresholds() -> None:
    values = rank_logits(torch.randn(2, 100, generator=seeded(0)))
    values[1, :60] = -torch.inf
    above, masks = proposed(values, 3, spread=0.01)
    for case, n_alive in enumerate((100, 40)):
        for number, size in enumerate(circuit_sizes(torch.tensor(n_alive), 3).tolist()):
            assert int((masks[case, number] >= 0.5).sum()) == size
            assert float(masks[case, number].min()) < 1e-6
            # The last edge of a circuit lies on its threshold.
            assert float((masks[case, number] - 0.5).abs().min()) == pytest.approx(0, abs=1e-6)
    assert (masks[1, :, :60] == 0).all()
    assert torch.equal(above >= 0, masks >= 0.5)


def test_what_is_lacking_goes_from_nothing_to_all() -> None:
    subject = make_subject("llama")
    pairs = make_pairs(subject, "cross-entropy")
    ends = torch.tensor([1.0, 0.0])[:, None].expand(2, subject.graph.n_edges).double()
    for memory in (None, 1):
        lacks, gains = worths(subject, pairs, memory_limit=memory)(ends)
        torch.testing.assert_close(lacks, torch.tensor([0.0, 1.0]).double())
        assert gains.shape == ends.shape
        # Nothing is nearer to the subject's own output than that output itself.
        assert gains[0].abs().max() < 1e-9 < gains[1].abs().max()


def test_what_is_lacking_is_by_output_whatever_the_loss() -> None:
    subject = make_subject()
    mask = torch.rand(1, subject.graph.n_edges, generator=seeded(1)).double()
    pairs = make_pairs(subject, "cross-entropy")
    cut = ablated_writers(subject, pairs.corrupted)
    p, q, r = (
        x.log_softmax(-1)
        for x in (
            subject.logits(pairs.clean),
            masked_logits(subject, pairs.clean, mask, cut)[0],
            subject.logits(pairs.corrupted),
        )
    )
    lacks, _ = worths(subject, pairs)(mask)
    ours, whole = ((p.exp() * (p - x)).sum(-1).sum() for x in (q, r))
    torch.testing.assert_close(lacks[0], ours / whole)


def test_tables_have_no_unit_and_do_not_know_silent_edges() -> None:
    values = rank_logits(torch.randn(30, generator=seeded(0)))
    gains = torch.randn(4, 30, generator=seeded(1))
    lacks = torch.tensor([0.1, 0.4, 3.0, 0.9])

    def read(values: torch.Tensor, gains: torch.Tensor) -> torch.Tensor:
        above, masks = proposed(values, 4)
        return look_table(above, masks, lacks, gains * (masks > 0))

    found = read(values, gains)
    assert found.shape == (30, 4 * COLUMNS)
    assert found.isfinite().all()
    assert found[:, -4:].amax(0).tolist() == pytest.approx([0.1, 0.4, 2.0, 0.9])
    torch.testing.assert_close(read(values, 1000 * gains), found)
    silent = torch.full((7,), -torch.inf)
    more = read(torch.cat([silent, values]), torch.cat([gains[:, :7], gains], 1))
    torch.testing.assert_close(more[7:], found)
    assert (more[:7, :4] == -FARTHEST / 4).all()
