"""Pairs from text: what tokenizers make of prompts and answers, padding, and every refusal."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.task.text import (
    NoSpaceInFront,
    answer_id,
    lacks_space,
    padding_id,
    prompt_ids,
)
from tests import text
from tests.subjects import make_config

CLEAN = ["When Mary and John met, John gave a key to", "The dog saw Anna. Anna saw the"]
CORRUPTED = ["When Mary and John met, Paul gave a key to", "The cat saw Anna. Anna saw the"]
CORRECT, INCORRECT = [" Mary", " dog"], [" John", " cat"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return text.single_digits()


def ids_of(pairs: Pairs, row: int) -> list[int]:
    """The clean prompt up to where it is scored."""
    (last,) = pairs.scored[row].nonzero().flatten().tolist()
    return pairs.clean[row, : last + 1].tolist()


# What comes out


@pytest.mark.parametrize("make", [text.single_digits, text.double_digits, text.bos_first])
def test_prompts_stand_at_the_front_and_are_scored_at_their_last_token(make: Any) -> None:
    tokenizer = make()
    pairs = Pairs.from_text(tokenizer, CLEAN, CORRUPTED, CORRECT, INCORRECT)
    assert pairs.loss_name == "logit-diff"
    assert pairs.targets is not None
    assert pairs.incorrect is not None
    for row, prompt in enumerate(CLEAN):
        assert ids_of(pairs, row) == tokenizer(prompt)["input_ids"]
        assert tokenizer.decode(pairs.targets[row][pairs.scored[row]]) == CORRECT[row]
        assert tokenizer.decode(pairs.incorrect[row][pairs.scored[row]]) == INCORRECT[row]
    # No PAD to GPT-2: EOS takes its place.
    assert int(pairs.clean[1, -1]) == (2 if tokenizer.pad_token_id is None else 0)
    assert pairs.scored.sum() == 2


def test_padded_prompts_score_as_they_do_alone() -> None:
    """A causal subject, learned positions or rotary ones: the same loss, padded or not."""
    words = sorted(set(re.findall(r"\w+|\W", " ".join(CLEAN + CORRUPTED))))
    tokenizer = text.word_level({word: id for id, word in enumerate(["<unk>", *words])})
    pairs = Pairs.from_text(tokenizer, CLEAN, CORRUPTED, CORRECT, INCORRECT)
    for positions in ("learned", "rotary"):
        config = make_config(
            positions=positions, d_vocab=len(tokenizer), d_vocab_out=len(tokenizer), n_ctx=32
        )
        subject = Transformer.random(config, torch.Generator().manual_seed(0))
        together = pairs.loss(subject.logits(pairs.clean))
        for row in range(2):
            given = [[column[row]] for column in (CLEAN, CORRUPTED, CORRECT, INCORRECT)]
            alone = Pairs.from_text(tokenizer, *given)
            assert (row == 1) == (alone.clean.shape[1] < pairs.clean.shape[1])
            torch.testing.assert_close(
                together[row : row + 1], alone.loss(subject.logits(alone.clean)), rtol=0, atol=1e-5
            )


def test_the_loss_follows_from_the_answers(tokenizer: Any) -> None:
    assert Pairs.from_text(tokenizer, CLEAN, CORRUPTED, CORRECT).loss_name == "cross-entropy"
    assert Pairs.from_text(tokenizer, CLEAN, CORRUPTED).loss_name == "kl"
    given = Pairs.from_text(tokenizer, CLEAN, CORRUPTED, CORRECT, INCORRECT, loss_name="kl")
    assert (given.loss_name, given.targets, given.incorrect) == ("kl", None, None)


@pytest.mark.parametrize("kind", [int, float, np.int64, np.float32])
def test_answers_may_be_ids(tokenizer: Any, kind: type) -> None:
    ids = [tokenizer(word)["input_ids"][0] for word in CORRECT]
    by_id = Pairs.from_text(tokenizer, CLEAN, CORRUPTED, [kind(id) for id in ids])
    by_word = Pairs.from_text(tokenizer, CLEAN, CORRUPTED, CORRECT)
    assert by_id.targets is not None
    assert by_word.targets is not None
    assert torch.equal(by_id.targets, by_word.targets)


def test_an_answer_is_what_follows_the_prompt() -> None:
    """Not what it is alone: a tokenizer may treat the beginning of a text apart."""

    def sentences(given: str) -> list[int]:
        """Like those of Llama 2: every text gets a space before it."""
        words = (" " + given).replace("  ", " _").split(" ")[1:]
        return [sum(map(ord, word)) for word in words]

    assert len(sentences(" Mary")) == 1
    assert sentences(" Mary") != sentences("Mary")
    assert answer_id(sentences, "I saw", " Mary") == sentences("Mary")[0]


def test_an_answer_that_changes_the_prompt_is_taken_alone(tokenizer: Any) -> None:
    spaced = CLEAN[0] + " "
    assert answer_id(tokenizer, spaced, "M") == tokenizer("M")["input_ids"][0]


def test_a_closing_eos_is_left_out() -> None:
    closing = text.wrapped(text.with_bos(text.byte_level(), end="<eos>"))
    assert closing(" Mary")["input_ids"][-1] == closing.eos_token_id
    assert prompt_ids(closing, " Mary saw") == closing(" Mary saw")["input_ids"][:-1]
    assert answer_id(closing, "I saw", " Mary") == closing(" Mary")["input_ids"][1]
    # One that is part of the text stays.
    assert prompt_ids(closing, " Mary<eos>")[-1] == closing.eos_token_id


def test_padding_is_with_a_token_there_is() -> None:
    assert padding_id(text.single_digits()) == 0
    assert padding_id(text.double_digits()) == 2
    assert padding_id(text.wrapped(text.byte_level(), pad_token=None, eos_token=None)) == 0
    assert padding_id(lambda prompt: [1]) is None


# Chat


def test_chat_templates(tokenizer: Any) -> None:
    pairs = Pairs.from_text(tokenizer, CLEAN, CORRUPTED, CORRECT, INCORRECT, chat=True)
    for row, prompt in enumerate(CLEAN):
        said = tokenizer.decode(ids_of(pairs, row))
        assert said == f"<bos>user: {prompt}\nassistant:"
    assert pairs.targets is not None
    words = [tokenizer.decode([id]) for id in pairs.targets[pairs.scored].tolist()]
    assert words == CORRECT


def test_a_template_holds_its_own_bos() -> None:
    tokenizer = text.wrapped(text.with_bos(text.byte_level()), chat_template=text.CHAT)
    pairs = Pairs.from_text(tokenizer, CLEAN, CORRUPTED, CORRECT, chat=True)
    assert ids_of(pairs, 0).count(tokenizer.bos_token_id) == 1


# Refusals


def refused(problem: str, tokenizer: Any, *columns: Any, **options: Any) -> None:
    with pytest.raises(ValueError, match=problem):
        Pairs.from_text(tokenizer, *columns, **options)


def test_answers_of_several_tokens(tokenizer: Any) -> None:
    refused(
        r"pair 1: the tokenizer splits the correct answer ' doggerel' into \d tokens "
        r"\(' dog', 'g', 'e', 'r', 'e', \.\.\.\), one is needed; choose another word, mind",
        tokenizer,
        CLEAN,
        CORRUPTED,
        [" Mary", " doggerel"],
    )
    refused(
        r"pair 0: .* incorrect answer 'John' into 4 tokens .*; ' John' is one token here",
        tokenizer,
        CLEAN,
        CORRUPTED,
        CORRECT,
        ["John", " cat"],
    )


def test_problems_of_several_pairs_come_at_once(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match=r"pair 0: .*; pair 4: [^;]*; [^;]*[.]$") as caught:
        Pairs.from_text(tokenizer, CLEAN[:1] * 9, CORRUPTED[:1] * 9, ["zzz"] * 9)
    assert "pair 5" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "pair 0: the correct answer is empty; give a word or a token id"),
        (4.5, "the correct answer must be a word or a token id, got 4.5"),
        (True, "the correct answer must be a word or a token id, got True"),
        (None, "the correct answer must be a word or a token id, got None"),
        (float("nan"), "the correct answer must be a word or a token id, got nan"),
        (10**6, r"the correct answer must be a token id from 0 to \d+, got 1000000"),
        (-1, r"the correct answer must be a token id from 0 to \d+, got -1"),
    ],
)
def test_answers_that_are_none(tokenizer: Any, answer: Any, problem: str) -> None:
    refused(problem, tokenizer, CLEAN[:1], CORRUPTED[:1], [answer])


def test_words_that_the_tokenizer_does_not_know() -> None:
    words = {"<unk>": 0, "I": 1, "saw": 2, "Mary": 3}
    tokenizer = text.word_level(words)
    assert Pairs.from_text(tokenizer, ["I saw"], ["saw saw"], [" Mary"]).clean.tolist() == [[1, 2]]
    refused(
        "the tokenizer does not know the correct answer ' Bob'; choose another word",
        tokenizer,
        ["I saw"],
        ["saw saw"],
        [" Bob"],
    )


def test_positions_that_do_not_line_up(tokenizer: Any) -> None:
    refused(
        r"pair 1: the clean prompt has 10 tokens \(\.\.\. 'e', ' dog', .*\), the corrupted one 11 "
        r"\(\.\.\. 'e', ' cat', .*, ' all', ' the'\); both need the same number, or their "
        "positions do not line up",
        tokenizer,
        CLEAN,
        [CORRUPTED[0], "The cat saw Anna. Anna saw all the"],
        CORRECT,
    )


def test_answers_without_a_space_are_warned_of_once(tokenizer: Any) -> None:
    said = "2 answers have no space in front, such as 'a': behind the prompt ' a' is another token"
    given = [CLEAN[0]] * 2, [CORRUPTED[0]] * 2, ["a", "a"], [" Mary", " Mary"]
    with pytest.warns(NoSpaceInFront, match=said) as found:
        Pairs.from_text(tokenizer, *given)
    assert len(found) == 1
    # Whoever ends the prompt with a space, or means a number, has no space to give.
    for prompt, answer in (("John gave ", "a"), ("1 + 1 =", "2"), ("John gave (", "a")):
        assert not lacks_space(tokenizer, prompt, answer)


def test_where_spaces_only_part_the_words_none_is_missing() -> None:
    words = ["", "to", "be"]

    def ids(text: str, **_: Any) -> list[int]:
        return [words.index(word) if word in words else 0 for word in text.split()]

    assert not lacks_space(ids, "to", "be")


def test_lengths_that_differ_without_padding(tokenizer: Any) -> None:
    refused(
        r"prompts must have one length where they are not padded, but pair 1 has \d+ tokens and "
        r"pair 0 has \d+; let them be padded, or give those of one length at a time\.",
        tokenizer,
        CLEAN,
        CORRUPTED,
        CORRECT,
        padding=False,
    )
    assert len(Pairs.from_text(tokenizer, CLEAN[:1], CORRUPTED[:1], [5], padding=False)) == 1


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (([], []), "there are no prompts; give at least one pair"),
        ((CLEAN, CORRUPTED[:1]), "one entry of each list, got 2 clean, 1 corrupted"),
        ((CLEAN, CORRUPTED, CORRECT, [1]), "got 2 clean, 2 corrupted, 2 correct, 1 incorrect"),
        ((CLEAN[0], CORRUPTED), "clean must be a list with one entry per pair, got 'When Mary"),
        ((CLEAN, CORRUPTED, None, INCORRECT), "incorrect answers need correct ones beside them"),
        (([""], ["a"]), "pair 0: the tokenizer makes no token of the prompt ''"),
        (([7], ["a"]), "pair 0: a prompt must be text for the tokenizer, got 7"),
    ],
)
def test_lists_that_do_not_fit(tokenizer: Any, columns: Any, problem: str) -> None:
    refused(problem, tokenizer, *columns)


@pytest.mark.parametrize(
    ("tokenizer", "problem"),
    [
        (None, "there is no tokenizer; text needs one, such as that of the model"),
        ("gpt2", "a tokenizer must turn text into ids when it is called, .* got str"),
    ],
)
def test_what_is_no_tokenizer(tokenizer: Any, problem: str) -> None:
    refused(problem, tokenizer, CLEAN, CORRUPTED, CORRECT)


def test_no_chat_template() -> None:
    problem = "pair 0: the tokenizer has no chat template; use that of an instruction-tuned model"
    refused(problem, text.double_digits(), CLEAN, CORRUPTED, CORRECT, chat=True)
