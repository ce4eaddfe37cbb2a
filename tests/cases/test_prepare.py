"""What subjects train on: the data of an order, and workers that make the same ahead of time."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.cases import prepare as module
from graphcircuits.cases.multitask import MultiCase
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import Data, case_exchange, find_case, prepare, prepared
from tests.cases.test_build import CONFIG, constant, letters, two_tasks

pytestmark = pytest.mark.usefixtures("unchecked")


def same(first: Data, second: Data) -> bool:
    """Whether all tensors, their types and the hash are equal."""
    pairs = [
        (getattr(x, name), getattr(y, name))
        for kind in ("train", "check", "unseen")
        for x, y in zip(getattr(first, kind), getattr(second, kind), strict=True)
        for name in vars(x)
    ]
    return first.sha256 == second.sha256 and all(
        x.dtype == y.dtype and torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in pairs
    )


def test_the_data_of_an_order_are_three_draws_of_its_case() -> None:
    case = letters()
    data = prepare(Order("own-swap", seed=2), case, CONFIG)
    assert isinstance(data, Data)
    for drawn, number in ((data.train, 1), (data.check, 2), (data.unseen, 3)):
        (task,), expected = drawn, case_exchange(case, 64, 32 if number == 1 else 64, 2000 + number)
        assert torch.equal(task.tokens, expected.tokens)
        assert torch.equal(task.swapped, expected.swapped)
        assert (task.components, task.edges) == (expected.components, expected.edges)
    other = prepare(Order("own-swap", seed=1), case, CONFIG)
    assert isinstance(other, Data)
    assert other.sha256 != data.sha256


def test_natural_data_have_the_same_inputs_and_no_circuit() -> None:
    case = load_case("ib-13")
    # Of a parallel architecture, which has no edges for the program.
    natural = prepare(Order("ib-13", "natural", "neox"), case, CONFIG)
    planted = prepare(Order("ib-13"), case, CONFIG)
    assert isinstance(natural, Data)
    assert isinstance(planted, Data)
    (mine,), (theirs,) = natural.train, planted.train
    assert torch.equal(mine.tokens, theirs.tokens)
    assert torch.equal(mine.targets, theirs.targets)
    assert (mine.components, mine.edges, mine.base.shape) == ((), frozenset(), (0, 0))
    assert theirs.base.shape == (4, 32)


def test_what_cannot_be_trained_is_said_in_words() -> None:
    refused = prepare(Order("own-parity", "natural"), constant(), CONFIG)
    assert isinstance(refused, str)
    assert refused.startswith("case 'own-parity': the output is the same for every input")
    refused = prepare(Order("ib-13", "public", "neox"), load_case("ib-13"), CONFIG)
    assert isinstance(refused, str)
    assert "reads along a0.h0->m0" in refused


def test_ids_of_several_tasks_are_found() -> None:
    assert isinstance(find_case("mt-0"), MultiCase)
    task = find_case(find_case("mt-0").tasks[0].id)  # pyright: ignore[reportAttributeAccessIssue]
    assert task is load_case(task.id)
    assert find_case("ib-3") is load_case("ib-3")


def test_orders_are_prepared_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def watched(order: Order, *rest: Any) -> str:
        asked.append(order.id)
        return "nothing"

    monkeypatch.setattr(module, "prepare", watched)
    stream = prepared([Order("ib-3"), Order("ib-2")], CONFIG)
    assert asked == []
    assert next(stream) == (Order("ib-3"), "nothing")
    assert asked == ["ib-3"]


@pytest.mark.slow
def test_worker_processes_prepare_the_same_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Listed, random and own cases, one refused, one of several tasks; more than are ahead."""
    monkeypatch.setattr(module, "AHEAD", 2)
    own = {case.id: case for case in (letters(), two_tasks())}
    orders = [
        Order("ib-36"),
        Order("own-swap"),
        Order("tb-length"),
        Order("rnd-3", "natural", "llama", 4),
        Order("own-two", "public"),
        Order("ib-3"),
    ]
    shared = list(prepared(orders, CONFIG, 2, own))
    assert [order for order, _ in shared] == orders
    for (order, x), (_, y) in zip(prepared(orders, CONFIG, 1, own), shared, strict=True):
        if isinstance(x, str) or isinstance(y, str):
            assert order.case == "tb-length"
            assert x == y
        else:
            assert same(x, y)


@pytest.mark.parametrize("largest", [0, 255, 256, 70_000])
def test_what_goes_through_the_pipe_comes_out_as_it_went_in(largest: int) -> None:
    data = prepare(Order("own-swap"), letters(), CONFIG)
    assert isinstance(data, Data)
    (task,) = data.train
    changed = task.tokens.clone()
    changed[0, 1] = largest
    whole = replace(data, train=(replace(task, tokens=changed),))
    sent = module._with_tensors(whole, module._smallest)
    back = module._with_tensors(pickle.loads(pickle.dumps(sent)), module._wide)
    assert isinstance(back, Data)
    assert same(back, whole)
    assert isinstance(sent, Data)
    sizes = {0: 1, 255: 2, 256: 2, 70_000: 4}
    assert sent.train[0].tokens.element_size() == sizes[largest]
    assert sent.check[0].tokens.element_size() == 1
