"""Short trainings: what passes stops, the best is kept, several tasks in one subject."""

import math
from dataclasses import replace

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.cases.architectures import subject_config
from graphcircuits.cases.prepare import case_exchange
from graphcircuits.fleets import train as module
from graphcircuits.fleets.batch import gather
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.fleet import form, stack
from graphcircuits.fleets.recipes import SiitConfig
from graphcircuits.fleets.train import State, TrainedSubject, train_fleet
from graphcircuits.fleets.verify import Shares
from graphcircuits.subject.transformer import Transformer
from tests.fleets.fleets import case_fleet, fleet_of, one_task

SUBJECTS, EXCHANGES = case_fleet()
DATA = gather(fleet_of(SUBJECTS), one_task(EXCHANGES))


def test_the_rate_warms_up_and_falls_to_the_last_one() -> None:
    config = SiitConfig(steps=1000, lr=1e-2, final_lr=1e-4)
    rates = [module._lr(config, step) for step in range(1000)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[:99] == sorted(rates[:99])
    assert rates[99:] == sorted(rates[99:], reverse=True)
    assert rates[-1] == pytest.approx(1e-4, rel=1e-2)


# Whole trainings

SHORT = SiitConfig(
    steps=200, rows=16, cut_rows=64, check_every=20, check_rows=64, lr=2e-2, final_lr=1e-3
)
"""More cut rows than rows: the rows of the plain run, whose donors they use, bound them."""
Work = tuple[list[Transformer], list[list[Exchange]], list[list[Exchange]]]


def work(*ids: str) -> Work:
    cases = [load_case(id) for id in ids]
    generator = torch.Generator().manual_seed(1)
    subjects = [Transformer.random(subject_config(case), generator, case.codec) for case in cases]
    first, second = ([case_exchange(case, 256, 64, seed) for case in cases] for seed in (1, 2))
    return subjects, one_task(first), one_task(second)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_tiny_case_passes() -> None:
    (one,) = train_fleet(*work("ib-36"), SHORT, torch.Generator().manual_seed(3))
    assert one.passed
    assert one.steps < SHORT.steps
    assert one.merit >= SHORT.enough_accuracy - 0.02
    assert one.subject.apply(["😊", "😢", "📘"]) == ["positive", "negative", "neutral"]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_one_seed_gives_the_same_weights() -> None:
    config = replace(SHORT, steps=12, check_every=6)
    first, again, other = (
        train_fleet(*work("ib-36"), config, torch.Generator().manual_seed(seed))[0].subject.weights
        for seed in (3, 3, 4)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["W_U"], other["W_U"])


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_the_fleet_goes_on_without_those_that_pass() -> None:
    calls: list[tuple[int, int, int]] = []
    kept: list[dict[int, TrainedSubject]] = []
    subjects, exchanges, checks = work("ib-36", "ib-36")
    limits = ("accuracy", "interchange", "strict", "circuit")
    config = replace(SHORT, steps=90, **{f"enough_{name}": 0.6 for name in limits})

    # The first is checked against wrong answers, so it never passes.
    (right,) = checks[0]
    checks[0] = [replace(right, targets=(right.targets + 1) % 3)]
    trained = train_fleet(
        subjects,
        exchanges,
        checks,
        config,
        torch.Generator().manual_seed(3),
        lambda *call: calls.append(call),
        keep=lambda passed: kept.append(dict(passed)),
    )
    assert kept == [{1: trained[1]}]
    assert [one.passed for one in trained] == [False, True]
    assert [step for step, *_ in calls] == [20, 40, 60, 80, 90]
    assert [(count, total) for _, count, total in calls] == [
        (int(step >= trained[1].steps), 2) for step, *_ in calls
    ]
    for start, one in zip(subjects, trained, strict=True):
        assert (one.subject.config, one.subject.codec) == (start.config, start.codec)
        assert not torch.equal(one.subject.weights["W_E"], start.weights["W_E"])
        assert not one.subject.weights["W_E"].requires_grad


def test_without_time_subjects_stay_as_they_are() -> None:
    subjects, exchanges, checks = work("ib-36")
    generator = torch.Generator()
    (one,) = train_fleet(subjects, exchanges, checks, SHORT, generator, deadline=-math.inf)
    assert one.subject is subjects[0]
    assert (one.steps, one.passed) == (0, False)


@pytest.mark.slow
def test_training_stops_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    config = replace(SHORT, steps=25, check_every=5, enough_accuracy=1.1)
    calls: list[int] = []
    for deadline in (3.0, 100.0):
        (one,) = train_fleet(
            *work("ib-36"),
            config,
            torch.Generator().manual_seed(3),
            lambda step, *_: calls.append(step),
            deadline=deadline,
        )
        assert one.cut_short is (deadline == 3.0)
    assert calls == [5, 10, 15, 5, 10, 15, 20, 25]


def test_the_best_weights_are_kept() -> None:
    (subject,) = SUBJECTS[2:]
    fleet = form([subject.config])
    best: dict[int, TrainedSubject] = {}
    kept = []
    for step, (accuracy, circuit) in enumerate([(0.5, 0.9), (0.9, 0.1), (0.7, 0.7), (0.6, 1.0)]):
        weights = {name: w + step for name, w in stack(fleet, [subject]).items()}
        state = State.of(weights, torch.device("cpu"))
        scores = Shares(
            accuracy=torch.tensor([[accuracy]]),
            components=torch.ones(1, 1, 10),
            inside=DATA.inside[2, None],
            circuit=torch.tensor([[circuit]]),
        )
        done = module._note_best(best, [0], [subject], fleet, state, scores, SHORT, step)
        assert done == []
        kept.append(best[0].steps)
        expected = subject.weights["W_U"] + best[0].steps
        assert torch.equal(best[0].subject.weights["W_U"], expected)
    assert kept == [0, 0, 2, 2]
    assert best[0].merit == pytest.approx(0.68)


def test_a_subject_is_as_good_as_its_worst_task() -> None:
    (subject,) = SUBJECTS[2:]
    fleet = form([subject.config])
    state = State.of(stack(fleet, [subject]), torch.device("cpu"))
    inside = DATA.inside[2, None].expand(-1, 2, -1)
    for worst, expected in ((0.4, []), (1.0, [0])):
        scores = Shares(
            accuracy=torch.tensor([[1.0, worst]]),
            components=torch.ones(1, 2, 10),
            inside=inside,
            circuit=torch.ones(1, 2),
        )
        best: dict[int, TrainedSubject] = {}
        assert module._note_best(best, [0], [subject], fleet, state, scores, SHORT, 7) == expected
        assert best[0].merit == pytest.approx(worst - 0.02)
