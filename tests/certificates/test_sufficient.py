"""What a circuit keeps: against `faithfulness`, and right answers against a masked run by hand."""

from dataclasses import replace

import pytest
import torch

import graphcircuits as gc
from graphcircuits.certificates import sufficient as module
from graphcircuits.certificates.sufficient import other_corruption, sufficient
from graphcircuits.circuit import Circuit
from graphcircuits.engine.masked import ablated_writers, masked_logits
from graphcircuits.evaluation.proposal import resampled_interval
from graphcircuits.task.pairs import Pairs
from tests.certificates.judges import PLANTED, drawn, judging, planted, tiny
from tests.methods.tasks import make_pairs
from tests.subjects import make_subject


def test_every_figure_is_a_faithfulness() -> None:
    subject, pairs, judge = tiny()
    circuit = drawn(subject.graph, 0.7, 0)
    line = sufficient(judge, pairs, circuit, 0.5)
    other = replace(pairs, corrupted=pairs.corrupted.roll(1, 0))
    expected = {
        "by loss": gc.faithfulness(subject, pairs, [circuit], by="loss"),
        "mean ablation": gc.faithfulness(subject, pairs, [circuit], ablation="mean"),
        "zero ablation": gc.faithfulness(subject, pairs, [circuit], ablation="zero"),
        "other corruption": gc.faithfulness(subject, other, [circuit]),
    }
    assert [line.value] == pytest.approx(gc.faithfulness(subject, pairs, [circuit]))
    assert {*line.details} == {*expected}
    for name, value in expected.items():
        assert [line.details[name]["value"]] == pytest.approx(value), name
    values = [line.value, *(line.details[name]["value"] for name in expected if name != "by loss")]
    assert len({round(value, 4) for value in values}) == 4
    assert line.interval == resampled_interval(judge.runs.losses([circuit]))
    assert line.details["zero ablation"]["interval"][0] <= line.details["zero ablation"]["value"]


def test_the_lower_end_of_the_interval_decides() -> None:
    subject, pairs, judge = tiny()
    circuit = drawn(subject.graph, 0.7, 0)
    line = sufficient(judge, pairs, circuit, -9.0)
    assert line.interval is not None
    low, high = line.interval
    assert low < line.value < high
    assert line.passed
    assert sufficient(judge, pairs, circuit, low - 1e-6).passed
    assert not sufficient(judge, pairs, circuit, (low + line.value) / 2).passed


@pytest.mark.parametrize("lost", PLANTED)
def test_an_exchanged_edge_fails(lost: str) -> None:
    subject, pairs, judge = planted()
    graph = subject.graph
    right = Circuit.from_names(graph, PLANTED)
    rest = [name for name in PLANTED if name != lost]
    wrong = Circuit.from_names(graph, [*rest, "input->logits"])
    good, bad = (sufficient(judge, pairs, one, 0.8) for one in (right, wrong))
    assert good.passed
    assert good.value > 0.9
    assert not bad.passed
    assert bad.value < 0.2


def test_three_prompts_are_too_few_to_be_sure() -> None:
    subject, pairs, _ = tiny()
    everything = Circuit.from_mask(subject.graph, torch.ones(subject.graph.n_edges) > 0)
    line = sufficient(judging(subject, pairs[:3]), pairs[:3], everything, 0.8)
    assert line.value == pytest.approx(1)
    assert (line.passed, line.interval) == (False, None)
    assert line.sentence.endswith("; too few prompts to be sure of anything")
    assert "other corruption" not in line.details
    assert sufficient(judging(subject, pairs[:4]), pairs[:4], everything, 0.8).passed


def test_right_answers_are_those_of_a_masked_run() -> None:
    subject = make_subject(n_layers=1, n_heads=2)
    plain = make_pairs(subject, batch=10)
    scored = torch.zeros_like(plain.scored)
    scored[:, 3] = True
    # The subject is right on seven of ten.
    best = subject.logits(plain.clean)[:, 3].argmax(-1)
    answers = torch.where(torch.arange(10) < 7, best, (best + 1) % 3)
    pairs = replace(plain, scored=scored, loss_name="cross-entropy", targets=answers)
    judge, corrupted = judging(subject, pairs), ablated_writers(subject, pairs.corrupted)
    for seed in range(3):
        circuit = drawn(subject.graph, 0.5, seed)
        line = sufficient(judge, pairs, circuit, 0.5)
        logits = masked_logits(subject, pairs.clean, circuit.mask.double(), corrupted)
        right = logits[:, 3].argmax(-1) == answers
        share = float(right.double().mean())
        assert line.details["accuracy"] == pytest.approx({"circuit": share, "subject": 0.7})
        assert f"; right on {share:.0%} of them, the subject on 70%" in line.sentence


def test_pairs_without_answers_have_no_accuracy() -> None:
    subject, pairs, judge = planted()
    line = sufficient(judge, pairs, Circuit.from_names(subject.graph, PLANTED), 0.8)
    assert "accuracy" not in line.details
    assert "right on" not in line.sentence


def test_every_prompt_beside_the_corruption_of_another() -> None:
    pairs = tiny()[1]
    other = other_corruption(pairs)
    assert other is not None
    assert torch.equal(other.clean, pairs.clean)
    assert not torch.equal(other.corrupted, pairs.corrupted)
    assert sorted(other.corrupted.tolist()) == sorted(pairs.corrupted.tolist())
    assert other_corruption(pairs[:3]) is None
    scored = pairs.scored.clone()
    scored[0, 1] = False
    assert other_corruption(replace(pairs, scored=scored)) is None


def test_what_cannot_be_measured_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, pairs, judge = tiny()
    same = replace(pairs, corrupted=pairs.clean)

    def unchanged(_: Pairs) -> Pairs:
        return same

    monkeypatch.setattr(module, "other_corruption", unchanged)
    line = sufficient(judge, pairs, drawn(subject.graph, 0.7, 0), 0.5)
    told = line.details["other corruption"]
    assert told["value"] is None
    assert "a clean and an ablated run that differ" in told["why"]
