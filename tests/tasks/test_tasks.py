"""The tasks: what they draw is what a reader would answer, fits the tokenizer, and comes again."""

import re
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from graphcircuits import tasks
from graphcircuits.tasks import TextPair
from graphcircuits.tasks.task import WORDS, Task, WholeWords
from tests import text
from tests.tiers import some

TOKENIZERS: dict[str, Callable[[], Any]] = {
    "single-digits": text.single_digits,
    "double-digits": text.double_digits,
    "bos-first": text.bos_first,
}
NAMES = "|".join(WORDS["women"] + WORDS["men"])


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    return {name: make() for name, make in TOKENIZERS.items()}


# What a reader of the prompt alone would answer, as slow twins of the generators


def last_line(prompt: str) -> str:
    return prompt.splitlines()[-1]


def receiver(prompt: str) -> str:
    """The name that comes once."""
    counts = Counter(re.findall(rf"\b({NAMES})\b", prompt))
    return min(counts, key=lambda name: counts[name])


def verb(prompt: str) -> str:
    return "many" if prompt.split()[1].endswith("s") else "one"


def followed(prompt: str) -> str:
    *words, asked = prompt.split()
    return words[words.index(asked) + 1] if asked in words else "?"


def gender(prompt: str) -> str:
    return "she" if re.findall(rf"\b({NAMES})\b", prompt)[-1] in WORDS["women"] else "he"


def next_argument(prompt: str) -> str:
    definition = re.findall(r"\w+", prompt.splitlines()[0])
    return definition[definition.index("self") + 1 + prompt.count(":param ")]


def owner(prompt: str) -> str:
    asked = re.findall(r"The (\w+) belongs", prompt)[0]
    return re.findall(rf"(\w+) has the {asked}\.", prompt)[0]


def color(prompt: str) -> str:
    asked = re.findall(r"color is the (\w+)", prompt)[0]
    return re.findall(rf"The {asked} is (\w+)", prompt)[0]


def closing(prompt: str) -> str:
    return {"[": "]", "(": ")", "{": "}"}[re.findall(r"[\[({]", prompt)[0]]


