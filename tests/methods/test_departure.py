"""The objective of refining: against faithfulness itself, and which pairs may be shuffled."""

import math
from dataclasses import replace

import pytest
import torch

from graphcircuits import Circuit, Pairs, Transformer
from graphcircuits.evaluation.evaluate import faithfulness
from graphcircuits.methods.departure import (
    ENOUGH,
    LITTLE,
    Objective,
    Recipe,
    exchangeable,
)
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
    recipe = Recipe(masks=3, near=1, prompts=4, gates=lambda above, _: above.sigmoid())
    objective = Objective.of(subject, ready_pairs(subject, 4), recipe, None)
    values = torch.linspace(-2, 2, 13, dtype=torch.float64)
    _, turn = objective.judge(values)
    found = objective.gradient(values, turn, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    rows, partners = objective.prompts_for_step(generator)
    last = objective.drawn_sizes(turn, generator)
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


def test_sizes_are_even_over_the_logarithm_of_all_and_of_the_turn() -> None:
    subject = make_subject(n_layers=4, n_heads=8)
    n_edges = subject.graph.n_edges
    recipe = Recipe(masks=4000, near=1000)
    objective = Objective.of(subject, ready_pairs(subject, 4), recipe, None)
    turn = torch.tensor([5.0, 25.0]).log()
    drawn = objective.drawn_sizes(turn, torch.Generator().manual_seed(0)).double()
    near, others = drawn[:1000], drawn[1000:]
    assert (int(near.min()), int(near.max())) == (5, 24)
    assert int(others.min()) == 1
    assert n_edges - 10 < int(others.max()) < n_edges
    for some, low, high in ((near, 5, 25), (others, 1, n_edges)):
        middle = math.ceil((low * high) ** 0.5)
        share = math.log(middle / low) / math.log(high / low)
        assert float((some < middle).double().mean()) == pytest.approx(share, abs=0.01)


def test_a_ranking_turns_between_sizes_that_lack_much_and_next_to_nothing() -> None:
    subject = make_subject(n_layers=1, n_heads=2)
    objective = Objective.of(subject, ready_pairs(subject, 12), Recipe(), None)
    values = torch.randn(13, generator=torch.Generator().manual_seed(1))
    _, turn = objective.judge(values)
    ranked = values.argsort(descending=True)
    lacking = []
    for size in objective.sizes.tolist():
        mask = torch.zeros(1, 13).index_fill_(1, ranked[:size], 1.0)
        lacking.append(float(objective.departures(mask, objective.judges, objective.judges)))
    begin, end = (int(x) for x in turn.exp().round())
    sizes = objective.sizes.tolist()
    assert lacking[sizes.index(end)] <= ENOUGH < max(lacking[: sizes.index(end)])
    assert begin == 1 or lacking[sizes.index(begin)] > LITTLE


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
