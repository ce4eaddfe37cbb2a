"""Refining: never worse than its start on its pairs, and what was reached when it is stopped."""

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

import graphcircuits as gc
from graphcircuits import Pairs, Result, Transformer, localize
from graphcircuits.evaluation.evaluate import faithfulness_curve
from graphcircuits.evaluation.proposal import propose
from graphcircuits.methods.departure import Recipe
from graphcircuits.methods.prepare import Stop, to_clean_output
from graphcircuits.methods.refine import RefineState, rank_logits, refinement, sort_by_rank
from graphcircuits.predictor.paths import along_paths
from tests.methods.tasks import make_pairs
from tests.subjects import make_subject

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def case() -> tuple[Transformer, Pairs, Tensor]:
    """A small subject, its pairs, and scores that say nothing of it."""
    subject = make_subject(n_layers=1, n_heads=2)
    scores = torch.rand(subject.graph.n_edges, generator=torch.Generator().manual_seed(0))
    return subject, make_pairs(subject, batch=4), scores


# Rankings


def test_only_the_order_of_the_start_counts() -> None:
    scores = torch.tensor([0.5, 3.0, 0.5, -1.0])
    found = rank_logits(scores)
    assert found.argsort(descending=True).tolist() == [1, 0, 2, 3]
    assert torch.equal(found, rank_logits(scores.exp()))
    torch.testing.assert_close(found.sum(), torch.tensor(0.0))


def test_the_best_score_goes_to_the_best_edge() -> None:
    scores, values = torch.tensor([5.0, 1.0, 2.0]), torch.tensor([0.1, 0.3, 0.2])
    assert sort_by_rank(scores, values).tolist() == [1.0, 5.0, 2.0]
    assert torch.equal(sort_by_rank(scores, rank_logits(scores)), scores)


def test_equal_scores_do_not_hide_the_order() -> None:
    scores = torch.tensor([0.0, 4.0, 0.0, 0.0, 4.0, 0.0])
    values = torch.tensor([0.3, 0.1, 0.6, 0.2, 0.4, 0.5])
    found = sort_by_rank(scores, values)
    assert torch.equal(found.argsort(), values.argsort())
    assert found.sort().values.tolist() == [0, 1, 2, 3, 4, 6]
    same = sort_by_rank(torch.full((3,), 2.0), torch.tensor([0.0, 2.0, 1.0]))
    assert same.argsort().tolist() == [0, 2, 1]


# What it does


def _cut(subject: Transformer, pairs: Pairs) -> float:
    """The divergence from the output with every edge cut."""
    ready = to_clean_output(subject, pairs)
    return float(ready.loss(subject.logits(pairs.corrupted)).mean())


@pytest.mark.slow
def test_it_gets_closer_to_faithful(case: tuple[Transformer, Pairs, Tensor]) -> None:
    """What it says of start and end is `log_area` on the pairs that judge."""
    subject, _, scores = case
    pairs = make_pairs(subject, batch=16)
    found = refinement(subject, pairs, scores, steps=40)
    assert found.after < found.before
    assert (found.steps, found.stopped) == (40, False)
    assert torch.equal(found.scores.sort().values, scores.sort().values)
    for told, ranking in ((found.before, scores), (found.after, found.scores)):
        curve = faithfulness_curve(subject, pairs[12:], ranking, crossings=(), prune=False)
        # The unit is that of all pairs.
        unit = _cut(subject, pairs[12:]) / _cut(subject, pairs)
        lacking = [min(1.0, max(0.0, unit * (1 - value))) for value in curve.faithfulness]
        own = replace(curve, faithfulness=[1 - value for value in lacking])
        assert told == pytest.approx(own.log_area, rel=1e-5)
    assert found.describe().startswith("refined in 40 steps: the mean of what circuits of all ")
    assert f"{found.before:.3f} to {found.after:.3f}" in found.describe()
    again = refinement(subject, pairs, scores, steps=40).scores
    assert torch.equal(again, found.scores)


