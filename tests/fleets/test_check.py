"""Shares of right answers against a slow count with each subject's own transformer."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from graphcircuits.cases import load_case
from graphcircuits.cases.prepare import case_exchange
from graphcircuits.engine.masked import masked_logits
from graphcircuits.fleets import verify as module
from graphcircuits.fleets.batch import component_names, gather
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.fleet import stack
from graphcircuits.fleets.verify import Shares, answered, check
from graphcircuits.subject.transformer import Transformer
from tests.fleets.fleets import case_fleet, fleet_of, one_task, patched_logits

pytestmark = pytest.mark.usefixtures("unchecked")

PAIRS = 16


def right(logits: Tensor, exchange: Exchange, targets: Tensor, tolerance: float) -> Tensor:
    answers = logits[:, 1:]
    if exchange.numerical:
        return (answers[..., 0] - targets).abs() <= tolerance
    return answers.argmax(-1) == targets


def slow_interchange(subject: Transformer, exchange: Exchange, tolerance: float) -> list[float]:
    """Shares for the components of the circuit, over all pairs of the exchange."""
    shares = []
    for row, name in enumerate(exchange.components):
        base, source = (exchange.tokens[x[row]] for x in (exchange.base, exchange.source))
        logits = patched_logits(subject, base, source, [name])
        hits = right(logits, exchange, exchange.swapped[row], tolerance)
        shares.append((hits & exchange.scored[row]).sum() / exchange.scored[row].sum())
    return [float(share) for share in shares]


def every_pair(exchange: Exchange) -> tuple[Tensor, Tensor]:
    """All ordered pairs of inputs."""
    inputs = torch.arange(len(exchange.tokens))
    return inputs.repeat_interleave(len(inputs)), inputs.repeat(len(inputs))


def slow_strict(subject: Transformer, exchange: Exchange, name: str, tolerance: float) -> float:
    """The expected share for a component outside the circuit: over all pairs of inputs."""
    base, source = every_pair(exchange)
    logits = patched_logits(subject, exchange.tokens[base], exchange.tokens[source], [name])
    return float(right(logits, exchange, exchange.targets[base], tolerance).float().mean())


def checked(
    subjects: list[Transformer], exchanges: list[Exchange], rows: int, tolerance: float = 0.05
) -> Shares:
    fleet = fleet_of(subjects)
    weights, data = stack(fleet, subjects), gather(fleet, one_task(exchanges))
    return check(fleet, weights, data, rows, tolerance, torch.Generator().manual_seed(0))


def half_right(
    inputs: int, ids: tuple[str, ...] = ("ib-3", "ib-13", "ib-36")
) -> tuple[list[Transformer], list[Exchange]]:
    """Shipped subjects with noise, so that some of their answers are wrong."""
    generator = torch.Generator().manual_seed(2)
    subjects = []
    for id in ids:
        whole = load_case(id).subject().to(torch.float64)
        noisy = {
            name: w + 0.3 * w.abs().mean() * torch.randn(w.shape, generator=generator)
            for name, w in whole.weights.items()
        }
        subjects.append(Transformer(whole.config, noisy, whole.codec))
    return subjects, [case_exchange(load_case(id), inputs, PAIRS, 6) for id in ids]


@pytest.mark.parametrize("tolerance", [0.05, 0.3])
def test_interchange_shares_are_the_slow_count(tolerance: float) -> None:
    subjects, exchanges = half_right(64)
    scores = checked(subjects, exchanges, PAIRS, tolerance)
    names = component_names(fleet_of(subjects))
    seen = []
    for s, (subject, exchange) in enumerate(zip(subjects, exchanges, strict=True)):
        slow = slow_interchange(subject, exchange, tolerance)
        places = [names.index(name) for name in exchange.components]
        assert scores.components[s, 0, places].tolist() == pytest.approx(slow, abs=1e-6)
        assert scores.interchange[s, 0].item() == pytest.approx(min(slow), abs=1e-6)
        assert {names[component] for component in scores.inside[s, 0].nonzero()} == set(
            exchange.components
        )
        seen += slow
    assert min(seen) < 0.95
    assert len(set(seen)) > 4


@pytest.mark.slow
def test_other_shares_are_estimates_of_those_over_all_inputs() -> None:
    """Inputs are drawn anew there, so over many rows the shares come near the exact ones."""
    subjects, exchanges = half_right(5, ("ib-3", "ib-36"))
    many = 400
    wide = [
        replace(
            exchange,
            base=exchange.base[:, :1].expand(-1, many),
            source=exchange.source[:, :1].expand(-1, many),
            swapped=exchange.swapped[:, :1].expand(-1, many, -1),
            scored=exchange.scored[:, :1].expand(-1, many, -1),
        )
        for exchange in exchanges
    ]
    scores = checked(subjects, wide, many)
    names = component_names(fleet_of(subjects))
    wrong = 0
    for s, (subject, exchange) in enumerate(zip(subjects, exchanges, strict=True)):
        hits = right(subject.logits(exchange.tokens), exchange, exchange.targets, 0.05)
        assert scores.accuracy[s, 0].item() == pytest.approx(hits.float().mean().item(), abs=0.07)
        outside = [name for name in names if name not in exchange.components]
        slow = [slow_strict(subject, exchange, name, 0.05) for name in outside]
        got = scores.components[s, 0, [names.index(name) for name in outside]].tolist()
        assert got == pytest.approx(slow, abs=0.07)
        assert scores.strict[s, 0].item() == pytest.approx(min(slow), abs=0.07)
        base, source = every_pair(exchange)
        corrupted = subject.run(exchange.tokens[source]).writers
        graph = subject.graph
        mask = torch.tensor([name in exchange.edges for name in graph.edge_names]).double()
        logits = masked_logits(subject, exchange.tokens[base], mask, corrupted)
        kept = right(logits, exchange, exchange.targets[base], 0.05).float().mean().item()
        assert scores.circuit[s, 0].item() == pytest.approx(kept, abs=0.07)
        wrong += sum(share < 0.95 for share in (*slow, kept))
    assert wrong > 2


def test_chunks_of_cut_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    subjects, exchanges = half_right(64)
    whole = checked(subjects, exchanges, PAIRS)
    monkeypatch.setattr(module, "CUT_CHUNK", 7)
    components = checked(subjects, exchanges, PAIRS)
    torch.testing.assert_close(whole.circuit, components.circuit)


def test_a_subject_is_checked_alike_with_others_beside_it() -> None:
    subjects, exchanges = half_right(64)
    together = checked(subjects, exchanges, PAIRS)
    for s, (subject, exchange) in enumerate(zip(subjects, exchanges, strict=True)):
        alone = checked([subject], [exchange], PAIRS)
        inside = together.inside[s]
        assert torch.equal(alone.components[0, inside], together.components[s, inside])


def test_tasks_are_checked_apart() -> None:
    """Each as if it were alone; padding counts as right."""
    subjects, exchanges = half_right(64)
    others = [case_exchange(load_case(id), 64, PAIRS, 9) for id in ("ib-3", "ib-13")]
    tasks = [[exchanges[0], others[0]], [others[1]], [exchanges[2]]]
    fleet = fleet_of(subjects)
    weights, data = stack(fleet, subjects), gather(fleet, tasks)
    scores = check(fleet, weights, data, PAIRS, 0.05, torch.Generator().manual_seed(0))
    names = component_names(fleet)
    for s, own in enumerate(tasks):
        for t, exchange in enumerate(own):
            slow = slow_interchange(subjects[s], exchange, 0.05)
            places = [names.index(name) for name in exchange.components]
            assert scores.components[s, t, places].tolist() == pytest.approx(slow, abs=1e-6)
            assert scores.interchange[s, t].item() == pytest.approx(min(slow), abs=1e-6)
    for share in (scores.accuracy, scores.interchange, scores.strict, scores.circuit):
        assert share[1:, 1].tolist() == [1, 1]
    assert scores.errors.task[1:, 1].tolist() == [0, 0]
    worst = [x[0, 1].item() for x in (scores.accuracy, scores.interchange, scores.strict)]
    worst.append(scores.circuit[0, 1].item())
    assert scores.errors.task[0, 1].item() == pytest.approx(1 - min(worst))


def test_what_is_not_asked_for_counts_as_right() -> None:
    subjects, exchanges = half_right(64)
    fleet = fleet_of(subjects)
    weights, data = stack(fleet, subjects), gather(fleet, one_task(exchanges))
    seeded = torch.Generator().manual_seed(0)
    scores = check(fleet, weights, data, 64, 0.05, seeded, patched=False, cut=False)
    assert scores.accuracy[:2].max() < 1
    for share in (scores.interchange, scores.strict, scores.circuit):
        assert (share == 1).all()


def test_chunks_of_plain_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    subjects, exchanges = half_right(64)
    fleet = fleet_of(subjects)
    weights, data = stack(fleet, subjects), gather(fleet, one_task(exchanges))
    everything = torch.arange(64).expand(3, 1, -1)

    def found() -> tuple[Tensor, ...]:
        shares = checked(subjects, exchanges, PAIRS)
        return (*answered(fleet, weights, data, everything, 0.05), shares.components[shares.inside])

    whole = found()
    monkeypatch.setattr(module, "CHUNK", 30)
    for expected, got in zip(whole, found(), strict=True):
        torch.testing.assert_close(got, expected)


def test_more_rows_than_pairs_are_all_pairs() -> None:
    subjects, exchanges = case_fleet(pairs=5)
    few, many = (checked(subjects, exchanges, rows) for rows in (5, 40))
    assert torch.equal(few.components[few.inside], many.components[few.inside])
    assert few.inside.any()


def test_nothing_inside_or_outside_counts_as_right() -> None:
    wrong = torch.zeros(2, 1, 3)
    inside = torch.tensor([[[True] * 3], [[False] * 3]])
    scores = Shares(torch.zeros(2, 1), wrong, inside, torch.zeros(2, 1))
    assert scores.interchange.tolist() == [[0], [1]]
    assert scores.strict.tolist() == [[1], [0]]
