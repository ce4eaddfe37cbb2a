"""The compiled transformer gives what the interpreter gives, or the program is refused."""

import itertools
import math
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.cases import case_ids, load_case
from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Map,
    RaspError,
    Select,
    SelectorOr,
    SelectorWidth,
    SequenceMap,
    SOp,
    Value,
    evaluate,
    indices,
    is_numerical,
    numerical,
    tokens,
)
from graphcircuits.rasp.compile import CompiledModel, compile_program
from graphcircuits.rasp.validate import validate
from tests.cases.reference import reference_cases
from tests.rasp.hard import HARD
from tests.rasp.programs import EXAMPLES
from tests.rasp.wild import wild
from tests.tiers import some

ALL = Select(tokens, tokens, Comparison.TRUE)
SAME = Select(tokens, tokens, Comparison.EQ)
BEFORE = Select(indices, indices, Comparison.LT)


def differences(
    program: SOp, got: Sequence[Value], expected: Sequence[Value], tolerance: float = 1e-5
) -> list[int]:
    """Positions where the answers differ. A numerical None may decode as any number."""
    return [
        i
        for i, (x, y) in enumerate(zip(got, expected, strict=True))
        if not (is_numerical(program) and y is None)
        and x != y
        and not (
            isinstance(x, int | float)
            and isinstance(y, int | float)
            and math.isclose(x, y, rel_tol=tolerance, abs_tol=tolerance)
        )
    ]


# --- the public cases ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("id", some(case_ids("ib")))
def test_every_case_on_200_inputs_of_mixed_length(id: str) -> None:
    case, choice = load_case(id), random.Random(id)
    inputs = [
        choice.choices(case.vocab, k=choice.randint(1, case.max_seq_len - 1)) for _ in range(200)
    ]
    for xs, got in zip(inputs, case.compiled.apply_batch(inputs), strict=True):
        assert not differences(case.program, got, case.evaluate(xs)), xs


@pytest.mark.slow
@pytest.mark.parametrize("id", case_ids("ib")[::8])
def test_every_variable_is_in_the_stream(id: str) -> None:
    case, choice = load_case(id), random.Random(id)
    for length in (1, case.max_seq_len - 1):
        xs = choice.choices(case.vocab, k=length)
        held = case.compiled.variables(xs)
        for sop, label in case.tables.labels.items():
            if sop in case.tables.variables and isinstance(sop, SOp):
                assert not differences(sop, held[label], evaluate(sop, xs, causal=case.causal))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("id", some(case_ids(split="paper")))
def test_sizes_and_output_classes_of_the_reference(id: str) -> None:
    known, model = reference_cases()[id], load_case(id).compiled
    config, codec = model.transformer.config, model.transformer.codec
    assert codec is not None
    assert config.n_layers == known["compiled_dims"]["n_layers"]
    assert config.n_heads == known["compiled_dims"]["n_heads"]
    if known["output"] == "categorical":
        assert list(codec.outputs or ()) == known["output_classes"]
    else:
        assert codec.outputs is None
    if known["circuit"]:
        official = model.labels("interpbench")
        assert official.edges == set(known["circuit"]["interpbench"])
        extra = model.circuit.edges - official.edges
        assert extra == set(known["circuit"]["skip_reads"])
    outputs = model.apply_batch([example["input"] for example in known["examples"]])
    for example, got in zip(known["examples"], outputs, strict=True):
        assert not [
            (x, y)
            for x, y in zip(got, example["output"], strict=True)
            if y is not None and x != (pytest.approx(y, abs=1e-5) if isinstance(y, float) else y)
        ]


# --- programs in Tracr's style -------------------------------------------------------------------


@pytest.mark.parametrize("name", some(EXAMPLES))
def test_programs_in_tracrs_style_compute_what_they_say(name: str) -> None:
    example = EXAMPLES[name]
    program, choice = example.build(), random.Random(name)
    model = compile_program(
        program, vocab=example.vocab, max_seq_len=example.max_seq_len, causal=example.causal
    )
    lengths = [*range(1, example.max_seq_len), *[example.max_seq_len - 1] * 20]
    inputs = [choice.choices(example.vocab, k=length) for length in lengths]
    for xs, got in zip(inputs, model.apply_batch(inputs), strict=True):
        assert not differences(program, got, example.computes(xs)), xs


# --- refused or exact ----------------------------------------------------------------------------


