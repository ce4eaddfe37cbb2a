"""Cases as training reads them: who is beside whom, what is read of each, and a look at many."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.cases import load_case
from graphcircuits.engine.stack import Stack, architecture
from graphcircuits.methods.shipped import shipped
from graphcircuits.predictor.invariant import living
from graphcircuits.predictor.looker import corrected
from graphcircuits.predictor.looking import COLUMNS, look_table, proposed, rank_logits, worths
from graphcircuits.predictor.model import read_case
from graphcircuits.training.data import FRESH
from lab.looking import cases
from lab.looking.cases import BLIND, START, look_again, look_at, read_cases
from tests.lab.looking.groups import (
    ALIKE,
    OTHER,
    Answering,
    Few,
    Flat,
    as_kind,
    group,
    ids_of,
    make_looker,
    settings,
    sources,
)
from tests.methods.tasks import make_pairs
from tests.predictor.graphs import seeded
from tests.subjects import make_subject
from tests.training.examples import natural_of


def test_cases_of_one_architecture_make_a_group() -> None:
    config = settings()
    given = sources(ALIKE[0], OTHER, ALIKE[1])
    groups, left_out = read_cases(given, config)
    assert [ids_of(x.sources) for x in groups] == [[ALIKE[0], ALIKE[1]], [OTHER]]
    assert left_out == {}
    for each in groups:
        assert len({architecture(subject) for subject, _ in each.items}) == 1
        shape = (len(each), each.graph.n_edges)
        assert each.starts.shape == each.tables.shape[:2] == shape
        assert {x.shape for x in each.others.values()} == {shape}
        assert len(each.stack) == len(each.items) == len(each.circuits) == len(each)
        assert each.stack.n_pairs == config.read + config.judged


def test_every_row_is_what_the_predictor_of_its_fold_says() -> None:
    found, config = group(), settings()
    for row, source in enumerate(found.sources):
        ensemble = shipped(f"fold-{source.folds[0]}")
        subject, pairs = found.items[row]
        read = pairs[: config.read]
        reading = read_case(
            ensemble.config, subject, read, generator=seeded(0), dtype=torch.float32
        )
        assert isinstance(reading.content, Tensor)
        torch.testing.assert_close(found.tables[row], reading.content)
        alive = living(reading.content, ensemble.config.share)
        assert torch.equal(found.starts[row].isfinite(), alive)
        logits = ensemble.predict_case(subject, read, generator=seeded(0), looks=0).logits
        torch.testing.assert_close(found.starts[row], rank_logits(logits, alive))
    silent = (~found.starts.isfinite()).sum(-1)
    assert (silent[:2] > 0).all()
    assert silent[2] == 0


def test_prompts_are_those_of_the_source() -> None:
    found, config = group(), settings()
    for source, (subject, pairs) in zip(found.sources, found.items, strict=True):
        own = source.subject()
        assert all(torch.equal(x, own.weights[name]) for name, x in subject.weights.items())
        read, judged = (
            source.pairs(own, n, seed) for n, seed in ((config.read, 0), (config.judged, FRESH))
        )
        assert torch.equal(pairs.clean, torch.cat([read.clean, judged.clean]))
        assert torch.equal(pairs.corrupted, torch.cat([read.corrupted, judged.corrupted]))


def test_whatever_the_loss_cases_are_read_and_judged_by_output() -> None:
    (answering,), _ = read_cases([as_kind(Answering, sources()[0])], settings())
    assert answering.stack.loss_names == ("kl",)
    torch.testing.assert_close(answering.starts, group().starts[:1])
    torch.testing.assert_close(answering.tables, group().tables[:1])


def test_circuits_are_there_where_they_are_known(tmp_path: Path) -> None:
    (source,) = sources(OTHER)
    (planted,), _ = read_cases([source], settings(), predictor="default")
    (natural,), _ = read_cases([natural_of(source, tmp_path)], settings(), predictor="default")
    (mask,), (nothing,) = planted.circuits, natural.circuits
    assert mask is not None
    assert torch.equal(mask, load_case(OTHER).labels("complete", planted.graph).mask)
    assert nothing is None
    torch.testing.assert_close(natural.starts, planted.starts)


def test_a_predictor_may_be_named() -> None:
    """Which a case of no fold needs."""
    (found,), _ = read_cases(sources("ib-3"), settings(), predictor="default")
    subject, pairs = found.items[0]
    said = shipped("default").predict_case(subject, pairs[:8], generator=seeded(0), looks=0)
    alive = found.starts[0].isfinite()
    torch.testing.assert_close(found.starts[0], rank_logits(said.logits, alive))


def test_what_sees_no_run_says_the_same_of_every_subject() -> None:
    """Of one graph whose edges all do something; what starts from a search does not."""
    given = sources("tb-element-second", "tb-remove-duplicates")
    assert given[0].folds == given[1].folds
    (found,), _ = read_cases(given, settings())
    assert found.starts.isfinite().all()
    one, other = found.others[BLIND]
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    one, other = found.others[START]
    assert (one - other).abs().max() > 0.1


def test_what_cannot_be_read_or_judged_is_named_and_left_out() -> None:
    first, second, third = sources(*ALIKE)
    given = [as_kind(Few, first), second, as_kind(Flat, third)]
    groups, left_out = read_cases(given, settings())
    assert [ids_of(x.sources) for x in groups] == [[ALIKE[1]]]
    assert left_out.keys() == {ALIKE[0], ALIKE[2]}
    assert left_out[ALIKE[0]] == (
        "tb-count-frequency has 3 and 3 pairs, not 8 to read and 6 to judge by."
    )
    assert "corrupted" in left_out[ALIKE[2]]


def test_of_a_group_those_are_left_out_that_do_not_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        @staticmethod
        def of(items: Any, device: Any) -> Stack:
            if any(subject.case == ALIKE[1] for subject, _ in items):
                raise ValueError("no gap")
            return Stack.of(items, device)

    monkeypatch.setattr(cases, "Stack", Refusing)
    groups, left_out = read_cases(sources(), settings())
    assert [ids_of(x.sources) for x in groups] == [[ALIKE[0]], [ALIKE[2]]]
    assert left_out == {ALIKE[1]: "no gap"}
    for found, row in zip(groups, (0, 2), strict=True):
        torch.testing.assert_close(found.starts, group().starts[[row]])


# A look


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("architecture", ["plain", "llama"])
def test_a_look_at_many_is_that_at_each(architecture: str) -> None:
    items: list[Any] = []
    for seed in (0, 1):
        subject = make_subject(architecture, seed)
        pairs = make_pairs(subject, "cross-entropy", batch=6)
        items.append((subject, pairs.by_output(subject.config.d_vocab_out)))
    stack, sizes = Stack.of(items), 3
    scores = torch.randn(2, stack.graph.n_edges, generator=seeded(0))
    alive = torch.rand(scores.shape, generator=seeded(1)) < 0.8
    values = rank_logits(scores, alive).double()
    for prompts in (6, 4):
        found = look_at(stack, values, sizes, prompts)
        assert found.shape == (*scores.shape, sizes * COLUMNS)
        for (subject, pairs), own, look in zip(items, values, found, strict=True):
            above, masks = proposed(own, sizes)
            alone = look_table(above, masks, *worths(subject, pairs[:prompts])(masks))
            # What circuits lack, in the last columns, may be in another unit on some prompts.
            last = None if prompts == 6 else -sizes
            torch.testing.assert_close(look[:, :last], alone[:, :last], rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("unchecked")
def test_a_round_of_many_is_that_of_each() -> None:
    """As predictors look at one subject."""
    found, lookers = group(), (make_looker(), make_looker(1))
    # On all prompts, where what circuits lack is in one unit.
    config = settings(looked=found.stack.n_pairs)
    values = look_again(found, found.starts, lookers, config)
    for row, (subject, pairs) in enumerate(found.items):
        start, alive = found.starts[row], found.starts[row].isfinite()
        structure = found.structure.among(alive)
        worth = worths(subject, pairs)
        alone = corrected(lookers, found.tables[row], start, structure, found.graph, worth, 1)
        assert torch.equal(values[row].isfinite(), alive)
        places, own, before = (x[alive].argsort().argsort() for x in (values[row], alone, start))
        # Equal worths differ in their last bits, and then by their ranks.
        assert float((places != own).float().mean()) < 0.1
        assert float((places != before).float().mean()) > 0.5


@pytest.mark.usefixtures("unchecked")
def test_a_round_of_one_that_learned_nothing_leaves_the_ranking() -> None:
    found, config = group(), settings()
    after = look_again(found, found.starts, [make_looker(speaks=False)], config)
    torch.testing.assert_close(after, found.starts)
