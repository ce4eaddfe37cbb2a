"""Fresh searches: which results can be searched for again."""

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.certificates.searching import Search
from graphcircuits.evaluation.localize import localize
from graphcircuits.result.result import Result


def test_methods_along_paths_are_searched_again_along_paths() -> None:
    case = load_case("ib-3")
    subject, pairs = case.subject(), case.pairs(8)
    result = localize(subject, pairs, "eap+paths", keep=None)
    search = Search.of(result, 0.9)
    assert search.words == "eap+paths"
    assert torch.equal(search.find(subject, pairs, 0).scores, result.scores)


def test_what_no_method_found_is_not_searched_again() -> None:
    graph = load_case("ib-3").graph
    result = Result(graph=graph, scores=torch.zeros(graph.n_edges), method="mine+paths")
    with pytest.raises(
        ValueError, match=r"the result was found by mine\+paths, which is no method"
    ):
        Search.of(result, 0.9)
