"""Greedy removal: equal to the plain loop, at one threshold and at many."""

import pytest
import torch
from jaxtyping import Bool
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.engine.memory import MEMORY_LIMIT
from graphcircuits.methods.acdc import acdc, acdc_circuit
from graphcircuits.methods.prepare import Stop, from_clean_run
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.methods.tasks import make_pairs, planted
from tests.subjects import make_subject
from tests.tiers import some

THRESHOLDS = (1e-4, 1e-3, 1e-2, 3e-2, 0.1, 1.0)


def one_by_one(subject: Transformer, pairs: Pairs, threshold: float) -> Bool[Tensor, " edge"]:
    """The slow twin: one full masked run an edge."""
    pairs = from_clean_run(subject, pairs)
    corrupted = subject.run(pairs.corrupted).writers
    kept = torch.ones(subject.graph.n_edges, dtype=torch.float64)
    loss = pairs.loss(subject.logits(pairs.clean)).mean()
    for edge in reversed(range(subject.graph.n_edges)):
        without = kept.clone()
        without[edge] = 0
        new = pairs.loss(masked_logits(subject, pairs.clean, without, corrupted)).mean()
        # Where nothing leaves the reader, the slow twin still sees rounding errors.
        if new - loss <= threshold + 1e-13:
            kept, loss = without, new
    return kept > 0


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "architecture", some(["plain", "parallel", "neox", "gpt-2", "gemma-3", "everything"], ["neox"])
)
def test_it_equals_the_plain_loop(architecture: str) -> None:
    layers = 3 if architecture == "plain" else 2
    subject = make_subject(architecture, n_heads=2, n_layers=layers)
    pairs = make_pairs(subject)
    for threshold in (1e-3, 3e-2):
        kept = one_by_one(subject, pairs, threshold)
        assert 0 < kept.sum() < len(kept)
        found = acdc_circuit(subject, pairs, threshold=threshold)
        assert torch.equal(found.mask, kept)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_it_equals_the_plain_loop_with_grouped_keys() -> None:
    subject = make_subject("llama", n_heads=4, n_kv_heads=2)
    pairs = make_pairs(subject)
    found = acdc_circuit(subject, pairs, threshold=1e-2)
    assert torch.equal(found.mask, one_by_one(subject, pairs, 1e-2))


def test_what_a_silent_head_reads_matters_where_heads_are_coupled() -> None:
    """A head writes nothing, but its queries are in the norm of those of the other."""
    drawn = make_subject("joint-qk-norm", n_layers=1, n_heads=2)
    W_O = drawn.weights["W_O"].clone()
    W_O[0, 1] = 0
    subject = Transformer(drawn.config, drawn.weights | {"W_O": W_O})
    pairs = make_pairs(subject)
    found = acdc_circuit(subject, pairs, threshold=1e-9)
    assert torch.equal(found.mask, one_by_one(subject, pairs, 1e-9))
    assert found.mask[subject.graph.edge_index("input->a0.h1<q>")]
    assert not found.mask[subject.graph.edge_writers == 2].any()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_many_thresholds_are_one_at_a_time() -> None:
    subject = make_subject(n_heads=2)
    pairs = make_pairs(subject)
    masks = [acdc_circuit(subject, pairs, threshold=t).mask for t in THRESHOLDS]
    assert len({tuple(mask.tolist()) for mask in masks}) > 3
    survived = torch.stack([t * mask.double() for t, mask in zip(THRESHOLDS, masks, strict=True)])
    # In any order, and in as small chunks as can be.
    for limit in (MEMORY_LIMIT, 1):
        scores = acdc(subject, pairs, thresholds=THRESHOLDS[::-1], memory_limit=limit)
        assert torch.equal(scores, survived.amax(0))


def test_threshold_zero_keeps_what_changes_anything() -> None:
    subject, circuit = planted(make_subject())
    pairs = make_pairs(subject)
    found = acdc_circuit(subject, pairs, threshold=0.0)
    assert found == circuit


def test_threshold_infinity_removes_all() -> None:
    subject = make_subject()
    found = acdc_circuit(subject, make_pairs(subject), threshold=float("inf"))
    assert len(found) == 0


def test_stopped_early_it_keeps_what_it_has_not_seen() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    seen: list[tuple[int, int]] = []

    def stop_after_four(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 4:
            raise Stop

    found = acdc_circuit(subject, pairs, threshold=float("inf"), progress=stop_after_four)
    n_edges = subject.graph.n_edges
    assert seen == [(done, n_edges) for done in (1, 2, 3, 4)]
    assert found.mask.tolist() == [True] * (n_edges - 4) + [False] * 4


def test_an_interrupt_passes_through() -> None:
    subject = make_subject()

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        acdc(subject, make_pairs(subject), progress=interrupt)


def test_thresholds_are_checked() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    with pytest.raises(ValueError, match=r"numbers from 0, got \[-1\.0\]"):
        acdc(subject, pairs, thresholds=(0.1, -1.0))
    with pytest.raises(ValueError, match="numbers from 0, got none"):
        acdc(subject, pairs, thresholds=())
    with pytest.raises(ValueError, match="above 0, got 0; acdc_circuit takes a threshold of 0"):
        acdc(subject, pairs, thresholds=(0.0, 0.1))
