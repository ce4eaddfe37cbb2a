"""The learned method: with a predictor from a file, and with those of the package."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from graphcircuits.benchmark import case_ids, load_case
from graphcircuits.evaluate import auroc
from graphcircuits.methods import localize
from graphcircuits.methods.learned import gcl
from graphcircuits.predictor.ensemble import (
    SHIPPED,
    Ensemble,
    find_ensemble,
    save_ensemble,
    seen_of,
    shipped,
)
from graphcircuits.predictor.model import Predictor, PredictorConfig
from graphcircuits.task import Pairs
from graphcircuits.transformer import Transformer
from tests.methods.tasks import make_pairs
from tests.subjects import make_subject

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def own(tmp_path: Path) -> str:
    """The file of an untrained predictor that looks at single contexts."""
    config = PredictorConfig(width=8, layers=1, context_width=2, contexts=3)
    members = tuple(
        Predictor(config, generator=torch.Generator().manual_seed(seed)) for seed in range(2)
    )
    path = tmp_path / "own.safetensors"
    save_ensemble(path, Ensemble(members, {"subjects": seen_of([make_subject()])}))
    return str(path)


@pytest.mark.parametrize("architecture", ["plain", "llama"])
def test_scores_are_those_of_the_predictor_in_a_file(own: str, architecture: str) -> None:
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")
    scores, same, other = (
        gcl(
            subject,
            subject.graph,
            pairs,
            predictor=own,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed in (4, 4, 5)
    )
    expected = find_ensemble(own).scores(subject, pairs, generator=torch.Generator().manual_seed(4))
    assert torch.equal(scores, expected)
    assert torch.equal(same, scores)
    assert not torch.equal(other, scores)
    first, second = (gcl(subject, subject.graph, pairs, predictor=own) for _ in range(2))
    assert torch.equal(first, second)


def test_the_subject_is_left_alone(own: str) -> None:
    subject = make_subject()
    before = {name: weight.clone() for name, weight in subject.weights.items()}
    state = torch.get_rng_state()
    gcl(subject, subject.graph, make_pairs(subject, "cross-entropy"), predictor=own)
    assert all(torch.equal(weight, before[name]) for name, weight in subject.weights.items())
    assert torch.equal(torch.get_rng_state(), state)


def test_what_cannot_be_scored_is_refused(own: str) -> None:
    subject = make_subject()
    with pytest.raises(ValueError, match="these kl pairs have no targets of their own"):
        gcl(subject, subject.graph, make_pairs(subject, "kl"), predictor=own)
    pairs = make_pairs(subject, "cross-entropy")
    with pytest.raises(ValueError, match="there is no predictor 'nothing'"):
        gcl(subject, subject.graph, pairs, predictor="nothing")
    other = make_subject("one-layer")
    with pytest.raises(ValueError, match="graph must be the subject's own"):
        gcl(subject, other.graph, pairs, predictor=own)


def test_gradients_that_say_nothing_are_refused(own: str) -> None:
    subject = make_subject()

    def broken(logits: Tensor, _: Pairs) -> Tensor:
        """Zero where it is taken, and without a slope there."""
        return (logits - logits.detach()).abs().sqrt().sum((1, 2)) + logits.sum((1, 2))

    with pytest.raises(ValueError, match=r"gradient of a0\.h0<q> is NaN or infinite"):
        gcl(subject, subject.graph, make_pairs(subject, broken), predictor=own)
    numerical = make_subject(d_vocab_out=1)
    pairs = make_pairs(numerical, "l1")
    flat = pairs.with_targets_from(numerical.logits(pairs.clean))
    with pytest.raises(ValueError, match="gradient of the loss is zero at every component"):
        gcl(numerical, numerical.graph, flat, predictor=own)


# The predictors of the package


def test_localize_a_case() -> None:
    """`ib-3` is a test case, which no shipped predictor has seen."""
    case = load_case("ib-3")
    result = localize(case.subject(), case.pairs(16), "gcl")
    assert result.method == "gcl"
    assert dict(result.options) == {"predictor": "default"}
    assert auroc(result, case.circuit) > 0.8


@pytest.mark.parametrize("name", SHIPPED)
def test_no_predictor_has_seen_what_it_is_blind_to(name: str) -> None:
    ensemble = shipped(name)
    fold = int(name[-1]) if name.startswith("fold") else None
    cases = [load_case(id) for id in ensemble.origin["cases"]]
    assert {case.split for case in cases} == {"pool"}
    assert fold not in {case.fold for case in cases}
    expected = {id for id in case_ids(split="pool") if load_case(id).fold != fold}
    missing = expected - {case.id for case in cases}
    # Only cases whose subject is not shipped are left out.
    for id in missing:
        with pytest.raises(FileNotFoundError):
            load_case(id).subject()
    assert len(ensemble.members) == len(ensemble.origin["seeds"])


def test_a_shipped_predictor_says_what_it_has_not_seen() -> None:
    subject: Transformer = load_case("ib-3").subject()
    assert shipped("default").unseen(subject) == []
    assert "norm rms" in shipped("default").unseen(make_subject("llama"))
