"""The losses by hand, the optimizer against torch's, padding that stays zero, short trainings."""

import math
from dataclasses import fields, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graphcircuits.corpus import load_case
from graphcircuits.corpus.build import case_exchange, subject_codec, subject_config
from graphcircuits.engine.masked import masked_logits
from graphcircuits.fleets import train as module
from graphcircuits.fleets.batch import FleetData, Rows, draw_rows, gather, part_names
from graphcircuits.fleets.check import Shares
from graphcircuits.fleets.checkpoint import State
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.fleet import Fleet, form, stack, unstack
from graphcircuits.fleets.train import SiitConfig, TrainedSubject, loss_of, train_fleet
from graphcircuits.graph import ComponentGraph
from graphcircuits.subject.transformer import Transformer
from tests.fleets.fleets import MIXED, case_fleet, fleet_of, padding_is_zero, patched_logits

SUBJECTS, EXCHANGES = case_fleet()
FLEET = fleet_of(SUBJECTS)
DATA = gather(FLEET, EXCHANGES)
WEIGHTED = SiitConfig(
    behaviour_weight=0.7, interchange_weight=1.3, strict_weight=0.4, edge_weight=2.0
)


def drawn_rows(data: FleetData = DATA, rows: int = 12, cut_rows: int = 8, seed: int = 4) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    return draw_rows(data, torch.ones(data.inside.shape), rows, cut_rows, generator)


def loss(fleet: Fleet, weights: dict[str, Tensor], rows: Rows, config: SiitConfig) -> Tensor:
    return loss_of(fleet, weights, rows, DATA.numerical, DATA.exists, config)


def row_loss(logits: Tensor, targets: Tensor, scored: Tensor, numerical: bool) -> Tensor:
    """Of one row, position by position."""
    losses = [
        10 * (answer[0] - target) ** 2 if numerical else F.cross_entropy(answer, target.long())
        for answer, target, counts in zip(logits[1:], targets, scored, strict=True)
        if counts
    ]
    return torch.stack(losses).mean() if losses else torch.zeros(())


def parts_by_hand(s: int, rows: Rows) -> dict[str, Tensor]:
    """The four losses of one subject, row by row, with its own transformer."""
    subject, numerical = SUBJECTS[s], bool(DATA.numerical[s])
    length, names = subject.config.n_ctx, part_names(FLEET)
    graph = ComponentGraph(2, 4)
    found: dict[str, list[Tensor]] = {"behaviour": [], "interchange": [], "strict": [], "edge": []}
    everywhere = torch.ones(length - 1)
    for row in range(rows.tokens.shape[1]):
        tokens, donors = (x[s, row, None, :length] for x in (rows.tokens, rows.donors))
        targets = rows.donor_targets[s, row, : length - 1]
        plain = subject.logits(donors)[0]
        found["behaviour"].append(row_loss(plain, targets, everywhere, numerical))
        parts = [name for name, on in zip(names, rows.patched[s, row], strict=True) if on]
        patched = patched_logits(subject, tokens, donors, parts)[0]
        targets, scored = (x[s, row, : length - 1] for x in (rows.targets, rows.scored))
        kind = "strict" if rows.strict[row] else "interchange"
        found[kind].append(row_loss(patched, targets, scored, numerical))
    for row in range(rows.cut.shape[1]):
        mask = (~rows.cut[s, row][graph.edge_readers, graph.edge_writers]).double()
        corrupted = subject.run(rows.donors[s, row, None, :length]).writers
        tokens, targets = rows.cut_tokens[s, row, None, :length], rows.cut_targets[s, row]
        cut = masked_logits(subject, tokens, mask, corrupted)[0]
        found["edge"].append(row_loss(cut, targets[: length - 1], everywhere, numerical))
    return {kind: torch.stack(losses).mean() for kind, losses in found.items()}


