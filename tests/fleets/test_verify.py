"""The verdict on a subject falls when any one component is wrong."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graphcircuits.cases import load_case
from graphcircuits.cases.prepare import case_exchange
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.verify import (
    ACCURACY,
    INTERCHANGE,
    STRICT,
    Verdict,
    verify_fleet,
)
from graphcircuits.subject.transformer import Transformer
from tests.fleets.test_check import slow_interchange
from tests.subjects import make_subject

pytestmark = pytest.mark.usefixtures("unchecked")

IDS = ("ib-3", "ib-13", "ib-14")


def shipped(id: str) -> tuple[Transformer, Exchange]:
    case = load_case(id)
    return case.subject(), case_exchange(case, 512, 128, 77)


def verdict_on(subject: Transformer, exchange: Exchange, seed: int = 0) -> Verdict:
    return verify_fleet([subject], [[exchange]], torch.Generator().manual_seed(seed))[0][0]


def changed(subject: Transformer, **weights: Tensor) -> Transformer:
    return Transformer(subject.config, subject.weights | weights, subject.codec)


@pytest.mark.slow
@pytest.mark.parametrize("id", IDS)
def test_shipped_subjects_pass(id: str) -> None:
    subject, exchange = shipped(id)
    verdict = verdict_on(subject, exchange)
    assert verdict.passes()
    assert set(verdict.interchange) == set(exchange.components)
    assert set(verdict.interchange) | set(verdict.strict) == set(subject.graph.writer_names[1:])
    assert not set(verdict.interchange) & set(verdict.strict)
    slow = slow_interchange(subject, exchange, 0.05)
    assert list(verdict.interchange.values()) == pytest.approx(slow, abs=1e-6)
    assert verdict.worst_interchange == pytest.approx(min(slow), abs=1e-6)
    assert verdict.worst_strict == min(verdict.strict.values())


@pytest.mark.slow
@pytest.mark.parametrize("id", IDS)
def test_a_missing_component_of_the_circuit_fails(id: str) -> None:
    """An aggregate whose head or MLP writes nothing: answers and interchanges are wrong."""
    subject, exchange = shipped(id)
    for component in exchange.components:
        layer = int(component[1])
        name = "W_out" if component.startswith("m") else "W_O"
        weight = subject.weights[name].clone()
        place = (layer,) if name == "W_out" else (layer, int(component.partition("h")[2]))
        weight[place] = 0
        verdict = verdict_on(changed(subject, **{name: weight}), exchange)
        assert not verdict.passes()
        assert verdict.interchange[component] < INTERCHANGE


def outside_head(exchange: Exchange, layer: int) -> int:
    heads = (head for head in range(4) if f"a{layer}.h{head}" not in exchange.components)
    return next(heads)


@pytest.mark.slow
@pytest.mark.parametrize("id", IDS)
def test_a_circuit_in_another_head_fails(id: str) -> None:
    """Two heads of a layer change places: the answers stay, the correspondence does not."""
    subject, exchange = shipped(id)
    component = next(name for name in exchange.components if name.startswith("a"))
    layer, head = int(component[1]), int(component.partition("h")[2])
    order = torch.arange(4)
    other = outside_head(exchange, layer)
    order[head], order[other] = other, head
    swapped = {}
    for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
        swapped[name] = subject.weights[name].clone()
        swapped[name][layer] = subject.weights[name][layer][order]
    verdict = verdict_on(changed(subject, **swapped), exchange)
    assert verdict.accuracy >= ACCURACY
    assert verdict.interchange[component] < INTERCHANGE
    assert verdict.strict[f"a{layer}.h{other}"] < STRICT
    assert not verdict.passes()


@pytest.mark.slow
@pytest.mark.parametrize("id", IDS)
def test_a_head_outside_that_writes_too_fails(id: str) -> None:
    """Strict accuracy alone falls for a head that adds the token it looks at to the stream."""
    subject, exchange = shipped(id)
    layer = subject.config.n_layers - 1
    head = outside_head(exchange, layer)
    W_O = subject.weights["W_O"].clone()
    W_O[layer, head] = 10 * torch.randn(W_O[layer, head].shape, generator=torch.Generator())
    verdict = verdict_on(changed(subject, W_O=W_O), exchange)
    assert verdict.strict[f"a{layer}.h{head}"] < STRICT
    assert not verdict.passes()


@pytest.mark.parametrize(
    ("accuracy", "interchange", "strict", "circuit", "passed"),
    [
        (0.99, 0.97, 0.97, 0.97, True),
        (0.98, 1.0, 1.0, 1.0, False),
        (1.0, 0.96, 1.0, 1.0, False),
        (1.0, 1.0, 0.96, 1.0, False),
        (1.0, 1.0, 1.0, 0.96, False),
    ],
)
def test_every_limit_counts(
    accuracy: float, interchange: float, strict: float, circuit: float, passed: bool
) -> None:
    verdict = Verdict(
        accuracy=accuracy,
        interchange={"m0": 1.0, "m1": interchange},
        strict={"a0.h0": strict, "a0.h1": 1.0},
        circuit=circuit,
        loss=0.0,
    )
    assert verdict.passes() is passed
    # By the public losses a circuit need not do the task alone.
    assert verdict.passes("public") is (passed or circuit < 0.97)
    assert verdict.passes("natural") is (accuracy >= 0.99)
    empty = Verdict(accuracy=1.0, interchange={}, strict={}, circuit=1.0, loss=0.0)
    assert empty.passes()


def test_one_seed_one_verdict_and_the_tolerance_is_used() -> None:
    subject, exchange = shipped("ib-3")
    assert verdict_on(subject, exchange) == verdict_on(subject, exchange)
    strict = verify_fleet([subject], [[exchange]], torch.Generator(), tolerance=1e-6)[0][0]
    assert strict.accuracy < 0.5


def test_other_architectures_are_refused() -> None:
    _, exchange = shipped("ib-3")
    with pytest.raises(ValueError, match=r"windows must be None, got \(2, None\)"):
        verdict_on(make_subject(windows=(2, None)), exchange)


@pytest.mark.slow
def test_a_fleet_is_verified_like_its_subjects_one_by_one() -> None:
    """But for the inputs drawn at random: so shares inside the circuit, accuracy and loss."""
    both = [shipped(id) for id in ("ib-3", "ib-13")]
    (own, again), (other,) = verify_fleet(
        [subject for subject, _ in both],
        [[both[0][1], both[0][1]], [both[1][1]]],
        torch.Generator().manual_seed(0),
    )
    assert own.interchange == again.interchange
    for got, (subject, exchange) in zip((own, other), both, strict=True):
        alone = verdict_on(subject, exchange)
        assert got.interchange == pytest.approx(alone.interchange, abs=1e-6)
        assert (got.accuracy, got.loss) == pytest.approx((alone.accuracy, alone.loss), abs=1e-6)
        assert got.strict.keys() == alone.strict.keys()


@pytest.mark.parametrize("id", ["ib-3", "ib-13"])
def test_the_loss_is_the_mean_over_all_inputs(id: str) -> None:
    subject, exchange = shipped(id)
    answers = subject.logits(exchange.tokens)[:, 1:]
    if exchange.numerical:
        expected = (answers[..., 0] - exchange.targets).square().mean()
    else:
        expected = F.cross_entropy(answers.flatten(0, 1), exchange.targets.flatten())
    assert verdict_on(subject, exchange).loss == pytest.approx(expected.item(), rel=1e-4)


def test_without_interchanges_answers_alone_are_measured() -> None:
    subject, exchange = shipped("ib-13")
    alone = case_exchange(load_case("ib-13"), 512, 0, 77)
    assert torch.equal(alone.tokens, exchange.tokens)
    verdict = verdict_on(subject, alone)
    assert (verdict.interchange, verdict.strict, verdict.circuit) == ({}, {}, None)
    assert verdict.accuracy == verdict_on(subject, exchange).accuracy
    assert verdict.passes("natural")
    # What was not measured counts for nothing.
    assert not verdict.passes("public")
    assert not verdict.passes()


def test_a_fleet_that_there_is_not_is_refused() -> None:
    verdict = Verdict(accuracy=1.0, interchange={}, strict={}, circuit=1.0, loss=0.0)
    with pytest.raises(ValueError, match="unknown fleet 'public '; there are planted, public, nat"):
        verdict.passes("public ")
