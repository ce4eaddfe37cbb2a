"""EAP, EAP-IG and exact patching against the scores of the EAP-IG package, on its own model."""

import pytest
import torch
from torch import Tensor

from graphcircuits.adapters.transformer_lens import from_transformer_lens
from graphcircuits.engine.passes import add_effects, writer_deltas
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods.eap import eap, eap_ig, effects, run_with_gradients
from graphcircuits.methods.exact import exact
from graphcircuits.result.files import ungrouped
from graphcircuits.subject.components import Rules
from graphcircuits.subject.transformer import Transformer, TransformerConfig
from graphcircuits.task.pairs import Pairs
from tests.adapters.lens import scored_model
from tests.compare.test_mib import ungrouped_twin
from tests.subjects import make_subject

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
    signed = effects(subject, pairs, "inputs", (torch.ones(1),))[0].mean(0)
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
    signed = effects(subject, pairs, "inputs", (places,))[0].mean(0)
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


def test_exact_patching_of_a_shared_key_is_that_of_all_its_heads() -> None:
    """EAP-IG patches what one head reads, on a model with keys and values for each head."""
    source, pairs, _ = scored_model("llama-like")
    subject = from_transformer_lens(source)
    _, shared = ungrouped(subject.graph)
    single = exact(ungrouped_twin(subject), pairs, pool="sum")
    theirs = torch.zeros(subject.graph.n_edges, dtype=single.dtype).index_add_(0, shared, single)
    ours = exact(subject, pairs, pool="sum")
    grouped = torch.bincount(shared) > 1
    torch.testing.assert_close(ours[~grouped], theirs[~grouped])
    # Heads that change together do more, or less, than the sum of each alone.
    assert 0.75 < rank_correlation(ours[grouped], theirs[grouped]) < 0.9


def before_norms(
    subject: Transformer, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, Tensor]:
    """EAP by what heads write as we have it, and by what they write before the norm behind them,
    which is where the EAP-IG package reads it (`attn.hook_result`)."""
    values: dict[int, list[Tensor]] = {}
    attend = Rules.attend

    def recorded(
        self: Rules, config: TransformerConfig, layer: int, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        z = attend(self, config, layer, q, k, v)
        values.setdefault(layer, []).append(z.detach())
        return z

    monkeypatch.setattr(Rules, "attend", recorded)
    clean, corrupted = (
        run_with_gradients(subject, subject.embed(tokens).detach(), pairs)
        for tokens in (pairs.clean, pairs.corrupted)
    )
    graph, ours = subject.graph, writer_deltas(subject, clean, corrupted)
    theirs = ours.clone()
    for layer, (one, other) in values.items():
        low = 1 + layer * graph.writers_per_layer
        change = torch.einsum("bhpd,hdm->hbpm", other - one, subject.weights["W_O"][layer])
        theirs[low : low + graph.n_heads] = change
    found = torch.zeros(2, graph.n_edges, dtype=ours.dtype)
    for row, deltas in zip(found, (ours, theirs), strict=True):
        every = (0, graph.n_writers)
        add_effects(row[None], graph, clean, deltas, first_layer=0, writers=every)
    return found[0].abs() / len(pairs), found[1].abs() / len(pairs)


@pytest.mark.parametrize("seed", range(3))
def test_norms_after_components_make_another_definition(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, generator = make_subject("gemma-2"), torch.Generator().manual_seed(seed)
    clean = torch.randint(subject.config.d_vocab, (6, 5), generator=generator)
    corrupted = clean.clone()
    corrupted[:, 1] = (clean[:, 1] + 1) % subject.config.d_vocab
    scored = torch.zeros_like(clean, dtype=torch.bool)
    scored[:, -1] = True
    answers = torch.tensor([[0, 1]] * 6)
    pairs = Pairs(
        clean=clean,
        corrupted=corrupted,
        scored=scored,
        loss_name="logit-diff",
        targets=answers[:, 0],
        incorrect=answers[:, 1],
    )
    ours, theirs = before_norms(subject, pairs, monkeypatch)
    torch.testing.assert_close(eap(subject, pairs, pool="sum"), ours, rtol=1e-4, atol=1e-7)
    assert 0.85 < rank_correlation(ours, theirs) < 0.99
