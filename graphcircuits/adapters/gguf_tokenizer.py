"""The tokenizer inside a GGUF file, as a fast tokenizer of Hugging Face's.

1. The vocabulary is checked: texts, scores, kinds and special ids must fit each other.
2. `gpt2` is byte-level BPE: text is cut by the patterns that `tokenizer.ggml.pre` names, and the
   merges in the file are applied in their order. `llama` is SentencePiece's BPE: spaces become ▁,
   no cutting, and the pair whose union has the highest score is merged first; its merges are listed
   here from the scores. Characters outside that vocabulary are spelled in bytes.
3. Control tokens and those that users defined are found in the text before all that.
4. The tokenizer puts BOS first and EOS last if the file says so.

Building runs nothing from the file; a chat template is text until somebody applies it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from graphcircuits.adapters.hf_families import load_transformers
from graphcircuits.io.files import StoreError, short

SPACE = "▁"
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Kinds of tokens; the others (unknown, unused, bytes) are never made from text."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_AFTER_WORDS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_LLAMA3 = _WORDS + r"\p{N}{1,3}" + _AFTER_WORDS
_QWEN2 = _WORDS + r"\p{N}" + _AFTER_WORDS


@dataclass(frozen=True, kw_only=True)
class _Cutting:
    """How text is cut before merging: by each pattern in turn."""

    patterns: tuple[str, ...]
    composed: bool = False
    """Characters are composed first (NFC)."""
    whole_words: bool = False
    """A piece that is a token stays whole, whatever the merges say."""
    bos: bool = False
    """BOS comes first where the file says nothing about it."""


_CUTTINGS = {
    "gpt-2": _Cutting(patterns=(_GPT2,)),
    "olmo": _Cutting(patterns=(_GPT2,), composed=True),
    "smollm": _Cutting(patterns=(r"\p{N}", _GPT2)),
    "llama-bpe": _Cutting(patterns=(_LLAMA3,), whole_words=True, bos=True),
    "dbrx": _Cutting(patterns=(_LLAMA3,)),
    "qwen2": _Cutting(patterns=(_QWEN2,), composed=True),
    "default": _Cutting(patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}
_OTHER_NAMES = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}
_NONE = ("none", "no_vocab")
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


@dataclass(frozen=True, kw_only=True)
class FileTokens:
    """Tokens by id, and what they are."""

    source: Any
    tokens: Sequence[str]
    kinds: Sequence[int]

    def __post_init__(self) -> None:
        if len(set(self.tokens)) < len(self.tokens):
            twice = Counter(self.tokens).most_common(1)[0][0]
            raise self.error(f"the token {short(twice)} is there twice")

    def error(self, what: str) -> StoreError:
        return StoreError(f"the tokenizer in {self.source} cannot be read: {what}.")

    def ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}


def read_tokenizer(path: str | Path, metadata: Mapping[str, Any], d_vocab: int) -> Any:
    """The tokenizer that the metadata of a file describes, or None if it describes none."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None or kind in _NONE:
        return None
    load_transformers()  # so that, without it, the error says what to install
    vocabulary = _vocabulary(path, metadata, d_vocab)
    special = _special_ids(vocabulary, metadata, sentencepiece=kind == "llama")
    if kind == "llama":
        scores = _numbers(vocabulary, metadata, "scores", len(vocabulary.tokens))
        prefix = _flag(vocabulary, metadata, "add_space_prefix", True)
        backend = sentencepiece(vocabulary, scores, unknown=special["unk"], prefix=prefix)
        bos = True
    elif kind == "gpt2":
        cutting = _cutting(vocabulary, metadata)
        backend = _byte_level(vocabulary, _merges(vocabulary, metadata), cutting)
        bos = cutting.bos
    else:
        raise vocabulary.error(f"it is of type {short(kind)}; known types: gpt2, llama")
    template = metadata.get("tokenizer.chat_template")
    return finished(
        vocabulary,
        backend,
        special,
        add_bos=_flag(vocabulary, metadata, "add_bos_token", bos),
        add_eos=_flag(vocabulary, metadata, "add_eos_token", False),
        chat_template=template if isinstance(template, str) else None,
    )


# What the file says


def _vocabulary(path: str | Path, metadata: Mapping[str, Any], d_vocab: int) -> FileTokens:
    tokens = metadata.get("tokenizer.ggml.tokens")
    empty = FileTokens(source=path, tokens=(), kinds=())
    if not (isinstance(tokens, list) and tokens):
        raise empty.error("it has no tokenizer.ggml.tokens")
    if len(tokens) > d_vocab:
        raise empty.error(f"it has {len(tokens)} tokens, and the model embeds {d_vocab}")
    kinds: Sequence[int] = [NORMAL] * len(tokens)
    if "tokenizer.ggml.token_type" in metadata:
        kinds = _numbers(empty, metadata, "token_type", len(tokens)).tolist()
    return FileTokens(source=path, tokens=tokens, kinds=kinds)


def _numbers(
    vocabulary: FileTokens, metadata: Mapping[str, Any], key: str, count: int
) -> np.ndarray:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if not (isinstance(values, np.ndarray) and len(values) == count):
        raise vocabulary.error(f"tokenizer.ggml.{key} must give one number per token")
    return values


