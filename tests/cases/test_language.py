"""Planted language models: where their calls lie, what is asked of them, and how they are told."""

import re
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.cases import LANGUAGE, N_FOLDS, Case, case_ids, load_case, split_records
from graphcircuits.cases.calls import AB, BRACKETS, CALLS, GIVES, Call, at
from graphcircuits.cases.language import (
    CONTEXT,
    CallCase,
    Design,
    LanguageModel,
    language_records,
    load_language,
    planted_layout,
)
from graphcircuits.cases.multitask import can_share
from graphcircuits.cases.orders import Order, shipped_path
from graphcircuits.cases.roles import KINDS
from graphcircuits.cases.tokens import (
    ALPHABET,
    END,
    UNKNOWN,
    merges,
    pieces,
    text_codec,
    word_ids,
)
from graphcircuits.engine.masked import ablated_writers, masked_logits
from graphcircuits.rasp.compile import CompiledModel, _transformer
from graphcircuits.rasp.layout import Component, complete_edges, lay_out
from graphcircuits.rasp.weights import stream_of, write_weights
from graphcircuits.subject.files import save_transformer
from graphcircuits.subject.transformer import Transformer
from tests.tiers import some

pytestmark = pytest.mark.usefixtures("unchecked")

IDS = case_ids("plm")
SIZES = (1000, 2000, 4000, 8000)


@cache
def loaded(id: str) -> CallCase:
    case = load_case(id)
    assert isinstance(case, CallCase)
    return case


def own_model(*calls: Call, **changes: Any) -> LanguageModel:
    design = Design(architecture="gpt2", layers=3, heads=2, width=16, vocabulary=1000)
    places = {call.name: {one.name: one.name for one in lay_out(call.tables).components}
              for call in calls}  # fmt: skip
    return LanguageModel(**({"id": "mine", "design": design, "calls": calls, "places": places}
                            | changes))  # fmt: skip


# The truth, of the program


def reads(call: Call) -> dict[str, dict[str, tuple[str, ...]]]:
    return {one.name: dict(one.reads) for one in planted_layout(call).components}


def test_constants_are_left_out_of_a_layout() -> None:
    """By hand: which position is looked at, and for which letter, is the same for all prompts."""
    assert reads(CALLS["first"]) == {"a0.h0": {"q": (), "k": (), "v": ("tokens",)}}
    layout = planted_layout(CALLS["count"])
    head, mlp = layout.components
    assert dict(head.reads) == {"q": (), "k": ("tokens",), "v": ()}
    assert mlp.reads["in"] == head.writes
    assert mlp.writes == (layout.result,)
    # The letter that is looked for is a component of the program alone.
    assert [one.name for one in lay_out(CALLS["count"].tables).components] == ["m0", "a1.h0", "m1"]
    assert [one.name for one in layout.components] == ["a1.h0", "m1"]


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("first", {"input->a0.h0<v>", "a0.h0->logits"}),
        ("where", {"input->a1.h0<k>", "a1.h0->logits"}),
        ("count", {"input->a1.h0<k>", "a1.h0->m1", "m1->logits"}),
        ("shift", {"input->a0.h0<v>", "a0.h0->m0", "m0->logits"}),
        ("flip", {"input->m0", "m0->a1.h0<v>", "a1.h0->logits"}),
        (
            "add",
            {"input->a0.h0<v>", "input->a0.h1<v>", "a0.h0->m0", "a0.h1->m0", "m0->logits"},
        ),
        (
            "tally",
            {"input->a0.h0<v>", "a0.h0->a1.h0<q>", "input->a1.h0<k>", "a1.h0->m1", "m1->logits"},
        ),
        (
            "follow",
            {"input->a0.h0<v>", "a0.h0->a1.h0<q>", "a0.h0->a1.h0<k>", "input->a1.h0<v>",
             "a1.h0->logits"},
        ),
        (
            "hop",
            {"input->a0.h0<v>", "a0.h0->m0", "m0->a1.h0<q>", "input->a1.h0<v>", "a1.h0->logits"},
        ),
    ],
)  # fmt: skip
def test_circuits_by_hand(name: str, edges: set[str]) -> None:
    assert complete_edges(planted_layout(CALLS[name])) == edges


def as_weights(call: Call) -> CompiledModel:
    """The program as exact weights; on inputs that are never asked about they may be wrong."""
    tables = call.tables
    layout, stream = lay_out(tables), stream_of(tables)
    transformer = _transformer(tables, layout, write_weights(tables, layout, stream))
    return CompiledModel(transformer, tables, layout, stream)


