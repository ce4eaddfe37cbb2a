"""The extra cases: programs against plain Python, compiled weights and the reference; depth."""

from collections import Counter
from itertools import accumulate, groupby, pairwise
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

ALL = case_ids("new")
TASKS = reference_tasks("extra_tasks.json")


# The tasks in plain Python


def everywhere(value: Any, xs: list[Any]) -> list[Any]:
    return [value] * len(xs)


def prefixes(xs: list[Any]) -> list[list[Any]]:
    return [xs[: i + 1] for i in range(len(xs))]


def share(flags: list[bool]) -> float:
    return sum(flags) / len(flags)


def inversions(xs: list[int]) -> list[int]:
    return [sum(y > x for y in xs[:i]) for i, x in enumerate(xs)]


def run_position(xs: list[int]) -> list[int]:
    return [place for _, run in groupby(xs) for place, _ in enumerate(run, start=1)]


def depths(xs: list[str]) -> list[int]:
    return list(accumulate({"(": 1, ")": -1}.get(x, 0) for x in xs))


def balanced(xs: list[str]) -> bool:
    text = "".join(xs)
    while "()" in text:
        text = text.replace("()", "")
    return not text


def hop(xs: list[int], times: int) -> list[int]:
    out = list(xs)
    for _ in range(times):
        out = [xs[x] for x in out]
    return out


def previous(xs: list[int], i: int) -> int | None:
    """Where the token at i occurred last before."""
    return next((j for j in reversed(range(i)) if xs[j] == xs[i]), None)


def distance_to_previous_same(xs: list[int]) -> list[int]:
    found = [previous(xs, i) for i in range(len(xs))]
    return [0 if j is None else i - j for i, j in enumerate(found)]


def induction_next_token(xs: list[int]) -> list[int]:
    found = [previous(xs, i) for i in range(len(xs))]
    return [xs[i] if j is None else xs[j + 1] for i, j in enumerate(found)]


def forward_fill(xs: list[int]) -> list[int]:
    return list(accumulate(xs, lambda last, x: x or last))


def majority(xs: list[int]) -> list[int]:
    padded = [xs[0], xs[0], *xs]
    return [sorted(padded[i : i + 3])[1] for i in range(len(xs))]


def ring(xs: list[int]) -> list[tuple[int, int, int]]:
    """Every token between its neighbours."""
    return [(xs[i - 1], x, xs[(i + 1) % len(xs)]) for i, x in enumerate(xs)]


def peaks(xs: list[int]) -> list[int]:
    return [int(x > before and x > after) for before, x, after in ring(xs)]


def halves_equal(xs: list[int]) -> list[int]:
    half = len(xs) // 2
    return everywhere(int(xs[:half] == xs[half:]), xs)


def mode(xs: list[int]) -> int:
    return max(xs, key=xs.count)  # max gives the earliest of several


def swap_max_to_front(xs: list[int]) -> list[int]:
    out, top = list(xs), xs.index(max(xs))
    out[0], out[top] = xs[top], xs[0]
    return out


def first_repeat(xs: list[int]) -> int:
    return next((i for i, x in enumerate(xs) if x in xs[:i]), 0)


def argsort(xs: list[int]) -> list[int]:
    return sorted(range(len(xs)), key=lambda i: xs[i])


def next_larger(xs: list[int]) -> list[int]:
    order = argsort(xs)
    after = dict(pairwise(order)) | {order[-1]: order[-1]}
    return [xs[after[i]] for i in range(len(xs))]


def drops(xs: list[int]) -> list[int]:
    return [x - y for x, y in pairwise(sorted(xs, reverse=True))] + [0]


def compact(xs: list[int]) -> list[int]:
    distinct = list(dict.fromkeys(xs))
    return distinct + [0] * (len(xs) - len(distinct))


def nonzero_palindrome(xs: list[int]) -> list[int]:
    kept = [x for x in xs if x]
    return everywhere(int(kept == kept[::-1]), xs)