def _flag(vocabulary: FileTokens, metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(value, bool):
        raise vocabulary.error(f"tokenizer.ggml.{key} must be true or false, got {short(value)}")
    return value


def _special_ids(
    vocabulary: FileTokens, metadata: Mapping[str, Any], *, sentencepiece: bool
) -> dict[str, int | None]:
    defaults = {"bos": 1, "eos": 2, "unk": 0} if sentencepiece else {}
    ids: dict[str, int | None] = {}
    for name, theirs in _SPECIAL.items():
        value = metadata.get(f"tokenizer.ggml.{theirs}_token_id", defaults.get(name))
        if value is not None and not (type(value) is int and 0 <= value < len(vocabulary.tokens)):
            raise vocabulary.error(
                f"tokenizer.ggml.{theirs}_token_id must be in 0..{len(vocabulary.tokens) - 1}, "
                f"got {short(value)}"
            )
        ids[name] = value
    return ids


def _cutting(vocabulary: FileTokens, metadata: Mapping[str, Any]) -> _Cutting:
    # Files from before there was such a name: GPT-2's were made for its own pattern.
    fallback = "gpt-2" if metadata.get("general.architecture") == "gpt2" else None
    name = metadata.get("tokenizer.ggml.pre", fallback)
    cutting = _CUTTINGS.get(_OTHER_NAMES.get(name, name)) if isinstance(name, str) else None
    if cutting is None:
        said = (
            "it does not say how text is cut" if name is None else f"it cuts text as {short(name)}"
        )
        raise vocabulary.error(
            f"{said} (tokenizer.ggml.pre); known ways: {', '.join((*_CUTTINGS, *_OTHER_NAMES))}"
        )
    return cutting


def _merges(vocabulary: FileTokens, metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    merges, ids = metadata.get("tokenizer.ggml.merges"), vocabulary.ids()
    if not isinstance(merges, list):
        raise vocabulary.error("it has no tokenizer.ggml.merges")
    pairs = []
    for merge in merges:
        # A token may begin with a space, but no token of a merge is empty.
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut < 0 or not (left in ids and right in ids and left + right in ids):
            raise vocabulary.error(f"the merge {short(merge)} is not of two tokens into a third")
        pairs.append((left, right))
    return pairs


# Building


def _byte_level(vocabulary: FileTokens, merges: list[tuple[str, str]], cutting: _Cutting) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    backend = Tokenizer(
        models.BPE(vocab=vocabulary.ids(), merges=merges, ignore_merges=cutting.whole_words)
    )
    if cutting.composed:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(x), behavior="isolated") for x in cutting.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def sentencepiece(
    vocabulary: FileTokens, scores: np.ndarray, *, unknown: int | None, prefix: bool
) -> Any:
    """SentencePiece's BPE; with `prefix`, a space is put before the text."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    model = models.BPE(
        vocab=vocabulary.ids(),
        merges=_merges_by_score(vocabulary, scores),
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    before = [normalizers.Prepend(SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*before, spaces])
    after = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    )
    return backend


def _merges_by_score(vocabulary: FileTokens, scores: np.ndarray) -> list[tuple[str, str]]:
    """Every way to join two tokens into a normal third, the third with the highest score first."""
    if not np.isfinite(scores).all():
        raise vocabulary.error("a score is not finite")
    ids, kinds = vocabulary.ids(), vocabulary.kinds
    merges = []
    for i in np.argsort(-scores.astype(np.float64), kind="stable").tolist():
        token = vocabulary.tokens[i]
        if kinds[i] == NORMAL:
            for cut in range(len(token) - 1, 0, -1):
                if token[:cut] in ids and token[cut:] in ids:
                    merges.append((token[:cut], token[cut:]))
    return merges


def finished(
    vocabulary: FileTokens,
    backend: Any,
    special: Mapping[str, int | None],
    *,
    add_bos: bool,
    add_eos: bool = False,
    chat_template: str | None = None,
) -> Any:
    """The tokenizer with its special tokens, as users of Hugging Face know it."""
    from tokenizers import AddedToken, processors

    by_kind: dict[Literal[3, 4], list[AddedToken]] = {CONTROL: [], USER_DEFINED: []}
    for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if kind in by_kind and token:
            by_kind[kind].append(AddedToken(token, normalized=False, special=kind == CONTROL))
    backend.add_special_tokens(by_kind[CONTROL])
    backend.add_tokens(by_kind[USER_DEFINED])
    around = [
        {"id": name, "ids": [id], "tokens": [vocabulary.tokens[id]]}
        for name, wanted in (("bos", add_bos), ("eos", add_eos))
        if wanted and (id := special[name]) is not None
    ]
    first, last = ([x["id"] for x in around if x["id"] == name] for name in ("bos", "eos"))
    if around:
        backend.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last],
            pair=[*first, "$A", *last, *first, "$B:1", *last],
            special_tokens=around,
        )
    names = {
        f"{name}_token": vocabulary.tokens[id] for name, id in special.items() if id is not None
    }
    return load_transformers().PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
        **names,
    )
