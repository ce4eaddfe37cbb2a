"""Trained gates: the lifting of node scores, the sparsity they reach."""

from dataclasses import replace

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.engine.relaxed import probability_open
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.methods.gates import START, edge_pruning, lifted, sp_edge, ugs, usual_size
from graphcircuits.methods.matryoshka import mattr
from graphcircuits.methods.prepare import Stop, to_clean_output
from tests.methods.tasks import make_pairs
from tests.subjects import make_subject


@pytest.mark.parametrize("architecture", ["plain", "one-key", "parallel"])
def test_an_edge_scores_the_smaller_of_its_ends(architecture: str) -> None:
    graph = make_subject(architecture).graph
    readers = torch.randn(graph.n_readers - 1, generator=torch.Generator().manual_seed(0))
    score = dict(zip(graph.reader_names, readers.tolist(), strict=False))
    heads = {
        f"a{layer}.h{head}": max(
            score[name]
            for reader, name in enumerate(graph.reader_names)
            if 1 + layer * graph.writers_per_layer + head in graph.components_of(reader)
        )
        for layer in range(graph.n_layers)
        for head in range(graph.n_heads)
    }
    ends = heads | {name: value for name, value in score.items() if name.startswith("m")}
    best = float(readers.max())
    for name, value in zip(graph.edge_names, lifted(graph, readers).tolist(), strict=True):
        writer, reader = name.split("->")
        assert value == min(ends.get(writer, best), score.get(reader, best)), name


@pytest.mark.slow
def test_pruning_reaches_its_sparsity() -> None:
    subject = make_subject(n_layers=1, n_heads=2)
    pairs = make_pairs(subject)
    for sparsity in (0.6, 0.9):
        scores = edge_pruning(
            subject,
            pairs,
            sparsity=sparsity,
            steps=200,
            samples=1,
            multiplier_rate=1.0,
        )
        assert float(1 - probability_open(scores).mean()) == pytest.approx(sparsity, abs=0.15)


def test_pruning_aims_by_itself_near_the_usual_size() -> None:
    assert usual_size(70_651) == pytest.approx(1063, abs=1)
    assert usual_size(40) == 20
    subject = make_subject(n_layers=1, n_heads=2)
    pairs = make_pairs(subject)
    n_edges = subject.graph.n_edges
    given = edge_pruning(subject, pairs, sparsity=1 - usual_size(n_edges) / n_edges, steps=2)
    assert torch.equal(edge_pruning(subject, pairs, steps=2), given)


@pytest.mark.slow
def test_more_weight_on_sparsity_closes_more() -> None:
    subject = make_subject(n_layers=1, n_heads=2)
    pairs = make_pairs(subject)
    shares = []
    for weight in (0.0, 1.0, 100.0):
        scores = sp_edge(subject, pairs, sparsity=weight, steps=40, samples=1)
        shares.append(float(probability_open(scores).mean()))
    assert shares[0] > shares[1] > shares[2]


def test_the_generator_decides() -> None:
    subject = make_subject(n_layers=1)
    pairs = make_pairs(subject)
    runs = [
        sp_edge(subject, pairs, steps=3, generator=torch.Generator().manual_seed(s))
        for s in (0, 0, 1)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_stopped_early_it_returns_the_gates_so_far() -> None:
    subject = make_subject(n_layers=1)
    pairs = make_pairs(subject)

    def stop_at_two(done: int, total: int) -> None:
        if done == 2:
            raise Stop

    stopped = sp_edge(subject, pairs, steps=50, progress=stop_at_two)
    assert torch.equal(stopped, sp_edge(subject, pairs, steps=2))
    assert not torch.equal(stopped, torch.full_like(stopped, START))


def test_options_are_checked() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    with pytest.raises(ValueError, match=r"steps must be above 0, got 0; prompts must be above 0"):
        sp_edge(subject, pairs, steps=0, prompts=-1)
    with pytest.raises(ValueError, match=r"sparsity must be in 0\.\.1, got 2"):
        edge_pruning(subject, pairs, sparsity=2.0)


@pytest.mark.parametrize("loss_name", ["logit-diff", "cross-entropy", "kl", "l1"])
def test_gates_keep_the_subjects_own_output(loss_name: str) -> None:
    """No circuit is closer to the clean run than the whole subject, however sure it is."""
    subject = make_subject(d_vocab_out=1 if loss_name == "l1" else 3)
    pairs = make_pairs(subject, "cross-entropy" if loss_name == "logit-diff" else loss_name)
    if loss_name == "logit-diff":
        pairs = replace(pairs, loss_name=loss_name, incorrect=torch.zeros_like(pairs.clean))
    if pairs.needs_targets:
        pairs = pairs.with_targets_from(subject.logits(pairs.corrupted))
    found = to_clean_output(subject, pairs)
    assert found.loss(subject.logits(pairs.clean)).abs().max() < 1e-6
    assert found.scored is pairs.scored
    for method in (sp_edge, edge_pruning, ugs, mattr):
        assert torch.equal(method(subject, pairs, steps=2), method(subject, found, steps=2))


@pytest.mark.parametrize("causal", [True, False])
def test_positions_behind_the_scored_ones_are_left_out(causal: bool) -> None:
    """The same scores with a position more, which a causal subject does not look at."""
    subject = make_subject(causal=causal)
    pairs = make_pairs(subject, "kl")
    scored = torch.zeros_like(pairs.scored)
    scored[:, 2] = True
    pairs = replace(pairs, scored=scored)
    longer, shorter = (sp_edge(subject, x, steps=3) for x in (pairs, pairs.up_to_last_column()))
    assert torch.allclose(longer, shorter) == causal


# Uniform gradient sampling


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("id", ["ib-44", "new-pointer-hop-2"])
def test_it_finds_planted_circuits(id: str) -> None:
    case = load_case(id)
    scores = ugs(case.subject(), case.pairs(32), steps=100, samples=8)
    assert auroc(scores, case.circuit) > 0.97


@pytest.mark.slow
def test_more_weight_on_sparsity_keeps_less() -> None:
    subject = make_subject(n_layers=1, n_heads=2)
    pairs = make_pairs(subject)
    shares = [
        float(ugs(subject, pairs, sparsity=weight, steps=40).sigmoid().mean())
        for weight in (0.0, 1.0, 100.0)
    ]
    assert shares[0] > shares[1] > shares[2]


def test_seed_and_stop() -> None:
    subject = make_subject(n_layers=1)
    pairs = make_pairs(subject)

    def stop_at_two(done: int, total: int) -> None:
        if done == 2:
            raise Stop

    two, stopped = (
        ugs(subject, pairs, steps=steps, progress=progress)
        for steps, progress in ((2, None), (50, stop_at_two))
    )
    assert torch.equal(two, stopped)
    assert not torch.equal(two, torch.full_like(two, START))
    other = ugs(subject, pairs, steps=2, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(two, other)
    with pytest.raises(ValueError, match="samples must be above 0, got 0"):
        ugs(subject, pairs, samples=0)
