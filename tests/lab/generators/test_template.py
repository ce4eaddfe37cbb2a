"""Templates: what they forget, what they keep, and how a function finds its source."""

import functools
import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from graphcircuits import rasp
from graphcircuits.rasp import Comparison, Map, Select, SelectorWidth, SOp, indices, tokens
from lab.generators.template import program_template, source_template


def mapped(f: Callable[..., Any]) -> SOp:
    return Map(f, tokens)


def same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions have one template, alone and as the function of a map."""
    alone = source_template(one) == source_template(other)
    assert alone == (program_template(mapped(one)) == program_template(mapped(other)))
    return alone


# What a template forgets


def plain(x: int) -> int:
    total = x + 1
    return total


@functools.cache
def decorated(number):  # pyright: ignore[reportMissingParameterType]  # annotations must not count
    """A docstring."""
    result: int = number + 7
    return result


def helped(x: int) -> int:
    return plain(x) * 2


def test_names_literals_docstrings_decorators_and_annotations_are_forgotten():
    assert same(plain, decorated)
    assert same(lambda x: x == "a", lambda token: token == "x")
    assert same(lambda x: x + 1, lambda x: x + -1.5)
    assert same(lambda x: f"{x}!", lambda x: "text")


def test_two_lambdas_on_one_line_are_told_apart():
    fs = [lambda x: x + 1, lambda x: x * 2, lambda x: x + 3]
    assert same(fs[0], fs[2])
    assert not same(fs[0], fs[1])


def test_a_lambda_that_gives_a_constant_needs_no_columns():
    fs = [lambda _: True, lambda _: 0, lambda x: x]
    bare = [FunctionType(f.__code__.replace(co_linetable=b""), {}) for f in fs]
    assert [source_template(f) for f in bare[:2]] == [source_template(f) for f in fs[:2]]
    assert not same(fs[0], fs[1])
    with pytest.raises(ValueError, match=r"no source for the function .*-X no_debug_ranges"):
        source_template(bare[2])


def test_names_given_to_expressions_are_forgotten():
    assert source_template(lambda: mapped(abs).named("a")) == source_template(lambda: mapped(abs))


# What it keeps


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x + 1, lambda x: x - 1),
        (lambda x: x + x, lambda x: x + 1),
        (lambda x: x and None, lambda x: x and True),
        (lambda x: math.sin(x), lambda x: math.cos(x)),
        (math.sin, math.cos),
        (lambda x: abs(x), lambda x: int(x)),
        (lambda x: (x, 1), lambda x: (1, x)),
        (lambda x: (x, 1), lambda x: (x, 1, 1)),
        (lambda x, y=1: x, lambda x: x),
        (lambda x: plain(x), lambda x: helped(x)),
        (lambda x: [-y for y in x], lambda x: [-x for y in x]),
        (lambda x: [-y for y in x if y], lambda x: [-y for y in x]),
        (lambda x: {k: -v for k, v in x}, lambda x: {v: -k for k, v in x}),
    ],
)
def test_different_syntax_is_different(one: Callable[..., Any], other: Callable[..., Any]):
    assert same(one, one)
    assert not same(one, other)


def test_helpers_count_by_what_they_do_and_captured_values_as_literals():
    def adder(step: object) -> Callable[[int], int]:
        return lambda x: x + step  # pyright: ignore[reportOperatorIssue]

    def caller(f: Callable[[int], int]) -> Callable[[int], int]:
        return lambda x: f(x)

    assert same(adder(1), adder(5))
    assert same(adder(1), lambda x: x + 2)
    assert not same(adder(1), adder(None))
    assert same(caller(plain), caller(decorated))
    assert not same(caller(plain), caller(helped))


def test_an_inner_name_hides_an_outer_one():
    assert same(lambda x: [-plain for plain in x], lambda x: [-y for y in x])
    assert same(lambda x: (lambda plain: plain)(x), lambda x: (lambda y: y)(x))
    # The sequence of a comprehension is read outside it.
    assert same(lambda x: [-x for x in x], lambda x: [-y for y in x])
    # A name of an inner scope is not known outside it.
    assert not same(lambda x: (lambda plain: plain)(plain), lambda x: (lambda y: y)(x))


def test_a_recursive_function_has_a_template():
    def down(n: int) -> int:
        return 0 if n == 0 else down(n - 1)

    def down_too(m: int) -> int:
        return 5 if m == 6 else down_too(m - 7)

    def twice(n: int) -> int:
        return 0 if n == 0 else plain(n - 1)

    assert same(down, down_too)
    assert not same(down, twice)


# Programs


def width(keys: SOp, queries: SOp, predicate: rasp.Predicate) -> SOp:
    return SelectorWidth(Select(keys, queries, predicate))


def test_a_program_keeps_kinds_encodings_predicates_and_who_reads_whom():
    by_number = mapped(lambda x: x + 1)
    programs = [
        by_number,
        Map(lambda x: x + 1, indices),
        rasp.numerical(mapped(lambda x: x + 1)),
        rasp.SequenceMap(lambda x, y: x + y, by_number, by_number),
        rasp.SequenceMap(lambda x, y: x + y, by_number, mapped(lambda x: x + 1)),
        width(tokens, tokens, Comparison.EQ),
        width(tokens, tokens, Comparison.LT),
        width(tokens, indices, Comparison.EQ),
        width(indices, tokens, Comparison.EQ),
        width(tokens, tokens, lambda k, q: k == q),
        rasp.Aggregate(Select(indices, indices, Comparison.EQ), tokens),
        rasp.Aggregate(Select(indices, indices, Comparison.EQ), tokens, default=0),
        rasp.Full(1),
    ]
    forms = [program_template(program) for program in programs]
    assert len(set(forms)) == len(programs)


def test_a_program_keeps_how_predicates_are_joined():
    def width_of(joined: rasp.Selector) -> object:
        return program_template(SelectorWidth(joined))

    equal, less = (Select(tokens, tokens, c) for c in (Comparison.EQ, Comparison.LT))
    one, other = (Select(tokens, rasp.Full(n), Comparison.LT) for n in (1, 2))
    joined = [equal & less, less & equal, equal | less, ~equal, equal & one, one & equal]
    assert len({width_of(each) for each in joined}) == len(joined)
    assert width_of(equal & one) == width_of(equal & other)


def test_a_program_forgets_names_and_constants():
    one = rasp.Aggregate(Select(indices, indices, Comparison.EQ), tokens, default=0).named("one")
    other = rasp.Aggregate(Select(indices, indices, Comparison.EQ), tokens, default=7)
    assert program_template(one) == program_template(other)
    assert program_template(rasp.Full(1)) == program_template(rasp.Full("a"))
    factors = [
        rasp.numerical(rasp.LinearSequenceMap(rasp.numerical(one), rasp.numerical(other), a, 1))
        for a in (1, -2.5)
    ]
    assert program_template(factors[0]) == program_template(factors[1])
    assert program_template((tokens + 1) * 2) == program_template((tokens + 3) * 4)
    assert program_template((tokens + 1) * 2) != program_template((tokens * 1) + 2)


# Errors


def test_a_function_without_source_is_refused():
    names: dict[str, Any] = {}
    exec("def made_up(x):\n    return x", names)
    with pytest.raises(ValueError, match=r"no source for the function 'made_up' in <string>;"):
        source_template(names["made_up"])


def test_a_name_that_nothing_defines_is_reported():
    f = lambda x: x + no_such_name  # noqa: E731, F821  # pyright: ignore[reportUndefinedVariable]
    with pytest.raises(ValueError, match=r"uses 'no_such_name', which is defined nowhere"):
        source_template(f)
