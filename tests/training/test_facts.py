"""What a predictor knows of itself: what cases look like, what logits mean, what was measured."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.evaluation.evaluate import faithfulness_curve
from graphcircuits.methods import METHODS
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble, save_ensemble
from graphcircuits.predictor.facts.calibration import fit_calibration
from graphcircuits.predictor.facts.familiarity import (
    KnownCases,
    case_features,
    disagreement,
    fit_familiarity,
)
from graphcircuits.predictor.model import Predictor
from graphcircuits.training import facts
from graphcircuits.training.data import Example
from graphcircuits.training.facts import (
    FEWEST,
    HeldOut,
    fit_calibrations,
    mean_figures,
    with_facts,
)
from graphcircuits.training.sources import shipped_sources
from graphcircuits.training.validation import validate
from lab.examples import read_examples
from tests.predictor.cases import make_examples, small, training
from tests.predictor.graphs import seeded

pytestmark = pytest.mark.usefixtures("unchecked")

CONFIG = training(small(), pairs=4, views=1, judged=4, faithfulness_weight=1.0)
IDS = ("ib-7", "ib-2")


def make_ensemble(members: int = 2) -> Ensemble:
    found = [Predictor(CONFIG.predictor, generator=seeded(n)).eval() for n in range(members)]
    with torch.no_grad():
        for place, member in enumerate(found):
            member.readout.weight.normal_(generator=seeded(place))
    return Ensemble(tuple(found), {"cases": ["a"]})


def many(count: int = FEWEST) -> list[Example]:
    """As many cases, which are three in other guises."""
    three = make_examples(CONFIG.predictor)
    return [replace(three[n % 3], case=f"case-{n}") for n in range(count)]


def known(ensemble: Ensemble, examples: list[Example]) -> KnownCases | None:
    return with_facts(ensemble, examples, config=CONFIG).known


def same(one: KnownCases | None, other: KnownCases | None) -> bool:
    assert one is not None
    assert other is not None
    tensors = other.tensors()
    return all(torch.equal(x, tensors[name]) for name, x in one.tensors().items())


# What the training cases look like


def test_the_training_cases_are_remembered() -> None:
    ensemble, examples = make_ensemble(), many()
    result = with_facts(ensemble, examples, config=CONFIG)
    features = torch.stack([case_features(x.reading) for x in examples])
    apart = [disagreement(ensemble.member_logits(x.reading, generator=seeded(0))) for x in examples]
    assert same(result.known, fit_familiarity(features, apart, range(len(examples))))
    assert (result.calibration, result.origin) == ({}, ensemble.origin)
    # Of a single network the distance is all that counts.
    alone = with_facts(make_ensemble(1), examples, config=CONFIG).known
    assert same(alone, fit_familiarity(features, None, range(len(examples))))


def test_related_cases_are_one_group_and_too_few_groups_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ensemble, examples = make_ensemble(), many(2 * FEWEST)
    one, two = read_examples(IDS, replace(CONFIG, faithfulness_weight=0.0))
    # Twenty cases, in as many groups as there are sources with other ones.
    alike = [replace(x, source=(one, two)[n % 2].source) for n, x in enumerate(examples)]
    assert known(ensemble, alike) is None
    assert known(ensemble, examples[: FEWEST - 1]) is None
    monkeypatch.setattr(facts, "FEWEST", 2)
    result = known(ensemble, alike)
    assert result is not None
    assert len(result.strangeness) == 20


def test_a_long_training_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "MOST_READINGS", FEWEST)
    ensemble, examples = make_ensemble(), many(FEWEST + 4)
    result = known(ensemble, examples)
    assert result is not None
    assert len(result.strangeness) == FEWEST
    assert same(result, known(ensemble, examples))


# What logits mean, and where a correction helps


def held_out(kind: str, number: int, **figures: dict[str, float]) -> HeldOut:
    logits = torch.randn(40, generator=seeded(number))
    return HeldOut(f"case-{number}", kind, logits, logits > 0.5, figures)


def test_a_kind_with_enough_known_circuits_is_calibrated() -> None:
    cases = [held_out("natural", n) for n in range(FEWEST)]
    unknown = replace(held_out("natural", 99), labels=None)
    result = fit_calibrations([*cases, unknown, held_out("odd", 98)])
    numbers = torch.arange(FEWEST).repeat_interleave(40)
    labels = [x.labels for x in cases if x.labels is not None]
    expected = fit_calibration(torch.cat([x.logits for x in cases]), torch.cat(labels), numbers)
    assert result == {"natural": expected}
    assert fit_calibrations([*cases[1:], unknown]) == {}
    assert fit_calibrations([replace(x, case="one") for x in cases]) == {}


# What was measured


def test_means_are_by_kind_of_what_was_measured() -> None:
    cases = [held_out("natural", n, cmd={"gcl": n / 10, "eap-ig": 0.5}) for n in (1, 2, 3)]
    cases += [held_out("natural", 4), held_out("odd", 5)]
    result = mean_figures(cases)
    assert set(result) == {"natural"}
    assert result["natural"]["cmd"] == pytest.approx({"gcl": 0.2, "eap-ig": 0.5})
    assert result["natural"]["subjects"] == {"count": 3.0}


@pytest.mark.slow
def test_methods_are_compared_on_what_was_held_out(tmp_path: Any) -> None:
    ensemble, held_out = make_ensemble(), read_examples(IDS, CONFIG)
    figures = validate(ensemble, held_out)
    result = with_facts(ensemble, many(3), held_out, figures, config=CONFIG)
    assert result.origin["cases"] == ["a"]
    rows: dict[str, dict[str, list[float]]] = {}
    for example in held_out:
        assert example.item is not None
        assert example.circuit is not None
        subject, fresh = example.item
        scores = {
            "gcl": ensemble.predict(example.reading, generator=seeded(0)).logits,
            "eap-ig": METHODS["eap-ig"](subject, load_case(example.case).pairs(4, seed=0)),
        }
        for name, own in scores.items():
            cmd = faithfulness_curve(subject, fresh, own, by="loss", crossings=()).cmd
            rows.setdefault("cmd", {}).setdefault(name, []).append(cmd)
            area = auroc(own, example.circuit, "qkv")
            rows.setdefault("auroc", {}).setdefault(name, []).append(area)
    measured = result.measured["planted"]
    assert list(result.measured) == ["planted"]
    assert list(measured) == ["auroc", "cmd", "subjects"]
    for figure, methods in rows.items():
        for name, values in methods.items():
            assert measured[figure][name] == pytest.approx(sum(values) / 2, rel=1e-4)
    path = tmp_path / "mine.safetensors"
    save_ensemble(path, result)
    assert load_ensemble(path).measured == result.measured


def test_examples_that_cannot_be_run_have_the_area_alone() -> None:
    held_out = read_examples(IDS, replace(CONFIG, faithfulness_weight=0.0))
    unknown = replace(held_out[1], circuit=None)
    ensemble = make_ensemble()
    given = [held_out[0], unknown]
    result = with_facts(ensemble, [], given, validate(ensemble, given), config=CONFIG).measured
    assert list(result["planted"]) == ["auroc", "subjects"]
    assert result["planted"]["subjects"] == {"count": 1.0}


def test_of_many_examples_some_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def search(examples: list[Example], *_: Any, **__: Any) -> dict[str, dict[str, float]]:
        seen.extend(x.case for x in examples)
        return {x.case: {"cmd": 0.25} for x in examples}

    monkeypatch.setattr(facts, "MOST_MEASURED", 4)
    monkeypatch.setattr(facts, "search_figures", search)
    (source,) = shipped_sources(["ib-7"])
    examples = [replace(x, source=source) for x in many(10)]
    figures = {x.case: {"cmd": 0.5} for x in examples}
    result = with_facts(make_ensemble(), [], examples, figures, config=CONFIG)
    assert seen == ["case-0", "case-3", "case-6", "case-9"]
    assert result.measured["planted"]["cmd"] == {"gcl": 0.5, "eap-ig": 0.25}
    assert list(result.calibration) == ["planted"]


def test_an_example_of_no_source_has_no_kind() -> None:
    with pytest.raises(ValueError, match="case-0 has no source, so that its kind is not known"):
        with_facts(make_ensemble(), [], many(1), {}, config=CONFIG)
