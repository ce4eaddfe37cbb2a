"""Node attribution: the sum of what EAP gives to the edges that leave a component."""

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.methods.eap import effects
from graphcircuits.methods.nodes import lifted, nap, node_scores
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.methods.tasks import make_pairs, output_sum
from tests.methods.test_eap import AT_CLEAN, close, linear_subject, midpoints
from tests.subjects import SOME, make_subject


def scores_of(subject: Transformer, pairs: Pairs, **options: object) -> Tensor:
    found = node_scores(subject, pairs, **options)  # pyright: ignore[reportArgumentType]
    assert tuple(found) == subject.graph.writer_names
    return torch.tensor(list(found.values()), dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("architecture", SOME)
def test_a_component_is_the_sum_of_its_edges(architecture: str, steps: int) -> None:
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")
    by_edge = effects(subject, pairs, "inputs", midpoints(steps) if steps else AT_CLEAN)[0]
    sums = by_edge.new_zeros(len(pairs), subject.graph.n_writers)
    sums = sums.index_add(1, subject.graph.edge_writers, by_edge)
    close(scores_of(subject, pairs, steps=steps), sums.abs().mean(0))
    close(scores_of(subject, pairs, steps=steps, pool="sum"), sums.mean(0).abs())


def test_it_is_exact_on_a_linear_subject() -> None:
    """What the loss changes by when all that a component writes is corrupted."""
    subject = linear_subject()
    pairs = make_pairs(subject, output_sum)
    graph = subject.graph
    masks = (graph.edge_writers != torch.arange(graph.n_writers)[:, None]).double()
    corrupted = subject.run(pairs.corrupted).writers
    losses = masked_logits(subject, pairs.clean, masks, corrupted, metric=pairs.loss)
    changes = losses - pairs.loss(subject.logits(pairs.clean))
    assert (changes.abs() > 1e-6).all(1).sum() > 5
    for steps in (0, 2):
        close(scores_of(subject, pairs, steps=steps), changes.abs().mean(1), 1e-7)


@pytest.mark.parametrize("architecture", ["plain", "one-key", "parallel"])
def test_an_edge_scores_the_smaller_of_its_components(architecture: str) -> None:
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")
    graph, nodes = subject.graph, node_scores(subject, pairs)
    scores = nap(subject, pairs)
    for edge, (writer, reader) in enumerate(
        zip(graph.edge_writers.tolist(), graph.edge_readers.tolist(), strict=True)
    ):
        served = [graph.writer_names[w] for w in graph.components_of(reader)] or list(nodes)
        expected = min(nodes[graph.writer_names[writer]], max(nodes[name] for name in served))
        assert float(scores[edge]) == expected, graph.edge_name(edge)


def test_the_best_edges_lie_among_the_best_components() -> None:
    graph = make_subject().graph
    writers = torch.zeros(graph.n_writers)
    names = ("input", "a0.h1", "m1")
    writers[[graph.writer_names.index(name) for name in names]] = torch.tensor([3.0, 2.0, 1.0])
    kept = {name for name, x in zip(graph.edge_names, lifted(graph, writers), strict=True) if x > 0}
    inside = {f"input->a0.h1<{kind}>" for kind in "qkv"} | {"input->m1", "a0.h1->m1"}
    assert kept == inside | {f"{name}->logits" for name in names}


def test_a_flat_loss_asks_for_steps() -> None:
    subject = make_subject()
    pairs = make_pairs(subject, output_sum)

    def cubed(logits: Tensor, pairs: Pairs) -> Tensor:
        return (output_sum(logits, pairs) - before) ** 3

    before = pairs.loss(subject.logits(pairs.clean))
    flat = Pairs(clean=pairs.clean, corrupted=pairs.corrupted, scored=pairs.scored, loss_name=cubed)
    with pytest.raises(ValueError, match=r"zero at every component.*: give nap steps"):
        node_scores(subject, flat)
    assert min(node_scores(subject, flat, steps=2).values()) > 0


def test_options_are_checked() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    with pytest.raises(ValueError, match="steps must be at least 0, got -1"):
        nap(subject, pairs, steps=-1)
    with pytest.raises(ValueError, match="pool must be one of abs, sum, got 'mean'"):
        node_scores(subject, pairs, pool="mean")