@pytest.mark.slow
def test_what_is_drawn_follows_the_generator() -> None:
    subject = make_subject()
    pairs = make_pairs(subject, batch=16)
    scores = torch.rand(subject.graph.n_edges, generator=torch.Generator().manual_seed(0))
    one, again, other = (
        refinement(
            subject, pairs, scores, steps=16, generator=torch.Generator().manual_seed(seed)
        ).scores
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_a_start_that_is_better_is_kept(case: tuple[Transformer, Pairs, Tensor]) -> None:
    subject, pairs, scores = case
    start = along_paths(rank_logits(scores), subject.graph)
    still = refinement(subject, pairs, start, steps=2, recipe=Recipe(learning_rate=0.0))
    assert torch.equal(still.scores, start)
    assert still.after == still.before
    assert still.describe() == (
        "refined in 2 steps: nothing better was found, the scores are those of the method"
    )


def test_edges_count_along_paths(case: tuple[Transformer, Pairs, Tensor]) -> None:
    """Where steps change nothing, what is left to gain is that edges on no path come later."""
    subject, _, scores = case
    still = refinement(*case, steps=2, recipe=Recipe(learning_rate=0.0))
    assert still.after < still.before
    expected = along_paths(rank_logits(scores), subject.graph)
    assert torch.equal(still.scores.argsort(), expected.argsort())


def test_edges_that_are_avoided_fall(
    case: tuple[Transformer, Pairs, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The further the more they are pushed; of the others nothing is asked."""
    subject, pairs, scores = case
    avoided = torch.arange(len(scores)) % 2 == 0
    ends: list[Tensor] = []

    def look(_: object, state: RefineState, share: float) -> None:
        if share == 1:
            ends.append(state.values.clone())

    monkeypatch.setattr("graphcircuits.methods.refine._look", look)
    found = {}
    for push in (None, 0.0, 1.0, 5.0):
        avoid = None if push is None else push * avoided.float()
        refinement(subject, pairs, scores, steps=4, avoid=avoid)
        found[push] = ends[-1]
    assert torch.equal(found[None], found[0.0])
    assert (found[1.0] < found[0.0])[avoided].float().mean() > 0.8
    assert (found[5.0] < found[0.0])[avoided].all()
    means = [float(found[push][avoided].mean()) for push in (0.0, 1.0, 5.0)]
    assert means == sorted(means, reverse=True)
    # A push by a root mean square at every step is a whole step, at the rate that is left.
    assert means[0] - means[1] > 0.05


@pytest.mark.slow
def test_half_precision_and_positions_that_are_not_scored() -> None:
    subject = make_subject("llama", n_layers=1, n_heads=2, n_kv_heads=1)
    halves = {name: weight.bfloat16() for name, weight in subject.weights.items()}
    half = Transformer(subject.config, halves)
    pairs = make_pairs(half)
    scored = torch.zeros_like(pairs.scored)
    scored[:, 2] = True
    scores = torch.randn(half.graph.n_edges, generator=torch.Generator().manual_seed(0))
    few = replace(pairs, scored=scored)
    found = refinement(half, few, scores, steps=3, memory_limit=1).scores
    assert found.dtype == torch.float32
    assert torch.equal(found.sort().values, scores.sort().values)


def test_seconds(case: tuple[Transformer, Pairs, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a second whenever it is looked at, however slow the machine."""
    monkeypatch.setattr("time.perf_counter", count(1.0).__next__)
    calls: list[tuple[int, int]] = []
    found = refinement(*case, seconds=16.0, progress=lambda *call: calls.append(call))
    assert found.steps == 16 - 7  # one to prepare, and one for each judgement of a ranking
    assert [done for done, _ in calls] == [*range(1, found.steps + 1)]
    assert all(done <= total for done, total in calls)
    assert calls[-1] == (found.steps, found.steps)
    too_short = refinement(*case, seconds=1e-6)
    assert (too_short.steps, too_short.stopped) == (0, False)


# Stopping


@pytest.mark.parametrize("kind", [Stop, KeyboardInterrupt])
def test_stopped(case: tuple[Transformer, Pairs, Tensor], kind: type[BaseException]) -> None:
    def stop_at_five(done: int, total: int) -> None:
        assert total == 12
        if done == 5:
            raise kind

    stopped = refinement(*case, steps=12, progress=stop_at_five)
    assert (stopped.steps, stopped.stopped) == (5, True)
    assert stopped.after <= stopped.before
    assert stopped.describe().startswith("refined in 5 steps and then stopped: ")
    at_the_end = refinement(*case, steps=5, progress=stop_at_the_end)
    assert (at_the_end.steps, at_the_end.stopped) == (5, False)


def stop_at_the_end(done: int, total: int) -> None:
    if done == total:
        raise Stop


# Refusals


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"steps": 3, "seconds": 1.0}, "give steps or seconds, not both, got 3 and 1.0"),
        ({"steps": 0}, "steps must be a whole number above 0, got 0"),
        ({"steps": 2.5}, "steps must be a whole number above 0, got 2.5"),
        ({"seconds": -1}, "seconds must be a finite number above 0, got -1"),
        ({"seconds": float("nan")}, "seconds must be a finite number above 0, got nan"),
    ],
)
def test_lengths_that_make_no_sense(
    case: tuple[Transformer, Pairs, Tensor], options: dict[str, float], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        refinement(*case, **options)  # pyright: ignore[reportArgumentType]


def test_a_result_of_another_subject(case: tuple[Transformer, Pairs, Tensor]) -> None:
    subject, pairs, scores = case
    result = Result(graph=subject.graph, scores=scores)
    with pytest.raises(ValueError, match=r"result is of ComponentGraph\(n_layers=1.*subject has C"):
        gc.refine(make_subject(), pairs, result)


# Results


@pytest.mark.slow
def test_a_refined_result(case: tuple[Transformer, Pairs, Tensor]) -> None:
    """It has a circuit of its own, and says how it came about."""
    subject, pairs, _ = case
    calls: list[tuple[int, int]] = []
    plain = localize(subject, pairs, "random", seed=3)
    stale = replace(plain, notes=("first", "the circuit has 99% of all edges, too many"))
    found = gc.refine(subject, pairs, stale, steps=10, progress=lambda *call: calls.append(call))
    assert calls[-1] == (10, 10)
    assert found.options == {**plain.options, "refine_steps": 10}
    assert found.notes[0] == "first"
    assert found.notes[1].startswith("refined in 10 steps: ")
    assert (found.method, found.seed, found.subject) == (plain.method, 3, plain.subject)
    assert (found.seconds or 0) > (plain.seconds or 0) > 0
    seed = torch.Generator().manual_seed(3)
    by_hand = refinement(subject, pairs, plain.scores, steps=10, generator=seed)
    assert torch.equal(found.scores, by_hand.scores)
    assert found.circuit() == propose(subject, pairs, found).circuit
    before, after = (faithfulness_curve(subject, pairs, x).log_area for x in (plain, found))
    assert after < before
    assert gc.refine(subject, pairs, found, steps=1, keep=None).chosen is None


def test_what_is_no_result_and_a_wrong_order(case: tuple[Transformer, Pairs, Tensor]) -> None:
    subject, pairs, scores = case
    with pytest.raises(TypeError, match=r"takes and returns a Result, got Tensor: give scores"):
        gc.refine(subject, pairs, scores, steps=3)  # pyright: ignore[reportArgumentType]
    result: Any = Result(graph=subject.graph, scores=scores)
    with pytest.raises(TypeError, match=r"call refine\(subject, pairs, result, .* got Result, "):
        gc.refine(result, subject, pairs)  # pyright: ignore[reportArgumentType]
