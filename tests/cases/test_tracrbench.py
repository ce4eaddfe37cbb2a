"""TracrBench's tasks: programs against plain Python, compiled weights and the reference."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from graphcircuits.cases import case_ids, load_case
from tests.cases.programs import (
    Oracle,
    assert_same,
    drawn_inputs,
    interpreted,
    layout_of,
    looked_up,
    most_common_share,
)
from tests.cases.reference import reference_tasks
from tests.tiers import some

ALL = case_ids("tb")
TASKS = reference_tasks("tracrbench_tasks.json")
REPEATS = {id: task["repeats"] for id, task in TASKS.items() if task["repeats"]}
# Their output depends on positions only, so on inputs of one length it never changes.
BLIND = {"tb-index-parity", "tb-length", "tb-position", "tb-set-to-index"}


# The tasks in plain Python


def everywhere(value: Any, xs: list[Any]) -> list[Any]:
    return [value] * len(xs)


def ordered(xs: list[int]) -> bool:
    return xs == sorted(xs)


def element_divide(xs: list[int]) -> list[Any]:
    first, second = xs[:2]
    return [float(Fraction(x * first, second)) if first and second else x for x in xs]


def half_product(xs: list[int]) -> list[int]:
    if len(xs) % 2:
        pytest.fail("half products are for even lengths")
    half = len(xs) // 2
    return [x * y for x, y in zip(xs[:half], xs[half:], strict=True) for _ in range(2)]


def flip_halves(xs: list[int]) -> list[int]:
    half = len(xs) // 2
    middle = xs[half : len(xs) - half]
    return xs[len(xs) - half :] + middle + xs[:half]


def interleave_reverse(xs: list[int]) -> list[int]:
    out = list(xs)
    out[1::2] = xs[1::2][::-1]
    return out


def swapped(xs: list[int], i: int, j: int) -> list[int]:
    out = list(xs)
    out[i], out[j] = xs[j], xs[i]
    return out


def check_alternating(xs: list[int]) -> list[int]:
    steps = [(y - x) % 2 for x, y in pairwise(xs)]
    return everywhere(int(all(steps)), xs)


def rescale(xs: list[int]) -> list[float]:
    low, high = min(xs), max(xs)
    return [1.0 if low == high else (x - low) / (high - low) for x in xs]


def swap_min_max(xs: list[int]) -> list[int]:
    low, high = min(xs), max(xs)
    return [high if x == low else low if x == high else x for x in xs]


def sort_unique(xs: list[int]) -> list[int | None]:
    out: list[int | None] = [None] * len(xs)
    for x in xs:
        out[sorted(xs).index(x)] = x
    return out


def first_one(xs: list[int]) -> list[int]:
    return everywhere(xs.index(1) if 1 in xs else len(xs), xs)


def counts(xs: list[int]) -> list[int]:
    return [Counter(xs)[x] for x in xs]


def wrapped(x: int) -> int:
    while not 2 <= x < 7:
        x += 5 if x < 2 else -5
    return x


ORACLES: dict[str, Oracle] = {
    # one position
    "tb-alternate-elements": lambda xs: [i if i % 2 else x for i, x in enumerate(xs)],
    "tb-check-even": lambda xs: [1 if x in (0, 2, 4) else 0 for x in xs],
    "tb-divide-by": lambda xs: [x * 0.5 for x in xs],
    "tb-increment-by-index": lambda xs: [i + x for i, x in enumerate(xs)],
    "tb-index-parity": lambda xs: ([0, 1] * len(xs))[: len(xs)],
    "tb-position": lambda xs: list(range(1, len(xs) + 1)),
    "tb-set-to-index": lambda xs: list(range(len(xs))),
    "tb-replace-small-tokens": lambda xs: [0 if x in (0, 1) else x for x in xs],
    "tb-wrap": lambda xs: [wrapped(x) for x in xs],
    "tb-zero-even-indices": lambda xs: [x * (i % 2) for i, x in enumerate(xs)],
    # fixed positions
    "tb-first-element": lambda xs: everywhere(xs[0], xs),
    "tb-element-second": lambda xs: everywhere(xs[1], xs),
    "tb-check-multiple-of-first": lambda xs: [
        int(any(k * xs[0] == x for k in range(6))) if xs[0] else 0 for x in xs
    ],
    "tb-one-hot-first": lambda xs: [int(i == xs[0]) for i in range(len(xs))],
    "tb-element-divide": element_divide,
    "tb-polynomial": lambda xs: everywhere(xs[1] * xs[0] + xs[2], xs),
    "tb-multiply-all-elements": lambda xs: everywhere(xs[0] * xs[1] * xs[2], xs),
    "tb-swap-elements": lambda xs: [xs[1], xs[0], *xs[2:]],
    # neighbours
    "tb-pairwise-max": lambda xs: [max(xs[max(i - 1, 0) : i + 1]) for i in range(len(xs))],
    "tb-pairwise-sum": lambda xs: [sum(xs[max(i - 1, 0) : i + 1]) for i in range(len(xs))],
    "tb-rolling-max": lambda xs: [max(xs[max(i - 2, 0) : i + 1]) for i in range(len(xs))],
    "tb-zero-if-less-than-previous": lambda xs: [
        0 if i and x < xs[i - 1] else x for i, x in enumerate(xs)
    ],
    "tb-predecessor-difference": lambda xs: [
        0,
        *(y - x for x, y in pairwise(xs)),
    ],
    "tb-difference-to-next": lambda xs: [*(y - x for x, y in pairwise(xs)), 0],
    "tb-product-with-next": lambda xs: [x * y for x, y in zip(xs, [*xs[1:], xs[-1]], strict=True)],
    "tb-sum-with-next": lambda xs: [x + y for x, y in zip(xs, [*xs[1:], xs[-1]], strict=True)],
    "tb-one-if-equal-to-next": lambda xs: [
        1 if x == y else x for x, y in zip(xs, xs[1:] + xs[:1], strict=True)
    ],
    # the end
    "tb-average-first-last": lambda xs: everywhere((xs[0] + xs[-1]) / 2, xs),
    "tb-check-last-two-equal": lambda xs: everywhere(int(xs[-1] == xs[-2]), xs),
    "tb-sum-of-last-two": lambda xs: everywhere(sum(xs[-2:]), xs),
    # rearranging
    "tb-rotate-left": lambda xs: xs[1:] + xs[:1],
    "tb-swap-first-last": lambda xs: swapped(xs, 0, -1),
    "tb-flip-halves": flip_halves,
    "tb-interleave-reverse": interleave_reverse,
    "tb-elementwise-product-of-half-sequence": half_product,
    # counting
    "tb-length": lambda xs: everywhere(len(xs), xs),
    "tb-count-frequency": counts,
    "tb-count-occurrences": counts,
    "tb-histogram": counts,
    "tb-count-less-freq": lambda xs: everywhere(sum(n for n in Counter(xs).values() if n <= 2), xs),
    "tb-rank": lambda xs: [sorted(xs).index(x) + 1 for x in xs],
    "tb-remove-duplicates": lambda xs: [x if xs.count(x) == 1 else 0 for x in xs],
    "tb-one-hot-decode": first_one,
    "tb-check-alternating": check_alternating,
    "tb-check-descending": lambda xs: everywhere(int(ordered(xs[::-1])), xs),
    "tb-check-increasing": lambda xs: everywhere(int(ordered(xs)), xs),
    "tb-check-palindrome": lambda xs: everywhere(int(xs == xs[::-1]), xs),
    "tb-test-at-least-two-equal": lambda xs: everywhere(int(len(set(xs)) < len(xs)), xs),
    # ranking
    "tb-max-element": lambda xs: everywhere(max(xs), xs),
    "tb-min-element": lambda xs: everywhere(min(xs), xs),
    "tb-rescale-by-max": lambda xs: [x / max(xs) if max(xs) else x for x in xs],
    "tb-rescale": rescale,
    "tb-swap-min-max": swap_min_max,
    "tb-compute-median": lambda xs: everywhere(median(xs), xs),
    "tb-set-to-median": lambda xs: everywhere(median(xs), xs),
    "tb-sort": sorted,
    "tb-sorting": sorted,
    "tb-sort-unique": sort_unique,
    "tb-sort-freq": lambda xs: sorted(xs, key=lambda x: -xs.count(x)),
}


def spoken_of(id: str, xs: list[Any]) -> bool:
    """Whether the task says what comes out for this input."""
    return id != "tb-elementwise-product-of-half-sequence" or len(xs) % 2 == 0


def test_every_case_has_an_oracle():
    assert sorted(ORACLES) == sorted(ALL)
    assert len(ALL) == 59


@pytest.mark.slow
@pytest.mark.parametrize("id", some(ALL))
def test_the_program_does_the_task(id: str):
    case, oracle = load_case(id), ORACLES[id]
    for xs, output in interpreted(id):
        if spoken_of(id, xs):
            assert_same(output, oracle(xs))
    more = [xs for xs in drawn_inputs(case, 200) if spoken_of(id, xs)]
    for xs, output in zip(more, looked_up(case, more), strict=True):
        assert_same(output, oracle(xs))


@pytest.mark.slow
@pytest.mark.parametrize("id", some(ALL))
def test_the_compiled_model_is_the_program(id: str):
    inputs, outputs = zip(*interpreted(id), strict=True)
    for got, expected in zip(load_case(id).compiled.apply_batch(inputs), outputs, strict=True):
        assert_same(got, expected, within=1e-6)


@pytest.mark.parametrize("id", some(ALL))
def test_no_answer_is_nearly_always_right(id: str):
    share = most_common_share(load_case(id))
    assert share == 1 if id in BLIND else share < 0.65


def test_a_program_is_named_after_its_case():
    case = load_case("tb-rank")
    assert (case.name, case.family, case.paper_split) == ("rank", "tb", None)
    assert case.program.name == "rank"


# The reference


def test_the_cases_are_the_tasks_of_the_reference():
    assert sorted(ALL) == sorted(TASKS)


@pytest.mark.parametrize("id", some(ALL))
def test_inputs_are_the_reference_ones(id: str):
    case, task = load_case(id), TASKS[id]
    # Eight of six tokens always repeat one, so this case is shorter.
    longest = 6 if id == "tb-test-at-least-two-equal" else task["max_content_len"]
    assert case.vocab == tuple(task["vocab"])
    assert case.max_seq_len == longest + 1
    assert case.min_seq_len == task["min_content_len"] + 1
    assert case.causal == task["causal"]


@pytest.mark.parametrize("id", some(ALL))
def test_examples_come_out(id: str):
    task = TASKS[id]
    assert_same(load_case(id).evaluate(task["example_in"]), task["example_out"], within=1e-4)


@pytest.mark.parametrize("id", some(ALL))
def test_layers_and_heads_are_the_measured_ones(id: str):
    expected = TASKS[id]["layout"]
    if id == "tb-one-hot-decode":
        expected = {"layers": 2, "heads_by_layer": [1, 1], "mlp_layers": [0, 1]}
    assert layout_of(load_case(id)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("id", "original"), REPEATS.items())
def test_a_repeat_computes_what_the_original_does(id: str, original: str):
    repeat, first = load_case(id), load_case(original)
    if id == "tb-replace-small-tokens":  # the same with another threshold
        assert repeat.circuit.edges == first.circuit.edges
        return
    for xs in drawn_inputs(repeat, 20):
        # Without ties, where the shorter of the two sorts is one.
        known = list(dict.fromkeys(xs)) if id == "tb-sort-unique" else xs
        assert_same(repeat.evaluate(known), first.evaluate(known))
