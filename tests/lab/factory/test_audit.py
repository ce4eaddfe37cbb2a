"""Auditing subjects: circuits by themselves, of any architecture and of each task."""

from pathlib import Path

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.cases.multitask import load_multi
from graphcircuits.cases.orders import Order
from graphcircuits.subject.files import save_transformer
from lab.factory.audit import audit, audit_all, summary
from tests.cases.programs import untrained

pytestmark = pytest.mark.usefixtures("unchecked")


def test_a_planted_circuit_does_the_task_alone_and_misses_its_parts() -> None:
    (found,) = audit_all(["ib-3"])
    assert found.subject == "ib-3"
    assert min(found.plain, found.complete) >= 0.97
    assert set(found.without) == {"m0", "a1.h0"}
    assert found.unneeded == []
    assert summary([found, found])["components"] == 4


@pytest.mark.slow
def test_every_subject_with_a_circuit_is_audited_and_every_task(tmp_path: Path) -> None:
    model = load_multi("mt-0")
    for id in ("ib-3.planted.llama-gqa.0", "ib-3.natural.llama.0", "ib-36.public.gpt2.1", "mt-0"):
        order = Order.parse(id)
        case = model if id == "mt-0" else load_case(order.case)
        save_transformer(tmp_path / f"{id}.safetensors", untrained(order, case).to(torch.float16))
    found = audit_all([], tmp_path)
    assert [one.subject for one in found] == [
        "ib-3.planted.llama-gqa.0",
        "ib-36.public.gpt2.1",
        *(task.id for task in model.tasks),
    ]
    assert all(0 <= one.complete <= 1 for one in found)
    assert [one.subject for one in audit_all(["ib-36"], tmp_path)] == ["ib-36.public.gpt2.1"]


def test_the_whole_graph_alone_is_the_plain_run() -> None:
    """Untrained weights, of which nothing is right but by chance."""
    case = load_case("ib-36")
    subject = untrained(Order("ib-36", "public", "neox"), case)
    pairs = case.pairs(16)
    found = audit(case, subject, pairs)
    assert pairs.targets is not None
    with torch.no_grad():
        right = subject.logits(pairs.clean).argmax(-1) == pairs.targets.argmax(-1)
    assert found.plain == pytest.approx(right[pairs.scored].float().mean().item())