@pytest.mark.parametrize("name", some(CALLS, ("first", "count", "flip", "twice", "recall")))
def test_the_circuit_is_all_that_prompts_can_tell_and_no_more(name: str) -> None:
    """In a model that computes the program exactly, each edge of the circuit matters to some
    answer, and all others together to none."""
    call, n = CALLS[name], 100
    exact = as_weights(call)
    generator = torch.Generator().manual_seed(0)
    clean, corrupted = (
        torch.stack([
            exact._encode([*words, GIVES, *call.answer(words)[:-1]])
            for words in call.sample(n, generator)
        ])
        for _ in range(2)
    )  # fmt: skip
    circuit = complete_edges(planted_layout(call))
    assert circuit <= exact.circuit.edges
    names = list(exact.graph.edge_names)
    alone = torch.tensor([name in circuit for name in names])
    masks = torch.ones(len(circuit) + 2, len(names))
    masks[1] = alone
    for row, place in enumerate(alone.nonzero().flatten().tolist(), start=2):
        masks[row, place] = 0
    given = ablated_writers(exact.transformer, corrupted)
    columns = slice(clean.shape[1] - call.answers, None)
    logits = masked_logits(exact.transformer, clean, masks, given, columns=columns)
    answers = logits.argmax(-1)
    assert torch.equal(answers[1], answers[0])
    changed = (answers[2:] != answers[0]).any(-1).float().mean(-1)
    assert changed.min() >= 0.1


# The truth, in a model


def writer_of(label: str, components: tuple[Component, ...]) -> Component | None:
    """Who writes a variable; None for the embedding."""
    return next((one for one in components if label in one.writes), None)


def comes_before(writer: Component, reader: Component, parallel: bool) -> bool:
    if writer.layer != reader.layer:
        return writer.layer < reader.layer
    return writer.is_head and not reader.is_head and not parallel


def group_of(case: CallCase, head: str) -> tuple[str, int]:
    layer, _, number = head.partition(".h")
    graph = case.graph
    return layer, int(number) * graph.n_groups // graph.n_heads


@pytest.mark.parametrize("model", language_records())
def test_components_stand_where_the_program_can_run(model: str) -> None:
    for case in load_language(model).cases:
        design, graph = case.model.design, case.graph
        assert (graph.n_layers, graph.n_heads) == (design.layers, design.heads)
        components = case.layout.components
        # Where there are several calls, layer 0 is for telling them apart.
        first = 0 if len(case.model.calls) == 1 else 1
        for one in components:
            assert one.name in graph.writer_names
            assert int(one.name[1:].partition(".")[0]) == one.layer >= first
            assert one.is_head == (one.name[0] == "a")
            for label in {label for slot in one.reads.values() for label in slot} - {"tokens"}:
                writer = writer_of(label, components)
                assert writer is not None
                assert comes_before(writer, one, graph.parallel)
        assert len({one.name for one in components}) == len(components)
        heads = [one.name for one in components if one.is_head]
        assert len({group_of(case, head) for head in heads}) == len(heads)
        layers = [one.layer for one in components]
        assert layers == sorted(layers)
        assert (case.layout.n_layers, case.layout.n_heads) == (
            1 + max(layers),
            1 + max(int(head.partition(".h")[2]) for head in heads),
        )


@pytest.mark.parametrize("model", language_records())
def test_calls_use_the_same_heads_where_they_may(model: str) -> None:
    parts: dict[str, list[Component]] = {}
    for case in load_language(model).cases:
        for one in case.layout.components:
            parts.setdefault(one.name, []).append(one)
    for name, several in parts.items():
        if ".h" in name and not load_language(model).shared:
            assert len(several) == 1
        elif ".h" in name:
            assert all(can_share(a, b) for i, a in enumerate(several) for b in several[:i])


def paths(edges: frozenset[str]) -> dict[str, set[str]]:
    """Who follows whom; the inputs of a component are one place."""
    after: dict[str, set[str]] = {}
    for edge in edges:
        writer, _, reader = edge.partition("->")
        # Of grouped heads a key is named by the group, so that any of its heads may read it.
        after.setdefault(writer, set()).add(re.sub(r"<.>$", "", reader))
    return after


def reached(start: str, after: dict[str, set[str]]) -> set[str]:
    found, left = {start}, [start]
    while left:
        new = after.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


