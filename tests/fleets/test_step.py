"""The losses by hand, the optimizer against torch's, dropout, steps that are drawn and replayed."""

import logging
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.fleets.batch import Errors, FleetData, Rows, component_names, draw_rows, gather
from graphcircuits.fleets.fleet import Fleet, form, stack, unstack
from graphcircuits.fleets.recipes import FLEETS, SiitConfig, recipe
from graphcircuits.fleets.train import State, adam, dropout, loss_of, stepper, update
from graphcircuits.graph import ComponentGraph
from tests.fleets.fleets import (
    MIXED,
    case_fleet,
    fleet_of,
    one_task,
    padding_is_zero,
    patched_logits,
)

SUBJECTS, EXCHANGES = case_fleet()
FLEET = fleet_of(SUBJECTS)
DATA = gather(FLEET, one_task(EXCHANGES))
WEIGHTED = SiitConfig(
    behaviour_weight=0.7, interchange_weight=1.3, strict_weight=0.4, edge_weight=2.0
)


def drawn_rows(data: FleetData = DATA, rows: int = 12, cut_rows: int = 8, seed: int = 4) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    return draw_rows(data, Errors.unknown(data), rows, cut_rows, generator)


def loss(fleet: Fleet, weights: dict[str, Tensor], rows: Rows, config: SiitConfig) -> Tensor:
    return loss_of(fleet, weights, rows, DATA.numerical, config)


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
    length, names = subject.config.n_ctx, component_names(FLEET)
    graph = ComponentGraph(2, 4)
    found: dict[str, list[Tensor]] = {"behaviour": [], "interchange": [], "strict": [], "edge": []}
    everywhere = torch.ones(length - 1)
    run, cut = rows.patched, rows.cut
    assert run is not None
    assert cut is not None
    for row in range(rows.donors.shape[1]):
        tokens, donors = (x[s, row, None, :length] for x in (run.tokens, rows.donors))
        targets = rows.targets[s, row, : length - 1]
        plain = subject.logits(donors)[0]
        found["behaviour"].append(row_loss(plain, targets, everywhere, numerical))
        components = [name for name, on in zip(names, run.components[s, row], strict=True) if on]
        patched = patched_logits(subject, tokens, donors, components)[0]
        targets, scored = (x[s, row, : length - 1] for x in (run.targets, run.scored))
        kind = "strict" if run.strict[row] else "interchange"
        found[kind].append(row_loss(patched, targets, scored, numerical))
    for row in range(cut.edges.shape[1]):
        mask = (~cut.edges[s, row][graph.edge_readers, graph.edge_writers]).double()
        corrupted = subject.run(rows.donors[s, row, None, :length]).writers
        tokens, targets = cut.tokens[s, row, None, :length], cut.targets[s, row]
        logits = masked_logits(subject, tokens, mask, corrupted)[0]
        found["edge"].append(row_loss(logits, targets[: length - 1], everywhere, numerical))
    return {kind: torch.stack(losses).mean() for kind, losses in found.items()}


@pytest.mark.slow
def test_the_loss_is_the_weighted_sum_of_its_parts() -> None:
    rows, weights = drawn_rows(), stack(FLEET, SUBJECTS)
    got = loss(FLEET, weights, rows, WEIGHTED)
    public = loss(FLEET, weights, replace(rows, cut=None), WEIGHTED)
    natural = loss(FLEET, weights, replace(rows, cut=None, patched=None), WEIGHTED)
    for s in range(len(MIXED)):
        components = parts_by_hand(s, rows)
        behaviour = 0.7 * components["behaviour"]
        three = behaviour + 1.3 * components["interchange"] + 0.4 * components["strict"]
        # The weights of rows are single precision, the losses are not.
        torch.testing.assert_close(natural[s], behaviour, rtol=1e-7, atol=0)
        torch.testing.assert_close(public[s], three, rtol=1e-7, atol=0)
        torch.testing.assert_close(got[s], three + 2 * components["edge"], rtol=1e-7, atol=0)


def alone(s: int, rows: Rows) -> Rows:
    """The rows of one subject, without the padding of its context."""
    length = SUBJECTS[s].config.n_ctx

    def own(given: Any) -> Any:
        cut = {}
        for field in fields(given):
            value = getattr(given, field.name)
            if field.name in ("donors", "tokens"):
                cut[field.name] = value[s, None, :, :length]
            elif field.name in ("targets", "scored"):
                cut[field.name] = value[s, None, :, : length - 1]
            elif field.name in ("components", "edges"):
                cut[field.name] = value[s, None]
        return replace(given, **cut)

    return replace(own(rows), patched=own(rows.patched), cut=own(rows.cut))


@pytest.mark.slow
def test_training_in_a_fleet_is_training_alone_and_padding_stays_zero() -> None:
    state = State.of(stack(FLEET, SUBJECTS), torch.device("cpu"))
    fleets = [form([subject.config]) for subject in SUBJECTS]
    states = [
        State.of(stack(fleet, [subject]), torch.device("cpu"))
        for fleet, subject in zip(fleets, SUBJECTS, strict=True)
    ]
    lr = torch.tensor(1e-2)
    for seed in range(4):
        rows = drawn_rows(seed=seed)
        update(FLEET, state, rows, DATA.numerical, WEIGHTED, lr)
        for s, (fleet, own) in enumerate(zip(fleets, states, strict=True)):
            update(fleet, own, alone(s, rows), DATA.numerical[s, None], WEIGHTED, lr)
    assert padding_is_zero(SUBJECTS, {name: w.detach() for name, w in state.weights.items()})
    assert padding_is_zero(SUBJECTS, state.first)
    for s, own in enumerate(states):
        for name, weight in unstack(FLEET, state.weights, s).items():
            torch.testing.assert_close(weight, own.weights[name][0], rtol=1e-7, atol=1e-8)
            moved = (weight - SUBJECTS[s].weights[name]).abs().max()
            # What is added to all keys alike changes no attention.
            assert moved > 1e-5 or name == "b_K"


