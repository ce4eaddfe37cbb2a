"""What a transformer needs is known before it is written, and too much of it is refused."""

import importlib

import pytest

from graphcircuits.cases import case_ids, load_case
from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Map,
    RaspError,
    Select,
    SelectorWidth,
    SequenceMap,
    SOp,
    Value,
    indices,
    numerical,
    tokens,
    validate,
)
from graphcircuits.rasp.compile import CompiledModel, compile_program
from graphcircuits.rasp.size import directions, hidden_units, n_weights
from graphcircuits.rasp.tabulate import tabulate
from tests.rasp.hard import HARD

size = importlib.import_module("graphcircuits.rasp.size")
calls = importlib.import_module("graphcircuits.rasp.calls")


def check(model: CompiledModel) -> None:
    """The foreseen sizes are no less than those of the weights, and not much more."""
    weights, tables = model.transformer.weights, model.tables
    written = sum(w.numel() for name, w in weights.items() if w.ndim > 1)
    readout = model.stream.width**2 - weights["W_U"].numel()
    assert written + readout <= n_weights(tables) + weights["b_out"].numel() * 4
    assert n_weights(tables) <= 2 * (written + readout) + 1000
    for sop, place in model.stream.slices.items():
        assert directions(tables)[sop] == place.stop - place.start
    for layer, functions in enumerate(model.layout.functions):
        units = sum(hidden_units(tables, sop) for sop in functions)
        used = int((weights["W_in"][layer] != 0).any(dim=0).sum())
        assert used <= units <= 3 * used + 2


@pytest.mark.slow
@pytest.mark.parametrize("id", case_ids()[::12])
def test_the_size_of_a_case_is_foreseen(id: str) -> None:
    check(load_case(id).compiled)


@pytest.mark.parametrize("what", HARD)
def test_the_size_of_a_hard_program_is_foreseen(what: str) -> None:
    build, vocab = HARD[what]
    check(compile_program(build(), vocab=vocab, max_seq_len=5))


def triple() -> SOp:
    pair = SequenceMap(lambda x, y: (x, y), tokens, tokens).named("pair")
    three = SequenceMap(lambda xy, i: (*xy, i), pair, indices).named("three")
    return Map(lambda xyi: xyi[0] + xyi[1] - xyi[2], three)


@pytest.mark.slow
def test_a_map_of_three_inputs_is_refused_with_its_size() -> None:
    with pytest.raises(RaspError) as raised:
        compile_program(triple(), vocab=range(50), max_seq_len=21)
    assert str(raised.value) == (
        "1 expression cannot be compiled: 'three_2': its 2,500 x 20 inputs need more than "
        "11,585 directions, which no transformer of 134,217,728 weights has; "
        "use fewer tokens, positions or values."
    )
    small = compile_program(triple(), vocab=range(5), max_seq_len=4)
    assert small.apply([1, 4, 2]) == [2, 7, 2]


def test_many_parts_that_are_each_small_are_refused_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(size, "MAX_WEIGHTS", 2000)
    program: SOp = Map(lambda x: x % 3, tokens).named("start")
    for _ in range(20):
        program = Map(lambda x: (x + 1) % 3, program, simplify=False)
    (problem,) = validate(program, vocab=range(9), max_seq_len=4)
    assert problem.expression == "start_21"
    needed = n_weights(tabulate(program, vocab=range(9), max_seq_len=4))
    assert problem.reason == (
        f"it takes 3 directions and 4 units, the most in a transformer that would have {needed:,} "
        "weights, more than the 2,000 we write; use fewer expressions, tokens, positions or values"
    )


def test_heads_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = SelectorWidth(Select(tokens, tokens, Comparison.EQ))
    share = numerical(Aggregate(Select(tokens, tokens, Comparison.EQ), numerical(tokens == 0)))
    tables = [tabulate(sop, vocab=range(40), max_seq_len=4) for sop in (wide, share)]
    assert all(n_weights(each) > 4 * 40 * 40 for each in tables)


def test_a_table_that_no_transformer_has_room_for_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "MAX_WEIGHTS", 100)
    called: list[Value] = []
    many = Map(lambda x: called.append(x) or x, tokens)
    (problem,) = tabulate(many, vocab=range(1000), max_seq_len=4).problems
    assert problem.reason == (
        "its 1,000 inputs need more than 10 directions, which no transformer of 100 weights has; "
        "use fewer tokens, positions or values"
    )
    assert len(called) == 11
    constant = SequenceMap(lambda x, i: 0, tokens, indices)
    (problem,) = tabulate(constant, vocab="abc", max_seq_len=8).problems
    assert problem.reason.startswith("its 3 x 7 inputs need more than 5 hidden units, which no")
    fits = SequenceMap(lambda x, i: 0 if i == 1 else None, tokens, indices)
    assert not tabulate(fits, vocab="abc", max_seq_len=8).problems
