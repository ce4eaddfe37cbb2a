"""Effects with their signs, beside the scores: what noising an edge does to the loss."""

from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits import METHODS, localize
from graphcircuits.engine.masked import masked_logits
from graphcircuits.methods.eap import effects, points
from graphcircuits.methods.nodes import lifted
from graphcircuits.methods.prepare import Signed
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.methods.tasks import make_pairs, output_sum
from tests.methods.test_eap import AT_CLEAN, close, linear_subject
from tests.subjects import make_subject


def noised(subject: Transformer, pairs: Pairs) -> Tensor:
    """The change of the mean loss when each edge alone is corrupted, by masked runs."""
    masks = 1 - torch.eye(subject.graph.n_edges, dtype=torch.float64)
    corrupted = subject.run(pairs.corrupted).writers
    losses = masked_logits(subject, pairs.clean, masks, corrupted, metric=pairs.loss)
    return (losses - pairs.loss(subject.logits(pairs.clean))).mean(1)


def signed_of(subject: Transformer, pairs: Pairs, method: str, **options: Any) -> Tensor:
    signed = localize(subject, pairs, method, keep=None, **options).signed
    assert signed is not None
    return signed


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("eap", {}),
        ("eap", {"direction": "denoising", "pool": "sum"}),
        ("eap-ig", {"steps": 2}),
        ("eap-gp", {"steps": 2, "stride": "unit"}),
        ("relp", {}),
        ("exact", {}),
        ("exact", {"direction": "denoising", "pool": "sum"}),
        ("eap", {"memory_limit": 1}),
        ("exact", {"memory_limit": 1}),
        ("eap", {"paths": True}),
    ],
)
def test_on_a_linear_subject_it_is_the_change_of_the_loss(
    method: str, options: dict[str, Any]
) -> None:
    subject = linear_subject()
    pairs = make_pairs(subject, output_sum)
    expected = noised(subject, pairs)
    assert min((expected > 1e-6).sum(), (expected < -1e-6).sum()) > 5
    close(signed_of(subject, pairs, method, **options), expected, 1e-7)


@pytest.mark.usefixtures("unchecked")
def test_exact_signs_on_any_subject() -> None:
    subject = make_subject("llama")
    pairs = make_pairs(subject, "cross-entropy")
    result = localize(subject, pairs, "exact", keep=None)
    assert result.signed is not None
    close(result.signed, noised(subject, pairs))
    # The mean of absolute values is at least the absolute value of the mean.
    assert (result.scores >= result.signed.abs() - 1e-12).all()
    close(localize(subject, pairs, "exact", keep=None, pool="sum").scores, result.signed.abs())


@pytest.mark.usefixtures("unchecked")
def test_edges_that_exact_does_not_test_have_the_estimates_of_eap_ig() -> None:
    subject = make_subject("llama")
    pairs = make_pairs(subject, "cross-entropy")
    names = ["input->logits", "a0.h1->m1"]
    tested = subject.graph.edge_indices(names)
    signed = signed_of(subject, pairs, "exact", edges=names)
    close(signed[tested], noised(subject, pairs)[tested])
    shares, _ = points("midpoint", 5)
    estimates = effects(subject, pairs, "inputs", (shares,))[0].mean(0)
    others = torch.ones(len(signed), dtype=torch.bool).index_fill(0, tested, False)
    close(signed[others], estimates[others])


def test_components_count_by_the_one_that_helps_less() -> None:
    subject = make_subject()
    pairs, graph = make_pairs(subject, "cross-entropy"), subject.graph
    by_edge = effects(subject, pairs, "inputs", AT_CLEAN)[0].mean(0)
    by_component = by_edge.new_zeros(graph.n_writers).index_add(0, graph.edge_writers, by_edge)
    assert by_component.min() < 0 < by_component.max()
    close(signed_of(subject, pairs, "nap"), lifted(graph, by_component))


def test_methods_of_others_may_tell_signs_and_most_have_none() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)

    def own(
        subject: Transformer, pairs: Pairs, *, signed: Signed | None = None, power: float = 1.0
    ) -> Tensor:
        places = torch.arange(subject.graph.n_edges).double() - 3
        if signed is not None:
            signed(places)
        return places.abs() ** power

    result = localize(subject, pairs, own, keep=None)
    assert result.options == {"power": 1.0}
    assert result.by_sign().top(1)[0][1] == subject.graph.n_edges - 4
    assert result.by_sign().ranking()[-1] == 0
    plain = localize(subject, pairs, "random", keep=None)
    assert plain.signed is None
    with pytest.raises(ValueError, match="of random come without signs; eap, eap-ig, eap-gp"):
        plain.by_sign()


def test_the_table_says_which_methods_have_signs() -> None:
    with_signs = {name for name, one in METHODS.items() if "signed" in one.annotations}
    assert with_signs == {"eap", "eap-ig", "eap-gp", "relp", "nap", "exact"}
    assert not any("signed" in one.options for one in METHODS.values())