@pytest.mark.parametrize("id", IDS)
def test_a_circuit_leads_from_the_input_to_the_logits(id: str) -> None:
    case = loaded(id)
    edges = case.circuit.edges
    grouped = case.graph.n_groups < case.graph.n_heads
    after = paths(edges)
    if grouped:
        for one in case.layout.components:
            if one.is_head:
                layer, group = group_of(case, one.name)
                after.setdefault(f"{layer}.g{group}", set()).add(one.name)
    assert edges
    assert "logits" in reached("input", after)
    # Nothing in it leads nowhere.
    named = {one.name for one in case.layout.components}
    assert named <= reached("input", after)
    assert all("logits" in reached(name, after) for name in named)
    # It is the program's own circuit in other places.
    places = case.model.places[case.call.name]
    own = complete_edges(planted_layout(case.call))
    moved = {re.sub(r"[am]\d+(\.h\d+)?", lambda found: places[found[0]], edge) for edge in own}
    assert complete_edges(case.layout) == moved
    assert len(case.circuit) == len(own)


def test_circuits_with_places_by_hand() -> None:
    assert case_edges("plm-0@count") == {"input->a1.h3<k>", "a1.h3->m1", "m1->logits"}
    model = own_model(
        CALLS["follow"],
        design=Design(architecture="llama-gqa", layers=3, heads=4, width=16, vocabulary=1000),
        places={"follow": {"a0.h0": "a1.h3", "a1.h0": "a2.h1"}},
    )
    assert set(model.case("follow").circuit.edges) == {
        "input->a1.g1<v>",
        "a1.h3->a2.h1<q>",
        "a1.h3->a2.g0<k>",
        "input->a2.g0<v>",
        "a2.h1->logits",
    }


def case_edges(id: str) -> set[str]:
    return set(loaded(id).circuit.edges)


@pytest.mark.parametrize("id", some(IDS, fast=IDS[::7]))
def test_roles_are_told_of_every_component(id: str) -> None:
    case = loaded(id)
    names = [one.name for one in case.layout.components]
    assert list(case.roles) == list(case.variables) == names
    for name, role in case.roles.items():
        assert (role.component, role.kind in KINDS) == (name, True)
        assert role.text


def test_roles_by_hand() -> None:
    roles = loaded("plm-0@count").roles
    assert roles["a1.h3"].kind == roles["m1"].kind == "count"
    assert roles["m1"].text.startswith("turns what a1.h3 gathered into the count ")
    assert loaded("plm-3@predict").roles["a2.h2"].kind == "previous-token"
    assert loaded("plm-3@sort").roles["m4"].kind == "map"
    assert loaded("plm-0@shift").roles["a1.h3"].kind == "fixed-position"


# Prompts

CUT_UP = {"last"}
"""Calls whose names the tokenizers cut up, since merges of other words come before theirs (`s t`
before `a s`). It should be empty, and is once the merges keep the order in which they were learned.
"""


@pytest.mark.parametrize(
    "id",
    some(
        [id for id in IDS if id.partition("@")[2] not in CUT_UP],
        fast=["plm-0@count", "plm-3@sort", "plm-14@first"],
    ),
)
def test_pairs_are_texts_with_other_answers(id: str) -> None:
    case, n = loaded(id), 12
    pairs, call = case.pairs(n, seed=3), case.call
    tokenizer = case.model.tokenizer()
    generator = torch.Generator().manual_seed(3)
    assert pairs.targets is not None
    assert (pairs.case, pairs.task, pairs.loss_name) == (id, call.task, "cross-entropy")
    assert pairs.scored.sum(1).tolist() == [call.answers] * n
    assert pairs.scored[:, -call.answers :].all()
    for row, words in enumerate(call.sample(n, generator)):
        assert [END, case.prompt(words)] == parts(tokenizer, pairs.clean[row])
        text = call.text(words)
        assert text.startswith(case.prompt(words))
        # What stands one position later in the whole text is what is asked for.
        whole = [0, *tokenizer(text)["input_ids"]]
        assert len(whole) == pairs.clean.shape[1] + 1
        wanted = torch.tensor(whole)[1:][pairs.scored[row]]
        assert torch.equal(pairs.targets[row][pairs.scored[row]], wanted)
        start, rest = parts(tokenizer, pairs.corrupted[row])
        name, colon, *other = rest.split(" ")
        assert (start, name, colon) == (END, call.name, ":")
        assert call.answer(other[: call.length]) != call.answer(words)
        assert other == case.window(other[: call.length])
    again, differently = case.pairs(n, seed=3), case.pairs(n, seed=4)
    assert torch.equal(pairs.clean, again.clean)
    assert torch.equal(pairs.corrupted, again.corrupted)
    assert not torch.equal(pairs.clean, differently.clean)


