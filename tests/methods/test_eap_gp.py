"""The gradient path: exact where nothing bends, and it leads where the corrupted run is."""

import pytest
import torch
from torch import Tensor

from graphcircuits.methods import eap_gp as module
from graphcircuits.methods.eap import Walk, eap
from graphcircuits.methods.eap_gp import eap_gp
from graphcircuits.methods.exact import exact
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.methods.tasks import make_pairs, output_sum
from tests.methods.test_eap import close, linear_subject
from tests.subjects import SOME, make_subject


@pytest.mark.parametrize("stride", ["gap", "unit"])
def test_it_is_exact_on_a_linear_subject(stride: str) -> None:
    subject = linear_subject()
    pairs = make_pairs(subject, output_sum)
    close(eap_gp(subject, pairs, stride=stride), exact(subject, pairs), 1e-7)


def walked(
    subject: Transformer, pairs: Pairs, monkeypatch: pytest.MonkeyPatch, **options: object
) -> Tensor:
    """The points of the path, the clean input first."""
    seen: list[Tensor] = []

    def attribute(
        subject: Transformer, pairs: Pairs, walk: Walk, *_: object, signed: object
    ) -> Tensor:
        clean, corrupted = (subject.embed(x) for x in (pairs.clean, pairs.corrupted))
        goal = subject.logits(pairs.corrupted)[:, pairs.columns]
        seen.extend([clean[None], walk(subject, pairs, clean, corrupted, goal)])
        return torch.zeros(subject.graph.n_edges)

    monkeypatch.setattr(module, "attribute", attribute)
    eap_gp(subject, pairs, **options)  # pyright: ignore[reportArgumentType]
    return torch.cat(seen)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", SOME)
def test_the_path_goes_against_the_gradient_by_equal_steps(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")
    points = walked(subject, pairs, monkeypatch, steps=4)
    goal = subject.logits(pairs.corrupted)
    gap = subject.embed(pairs.corrupted) - points[0]
    lengths = points.diff(dim=0).flatten(2).norm(dim=-1)
    close(lengths, gap.flatten(1).norm(dim=-1).expand_as(lengths) / 4)
    # Against the gradient of the squared distance, by autograd alone.
    start = points[0].clone().requires_grad_()
    distance = (subject.trace(start).logits - goal).square().sum()
    (slope,) = torch.autograd.grad(distance, start)
    step = (points[0] - points[1]).flatten(1)
    close(torch.cosine_similarity(step, slope.flatten(1)), torch.ones_like(step[:, 0]))


def test_a_unit_stride_and_scored_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = make_subject()
    whole = make_pairs(subject, "cross-entropy")
    last = torch.zeros_like(whole.scored)
    last[:, -2] = True
    pairs = Pairs(
        clean=whole.clean,
        corrupted=whole.corrupted,
        scored=last,
        loss_name="cross-entropy",
        targets=whole.targets,
    )
    points = walked(subject, pairs, monkeypatch, stride="unit", steps=3)
    lengths = points.diff(dim=0).flatten(2).norm(dim=-1)
    close(lengths, torch.ones_like(lengths))
    # What comes after the last scored position has no part in the path.
    assert not (points[-1] - points[0])[:, -1].any()
    assert (points[-1] - points[0])[:, -2].any()


def test_steps_too_short_to_matter_give_eap() -> None:
    """Where the embeddings hardly differ all points are the clean input."""
    subject = make_subject()
    embeddings = subject.weights["W_E"]
    near = embeddings[:1] + 1e-7 * (embeddings - embeddings[:1])
    close_by = Transformer(subject.config, subject.weights | {"W_E": near})
    pairs = make_pairs(close_by, "cross-entropy")
    found, at_clean = eap_gp(close_by, pairs), eap(close_by, pairs)
    assert (found > 0).any()
    torch.testing.assert_close(found, at_clean, rtol=1e-4, atol=0)


def test_a_prompt_that_is_where_it_should_be_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = make_subject()
    pairs = make_pairs(subject, "cross-entropy")
    corrupted = pairs.corrupted.clone()
    corrupted[0] = pairs.clean[0]
    same = Pairs(
        clean=pairs.clean,
        corrupted=corrupted,
        scored=pairs.scored,
        loss_name="cross-entropy",
        targets=pairs.targets,
    )
    points = walked(subject, same, monkeypatch, stride="unit")
    assert torch.equal(points[-1, 0], points[0, 0])
    assert points.isfinite().all()


def test_options_are_checked() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    with pytest.raises(ValueError, match="stride must be one of gap, unit, got 'long'"):
        eap_gp(subject, pairs, stride="long")
    with pytest.raises(ValueError, match="steps must be above 0, got 0"):
        eap_gp(subject, pairs, steps=0)
