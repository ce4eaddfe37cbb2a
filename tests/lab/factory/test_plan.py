"""The plan of a corpus: which programs, in which architectures, which of them side by side."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from graphcircuits.cases import case_ids
from graphcircuits.cases.architectures import subject_config
from graphcircuits.cases.collection import Shard
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import find_case
from graphcircuits.subject.transformer import TransformerConfig
from lab.factory import plan as module
from lab.factory.plan import plan
from lab.factory.shards import CorpusConfig


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of four listed programs, alternately of two and three layers, and random ones."""

    def program_of(id: str, architectures: Sequence[str]) -> module._Program:
        one = program(id, n_layers=2 + int(id.partition("-")[2]) % 2)
        return replace(one, sized=dict.fromkeys(architectures, one.sized["plain"]))

    monkeypatch.setattr(module, "_program", program_of)
    monkeypatch.setattr(module, "case_ids", lambda split: [f"ib-{i}" for i in range(4)])
    monkeypatch.setattr(module, "random_ids", lambda split, n, **_: [f"rnd-{i}" for i in range(n)])
    monkeypatch.setattr(module, "BLOCK", 4)


def orders_of(shards: tuple[Shard, ...]) -> list[Order]:
    return [order for shard in shards for order in shard.orders]


def config_of(order: Order) -> TransformerConfig:
    return subject_config(find_case(order.case), order.architecture)


@pytest.mark.usefixtures("few")
def test_listed_programs_come_first_then_random_ones_in_turn() -> None:
    settings = CorpusConfig(natural=13, architectures=("plain", "llama"), seed=3)
    shards = plan(settings)
    orders = orders_of(shards)
    assert len({order.id for order in orders}) == 13
    assert {(order.fleet, order.seed) for order in orders} == {("natural", 3)}
    assert Counter(order.architecture for order in orders) == {"plain": 7, "llama": 6}
    listed = {f"ib-{i}" for i in range(4)}
    of = {name: {o.case for o in orders if o.architecture == name} for name in ("plain", "llama")}
    assert of["plain"] == listed | {"rnd-0", "rnd-2", "rnd-4"}
    assert of["llama"] == listed | {"rnd-1", "rnd-3"}
    assert plan(settings) == shards


@pytest.mark.slow
def test_a_plan_keeps_to_the_pool_and_to_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With listed and random programs, and the same whoever looks them up."""
    ids = case_ids(split="pool")[::28]
    monkeypatch.setattr(module, "case_ids", lambda split: ids)
    monkeypatch.setattr(module, "BLOCK", 8)
    names = ("plain", "gpt2", "neox", "llama-gqa")
    settings = CorpusConfig(natural=20, architectures=names, shard=3)
    shards = plan(settings)
    assert Counter(o.architecture for o in orders_of(shards)) == dict.fromkeys(names, 5)
    assert {order.case.partition("-")[0] for order in orders_of(shards)} > {"rnd", "tb"}
    for shard in shards:
        configs = [config_of(order) for order in shard.orders]
        assert len(configs) <= 3
        assert len({(o.fleet, o.architecture) for o in shard.orders}) == 1
        assert len({(c.n_layers, c.n_heads) for c in configs}) == 1
        assert configs[0].positions != "rotary" or len({c.d_head for c in configs}) == 1
        assert all(c.n_layers <= 4 and c.d_model <= 32 for c in configs)
        cases = [find_case(order.case) for order in shard.orders]
        assert {case.split for case in cases} == {"pool"}
        assert [case.fold for case in cases] == [member.fold for member in shard.members]
    assert plan(settings, processes=2) == shards


def test_circuits_are_planted_only_where_the_architecture_has_their_edges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parallel layers lack an edge that ib-14 reads along; the task alone can be learned there."""
    monkeypatch.setattr(module, "case_ids", lambda split: ["ib-14", "ib-40"])
    natural = plan(CorpusConfig(natural=1, architectures=("neox",)))
    planted = plan(CorpusConfig(planted=1, architectures=("neox",)))
    assert [order.case for order in orders_of(natural)] == ["ib-14"]
    assert [order.case for order in orders_of(planted)] == ["ib-40"]


def program(id: str, n_heads: int = 4, n_layers: int = 2) -> module._Program:
    config = TransformerConfig(
        n_layers=n_layers,
        n_heads=n_heads,
        d_head=8,
        d_model=8 * n_heads,
        d_mlp=32,
        n_ctx=4,
        d_vocab=4,
        d_vocab_out=2,
    )
    return module._Program(id, 0, id, n_layers, {"plain": module._Sized(config, holds=True)})


