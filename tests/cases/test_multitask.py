"""Several programs in one model: its tokens, classes, components, circuits, and training data."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from graphcircuits import rasp
from graphcircuits.cases import N_FOLDS, case_ids, load_case, random_seed
from graphcircuits.cases.case import Case
from graphcircuits.cases.multitask import (
    MAX_HEADS,
    MultiCase,
    TaskCase,
    load_multi,
    load_task,
    multi_ids,
    multi_records,
)
from graphcircuits.cases.prepare import ConstantOutputError, case_exchange, exchanges_of
from graphcircuits.cases.random_programs import random_facts
from graphcircuits.cases.relations import fold_of, groups_of
from graphcircuits.fleets.recipes import SiitConfig
from graphcircuits.fleets.train import train_fleet
from graphcircuits.fleets.verify import verify_fleet
from graphcircuits.subject.transformer import Transformer, TransformerConfig
from lab.factory.alive import vitality
from lab.factory.audit import audit
from lab.generators.multitask import FILE, as_json, compose
from tests.tiers import some


def previous() -> rasp.SOp:
    """The token before, None at the first."""
    return rasp.Aggregate(
        rasp.Select(rasp.indices, rasp.indices, lambda k, q: k == q - 1), rasp.tokens
    )


def counted(comparison: rasp.Comparison) -> Callable[[], rasp.SOp]:
    """How many tokens compare so with this one."""
    return lambda: rasp.SelectorWidth(rasp.Select(rasp.tokens, rasp.tokens, comparison))


def doubled() -> rasp.SOp:
    return rasp.Map(lambda x: 2 * x, rasp.tokens)


PROGRAMS: dict[str, Callable[[], rasp.SOp]] = {
    "previous": previous,
    "same": counted(rasp.Comparison.EQ),
    "smaller": counted(rasp.Comparison.LT),
    "doubled": doubled,
}


def case(name: str, **changes: Any) -> Case:
    fields: dict[str, Any] = {"vocab": (0, 1, 2), "max_seq_len": 5, "causal": False}
    return Case(id=name, program=PROGRAMS[name](), **(fields | changes))


def model(*names: str, shared: bool = True, **changes: Any) -> MultiCase:
    return MultiCase(id="ours", cases=tuple(case(n, **changes) for n in names), shared=shared)


# Tokens and classes


def test_vocabulary_and_classes_are_those_of_all_programs():
    ours = MultiCase(
        id="ours", cases=(case("doubled", vocab=(2, 3)), case("previous", vocab=(1, 2)))
    )
    assert ours.codec.vocab == (1, 2, 3)
    assert ours.codec.outputs == (1, 2, 4, 6)
    assert ours.codec.tasks == ("doubled", "previous")
    assert ours.codec.d_vocab == 2 + 3 + 2
    assert [task.id for task in ours.tasks] == ["ours@doubled", "ours@previous"]
    assert all(task.codec is ours.codec for task in ours.tasks)


@pytest.mark.parametrize("name", ["doubled", "previous", "same"])
def test_pairs_are_the_programs_with_one_task_token(name: str):
    ours = MultiCase(
        id="ours", cases=(case("doubled", vocab=(1, 2)), case("previous"), case("same"))
    )
    task = ours.task(name)
    pairs, codec = task.pairs(8, seed=3), ours.codec
    token = codec.d_vocab - 3 + ours.names.index(name)
    assert (pairs.clean[:, 0] == token).all()
    assert (pairs.corrupted[:, 0] == token).all()
    assert pairs.case == f"ours@{name}"
    alone = ours.cases[ours.names.index(name)]
    plain = alone.pairs(8, seed=3)
    assert alone.outputs is not None
    assert codec.outputs is not None
    assert pairs.targets is not None
    assert plain.targets is not None
    assert _symbols(pairs.clean, codec.vocab) == _symbols(plain.clean, alone.codec.vocab)
    named = [codec.outputs[i] for i in pairs.targets[:, 1:].argmax(-1).flatten().tolist()]
    expected = [alone.outputs[i] for i in plain.targets[:, 1:].argmax(-1).flatten().tolist()]
    assert named == expected
    assert pairs.targets.sum() == plain.targets.sum()


def _symbols(tokens: torch.Tensor, vocab: Sequence[object]) -> list[object]:
    return [vocab[id - 2] for id in tokens[:, 1:].flatten().tolist()]


@pytest.mark.parametrize("shared", [True, False])
def test_exchanges_are_the_programs_own_in_other_names(shared: bool):
    ours = MultiCase(
        id="ours",
        cases=(case("same", vocab=(1, 2)), case("previous"), case("smaller")),
        shared=shared,
    )
    exchanges, codec = exchanges_of(ours, 32, 16, seed=4), ours.codec
    assert codec.outputs is not None
    for place, (found, task, alone) in enumerate(
        zip(exchanges, ours.tasks, ours.cases, strict=True)
    ):
        own = case_exchange(alone, 32, 16, seed=4 + 10_000 * place)
        assert alone.outputs is not None
        assert (found.tokens[:, 0] == codec.first(task.task_token)).all()
        assert _symbols(found.tokens, codec.vocab) == _symbols(own.tokens, alone.codec.vocab)
        for name in ("targets", "swapped"):
            ids = (getattr(found, name).flatten().tolist(), getattr(own, name).flatten().tolist())
            assert [codec.outputs[i] for i in ids[0]] == [alone.outputs[i] for i in ids[1]]
        for name in ("base", "source", "scored"):
            assert torch.equal(getattr(found, name), getattr(own, name))
        assert found.components == tuple(part.name for part in task.layout.components)
        assert found.edges == set(task.labels("complete").edges)


def test_numbers_are_not_translated():
    numbers = tuple(
        Case(id=id, program=_fraction(value), vocab=(0, 1), max_seq_len=4)
        for id, value in (("ones", 1), ("zeros", 0))
    )
    ours = MultiCase(id="ours", cases=numbers)
    assert ours.codec.outputs is None
    for place, (found, alone) in enumerate(zip(exchanges_of(ours, 16, 4, 0), numbers, strict=True)):
        own = case_exchange(alone, 16, 4, 10_000 * place)
        assert torch.equal(found.targets, own.targets)
        assert torch.equal(found.swapped, own.swapped)
        pairs, plain = ours.tasks[place].pairs(4), alone.pairs(4)
        assert pairs.targets is not None
        assert plain.targets is not None
        assert torch.equal(pairs.targets, plain.targets)


def _fraction(value: int) -> rasp.SOp:
    flags = rasp.numerical(rasp.Map(lambda x: int(x == value), rasp.tokens))
    everywhere = rasp.Select(rasp.indices, rasp.indices, rasp.Comparison.TRUE)
    return rasp.numerical(rasp.Aggregate(everywhere, flags, default=0))


# Components


@pytest.mark.parametrize("labeling", ["interpbench", "complete"])
def test_a_circuit_in_the_model_is_the_programs_one_layer_up(labeling: str):
    ours = model("doubled", "previous", "same", shared=True)
    for task, alone in zip(ours.tasks, ours.cases, strict=True):
        up = {_one_up(edge) for edge in alone.labels(labeling).edges}
        assert set(task.labels(labeling).edges) == up
        assert task.graph == ours.graph
    assert (ours.graph.n_layers, ours.graph.n_heads) == (2, 4)


def _one_up(edge: str) -> str:
    return re.sub(r"\b([am])(\d+)", lambda found: f"{found[1]}{int(found[2]) + 1}", edge)


def test_layer_0_is_in_no_circuit():
    ours = model("doubled", "previous", "same", "smaller")
    for task in ours.tasks:
        assert not any(re.search(r"\b[am]0\b", edge) for edge in task.labels("complete").edges)
        assert task.layout.n_layers == 2
        assert task.layout.heads[0] == task.layout.functions[0] == ()


def test_heads_are_shared_or_of_each_programs_own():
    def heads(ours: MultiCase) -> list[set[str]]:
        return [{p.name for p in t.layout.components if p.is_head} for t in ours.tasks]

    assert heads(model("previous", "same", "doubled")) == [{"a1.h0"}, {"a1.h0"}, set()]
    own = heads(model("previous", "same", "doubled", shared=False))
    assert own == [{"a1.h0"}, {"a1.h1"}, set()]


def test_no_head_compares_tokens_in_two_ways():
    shared = model("same", "previous", "smaller")
    heads = [task.layout.components[0].name for task in shared.tasks]
    assert heads == ["a1.h0", "a1.h0", "a1.h1"]


def test_the_stream_widens_with_the_programs():
    assert model("same", "previous").subject_dims.d_model == 32
    many = tuple(replace(case("doubled"), id=f"d{number}") for number in range(6))
    assert MultiCase(id="ours", cases=many).subject_dims.d_model == 48
    dims = model("same", "previous", "doubled", "smaller").subject_dims
    assert (dims.d_model, dims.d_mlp, dims.n_layers, dims.n_heads) == (40, 160, 2, 4)


# Refusals


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        (("same",), "a model has 2 to 8 programs, got 1"),
        (("same", "same"), "each program stands in a model once, got same, same"),
    ],
)
def test_too_few_or_equal_programs_are_refused(cases: tuple[str, ...], message: str):
    with pytest.raises(ValueError, match=f"model 'ours': {message}"):
        model(*cases)


def test_programs_of_different_inputs_or_outputs_are_refused_with_every_reason():
    number = Case(id="ones", program=_fraction(1), vocab=(0, 1), max_seq_len=4, causal=True)
    with pytest.raises(
        ValueError,
        match=r"must have one max_seq_len, got same: 5, ones: 4; its programs must have one "
        r"attention mask, causal or not, got same: False, ones: True; its programs must have all "
        r"classes or all numbers as output, got same: True, ones: False\.$",
    ):
        MultiCase(id="ours", cases=(case("same"), number))


def test_a_task_that_is_a_token_is_refused():
    named = replace(case("same"), id="b", vocab=("a", "b"))
    other = replace(case("previous"), vocab=("a", "b"))
    with pytest.raises(ValueError, match="'b' is both a task and a token; give the case another"):
        MultiCase(id="ours", cases=(named, other))


def test_more_heads_than_allowed_are_refused():
    cases = tuple(replace(case("previous"), id=f"p{number}") for number in range(8))
    assert MultiCase(id="ours", cases=cases, shared=False).n_heads == MAX_HEADS
    wide = rasp.SequenceMap(lambda x, y: (x or 0) + y, previous(), counted(rasp.Comparison.EQ)())
    two = Case(id="two", program=wide, vocab=(0, 1, 2), max_seq_len=5)
    with pytest.raises(ValueError, match="need 9 in a layer, at most 8 are allowed; take fewer"):
        MultiCase(id="ours", cases=(*cases[:7], two), shared=False)


def test_constant_outputs_are_refused():
    constant = replace(case("same"), id="none", vocab=(7,))
    ours = MultiCase(id="ours", cases=(case("previous"), constant))
    with pytest.raises(ConstantOutputError, match="'ours@none': the output is the same for every"):
        exchanges_of(ours, 8, 4, 0)


def test_unknown_models_and_tasks_are_refused():
    last = multi_ids()[-1]
    with pytest.raises(ValueError, match=f"unknown model of several tasks 'mt-x'; .* to {last}"):
        load_case("mt-x@ib-3")
    # One that is for training, so that it does not ship, and of programs that are quickly made.
    programs = {id: multi_records()[id]["cases"] for id in multi_ids("pool")}
    id = next(id for id, names in programs.items() if all(n.startswith("ib-") for n in names))
    names = programs[id]
    with pytest.raises(ValueError, match=f"'{id}' is a model of several tasks; .*: {id}@"):
        load_case(id)
    with pytest.raises(ValueError, match=f"no task 'ib-3'; choose from {', '.join(names)}"):
        load_task(f"{id}@ib-3")
    with pytest.raises(FileNotFoundError, match=f"graphcircuits build {id}"):
        load_multi(id).subject()


# The models of the corpus


def test_models_hold_programs_of_one_split_and_one_fold():
    assert len(multi_ids("test")) >= 36
    assert len(multi_ids("pool")) >= 44
    assert sum(len(multi_ids(f"fold-{fold}")) for fold in range(N_FOLDS)) == len(multi_ids("pool"))
    held_out = set(case_ids(split="test"))
    for record in multi_records().values():
        cases = record["cases"]
        assert 2 <= len(cases) <= 8
        seeds = {id: random_seed(id) for id in cases}
        for id, seed in seeds.items():
            # No drawing: seeds past the index are the slow test's.
            if seed is None or seed < 4096:
                assert fold_of(id) == record.get("fold")
                if record["split"] == "test":
                    listed = id in held_out
                    assert listed or (seed is not None and "test" in random_facts(seed).splits)
    sizes = {len(multi_records()[id]["cases"]) for id in multi_ids("test")}
    assert sizes >= {2, 3, 4, 5, 8}
    assert {multi_records()[id]["shared"] for id in multi_ids("test")} == {True, False}


@pytest.mark.parametrize("id", some(multi_ids()[::6], fast=["mt-54"]))
def test_a_listed_model_is_one(id: str):
    loaded = load_multi(id)
    assert loaded.n_heads <= MAX_HEADS
    assert set.intersection(*(set(case.vocab) for case in loaded.cases))
    groups = [groups_of(case.id) for case in loaded.cases]
    assert len(set(groups)) == len(groups)
    record = multi_records()[id]
    assert {case.split for case in loaded.cases} == {record["split"]} == {loaded.split}
    task = loaded.tasks[-1]
    assert load_case(task.id) is task
    assert isinstance(task, TaskCase)
    assert (task.split, task.fold, task.group) == (loaded.split, record.get("fold"), id)
    assert task.subject_id == id
    assert len(task.circuit) > 0


def test_models_are_composed_of_what_goes_together():
    cases = [
        replace(case(name), id=f"{name}-{length}", group=name, max_seq_len=length)
        for name in PROGRAMS
        for length in (4, 5)
    ]
    made = compose(cases, 4)
    assert len(made) == 4
    assert [record["shared"] for record in made] == [True, False, True, False]
    assert [len(record["cases"]) for record in made] == [2, 3, 2, 4]
    for record in made:
        assert len({id.rpartition("-")[2] for id in record["cases"]}) == 1
    # Nothing goes with what has no token in common, or is related.
    apart = [case("same", vocab=(0, 1), group="g"), case("previous", vocab=(2, 3), group="h")]
    assert compose(apart, 1) == []
    assert compose([case("same", group="g"), case("previous", group="g")], 1) == []


def test_the_file_is_what_is_written():
    assert FILE.read_text("utf-8") == as_json(multi_records())


# Training


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_two_circuits_are_planted_in_one_model_and_the_rest_of_it_is_alive():
    ours = MultiCase(id="ours", cases=tuple(map(load_case, ("rnd-316", "rnd-1026"))), shared=False)
    dims, codec = ours.subject_dims, ours.codec
    config = TransformerConfig(
        n_layers=dims.n_layers,
        n_heads=dims.n_heads,
        d_head=dims.d_head,
        d_model=dims.d_model,
        d_mlp=dims.d_mlp,
        n_ctx=ours.max_seq_len,
        d_vocab=codec.d_vocab,
        d_vocab_out=codec.d_vocab_out,
        causal=ours.causal,
    )
    start = Transformer.random(config, torch.Generator().manual_seed(0), codec)
    train, check, unseen = (exchanges_of(ours, 512, 128, seed) for seed in (1, 2, 3))
    settings = SiitConfig(steps=600, rows=64, cut_rows=16, check_every=50)
    generator = torch.Generator().manual_seed(0)
    (trained,) = train_fleet([start], [train], [check], settings, generator)
    assert trained.passed
    subject = trained.subject
    (verdicts,) = verify_fleet([subject], [unseen], generator)
    for task, verdict in zip(ours.tasks, verdicts, strict=True):
        assert verdict.passes()
        assert audit(task, subject, task.pairs(64, seed=9)).complete >= 0.97
        xs = task.sample(1, generator)[0]
        assert subject.apply(xs, task=task.task_token) == task.evaluate(xs)
    found = vitality(ours, subject)
    assert {"a1.h1", "m1"} <= found.needed("rnd-1026")
    assert found.needed("rnd-316") == {"a1.h0"}
    # Whatever is outside a circuit is not needed there, and half of it is by the other task.
    summary = found.summary()
    assert summary["outside_needed_by_itself"] == 0
    assert summary["outside_needed_by_another"] >= 1
    # It is told its task by layer 0.
    assert summary["answers_with_layer_0_of_another"] < 0.7
