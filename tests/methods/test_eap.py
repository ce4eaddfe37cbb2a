"""Attribution: equal to its definitions where those can be computed."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.engine import passes as module
from graphcircuits.engine.masked import masked_logits
from graphcircuits.engine.memory import MEMORY_LIMIT
from graphcircuits.engine.resume import single_edge
from graphcircuits.methods.eap import RULES, eap, eap_ig, effects, points
from graphcircuits.methods.exact import exact
from graphcircuits.methods.method import Method
from graphcircuits.methods.prepare import prepare
from graphcircuits.methods.relp import relp
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.methods.tasks import make_pairs, output_sum
from tests.subjects import SOME, make_subject
from tests.tiers import some

AT_CLEAN = (torch.ones(1),)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def midpoints(steps: int) -> tuple[Tensor, ...]:
    return ((torch.arange(steps, dtype=torch.float64) + 0.5) / steps,)


def linear_subject() -> Transformer:
    """Attention that is the same everywhere and an MLP that is never cut off by its relu."""
    subject = make_subject("relu")
    weights = dict(subject.weights)
    weights["W_Q"] = torch.zeros_like(weights["W_Q"])
    weights["b_Q"] = torch.zeros_like(weights["b_Q"])
    weights["b_in"] = torch.full_like(weights["b_in"], 1000.0)
    return Transformer(subject.config, weights)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", SOME)
def test_eap_is_the_gradient_of_the_mask(architecture: str) -> None:
    subject = make_subject(architecture)
    pairs = make_pairs(subject, "cross-entropy")
    masks = torch.ones(subject.graph.n_edges, dtype=torch.float64, requires_grad=True)
    corrupted = subject.run(pairs.corrupted).writers
    losses = pairs.loss(masked_logits(subject, pairs.clean, masks, corrupted))
    slopes = torch.stack(
        [torch.autograd.grad(loss, masks, retain_graph=True)[0] for loss in losses]
    )
    close(effects(subject, pairs, "inputs", AT_CLEAN)[0], -slopes)
    close(eap(subject, pairs, pool="sum"), slopes.mean(0).abs())
    close(eap(subject, pairs, pool="abs"), slopes.abs().mean(0))


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["abs", "sum"])
def test_eap_and_every_path_are_exact_on_a_linear_subject(pool: str) -> None:
    subject = linear_subject()
    pairs = make_pairs(subject, output_sum)
    patched = exact(subject, pairs, pool=pool)
    assert (patched > 1e-6).sum() > 20
    for direction in ("noising", "denoising"):
        close(eap(subject, pairs, direction=direction, pool=pool), patched, 1e-7)
    for over, rule in product(("inputs", "activations"), RULES):
        close(eap_ig(subject, pairs, over=over, rule=rule, pool=pool), patched, 1e-7)


@pytest.mark.parametrize("architecture", ["plain", "llama"])
def test_denoising_takes_the_slope_at_the_corrupted_run(architecture: str) -> None:
    """A little of one edge's clean output, in the corrupted run."""
    subject = make_subject(architecture)
    pairs = prepare(subject, make_pairs(subject, "kl"))
    clean, corrupted = (subject.run(tokens) for tokens in (pairs.clean, pairs.corrupted))
    before, share = pairs.loss(corrupted.logits), 1e-6
    other = torch.lerp(corrupted.writers, clean.writers, share)
    slopes = (single_edge(corrupted, other, metric=pairs.loss) - before) / share
    # The loss is flat at the clean run, but not here.
    torch.testing.assert_close(
        eap(subject, pairs, direction="denoising"), slopes.abs().mean(1), rtol=1e-4, atol=1e-6
    )


def test_right_ends_are_the_published_points() -> None:
    """Steps 1, 2, ... of so many from corrupted to clean, the last one at the clean run."""
    subject = make_subject("llama")
    pairs = make_pairs(subject, "cross-entropy")
    at_points = [
        effects(subject, pairs, "inputs", (torch.tensor([step / 3], dtype=torch.float64),))[0]
        for step in (1, 2, 3)
    ]
    expected = torch.stack(at_points).mean(0).abs().mean(0)
    close(eap_ig(subject, pairs, steps=3, rule="right"), expected, 1e-6)
    close(eap_ig(subject, pairs, steps=1, rule="right"), eap(subject, pairs))


