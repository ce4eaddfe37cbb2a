"""The objective of refining: against faithfulness itself, and which pairs may be shuffled."""

from dataclasses import replace

import pytest
import torch

from graphcircuits import Circuit, Pairs, Transformer
from graphcircuits.evaluation.evaluate import faithfulness
from graphcircuits.methods.departure import Objective, Recipe, drawn_sizes, exchangeable
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


def test_the_direction_is_that_of_each_mask_in_units_of_its_own() -> None:
    """With gates that are not random it is the slope between two nearby values."""
    subject = make_subject(n_layers=1, n_heads=2)
    recipe = Recipe(masks=3, prompts=4, gates=lambda above, _: above.sigmoid())
    objective = Objective.of(subject, ready_pairs(subject, 4), recipe, None)
    values = torch.linspace(-2, 2, 13, dtype=torch.float64)
    found = objective.gradient(values, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    rows, partners = objective.prompts_for_step(generator)
    last = drawn_sizes(13, 3, generator)
    best = values.flip(0)
    thresholds = (best[last - 1] + best[last]) / 2

    def masks(at: torch.Tensor) -> torch.Tensor:
        return ((at - thresholds[:, None]) / recipe.spread).sigmoid()

    def departures(at: torch.Tensor) -> torch.Tensor:
        return objective.departures(masks(at), rows, partners)

    nudges = 1e-5 * torch.eye(13, dtype=torch.float64)
    both = [(departures(values + nudge), departures(values - nudge)) for nudge in nudges]
    slopes = torch.stack([(up - down) / 2e-5 for up, down in both], 1)
    near = 4 * masks(values) * (1 - masks(values))
    units = (slopes.square().sum(1) / near.sum(1).clamp(min=1)).sqrt()
    torch.testing.assert_close(found, (slopes / units[:, None]).sum(0), rtol=1e-3, atol=1e-5)


def test_sizes_are_even_over_their_logarithm() -> None:
    drawn = drawn_sizes(1000, 3000, torch.Generator().manual_seed(0))
    assert int(drawn.min()) == 1
    assert 990 < int(drawn.max()) < 1000
    for low in (1, 10, 100):
        share = ((drawn >= low) & (drawn < 10 * low)).double().mean()
        assert float(share) == pytest.approx(1 / 3, abs=0.01)


def test_pairs_are_held_back_where_there_are_enough() -> None:
    subject = make_subject(n_layers=1, n_heads=2)
    many = Objective.of(subject, ready_pairs(subject, 12), Recipe(), None)
    assert (len(many.pairs), many.judges.tolist()) == (9, [9, 10, 11])
    few = Objective.of(subject, ready_pairs(subject, 7), Recipe(), None)
    assert (len(few.pairs), few.judges.tolist()) == (7, [*range(7)])


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