ANSWERS: dict[str, Callable[[str], str]] = {
    "ioi": receiver,
    "induction": followed,
    "pronouns": gender,
    "reflexives": lambda prompt: {"she": "herself", "he": "himself"}[gender(prompt)],
    "docstring": next_argument,
    "arithmetic": lambda prompt: str(sum(map(int, re.findall(r"\d", last_line(prompt))))),
    "plurals": lambda prompt: re.findall(r"\w+", prompt)[-2] + "s",
    "capitalize": lambda prompt: re.findall(r"\w+", prompt)[-1].title(),
    "binding": owner,
    "colored-objects": color,
    "acronyms": lambda prompt: last_line(prompt).split(":")[0].split()[-1][0],
    "brackets": closing,
    "quotes": lambda prompt: re.findall("[\"']", prompt)[0],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_those_of_a_reader(name: str, tokenizers: dict[str, Any]) -> None:
    for pair in tasks.find(name).texts(tokenizers["single-digits"], 16, seed=3):
        assert pair.correct.strip() == ANSWERS[name](pair.clean)
        if name == "ioi":
            # Three names once each: none is the right one any more.
            assert len(set(re.findall(rf"\b({NAMES})\b", pair.corrupted))) == 3
        elif name == "induction":
            assert ANSWERS[name](pair.corrupted) == "?"
        else:
            assert ANSWERS[name](pair.corrupted) != pair.correct.strip()


def open_bracket(prompt: str) -> str:
    """What closes the last bracket that is open."""
    pairs, opened = {"[": "]", "(": ")", "{": "}"}, []
    for sign in prompt:
        if sign in pairs:
            opened.append(pairs[sign])
        elif opened and sign == opened[-1]:
            opened.pop()
    return opened[-1]


def second_half(prompt: str) -> str:
    asked = re.findall(r"print\((\w+)_$", prompt)[0]
    return re.findall(rf"^{asked}_(\w+) = ", prompt, re.MULTILINE)[0]


def agreeing(prompt: str) -> str:
    return "is was has" if prompt.split()[-1] in ("it", "this") else "are were have"


BEHIND = {"from": "import", "with": "as", "elif": ":", "for": "in", "def": "("}
DEFAULTS = {"int": "0", "str": '"', "bool": "False", "dict": "None", "list": "None"}
CODE: dict[str, Callable[[str], str]] = {
    "nesting": open_bracket,
    "keywords": lambda prompt: BEHIND[last_line(prompt).split()[0]],
    "attributes": lambda prompt: re.findall(r"self\.(\w+) =$", prompt)[0],
    "keyword-arguments": lambda prompt: re.findall(r"(\w+)=$", prompt)[0],
    "comprehensions": lambda prompt: re.findall(r"\((\w+)\) for$", prompt)[0],
    "identifiers": second_half,
    "verbs": agreeing,
    "types": lambda prompt: DEFAULTS[re.findall(r": (\w+) =$", prompt)[0]],
}


@pytest.mark.parametrize("name", CODE)
def test_answers_in_code_are_those_of_a_reader(name: str) -> None:
    """To the clean prompt, and the incorrect one to the corrupted, which is as long."""
    for seed in range(50):
        pair = tasks.find(name).write(WholeWords(), Random(seed))
        assert pair.correct.strip() in CODE[name](pair.clean).split()
        assert pair.incorrect.strip() in CODE[name](pair.corrupted).split()
        assert pair.correct != pair.incorrect
        assert len(pair.clean) == len(pair.corrupted)


@pytest.mark.parametrize("kind", ["single-digits", "letters"])
@pytest.mark.parametrize("name", some(CODE, ("keywords", "verbs")))
def test_answers_are_asked_for_where_they_part(
    name: str, kind: str, tokenizers: dict[str, Any]
) -> None:
    """Against the tokens of whole prompts with whole answers."""
    tokenizer = text.letters() if kind == "letters" else tokenizers[kind]
    for seed in range(8):
        whole = tasks.find(name).write(WholeWords(), Random(seed))
        asked = tasks.find(name).write(WholeWords(tokenizer), Random(seed))
        right, wrong = (
            tokenizer(whole.clean + answer)["input_ids"]
            for answer in (whole.correct, whole.incorrect)
        )
        same = next(place for place in range(len(right)) if right[place] != wrong[place])
        assert tokenizer(asked.clean + asked.correct)["input_ids"] == right[: same + 1]
        assert tokenizer(asked.clean + asked.incorrect)["input_ids"] == wrong[: same + 1]
        shared = asked.clean.removeprefix(whole.clean)
        assert asked.corrupted == whole.corrupted + shared


def test_answers_of_which_one_begins_the_other_do_not_part() -> None:
    vocabulary = WholeWords(text.letters())
    pair = vocabulary.parting("he", "we", " does", " do")
    assert (pair.clean, pair.incorrect) == ("he do", "")
    assert not vocabulary.fits(pair)


@pytest.mark.parametrize(("tokenizer", "digits"), [("single-digits", 1), ("double-digits", 2)])
def test_years_are_after_the_first(tokenizer: str, digits: int, tokenizers: dict[str, Any]) -> None:
    for pair in tasks.greater_than.texts(tokenizers[tokenizer], 20):
        years = re.findall(r"\d+", pair.clean)
        assert pair.clean.endswith(years[0][:2])
        assert pair.corrupted == pair.clean.replace(years[0], f"{years[1]}01")
        assert len(pair.correct) == len(pair.incorrect) == digits
        assert pair.incorrect < years[0][2 : 2 + digits] < pair.correct


def test_verbs_agree_with_their_subject(tokenizers: dict[str, Any]) -> None:
    forms = {" are": "many", " were": "many", " have": "many"}
    for pair in tasks.agreement.texts(tokenizers["single-digits"], 20):
        assert forms.get(pair.correct, "one") == verb(pair.clean) != verb(pair.corrupted)
        assert forms.get(pair.incorrect, "one") == verb(pair.corrupted)
        assert pair.clean.split()[1].removesuffix("s") in WORDS["nouns"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["capitals", "languages", "hypernyms", "antonyms", "past-tense", "successor"]
)
def test_the_incorrect_answer_is_right_for_the_corrupted_prompt(
    name: str, tokenizers: dict[str, Any]
) -> None:
    """What is known of the world stands in tables; both sides must read the same ones."""
    drawn = tasks.find(name).texts(tokenizers["single-digits"], 100)
    right = {pair.clean: pair.correct for pair in drawn}
    assert all(right[pair.clean] == pair.correct for pair in drawn)
    again = [pair for pair in drawn if pair.corrupted in right]
    assert all(right[pair.corrupted] == pair.incorrect for pair in again)
    assert again


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "prompt", "answer"),
    [
        ("capitals", r".*\bPeru\b.*", " Lima"),
        ("languages", r".*\bBrazil\b.*", " Portuguese"),
        ("hypernyms", r".*\bsparrow\b.*", " bird"),
        ("antonyms", r".*\bbig is( not)?", " small"),
        ("past-tense", r".* they go, yesterday they", " went"),
        ("successor", r".*C, D,", " E"),
    ],
)
def test_some_facts(name: str, prompt: str, answer: str, tokenizers: dict[str, Any]) -> None:
    drawn = tasks.find(name).texts(tokenizers["single-digits"], 400)
    assert {pair.correct for pair in drawn if re.fullmatch(prompt, pair.clean)} == {answer}


