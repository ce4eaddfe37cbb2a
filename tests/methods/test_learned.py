"""The learned method: with a predictor from a file, and with those of the package."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import graphcircuits as gc
from graphcircuits.cases import N_FOLDS, case_ids, load_case, split_records
from graphcircuits.cases.relations import fold_of, groups_of
from graphcircuits.commands.options import method_options
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.methods import BeyondTraining, localize
from graphcircuits.methods.learned import GCL
from graphcircuits.methods.shipped import SHIPPED, choose_predictor, load_predictor, shipped
from graphcircuits.predictor.ensemble import Ensemble, Prediction, save_ensemble, seen_of
from graphcircuits.predictor.model import Predictor, PredictorConfig
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.methods.tasks import make_pairs
from tests.subjects import make_subject

pytestmark = pytest.mark.usefixtures("unchecked", "uninformed")


@pytest.fixture
def own(tmp_path: Path) -> str:
    """The file of an untrained predictor."""
    return untrained(tmp_path / "own.safetensors")


def untrained(path: Path, **options: Any) -> str:
    """The file of predictors whose weights are random, also where they start at zero."""
    config = PredictorConfig(width=8, layers=1, **options)
    members = []
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        members.append(Predictor(config, generator=generator))
        torch.nn.init.normal_(members[-1].readout.weight, generator=generator)
    save_ensemble(path, Ensemble(tuple(members), {"subjects": seen_of([make_subject()])}))
    return str(path)


@pytest.mark.parametrize("architecture", ["plain", "llama"])
def test_scores_are_those_of_the_predictor_in_a_file(tmp_path: Path, architecture: str) -> None:
    """Of one that draws prompt pairs, so that the generator matters."""
    options = {"aligner": "tabpfn", "context_pairs": 1, "prior": False}
    own = untrained(tmp_path / "drawing.safetensors", **options)
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")
    scores, same, other = (
        GCL(
            subject,
            pairs,
            predictor=own,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed in (4, 4, 5)
    )
    expected = (
        load_predictor(own)
        .predict_case(subject, pairs, generator=torch.Generator().manual_seed(4))
        .logits
    )
    assert torch.equal(scores, expected)
    assert torch.equal(same, scores)
    assert not torch.equal(other, scores)
    first, second = (GCL(subject, pairs, predictor=own) for _ in range(2))
    assert torch.equal(first, second)


def test_the_subject_is_left_alone(own: str) -> None:
    subject = make_subject()
    before = {name: weight.clone() for name, weight in subject.weights.items()}
    state = torch.get_rng_state()
    GCL(subject, make_pairs(subject, "cross-entropy"), predictor=own)
    assert all(torch.equal(weight, before[name]) for name, weight in subject.weights.items())
    assert torch.equal(torch.get_rng_state(), state)


def test_pairs_need_no_targets_where_the_gradient_is_taken_before_the_clean_run(own: str) -> None:
    """Targets are then those of the clean run."""
    subject = make_subject()
    pairs = make_pairs(subject, "kl")
    told = pairs.with_targets_from(subject.logits(pairs.clean))
    scores, expected = (GCL(subject, x, predictor=own) for x in (pairs, told))
    torch.testing.assert_close(scores, expected)


def test_what_cannot_be_scored_is_refused(own: str, tmp_path: Path) -> None:
    subject = make_subject()
    clean = untrained(tmp_path / "clean.safetensors", share=1.0, prior=False)
    message = f"the predictor '{clean}' reads the gradient of the loss at the clean run, but these "
    with pytest.raises(ValueError, match=f"{message}kl pairs have no targets of their own"):
        GCL(subject, make_pairs(subject, "kl"), predictor=clean)
    pairs = make_pairs(subject, "cross-entropy")
    with pytest.raises(ValueError, match="there is no predictor 'nothing'"):
        GCL(subject, pairs, predictor="nothing")


def test_gradients_that_say_nothing_are_refused(own: str) -> None:
    subject = make_subject()

    def broken(logits: Tensor, _: Pairs) -> Tensor:
        """Zero where it is taken, and without a slope there."""
        return (logits - logits.detach()).abs().sqrt().sum((1, 2)) + logits.sum((1, 2))

    with pytest.raises(ValueError, match=r"gradient of a0\.h0<q> is NaN or infinite"):
        GCL(subject, make_pairs(subject, broken), predictor=own)

    def flat(logits: Tensor, _: Pairs) -> Tensor:
        """Another one on other prompts, whatever the weights do about it."""
        return logits.detach().abs().sum((1, 2)) + 0 * logits.sum((1, 2))

    with pytest.raises(ValueError, match="gradient of the loss is zero at every component"):
        GCL(subject, make_pairs(subject, flat), predictor=own)


# The predictors of the package


def test_localize_a_case() -> None:
    """`ib-3` is a test case, which no shipped predictor has seen."""
    case = load_case("ib-3")
    result = localize(case.subject(), case.pairs(16), "gcl")
    assert result.method == "gcl"
    assert dict(result.options) == {"predictor": "default"}
    assert auroc(result, case.circuit) > 0.8


def without_marks(id: str, n: int = 8) -> tuple[Transformer, Pairs]:
    """Subject and prompts of a case as someone else's code would make them."""
    case = load_case(id)
    subject = case.subject()
    return Transformer(subject.config, dict(subject.weights)), replace(case.pairs(n), case=None)


