"""Relevance patching: relevance is conserved, and where nothing bends it is EAP."""

import pytest
import torch

from graphcircuits.methods.eap import eap, effects
from graphcircuits.methods.exact import exact
from graphcircuits.methods.relp import relevant, relp
from graphcircuits.subject.transformer import Transformer
from tests.methods.tasks import make_pairs, output_sum
from tests.methods.test_eap import AT_CLEAN, close, linear_subject
from tests.subjects import ARCHITECTURES, make_subject
from tests.tiers import some


def without_biases(architecture: str) -> Transformer:
    """A subject whose norms add nothing either."""
    subject = make_subject(architecture, biases=False)
    silent = {n: torch.zeros_like(w) for n, w in subject.weights.items() if n.endswith("norm_b")}
    return Transformer(subject.config, subject.weights | silent)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "architecture", some(ARCHITECTURES, ("plain", "layer-norm", "logit-cap", "neox", "llama"))
)
def test_relevance_is_conserved(architecture: str) -> None:
    """With all rules the subject is a linear map of its input: coefficients times the input give
    the output, and times a change of the input what EAP's sum gives for the edges that leave it."""
    subject = without_biases(architecture)
    pairs = make_pairs(subject, output_sum)
    ruled = relevant(subject, "pattern")
    embedded = subject.embed(pairs.clean).requires_grad_()
    losses = pairs.loss(ruled.trace(embedded).logits)
    close(losses, pairs.loss(subject.logits(pairs.clean)))
    (coefficients,) = torch.autograd.grad(losses.sum(), embedded)
    close((coefficients * embedded).sum((1, 2)), losses)
    change = subject.embed(pairs.corrupted) - embedded
    found = effects(ruled, pairs, "inputs", AT_CLEAN)[0]
    close(found[:, subject.graph.edge_writers == 0].sum(1), (coefficients * change).sum((1, 2)))


def test_it_is_eap_where_only_relu_and_attention_bend() -> None:
    subject = make_subject("relu")
    pairs = make_pairs(subject, "cross-entropy")
    assert torch.equal(relp(subject, pairs), eap(subject, pairs))
    smooth = make_subject("plain")
    assert not torch.allclose(relp(smooth, pairs), eap(smooth, pairs), rtol=0.1)


@pytest.mark.parametrize("attention", ["gradient", "pattern"])
def test_it_is_exact_on_a_linear_subject(attention: str) -> None:
    subject = linear_subject()
    pairs = make_pairs(subject, output_sum)
    close(relp(subject, pairs, attention=attention), exact(subject, pairs), 1e-7)


def test_constant_patterns_leave_queries_and_keys_out() -> None:
    subject = make_subject("llama")
    pairs = make_pairs(subject, "cross-entropy")
    graph = subject.graph
    kinds = [graph.reader_kinds[reader] for reader in graph.edge_readers.tolist()]
    reads_pattern = torch.tensor([kind in "qk" for kind in kinds])
    constant = relp(subject, pairs, attention="pattern")
    assert not constant[reads_pattern].any()
    assert constant[~reads_pattern].all()
    assert relp(subject, pairs)[reads_pattern].all()


def test_what_is_read_as_zero_passes_nothing_on() -> None:
    """0 / 0 would be NaN, and so would all that reads it."""
    subject = make_subject("gated")
    weights = subject.weights | {"W_gate": torch.zeros_like(subject.weights["W_gate"])}
    silent = Transformer(subject.config, weights)
    pairs = make_pairs(silent, "cross-entropy")
    scores = relp(silent, pairs)
    into_mlps = [name.endswith(("->m0", "->m1")) for name in silent.graph.edge_names]
    assert not scores[torch.tensor(into_mlps)].any()
    assert scores.isfinite().all()


def test_options_are_checked() -> None:
    subject = make_subject()
    message = "attention must be one of gradient, pattern, got 'values'"
    with pytest.raises(ValueError, match=message):
        relp(subject, make_pairs(subject), attention="values")