def parts(tokenizer: Any, ids: torch.Tensor) -> list[str]:
    """The first token, and the text of all others."""
    first, *others = ids.tolist()
    return [tokenizer.decode([first]), tokenizer.decode(others)]


def test_a_prompt_by_hand() -> None:
    case = loaded("plm-3@sort")
    assert case.window([*"baba"]) == [*"baba", "=", *"aab"]
    assert case.prompt([*"baba"]) == "sort : b a b a = a a b"
    (window,) = case.sample(1, torch.Generator().manual_seed(0))
    assert window == case.window(window[:4])
    assert list(map(str, case.evaluate(window)[4:])) == case.call.answer(window[:4])


def test_wrong_counts_of_pairs_and_answers_that_are_all_alike() -> None:
    case = loaded("plm-0@count")
    with pytest.raises(ValueError, match="n must be at least 1 pair, got 0"):
        case.pairs(0)
    with pytest.raises(TypeError, match=r"n must be a whole number of pairs, got 2\.0"):
        case.pairs(2.0)  # pyright: ignore[reportArgumentType]
    alike = Call(name="same", program=at(0), words=("a",), length=2)
    with pytest.raises(ValueError, match=r"'same': hardly any input is answered unlike \['a', 'a"):
        own_model(alike).case("same").pairs(1)


# Tokens


def test_merges_are_of_what_was_merged_before() -> None:
    known = set(ALPHABET)
    for left, right in merges():
        assert {left, right} <= known
        assert left + right not in known
        known.add(left + right)
    assert len(known) + 2 == max(SIZES)


def test_a_smaller_vocabulary_is_the_beginning_of_a_larger_one() -> None:
    largest = pieces(merges(), max(SIZES))
    for size in SIZES:
        own = pieces(merges(), size)
        assert len(own) == size - 2
        assert largest[: len(own)] == own
        assert all(word_ids(call, size) == word_ids(call, 8000) for call in CALLS.values())


@cache
def tokenizer_of(size: int) -> Any:
    design = Design(architecture="gpt2", layers=2, heads=2, width=8, vocabulary=size)
    return own_model(CALLS["count"], design=design).tokenizer()


@pytest.mark.parametrize("name", CALLS)
def test_a_text_of_a_call_has_a_token_for_each_word(name: str) -> None:
    call = CALLS[name]
    (words,) = call.sample(1, torch.Generator().manual_seed(0))
    others = [word for word in call.spoken if word != name]
    for text in (call.text(words), " ".join([name, *others])):
        for size in SIZES:
            ids = word_ids(call, size)
            found = tokenizer_of(size)(text)["input_ids"]
            assert (found == [ids[word] for word in text.split()]) == (name not in CUT_UP)