@pytest.mark.parametrize("given", ["both", "subject", "pairs", "weights"])
def test_localize_is_blind_to_a_case_of_the_pool(given: str) -> None:
    case, (subject, pairs) = load_case("ib-7"), without_marks("ib-7")
    # Without marks the weights give it away, until they are changed.
    changed = {name: weight * 1.001 for name, weight in subject.weights.items()}
    subject = {
        "both": case.subject(),
        "subject": case.subject(),
        "pairs": Transformer(subject.config, changed),
        "weights": subject.to(torch.float64),
    }[given]
    pairs = case.pairs(8) if given in ("both", "pairs") else pairs
    result = localize(subject, pairs, "gcl")
    assert case.fold == 0
    assert result.options == {"predictor": "fold-0"}
    assert "predictor fold-0, which was trained without this case (ib-7)" in result.notes
    ensemble = load_predictor("fold-0")
    expected = ensemble.predict_case(
        subject, pairs, generator=torch.Generator().manual_seed(0)
    ).logits
    assert torch.equal(result.scores, expected)
    assert torch.equal(GCL(subject, pairs), result.scores)


def test_nothing_is_said_of_subjects_that_no_predictor_has_seen() -> None:
    subject, pairs = without_marks("ib-3")
    assert localize(subject, pairs, "gcl").notes == ()
    changed = {name: weight * 1.001 for name, weight in subject.weights.items()}
    assert localize(Transformer(subject.config, changed), pairs, "gcl").notes == ()


def test_a_predictor_that_saw_the_case_is_refused(tmp_path: Path) -> None:
    subject, pairs = without_marks("ib-7")
    message = (
        r"this is case ib-7, and the predictor 'default' was trained on ib-7 itself: its scores "
        r"would say nothing about a new subject; use 'fold-0', which was not, or name none\."
    )
    with pytest.raises(ValueError, match=message):
        localize(subject, pairs, "gcl", predictor="default")
    with pytest.raises(ValueError, match="the predictor 'fold-1' was trained on ib-7 itself"):
        GCL(subject, pairs, predictor="fold-1")
    # ib-14 is related to ib-7 and in the same fold.
    config = PredictorConfig(width=8, layers=1)
    origin = {"cases": ["ib-2", "ib-14"]}
    path = str(tmp_path / "own.safetensors")
    save_ensemble(path, Ensemble((Predictor(config),), origin))
    with pytest.raises(ValueError, match="trained on ib-14, which is related to it"):
        localize(subject, pairs, "gcl", predictor=path)
    # ib-25, of the paper's pool, has the circuit of ib-18, which is held out.
    save_ensemble(path, Ensemble((Predictor(config),), {"cases": ["ib-25"], "groups": ["ib-18"]}))
    with pytest.raises(ValueError, match="trained on ib-25, which is related to it"):
        localize(load_case("ib-18").subject(), load_case("ib-18").pairs(2), "gcl", predictor=path)
    save_ensemble(path, Ensemble((Predictor(config),), origin))
    other = load_case("ib-15")
    assert localize(other.subject(), other.pairs(4), "gcl", predictor=path).options == {
        "predictor": path
    }