ORACLES: dict[str, Oracle] = {
    # counting
    "new-count-earlier-larger": inversions,
    "new-total-inversions-even": lambda xs: everywhere(int(sum(inversions(xs)) % 2 == 0), xs),
    "new-occurrence-number": lambda xs: [seen.count(seen[-1]) for seen in prefixes(xs)],
    "new-count-distinct": lambda xs: everywhere(len(set(xs)), xs),
    "new-prefix-parity": lambda xs: list(accumulate(xs, lambda x, y: x ^ y)),
    "new-run-position": run_position,
    "new-bracket-depth": depths,
    "new-dyck1-check": lambda xs: everywhere(int(balanced(xs)), xs),
    "new-successor-present": lambda xs: [int(x + 1 in xs) for x in xs],
    "new-frequency-of-frequency": lambda xs: [Counter(map(xs.count, xs))[xs.count(x)] for x in xs],
    "new-median-split-flag": lambda xs: [
        int(argsort(xs).index(i) >= len(xs) / 2) for i in range(len(xs))
    ],
    "new-fraction-larger": lambda xs: [share([x > 2 for x in seen]) for seen in prefixes(xs)],
    "new-prefix-share-gap": lambda xs: [
        sum(seen) / len(seen) - sum(xs) / len(xs) for seen in prefixes(xs)
    ],
    "new-open-close-imbalance-three": lambda xs: [
        (seen.count("a") - seen.count("b") + seen.count("c")) / len(seen) for seen in prefixes(xs)
    ],
    # moving
    "new-pointer-hop-1": lambda xs: hop(xs, 1),
    "new-pointer-hop-2": lambda xs: hop(xs, 2),
    "new-pointer-hop-3": lambda xs: hop(xs, 3),
    "new-pointer-fixed-point": lambda xs: [int(xs[xs[x]] == x) for x in xs],
    "new-distance-to-previous-same": distance_to_previous_same,
    "new-induction-next-token": induction_next_token,
    "new-forward-fill": forward_fill,
    "new-three-back-majority": majority,
    "new-shift-cipher-by-first": lambda xs: [(x + xs[0]) % 6 for x in xs],
    "new-rotate-by-first": lambda xs: (xs * (xs[0] + 1))[xs[0] :][: len(xs)],
    "new-conditional-reverse": lambda xs: xs[::-1] if xs[0] % 2 == 0 else xs,
    "new-local-peak": peaks,
    "new-count-local-peaks": lambda xs: everywhere(sum(peaks(xs)), xs),
    "new-second-difference": lambda xs: [before - 2 * x + after for before, x, after in ring(xs)],
    "new-two-frequency-compare": lambda xs: [
        int(xs.count(x) > xs.count(after)) for _, x, after in ring(xs)
    ],
    "new-halves-equal": halves_equal,
    "new-mirror-match-fraction": lambda xs: everywhere(
        share([x == y for x, y in zip(xs, reversed(xs), strict=True)]), xs
    ),
    # ranking
    "new-most-frequent-token": lambda xs: everywhere(mode(xs), xs),
    "new-mask-all-but-mode": lambda xs: [x if x == mode(xs) else 0 for x in xs],
    "new-second-largest": lambda xs: everywhere(sorted(xs)[-2], xs),
    "new-value-range": lambda xs: everywhere(max(xs) - min(xs), xs),
    "new-swap-max-to-front": swap_max_to_front,
    "new-first-repeat-index": lambda xs: everywhere(first_repeat(xs), xs),
    "new-argsort": argsort,
    "new-reverse-sorted": lambda xs: sorted(xs, reverse=True),
    "new-stable-partition-parity": lambda xs: (
        [x for x in xs if x % 2] + [x for x in xs if x % 2 == 0]
    ),
    "new-next-larger-value": next_larger,
    "new-gap-to-next-larger": lambda xs: [y - x for x, y in zip(xs, next_larger(xs), strict=True)],
    "new-sort-descending-gap": drops,
    "new-largest-sorted-gap": lambda xs: everywhere(max(drops(xs)), xs),
    "new-sorted-run-count": lambda xs: everywhere(len(set(xs)), xs),
    "new-compact-first-occurrences": compact,
    "new-nonzero-palindrome": nonzero_palindrome,
}


def spoken_of(id: str, xs: list[Any]) -> bool:
    """Whether the task says what comes out for this input."""
    return id != "new-halves-equal" or len(xs) % 2 == 0


def test_every_case_has_an_oracle():
    assert sorted(ORACLES) == sorted(ALL)
    assert len(ALL) == 47


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
    assert most_common_share(load_case(id)) < 0.65


@pytest.mark.slow
def test_many_cases_are_deep():
    layers = Counter(load_case(id).layout.n_layers for id in case_ids())
    assert sum(count for n, count in layers.items() if n >= 4) >= 38
    assert sum(count for n, count in layers.items() if n >= 6) >= 7


def test_a_deep_circuit_is_the_chain_of_its_program():
    # Pointers: every hop reads its place from the hop before and its value from the input.
    assert load_case("new-pointer-hop-3").circuit.edges == {
        "input->a0.h0<q>",
        "input->a0.h0<k>",
        "input->a0.h0<v>",
        "a0.h0->a1.h0<q>",
        "input->a1.h0<k>",
        "input->a1.h0<v>",
        "a1.h0->a2.h0<q>",
        "input->a2.h0<k>",
        "input->a2.h0<v>",
        "a2.h0->logits",
    }


# The reference


def test_the_cases_are_the_tasks_of_the_reference():
    assert set(TASKS) == set(ALL)


@pytest.mark.parametrize("id", some(ALL))
def test_inputs_are_the_reference_ones(id: str):
    case, task = load_case(id), TASKS[id]
    assert case.vocab == tuple(task["vocab"])
    assert case.max_seq_len == task["max_content_len"] + 1
    assert case.min_seq_len == task["min_content_len"] + 1
    assert case.causal == task["causal"]


@pytest.mark.parametrize("id", some(ALL))
def test_examples_come_out(id: str):
    task = TASKS[id]
    assert_same(load_case(id).evaluate(task["example_in"]), task["example_out"], within=1e-4)


@pytest.mark.parametrize("id", some(ALL))
def test_layers_and_heads_are_the_measured_ones(id: str):
    expected = TASKS[id]["layout"]
    assert layout_of(load_case(id)) == expected
