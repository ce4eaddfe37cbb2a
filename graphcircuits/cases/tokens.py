"""The tokens of planted language models: merges of one list, of which a smaller vocabulary has
the first. Each word of a call is one token.

`data/merges.json` has the merges; `python -m lab.factory planted-plan --text DIR` learns them.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from graphcircuits.cases import stored
from graphcircuits.cases.calls import Call

if TYPE_CHECKING:
    import graphcircuits.subject.codec

END, UNKNOWN = "<|endoftext|>", "<|unknown|>"
"""The first two tokens: what stands at the beginning of a text, and what no token is for."""
ALPHABET = ("\u0120", "\u010a", *map(chr, range(33, 127)))
"""The next ones: a space, a line break and all else that plain text has, as byte-level tokenizers
write them."""


@cache
def merges() -> tuple[tuple[str, str], ...]:
    """The merges of the benchmark's tokenizers, the most frequent first."""
    return tuple((left, right) for left, right in map(str.split, stored("merges")))


def pieces(joined: Sequence[tuple[str, str]], vocabulary: int) -> tuple[str, ...]:
    """The tokens of a vocabulary of that size behind the first two, as tokenizers write them."""
    return (*ALPHABET, *(a + b for a, b in joined))[: vocabulary - 2]


@cache
def text_codec(vocabulary: int) -> "graphcircuits.subject.codec.Codec":
    """The tokens of a vocabulary of that size, which are the classes too."""
    from graphcircuits.subject.codec import Codec

    plain = tuple(map(as_text, pieces(merges(), vocabulary)))
    return Codec(plain, (END, UNKNOWN, *plain))


def as_text(piece: str) -> str:
    return piece.replace(ALPHABET[0], " ").replace(ALPHABET[1], "\n")


def word_ids(call: Call, vocabulary: int) -> dict[str, int]:
    """The token of each word of a call; ValueError where one is not a single token."""
    if call.name in (*call.words, *call.outputs):  # it would have two tokens
        raise ValueError(
            f"call {call.name!r}: its name must not be one of its words or answers; give it "
            "another one."
        )
    known = {piece: place for place, piece in enumerate(pieces(merges(), vocabulary), start=2)}
    written = {word: ALPHABET[0] + word for word in call.spoken} | {call.name: call.name}
    if split := [word for word, piece in written.items() if piece not in known]:
        raise ValueError(
            f"call {call.name!r}: every word must be one token of the {vocabulary}, and "
            f"{', '.join(map(repr, split))} is not; use a shorter or more common word."
        )
    return {END: 0} | {word: known[piece] for word, piece in written.items()}


def tokenizer(joined: Sequence[tuple[str, str]], vocabulary: int) -> Any:
    """A tokenizer with the interface of Hugging Face's, of so many tokens."""
    from graphcircuits.adapters.hf_families import load_transformers

    transformers = load_transformers()
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    listed = (END, UNKNOWN, *pieces(joined, vocabulary))
    used = [pair for pair in joined if "".join(pair) in set(listed)]
    made = Tokenizer(models.BPE({x: i for i, x in enumerate(listed)}, used, unk_token=UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=END, eos_token=END, pad_token=END, unk_token=UNKNOWN
    )


PIECES = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]|\n *|\s"
"""What is never merged with its neighbours: a word, a digit, a sign, each with the space in front,
and a line break with the spaces behind it."""