@pytest.mark.parametrize("over", some(["inputs", "activations"]))
def test_every_rule_is_exact_about_a_slope_that_changes_evenly(over: str) -> None:
    """On a linear subject with a quadratic loss gradients move in a line from end to end."""
    subject = linear_subject()
    plain = make_pairs(subject, output_sum)
    level = plain.loss(subject.logits(plain.clean)).mean()
    pairs = make_pairs(subject, lambda logits, pairs: (output_sum(logits, pairs) - level) ** 2)
    first, last = (
        effects(subject, pairs, over, (torch.full((1,), share, dtype=torch.float64),))[0]
        for share in (0.0, 1.0)
    )
    assert not torch.allclose(first, last, rtol=0.1)
    steps = 4
    lag = {"left": -1 / steps, "right": 1 / steps}
    for rule in RULES:
        expected = torch.lerp(first, last, 0.5 + lag.get(rule, 0.0) / 2).abs().mean(0)
        close(eap_ig(subject, pairs, over=over, steps=steps, rule=rule), expected, 1e-6)
    # So those that treat both ends alike give the very change of the loss.
    gaps = pairs.loss(subject.logits(pairs.corrupted)) - pairs.loss(subject.logits(pairs.clean))
    leaving = subject.graph.edge_writers == 0
    for rule in ("midpoint", "endpoints", "trapezoid"):
        shares, weights = points(rule, steps)
        found = effects(subject, pairs, over, (shares,), weights)[0]
        torch.testing.assert_close(found[:, leaving].sum(1), gaps, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "shares", "weights"),
    some(
        [
            ("trapezoid", [0, 1 / 3, 2 / 3, 1], [0.5, 1, 1, 0.5]),
            ("left", [0, 0.25, 0.5, 0.75], [1, 1, 1, 1]),
            ("midpoint", [0.125, 0.375, 0.625, 0.875], [1, 1, 1, 1]),
            ("right", [0.25, 0.5, 0.75, 1], [1, 1, 1, 1]),
            ("endpoints", [0, 1 / 3, 2 / 3, 1], [1, 1, 1, 1]),
        ]
    ),
)
def test_a_rule_weighs_the_gradients_at_its_points(
    rule: str, shares: list[float], weights: list[float]
) -> None:
    subject = make_subject("llama")
    pairs = make_pairs(subject, "cross-entropy")
    at_points = [
        weight * effects(subject, pairs, "inputs", (torch.tensor([share], dtype=torch.float64),))[0]
        for share, weight in zip(shares, weights, strict=True)
    ]
    expected = (torch.stack(at_points).sum(0) / sum(weights)).abs().mean(0)
    close(eap_ig(subject, pairs, steps=4, rule=rule), expected, 1e-6)
    # Also where memory makes it take the points one by one.
    close(eap_ig(subject, pairs, steps=4, rule=rule, memory_limit=1), expected, 1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("over", ["inputs", "activations"])
@pytest.mark.parametrize(
    "architecture",
    some(["plain", "parallel", "llama", "gpt-2", "gemma-3", "everything"], ["llama"]),
)
def test_edges_leaving_the_input_add_up_to_the_gap(architecture: str, over: str) -> None:
    subject = make_subject(architecture)
    pairs = prepare(subject, make_pairs(subject, "kl"))
    gaps = pairs.loss(subject.logits(pairs.corrupted)) - pairs.loss(subject.logits(pairs.clean))
    leaving = subject.graph.edge_writers == 0
    errors = []
    for steps in (16, 64, 256):
        found = effects(subject, pairs, over, midpoints(steps))[0]
        errors.append(float((found[:, leaving].sum(1) - gaps).abs().max()))
    assert errors[2] < 2e-3 * float(gaps.abs().max())
    # The midpoint rule: four times the steps, about a sixteenth of the error.
    assert errors[2] < errors[1] / 8


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", ["plain", "parallel", "llama", "gpt-2", "windows", "everything"]
)
def test_over_activations_integrates_each_group_of_writers(architecture: str) -> None:
    """What leaves one group adds up to the change of the loss when that group is corrupted."""
    subject = make_subject(architecture)
    graph = subject.graph
    pairs = make_pairs(subject, "cross-entropy")
    found = effects(subject, pairs, "activations", midpoints(60))[0]
    corrupted = subject.run(pairs.corrupted).writers
    before = pairs.loss(subject.logits(pairs.clean))
    heads = [1 + graph.writers_per_layer + head for head in range(graph.n_heads)]
    for group in ([0], heads, [heads[-1] + 1], [graph.n_writers - 1]):
        leaving = torch.isin(graph.edge_writers, torch.tensor(group))
        logits = masked_logits(subject, pairs.clean, (~leaving).double(), corrupted)
        close(found[:, leaving].sum(1), pairs.loss(logits) - before, 1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("over", "pool"), [("inputs", "abs"), ("activations", "sum")])
def test_chunks_change_nothing(over: str, pool: str) -> None:
    subject = make_subject("gpt-2", n_layers=2)
    pairs = make_pairs(subject, "cross-entropy", batch=3)
    whole, *parts = (
        eap_ig(subject, pairs, over=over, pool=pool, steps=3, memory_limit=limit)
        for limit in (MEMORY_LIMIT, 200_000, 1)
    )
    for scores in parts:
        close(scores, whole)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["abs", "sum"])