@pytest.mark.slow
def test_the_loss_is_the_weighted_sum_of_its_parts() -> None:
    rows, weights = drawn_rows(), stack(FLEET, SUBJECTS)
    got = loss(FLEET, weights, rows, WEIGHTED)
    public = loss(FLEET, weights, rows, replace(WEIGHTED, edge_weight=0.0))
    for s in range(len(MIXED)):
        parts = parts_by_hand(s, rows)
        three = 0.7 * parts["behaviour"] + 1.3 * parts["interchange"] + 0.4 * parts["strict"]
        # The weights of rows are single precision, the losses are not.
        torch.testing.assert_close(public[s], three, rtol=1e-7, atol=0)
        torch.testing.assert_close(got[s], three + 2 * parts["edge"], rtol=1e-7, atol=0)


def alone(s: int, rows: Rows) -> Rows:
    """The rows of one subject, without the padding of its context."""
    length = SUBJECTS[s].config.n_ctx
    shapes = {"donors", "tokens", "cut_tokens"}, {"targets", "scored", "donor_targets"}
    own = {}
    for field in fields(rows):
        value = getattr(rows, field.name)
        if field.name in shapes[0]:
            own[field.name] = value[s, None, :, :length]
        elif field.name in shapes[1] | {"cut_targets"}:
            own[field.name] = value[s, None, :, : length - 1]
        else:
            own[field.name] = value if field.name == "strict" else value[s, None]
    return Rows(**own)


def test_training_in_a_fleet_is_training_alone_and_padding_stays_zero() -> None:
    state = State.of(stack(FLEET, SUBJECTS), torch.device("cpu"))
    together = module._stepper(FLEET, state, DATA.numerical, DATA.exists, WEIGHTED)
    fleets = [form([subject.config]) for subject in SUBJECTS]
    states, steppers = [], []
    for s, (fleet, subject) in enumerate(zip(fleets, SUBJECTS, strict=True)):
        own = State.of(stack(fleet, [subject]), torch.device("cpu"))
        exists = DATA.exists[s, None, : subject.config.n_ctx - 1]
        steppers.append(module._stepper(fleet, own, DATA.numerical[s, None], exists, WEIGHTED))
        states.append(own)
    for seed in range(4):
        rows = drawn_rows(seed=seed)
        together(rows, 1e-2)
        for s, step in enumerate(steppers):
            step(alone(s, rows), 1e-2)
    assert padding_is_zero(SUBJECTS, {name: w.detach() for name, w in state.weights.items()})
    assert padding_is_zero(SUBJECTS, state.first)
    for s, own in enumerate(states):
        for name, weight in unstack(FLEET, state.weights, s).items():
            torch.testing.assert_close(weight, own.weights[name][0], rtol=1e-7, atol=1e-8)
            moved = (weight - SUBJECTS[s].weights[name]).abs().max()
            # What is added to all keys alike changes no attention.
            assert moved > 1e-5 or name == "b_K"


def test_adam_is_torchs_with_each_subjects_gradient_clipped() -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    start = {"a": normal(2, 3, 4), "b": normal(2, 5)}
    # The first subject's gradient is far beyond the limit, the second's below it.
    scale = torch.tensor([50.0, 0.01], dtype=torch.float64)
    gradients = [
        (normal(2, 3, 4) * scale[:, None, None], normal(2, 5) * scale[:, None]) for _ in range(5)
    ]
    state = State.of({n: w.clone() for n, w in start.items()}, torch.device("cpu"))
    twins = [[w[s].clone().requires_grad_() for w in start.values()] for s in range(2)]
    optimizers = [torch.optim.Adam(twin, lr=3e-3, betas=(0.9, 0.99)) for twin in twins]
    for given in gradients:
        with torch.no_grad():
            module._adam(state, given, torch.tensor(3e-3), clip=1.0)
        for s, (twin, optimizer) in enumerate(zip(twins, optimizers, strict=True)):
            for weight, gradient in zip(twin, given, strict=True):
                weight.grad = gradient[s].clone()
            torch.nn.utils.clip_grad_norm_(twin, 1.0)
            optimizer.step()
    for s, twin in enumerate(twins):
        for weight, expected in zip(state.weights.values(), twin, strict=True):
            torch.testing.assert_close(weight[s], expected, rtol=1e-6, atol=1e-6)


