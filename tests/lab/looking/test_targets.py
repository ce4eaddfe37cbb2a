"""Refined rankings: better on their own prompts or those of the start, and judged as anywhere."""

import pytest
import torch

from graphcircuits.engine.stack import Stack
from graphcircuits.evaluation.evaluate import faithfulness_curve
from graphcircuits.predictor.looking import rank_logits
from lab.looking import targets
from lab.looking.targets import log_area, refined
from tests.lab.looking.groups import finite, group, random_values
from tests.predictor.graphs import seeded
from tests.training.examples import make_judged

pytestmark = pytest.mark.usefixtures("unchecked")


def test_log_area_is_that_of_curves_by_output() -> None:
    """Of a case beside others as of the same case alone."""
    found, values = group(), random_values()
    beside = log_area(found.stack, values)
    for row, (subject, pairs) in enumerate(found.items):
        scores = finite(values)[row]
        curve = faithfulness_curve(subject, pairs, scores, by="output", crossings=())
        assert float(beside[row]) == pytest.approx(curve.log_area, abs=1e-4)
        alone = log_area(Stack.of([found.items[row]]), values[[row]])
        torch.testing.assert_close(alone, beside[[row]], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("together", [240, 2])
def test_refining_lowers_log_area_on_its_own_prompts(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many cases are refined at once: 2 layers are one case."""
    monkeypatch.setattr(targets, "LAYERS_AT_ONCE", together)
    stack, starts = group().stack, random_values()
    values, areas = refined(stack, starts, 30)
    # What it says is so.
    torch.testing.assert_close(areas[0], log_area(stack, starts), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(areas[1], log_area(stack, values), rtol=1e-4, atol=1e-4)
    assert (areas[1] <= areas[0]).all()
    # On other machines other edges may be drawn; 30 steps take away a third or more.
    assert float(areas[1].sum()) < 0.9 * float(areas[0].sum())
    # Silent edges do not speak up, and all others keep a value.
    assert torch.equal(values.isfinite(), starts.isfinite())
    assert (values[~starts.isfinite()] == -torch.inf).all()


@pytest.mark.parametrize("steps", [0, 2])
def test_it_never_ends_with_a_worse_ranking(steps: int) -> None:
    stack = group().stack
    starts = group().starts
    values, areas = refined(stack, starts, steps)
    assert (areas[1] <= areas[0]).all()
    torch.testing.assert_close(areas[1], log_area(stack, values), rtol=1e-4, atol=1e-4)
    assert torch.equal(values.isfinite(), starts.isfinite())


def test_the_same_seed_gives_the_same_values() -> None:
    stack, starts = group().stack, random_values(1)
    before = torch.get_rng_state()
    one, again, other = (refined(stack, starts, 2, seed=seed)[0] for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.slow
def test_subjects_that_learned_nothing_are_refined_as_well() -> None:
    """Random subjects, on prompts of another kind and in a graph of their own."""
    items = [x.item for x in make_judged()[:3] if x.item is not None]
    stack = Stack.of([(subject, pairs) for subject, pairs in items])
    starts = rank_logits(torch.randn(3, stack.graph.n_edges, generator=seeded(0)))
    _, (before, after) = refined(stack, starts, 20)
    assert (after <= before).all()
    assert float(after.sum()) < float(before.sum())
