"""EAP, EAP-IG and exact patching against the scores of the EAP-IG package, on its own model."""

import pytest
import torch
from torch import Tensor

from graphcircuits.adapters.transformer_lens import from_transformer_lens
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods.eap import eap, eap_ig, effects
from graphcircuits.methods.exact import exact
from graphcircuits.result_files import ungrouped
from tests.adapters.lens import scored_model

PROMPTS = 6
# It takes the mean of the loss over a batch and divides by the number of prompts once more.
UNIT = PROMPTS


def in_our_order(matrix: Tensor, graph: ComponentGraph) -> Tensor:
    """A row per writer and a column per reader -> our edges, groups of heads added up."""
    full, shared = ungrouped(graph)
    single = matrix[full.edge_writers, full.edge_readers]
    return matrix.new_zeros(graph.n_edges).index_add_(0, shared, single)


def rank_correlation(one: Tensor, other: Tensor) -> float:
    ranks = torch.stack([scores.argsort().argsort().double() for scores in (one, other)])
    return float(torch.corrcoef(ranks)[0, 1])


@pytest.mark.parametrize("name", ["gpt2-like", "llama-like"])
def test_eap(name: str) -> None:
    source, pairs, theirs = scored_model(name)
    subject = from_transformer_lens(source)
    expected = UNIT * in_our_order(theirs["EAP"], subject.graph)
    signed = effects(subject, pairs, "inputs", (torch.ones(1),)).mean(0)
    torch.testing.assert_close(signed, expected, rtol=1e-4, atol=1e-7)
    found = eap(subject, pairs, pool="sum")
    torch.testing.assert_close(found, expected.abs(), rtol=1e-4, atol=1e-7)
    assert rank_correlation(found, expected.abs()) > 0.9999


@pytest.mark.parametrize("name", ["gpt2-like", "llama-like"])
def test_eap_ig_at_its_places_on_the_path(name: str) -> None:
    source, pairs, theirs = scored_model(name)
    subject = from_transformer_lens(source)
    expected = UNIT * in_our_order(theirs["EAP-IG-inputs"], subject.graph)
    # It starts each of its five steps at the corrupted end.
    places = torch.arange(5, dtype=torch.float64) / 5
    signed = effects(subject, pairs, "inputs", (places,)).mean(0)
    torch.testing.assert_close(signed, expected, rtol=1e-4, atol=1e-7)
    found = eap_ig(subject, pairs, steps=5, rule="left", pool="sum")
    torch.testing.assert_close(found, expected.abs(), rtol=1e-4, atol=1e-7)
    # Ours lie in the middle of the steps: another estimate of the same integral.
    middle = eap_ig(subject, pairs, steps=5, pool="sum")
    assert 0.9 < rank_correlation(middle, expected.abs()) < 0.9999


def test_exact_patching() -> None:
    source, pairs, theirs = scored_model("gpt2-like")
    subject = from_transformer_lens(source)
    expected = in_our_order(theirs["exact"], subject.graph)
    found = exact(subject, pairs, pool="sum")
    torch.testing.assert_close(found, expected.abs(), rtol=1e-4, atol=1e-6)