def test_the_rate_warms_up_and_falls_to_the_last_one() -> None:
    config = SiitConfig(steps=1000, lr=1e-2, final_lr=1e-4)
    rates = [module._lr(config, step) for step in range(1000)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[:99] == sorted(rates[:99])
    assert rates[99:] == sorted(rates[99:], reverse=True)
    assert rates[-1] == pytest.approx(1e-4, rel=1e-2)


@pytest.mark.parametrize("name", ["steps", "cut_rows", "check_every", "check_rows"])
def test_sizes_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        SiitConfig(**{name: 0})
    with pytest.raises(ValueError, match="rows must be at least 2, got 1"):
        SiitConfig(rows=1)


# Whole trainings

SHORT = SiitConfig(
    steps=200, rows=16, cut_rows=64, check_every=20, check_rows=64, lr=2e-2, final_lr=1e-3
)
"""More cut rows than rows: the rows of the plain run, whose donors they use, bound them."""
Work = tuple[list[Transformer], list[Exchange], list[Exchange]]


def work(*ids: str) -> Work:
    cases = [load_case(id) for id in ids]
    generator = torch.Generator().manual_seed(1)
    subjects = [
        Transformer.random(subject_config(case), generator, subject_codec(case)) for case in cases
    ]
    first, second = ([case_exchange(case, 256, 64, seed) for case in cases] for seed in (1, 2))
    return subjects, first, second


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
    passed: dict[int, TrainedSubject] = {}
    subjects, exchanges, checks = work("ib-36", "ib-36")
    limits = ("accuracy", "interchange", "strict", "circuit")
    config = replace(SHORT, steps=90, **{f"enough_{name}": 0.6 for name in limits})
    # The first is checked against wrong answers, so it never passes.
    checks[0] = replace(checks[0], targets=(checks[0].targets + 1) % 3)
    trained = train_fleet(
        subjects,
        exchanges,
        checks,
        config,
        torch.Generator().manual_seed(3),
        lambda *call: calls.append(call),
        on_pass=lambda place, one: passed.update({place: one}),
    )
    assert passed == {1: trained[1]}
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
    config = replace(SHORT, check_every=5, enough_accuracy=1.1)
    calls: list[int] = []
    generator = torch.Generator().manual_seed(3)
    train_fleet(
        *work("ib-36"), config, generator, lambda step, *_: calls.append(step), deadline=3.0
    )
    assert calls == [5, 10, 15]


def test_the_best_weights_are_kept() -> None:
    (subject,) = SUBJECTS[2:]
    fleet = form([subject.config])
    best: dict[int, TrainedSubject] = {}
    kept = []
    for step, (accuracy, circuit) in enumerate([(0.5, 0.9), (0.9, 0.1), (0.7, 0.7), (0.6, 1.0)]):
        weights = {name: w + step for name, w in stack(fleet, [subject]).items()}
        state = State.of(weights, torch.device("cpu"))
        scores = Shares(
            accuracy=torch.tensor([accuracy]),
            parts=torch.ones(1, 10),
            inside=DATA.inside[2, None],
            circuit=torch.tensor([circuit]),
        )
        done = module._note_best(best, [0], [subject], fleet, state, scores, SHORT, step)
        assert done == []
        kept.append(best[0].steps)
        expected = subject.weights["W_U"] + best[0].steps
        assert torch.equal(best[0].subject.weights["W_U"], expected)
    assert kept == [0, 0, 2, 2]
    assert best[0].merit == pytest.approx(0.68)


def test_without_the_edge_loss_the_circuit_does_not_count() -> None:
    (subject,) = SUBJECTS[2:]
    fleet = form([subject.config])
    state = State.of(stack(fleet, [subject]), torch.device("cpu"))
    scores = Shares(torch.ones(1), torch.ones(1, 10), DATA.inside[2, None], torch.zeros(1))
    for weight, expected in ((0.0, [0]), (1.0, [])):
        best: dict[int, TrainedSubject] = {}
        config = replace(SHORT, edge_weight=weight)
        done = module._note_best(best, [0], [subject], fleet, state, scores, config, 7)
        assert done == expected
        assert best[0].merit == pytest.approx(0.98 if weight == 0 else 0.0)
