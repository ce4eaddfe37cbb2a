"""Which method is taken where none is named, by what predictors say in their files; and that every
decision is made once."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import graphcircuits as gc
from graphcircuits import methods
from graphcircuits.cases import load_case, recognize
from graphcircuits.methods import BeyondTraining, choose_method, learned, localize, shipped
from graphcircuits.methods.shipped import kind_of
from graphcircuits.predictor.ensemble import Ensemble, seen_of
from graphcircuits.predictor.facts.calibration import Platt
from graphcircuits.predictor.facts.familiarity import Cloud, KnownCases
from graphcircuits.predictor.invariant import table_width
from graphcircuits.predictor.looker import Looker, LookerConfig
from graphcircuits.predictor.model import Predictor, PredictorConfig
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.methods.tasks import make_pairs
from tests.shell import Command
from tests.subjects import make_subject

pytestmark = pytest.mark.usefixtures("unchecked")

MEASURED = {
    "natural": {"cmd": {"gcl": 0.1, "eap-ig": 0.2}},
    "language": {"cmd": {"gcl": 0.3, "eap-ig": 0.2}},
    "public": {"cmd": {"gcl": 0.3, "eap-ig": 0.2}, "auroc": {"gcl": 0.99, "eap-ig": 0.98}},
}
Ship = Callable[..., None]


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch) -> Ship:
    """Put a predictor in the place of the shipped ones, which finds cases familiar or not."""

    def put(*, limit: float = 1e9, share: float = 0.75, **changes: Any) -> None:
        config = PredictorConfig(width=8, layers=1, share=share, prior=share < 1)
        members = []
        for seed in (0, 1):
            generator = torch.Generator().manual_seed(seed)
            members.append(Predictor(config, generator=generator).eval())
            # What corrects a prior starts at zero, so that members would not disagree.
            torch.nn.init.normal_(members[-1].readout.weight, generator=generator)
        columns = len(members[0].align.get_buffer("mean"))
        cloud = Cloud(torch.zeros(columns), torch.eye(columns))
        known = KnownCases(cloud, torch.tensor([limit, 1e9]), torch.tensor([1e-30, 0.5]))
        calibration = {"natural": Platt(2.0, -1.0), "planted": Platt(1.0, 0.0)}
        origin = {"measured": MEASURED, "subjects": seen_of([make_subject()])}
        given = {"calibration": calibration, "known": known} | changes
        ensemble = replace(Ensemble(tuple(members), origin), **given)
        monkeypatch.setattr(shipped, "shipped", lambda name: ensemble)

    return put


def make_case(architecture: str = "plain") -> tuple[Transformer, Pairs]:
    subject = make_subject(architecture)
    return subject, make_pairs(subject, "cross-entropy")


def test_what_is_familiar_and_was_measured_to_win_gets_gcl(
    ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship()
    subject, pairs = make_case("llama")
    predict, reads = Ensemble.predict_case, []

    def counted(*args: Any, **options: Any) -> Any:
        reads.append(args)
        return predict(*args, **options)

    monkeypatch.setattr(Ensemble, "predict_case", counted)
    result = localize(subject, pairs)
    assert len(reads) == 1
    assert result.method == "gcl"
    assert result.options == {"predictor": "default"}
    assert result.notes == (
        "no method was named: gcl, because this case is like those that it was trained on, and on "
        "natural subjects it had a mean CMD of 0.100, and eap-ig one of 0.200",
        "the predictor knows cases like this one: it is at least as typical as 50% of the cases in "
        "the training",
    )
    named = localize(subject, pairs, "gcl")
    assert torch.equal(named.scores, result.scores)
    assert result.probabilities is not None
    assert named.probabilities is not None
    assert torch.equal(named.probabilities, result.probabilities)
    torch.testing.assert_close(result.probabilities, (2 * result.scores - 1).sigmoid().float())
    assert named.notes == result.notes[1:]
    assert result.seconds is not None
    assert result.seconds > 0


def test_a_choice_is_the_run_that_it_took(ship: Ship) -> None:
    """Unless options are given with it, which take another run."""
    ship()
    subject, pairs = make_case()
    choice = choose_method(subject, pairs, seed=3)
    assert choice.scored is not None
    # Scores that only the choice has tell whether they were used.
    marked = torch.arange(subject.graph.n_edges).float()
    choice = replace(choice, scored=replace(choice.scored, scores=marked))
    assert torch.equal(choice.run().scores, marked)
    assert torch.equal(choice.with_options({}).run().scores, marked)
    other = choice.with_options({"paths": True}).run()
    assert other.options == {"predictor": "default", "paths": True}
    assert torch.equal(other.scores, localize(subject, pairs, "gcl", paths=True).scores)


def test_what_is_not_familiar_gets_eap_ig(ship: Ship) -> None:
    ship(limit=1e-3)
    subject, pairs = make_case("llama")
    result = localize(subject, pairs, steps=1)
    assert (result.method, result.probabilities) == ("eap-ig", None)
    (note,) = result.notes
    assert note.startswith(
        "no method was named: eap-ig, because this case is not like those that gcl was trained on: "
        "the networks of the predictor disagree about it "
    )
    with pytest.warns(BeyondTraining) as caught:
        named = localize(subject, pairs, "gcl")
    told = str(caught[0].message)
    none = "gcl gives no probabilities here: they would mean nothing on such a model"
    assert (named.notes, named.probabilities) == ((told, none), None)
    start = "this case is not like those that the predictor was trained on (none of them had: norm "
    assert told.startswith(f"{start}rms, positions rotary, gated MLP, grouped keys): the networks")
    # Words alone are no reason: the plain architecture is as strange.
    with pytest.warns(BeyondTraining, match="was trained on: the networks"):
        localize(*make_case(), "gcl")


def test_where_looking_wins_by_edges_it_is_taken_familiar_or_not(ship: Ship) -> None:
    """What the networks think of the proposal says nothing of a ranking that was looked at."""
    config = LookerConfig(width=8, sizes=2, prompts=2, rounds=1)
    columns = table_width(PredictorConfig(share=0.5).share)
    looker = Looker(config, columns).eval().requires_grad_(False)
    edges = {"gcl": 40.0, "eap-ig+paths": 50.0, "eap-ig": 60.0}
    origin = {"measured": {"language": {"edges": edges, "cmd": MEASURED["language"]["cmd"]}}}
    subject, pairs = make_case("llama")
    speaking = replace(subject, tokenizer=object())
    given = {"limit": 1e-3, "share": 0.5, "origin": origin}
    ship(**given)
    assert choose_method(speaking, pairs).name == "eap-ig"
    ship(lookers=(looker,), looks=("language",), **given)
    result = localize(speaking, pairs)
    assert (result.method, result.options) == ("gcl", {"predictor": "default", "looks": 1})
    assert result.notes == (
        "no method was named: gcl, because on language subjects it had 40 edges for .9 of the "
        "output, eap-ig+paths 50",
    )
    named = localize(speaking, pairs, "gcl", looks=1)
    assert torch.equal(named.scores, result.scores)
    # Blind to all runs, nothing can be looked at.
    blind = methods.find_method("gcl-blind")
    assert torch.equal(blind(speaking, pairs), blind(speaking, pairs, looks=0))
    edges["gcl"] = 51.0
    reason = choose_method(speaking, pairs).reason
    assert reason.endswith("gcl had 51 edges for .9 of the output, eap-ig+paths 50")


def test_where_gcl_was_not_measured_or_did_not_win(ship: Ship) -> None:
    ship()
    subject, pairs = make_case()
    marked = replace(subject, case="ib-3", fleet="planted")
    choice = choose_method(marked, pairs)
    assert (choice.name, choice.scored) == ("eap-ig", None)
    assert choice.reason.endswith("because gcl has not been measured on planted subjects")
    speaking = replace(subject, tokenizer=object())
    choice = choose_method(speaking, pairs)
    assert choice.name == "eap-ig"
    assert choice.reason.endswith(
        "because on language subjects gcl had a mean CMD of 0.300, and eap-ig one of 0.200"
    )
    # Where circuits are known, they decide.
    choice = choose_method(replace(marked, fleet="public"), pairs)
    assert choice.name == "gcl"
    assert choice.reason.endswith("it had a mean AUROC of 0.990, and eap-ig one of 0.980")
    # Targets are needed where the gradient is taken at the clean run.
    without = make_pairs(subject, "kl")
    assert choose_method(subject, without).name == "gcl"
    ship(share=1.0)
    flat = choose_method(subject, without)
    assert flat.reason.endswith("eap-ig, because gcl needs pairs with targets")


def test_an_error_of_the_predictor_is_an_error(ship: Ship) -> None:
    ship()
    subject = make_subject()

    def flat(logits: Tensor, _: Pairs) -> Tensor:
        return logits.detach().abs().sum((1, 2)) + 0 * logits.sum((1, 2))

    with pytest.raises(ValueError, match="the gradient of the loss is zero at every component"):
        localize(subject, make_pairs(subject, flat))


def test_probabilities_go_by_the_kind_of_subject(ship: Ship) -> None:
    ship(known=None)
    subject, pairs = make_case()
    planted = replace(subject, case="ib-3", fleet="planted")
    found = localize(planted, pairs, "gcl")
    assert found.probabilities is not None
    torch.testing.assert_close(found.probabilities, found.scores.sigmoid().float())
    assert localize(replace(planted, fleet="public"), pairs, "gcl").probabilities is None
    # Without a word on which cases are familiar, none is.
    assert choose_method(subject, pairs).reason.endswith("like those that gcl was trained on")


def test_a_case_of_the_pool_is_judged_by_the_predictor_that_is_blind_to_it(
    ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship()
    asked, put = [], shipped.shipped
    monkeypatch.setattr(shipped, "shipped", lambda name: asked.append(name) or put(name))
    case = load_case("ib-7")
    subject = replace(case.subject(), fleet="natural")
    result = localize(subject, case.pairs(4))
    assert result.options == {"predictor": "fold-0"}
    assert {*asked} == {"fold-0"}


def test_kinds() -> None:
    subject = make_subject()
    planted = replace(subject, case="ib-3", fleet="planted")
    assert kind_of(subject) == kind_of(replace(planted, fleet="natural")) == "natural"
    assert kind_of(planted) == kind_of(replace(planted, fleet=None)) == "planted"
    assert kind_of(replace(planted, fleet="public")) == "public"
    assert kind_of(replace(subject, tokenizer=object())) == "language"
    sizes = subject.config
    vocab = tuple(range(sizes.d_vocab - 4))
    codec = Codec(vocab, tuple(range(sizes.d_vocab_out)), tasks=("one", "other"))
    several = replace(planted, codec=codec)
    assert kind_of(several) == "planted-multitask"
    assert kind_of(replace(several, fleet="natural")) == "natural-multitask"


# The shipped predictors


def test_without_a_method_the_default_one_runs() -> None:
    """Whichever the shipped predictor says; a subject is known by its weights or by its file."""
    case = load_case("ib-3")
    marked, pairs = case.subject(), case.pairs(8)
    choice = choose_method(marked, pairs)
    for subject in (marked, replace(marked, case=None)):
        result = localize(subject, pairs)
        assert result.method == choice.name
        assert result.notes[0] == choice.reason
        assert torch.equal(result.scores, localize(subject, pairs, choice.name).scores)


# Each decision once


@pytest.mark.parametrize("by", ["python", "command"])
@pytest.mark.parametrize("method", [None, "gcl"])
def test_every_decision_is_made_once(
    by: str, method: str | None, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Which method, which predictor, recognizing the case, reading the predictor, the leak check;
    and the predictor runs once."""
    calls: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return function(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    count(methods, "choose_method")
    count(learned, "default_method")
    count(learned, "choose_predictor")
    for name in ("recognize", "load_predictor", "check_leak"):
        count(shipped, name)
    count(recognize, "fingerprint")
    count(Ensemble, "predict_case")
    if by == "python":
        case = load_case("ib-3")
        subject, pairs = replace(case.subject(), case=None), case.pairs(8)
        assert gc.localize(subject, pairs, method).method == "gcl"
        assert calls.pop("fingerprint") == 1
    else:
        named = [] if method is None else ["--method", method]
        assert command("localize", "ib-3", "--pairs", "8", *named).code == 0
    once = ["choose_method", "choose_predictor", "recognize", "load_predictor", "check_leak"]
    once += ["predict_case"] if method else ["predict_case", "default_method"]
    assert calls == dict.fromkeys(once, 1)