def refused_or_exact(seed: int, max_length: int = 6) -> bool:
    """Compile a wild program and compare it on many inputs; whether it compiled."""
    choice = random.Random(seed)
    case = wild(choice, max_length=max_length)
    try:
        model = compile_program(
            case.program, vocab=case.vocab, max_seq_len=case.max_seq_len, causal=case.causal
        )
    except RaspError as error:
        if "cannot be compiled: '" not in str(error):
            raise
        return False
    answers = [(xs, case.expected(xs)) for xs in case.inputs(40, choice)]
    known = [(xs, expected) for xs, expected in answers if expected is not None]
    outputs = model.apply_batch([xs for xs, _ in known])
    for (xs, expected), got in zip(known, outputs, strict=True):
        assert not differences(case.program, got, expected), xs
    return True


@pytest.mark.usefixtures("unchecked")
@given(st.integers(0, 2**32))
def test_a_wild_program_is_refused_or_exact(seed: int) -> None:
    refused_or_exact(seed)


@pytest.mark.slow
def test_many_wild_programs_compile() -> None:
    assert 10 < sum(map(refused_or_exact, range(30))) < 30


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_hundreds_of_wild_programs_are_refused_or_exact() -> None:
    compiled = sum(refused_or_exact(seed, max_length=9) for seed in range(500))
    assert 250 < compiled < 450


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("max_seq_len", [2, 5])
@pytest.mark.parametrize("what", some(HARD))
def test_hard_programs_on_every_input(what: str, max_seq_len: int, causal: bool) -> None:
    build, vocab = HARD[what]
    program = build()
    model = compile_program(program, vocab=vocab, max_seq_len=max_seq_len, causal=causal)
    lengths = range(1, max_seq_len)
    inputs = [list(xs) for n in lengths for xs in itertools.product(vocab, repeat=n)]
    for xs, got in zip(inputs, model.apply_batch(inputs), strict=True):
        assert not differences(program, got, evaluate(program, xs, causal=causal), 1e-9), xs


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("length", some([100, 300]))
def test_counts_and_means_of_long_sequences(length: int) -> None:
    choice = random.Random(length)
    inputs = [choice.choices("ab", weights=(1, choice.random()), k=length) for _ in range(4)]
    so_far = Select(indices, indices, Comparison.LEQ)
    count, share = SelectorWidth(SAME), numerical(Aggregate(so_far, numerical(tokens == "a")))

    def counts(xs: list[str]) -> list[int]:
        return [xs.count(x) for x in xs]

    def shares(xs: list[str]) -> list[float]:
        return [xs[: i + 1].count("a") / (i + 1) for i in range(length)]

    for program, computes in (
        (count, counts),
        (Map(lambda n: n % 7, count), lambda xs: [n % 7 for n in counts(xs)]),
        (share, shares),
        (Map(lambda x: x > 0.5, share), lambda xs: [x > 0.5 for x in shares(xs)]),
    ):
        model = compile_program(program, vocab="ab", max_seq_len=length + 1)
        for xs, got in zip(inputs, model.apply_batch(inputs), strict=True):
            assert not differences(program, got, computes(xs), 1e-9)


# --- the model as an object ----------------------------------------------------------------------


def hist() -> CompiledModel:
    return compile_program(SelectorWidth(SAME).named("hist"), vocab="abc", max_seq_len=5)


def test_inputs_of_mixed_length_come_back_in_order() -> None:
    inputs = [list("abab"), ["a"], list("ccc"), ["b"], list("abca")]
    model = hist()
    assert model.apply_batch(inputs) == [model.apply(xs) for xs in inputs]
    assert model.apply_batch([]) == []
    assert model.apply(("a", "a")) == [2, 2]


def test_variables_are_named_as_in_the_program() -> None:
    model = hist()
    assert model.variables(["a", "b"]) == {"tokens": ["a", "b"], "hist_1": [1, 1]}
    assert [part.writes for part in model.components][1] == ("hist_1",)


def test_the_transformer_alone_decodes_the_same() -> None:
    model = hist()
    assert model.transformer.apply(list("abab")) == model.apply(list("abab")) == [2, 2, 2, 2]
    assert model.graph is model.transformer.graph


def test_both_labelings_are_circuits_of_the_models_graph() -> None:
    program = SequenceMap(lambda x, y: x + y, tokens + "!", tokens)
    model = compile_program(program, vocab="ab", max_seq_len=4)
    assert model.circuit.edges == model.labels("complete").edges
    assert model.circuit.edges - model.labels("interpbench").edges == {"input->m1"}
    assert set(model.labels("complete").edges) <= set(model.graph.edge_names)
    assert len(model.circuit) == len(model.circuit.edges)


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_labeling_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown labeling 'paper'; choose from complete, interp"):
        hist().labels("paper")  # pyright: ignore


def test_the_same_program_gives_the_same_weights() -> None:
    first, second = hist().transformer.weights, hist().transformer.weights
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_a_mixture_that_escaped_the_trials_is_refused_when_it_occurs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        sys.modules[validate.__module__], "trial_inputs", lambda *_: np.array([[0, 0]])
    )
    model = compile_program(Aggregate(ALL, tokens), vocab="ab", max_seq_len=4)
    assert model.apply(["b", "b"]) == ["b", "b"]
    with pytest.raises(RaspError, match="'aggregate_1' holds a mixture of values on this input"):
        model.apply(["a", "b"])