@pytest.mark.parametrize("decay", [0.0, 0.4])
def test_adam_is_torchs_with_each_subjects_gradient_clipped(decay: float) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    start = {"W_a": normal(2, 3, 4), "b_a": normal(2, 5), "norm_w": normal(2, 5)}
    # The first subject's gradient is far beyond the limit, the second's below it.
    scale = torch.tensor([50.0, 0.1], dtype=torch.float64)
    gradients = [
        tuple(normal(*w.shape) * scale.view(2, *[1] * (w.dim() - 1)) for w in start.values())
        for _ in range(5)
    ]
    state = State.of({n: w.clone() for n, w in start.items()}, torch.device("cpu"))
    twins = [[w[s].clone().requires_grad_() for w in start.values()] for s in range(2)]
    optimizers = [
        torch.optim.AdamW(
            [
                {"params": twin[:1], "weight_decay": decay},
                {"params": twin[1:], "weight_decay": 0.0},
            ],
            lr=3e-3,
            betas=(0.9, 0.99),
        )
        for twin in twins
    ]
    for given in gradients:
        with torch.no_grad():
            adam(state, given, torch.tensor(3e-3), clip=1.0, weight_decay=decay)
        for s, (twin, optimizer) in enumerate(zip(twins, optimizers, strict=True)):
            for weight, gradient in zip(twin, given, strict=True):
                weight.grad = gradient[s].clone()
            torch.nn.utils.clip_grad_norm_(twin, 1.0)
            optimizer.step()
    for s, twin in enumerate(twins):
        for weight, expected in zip(state.weights.values(), twin, strict=True):
            torch.testing.assert_close(weight[s], expected, rtol=1e-6, atol=1e-6)


def test_dropout_keeps_the_mean_and_comes_from_the_generator() -> None:
    x = torch.full((4, 50, 40), 3.0)
    first, again = (dropout(0.2, torch.Generator().manual_seed(1)) for _ in range(2))
    assert first is not None
    assert again is not None
    dropped = first(x)
    assert torch.equal(dropped, again(x))
    assert not torch.equal(dropped, first(x))
    assert dropped.unique().tolist() == pytest.approx([0, 3.75])
    assert (dropped == 0).float().mean() == pytest.approx(0.2, abs=0.02)
    assert dropout(0.0, torch.Generator()) is None


def weights_after(
    device: str, config: SiitConfig, steps: int, *, record: bool
) -> dict[str, Tensor]:
    """Of a fleet with two tasks in one of its subjects, from the same start."""
    torch_device = torch.device(device)
    state = State.of(stack(FLEET, SUBJECTS), torch_device)
    data = gather(FLEET, [[EXCHANGES[0]], [EXCHANGES[1]] * 2, [EXCHANGES[2]]]).to(torch_device)
    generator = torch.Generator(device).manual_seed(3)
    fleet = FLEET.to(torch_device)
    step = stepper(fleet, state, data, Errors.unknown(data), config, generator, record=record)
    for _ in range(steps):
        step(1e-2)
    found = {name: weight.detach().clone() for name, weight in state.weights.items()}
    # What it draws next.
    return found | {"next": torch.rand(9, generator=generator, device=device)}


def test_a_stepper_draws_and_updates() -> None:
    """As by hand; and without weights on patched and cut rows none are drawn."""
    config = replace(WEIGHTED, rows=12, cut_rows=8, dropout=0.1, weight_decay=0.1)
    got = weights_after("cpu", config, 2, record=True)
    state, generator = State.of(stack(FLEET, SUBJECTS), torch.device("cpu")), torch.Generator()
    data = gather(FLEET, [[EXCHANGES[0]], [EXCHANGES[1]] * 2, [EXCHANGES[2]]])
    generator.manual_seed(3)
    for _ in range(2):
        rows = draw_rows(data, Errors.unknown(data), 12, 8, generator)
        drop = dropout(0.1, generator)
        lr = torch.tensor(1e-2)
        update(FLEET, state, rows, data.numerical, config, lr, drop)
    assert all(torch.equal(got[name], weight) for name, weight in state.weights.items())
    natural = replace(recipe("natural"), rows=12)
    got = weights_after("cpu", natural, 1, record=True)
    generator.manual_seed(3)
    draw_rows(data, Errors.unknown(data), 12, 0, generator, patched=False)
    assert torch.equal(got["next"], torch.rand(9, generator=generator))


@pytest.mark.gpu
@pytest.mark.parametrize("fleet", FLEETS)
def test_recorded_steps_are_plain_ones(fleet: str, caplog: pytest.LogCaptureFixture) -> None:
    """The draws too: tasks, rows, components, cuts and dropout."""
    config = replace(recipe(fleet), rows=12, cut_rows=8, dropout=0.1, weight_decay=0.1)
    caplog.set_level(logging.INFO)
    plain = weights_after("cuda", config, 5, record=False)
    recorded = weights_after("cuda", config, 5, record=True)
    assert caplog.messages == [
        "steps of 3 subjects are made one by one",
        "steps of 3 subjects are recorded as a CUDA graph",
    ]
    for name, weight in plain.items():
        torch.testing.assert_close(recorded[name], weight, rtol=1e-9, atol=1e-9, msg=name)
    assert torch.equal(recorded["next"], plain["next"])
