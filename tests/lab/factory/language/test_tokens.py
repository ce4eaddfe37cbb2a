"""Tokenizers of a text: what is one token, and the text in tokens."""

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from lab.factory.language.tokens import END, TOKENIZERS, bigram_loss, encode, make_tokenizer

CODE = "def load(self, size=10):\n    return [self.size, size]\n\n    # it's (2) #\n"


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return {kind: make_tokenizer(kind, 5 * [CODE]) for kind in TOKENIZERS}


def test_characters(made: dict[str, Any]) -> None:
    tokenizer = made["chars"]
    assert len(tokenizer) == 2 + 96
    ids = tokenizer(CODE)["input_ids"]
    assert len(ids) == len(CODE)
    assert [tokenizer.decode([id]) for id in ids] == list(CODE)
    assert tokenizer("é")["input_ids"] == 2 * [tokenizer.unk_token_id]


def test_pieces_that_merges_stay_in(made: dict[str, Any]) -> None:
    tokenizer = made["bpe2k"]
    pieces = [tokenizer.decode([id]) for id in tokenizer(CODE)["input_ids"]]
    assert "".join(pieces) == CODE
    line = ["def", " load", "(", "self", ",", " size", "=", "1", "0", ")", ":", "\n    ", "return"]
    assert pieces[: len(line)] == line
    # No letters with signs, no two signs, no two digits.
    assert not [x for x in pieces if sum(map(str.isalpha, x)) and not x.strip().isalpha()]
    assert max(len(x.strip()) for x in pieces if not x.strip().isalpha()) == 1


def test_they_come_back_from_disk(made: dict[str, Any], tmp_path: Path) -> None:
    for kind, tokenizer in made.items():
        tokenizer.save_pretrained(tmp_path / kind)
        again = transformers.AutoTokenizer.from_pretrained(tmp_path / kind)
        assert again(CODE)["input_ids"] == tokenizer(CODE)["input_ids"]
        assert again.eos_token == END


def test_documents_in_tokens(made: dict[str, Any]) -> None:
    for tokenizer in (made["chars"], made["bpe2k"]):
        documents = [f"{CODE[:30]}{number}" for number in range(260)]
        stream = encode(tokenizer, documents)
        expected = [id for x in documents for id in [*tokenizer(x)["input_ids"], 0]]
        assert tokenizer.eos_token_id == 0
        assert stream.tolist() == expected


def test_counts_of_neighbours() -> None:
    """Against counting one by one."""
    draw = np.random.default_rng(0)
    train, held_out = (draw.integers(0, 5, 200).astype(np.uint16) for _ in range(2))
    single, double = Counter(train.tolist()), Counter(pairwise(train.tolist()))

    def likely(first: int, second: int) -> float:
        alone = (single[second] + 1) / (len(train) + 5)
        return (double[first, second] + alone) / (single[first] + 1)

    pairs = list(pairwise(held_out.tolist()))
    expected = -sum(math.log(likely(*pair)) for pair in pairs) / len(pairs)
    assert bigram_loss(train, held_out, 5) == pytest.approx(expected)
