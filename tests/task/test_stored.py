"""Prompts kept with a result: the words, the patterns as bytes, and how many fit."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.task.stored import StoredPrompts, stored_prompts
from tests.subjects import make_subject, make_tokens


def make_pairs(subject: Transformer, batch: int = 6, last: int = 4, **given: Any) -> Pairs:
    scored = torch.zeros(batch, 5, dtype=torch.bool)
    scored[:, last] = True
    given = {"loss_name": "kl"} | given
    return Pairs(
        clean=make_tokens(subject, 1, batch),
        corrupted=make_tokens(subject, 2, batch),
        scored=scored,
        **given,
    )


def make_prompts(**given: Any) -> StoredPrompts:
    patterns = [torch.arange(2 * 3 * n * n, dtype=torch.uint8).view(2, 3, n, n) for n in (2, 1)]
    fields: dict[str, Any] = {
        "clean": [["a", "b"], ["c"]],
        "corrupted": [["d", "e"], ["f"]],
        "answers": ["g", None],
        "patterns": patterns,
        "patterns_corrupted": [255 - table for table in patterns],
    }
    return StoredPrompts(**fields | given)


@pytest.mark.parametrize("architecture", ["plain", "bidirectional", "llama"])
def test_bytes_are_the_patterns_of_clean_and_corrupted_runs(architecture: str) -> None:
    subject = make_subject(architecture)
    pairs = make_pairs(subject)
    found = stored_prompts(subject, pairs)
    assert found is not None
    assert (len(found), found.heads) == (4, (2, 4))
    for tokens, tables in (
        (pairs.clean, found.patterns),
        (pairs.corrupted, found.patterns_corrupted),
    ):
        whole = torch.stack(list(subject.patterns(tokens[:4])), dim=1)
        kept = torch.stack([*tables])
        assert (kept.double() / 255 - whole).abs().max() <= 0.5 / 255 + 1e-6
        # A row of n bytes is off by half a step in each.
        assert ((kept.double().sum(-1) / 255 - 1).abs() <= 5 * 0.5 / 255 + 1e-6).all()
    assert repr(found) == "StoredPrompts(4 pairs, 20 tokens, 2 x 4 heads)"


def test_no_more_than_fit() -> None:
    subject = make_subject()
    pairs = make_pairs(subject)
    each = 2 * 2 * 4 * 5 * 5
    for limit, count in ((3 * each, 3), (2 * each - 1, 1), (each, 1)):
        found = stored_prompts(subject, pairs, limit=limit)
        assert found is not None
        assert len(found) == count
        tables = (*found.patterns, *found.patterns_corrupted)
        assert sum(table.nbytes for table in tables) <= limit
    assert stored_prompts(subject, pairs, limit=each - 1) is None
    assert stored_prompts(subject, pairs, most=0) is None
    few = stored_prompts(subject, pairs[:2])
    assert few is not None
    assert len(few) == 2


def test_positions_that_nothing_scored_sees_are_left_out() -> None:
    subject, both_ways = make_subject(), make_subject("bidirectional")
    for model, length in ((subject, 3), (both_ways, 5)):
        found = stored_prompts(model, make_pairs(model, last=2))
        assert found is not None
        assert {len(tokens) for tokens in found.clean} == {length}
    # Each pair ends with what it scores, so padding is left out.
    pairs = make_pairs(subject, batch=2, last=2)
    pairs = replace(pairs, scored=torch.eye(5)[[1, 4]].bool())
    found = stored_prompts(subject, pairs)
    assert found is not None
    assert [len(tokens) for tokens in found.clean] == [2, 5]
    for pair, length in enumerate((2, 5)):
        (first, _) = subject.patterns(pairs.corrupted[pair : pair + 1, :length])
        kept = found.patterns_corrupted[pair][0].double() / 255
        assert (kept - first[0]).abs().max() <= 0.5 / 255 + 1e-6


def test_nothing_is_left_on_the_subject_and_gradients_are_not_asked_for() -> None:
    subject = make_subject()
    weight = subject.weights["W_Q"].requires_grad_()
    found = stored_prompts(subject, make_pairs(subject))
    assert found is not None
    assert not found.patterns[0].requires_grad
    assert weight.grad is None


# Words


def test_symbols_of_a_program() -> None:
    case = load_case("ib-13")
    pairs = case.pairs(2, seed=0)
    found = stored_prompts(case.subject(), pairs)
    assert found is not None
    xs = [case.vocab[token - 2] for token in pairs.clean[0, 1:].tolist()]
    assert found.clean[0] == ("BOS", *map(str, xs))
    assert case.outputs is not None
    # No answer is the first class, as in pairs.
    right = [case.outputs[0] if y is None else y for y in case.evaluate(xs)]
    assert found.answers[0] == " ".join(map(str, right))


def test_numbers_and_tasks() -> None:
    codec = Codec(("a",), None, ("first", "second"))
    subject = make_subject(d_vocab_out=1)
    subject = Transformer(subject.config, subject.weights, codec)
    targets = torch.full((6, 5), 0.25)
    found = stored_prompts(subject, make_pairs(subject, loss_name="l1", targets=targets))
    assert found is not None
    assert set(found.answers) == {"0.25"}
    assert {token for tokens in found.clean for token in tokens} <= {
        "BOS", "PAD", "a", "first", "second",
    }  # fmt: skip


class Sentences:
    """As tokenizers of SentencePiece are: a text has no space in front."""

    pieces = ("<s>", "\u2581the", "cat", "<0xE2>")

    def decode(self, ids: list[int]) -> str:
        return ("", "the", "cat", "\ufffd")[ids[0]]

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self.pieces[ids[0]]]


class Silent:
    """A tokenizer that tells nothing of its tokens."""


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (Sentences(), ("<s>", " the", "cat", "<0xE2>", "4")),
        (Silent(), ("0", "1", "2", "3", "4")),
        (None, ("0", "1", "2", "3", "4")),
    ],
)
def test_words_of_a_tokenizer(tokenizer: Any, words: tuple[str, ...]) -> None:
    subject = make_subject(d_vocab_out=5)
    subject = Transformer(subject.config, subject.weights, tokenizer=tokenizer)
    pairs = make_pairs(subject, loss_name="cross-entropy", targets=torch.tensor([0, 1, 2, 3, 4, 1]))
    found = stored_prompts(subject, pairs)
    assert found is not None
    ids = pairs.clean[:4].tolist()
    assert found.clean == tuple(tuple(words[id] for id in prompt) for prompt in ids)
    assert found.answers == words[:4]


def test_answers_where_nobody_tells_them() -> None:
    subject = make_subject()
    own = make_pairs(subject, loss_name=lambda logits, pairs: logits[:, 0, 0], targets=None)
    for pairs in (make_pairs(subject), own):
        found = stored_prompts(subject, pairs)
        assert found is not None
        assert set(found.answers) == {None}


def test_long_words_are_cut() -> None:
    subject = make_subject()
    codec = Codec(("a" * 100, "b", "c"), ("x" * 300, "y", "z"))
    subject = Transformer(subject.config, subject.weights, codec)
    targets = torch.zeros(6, dtype=torch.int64)
    found = stored_prompts(subject, make_pairs(subject, loss_name="cross-entropy", targets=targets))
    assert found is not None
    assert "a" * 79 + "…" in {token for tokens in found.clean for token in tokens}
    assert found.answers[0] == "x" * 199 + "…"


# The value


def test_equal_prompts() -> None:
    prompts = make_prompts()
    assert prompts == make_prompts()
    assert prompts != make_prompts(answers=[None, None])
    assert prompts != make_prompts(patterns=prompts.patterns_corrupted)
    assert prompts != "prompts"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clean": []}, "at least one prompt, and no prompt without tokens"),
        ({"clean": [["a"], []]}, "at least one prompt, and no prompt without tokens"),
        ({"corrupted": []}, "must be as long as clean ones, 2, 1 tokens, got none"),
        ({"corrupted": [["a"], ["b"]]}, "as long as clean ones, 2, 1 tokens, got 1, 1"),
        ({"answers": []}, "answers must be one for each of 2 prompts, got 0"),
        (
            {"patterns_corrupted": [torch.zeros(2, 3, 2, 1, dtype=torch.uint8)]},
            r"patterns_corrupted must have the axes layer, head, query and key for each prompt, "
            r"\(2, 3, 2, 2\), \(2, 3, 1, 1\), got \(2, 3, 2, 1\)",
        ),
        ({"patterns": [torch.zeros(2, 3, 2, 2)]}, "must be bytes, torch.uint8, got torch.float32"),
        ({"patterns": []}, r"patterns must have the axes .*, got none"),
    ],
)
def test_prompts_that_do_not_fit_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_prompts(**given)
