"""The network that looks: what it starts from, what it hears, and what cannot change it."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.engine.relaxed import ranks
from graphcircuits.predictor.ensemble import Ensemble
from graphcircuits.predictor.invariant import living, table_width
from graphcircuits.predictor.looker import (
    FARTHEST_KNOWN,
    Looker,
    LookerConfig,
    corrected,
    settled,
)
from graphcircuits.predictor.looking import COLUMNS, look_table, proposed, rank_logits
from graphcircuits.predictor.model import read_case
from graphcircuits.predictor.paper.transform import Neighbourhoods
from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from lab.looking.learn import standardize
from tests.predictor.cases import make_task, small, widened
from tests.predictor.graphs import seeded
from tests.predictor.test_ensemble import make_ensemble

pytestmark = pytest.mark.usefixtures("unchecked")


def make_looker(seed: int = 0, **options: Any) -> Looker:
    """One that has something to say."""
    given: dict[str, Any] = {"width": 8, "sizes": 3, "prompts": 2}
    config = LookerConfig(**(given | options))
    looker = Looker(config, table_width(small().share), generator=seeded(seed))
    looker.readout.weight.data.normal_(generator=seeded(seed))
    return looker.eval().requires_grad_(False)


def looking(**options: Any) -> Ensemble:
    return replace(make_ensemble(), lookers=(make_looker(**options),), looks=("language",))


def single(architecture: str = "plain") -> tuple[Transformer, Pairs]:
    subject, pairs = make_task(architecture)
    return subject.to(torch.float32), pairs


def predicted(ensemble: Ensemble, subject: Transformer, pairs: Pairs, **options: Any) -> Tensor:
    return ensemble.predict_case(subject, pairs, generator=seeded(0), **options).logits


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"width must be at least 1, got 0; sizes must be at lea"):
        LookerConfig(width=0, sizes=0)


def test_one_that_learned_nothing_leaves_the_ranking() -> None:
    subject, pairs = single()
    fresh = Looker(LookerConfig(width=8), table_width(small().share)).eval()
    ensemble = replace(make_ensemble(), lookers=(fresh,))
    plain, found = (predicted(ensemble, subject, pairs, looks=looks) for looks in (0, 2))
    assert torch.equal(plain.argsort(descending=True), found.argsort(descending=True))


def test_it_looks_on_the_kinds_it_is_told_and_changes_the_ranking_there() -> None:
    subject, pairs = single()
    ensemble = looking()
    plain = predicted(ensemble, subject, pairs, looks=0)
    assert torch.equal(predicted(ensemble, subject, pairs, kind="planted"), plain)
    usual = predicted(ensemble, subject, pairs, kind="language")
    assert torch.equal(usual, predicted(ensemble, subject, pairs, looks=2))
    once = predicted(ensemble, subject, pairs, kind="language", looks=1)
    orders = {tuple(x.argsort().tolist()) for x in (plain, once, usual)}
    assert len(orders) == 3
    assert usual.isfinite().all()


def test_looks_need_a_looker() -> None:
    subject, pairs = single()
    with pytest.raises(ValueError, match="looks must be 0: this predictor has no looker, got 1"):
        predicted(make_ensemble(), subject, pairs, looks=1)
    with pytest.raises(ValueError, match="looks must be at least 0, got -1"):
        predicted(looking(), subject, pairs, looks=-1)


def test_several_are_averaged_in_each_round() -> None:
    subject, pairs = single()
    reading = read_case(small(), subject, pairs, generator=seeded(0))
    table = reading.content
    assert isinstance(table, Tensor)
    start = rank_logits(torch.randn(subject.graph.n_edges, generator=seeded(3)))

    def worth(masks: Tensor) -> tuple[Tensor, Tensor]:
        return masks.mean(-1), masks * 2 - 1

    def run(*lookers: Looker) -> Tensor:
        return corrected(lookers, table, start, reading.structure, subject.graph, worth, 1)

    one = make_looker()
    assert torch.equal(run(one, one), run(one))
    other = make_looker(1)
    assert not torch.equal(run(one, other), run(one))
    assert torch.equal(run(one, other), run(other, one))


def test_values_settle_along_paths() -> None:
    graph = make_task("plain")[0].graph
    values = torch.randn(2, graph.n_edges, generator=seeded(0))
    found = settled(values, graph)
    for one, other in zip(values, found, strict=True):
        torch.testing.assert_close(other, rank_logits(along_paths(one, graph)))
    values[0, 3] = -torch.inf
    assert settled(values, graph)[0, 3] == -torch.inf


@pytest.mark.parametrize("messages", [True, False])
def test_edges_hear_of_each_other_by_messages_alone(messages: bool) -> None:
    reading = read_case(small(), *single(), generator=seeded(0))
    assert isinstance(reading.content, Tensor)
    looker = make_looker(messages=messages)
    look = torch.randn(len(reading.content), 3 * COLUMNS, generator=seeded(1))
    values = rank_logits(torch.randn(len(look), generator=seeded(2)))
    before = looker(reading.content, look, values, reading.structure)
    look[5] += 1
    after = looker(reading.content, look, values, reading.structure)
    moved = before != after
    assert moved[5]
    assert bool(moved.sum() > 1) == messages


def read() -> tuple[Tensor, Tensor, Tensor, Neighbourhoods]:
    """A table of invariants, a look that says anything, values, and the structure of the graph."""
    reading = read_case(small(), *single(), generator=seeded(0))
    assert isinstance(reading.content, Tensor)
    look = torch.randn(len(reading.content), 3 * COLUMNS, generator=seeded(1))
    values = rank_logits(torch.randn(len(look), generator=seeded(2)))
    return reading.content.float(), look, values, reading.structure


def test_without_looks_it_sees_how_far_edges_are_from_thresholds_alone() -> None:
    table, look, values, structure = read()
    looker = make_looker(looks=False)
    others, nearer = look.flip(0), look.clone()
    others[:, :3] = look[:, :3]
    nearer[:, :3] += 1
    found = looker(table, look, values, structure)
    assert torch.equal(looker(table, others, values, structure), found)
    assert not torch.equal(looker(table, nearer, values, structure), found)
    assert not torch.equal(make_looker()(table, others, values, structure), found)


def test_the_first_columns_say_how_far_edges_are_from_thresholds() -> None:
    """Which `looks=False` leaves."""
    _, _, values, _ = read()
    above, masks = proposed(values, 3)
    lacks = torch.tensor([0.1, 0.3, 0.8])
    gains = torch.randn(masks.shape, generator=seeded(0))
    found = look_table(above, masks, lacks, gains)
    assert found.shape[-1] == make_looker().config.columns
    other = look_table(above, masks, 1 - lacks, gains.flip(-1))
    assert torch.equal(found[:, :3], other[:, :3])
    assert (found[:, 3:] != other[:, 3:]).any(0).all()


def test_it_does_not_read_values() -> None:
    """They say where an edge starts; by how much it moves is said by what is read."""
    table, look, values, structure = read()
    looker = make_looker()
    others = values.flip(-1)
    moves = [looker(table, look, x, structure) - x for x in (values, others)]
    torch.testing.assert_close(*moves, rtol=1e-4, atol=1e-4)
    assert moves[0].abs().max() > 0.1


def test_what_is_read_ends_far_from_what_was_learned_from() -> None:
    table, look, values, structure = read()
    looker = make_looker()
    far = 10 * table, 10 * look
    ends = [x.clamp(-FARTHEST_KNOWN, FARTHEST_KNOWN) for x in far]
    farther = [x.where(x.abs() < FARTHEST_KNOWN, 1e6 * x) for x in far]
    found = looker(*far, values, structure)
    torch.testing.assert_close(looker(*ends, values, structure), found)
    torch.testing.assert_close(looker(*farther, values, structure), found)
    assert all((x.abs() > FARTHEST_KNOWN).any() for x in far)
    assert not torch.allclose(looker(table, look, values, structure), found, atol=0.1)


def test_columns_are_read_in_units_of_what_was_learned_from() -> None:
    table, look, values, structure = read()
    found = []
    for scale, shift in ((1, 0), (3, 7)):
        read_table, read_look = scale * table + shift, look / scale - shift
        looker = make_looker()
        # Of several cases, or of a part of one: every edge counts once.
        learned = [(read_table[None, :n], read_look[None, :n]) for n in (None, 9)]
        standardize(looker, learned)
        rows = torch.cat([torch.cat(x, -1)[0] for x in learned])
        torch.testing.assert_close(looker.mean, rows.mean(0), rtol=1e-4, atol=1e-4)
        deviation = rows.std(0, correction=0)
        torch.testing.assert_close(looker.deviation, deviation, rtol=1e-4, atol=1e-4)
        found.append(looker(read_table, read_look, values, structure))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(make_looker()(table, look, values, structure), found[0], atol=0.1)


def test_beyond_the_edges_that_were_seen_values_move_ever_less() -> None:
    table, look, values, structure = read()
    values = values.where(values.isfinite(), values[values.isfinite()].amin() - 1)
    looker, near = make_looker(), make_looker()
    near.reach.fill_(math.log(5))
    assert looker.reach > math.log(values.shape[-1])
    free, bound = (each(table, look, values, structure) - values for each in (looker, near))
    shares = (5 / (ranks(values) + 1)).clamp_max(1)
    torch.testing.assert_close(bound, free * shares, rtol=1e-4, atol=1e-4)
    learned = make_looker()
    standardize(learned, [(table, look), (table[..., :9, :], look[..., :9, :])])
    assert math.exp(learned.reach) == pytest.approx(table.shape[-2])


def test_a_column_that_never_changed_says_little() -> None:
    table, look, values, structure = read()
    looker = make_looker()
    table[:, 0] = 5.0
    standardize(looker, [(table, look)])
    found = looker(table, look, values, structure)
    table[:, 0] = 6.0
    assert found.isfinite().all()
    assert looker(table, look, values, structure).isfinite().all()


@pytest.mark.parametrize("architecture", ["plain", "grouped-keys", "llama"])
@pytest.mark.parametrize(("groups", "layers"), [(2, 0), (0, 1), (3, 2)])
def test_silent_heads_and_layers_change_nothing(
    architecture: str, groups: int, layers: int
) -> None:
    """But that edges change places whose values are equal to rounding: neither proposals nor looks
    nor messages know of them."""
    subject, pairs = make_task(architecture)
    larger = widened(subject, groups, layers)
    old = larger.graph.edge_indices(subject.graph.edge_names)
    lookers = (make_looker().double(),)
    found = []
    for each in (subject, larger):
        reading = read_case(small(), each, pairs, generator=seeded(0))
        assert isinstance(reading.content, Tensor)
        assert reading.prior is not None
        alive = living(reading.content, small().share)
        start = rank_logits(reading.prior, alive)
        ensemble = replace(make_ensemble(), lookers=lookers)
        found.append((alive, start, ensemble.look(each, pairs, reading, reading.prior, 2)))
    (alive, start, one), (more, wide, other) = found
    torch.testing.assert_close(wide[old], start)
    assert torch.equal(more[old], alive)
    assert int(more.sum()) == int(alive.sum())
    places, others = (x[alive].argsort().argsort() for x in (one, other[old]))
    assert int((places - others).abs().max()) <= 2
    assert float((places != others).float().mean()) < 0.1
    assert (other[~more] < other[more].min()).all()
