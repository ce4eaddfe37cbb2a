"""Selectors of any depth, and any sharing, taken apart, run and compiled."""

import sys
from collections.abc import Callable

import pytest

from graphcircuits.rasp import (
    Aggregate,
    Comparison,
    Map,
    Select,
    Selector,
    SelectorAnd,
    SelectorNot,
    SelectorOr,
    SelectorWidth,
    SequenceMap,
    SOp,
    evaluate,
    indices,
    tokens,
    validate,
)
from graphcircuits.rasp.compile import compile_program
from graphcircuits.rasp.selectors import fold, selector_leaves
from tests.rasp.describe import describe

DEEP = sys.getrecursionlimit() + 200
SAME = Select(tokens, tokens, Comparison.EQ).named("same")
BEFORE = Select(indices, indices, Comparison.LEQ).named("before")


def written(selector: Selector) -> str:
    return fold(
        selector,
        lambda node, negated: f"not {node.name}" if negated else node.name,
        lambda x, y: f"({x} and {y})",
        lambda x, y: f"({x} or {y})",
    )


def test_negations_are_pushed_down() -> None:
    inner = SelectorOr(SAME, SelectorNot(BEFORE))
    assert written(inner) == "(same or not before)"
    assert written(SelectorNot(inner)) == "(not same and before)"
    assert written(SelectorAnd(SelectorNot(inner), inner)) == (
        "((not same and before) and (same or not before))"
    )
    assert written(SelectorNot(SelectorNot(SAME))) == "same"


def test_leaves_stand_left_to_right_once_each() -> None:
    other = Select(indices, tokens, Comparison.TRUE)
    nested = SelectorAnd(SelectorNot(SelectorOr(other, SAME)), SelectorOr(BEFORE, other))
    assert selector_leaves(nested) == [other, SAME, BEFORE]


def test_a_shared_part_is_computed_once() -> None:
    selector: Selector = SAME
    for _ in range(60):
        selector = SelectorAnd(selector, selector)
    calls: list[Selector] = []
    assert fold(selector, lambda node, _: calls.append(node) or 1, max, max) == 1
    assert calls == [SAME]
    assert selector_leaves(selector) == [SAME]


def nested(step: Callable[[Selector], Selector], times: int) -> Selector:
    selector: Selector = SAME
    for _ in range(times):
        selector = step(selector)
    return selector


STEPS: dict[str, Callable[[Selector], Selector]] = {
    "and, to the left": lambda inner: SelectorAnd(inner, BEFORE),
    "and, to the right": lambda inner: SelectorAnd(BEFORE, inner),
    "or of one pair": lambda inner: SelectorOr(SAME, inner),
    "not": SelectorNot,
    "not of or of not": lambda inner: SelectorNot(SelectorOr(SelectorNot(inner), SAME)),
    "with itself": lambda inner: SelectorAnd(inner, inner),
    "one select": lambda inner: inner & SAME,
    "one select, to the right": lambda inner: SAME | inner,
    "one select, turned around": lambda inner: ~inner,
}


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("what", STEPS)
def test_a_deep_selector_does_what_a_shallow_one_does(what: str) -> None:
    deep, shallow = (SelectorWidth(nested(STEPS[what], n)) for n in (DEEP, 2))
    assert evaluate(deep, "aba", causal=True) == evaluate(shallow, "aba", causal=True)
    model = compile_program(deep, vocab="ab", max_seq_len=4)
    assert model.apply("aba") == shallow("aba")
    assert len(describe(deep)) >= 2
    assert repr(deep) == "<SelectorWidth 'selector_width'>"


CHAINS: dict[str, Callable[[SOp], SOp]] = {
    "fused maps": lambda inner: inner + 1,
    "maps": lambda inner: Map(lambda x: (x + 1) % 5, inner, simplify=False),
    "combinations": lambda inner: SequenceMap(lambda x, y: (x + y) % 3, inner, tokens),
    "moves": lambda inner: Aggregate(Select(indices, indices, Comparison.EQ), inner),
    "counts": lambda inner: SelectorWidth(Select(inner, tokens, Comparison.EQ)),
}


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("what", CHAINS)
def test_deep_sequences_are_run_described_and_judged(what: str) -> None:
    program: SOp = tokens
    for _ in range(DEEP):
        program = CHAINS[what](program)
    assert len(program([0, 1, 0])) == 3
    assert describe(program)
    found = validate(program, vocab=[0, 1], max_seq_len=4)
    assert all("weights, more than the" in problem.reason for problem in found)


def test_a_map_fused_from_many_compiles() -> None:
    program = tokens
    for _ in range(DEEP):
        program = program + 1
    model = compile_program(program, vocab=[0, 1], max_seq_len=4)
    assert model.apply([0, 1]) == [DEEP, DEEP + 1]
