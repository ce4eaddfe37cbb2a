"""Expressions as values: copies, names, labels; and walking a program of any depth."""

import copy

import pytest

from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Encoding,
    Map,
    RaspError,
    RASPExpr,
    Select,
    SelectorAnd,
    SelectorNot,
    SelectorWidth,
    SequenceMap,
    SOp,
    annotate,
    indices,
    length,
    numerical,
    tokens,
)
from graphcircuits.rasp.compile import compile_program
from graphcircuits.rasp.expression import walk

SAME = Select(tokens, tokens, Comparison.EQ)
EXPRESSIONS = (
    tokens + 1,
    tokens + indices,
    Aggregate(SAME, tokens),
    SelectorWidth(SAME),
    length,
    SAME,
    SelectorAnd(SAME, SAME),
    SelectorNot(SAME),
)

# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda e: e.name)
def test_a_name_is_of_the_copy(expression: RASPExpr) -> None:
    before = expression.name
    renamed = expression.named("mine")
    assert (renamed.name, expression.name) == ("mine", before)
    assert renamed.copy().name == "mine"
    assert renamed.named("other").children == renamed.children == expression.children
    assert repr(renamed) == f"<{type(expression).__name__} 'mine'>"


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda e: e.name)
def test_every_copy_has_a_number_of_its_own(expression: RASPExpr) -> None:
    copies = [expression, expression.copy(), expression.named("mine"), expression.annotated(note=1)]
    assert len({each.unique_id for each in copies}) == len({*copies}) == 4
    # The label of `length` is that word alone, as in Tracr, and so is that of its copies.
    label = "length" if expression is length else f"mine_{copies[2].unique_id}"
    assert copies[2].label == label


def test_annotations_are_kept_and_cannot_be_written_to() -> None:
    marks = annotate(tokens == "a", note="why").named("marks")
    assert marks.annotations == {
        "name": "marks",
        "note": "why",
        "encoding": Encoding.CATEGORICAL,
    }
    assert SAME.annotated(note=2).annotations == {"name": "select", "note": 2}
    with pytest.raises(TypeError, match="does not support item assignment"):
        marks.annotations["name"] = "other"  # pyright: ignore
    for name in ("name", "encoding", "unique_id"):
        with pytest.raises(AttributeError):
            setattr(marks, name, None)


def test_a_compiled_program_stays_what_it_is() -> None:
    is_one = tokens == 1
    model = compile_program(is_one, vocab=[0, 1], max_seq_len=5)
    numerical(is_one)
    is_one.named("other")
    assert model.apply([0, 1, 1]) == [False, True, True]
    # Even an expression that is written to behind its back leaves the model alone.
    is_one._annotations = {"encoding": Encoding.NUMERICAL}
    assert model.apply([0, 1, 1]) == [False, True, True]
    assert model.variables([0, 1])["map_1"] == [False, True]


def test_an_encoding_asked_for_elsewhere_does_not_reach_a_later_program() -> None:
    marks = tokens == "a"
    numerical(marks)
    counted = SelectorWidth(Select(marks, marks, Comparison.EQ))
    assert compile_program(counted, vocab="ab", max_seq_len=4).apply("aab") == [2, 2, 1]


def test_both_encodings_of_a_sequence_live_side_by_side() -> None:
    marks = (tokens == "a").named("marks")
    share = numerical(Aggregate(Select(tokens, tokens, Comparison.TRUE), numerical(marks)))
    program = SequenceMap(lambda x, y: (x, y), marks, Map(lambda x: x > 0.5, share))
    model = compile_program(program, vocab="ab", max_seq_len=4)
    assert model.apply("aab") == [(True, True), (True, True), (False, True)]


def test_an_expression_can_be_deep_copied() -> None:
    twice = copy.deepcopy(numerical(Map(abs, indices)).named("mine"))
    assert (twice.name, twice.encoding) == ("mine", Encoding.NUMERICAL)


# --- walking a program ---------------------------------------------------------------------------


def test_walk_gives_every_expression_once_inputs_first() -> None:
    select = Select(tokens, indices, Comparison.EQ)
    shared = Aggregate(select, tokens)
    program = SequenceMap(max, shared, Map(abs, shared))
    nodes = list(walk(program))
    assert len(set(nodes)) == len(nodes) == 6
    place = {node: i for i, node in enumerate(nodes)}
    assert all(place[child] < place[node] for node in nodes for child in node.children)


def test_a_cycle_is_found() -> None:
    inner = Map(abs, tokens)
    loop = SequenceMap(max, inner, tokens).named("loop")
    inner.inner = loop
    with pytest.raises(RaspError, match="'loop' reads its own value: a program has no cycles"):
        list(walk(loop))


def test_a_cycle_through_a_selector_is_found() -> None:
    select = Select(tokens, tokens, Comparison.EQ)
    moved = Aggregate(select, tokens).named("moved")
    select.queries = moved
    with pytest.raises(RaspError, match="reads its own value"):
        moved(["a"])


def test_an_object_that_is_no_expression_is_named() -> None:
    mapped = (tokens + 1).named("mine")
    mapped.inner = 5  # pyright: ignore
    with pytest.raises(RaspError, match="'mine' reads 5, which is no RASP expression"):
        list(walk(mapped))


@pytest.mark.usefixtures("unchecked")
def test_only_expressions_can_be_walked() -> None:
    with pytest.raises(RaspError, match="a program is a RASP expression, got 'tokens'"):
        list(walk("tokens"))  # pyright: ignore


@pytest.mark.slow
def test_a_long_chain_does_not_exhaust_the_stack() -> None:
    program: SOp = tokens
    for _ in range(5000):
        program = Map(lambda x: x + 1, program, simplify=False)
    assert program([0]) == [5000]
