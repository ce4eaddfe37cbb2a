"""One subject trained here and now: the same as a build makes, and warned of where it fails."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.cases.build import build
from graphcircuits.cases.case import Case
from graphcircuits.cases.multitask import MultiCase
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import BuildConfig
from graphcircuits.cases.subjects import training
from graphcircuits.rasp import Map, indices, tokens
from graphcircuits.subject.files import load_transformer

pytestmark = pytest.mark.usefixtures("unchecked")

QUICK: dict[str, Any] = {"rows": 16, "check_every": 20, "check_rows": 64, "lr": 2e-2}


def swap(**changes: Any) -> Case:
    """Two letters that change places."""
    other = Map(lambda x: "b" if x == "a" else "a", tokens).named("other")
    given = {"id": "swap", "program": other, "vocab": ("a", "b"), "max_seq_len": 3, "causal": True}
    return Case(**(given | changes))


@pytest.mark.slow
def test_a_subject_follows_its_program() -> None:
    steps: list[tuple[int, int, int]] = []
    made = swap().train(**QUICK, progress=lambda *told: steps.append(told))
    assert made.passed
    assert made.report["accuracy"] > 0.99
    assert steps[-1] == (made.report["steps"], 1, 1)
    assert made.subject.dtype == torch.float32
    assert made.subject.case == "swap"
    assert made.subject.apply(["a", "b"]) == ["b", "a"]


@pytest.mark.slow
def test_it_has_the_weights_that_a_build_writes(tmp_path: Path) -> None:
    case, order = swap(), Order("swap", "natural", "llama", 3)
    few = {**QUICK, "steps": 20, "enough_accuracy": 0.0}
    siit = replace(training(order), **few)
    (built,) = build([order], tmp_path, BuildConfig(siit=siit), cases=[case])
    made = case.train("natural", "llama", 3, **few)
    stored = load_transformer(built.path)
    assert made.subject.config == stored.config
    for name, weight in stored.weights.items():
        assert torch.equal(made.subject.weights[name], weight.float())
    assert {name: built.report[name] for name in made.report} == made.report


@pytest.mark.slow
def test_a_subject_that_fails_is_warned_of() -> None:
    words = r"the subject of case 'swap' does not follow its program after 1 steps \(accuracy 0\."
    with pytest.warns(UserWarning, match=words + r".*more steps, wider, or from another seed\.$"):
        made = swap().train(**QUICK, steps=1)
    assert not made.passed


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^unknown settings row, step; there are steps, rows, lr"):
        swap().train(row=3, step=1)
    constant = swap(program=Map(lambda i: i % 2, indices).named("parity"))
    with pytest.raises(ValueError, match="the output is the same for every input of 2 tokens"):
        constant.train()
    with pytest.raises(ValueError, match="unknown fleet 'planed'"):
        swap().train("planed")


@pytest.mark.slow
def test_a_task_is_trained_with_its_model() -> None:
    same = Map(lambda x: "b" if x == "b" else "a", tokens).named("same")
    model = MultiCase(id="two", cases=(swap(), swap(id="same", program=same)))
    with pytest.warns(UserWarning, match="the subject of case 'two@same' does not follow"):
        made = model.task("same").train(**QUICK, steps=1)
    assert made.subject.case == "two@same"
    assert made.subject.graph == model.graph
    assert made.report["case"] == "two"
    assert set(made.report["tasks"]) == {"swap", "same"}
