"""Training a small language model, and judging it."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from graphcircuits import tasks
from graphcircuits.adapters.hf import from_hf
from graphcircuits.task.accuracy import share_right
from lab.factory.language import train as training
from lab.factory.language.designs import Design
from lab.factory.language.train import (
    _groups,
    _rate,
    held_out_loss,
    task_shares,
    train,
)
from tests import text
from tests.subjects import make_subject


def trained(steps: int, seed: int = 0, device: str = "cpu") -> tuple[list[tuple[int, float]], Any]:
    """The losses and a model of a stream in which every token is the one two places before it."""
    stream = torch.tensor([1, 2], dtype=torch.int16, device=device).repeat(500)
    torch.manual_seed(0)
    model = Design.parse("llama-1x32-chars").model(4, 0).to(device)
    given = {"context": 16, "batch": 64, "lr": 0.01, "weight_decay": 0.1, "seed": seed}
    return list(train(model, stream, steps=steps, **given)), model


@pytest.mark.slow
def test_it_learns_and_tells() -> None:
    losses, model = trained(110)
    assert [step for step, _ in losses] == [50, 100, 110]
    assert losses[-1][1] < 0.1 * math.log(4)
    assert not model.training


@pytest.mark.gpu
def test_it_learns_on_a_gpu() -> None:
    """In bfloat16, and stays in float32."""
    losses, model = trained(100, device="cuda")
    assert losses[-1][1] < 0.1 * math.log(4)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_batches_depend_on_the_seed_alone() -> None:
    first, again, other = (trained(5, seed)[0] for seed in (0, 0, 1))
    assert first == again != other


@pytest.fixture
def noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After every third step."""
    monkeypatch.setattr(training, "NOTICE", 3)


def test_a_loss_that_is_not_finite_ends_it(noticed: None) -> None:
    stream = torch.ones(100, dtype=torch.int16)
    model = Design.parse("gpt2-1x32-chars").model(4, 0)
    with torch.no_grad():
        model.transformer.wte.weight.fill_(math.nan)
    given = {"context": 16, "batch": 16, "lr": 0.01, "weight_decay": 0.0, "seed": 0}
    ((step, loss),) = train(model, stream, steps=1000, **given)
    assert math.isnan(loss)
    assert step == 3


def test_only_matrices_decay() -> None:
    model = Design.parse("gpt2-1x32-chars").model(4, 0)
    matrices, others = _groups(model, 0.1)
    assert (matrices["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    names = {id(x): name for name, x in model.named_parameters()}
    found = {names[id(x)].removeprefix("transformer.") for x in matrices["params"]}
    layer = {f"h.0.{x}.weight" for x in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")}
    assert found == {"wte.weight", "wpe.weight"} | layer
    assert len(matrices["params"]) + len(others["params"]) == len(names)


def test_the_rate_rises_and_falls() -> None:
    rates = [_rate(step, 100) for step in range(100)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5] == 1
    assert rates[52] == pytest.approx(0.55, abs=0.02)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert _rate(0, 1) == 1


def test_held_out_loss() -> None:
    """Against one window at a time."""
    subject = make_subject(d_vocab=7, d_vocab_out=7, n_ctx=8, causal=True)
    stream = torch.randint(7, (8 * 40 + 3,), generator=torch.Generator().manual_seed(0))
    losses = [
        F.cross_entropy(subject.logits(window[None])[0, :-1], window[1:])
        for window in stream[:320].split(8)
    ]
    expected = torch.stack(losses).mean().item()
    assert held_out_loss(subject, stream, 8) == pytest.approx(expected)


@pytest.mark.slow
def test_tasks_are_asked_or_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "PROMPTS", 8)
    tokenizer = text.letters()
    torch.manual_seed(0)
    model = Design.parse("llama-1x32-bpe2k").model(len(tokenizer), 0)
    subject = replace(from_hf(model), tokenizer=tokenizer)
    shares, reasons = task_shares(subject)
    assert shares.keys() | reasons.keys() == set(tasks.names())
    assert not shares.keys() & reasons.keys()
    assert shares["quotes"] == share_right(subject, tasks.quotes(tokenizer, 8, 1))
    assert "is not for this tokenizer" in reasons["ioi"]
