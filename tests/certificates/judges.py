"""Judges on small subjects, and circuits from numbers of edges."""

from collections.abc import Sequence
from functools import cache

import torch

from graphcircuits.cases import load_case
from graphcircuits.certificates.judging import Clock, Judge
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.evaluate import CircuitRuns
from graphcircuits.graph import ComponentGraph
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.methods.tasks import make_pairs
from tests.subjects import make_config, make_subject

PLANTED = ("input->m0", "m0->a1.h0<v>", "a1.h0->logits")
"""What ib-3 needs: without any of these edges nothing is left."""


def judging(subject: Transformer, pairs: Pairs) -> Judge:
    return Judge(CircuitRuns(subject, pairs), Clock())


@cache
def tiny(batch: int = 6) -> tuple[Transformer, Pairs, Judge]:
    """A random subject of 11 edges in double precision, its pairs, and who judges on them."""
    subject = make_subject(n_layers=1, n_heads=2)
    pairs = make_pairs(subject, batch=batch)
    return subject, pairs, judging(subject, pairs)


@cache
def planted(batch: int = 12) -> tuple[Transformer, Pairs, Judge]:
    """ib-3 on pairs of which no two are alike."""
    case = load_case("ib-3")
    subject, pairs = case.subject().to(torch.float64), case.pairs(batch, seed=1000)
    return subject, pairs, judging(subject, pairs)


def of_edges(graph: ComponentGraph, edges: Sequence[int]) -> Circuit:
    mask = torch.zeros(graph.n_edges, dtype=torch.bool)
    mask[list(edges)] = True
    return Circuit.from_mask(graph, mask)


def drawn(graph: ComponentGraph, share: float, seed: int) -> Circuit:
    """Every edge with this chance."""
    generator = torch.Generator().manual_seed(seed)
    return Circuit.from_mask(graph, torch.rand(graph.n_edges, generator=generator) < share)


def backed_up() -> tuple[Transformer, Circuit]:
    """m0 writes what logits read, and m1 does wherever m0 does not; a circuit without m1.

    The input is a number in dimension 0, the output what stands in dimension 1. m0 copies the one
    to the other, m1 what the one has more than the other: nothing, as long as m0 is there.
    """
    config = make_config(
        n_heads=1, d_model=2, d_head=2, d_mlp=2, d_vocab_out=1, activation="relu", positions="none"
    )
    made = Transformer.random(config, torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = {name: torch.zeros_like(weight) for name, weight in made.weights.items()}
    weights["W_E"][:, 0] = torch.arange(5) - 2.0
    # Two units, for numbers above and below 0.
    weights["W_in"][0, 0] = weights["W_in"][1, 0] = torch.tensor([1.0, -1.0])
    weights["W_in"][1, 1] = torch.tensor([-1.0, 1.0])
    weights["W_out"][:, :, 1] = torch.tensor([1.0, -1.0])
    weights["W_U"][1] = 1.0
    subject = Transformer(config, weights)
    names = ["input->m0", "m0->m1", "m0->logits"]
    return subject, Circuit.from_names(subject.graph, names)
