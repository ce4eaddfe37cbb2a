"""Programs as text: every kind of expression, numbered breadth first, inputs first."""

from graphcircuits import rasp
from tests.rasp.describe import describe


def is_x(x: str) -> int:
    return int(x == "x")


def test_every_kind_of_expression_is_written_out():
    flag = rasp.numerical(rasp.Map(is_x, rasp.tokens)).named("flag")
    so_far = rasp.Select(rasp.indices, rasp.indices, rasp.Comparison.LEQ)
    share = rasp.numerical(rasp.Aggregate(so_far, flag, default=0))
    other = rasp.numerical(rasp.Aggregate(so_far, flag, default=0)).named("other")
    program = rasp.numerical(rasp.LinearSequenceMap(share, other, 1, -0.5))
    assert sorted(describe(program)) == [
        "aggregate_2 = numerical Aggregate(select_4, flag_5, default=0)",
        "flag_5 = numerical Map(is_x, tokens)",
        "linear_sequence_map_1 = numerical LinearSequenceMap(aggregate_2, other_3, 1, -0.5)",
        "other_3 = numerical Aggregate(select_4, flag_5, default=0)",
        "select_4 = Select(indices, indices, Comparison.LEQ)",
    ]


def test_inputs_come_first():
    width = rasp.SelectorWidth(rasp.Select(rasp.tokens, rasp.Full(1), rasp.Comparison.GT))
    lines = describe(rasp.SequenceMap(max, width, rasp.indices))
    assert lines == [
        "full_4 = Full(1)",
        "select_3 = Select(tokens, full_4, Comparison.GT)",
        "selector_width_2 = SelectorWidth(select_3)",
        "sequence_map_1 = SequenceMap(max, selector_width_2, indices)",
    ]


def test_joined_predicates_are_written_out():
    same = rasp.Select(rasp.tokens, rasp.indices, rasp.Comparison.EQ)
    first = rasp.Select(rasp.tokens, rasp.Full(3), rasp.Comparison.LT)
    lines = describe(rasp.SelectorWidth((same & ~first) | same))
    assert lines[0] == (
        "select_2 = Select(tokens, indices, "
        "((Comparison.EQ and not Comparison.LT[query=3]) or Comparison.EQ))"
    )


def test_constants_show_their_values():
    program = rasp.Aggregate(rasp.ConstantSelector([[True]]), rasp.ConstantSOp([7]))
    assert sorted(describe(program)) == [
        "aggregate_1 = Aggregate(constant_selector_2, constant_sop_3, default=None)",
        "constant_selector_2 = ConstantSelector([[True]])",
        "constant_sop_3 = ConstantSOp([7])",
    ]


def test_fused_maps_show_both_functions():
    fused = rasp.Map(abs, rasp.Map(is_x, rasp.tokens))
    assert describe(fused) == ["map_1 = Map(abs of is_x, tokens)"]