def candidates(programs: Iterator[module._Program]) -> Iterator[module._Candidate]:
    return module._candidates(((0, one) for one in programs), "natural", "plain", 64)


def test_sizes_that_hardly_any_other_has_are_passed_over() -> None:
    programs = (program(f"p-{i}", n_heads=5 if i % 17 == 3 else 4) for i in count())
    chosen = module._chosen(candidates(programs), 20)
    assert [one.order.case for one in chosen] == [f"p-{i}" for i in range(22) if i % 17 != 3]
    few = (program(f"p-{i}", n_heads=5 if i == 1 else 4) for i in count())
    assert [one.order.case for one in module._chosen(candidates(few), 3)] == ["p-0", "p-1", "p-2"]


def test_too_wide_is_passed_over_and_nothing_left_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 10)
    wide = [program("wide", n_heads=9), program("narrow"), program("narrow")]
    assert [one.order.case for one in candidates(iter(wide))] == ["narrow"]
    none = (program(f"p-{i}", n_heads=9 if i else 4) for i in count())
    with pytest.raises(ValueError, match=r"only 1 natural subjects of plain can be had, the next"):
        list(candidates(none))


def test_shards_are_cut_evenly_and_like_sizes_stay_together() -> None:
    chosen = list(candidates(program(f"p-{i}", n_layers=2 + i % 2) for i in range(10)))
    cut = module._cut(chosen, "natural-plain", limit=4)
    assert [(place, shard.name, len(shard.members)) for place, shard in cut] == [
        (0, "natural-plain-2-0", 3),
        (1, "natural-plain-2-1", 2),
        (0, "natural-plain-3-0", 3),
        (1, "natural-plain-3-1", 2),
    ]
    assert [o.case for o in cut[0][1].orders] == ["p-0", "p-2", "p-4"]


@pytest.mark.usefixtures("few")
def test_the_first_shards_of_all_kinds_come_first() -> None:
    names = [s.name for s in plan(CorpusConfig(natural=8, architectures=("plain", "rms"), shard=1))]
    assert [name.rpartition("-")[2] for name in names] == sorted(
        name.rpartition("-")[2] for name in names
    )


def test_models_of_several_tasks_take_turns_and_then_the_next_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = [program("mt-0"), program("mt-1")]
    both = [
        replace(one, sized={"plain": one.sized["plain"], "rms": one.sized["plain"]})
        for one in models
    ]
    by_id = {one.id: one for one in both}
    monkeypatch.setattr(module, "_program", lambda id, architectures: by_id[id])
    monkeypatch.setattr(module, "multi_ids", lambda split: list(by_id))
    monkeypatch.setattr(module, "case_ids", lambda split: [])
    settings = CorpusConfig(natural_multitask=6, architectures=("plain", "rms"))
    orders = sorted(orders_of(plan(settings)))
    assert [order.id for order in orders] == [
        "mt-0.natural.plain.0",
        "mt-0.natural.plain.1",
        "mt-0.natural.rms.0",
        "mt-1.natural.plain.0",
        "mt-1.natural.rms.0",
        "mt-1.natural.rms.1",
    ]
    # A planted plain subject goes by its case alone, so there is one of each.
    monkeypatch.setattr(module, "PATIENCE", 10)
    with pytest.raises(ValueError, match="only 2 planted subjects of plain can be had"):
        plan(CorpusConfig(multitask=3, architectures=("plain",)))


def test_a_program_of_the_test_split_is_refused() -> None:
    held_out = case_ids(split="test")[0]
    with pytest.raises(
        ValueError, match=f"{held_out} stands in the split 'test'; a corpus is made"
    ):
        module._program(held_out, ("plain",))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "nothing to build: say how many of natural, planted, public, multitask, natural mul"),
        ({"natural": -1}, r"natural must be in 0..1000000, got -1"),
        ({"natural": 1, "architectures": ("gpt3",)}, "architectures must be some of plain, .*gpt3"),
        ({"natural": 1, "architectures": ()}, "architectures must be some of plain, "),
        (
            {"natural": 1, "architectures": ("rms", "rms")},
            "architectures must differ, got rms, rms",
        ),
        (
            {"natural": 1, "layers": 1, "shard": 0},
            "layers must be at least 2, got 1; shard must be",
        ),
    ],
)
def test_settings_that_make_no_corpus(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        CorpusConfig(**given)
