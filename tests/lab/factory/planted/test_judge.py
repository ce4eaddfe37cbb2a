"""The verdict on a planted model: measured on what is stored, and all of it must be right."""

from typing import Any

import pytest
import torch

from graphcircuits.evaluation.evaluate import faithfulness
from graphcircuits.fleets.verify import Verdict, verify_fleet
from lab.factory.planted import judge as module
from lab.factory.planted.judge import ENOUGH, PAIR_SEED, judge_calls
from tests.lab.factory.planted.tiny import exchanges, model, start

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAIRS", 16)


def test_what_is_measured() -> None:
    one = model("first", "last")
    subject, unseen = start(one), exchanges(one, seed=3)
    reports = judge_calls(subject, one.cases, unseen, torch.Generator().manual_seed(0))
    assert list(reports) == ["first", "last"]
    ((verdict, _),) = verify_fleet([subject], [unseen], torch.Generator().manual_seed(0))
    first, drawn = reports["first"], unseen[0]
    assert drawn.answers is not None
    right = subject.logits(drawn.tokens)[:, 1:].argmax(-1) == drawn.targets
    assert first["accuracy"] == pytest.approx(right[:, drawn.answers].float().mean().item())
    assert first["interchange"] == verdict.interchange["a0.h0"]
    assert first["strict"] == min(verdict.strict.values())
    assert first["circuit_accuracy"] == verdict.circuit
    case = one.cases[0]
    alone = faithfulness(subject, case.pairs(16, PAIR_SEED), [case.circuit], by="output")
    assert first["circuit"] == pytest.approx(float(alone[0]))
    assert (first["edges"], first["passed"]) == (2, False)


@pytest.mark.parametrize("low", [None, "accuracy", "interchange", "strict", "circuit"])
def test_one_low_share_is_enough_to_fail(low: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    one = model("first")
    share: dict[str, float] = dict.fromkeys(
        ("accuracy", "interchange", "strict", "circuit"), ENOUGH
    )
    if low is not None:
        share[low] = ENOUGH - 0.001

    def verified(*_: Any) -> list[list[Verdict]]:
        # The circuit counts by output; its answers are told beside it.
        verdict = Verdict(
            accuracy=share["accuracy"],
            loss=0.0,
            interchange={"a0.h0": share["interchange"], "m0": 1.0},
            strict={"a0.h1": 1.0, "m1": share["strict"]},
            circuit=0.0,
        )
        return [[verdict]]

    monkeypatch.setattr(module, "verify_fleet", verified)
    monkeypatch.setattr(
        module, "faithfulness", lambda *_, by: torch.tensor([share["circuit"]], dtype=torch.float64)
    )
    generator = torch.Generator().manual_seed(0)
    reports = judge_calls(start(one), one.cases, exchanges(one), generator)
    assert reports["first"]["passed"] == (low is None)
    assert reports["first"]["circuit_accuracy"] == 0.0
