"""Tokenizers made of a text, and the text in their tokens.

1. `make_tokenizer` gives Hugging Face's: `chars` has one token per character, `bpe2k` and `bpe4k`
   merge the commonest neighbours (Sennrich et al. 2016) until there are so many tokens. Pieces that
   are never merged across suit source code: a word, a digit, a sign, each with the space in front,
   and a line break with the indentation behind it.
2. `encode` writes documents behind each other, with a token between them that ends each.
3. `bigram_loss` is what a model reaches that knows the last token alone: one that is not better has
   learned nothing with its attention.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt16

from graphcircuits.adapters.hf_families import load_transformers

TOKENIZERS = {"chars": 0, "bpe2k": 2048, "bpe4k": 4096}
"""How many tokens each has; 0: as many as there are characters."""
END, UNKNOWN = "<|endoftext|>", "<|unknown|>"
LEARNED_FROM = 2**23
"""Characters that merges are counted on."""
_PIECES = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]|\n *|\s"
# As byte-level tokenizers write a space, a line break, and all else that a plain text has.
_ALPHABET = ["\u0120", "\u010a", *map(chr, range(33, 127))]
_AT_ONCE = 256

Stream = UInt16[np.ndarray, " token"]


def make_tokenizer(kind: str, documents: Sequence[str]) -> Any:
    """A tokenizer of a kind, learned from documents."""
    transformers = load_transformers()
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZERS[kind],
        special_tokens=[END, UNKNOWN],
        initial_alphabet=_ALPHABET,
        show_progress=False,
    )
    counted = LEARNED_FROM if TOKENIZERS[kind] else 0
    tokenizer.train_from_iterator(_first(documents, counted), trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, unk_token=UNKNOWN
    )


def _first(documents: Sequence[str], most: int) -> Iterator[str]:
    for document in documents:
        if most <= 0:
            return
        yield document[:most]
        most -= len(document)


def encode(tokenizer: Any, documents: Sequence[str]) -> Stream:
    """All documents in tokens, each with the token that ends it."""
    end = np.array([tokenizer.eos_token_id], dtype=np.uint16)
    parts: list[np.ndarray] = []
    # Where every character is a token they are looked up, which is many times faster.
    look_up = _letters(tokenizer) if len(tokenizer) == len(_ALPHABET) + 2 else None
    for start in range(0, len(documents), _AT_ONCE):
        some = list(documents[start : start + _AT_ONCE])
        if look_up is not None:
            found = [look_up[np.frombuffer(x.encode("ascii"), np.uint8)] for x in some]
        else:
            # The library's own object works in parallel and makes no tensors.
            encoded = tokenizer.backend_tokenizer.encode_batch_fast(some)
            found = [np.array(x.ids, dtype=np.uint16) for x in encoded]
        parts += [part for one in found for part in (one, end)]
    return np.concatenate(parts)


def _letters(tokenizer: Any) -> UInt16[np.ndarray, " letter"]:
    """The token of each ASCII character."""
    ids = [tokenizer.backend_tokenizer.encode(chr(code)).ids[0] for code in range(128)]
    return np.array(ids, dtype=np.uint16)


def bigram_loss(train: Stream, held_out: UInt16[np.ndarray, " held_out"], size: int) -> float:
    """Cross-entropy per token of counts of neighbours, with those of single tokens behind them."""
    single = np.bincount(train, minlength=size) + 1.0
    double = np.bincount(_neighbours(train, size), minlength=size * size)
    wanted = _neighbours(held_out, size)
    first, second = wanted // size, wanted % size
    likely = (double[wanted] + single[second] / single.sum()) / single[first]
    return float(-np.log(likely).mean())


def _neighbours(stream: Stream, size: int) -> Int64[np.ndarray, " pair"]:
    """Each token and the next one as one number."""
    return stream[:-1].astype(np.int64) * size + stream[1:]