def test_thousands_of_edges_a_prompt_at_a_time(pool: str) -> None:
    subject = make_subject("gpt-2", n_layers=8, n_heads=8, d_head=2)
    pairs = make_pairs(subject, "cross-entropy", batch=3)
    assert subject.graph.n_edges == 6637
    masks = torch.ones(subject.graph.n_edges, dtype=torch.float64, requires_grad=True)
    corrupted = subject.run(pairs.corrupted).writers
    losses = pairs.loss(masked_logits(subject, pairs.clean, masks, corrupted))
    slopes = torch.stack(
        [torch.autograd.grad(loss, masks, retain_graph=True)[0] for loss in losses]
    )
    expected = slopes.abs().mean(0) if pool == "abs" else slopes.mean(0).abs()
    close(eap(subject, pairs, pool=pool, memory_limit=1), expected)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("architecture", "method"), [("plain", eap), ("gpt-2", relp), ("llama", eap)]
)
def test_layers_go_to_the_stream_one_by_one_or_together(
    architecture: str, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = make_subject(architecture, n_layers=18, n_heads=2)
    pairs = make_pairs(subject, "cross-entropy")
    sizes: list[int] = []

    def watched(run: Any, batch: int) -> int:
        sizes.append(layers_at_once(run, batch))
        return sizes[-1]

    layers_at_once = module._layers_at_once
    monkeypatch.setattr(module, "_layers_at_once", watched)
    together = method(subject, pairs)
    monkeypatch.setattr(module, "CPU_BUFFER", 1)
    close(method(subject, pairs), together)
    assert sizes == [2, 1]


def test_positions_behind_the_last_scored_one_change_nothing() -> None:
    subject = make_subject("llama")
    pairs = make_pairs(subject, "cross-entropy")
    pairs.scored[:, 3:] = False
    clean, corrupted = pairs.clean.clone(), pairs.corrupted.clone()
    clean[:, 3:] = corrupted[:, 3:] = 0
    other = replace(pairs, clean=clean, corrupted=corrupted)
    assert torch.equal(eap(subject, pairs), eap(subject, other))
    # One that looks ahead does see them.
    ahead = make_subject("bidirectional")
    assert not torch.allclose(eap(ahead, pairs), eap(ahead, other))


@pytest.mark.slow
@pytest.mark.parametrize("over", ["inputs", "activations"])
def test_half_precision_has_single_precision_sums(over: str) -> None:
    subject = make_subject("llama", n_layers=3)
    pairs = make_pairs(subject, "cross-entropy")
    expected = eap_ig(subject, pairs, over=over)
    found = eap_ig(subject.to(torch.bfloat16), pairs, over=over)
    assert found.dtype == torch.float32
    # Rounded sums would have eight bits.
    assert not torch.equal(found, found.bfloat16().float())
    assert torch.corrcoef(torch.stack([found.double(), expected]))[0, 1] > 0.99


def test_a_loss_that_is_flat_at_the_clean_run() -> None:
    subject = make_subject()
    pairs: Pairs = make_pairs(subject, "l1")
    config = replace(subject.config, d_vocab_out=1)
    weights = subject.weights | {
        "W_U": subject.weights["W_U"][:, :1],
        "b_U": subject.weights["b_U"][:1],
    }
    numeric = Transformer(config, weights)
    with pytest.raises(ValueError, match=r"gradient of the loss is zero .*: use eap-ig"):
        eap(numeric, pairs)
    assert (eap_ig(numeric, pairs) > 0).any()
    assert (eap(numeric, pairs, direction="denoising") > 0).any()


def test_options_are_checked() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    with pytest.raises(ValueError, match="pool must be one of abs, sum, got 'mean'"):
        eap(subject, pairs, pool="mean")
    with pytest.raises(ValueError, match="over must be one of inputs, activations, got 'edges'"):
        eap_ig(subject, pairs, over="edges")
    with pytest.raises(ValueError, match="steps must be above 0, got 0"):
        eap_ig(subject, pairs, steps=0)
    with pytest.raises(
        ValueError, match="rule must be one of left, midpoint, right, endpoints, trapezoid, got 'u"
    ):
        eap_ig(subject, pairs, rule="up")
    for rule in ("endpoints", "trapezoid"):
        message = f"rule {rule} takes both ends, so steps must be at least 2, got 1"
        with pytest.raises(ValueError, match=message):
            eap_ig(subject, pairs, rule=rule, steps=1)
    with pytest.raises(ValueError, match="direction must be one of noising, denoising, got 'up'"):
        eap(subject, pairs, direction="up")
