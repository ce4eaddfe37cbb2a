"""The floors that every method must beat: rankings that see nothing of what a subject computes.

What they reach, a method reaches without finding anything: many small programs need the same few
edges, which is why tables show them. `edge_frequency` compares edges by their names, such as
`a0.h1->m0`, in graphs of all sizes. Of a case that is recognized, all circuits of its fold and of
cases related to it stay out, as its predictor was trained without them.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.cases import LANGUAGE_MODELS, case_ids, load_case
from graphcircuits.cases.recognize import recognize
from graphcircuits.cases.relations import fold_of, groups_of, pool_cases, twins
from graphcircuits.fleets.exchange import edges_in
from graphcircuits.methods.prepare import prepare
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs


def random_scores(
    subject: Transformer, pairs: Pairs, *, generator: torch.Generator | None = None
) -> Float[Tensor, " edge"]:
    """Uniform in 0..1. The pairs are only checked, as by every other method."""
    prepare(subject, pairs)
    return torch.rand(subject.graph.n_edges, generator=generator)


def edge_frequency(
    subject: Transformer, pairs: Pairs, *, labels: str = "complete"
) -> Float[Tensor, " edge"]:
    """The share of the pool's circuits, cases related to this one left out, with such an edge."""
    prepare(subject, pairs)
    graph, circuits = subject.graph, usable_circuits(recognize(subject, pairs).case, labels)
    counts = Counter(name for names in circuits.values() for name in edges_in(graph, names))
    scores = torch.zeros(graph.n_edges)
    for name, count in counts.items():
        if (edge := graph.find_edge(name)) is not None:
            scores[edge] = count / len(circuits)
    return scores


def usable_circuits(case: str | None, labels: str) -> dict[str, frozenset[str]]:
    """The pool's circuits that may be known when this case is scored, by the case they are of."""
    if case is not None and case.partition("-")[0] == LANGUAGE_MODELS:
        # What is planted in language models is elsewhere in each; a model's calls are of one fold.
        own, pool = fold_of(case), _language_circuits(labels)
        return {id: names for id, names in pool.items() if own is None or fold_of(id) != own}
    circuits = dict(_pool_circuits(labels))
    if case is None:
        return circuits
    fold, groups, same = fold_of(case), groups_of(case), twins(case)
    for one in pool_cases():
        if one.fold == fold or one.group in groups or one.id in same:
            circuits.pop(one.id, None)
    return circuits


@cache
def _language_circuits(labels: str) -> Mapping[str, frozenset[str]]:
    """Of every call of the pool's language models."""
    ids = case_ids(LANGUAGE_MODELS, "pool")
    return {id: load_case(id).labels(labels).edges for id in ids}


@cache
def _pool_circuits(labels: str) -> Mapping[str, frozenset[str]]:
    """Of every case of the pool that has labels of this kind."""
    cases = [load_case(one.id) for one in pool_cases()]
    if labels == "paper":
        cases = [case for case in cases if case.published or case.worked_out]
    return {case.id: case.labels(labels).edges for case in cases}
