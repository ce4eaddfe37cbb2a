"""What the network that looks learns from: lessons, how edges weigh in them, and when labels do."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graphcircuits.predictor.invariant import table_width
from graphcircuits.predictor.looker import Looker
from graphcircuits.predictor.looking import rank_logits
from graphcircuits.predictor.model import read_case
from graphcircuits.training.objectives import label_weights
from lab.looking.cases import look_at
from lab.looking.learn import Lesson, _Lessons, edge_weights, train_looker
from tests.lab.looking.groups import group, settings, sources
from tests.predictor.cases import make_task, small, widened
from tests.predictor.graphs import seeded

pytestmark = pytest.mark.usefixtures("unchecked")


def make_lesson(**changes: Any) -> Lesson:
    """Three cases, two of which have silent edges, that are to be ranked the other way round."""
    found = group()
    look = look_at(found.stack, found.starts, settings().looker.sizes, settings().looked)
    lesson = Lesson(
        found.sources,
        found.graph,
        found.structure,
        found.tables.half(),
        look.half(),
        found.starts,
        rank_logits(-found.starts, found.starts.isfinite()),
        (None,) * len(found),
    )
    return replace(lesson, **changes)


def losses(lesson: Lesson, **train: Any) -> list[float]:
    """Of every step of a training on one lesson."""
    found: list[float] = []

    def hear(step: int, figures: Mapping[str, float]) -> None:
        found.append(figures["loss"])

    train_looker([lesson], settings({"every": 1, **train}), log=hear)
    return found


def weights_of(lessons: Sequence[Lesson], seed: int = 0, **train: Any) -> Tensor:
    """All weights of a looker that learned."""
    looker = train_looker(lessons, settings(train), seed=seed)
    return torch.cat([x.flatten() for x in looker.state_dict().values()])


# Lessons


def test_some_cases_of_a_lesson() -> None:
    mask = torch.ones(make_lesson().graph.n_edges, dtype=torch.bool)
    whole = make_lesson(circuits=(None, None, mask))
    some = whole.of([2, 0])
    assert len(some) == 2
    assert some.sources == (whole.sources[2], whole.sources[0])
    assert some.circuits == (mask, None)
    for name in ("tables", "looks", "values", "targets"):
        one, other = getattr(some, name), getattr(whole, name)
        assert torch.equal(one, other[[2, 0]])
    assert (some.graph, some.structure) == (whole.graph, whole.structure)


# How edges weigh


def test_weights_are_shares_of_living_edges() -> None:
    lesson = make_lesson()
    alive = lesson.values.isfinite()
    weights = edge_weights(lesson.values, lesson.targets, alive)
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(lesson)))
    assert torch.equal(weights > 0, alive)


def test_decades_weigh_alike() -> None:
    values = rank_logits(torch.randn(2, 10_000, generator=seeded(0)))
    weights = edge_weights(values, values, values.isfinite())
    ordered = weights.gather(-1, values.argsort(dim=-1, descending=True))
    assert (ordered[:, 1:] <= ordered[:, :-1]).all()
    sums = torch.stack([ordered[:, 10**k - 1 : 10 ** (k + 1) - 1].sum(-1) for k in range(4)])
    # The first nine are a sum, where others are nearly an integral.
    assert sums.max() < 1.25 * sums.min()
    assert sums[1:].max() < 1.03 * sums[1:].min()


def test_the_better_rank_of_an_edge_counts() -> None:
    values = rank_logits(torch.randn(1, 100, generator=seeded(0)))
    before, after = int(values.argmin()), int(values.argmax())
    targets = values.clone()
    targets[0, [before, after]] = values[0, [after, before]]
    weights = edge_weights(values, targets, values.isfinite())[0]
    assert float(weights[before]) == pytest.approx(float(weights[after]))
    assert float(weights[before]) == pytest.approx(float(weights.max()))


# Learning


@pytest.mark.slow
def test_one_lesson_can_be_learned() -> None:
    found = losses(make_lesson(), steps=150)
    assert len(found) == 150
    assert found[-1] < found[0] / 4


def test_what_was_learned_depends_on_the_seed_alone() -> None:
    lessons = [make_lesson(), make_lesson().of([1])]
    before = torch.get_rng_state()
    one, again = weights_of(lessons), weights_of(lessons)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, again)
    assert not torch.equal(one, weights_of(lessons, seed=1))


def test_nothing_is_lost_where_the_target_is_the_value() -> None:
    lesson = make_lesson()
    assert losses(replace(lesson, targets=lesson.values), steps=1) == [0]


# Labels


def test_labels_count_where_they_are_known() -> None:
    lesson = make_lesson()
    circuits = group().circuits
    assert None not in circuits

    def extra(*known: int, label_weight: float = 1.0) -> float:
        """What labels of some cases add to the loss."""
        masks = tuple(x if n in known else None for n, x in enumerate(circuits))
        (found,) = losses(replace(lesson, circuits=masks), steps=1, label_weight=label_weight)
        return found - without

    (without,) = losses(lesson, steps=1)
    assert extra() == 0
    one, other, both = extra(0), extra(2), extra(0, 2)
    assert min(one, other) > 0.01
    assert both == pytest.approx(one + other, rel=1e-4)
    assert extra(2, label_weight=3) == pytest.approx(3 * other, rel=1e-4)
    # Before it has learned anything, a score is the value; edges of this case all have one.
    mask = circuits[2]
    assert mask is not None
    each = F.binary_cross_entropy_with_logits(lesson.values[2], mask.float(), reduction="none")
    assert other == pytest.approx(float(each @ label_weights(mask)) / len(lesson), rel=1e-4)


def test_without_known_circuits_their_weight_does_nothing() -> None:
    lesson = make_lesson()
    plain, weighed = (weights_of([lesson], label_weight=x) for x in (1.0, 5.0))
    assert torch.equal(plain, weighed)
    known = weights_of([replace(lesson, circuits=group().circuits)], label_weight=5.0)
    assert not torch.equal(plain, known)


# Silent edges


def test_silent_edges_do_not_change_the_loss() -> None:
    subject, pairs = make_task("plain")
    larger = widened(subject, 2, 1)
    old = larger.graph.edge_indices(subject.graph.edge_names)
    narrow, wide = subject.graph.n_edges, larger.graph.n_edges
    config = settings()
    columns = table_width(small().share)
    sizes = {"tables": columns, "looks": config.looker.columns}
    tables = {x: torch.randn(2, narrow, n, generator=seeded(n)) for x, n in sizes.items()}
    ranked = {
        x: rank_logits(torch.randn(2, narrow, generator=seeded(n)))
        for n, x in enumerate(("values", "targets"))
    }
    # Whatever is read of silent edges; they have neither values nor targets.
    more = {x: torch.randn(2, wide, n, generator=seeded(n + 1)) for x, n in sizes.items()}
    more |= {x: torch.full((2, wide), -torch.inf) for x in ranked}
    for name, rows in (tables | ranked).items():
        more[name][:, old] = rows
    looker = Looker(config.looker, columns)
    looker.readout.weight.data.normal_(generator=seeded(0))
    found = []
    for each, fields in ((subject, tables | ranked), (larger, more)):
        structure = read_case(small(), each, pairs, generator=seeded(0)).structure
        given = sources()[:2]
        lesson = Lesson(given, each.graph, structure, circuits=(None, None), **fields)
        looker.zero_grad()
        loss = _Lessons(looker, [lesson], config, 0).backward(0)
        gradient = torch.cat([x.grad.flatten() for x in looker.parameters() if x.grad is not None])
        found.append((loss, gradient))
    (one, slope), (other, wider) = found
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(slope, wider, rtol=1e-3, atol=1e-5)
    assert slope.abs().max() > 1e-3