def test_a_value_that_is_rarely_mixed_in_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules[validate.__module__], "trial_inputs", lambda *_: np.array([[0, 0]])
    )
    model = compile_program(Aggregate(ALL, tokens), vocab="ab", max_seq_len=301)
    assert model.apply("a" * 300) == ["a"] * 300
    for rare in ("a" * 149 + "b", "b" + "a" * 299):
        with pytest.raises(RaspError, match="'aggregate_1' holds a mixture of values on this"):
            model.apply(rare)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("xs", "text"),
    [
        (["a", "z"], "symbols not in the vocabulary: 'z'; the vocabulary is 'a', 'b', 'c'."),
        ([], "the sequence is empty; give at least one symbol."),
        (list("aaaaa"), "the sequence has 5 symbols; with BOS at most n_ctx - 1 = 4 fit."),
        ("abz", "symbols not in the vocabulary: 'z'; the vocabulary is 'a', 'b', 'c'."),
        (7, "the input must be a list or string of tokens, got 7."),
        ([["a"]], "the input holds a token that cannot be hashed: "),
        (["a", None], "symbols not in the vocabulary: None;"),
        ([math.nan], "symbols not in the vocabulary: nan;"),
        (["BOS"], "symbols not in the vocabulary: 'BOS';"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(xs: list[Value], text: str) -> None:
    with pytest.raises(RaspError) as raised:
        hist().apply(xs)
    assert str(raised.value).startswith(text)


@pytest.mark.usefixtures("unchecked")
def test_only_sequence_expressions_compile() -> None:
    with pytest.raises(
        RaspError, match="a program is a sequence expression, got <Select 'select'>"
    ):
        compile_program(SAME, vocab="ab", max_seq_len=4)  # pyright: ignore
    with pytest.raises(RaspError, match="a program is a sequence expression, got None"):
        compile_program(None, vocab="ab", max_seq_len=4)  # pyright: ignore


def test_a_cycle_does_not_compile() -> None:
    loop = Map(abs, tokens).named("loop")
    loop.inner = loop
    with pytest.raises(RaspError, match="'loop' reads its own value: a program has no cycles"):
        compile_program(loop, vocab="ab", max_seq_len=4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"max_seq_len": 2.0}, "max_seq_len must be a whole number, got 2.0."),
        ({"max_seq_len": None}, "max_seq_len must be a whole number, got None."),
        ({"max_seq_len": "4"}, "max_seq_len must be a whole number, got '4'."),
        ({"vocab": None}, "the vocabulary must be a set or list of tokens, got None."),
        ({"vocab": 3}, "the vocabulary must be a set or list of tokens, got 3."),
        ({"causal": None}, "causal must be True or False, got None."),
        ({"causal": "no"}, "causal must be True or False, got 'no'."),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(given: dict[str, Any], text: str) -> None:
    with pytest.raises(RaspError) as raised:
        compile_program(tokens, **({"vocab": "ab", "max_seq_len": 4} | given))
    assert str(raised.value) == text


def test_an_empty_vocabulary_does_not_compile() -> None:
    with pytest.raises(RaspError, match="the vocabulary is empty: a program needs at least one"):
        compile_program(tokens, vocab=[], max_seq_len=4)


def test_one_problem_is_one_sentence() -> None:
    with pytest.raises(RaspError) as raised:
        compile_program(Map(lambda x: [x], tokens), vocab="ab", max_seq_len=4)
    assert str(raised.value) == (
        "1 expression cannot be compiled: "
        "'map_1': on ('a') its function gave ['a'], which is no hashable value."
    )


def test_all_problems_are_reported_at_once() -> None:
    average = numerical(Aggregate(ALL, numerical(indices + 1))).named("average")
    mixed = Aggregate(ALL, tokens).named("mixed")
    either = SelectorWidth(SelectorOr(SAME, BEFORE).named("either"))
    program = SequenceMap(
        lambda x, y: (x, y), SequenceMap(lambda x, y: (x, y), mixed, either), Map(abs, average)
    )
    with pytest.raises(RaspError) as raised:
        compile_program(program, vocab="ab", max_seq_len=4)
    text = str(raised.value)
    assert text.startswith("3 expressions cannot be compiled: ")
    for part in (
        "'average_6': a numerical aggregate averages 0/1 values only, got [1, 2, 3]",
        "'either_8': an `or` of selectors over different sequences has no single attention head",
        "'mixed_4': a categorical aggregate moves one value, but this one selects different values",
    ):
        assert part in text
