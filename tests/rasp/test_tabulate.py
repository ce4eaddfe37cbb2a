"""Value sets hold all that the interpreter gives, tables are the functions, reasons are named."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    ConstantSelector,
    ConstantSOp,
    Full,
    LinearSequenceMap,
    Map,
    RaspError,
    Select,
    Selector,
    SelectorAnd,
    SelectorNot,
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
from graphcircuits.rasp import tabulate as module
from graphcircuits.rasp.tabulate import (
    NONE,
    Tables,
    breadth_first,
    selector_leaves,
    sequence_inputs,
    tabulate,
)
from graphcircuits.rasp.validate import problems
from tests.rasp.columns import decode, encode
from tests.rasp.wild import wild

ALL = Select(tokens, tokens, Comparison.TRUE)
SAME = Select(tokens, tokens, Comparison.EQ)
PREVIOUS = Select(indices, indices, lambda key, query: key == query - 1)


def tables_of(program: SOp, vocab: str = "abc", max_seq_len: int = 4) -> Tables:
    return tabulate(program, vocab=vocab, max_seq_len=max_seq_len)


def values_of(program: SOp, vocab: str = "abc", max_seq_len: int = 4) -> tuple[Value, ...]:
    tables = tables_of(program, vocab, max_seq_len)
    assert not tables.problems
    return tables.variables[program].values


# --- order and names -----------------------------------------------------------------------------


def test_expressions_are_numbered_breadth_first_from_the_result() -> None:
    length = SelectorWidth(ALL).named("length")
    last = Select(indices, length - 1, Comparison.EQ).named("last")
    program = SequenceMap(max, Aggregate(last, tokens), length).named("result")
    tables = tables_of(program)
    assert [tables.labels[node] for node in tables.order] == [
        "result_1",
        "aggregate_2",
        "length_3",
        "last_4",
        "select_5",
        "map_6",
    ]
    assert tables.labels[tokens] == "tokens"
    assert tables.labels[indices] == "indices"
    assert list(tables.order) == breadth_first(program)


def test_what_a_sequence_reads_goes_through_its_selector() -> None:
    both = SelectorAnd(SAME, SelectorNot(PREVIOUS))
    assert selector_leaves(both) == [SAME, PREVIOUS]
    marks = Map(abs, indices)
    assert sequence_inputs(Aggregate(both, marks)) == [tokens, indices, marks]
    assert sequence_inputs(SelectorWidth(SAME)) == [tokens]
    assert sequence_inputs(SequenceMap(max, tokens, tokens)) == [tokens]


# --- values --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked")
@given(st.integers(0, 2**32).map(random.Random))
def test_every_value_that_occurs_is_foreseen(choice: random.Random) -> None:
    case = wild(choice)
    tables = tabulate(
        case.program, vocab=case.vocab, max_seq_len=case.max_seq_len, causal=case.causal
    )
    # In a refused program an aggregate may mix values, and its users see what no table has.
    assume(not problems(tables))
    for sop, variable in tables.variables.items():
        for xs in case.inputs(20, choice):
            try:
                got = evaluate(sop, xs, causal=case.causal)
            except RaspError:
                continue
            assert variable.nullable or None not in got
            found = [value for value in got if value is not None]
            if is_numerical(sop):
                nearest = [min(variable.values, key=lambda v: abs(v - x)) for x in found]
                assert found == pytest.approx(nearest)
            else:
                assert set(found) <= set(variable.values)


def test_values_are_inferred_from_the_vocabulary_and_the_length() -> None:
    assert values_of(tokens) == ("a", "b", "c")
    assert values_of(indices) == (0, 1, 2)
    assert values_of(SelectorWidth(ALL)) == (0, 1, 2, 3)
    assert values_of(Full("x")) == ("x",)
    assert values_of(tokens + "!") == ("a!", "b!", "c!")
    assert values_of(indices * indices) == (0, 1, 2, 4)
    assert values_of(Aggregate(ALL, Full(1), default="z")) == (1, "z")


def test_a_mean_is_any_fraction_of_the_longest_length() -> None:
    marks = numerical(tokens == "a")
    thirds = (0, 1 / 3, 1 / 2, 2 / 3, 1)
    assert values_of(numerical(Aggregate(ALL, marks))) == thirds
    assert values_of(numerical(Aggregate(SAME, marks, default=5))) == (*thirds, 5)
    always = numerical(tokens != "z")
    assert values_of(numerical(Aggregate(ALL, always))) == (1,)


def test_combining_a_sequence_with_itself_has_the_images_of_all_pairs() -> None:
    assert values_of(SequenceMap(lambda x, y: x + y, tokens, tokens), "ab") == (
        *("aa", "ab", "ba", "bb"),
    )
    marks = numerical(tokens == "a")
    assert values_of(numerical(LinearSequenceMap(marks, marks, 1, -1))) == (0,)


def test_arithmetic_errors_are_skipped_and_leave_None() -> None:
    ratio = SequenceMap(lambda x, y: x / y, indices, indices)
    tables = tables_of(ratio)
    assert not tables.problems
    assert tables.variables[ratio].values == (0, 0.5, 1, 2)
    assert tables.variables[ratio].nullable


def test_None_spreads() -> None:
    shifted = Aggregate(PREVIOUS, tokens)
    tables = tables_of(SequenceMap(lambda x, y: x + y, shifted, tokens))
    assert tables.variables[shifted].nullable
    assert tables.variables[tables.program].nullable
    defaulted = Aggregate(PREVIOUS, tokens, default="-")
    assert not tables_of(defaulted).variables[defaulted].nullable
    own = Aggregate(SAME, tokens)
    assert not tables_of(own).variables[own].nullable


NOTHING = Select(tokens, tokens, Comparison.FALSE)
MAYBE = Map(lambda x: None if x == "b" else x, tokens)


@pytest.mark.parametrize(
    ("selector", "may_be_empty"),
    [
        (ALL, False),
        (SAME, False),
        (NOTHING, True),
        (PREVIOUS, True),
        (SelectorAnd(ALL, SAME), False),
        (SelectorAnd(ALL, PREVIOUS), True),
        (SelectorOr(PREVIOUS, SAME), False),
        (SelectorOr(SAME, PREVIOUS), False),
        (SelectorOr(PREVIOUS, NOTHING), True),
        (SelectorNot(SelectorAnd(NOTHING, SAME)), False),
        (SelectorNot(SAME), True),
        (Select(MAYBE, MAYBE, Comparison.EQ), True),
        (Select(tokens, MAYBE, Comparison.TRUE), True),
        (Select(tokens, indices, lambda key, query: key == "abc"[query]), True),
    ],
)
def test_an_aggregate_may_be_None_where_it_may_select_nothing(
    selector: Selector, may_be_empty: bool
) -> None:
    moved = Aggregate(selector, tokens)
    assert tables_of(moved).variables[moved].nullable == may_be_empty


# --- tables --------------------------------------------------------------------------------------


def test_a_table_holds_the_code_of_every_image() -> None:
    combination = SequenceMap(lambda x, i: None if i == 1 else x * i, tokens, indices)
    tables = tables_of(combination, vocab="ab", max_seq_len=4)
    fst, snd, own = (tables.variables[sop].values for sop in (tokens, indices, combination))
    table = tables.functions[combination]
    assert table.shape == (3, 4)
    assert (table[-1] == NONE).all()
    assert (table[:, -1] == NONE).all()
    for i, x in enumerate(fst):
        for j, y in enumerate(snd):
            assert (None if table[i, j] == NONE else own[table[i, j]]) == combination.f(x, y)


def test_a_selection_has_a_row_a_key_and_never_holds_for_None() -> None:
    select = Select(indices, tokens, lambda key, query: query == "abc"[key])
    table = tables_of(SelectorWidth(select)).selections[select]
    assert np.array_equal(table, np.diag([True, True, True, False]))


def test_inputs_are_encoded_and_columns_decoded() -> None:
    share = numerical(Map(lambda x: 0.5 if x == "b" else None, tokens))
    tables = tables_of(share)
    codes = encode(tables, [["c", "a"], ["b"]])
    assert codes.tolist() == [[2, 0], [1, NONE]]
    assert encode(tables, []).shape == (0, 1)
    assert decode(tables, tokens, codes[1]) == ["b", None]
    assert decode(tables, share, np.array([0.5, math.nan])) == [0.5, None]


def test_a_program_without_tokens_can_be_fed() -> None:
    tables = tables_of(indices + 1)
    assert encode(tables, [["b", "b"]]).tolist() == [[1, 1]]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_seq_len", [1, 0, -3])
def test_a_length_without_room_for_a_token_is_refused(max_seq_len: int) -> None:
    with pytest.raises(RaspError) as raised:
        tables_of(tokens, max_seq_len=max_seq_len)
    assert str(raised.value) == (
        f"max_seq_len counts the BOS token and must be at least 2, got {max_seq_len}."
    )


def test_a_bad_vocabulary_is_refused_before_anything_else() -> None:
    with pytest.raises(RaspError, match="the vocabulary is empty"):
        tables_of(tokens, vocab="")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("program", [ALL, 3, None, "tokens"], ids=repr)
def test_a_program_is_a_sequence(program: SOp) -> None:
    with pytest.raises(RaspError, match="a program is a sequence expression, got"):
        tables_of(program)


def marks() -> SOp:
    return numerical(tokens == "a")


def share(default: Value = 0) -> Aggregate:
    return numerical(Aggregate(PREVIOUS, marks(), default=default))


REFUSED: dict[str, tuple[Callable[[], SOp], str]] = {
    "map that raises": (
        lambda: Map(lambda x: x.missing, tokens),
        "'map_1': its function raised AttributeError: 'str' object has no attribute 'missing' "
        "on ('a')",
    ),
    "predicate that raises": (
        lambda: SelectorWidth(Select(tokens, indices, Comparison.LT)),
        "'select_2': its predicate raised TypeError: '<' not supported between instances of "
        "'str' and 'int' on key 'a', query 0",
    ),
    "unhashable image": (
        lambda: Map(lambda x: [x], tokens),
        "'map_1': on ('a') its function gave ['a'], which is no hashable value",
    ),
    "NaN image": (
        lambda: SequenceMap(lambda x, y: math.nan, tokens, indices),
        "'sequence_map_1': on ('a', 0) its function gave NaN, which equals nothing, "
        "itself included",
    ),
    "image that is an expression": (
        lambda: Map(lambda x: tokens, tokens),
        "'map_1': on ('a') its function gave <_Primitive 'tokens'>, an expression where a value "
        "is due",
    ),
    "constant None": (lambda: Full(None), "'full_1': it is None everywhere"),
    "unhashable constant": (
        lambda: Full([1]),
        "'full_1': it holds [1], which is no hashable value",
    ),
    "NaN constant": (
        lambda: Full(math.nan),
        "'full_1': it holds NaN, which equals nothing, itself included",
    ),
    "unhashable default": (
        lambda: Aggregate(PREVIOUS, tokens, default=[]),
        "'aggregate_1': its default is [], which is no hashable value",
    ),
    "NaN default": (
        lambda: numerical(Aggregate(PREVIOUS, marks(), default=math.nan)),
        "'aggregate_1': its default is NaN, which equals nothing, itself included",
    ),
    "None only": (
        lambda: Map(lambda x: None, tokens),
        "'map_1': it has no value but None on any input",
    ),
    "numerical strings": (
        lambda: numerical(tokens + "!"),
        "'map_1': a numerical sequence holds finite numbers of size up to 1e+100, "
        "got 'a!', 'b!', 'c!'",
    ),
    "numerical infinity": (
        lambda: numerical(Map(lambda x: math.inf, tokens)),
        "'map_1': a numerical sequence holds finite numbers of size up to 1e+100, got inf",
    ),
    "integer beyond every float": (
        lambda: numerical(Map(lambda x: -(10**400), tokens)),
        "'map_1': a numerical sequence holds finite numbers of size up to 1e+100, "
        "got -10000000000000000...0000000000000000000",
    ),
    "default that is no number": (
        lambda: share("none"),
        "'aggregate_1': a numerical sequence holds finite numbers of size up to 1e+100, got 'none'",
    ),
    "numerical keys": (
        lambda: SelectorWidth(Select(marks(), indices, Comparison.EQ)),
        "'select_2': its keys 'map_3' are numerical; they must be categorical",
    ),
    "numerical queries": (
        lambda: SelectorWidth(Select(indices, marks(), Comparison.EQ)),
        "'select_2': its queries 'map_3' are numerical; they must be categorical",
    ),
    "mean of other numbers": (
        lambda: numerical(Aggregate(ALL, numerical(indices * 2))),
        "'aggregate_1': a numerical aggregate averages 0/1 values only, got [0, 2, 4]",
    ),
    "linear combination of categories": (
        lambda: numerical(LinearSequenceMap(marks(), indices, 1, 1)),
        "'linear_sequence_map_1': a linear combination takes and gives numerical sequences",
    ),
    "categorical linear combination": (
        lambda: LinearSequenceMap(marks(), marks(), 1, 1),
        "'linear_sequence_map_1': a linear combination takes and gives numerical sequences",
    ),
    "combination of numbers": (
        lambda: marks() + marks(),
        "'sequence_map_1': a combination takes and gives categorical sequences; "
        "for numerical ones there is LinearSequenceMap",
    ),
    "constant of one input": (
        lambda: ConstantSOp([1, 2]),
        "'constant_sop_1': it is given for one input only, which the interpreter can run; "
        "to compile it, make it from `indices`",
    ),
    "constant pattern": (
        lambda: SelectorWidth(ConstantSelector([[True]])),
        "'constant_selector_2': it is given for one input only, which the interpreter can run; "
        "to compile it, make it from `indices`",
    ),
    "categorical mean": (
        lambda: Aggregate(ALL, marks()),
        "'aggregate_1': an aggregate has the encoding of its values; convert with a map first",
    ),
    "numerical move": (
        lambda: numerical(Aggregate(PREVIOUS, indices)),
        "'aggregate_1': an aggregate has the encoding of its values; convert with a map first",
    ),
    "None among numbers": (
        lambda: Map(lambda x: x > 0, share(default=None)),
        "'map_1': it reads 'aggregate_2', which is numerical and may be None; "
        "in one direction None cannot be told from 0: give it a default",
    ),
    "default told from an equal value": (
        lambda: Map(str, Aggregate(PREVIOUS, tokens == "a", default=1)),
        "'map_1': it tells (True) from (1), which are equal: it gives 'True' and '1'",
    ),
    "moved value told from an equal one": (
        lambda: Map(str, Aggregate(PREVIOUS, Map(lambda x: x == "a" or 1, tokens), default=2)),
        "'map_1': it tells (True) from (1), which are equal: it gives 'True' and '1'",
    ),
    "predicate that tells twins apart": (
        lambda: SelectorWidth(
            Select(Aggregate(PREVIOUS, Full(True), default=1), tokens, lambda k, q: k is True)
        ),
        "'select_2': it tells (True, 'a') from (1, 'a'), which are equal: it gives True and False",
    ),
    "twins inside a tuple": (
        lambda: Map(str, SequenceMap(lambda x, i: (i,) if x == "a" else (False,), tokens, indices)),
        "'map_1': it tells ((0,)) from ((False,)), which are equal: it gives '(0,)' and '(False,)'",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_problem_is_named_with_its_reason(what: str) -> None:
    build, text = REFUSED[what]
    assert [str(problem) for problem in tables_of(build()).problems] == [text]


def test_equal_values_may_differ_in_type_where_nothing_tells_them_apart() -> None:
    moved = Aggregate(PREVIOUS, tokens == "a", default=0)
    program = Map(lambda x: "yes" if x else "no", moved)
    assert values_of(moved) == (False, True)
    assert values_of(program) == ("no", "yes")


def test_too_many_pairs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TABLE", 11)
    pair = SequenceMap(lambda x, i: (x, i), tokens, indices)
    assert not tables_of(pair).problems
    for program in (pair, SelectorWidth(Select(tokens, indices, Comparison.TRUE))):
        (problem,) = tables_of(program, max_seq_len=5).problems
        assert problem.reason == "3 x 4 pairs of values are more than the 11 we tabulate"


def test_all_problems_are_listed_and_users_of_a_culprit_are_not() -> None:
    raising = Map(lambda x: x.missing, tokens).named("raising")
    unhashable = Full([]).named("unhashable")
    nothing = Full(None).named("nothing")
    program = SequenceMap(max, raising, SequenceMap(min, unhashable, nothing))
    labels = {problem.expression for problem in tables_of(program).problems}
    assert labels == {"raising_2", "unhashable_4", "nothing_5"}


def test_an_unknown_expression_is_refused() -> None:
    class Odd(SOp):
        default_name = "odd"

    (problem,) = tables_of(Odd()).problems
    assert str(problem) == "'odd_1': it is a Odd, which the compiler does not know"


def test_a_cycle_is_refused() -> None:
    loop = Map(abs, tokens).named("loop")
    loop.inner = loop
    with pytest.raises(RaspError, match="'loop' reads its own value: a program has no cycles"):
        tables_of(loop)
