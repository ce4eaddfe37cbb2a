"""The end of a training: what the cases were like, what logits mean, and what was measured."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.evaluation.evaluate import auroc, faithfulness_curve
from graphcircuits.methods import METHODS
from graphcircuits.predictor.ensemble import (
    Ensemble,
    load_ensemble,
    save_ensemble,
    with_calibration,
    with_familiarity,
)
from graphcircuits.predictor.model import Predictor
from graphcircuits.training import finish
from graphcircuits.training.data import Example, read_examples
from graphcircuits.training.finish import FEWEST, acquainted, calibrated, finished, kinds
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


def same(one: Ensemble, other: Ensemble) -> bool:
    assert one.known is not None
    assert other.known is not None
    found = other.known.tensors()
    return all(torch.equal(x, found[name]) for name, x in one.known.tensors().items())


# What the training cases were like


def test_the_training_cases_are_remembered() -> None:
    ensemble, examples = make_ensemble(), many()
    found = finished(ensemble, examples, config=CONFIG)
    expected = with_familiarity(ensemble, [x.reading for x in examples], [x.case for x in examples])
    assert same(found, expected)
    assert (found.calibration, found.origin) == ({}, ensemble.origin)


def test_related_cases_are_one_group_and_too_few_groups_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ensemble, examples = make_ensemble(), many(2 * FEWEST)
    one, two = read_examples(IDS, replace(CONFIG, faithfulness_weight=0.0))
    assert one.source is not None
    # Twenty cases, in as many groups as there are sources with other ones.
    alike = [replace(x, source=(one, two)[n % 2].source) for n, x in enumerate(examples)]
    assert acquainted(ensemble, alike).known is None
    assert acquainted(ensemble, examples[: FEWEST - 1]).known is None
    monkeypatch.setattr(finish, "FEWEST", 2)
    expected = with_familiarity(ensemble, [x.reading for x in alike], [n % 2 for n in range(20)])
    assert same(acquainted(ensemble, alike), expected)


def test_a_long_training_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "MOST_READINGS", FEWEST)
    ensemble, examples = make_ensemble(), many(FEWEST + 4)
    found = acquainted(ensemble, examples)
    assert found.known is not None
    assert len(found.known.strangeness) == FEWEST
    assert same(found, acquainted(ensemble, examples, seeded(0)))
    assert not same(found, acquainted(ensemble, examples, seeded(1)))


# What logits mean


def test_a_kind_with_enough_known_circuits_is_calibrated() -> None:
    ensemble, examples = make_ensemble(1), many()
    masks = [x.circuit.mask for x in examples if x.circuit is not None]
    expected = with_calibration(
        ensemble, [x.reading for x in examples], masks, [x.case for x in examples], kind="planted"
    )
    unknown = replace(examples[0], circuit=None, case="unknown")
    found = calibrated(ensemble, [*examples, unknown], "planted")
    assert found.calibration == expected.calibration
    assert list(found.calibration) == ["planted"]
    assert calibrated(ensemble, examples[1:], "planted").calibration == {}
    twice = [replace(x, case="one") for x in examples]
    assert calibrated(ensemble, twice, "planted").calibration == {}


# What was measured


@pytest.mark.slow
def test_methods_are_compared_on_what_was_held_out(tmp_path: Any) -> None:
    ensemble, held_out = make_ensemble(), read_examples(IDS, CONFIG)
    found = finished(ensemble, many(3), held_out, config=CONFIG)
    assert found.origin["cases"] == ["a"]
    rows: dict[str, dict[str, list[float]]] = {}
    for example in held_out:
        assert example.item is not None
        assert example.circuit is not None
        subject, fresh = example.item
        scores = {
            "gcl": ensemble.logits(example.reading, generator=seeded(0)),
            "eap-ig": METHODS["eap-ig"](subject, load_case(example.case).pairs(4, seed=0)),
        }
        for name, own in scores.items():
            cmd = faithfulness_curve(subject, fresh, own, sizes="log").cmd
            rows.setdefault("cmd", {}).setdefault(name, []).append(cmd)
            area = auroc(own, example.circuit, "qkv")
            rows.setdefault("auroc", {}).setdefault(name, []).append(area)
    measured = found.measured["planted"]
    assert list(found.measured) == ["planted"]
    assert list(measured) == ["auroc", "cmd"]
    for figure, methods in rows.items():
        for name, values in methods.items():
            assert measured[figure][name] == pytest.approx(sum(values) / 2, rel=1e-4)
    path = tmp_path / "mine.safetensors"
    save_ensemble(path, found)
    assert load_ensemble(path).measured == found.measured


def test_examples_that_cannot_be_run_have_the_area_alone() -> None:
    held_out = read_examples(IDS, replace(CONFIG, faithfulness_weight=0.0))
    natural = replace(held_out[1], circuit=None)
    assert kinds(held_out) == {"planted": held_out}
    found = finish.measure(make_ensemble(), {"planted": held_out, "natural": [natural]}, CONFIG)
    assert {kind: list(figures) for kind, figures in found.items()} == {"planted": ["auroc"]}


def test_of_many_examples_some_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def validate(_: Ensemble, examples: list[Example]) -> dict[str, dict[str, float]]:
        seen.append([x.case for x in examples])
        return {x.case: {"cmd": 0.5} for x in examples}

    monkeypatch.setattr(finish, "MOST_MEASURED", 4)
    monkeypatch.setattr(finish, "validate", validate)
    monkeypatch.setattr(finish, "search_figures", lambda x, *_, **__: {"a": {"cmd": 0.25}})
    found = finish.measure(make_ensemble(), {"natural": many(10)}, CONFIG)
    assert seen == [["case-0", "case-3", "case-6", "case-9"]]
    assert found == {"natural": {"cmd": {"gcl": 0.5, "eap-ig": 0.25}}}


def test_an_example_of_no_source_has_no_kind() -> None:
    with pytest.raises(ValueError, match="case-0 has no source, so that its kind is not known"):
        finished(make_ensemble(), [], many(1), config=CONFIG)