def test_a_predictor_is_a_value(own: str) -> None:
    """It gives what its file gives, is checked as that is, and makes the method gcl."""
    subject = make_subject()
    pairs = make_pairs(subject, "cross-entropy")
    predictor = gc.load_predictor(own)
    by_path = localize(subject, pairs, "gcl", predictor=own)
    for given in (predictor, Path(own)):
        found = localize(subject, pairs, predictor=given)
        assert (found.method, found.options) == ("gcl", {"predictor": own})
        assert torch.equal(found.scores, by_path.scores)
    assert gc.load_predictor("fold-1").name == "fold-1"
    unsaved = Ensemble(predictor.members, predictor.origin)
    found = localize(subject, pairs, "gcl", predictor=unsaved)
    assert found.options == {"predictor": "a predictor that was not saved"}
    with pytest.raises(ValueError, match="predictor of gcl must be text or null"):
        method_options("gcl", ["predictor=5"])
    case = load_case("ib-7")
    with pytest.raises(ValueError, match="'a predictor that was not saved' was trained on ib-7 it"):
        GCL(case.subject(), case.pairs(2), predictor=replace(unsaved, origin={"cases": ["ib-7"]}))


def test_what_no_training_had_is_a_warning_and_a_note(own: str) -> None:
    """Said by predictors that do not know what their training cases were like."""
    subject = make_subject("llama")
    pairs = make_pairs(subject, "cross-entropy")
    text = "beyond what the predictor was trained on: norm rms, positions rotary, gated MLP, "
    with pytest.warns(BeyondTraining, match=text) as caught:
        result = localize(subject, pairs, "gcl", predictor=own)
    whole = f"{text}grouped keys; how good the scores are there has not been measured"
    assert str(caught[0].message) == whole
    assert result.notes == (whole,)
    # Other methods have no training, and warnings are errors in this session.
    assert localize(subject, pairs, "eap").notes == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_no_predictor_has_seen_what_it_is_blind_to(name: str) -> None:
    ensemble = shipped(name)
    left_out = int(name[-1]) if name.startswith("fold") else None
    cases = ensemble.origin["cases"]
    # Random programs and models of several tasks among them; what is in no fold is no pool case.
    assert {fold_of(id) for id in cases} == {*range(N_FOLDS)} - {left_out}
    assert {load_case(id).split for id in cases if id in split_records()} == {"pool"}
    assert ensemble.origin["groups"] == sorted({group for id in cases for group in groups_of(id)})
    expected = {id for id in case_ids(split="pool") if load_case(id).fold != left_out}
    missing = expected - {*cases}
    # Only cases whose subject is not shipped are left out.
    for id in missing:
        with pytest.raises(FileNotFoundError):
            load_case(id).subject()
    assert len(ensemble.members) == len(ensemble.origin["seeds"])


def test_a_shipped_predictor_says_what_it_has_not_seen() -> None:
    subject: Transformer = load_case("ib-3").subject()
    assert shipped("default").unseen(subject) == []
    assert shipped("default").unseen(make_subject("llama")) == []
    deep = make_subject(n_layers=9)
    assert shipped("default").unseen(deep) == ["9 layers, at most 8 were seen"]


def test_a_predictor_says_where_it_learned_from_other_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def notes(id: str) -> list[str]:
        case = load_case(id)
        found = localize(case.subject(), case.pairs(4), "gcl").notes
        return [note for note in found if "labels" in note]

    monkeypatch.setattr(Ensemble, "labels", "interpbench")
    (note,) = notes("ib-13")
    assert note == (
        "the predictor learned from interpbench labels; the true circuit is given by complete "
        "labels, and differs in input->m0"
    )
    assert notes("ib-3") == []  # both labelings give one circuit
    monkeypatch.setattr(Ensemble, "labels", "complete")
    assert notes("ib-13") == []


@pytest.mark.parametrize(("trust", "said"), [(0.0, False), (0.05, False), (0.3, True), (1.0, True)])
def test_no_probabilities_where_the_correction_counts_for_nothing(trust: float, said: bool) -> None:
    logits = torch.linspace(-1, 1, 110)
    case = load_case("ib-3")
    subject = case.subject()
    prediction = Prediction(logits, logits.sigmoid(), familiarity=None, trust=trust)
    found = GCL.describe(subject, choose_predictor(subject, case.pairs(2)), prediction)
    assert (found.probabilities is not None) == said
    assert any("gives no probabilities here" in str(one) for one in found.remarks) != said