@pytest.mark.parametrize("size", SIZES)
def test_a_tokenizer_reads_any_plain_text(size: int) -> None:
    tokenizer = tokenizer_of(size)
    assert len(tokenizer) == size
    assert tokenizer.eos_token_id == tokenizer.bos_token_id == 0
    assert tokenizer.unk_token_id == 1
    text = "Plain text, of 12 words:\n    it comes back (as it was)!\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_codec_has_the_tokens_of_the_tokenizer() -> None:
    case = loaded("plm-0@count")
    codec, tokenizer = case.codec, case.model.tokenizer()
    assert codec.d_vocab == codec.d_vocab_out == case.model.design.vocabulary
    ids = tokenizer("count : a b = 1")["input_ids"]
    words = [tokenizer.decode([id]) for id in ids]
    assert words == ["count", " :", " a", " b", " =", " 1"]
    assert codec.encode(words).tolist() == [0, *ids]
    logits = torch.eye(codec.d_vocab_out)[[7, *ids]]
    assert list(codec.decode(logits)) == words
    assert codec.outputs is not None
    assert codec.outputs[:2] == (END, UNKNOWN)
    assert text_codec(1000) is codec


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            Call(name="zyzzyvas", program=at(0)),
            "call 'zyzzyvas': every word must be one token of the 1000, and 'zyzzyvas' is not; "
            "use a shorter or more common word.",
        ),
        (
            Call(name="first", program=at(0), words=("a", "syzygy", "b c")),
            "call 'first': every word must be one token of the 1000, and 'syzygy', 'b c' is not; "
            "use a shorter or more common word.",
        ),
        (
            Call(name="a", program=at(0), words=AB),
            "call 'a': its name must not be one of its words or answers; give it another one.",
        ),
        (
            Call(name="yes", program=CALLS["balance"].program, words=BRACKETS),
            "call 'yes': its name must not be one of its words or answers; give it another one.",
        ),
    ],
)
def test_words_that_are_no_token_are_refused(call: Call, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        word_ids(call, 1000)


# Models


@pytest.mark.parametrize("architecture", ["gpt2", "neox", "llama", "llama-gqa"])
def test_a_design_is_a_transformer(architecture: str) -> None:
    design = Design(architecture=architecture, layers=2, heads=4, width=48, vocabulary=1000)
    config = design.config
    assert (config.n_ctx, config.d_vocab, config.d_vocab_out) == (CONTEXT, 1000, 1000)
    assert (config.d_model, config.d_head, config.causal) == (48, 12, True)
    subject = Transformer.random(config, torch.Generator().manual_seed(0))
    assert subject.graph == design.graph
    assert design.graph.n_groups == (2 if architecture == "llama-gqa" else 4)
    assert design.graph.parallel == (architecture == "neox")


def test_cases_of_a_model() -> None:
    model = load_language("plm-0")
    assert [case.id for case in model.cases] == ["plm-0@shift", "plm-0@count"]
    assert model.cases is load_language("plm-0").cases
    case = model.case("count")
    assert load_case("plm-0@count") is case
    assert (case.subject_id, case.name, case.task) == (
        "plm-0",
        "count in plm-0",
        "How often `a` comes up.",
    )
    assert (case.family, case.split, case.fold) == (LANGUAGE, "test", None)
    assert case.group == "rnd:e1e19d6dd83d"
    assert repr(case) == "Case('plm-0@count', 'count in plm-0', split='test')"
    assert own_model(CALLS["count"]).cases[0].family == "own"


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("plm-99@sort", "unknown planted language model 'plm-99'; there are plm-0 to plm-23."),
        ("plm-x", "unknown planted language model 'plm-x'; there are plm-0 to plm-23."),
        (
            "plm-0",
            "'plm-0' is a model that answers several calls; choose from plm-0@shift, plm-0@count.",
        ),
        ("plm-0@sort", "the model 'plm-0' has no call 'sort'; choose from shift, count."),
    ],
)
def test_unknown_models_and_calls_are_refused(id: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        load_case(id)


def test_own_models_have_no_name_of_the_benchmark() -> None:
    with pytest.raises(ValueError, match="the id 'plm-7@count' is like those of the corpus, whic"):
        _ = own_model(CALLS["count"], id="plm-7").cases
    with pytest.raises(ValueError, match="the id 'plm-mine' is like those of the corpus"):
        Case(id="plm-mine", program=at(0), vocab=AB, max_seq_len=3)


# The benchmark


def test_lists_of_cases() -> None:
    assert set(IDS).isdisjoint(case_ids())
    assert case_ids("plm", "test")[:3] == ["plm-0@shift", "plm-0@count", "plm-1@carry"]
    folds = [case_ids("plm", f"fold-{fold}") for fold in range(N_FOLDS)]
    assert all(folds)
    assert sorted(chain.from_iterable(folds)) == sorted(case_ids("plm", "pool"))
    assert sorted(case_ids("plm", "test") + case_ids("plm", "pool")) == sorted(IDS)
    assert case_ids("plm", "discarded") == []
    with pytest.raises(ValueError, match="unknown family 'plx'; choose from ib, tb, new, plm"):
        case_ids("plx")


def test_no_group_is_in_two_parts() -> None:
    parts: dict[str, set[tuple[str, int | None]]] = {}
    for record in language_records().values():
        part = (record["split"], record.get("fold"))
        assert record["split"] == "test" or record["fold"] in range(N_FOLDS)
        assert list(record["groups"]) == list(record["places"])
        for group in record["groups"].values():
            parts.setdefault(group, set()).add(part)
    assert all(len(found) == 1 for found in parts.values()), parts
    # What is related to listed cases is where these are.
    for group, ((split, fold),) in parts.items():
        if (listed := split_records().get(group)) is not None:
            pool = listed["split"] == "pool"
            assert (split, fold) == (("pool", listed["fold"]) if pool else ("test", None))


def test_calls_of_one_structure_are_of_one_group() -> None:
    groups: dict[str, set[str]] = {}
    shapes: dict[frozenset[str], set[str]] = {}
    for record in language_records().values():
        for name, group in record["groups"].items():
            groups.setdefault(name, set()).add(group)
            shapes.setdefault(complete_edges(lay_out(CALLS[name].tables)), set()).add(group)
    assert groups.keys() == CALLS.keys()
    assert all(len(found) == 1 for found in groups.values())
    assert all(len(found) == 1 for found in shapes.values())


# Subjects


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Transformer]:
    """An empty package, and what puts a random model into it."""
    monkeypatch.setattr("graphcircuits.cases.orders.files", lambda _: tmp_path)

    def put(id: str) -> Transformer:
        model = load_language(id)
        generator = torch.Generator().manual_seed(0)
        codec = text_codec(model.design.vocabulary)
        made = Transformer.random(model.design.config, generator, codec)
        meta = {"report": {"case": id}}
        save_transformer(shipped_path(Order(id)), made, meta=meta)
        return made

    return put


