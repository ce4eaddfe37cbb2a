"""Calls: what each answers, worked out in plain Python, what it is asked, and what is refused."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from operator import itemgetter
from typing import Any

import pytest
import torch

from graphcircuits import rasp
from graphcircuits.cases.calls import (
    AB,
    BRACKETS,
    CALLS,
    COLON,
    DIGITS,
    GIVES,
    LETTERS,
    NO,
    YES,
    Call,
    at,
)

pytestmark = pytest.mark.usefixtures("unchecked")

N = 80
"""Inputs of each call that are answered."""

Words = list[str]


def said(holds: bool) -> str:
    return "yes" if holds else "no"


def letter_after(letter: str) -> str:
    return "bcda"["abcd".index(letter)]


def doubled(words: Words) -> str:
    """The only word that comes twice."""
    (found,) = {word for word in words if words.count(word) == 2}
    return found


def behind_earlier(words: Words) -> str:
    """What stands behind the last word where it stood before."""
    return words[words.index(words[-1]) + 1]


def balanced(words: Words) -> bool:
    """Whether nothing is left when pairs of brackets that touch are taken out."""
    text = "".join(words)
    while "()" in text:
        text = text.replace("()", "")
    return not text


def pointed(words: Words, times: int) -> str:
    found = words[0]
    for _ in range(times):
        found = words[int(found)]
    return found


def modulo(total: int) -> str:
    return str(total % 4)


ANSWERS: dict[str, Callable[[Words], str | Words]] = {
    "first": lambda w: w[0],
    "last": lambda w: w[-1],
    "copy": lambda w: w,
    "back": lambda w: w[::-1],
    "shift": lambda w: letter_after(w[1]),
    "count": lambda w: str(w.count("a")),
    "even": lambda w: said(w.count("a") in (0, 2, 4)),
    "where": lambda w: str("".join(w).find("a")),
    "more": lambda w: Counter(w).most_common(1)[0][0],
    "both": lambda w: said({"a", "b"} <= set(w)),
    "same": lambda w: said(w[0] == w[2]),
    "larger": lambda w: max(w, key=int),
    "add": lambda w: modulo(sum(map(int, w))),
    "total": lambda w: modulo(sum(map(int, w))),
    "carry": lambda w: said(len(bin(int(w[0]) + int(w[1]))) > 4),
    "flip": lambda w: w[2].translate(str.maketrans("ab", "ba")),
    "alike": lambda w: said((w[0] in "ab") == (w[3] in "ab")),
    "tally": lambda w: str(len([x for x in w if x == w[0]])),
    "find": lambda w: str(next(i for i, x in enumerate(w) if x.isdecimal())),
    "recall": lambda w: next(d for x, d in pairwise(w) if x == w[4] and d.isdecimal()),
    "follow": behind_earlier,
    "predict": lambda w: letter_after(behind_earlier(w)),
    "after": lambda w: "".join(w).partition("a")[2][0],
    "twice": doubled,
    "again": lambda w: said(w[-1] in w[:-1]),
    "sort": sorted,
    "balance": lambda w: said(balanced(w)),
    "change": lambda w: str(sum(x != y for x, y in pairwise(w))),
    "rise": lambda w: said(w == sorted(set(w))),
    "hop": lambda w: pointed(w, 1),
    "leap": lambda w: modulo(int(pointed(w, 1)) + 1),
    "far": lambda w: pointed(w, 2),
    "pick": lambda w: w[int(w[4])],
}
"""What each call should answer, from its sentence alone."""


def sampled(call: Call, n: int, seed: int = 0) -> list[Words]:
    return call.sample(n, torch.Generator().manual_seed(seed))


@cache
def answered(name: str) -> list[tuple[Words, Words]]:
    """Inputs of a call with the answers that it gives."""
    return [(words, CALLS[name].answer(words)) for words in sampled(CALLS[name], N)]


def listed(answer: str | Words) -> Words:
    return [answer] if isinstance(answer, str) else answer


# Answers


def test_every_call_has_a_twin() -> None:
    assert set(ANSWERS) == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_answers_are_those_of_the_sentence(name: str) -> None:
    call = CALLS[name]
    for words, answer in answered(name):
        assert answer == listed(ANSWERS[name](words)), words
        assert len(answer) == call.answers
        assert set(answer) <= set(call.outputs)
    # No answer is a good guess.
    often = Counter(str(ANSWERS[name](words)) for words in sampled(call, 2000))
    assert max(often.values()) <= 0.75 * 2000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("first : d a a b c = d", "daabc"),
        ("copy : c a b = c a b", "cab"),
        ("back : a b c d = d c b a", "abcd"),
        ("shift : a d a a a = a", "adaaa"),
        ("count : b b b b b = 0", "bbbbb"),
        ("where : c a d d b = 1", "caddb"),
        ("sort : b a b a = a a b b", "baba"),
        ("balance : ) ( ( ) = no", ")(()"),
        ("balance : ( ) ( ) = yes", "()()"),
        ("total : 3 3 3 = 1", "333"),
        ("recall : c 2 a 0 c = 2", "c2a0c"),
        ("follow : c a d b c = a", "cadbc"),
        ("predict : a d c b a = a", "adcba"),
        ("after : b a c d d = c", "bacdd"),
        ("rise : 0 0 1 = no", "001"),
        ("far : 2 3 1 0 = 3", "2310"),
        ("leap : 3 0 0 3 = 0", "3003"),
        ("pick : a b c d 2 = c", "abcd2"),
    ],
)
def test_texts(text: str, words: str) -> None:
    assert CALLS[text.partition(" ")[0]].text(list(words)) == text


@pytest.mark.parametrize("name", CALLS)
def test_an_answer_is_never_a_map_of_the_sign_before_it(name: str) -> None:
    """At `=` and at what was answered, the words tell nothing: answers come by attention."""
    seen: dict[tuple[int, str], set[str]] = {}
    for _, answer in answered(name):
        for place, (read, given) in enumerate(zip([GIVES, *answer], answer, strict=False)):
            seen.setdefault((place, read), set()).add(given)
    assert len(seen[0, GIVES]) > 1
    # In order, behind a `b` there are only more.
    assert all(len(given) > 1 for (_, read), given in seen.items() if (name, read) != ("sort", "b"))


@pytest.mark.parametrize("name", CALLS)
def test_later_answers_are_read_off_the_whole_window(name: str) -> None:
    """What the program puts out at `=` and behind, over the window once, are the answers."""
    call = CALLS[name]
    for words, answer in answered(name)[:10]:
        window = [*words, GIVES, *answer[:-1]]
        assert len(window) == call.window
        given = rasp.evaluate(call.program, window, causal=True)
        assert list(map(str, given[call.length :])) == answer


# What they are asked


def test_inputs_have_the_words_and_length_of_the_call() -> None:
    for call in CALLS.values():
        rows = sampled(call, 300)
        assert {len(row) for row in rows} == {call.length}
        assert {word for row in rows for word in row} == set(call.words)
        assert rows == sampled(call, 300)
        assert rows != sampled(call, 300, seed=1)


def one_twice(words: Words) -> bool:
    """Four letters, all different, and one of the first three again."""
    return set(words[:4]) == set(LETTERS) and words[4] in words[:3]


def entries(words: Words) -> bool:
    """The last letter has one digit behind it; so has one other letter, or there is no other."""
    pairs = [(x, digit) for x, digit in pairwise(words) if digit in DIGITS]
    digits = sum(word in DIGITS for word in words)
    asked = [x for x, _ in pairs if x == words[4]]
    return len(asked) == 1 and len({*map(itemgetter(0), pairs)} - {*DIGITS}) == digits in (1, 2)


ASKED: dict[str, Callable[[Words], bool]] = {
    "where": lambda w: w.count("a") == 1 and w[-1] != "a",
    "after": lambda w: w.count("a") == 1 and w[-1] != "a",
    "find": lambda w: sum(x in DIGITS for x in w) == 1,
    "recall": entries,
    "follow": one_twice,
    "predict": one_twice,
    "twice": lambda w: sorted(Counter(w).values()) == [1, 1, 1, 2],
    "rise": lambda w: len(set(w)) == 3,
    "pick": lambda w: set(w[:4]) <= set(LETTERS) and w[4] in DIGITS,
}
"""What holds of the inputs of calls that are not asked about just any words."""


@pytest.mark.parametrize("name", CALLS)
def test_inputs_are_worth_asking_about(name: str) -> None:
    call = CALLS[name]
    assert (call.draw is None) == (name not in ASKED and name != "balance")
    rows = sampled(call, 600)
    if name in ASKED:
        assert all(map(ASKED[name], rows))
        return
    if call.draw is None:  # uniform
        counts = Counter(word for row in rows for word in row)
        for count in counts.values():
            share = count / (600 * call.length)
            assert share == pytest.approx(1 / len(call.words), abs=0.05)


def test_about_half_are_balanced_and_about_half_rise() -> None:
    for name in ("balance", "rise"):
        answers = Counter(str(ANSWERS[name](words)) for words in sampled(CALLS[name], 600))
        assert 0.4 < answers["yes"] / 600 < 0.6


# What is known of a call


def test_outputs_are_the_values_of_the_program_as_words() -> None:
    assert CALLS["even"].outputs == (NO, YES)
    assert set(CALLS["first"].outputs) == {*LETTERS, GIVES}
    assert CALLS["count"].outputs == tuple(map(str, range(7)))
    assert CALLS["add"].outputs == DIGITS


def test_spoken_is_every_word_of_its_texts() -> None:
    expected = ("count", COLON, *AB, GIVES, *map(str, range(7)))
    assert CALLS["count"].spoken == expected
    assert CALLS["balance"].spoken == ("balance", COLON, *BRACKETS, GIVES, NO, YES)
    for name, call in CALLS.items():
        assert len(set(call.spoken)) == len(call.spoken)
        used = {word for words, answer in answered(name) for word in (*words, *answer)}
        assert used <= set(call.spoken)


def test_windows_of_several_answers_hold_these() -> None:
    counts = rasp.SelectorWidth(rasp.Select(rasp.tokens, rasp.Full("a"), rasp.Comparison.EQ))
    once = Call(name="once", program=counts, words=AB, length=3)
    assert once.tables.vocab == ("=", "a", "b")
    again = Call(name="again", program=counts, words=AB, length=3, answers=2)
    assert again.window == 5
    assert set(again.tables.vocab) == {"=", "a", "b", *again.outputs}
    assert again.outputs == tuple("012345")
    assert again.answer(["a", "b", "a"]) == ["2", "2"]


def test_answers_that_are_made_of_answers_are_known() -> None:
    """Each is the letter after the one before it, which the words may not have."""
    last = at(0)
    after = rasp.SequenceMap(lambda x, y: chr(1 + ord(x if y == GIVES else y)), last, rasp.tokens)
    call = Call(name="on", program=after, words=("p", "q"), length=1, answers=4)
    assert call.answer(["q"]) == [*"rstu"]
    assert set("pqrst=") <= set(call.tables.vocab)
    assert set("qrstu") <= set(call.outputs)


def test_calls_are_distinct_and_told_in_a_sentence() -> None:
    assert len({call.task for call in CALLS.values()}) == len(CALLS) == 33
    for name, call in CALLS.items():
        assert call.name == name
        assert call.task.endswith(".")
        assert call.tables.causal


# Refusals


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({"name": "two words"}, ["the name must be a word of letters, got 'two words'"]),
        ({"name": ""}, ["the name must be a word of letters, got ''"]),
        ({"name": "\u00e9t\u00e9"}, ["the name must be a word of letters, got '\u00e9t\u00e9'"]),
        ({"length": 0}, ["a call takes and gives at least one word"]),
        ({"answers": 0}, ["a call takes and gives at least one word"]),
        *(
            ({"words": words}, ["the words must be distinct, at least one, and not '='"])
            for words in ((), ("a", "="), ("a", "a"))
        ),
        (
            {"name": "a1", "length": 0, "words": ()},
            [
                "the name must be a word of letters, got 'a1'",
                "a call takes and gives at least one word",
                "the words must be distinct, at least one, and not '='",
            ],
        ),
    ],
)
def test_what_is_no_call_is_refused_with_every_reason(
    changes: dict[str, Any], problems: Sequence[str]
) -> None:
    given = {"name": "mine", "program": at(0)} | changes
    with pytest.raises(ValueError, match=r"^call ") as caught:
        Call(**given)
    assert str(caught.value) == f"call {given['name']!r}: {'; '.join(problems)}."


def test_a_program_that_cannot_be_compiled_is_refused() -> None:
    everywhere = rasp.Select(rasp.indices, rasp.indices, rasp.Comparison.TRUE)
    mean = rasp.numerical(rasp.Aggregate(everywhere, rasp.Map(int, rasp.tokens)))
    call = Call(name="mean", program=mean, words=DIGITS, length=2)
    with pytest.raises(rasp.RaspError, match=r"^call 'mean': "):
        _ = call.tables
