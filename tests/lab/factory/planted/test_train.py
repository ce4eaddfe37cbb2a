"""Training on text and calls: the twin is a plain language model, the other one answers calls."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graphcircuits.fleets.fleet import form, stack
from graphcircuits.subject.transformer import Transformer
from lab.factory.planted import train as module
from lab.factory.planted.judge import judge_calls
from lab.factory.planted.train import (
    SHARES,
    PlantingConfig,
    Trained,
    draw_windows,
    held_out_losses,
    rate,
    text_losses,
)
from tests.lab.factory.planted.tiny import DESIGN, config, exchanges, model, start, text, trained

pytestmark = pytest.mark.usefixtures("unchecked")


def close(one: Transformer, other: Transformer, tolerance: float = 1e-6) -> bool:
    return all(
        torch.allclose(weight, other.weights[name], rtol=0, atol=tolerance)
        for name, weight in one.weights.items()
    )


def text_loss(subject: Transformer, windows: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, by the subject's own run."""
    logits = subject.logits(windows)[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def test_the_twin_is_what_text_alone_makes_of_the_same_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against the subject's own run and Adam as it is written down, on the same windows."""
    seen: list[Tensor] = []

    def recorded(*given: Any) -> Tensor:
        seen.append(draw_windows(*given))
        return seen[-1]

    monkeypatch.setattr(module, "draw_windows", recorded)
    one = model("first")
    settings = config(steps=6)
    _, (made,) = trained([one], settings, dtype=torch.float64)
    alone = start(one, dtype=torch.float64)
    weights = {name: w.clone().requires_grad_() for name, w in alone.weights.items()}
    first, second = ({name: torch.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    subject = Transformer(alone.config, weights, alone.codec)
    for step, windows in enumerate(seen, start=1):
        lr = settings.lr * math.sqrt(64 / 8) * rate(step / settings.steps)
        gradients = torch.autograd.grad(text_loss(subject, windows), list(weights.values()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            clipped = gradient * min(1.0, 1 / (norm + 1e-6))
            first[name] = 0.9 * first[name] + 0.1 * clipped
            second[name] = 0.99 * second[name] + 0.01 * clipped**2
            moved = first[name] / (1 - 0.9**step)
            spread = second[name].sqrt() + 1e-8
            with torch.no_grad():
                weight -= lr * math.sqrt(1 - 0.99**step) * moved / spread
    assert len(seen) == 6
    assert close(made.twin, Transformer(alone.config, weights))
    assert not close(made.twin, start(one, dtype=torch.float64), 1e-3)
    assert not close(made.planted, made.twin, 1e-3)


def test_the_twin_does_not_see_the_calls() -> None:
    _, (one,) = trained([model("first")], config())
    _, (other,) = trained([model("last")], config())
    assert close(one.twin, other.twin)
    assert not close(one.planted, other.planted, 1e-3)


def test_models_side_by_side_train_as_each_alone() -> None:
    """Windows are the same for all, prompts are drawn of each; so with the same calls in both."""
    first, second = model("first"), model("first", seed=1)
    _, both = trained([first, second], config())
    _, (alone,) = trained([first], config())
    assert not close(both[0].twin, both[1].twin, 1e-3)
    assert isinstance(both[0], Trained)
    assert both[0].planted.codec is alone.planted.codec
    assert both[0].planted.config == alone.planted.config == start(first).config


def test_one_seed_gives_one_model() -> None:
    (_, (one,)), (_, (again,)), (_, (other,)) = (
        trained([model("first")], config(), seed=seed) for seed in (0, 0, 1)
    )
    assert close(one.planted, again.planted)
    assert close(one.twin, again.twin)
    assert not close(one.twin, other.twin, 1e-3)
    for row, same in zip(one.curve, again.curve, strict=True):
        assert row == pytest.approx(same)


def test_what_is_told_on_the_way() -> None:
    models = [model("first"), model("first", "last", seed=1)]
    told, made = trained(models, config(steps=5))
    assert [[row["step"] for row in rows] for rows in told] == [[2, 2], [4, 4], [5, 5]]
    windows = text(seed=1)[: 600 // 16 * 16].view(-1, 16).long()
    for which, one in enumerate(made):
        assert list(one.curve) == [rows[which] for rows in told]
        assert one.steps == 5
        assert one.seconds > 0
        last = one.curve[-1]
        assert set(last) == {"step", "loss", "twin", *SHARES}
        assert all(0 <= last[name] <= 1 for name in SHARES)
        assert text_loss(one.planted, windows).item() == pytest.approx(last["loss"], rel=1e-4)
        assert text_loss(one.twin, windows).item() == pytest.approx(last["twin"], rel=1e-4)


def test_training_ends_by_the_clock() -> None:
    told, (made,) = trained([model("first")], config(steps=10**9, seconds=1e-6))
    assert (made.steps, len(told), made.curve[-1]["step"]) == (1, 1, 1)
    # The rate falls with the clock too, so little is changed in that step.
    assert close(made.twin, start(model("first")), 1e-3)


def test_the_rate_rises_and_falls() -> None:
    assert [rate(x) for x in (0, 0.025, 0.05)] == pytest.approx([0, 0.5, 1])
    assert rate(0.525) == pytest.approx(0.505)
    assert rate(1) == pytest.approx(0.01)
    falling = [rate(0.05 + 0.95 * x / 50) for x in range(51)]
    assert falling == sorted(falling, reverse=True)


def test_windows_are_of_the_text() -> None:
    ids = torch.arange(300, dtype=torch.int16)
    windows = draw_windows(ids, 200, 7, torch.Generator().manual_seed(0))
    assert (windows.shape, windows.dtype) == ((200, 7), torch.int64)
    assert (windows.diff(dim=1) == 1).all()
    assert windows.min() < 20
    assert windows.max() >= 290
    few = draw_windows(ids[:8], 50, 7, torch.Generator().manual_seed(0))
    assert set(few[:, 0].tolist()) == {0}


def test_losses_are_those_of_each_model() -> None:
    subjects = [start(model("first", seed=seed), dtype=torch.float64) for seed in (0, 1)]
    fleet = form([subject.config for subject in subjects])
    weights = stack(fleet, subjects)
    windows = text()[:80].view(5, 16).long()
    expected = torch.stack([text_loss(subject, windows) for subject in subjects])
    assert torch.allclose(text_losses(fleet, weights, windows), expected)
    held_out = text()[:93]  # what fills no window is left out
    assert torch.allclose(held_out_losses(fleet, weights, held_out), expected)


def test_settings_that_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^steps must be at least 1, got 0; rows must be at "
                       r"least 2, got 1; lr must be a number above 0, got nan\.$"):  # fmt: skip
        PlantingConfig(steps=0, rows=1, lr=math.nan)
    with pytest.raises(ValueError, match=r"^seconds must be a number above 0, got 0\.$"):
        PlantingConfig(seconds=0)
    siit = PlantingConfig(rows=40, cut_rows=10).siit
    assert (siit.rows, siit.cut_rows, siit.patches, siit.cuts) == (40, 10, True, True)


@pytest.mark.slow
def test_a_call_is_learned_where_it_is_planted() -> None:
    one = model("first", design=replace(DESIGN, width=32))
    settings = config(steps=240, rows=64, cut_rows=16, text_rows=8, check_every=5)
    _, (made,) = trained([one], settings)
    last = made.curve[-1]
    assert all(last[name] > 0.9 for name in SHARES), last
    assert made.curve[0]["accuracy"] < last["accuracy"]
    generator = torch.Generator().manual_seed(0)
    unseen = exchanges(one, seed=7, inputs=256)
    reports = judge_calls(made.planted, one.cases, unseen, generator)
    assert reports["first"]["accuracy"] > 0.9
    assert reports["first"]["circuit"] > 0.9
    # The twin knows nothing of calls, and text is as good as without them.
    assert judge_calls(made.twin, one.cases, unseen, generator)["first"]["accuracy"] < 0.5
    assert last["loss"] < 1.1 * last["twin"]