def test_what_ships_is_read(ship: Callable[[str], Transformer]) -> None:
    made, case = ship("plm-0"), loaded("plm-0@count")
    assert case.shipped() == Order("plm-0", LANGUAGE)
    subject = case.subject()
    for fleet in ("planted", "language"):
        for architecture in (None, "plain", "gpt2"):
            assert case.shipped(fleet, architecture) == Order("plm-0", LANGUAGE)
            subject = case.subject(fleet, architecture)
            assert (subject.case, subject.name) == ("plm-0@count", "plm-0@count")
            assert torch.equal(subject.weights["W_E"], made.weights["W_E"])
    assert case.report() == {"case": "plm-0"}
    pairs = case.pairs(2)
    assert subject.graph == case.graph
    assert subject.logits(pairs.clean).shape == (*pairs.clean.shape, 1000)


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        (
            (),
            FileNotFoundError,
            "plm-8 is not shipped, as the models of the pool are not; make it in a clone of the "
            "repository: python -m lab.factory planted DIR --models plm-8, and read it with "
            "graphcircuits.load_transformer.",
        ),
        (
            ("language", "llama"),
            ValueError,
            "there is one plm-8, and no other of architecture llama and seed 0.",
        ),
        (
            ("language", None, 3),
            ValueError,
            "there is one plm-8, and no other of architecture None and seed 3.",
        ),
        (
            ("natural",),
            ValueError,
            "plm-8 is a planted language model, and there is no natural one.",
        ),
    ],
)
def test_what_does_not_ship(wanted: tuple[Any, ...], error: type[Exception], message: str) -> None:
    case = load_language("plm-8").cases[0]
    for ask in (case.shipped, case.subject, case.report):
        with pytest.raises(error, match=f"^{re.escape(message)}$"):
            ask(*wanted)


# A file of one's own


def test_a_model_of_ones_own_is_read_from_its_file(tmp_path: Path) -> None:
    made, path = own_model(CALLS["count"], CALLS["flip"], seed=4), tmp_path / "own.safetensors"
    report = {
        "fleet": LANGUAGE,
        "case": made.id,
        "design": asdict(made.design),
        "places": made.places,
        "shared": made.shared,
    }
    codec = text_codec(made.design.vocabulary)
    subject = Transformer.random(made.design.config, torch.Generator().manual_seed(0), codec)
    save_transformer(path, subject, seed=4, meta={"report": report})
    read = LanguageModel.read(path, [CALLS["flip"], CALLS["sort"], CALLS["count"]])
    assert [call.name for call in read.calls] == ["count", "flip"]
    for name in ("id", "design", "places", "shared", "seed", "split"):
        assert getattr(read, name) == getattr(made, name)
    assert read.case("flip").circuit == made.case("flip").circuit
    with pytest.raises(ValueError, match=r"has calls that were not given: flip\.$"):
        LanguageModel.read(path, [CALLS["count"]])
    save_transformer(path, subject)
    with pytest.raises(ValueError, match=r"own\.safetensors holds no planted language model\.$"):
        LanguageModel.read(path, [])
    with pytest.raises(FileNotFoundError, match="mine is a model of your own; read its file"):
        made.case("flip").subject()