# What fits a tokenizer


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", some(tasks.names()))
def test_pairs_hold_the_texts(name: str, kind: str, tokenizers: dict[str, Any]) -> None:
    tokenizer, task = tokenizers[kind], tasks.find(name)
    texts, pairs = task.texts(tokenizer, 6), task(tokenizer, 6)
    assert len(set(texts)) == 6
    assert pairs.loss_name == "logit-diff"
    assert pairs.targets is not None
    assert pairs.incorrect is not None
    assert not pairs.identical
    for row, given in enumerate(texts):
        (last,) = pairs.scored[row].nonzero().flatten().tolist()
        right, wrong = int(pairs.targets[row, last]), int(pairs.incorrect[row, last])
        clean, corrupted = (x[row, : last + 1].tolist() for x in (pairs.clean, pairs.corrupted))
        # The answer is the very token that follows when the text goes on with it.
        assert tokenizer(given.clean + given.correct)["input_ids"] == [*clean, right]
        assert tokenizer(given.clean + given.incorrect)["input_ids"] == [*clean, wrong]
        assert tokenizer(given.corrupted)["input_ids"] == corrupted
        assert right != wrong


def test_draws_depend_on_the_seed_alone(tokenizers: dict[str, Any]) -> None:
    tokenizer = tokenizers["single-digits"]
    first = tasks.ioi.texts(tokenizer, 20, seed=1)
    assert tasks.ioi.texts(tokenizer, 20, seed=1) == first
    assert tasks.ioi.texts(tokenizer, 5, seed=1) == first[:5]
    assert set(tasks.ioi.texts(tokenizer, 20, seed=2)).isdisjoint(first)


@pytest.mark.slow
def test_a_tokenizer_without_words_is_refused_by_most(tokenizers: dict[str, Any]) -> None:
    letters = text.letters()
    for name in tasks.names():
        if name in ("greater-than", "arithmetic", "brackets", "quotes", *CODE):
            assert len(tasks.find(name)(letters, 4)) == 4
        else:
            with pytest.raises(ValueError, match=f"the task {name} is not for this tokenizer: "):
                tasks.find(name)(letters, 4)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ioi", r"it needs at least 3 names of one token, the tokenizer has 0 of 60\."),
        (
            "agreement",
            r"prompts such as 'The .*' need the answers ' .*' and ' .*' as one token each, and as "
            r"many tokens as 'The .*'\.",
        ),
    ],
)
def test_the_reason_is_said(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        tasks.find(name)(text.letters())


def digitless(prompt: str) -> list[int]:
    """One that writes runs of digits as one token, whatever their length."""
    return [hash(piece) % 10**9 for piece in re.findall(r" ?\d+| ?\w+|\W", prompt)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("greater-than", "it needs the last two digits of a year, or each of them, as one token"),
        ("arithmetic", "it needs the ten digits as one token each behind an equals sign"),
    ],
)
def test_numbers_need_digits(name: str, reason: str) -> None:
    def tokenizer(prompt: str) -> list[int]:
        ids = digitless(prompt)
        # In sums, the sign and what follows it are one token.
        return ids if "=" not in prompt else [*digitless(prompt.split("=")[0]), len(prompt)]

    with pytest.raises(ValueError, match=f"the task {name} is not for this tokenizer: {reason}"):
        tasks.find(name)(tokenizer)


def test_what_runs_out_comes_again(tokenizers: dict[str, Any]) -> None:
    few = [TextPair(f"The {x}", "The dog", " key", " map") for x in ("cat", "boy", "tree", "car")]
    task = Task("few", "", "", lambda vocabulary, rng: rng.choice(few))
    drawn = task.texts(tokenizers["single-digits"], 10)
    assert set(drawn[:4]) == set(few)
    assert drawn[4:] == [*drawn[:4], *drawn[:2]]


# The table


def test_the_table_of_tasks() -> None:
    assert len(tasks.names()) >= 14
    for name in tasks.names():
        task = tasks.find(name)
        assert task.name == name
        assert getattr(tasks, name.replace("-", "_")) is task
        assert task is tasks.find(name.replace("-", "_").upper())
        assert task.example == task.example
        assert re.fullmatch(r"(?s).+\| ?\S+ \(not \S+\)", task.example)
        assert re.search(r"corrupted: ", task.description)
        assert re.search(r" 20\d\d", task.reference)
    assert set(tasks.__all__) >= {name.replace("-", "_") for name in tasks.names()}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (
            "greater-then",
            r"unknown task 'greater-then'; did you mean 'greater-than'\? \(ioi, great",
        ),
        ("", r"unknown task ''; \(ioi, "),
    ],
)
def test_unknown_tasks(name: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        tasks.find(name)


def test_what_cannot_be_drawn(tokenizers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="there is no tokenizer; text needs one"):
        tasks.ioi(None)
    with pytest.raises(ValueError, match="at least one pair must be drawn, got 0"):
        tasks.ioi(tokenizers["single-digits"], 0)


def test_words_that_a_tokenizer_does_not_know_are_no_words() -> None:
    def unknown(prompt: str) -> list[int]:
        return [0 for _ in prompt.split()]

    unknown.unk_token_id = 0  # pyright: ignore[reportFunctionMemberAccess]
    assert not WholeWords(unknown).one(" Mary")
