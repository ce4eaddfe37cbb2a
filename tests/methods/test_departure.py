"""The objective of refining: against faithfulness itself, and which pairs may be shuffled."""

from dataclasses import replace

import pytest
import torch

from graphcircuits import Circuit, Pairs, Transformer
from graphcircuits.evaluation.evaluate import faithfulness
from graphcircuits.methods.departure import Objective, Recipe, Sizes, exchangeable
from tests.methods.tasks import make_pairs
from tests.subjects import make_subject


def ready_pairs(subject: Transformer, batch: int) -> Pairs:
    pairs = make_pairs(subject, batch=batch)
    return pairs.with_targets_from(subject.logits(pairs.clean))


def test_departures_are_one_minus_faithfulness() -> None:
    subject = make_subject(n_layers=1, n_heads=2)
    pairs = ready_pairs(subject, 4)
    objective = Objective.of(subject, pairs, Recipe(), None)
    kept = torch.rand(5, 13, generator=torch.Generator().manual_seed(0)) < 0.6
    rows = torch.arange(4)
    found = objective.departures(kept.double(), rows, rows)
    circuits = [Circuit.from_mask(subject.graph, mask) for mask in kept]
    expected = 1 - torch.tensor(
        faithfulness(subject, pairs, circuits, by="loss"), dtype=found.dtype
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_the_gradient_is_that_of_the_weighted_distance() -> None:
    """With gates that are not random it is the slope between two nearby values."""
    subject = make_subject(n_layers=1, n_heads=2)
    recipe = Recipe(masks=3, prompts=4, gates=lambda offsets, _: offsets.sigmoid())
    objective = Objective.of(subject, ready_pairs(subject, 4), recipe, None)
    values = torch.linspace(-2, 2, 13, dtype=torch.float64)
    sizes = Sizes.aimed(objective.judged, torch.rand(len(objective.judged)), 13)
    found = objective.gradient(values, sizes, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    rows, partners = objective.prompts_for_step(generator)
    kept, weights = sizes.draw(3, generator)
    thresholds = values.flip(0)[kept - 1]

    def distance(at: torch.Tensor) -> torch.Tensor:
        masks = ((at - thresholds[:, None]) / recipe.spread).sigmoid()
        return (weights * objective.departures(masks, rows, partners).abs()).mean()

    nudges = 1e-5 * torch.eye(13, dtype=torch.float64)
    slopes = [(distance(values + nudge) - distance(values - nudge)) / 2e-5 for nudge in nudges]
    torch.testing.assert_close(found, torch.stack(slopes), rtol=1e-4, atol=1e-6)
    assert found.abs().max() > 0.01


def test_every_size_counts_alike() -> None:
    errors = torch.tensor([2.0, 0.5, 0.0])
    sizes = Sizes.aimed(torch.tensor([1, 4, 10]), errors, 10)
    density = sizes.cumulative.diff(prepend=torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(sizes.cumulative[-1], torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(density * sizes.weights, torch.full_like(density, 0.1))
    assert density[0] > 3 * density[-1]
    drawn, weights = sizes.draw(2000, torch.Generator().manual_seed(0))
    assert drawn.unique().tolist() == [*range(1, 11)]
    assert float((weights * drawn).mean()) == pytest.approx(5.5, abs=0.05)


def test_errors_of_zero_leave_sizes_uniform() -> None:
    sizes = Sizes.aimed(torch.tensor([1, 5]), torch.zeros(2), 5)
    drawn, weights = sizes.draw(50, torch.Generator().manual_seed(0))
    assert (int(drawn.min()), int(drawn.max())) == (1, 5)
    assert weights.unique().tolist() == [2.0]


def test_which_pairs_may_be_shuffled() -> None:
    subject = make_subject(n_layers=1, n_heads=2)
    drawn = ready_pairs(subject, 32)
    assert exchangeable(subject, drawn)
    assert not exchangeable(subject, drawn[:5])
    alike = drawn.clean.clone()
    alike[:, 2] = (alike[:, 2] + 1) % subject.config.d_vocab
    assert not exchangeable(subject, replace(drawn, corrupted=alike))
    lengths = drawn.scored.clone()
    lengths[0, -1] = False
    assert not exchangeable(subject, replace(drawn, scored=lengths))


def test_pairs_that_were_made_to_differ_in_the_answer_are_not_shuffled() -> None:
    subject = make_subject(n_layers=1, n_heads=2)
    drawn = ready_pairs(subject, 32)
    logits = subject.logits(drawn.corrupted)
    losses = torch.stack([drawn.loss(logits.roll(shift, 0)) for shift in range(8)])
    furthest = (torch.arange(32) - losses.argmax(0)) % 32
    assert not exchangeable(subject, replace(drawn, corrupted=drawn.corrupted[furthest]))


def test_corruption_that_changes_nothing_on_average() -> None:
    subject = make_subject(n_layers=1, n_heads=2)
    pairs = make_pairs(subject, "cross-entropy", batch=1)
    both = Pairs.concatenate([pairs, replace(pairs, clean=pairs.corrupted, corrupted=pairs.clean)])
    with pytest.raises(ValueError, match="clean and corrupted runs that differ, got mean losses"):
        Objective.of(subject, both, Recipe(), None)
