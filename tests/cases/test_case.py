"""Cases as values: finding them, their errors, their samplers, their labels."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator

from graphcircuits import rasp
from graphcircuits.cases import Case, SubjectDims, case_ids, load_case, stored
from graphcircuits.cases.samplers import draw
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods.shipped import blind_to


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def own_case(**changes: Any) -> Case:
    fields: dict[str, Any] = {
        "id": "mine",
        "name": "double",
        "task": "Twice the token.",
        "program": rasp.Map(lambda x: 2 * x, rasp.tokens),
        "vocab": (0, 1, 2),
        "max_seq_len": 4,
    }
    return Case(**(fields | changes))


# Finding cases


def test_ids_come_in_number_order_and_the_splits_divide_them():
    *paper, last = case_ids("ib")
    numbers = [int(id.removeprefix("ib-")) for id in paper]
    assert numbers == sorted(numbers)
    assert (len(numbers), last) == (84, "ib-13-fixed")
    for splits, whole in [
        (("test", "held-out", "pool", "discarded"), None),
        (tuple(f"fold-{fold}" for fold in range(5)), "pool"),
        (("paper-test", "paper-pool", "paper-discarded"), "paper"),
    ]:
        parts = [case_ids(split=split) for split in splits]
        assert sorted(id for part in parts for id in part) == sorted(case_ids(split=whole))
    assert case_ids(split="paper") == paper
    assert [len(case_ids(split=f"paper-{x}")) for x in ("test", "pool", "discarded")] == [
        16,
        26,
        42,
    ]


def test_loading_a_case_twice_gives_the_same_value():
    assert load_case("ib-3") is load_case("ib-3")
    assert load_case("ib-3").family == "ib"


def test_a_case_knows_its_place():
    held_out, pool, discarded, new = map(load_case, ("ib-3", "ib-103", "ib-106", "new-argsort"))
    assert (held_out.split, held_out.paper_split, held_out.fold) == ("test", "test", None)
    assert (pool.split, pool.paper_split, pool.group) == ("pool", "pool", "ib-93")
    assert pool.id in case_ids(split=f"fold-{pool.fold}")
    assert (discarded.split, discarded.paper_split) == ("discarded", "pool")
    assert (new.split, new.paper_split) == ("pool", None)
    assert (own_case().split, own_case().paper_split) == (None, None)


def test_listing_cases_does_not_load_torch():
    script = (
        "import sys, graphcircuits\n"
        "cases = [graphcircuits.load_case(id) for id in graphcircuits.case_ids()]\n"
        "assert all(case.task and case.program is not None for case in cases)\n"
        "assert cases[0].outputs\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_case("reverse"), r"unknown case 'reverse'; did you mean ib-2 \(reverse\)"),
        (
            lambda: load_case("ib103"),
            r"unknown case 'ib103'; did you mean ib-103 \(swap-consecutive\)",
        ),
        (lambda: load_case("?"), r"unknown case '\?'; `graphcircuits cases` lists all cases"),
        (lambda: case_ids(family="xx"), r"unknown family 'xx'; choose from ib"),
        (lambda: case_ids(split="train"), r"unknown split 'train'; choose from test, pool, disc"),
        (lambda: load_case("ib-2").labels("all"), r"unknown labeling 'all'; choose from complete"),
        (
            lambda: load_case("tb-sort").labels("paper"),
            r"'tb-sort' is none of the paper's, which .* use labels\('complete'\) or",
        ),
    ],
)
def test_unknown_names_are_answered_with_the_known_ones(call: Callable[[], object], message: str):
    with pytest.raises(ValueError, match=message):
        call()


# Case as a value


@pytest.mark.usefixtures("unchecked")
def test_a_program_of_ones_own_needs_no_more_than_its_inputs():
    """Compiled model, pairs, graph and labels, against the program itself."""
    shifted = rasp.Map(lambda x: {"a": "b", "b": "c", "c": "a"}[x], rasp.tokens)
    letters: Any = {"c", "a", "b"}
    case = Case(id="mine", program=shifted, vocab=letters, max_seq_len=4)
    assert case.program is shifted
    assert (case.name, case.task, case.causal, case.vocab) == ("mine", "", False, ("a", "b", "c"))
    assert (case.family, case.split, case.group) == ("own", None, None)
    assert case.compiled.apply(["a", "c"]) == case.evaluate(["a", "c"]) == ["b", "a"]
    assert case.circuit.edges == case.labels("complete").edges == {"input->m0", "m0->logits"}
    assert case.circuit.graph == case.graph
    pairs = case.pairs(8)
    assert (len(pairs), pairs.case, pairs.loss_name) == (8, "mine", "kl")
    codec = case.compiled.transformer.codec
    assert codec is not None
    assert pairs.targets is not None
    for ids, target in zip(pairs.clean, pairs.targets, strict=True):
        xs = [codec.vocab[id - 2] for id in ids[1:].tolist()]
        assert codec.decode(target) == case.evaluate(xs)
    # No shipped predictor has seen it.
    assert blind_to(case.id) == "default"
    # Lists and their order are kept; two cases are not one, be their words the same.
    assert own_case(vocab=[2, 0, 1]).vocab == (2, 0, 1)
    assert own_case() != own_case()


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_program_is_refused():
    with pytest.raises(
        TypeError, match=r"'mine': program must be a sequence expression of gr.* 3;"
    ):
        own_case(program=3)
    with pytest.raises(TypeError, match=r"program must be .*; call the function that makes it\."):
        own_case(program=lambda: rasp.tokens)


@pytest.mark.parametrize("id", ["ib-3", "new-thing", "tb-", "rnd-1", "mt-0", "plm-3"])
def test_an_own_case_claims_no_id_of_the_corpus(id: str):
    starts = "ib-, tb-, new-, rnd-, mt-, plm-"
    message = f"the id '{id}' is like those of the corpus, which begin with {starts}; give a"
    with pytest.raises(ValueError, match=message):
        own_case(id=id)
    # A listed case under other settings stays that case.
    assert replace(load_case("ib-3"), max_seq_len=7).id == "ib-3"


@pytest.mark.parametrize("id", ["", "a/b", "../b"])
def test_an_id_is_the_name_of_a_file(id: str):
    with pytest.raises(ValueError, match="an id must be a name that a file can have, got '"):
        own_case(id=id)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "--vocab 0,1,2 --max-seq-len 4"),
        (
            {"vocab": ("1", "a b"), "causal": True},
            '--vocab \'["1", "a b"]\' --max-seq-len 4 --causal',
        ),
    ],
)
def test_a_subject_of_ones_own_is_built_by_a_command(changes: dict[str, Any], words: str):
    said = (
        "no subject for case 'mine' is shipped; build it with: graphcircuits build --program "
        f"FILE.py:NAME {words}, and read what it writes with graphcircuits.load_transformer, or "
        "train it here with case.train().subject"
    )
    for ask in (own_case(**changes).subject, own_case(**changes).report):
        with pytest.raises(FileNotFoundError) as caught:
            ask()
        assert str(caught.value) == said


def test_a_listed_case_without_a_subject_is_built_by_its_id():
    case = replace(load_case("ib-3"), id="ib-0")
    with pytest.raises(FileNotFoundError, match=r"build it with: graphcircuits build ib-0$"):
        case.subject()


def test_evaluate_follows_the_causal_flag():
    count = rasp.SelectorWidth(rasp.Select(rasp.tokens, rasp.tokens, rasp.Comparison.TRUE))
    assert own_case(program=count, causal=True).evaluate([0, 0, 0]) == [1, 2, 3]
    assert own_case(program=count, causal=False).evaluate([0, 0, 0]) == [3, 3, 3]


def test_outputs_are_the_classes_of_a_categorical_program_only():
    assert own_case().outputs == (0, 2, 4)
    assert load_case("ib-13").outputs == ("constant", "decreasing", "increasing")
    assert load_case("ib-3").outputs is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab": ()}, r"'mine': vocab must hold distinct tokens, at least one, got \(\)"),
        ({"vocab": (0, 1, 0)}, r"vocab must hold distinct tokens"),
        ({"max_seq_len": 1}, r"2 <= min_seq_len <= max_seq_len; got min_seq_len=2, max_seq_len=1"),
        ({"min_seq_len": 1}, r"got min_seq_len=1, max_seq_len=4"),
    ],
)
def test_impossible_inputs_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        own_case(**changes)


def test_a_program_without_tables_says_why_it_has_no_circuit():
    case = own_case(
        program=rasp.LinearSequenceMap(rasp.tokens, rasp.tokens, 1.0, 1.0),
        released_dims=SubjectDims(2, 4, 1, 4, 16),
    )
    with pytest.raises(rasp.RaspError, match=r"case 'mine': 1 expressions? cannot be compiled: "):
        _ = case.circuit


def test_a_subject_without_a_public_one_is_sized_from_the_compiled_model():
    # Half the width of the compiled head, which the public subjects of later cases have too.
    public = load_case("ib-2")
    assert replace(public, released_dims=None).subject_dims == public.subject_dims
    assert own_case().subject_dims == SubjectDims(2, 4, 4, 16, 64)
    assert own_case().circuit.edges == {"input->m0", "m0->logits"}
    assert own_case().graph.n_edges == 110


# Labels


def test_the_labels_of_ib_3_name_the_compiled_head_and_the_published_list_another():
    case = load_case("ib-3")
    expected = {
        "input->m0",
        "input->a1.h0<q>",
        "input->a1.h0<k>",
        "m0->a1.h0<v>",
        "a1.h0->logits",
    }
    assert case.circuit.edges == case.labels("complete").edges == expected
    assert {edge.replace("a1.h0", "a1.h2") for edge in expected} < case.labels("paper").edges


@pytest.mark.slow
@pytest.mark.parametrize("id", ["ib-13", "ib-19", "ib-97", "ib-113", "ib-130"])
def test_complete_labels_add_to_the_official_ones(id: str):
    case = load_case(id)
    assert case.labels("interpbench").edges < case.circuit.edges == case.labels("complete").edges


def test_labels_of_a_graph_with_grouped_keys_name_the_groups():
    case = load_case("ib-13")
    grouped = ComponentGraph(2, 4, n_kv_heads=2)
    found = case.labels("complete", grouped)
    assert found.graph == grouped
    expected = {
        re.sub(r"h(\d)(<[kv]>)", lambda m: f"g{int(m[1]) // 2}{m[2]}", edge)
        for edge in case.labels("complete").edges
    }
    assert found.edges == expected != case.labels("complete").edges
    assert case.labels("complete", case.graph) == case.labels("complete")


# Samplers


def test_samples_have_full_length_and_cover_the_vocabulary():
    case = load_case("ib-3")
    rows = case.sample(200, seeded())
    assert len(rows) == 200
    assert {len(row) for row in rows} == {case.max_seq_len - 1}
    assert {token for row in rows for token in row} == set(case.vocab)
    assert rows == case.sample(200, seeded())
    assert rows != case.sample(200, seeded(1))


def test_uniform_tokens_are_uniform_at_every_position():
    rows = draw("uniform", "abcd", 3, 8000, seeded())
    counts = torch.stack([(rows == token).sum(0) for token in range(4)])
    assert (counts - 2000).abs().max() < 5 * 2000**0.5


@pytest.mark.usefixtures("unchecked")
def test_all_equal_inputs_are_half_constant_half_distinct():
    case = load_case("ib-124")
    rows = case.sample(400, seeded())
    kinds = [len(set(row)) for row in rows]
    assert set(kinds) == {1, case.max_seq_len - 1}
    assert 150 < kinds.count(1) < 250
    answers = [case.evaluate(row)[0] for row in rows]
    assert answers == [int(kind == 1) for kind in kinds]


def test_distinct_tokens_are_cycled_when_the_vocabulary_is_short():
    rows = draw("constant-or-distinct", "abc", 7, 50, seeded()).tolist()
    mixed = [row for row in rows if len(set(row)) > 1]
    assert mixed
    assert all(sorted(row[:3]) == [0, 1, 2] for row in mixed)
    assert all(row == (row[:3] * 3)[:7] for row in mixed)


def test_all_even_inputs_are_distinct_with_one_odd_number_in_half_of_them():
    case = load_case("ib-129")
    rows = case.sample(400, seeded())
    odd_places = [[i for i, x in enumerate(row) if x % 2] for row in rows]
    assert all(len(set(row)) == len(row) for row in rows)
    assert {len(places) for places in odd_places} == {0, 1}
    assert 150 < sum(map(len, odd_places)) < 250
    assert {place for places in odd_places for place in places} == set(range(9))
    assert {x for row in rows for x in row} == set(case.vocab)


def test_a_sampler_that_cannot_work_says_why():
    with pytest.raises(ValueError, match=r"unknown sampler 'sorted'; choose from uniform, const"):
        own_case(sampler="sorted").sample(1, seeded())
    with pytest.raises(ValueError, match=r"must hold 4 even numbers and an odd one, got 2 even"):
        draw("even-or-one-odd", (0, 1, 2), 4, 1, seeded())
    with pytest.raises(ValueError, match=r"n must be at least 0, got -1"):
        draw("uniform", "ab", 3, -1, seeded())


def test_words_in_the_file_are_those_of_cases() -> None:
    cases = {id: load_case(id) for id in case_ids()}
    cases |= {cases[id].name: cases[id] for id in case_ids("ib")}
    assert all(words["task"] == cases[key].task for key, words in stored("recipes").items())


# As values to look at


def test_a_case_prints_in_one_line() -> None:
    assert repr(load_case("ib-7")) == "Case('ib-7', 'histogram', split='pool', fold=0)"
    assert repr(own_case()) == "Case('mine', 'double')"


def test_pairs_are_counted_from_one() -> None:
    for n in (0, -3):
        with pytest.raises(ValueError, match=f"n must be at least 1 pair, got {n}"):
            load_case("ib-3").pairs(n)
    assert load_case("ib-3").pairs(1).case == "ib-3"


@pytest.mark.usefixtures("unchecked")
def test_pairs_are_whole() -> None:
    wrong: Any = "8"
    with pytest.raises(TypeError, match="n must be a whole number of pairs, got '8'"):
        load_case("ib-3").pairs(wrong)
