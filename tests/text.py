"""Small tokenizers of the kinds that models come with, made here: no files, no downloads."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from graphcircuits import tasks

SPACE = "Ġ"
"""How byte-level tokenizers write a space."""
SPECIAL = ["<pad>", "<bos>", "<eos>"]
CHAT = (
    "{% for message in messages %}<bos>{{ message['role'] }}: {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def byte_level(digits: int = 1, words: bool = True) -> Tokenizer:
    """Byte-level pieces, numbers in pieces of so many digits; with `words`, those of the library
    are one token each behind a space, as most are to GPT-2 (two digits) and SmolLM2 (one)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = [f"{space}{n:02}" for n in range(100) for space in ("", SPACE)] if digits == 2 else []
    merges = _merges([f"{SPACE}{word}" for word in library_words()] if words else [], numbers)
    pieces = [*SPECIAL, *alphabet, *("".join(pair) for pair in merges)]
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    split = pre_tokenizers.Split(Regex(rf" ?\d{{{digits}}}"), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def _merges(*lists: list[str]) -> list[tuple[str, str]]:
    """Each word letter by letter, from its first one on. A word begins with a space, which stands
    nowhere else, so that no word takes letters out of another."""
    found: dict[tuple[str, str], None] = {}
    for words in lists:
        for word in words:
            found |= {(word[:end], word[end]): None for end in range(1, len(word))}
    return sorted(found, key=lambda pair: len(pair[0]))


@cache
def library_words() -> list[str]:
    """All words in the lists and templates of the library, and what it makes of them."""
    found = set(re.findall("[A-Za-z]+", " ".join(_strings(vars(tasks).values()))))
    made = {form for word in found for form in (f"{word}s", word.title())}
    return sorted(found | made | {"year", "he", "she", "himself", "herself"})


def _strings(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from _strings([*value.keys(), *value.values()])
        elif isinstance(value, list | tuple):
            yield from _strings(value)
        elif isinstance(value, ModuleType) and value.__name__.startswith(f"{tasks.__name__}."):
            yield from _strings(x for name, x in vars(value).items() if not name.startswith("__"))


def wrapped(tokenizer: Tokenizer, **options: Any) -> Any:
    """The interface of Hugging Face around it."""
    names = {f"{name.strip('<>')}_token": name for name in SPECIAL} | options
    given = {name: value for name, value in names.items() if value is not None}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given)


def with_bos(tokenizer: Tokenizer, end: str = "") -> Tokenizer:
    """The same, putting BOS before every text and, if asked to, `end` behind it."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.post_processor = processors.TemplateProcessing(
        single=f"<bos> $A {end}".strip(), special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    return copy


def single_digits() -> Any:
    """Like SmolLM2's: digits one by one, no BOS."""
    return wrapped(byte_level(1), chat_template=CHAT)


def double_digits() -> Any:
    """Like GPT-2's: no PAD, numbers in pieces of two digits."""
    return wrapped(byte_level(2), pad_token=None)


def bos_first() -> Any:
    """Like Gemma's: BOS first, padded on the left."""
    return wrapped(with_bos(byte_level(1)), padding_side="left")


def letters() -> Any:
    """One that knows no word."""
    return wrapped(byte_level(1, words=False))


def word_level(words: dict[str, int]) -> Any:
    """One that knows these words and writes all others as `<unk>`."""
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
