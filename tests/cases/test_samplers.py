"""Samplers for lopsided questions: what every row is like, how often, and what they refuse."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Generator

from graphcircuits.cases import case_ids, load_case
from graphcircuits.cases.samplers import SAMPLERS, draw, spoiled

DIGITS = (0, 1, 2, 3, 4, 5)


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def rows_of(sampler: str, vocab: tuple = DIGITS, length: int = 6, n: int = 400) -> list[list]:
    return [[vocab[i] for i in row] for row in draw(sampler, vocab, length, n, seeded()).tolist()]


def share(flags: list[bool]) -> float:
    return sum(flags) / len(flags)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_rows_follow_the_generator_and_stay_in_the_vocabulary(sampler: str):
    vocab = {
        "balanced-brackets": ("(", ")"),
        "one-hot": (0, 1),
        "even-or-one-odd": tuple(range(12)),
    }.get(sampler, DIGITS)
    rows = draw(sampler, vocab, 6, 50, seeded())
    assert rows.shape == (50, 6)
    assert rows.dtype == torch.int64
    assert 0 <= rows.min() <= rows.max() < len(vocab)
    assert torch.equal(rows, draw(sampler, vocab, 6, 50, seeded()))
    assert not torch.equal(rows, draw(sampler, vocab, 6, 50, seeded(1)))
    assert draw(sampler, vocab, 6, 0, seeded()).shape == (0, 6)


def test_every_sampler_has_a_case():
    used = {load_case(id).sampler for id in case_ids()}
    assert used == set(SAMPLERS)


@pytest.mark.parametrize(
    ("sampler", "holds"),
    [
        ("last-two-equal", lambda xs: xs[-1] == xs[-2]),
        ("ascending", lambda xs: xs == sorted(xs)),
        ("descending", lambda xs: xs == sorted(xs, reverse=True)),
        ("alternating", lambda xs: len({(x + i) % 2 for i, x in enumerate(xs)}) == 1),
        ("palindrome", lambda xs: xs == xs[::-1]),
        ("doubled", lambda xs: xs[:3] == xs[3:]),
        ("distinct", lambda xs: len(set(xs)) == len(xs)),
    ],
)
def test_about_half_of_the_rows_answer_yes(sampler: str, holds: Callable[[list], bool]):
    assert 0.43 < share([holds(xs) for xs in rows_of(sampler)]) < 0.65


def test_odd_lengths_have_a_middle():
    assert share([xs == xs[::-1] for xs in rows_of("palindrome", length=5)]) > 0.43
    assert share([xs[:3] == [*xs[3:], xs[2]] for xs in rows_of("doubled", length=5)]) > 0.43


def test_spoiled_rows_differ_at_one_or_more_positions_in_half_of_the_rows():
    rows = torch.arange(6).expand(4000, 6)
    out = spoiled(rows, 6, seeded())
    changed = (out != rows).sum(dim=1)
    counts = Counter(changed.tolist())
    assert abs(counts[0] - 2000) < 150
    assert all(abs(counts[k] - 2000 / 6) < 90 for k in range(1, 7))
    # Any position may change, to any other token.
    assert len({(i, row[i]) for row in out.tolist() for i in range(6)}) == 36


def test_balanced_strings_are_equally_likely():
    rows = ["".join(xs) for xs in rows_of("balanced-brackets", ("(", ")"), n=8000)]
    counts = Counter(rows)
    balanced = ["((()))", "(()())", "(())()", "()(())", "()()()"]
    assert {text for text, count in counts.items() if count > 500} == set(balanced)
    assert all(abs(counts[text] - 8000 * 0.53 / 5) < 120 for text in balanced)


def test_subsets_have_every_size():
    kinds = Counter(len(set(xs)) for xs in rows_of("subset", length=30, n=1200))
    assert set(kinds) == {1, 2, 3, 4, 5, 6}
    assert all(abs(count - 200) < 70 for count in kinds.values())


def test_sparse_rows_have_every_number_of_zeros_at_any_position():
    rows = rows_of("sparse", n=1400)
    zeros = Counter(xs.count(0) for xs in rows)
    assert set(zeros) == set(range(7))
    assert all(abs(count - 200) < 70 for count in zeros.values())
    assert all(abs(share([xs[i] == 0 for xs in rows]) - 0.5) < 0.06 for i in range(6))
    assert {x for xs in rows for x in xs} == set(DIGITS)


def test_one_hot_rows_have_one_1_anywhere():
    rows = rows_of("one-hot", (0, 1))
    assert {sum(xs) for xs in rows} == {1}
    assert {xs.index(1) for xs in rows} == set(range(6))


@pytest.mark.parametrize(
    ("sampler", "vocab", "length", "message"),
    [
        ("sparse", (1, 2), 4, r"must hold 0, got \(1, 2\)"),
        ("sparse", (0,), 4, r"must hold a token other than 0, got \(0,\)"),
        ("one-hot", (0, 2), 4, r"must hold 1, got \(0, 2\)"),
        ("alternating", (1, 3), 4, r"must hold an even number, got \(1, 3\)"),
        ("alternating", (0, 2), 4, r"must hold an odd number, got \(0, 2\)"),
        ("distinct", (0, 1, 2), 4, r"must hold 4 tokens, got 3"),
        ("balanced-brackets", ("(", "x"), 4, r"must hold '\)', got \('\(', 'x'\)"),
        ("balanced-brackets", ("(", ")"), 5, r"even length, got 5"),
    ],
)
def test_inputs_that_a_sampler_cannot_make_are_refused(
    sampler: str, vocab: tuple, length: int, message: str
):
    with pytest.raises(ValueError, match=message):
        draw(sampler, vocab, length, 3, seeded())
