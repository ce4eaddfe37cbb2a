"""Tokenizers in GGUF files: hand-made vocabularies, a slow twin of SentencePiece, round trips."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from graphcircuits.adapters.gguf import load_gguf
from graphcircuits.adapters.gguf_tokenizer import read_tokenizer
from graphcircuits.io.files import StoreError
from tests.adapters.gguf_models import write_model

BYTES = [f"<0x{i:02X}>" for i in range(256)]
PIECES = {"▁": -20, "a": -21, "b": -22, "c": -23, "▁a": -1, "ab": -2, "abc": -3, "▁ab": -4}
PIECES |= {"bc": -5, "aa": -6, "▁▁": -7, "cab": -8, "é": -24}
ALPHABET = sorted(ByteLevel.alphabet())
MERGES = ["Ġ t", "h e", "Ġt he", "1 2", "12 3", "Ċ Ċ", "' l", "'l l"]


def spm(**more: Any) -> dict[str, Any]:
    """Metadata of a SentencePiece vocabulary: special tokens, bytes, one user's token, pieces."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, "<tag>", *PIECES]
    scores = [0.0] * 260 + [float(score) for score in PIECES.values()]
    found = {
        "model": "llama",
        "tokens": tokens,
        "scores": np.array(scores, dtype=np.float32),
        "token_type": np.array([2, 3, 3] + [6] * 256 + [4] + [1] * len(PIECES)),
    }
    return keyed(found | more)


def bpe(**more: Any) -> dict[str, Any]:
    """Metadata of a byte-level vocabulary: bytes, merges, two control tokens."""
    merged = [merge.replace(" ", "") for merge in MERGES]
    tokens = [*ALPHABET, *merged, "<|end|>", "<|start|>"]
    kinds = np.array([1] * (len(tokens) - 2) + [3, 3])
    return keyed(
        {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": MERGES, "token_type": kinds}
        | more
    )


def keyed(values: dict[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def read(metadata: dict[str, Any], d_vocab: int = 1000) -> Any:
    return read_tokenizer("model.gguf", metadata, d_vocab)


SPM, BPE = read(spm()), read(bpe())


def ids(tokenizer: Any, text: str, **options: Any) -> list[str]:
    return tokenizer.convert_ids_to_tokens(tokenizer(text, **options)["input_ids"])


def slow_pieces(text: str) -> list[str]:
    """SentencePiece's BPE as it is defined: join the best pair, the first of equals, again."""
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        joined = [(PIECES.get(a + b), i) for i, (a, b) in enumerate(pairwise(symbols))]
        best = max(((s, -i) for s, i in joined if s is not None), default=None)
        if best is None:
            break
        at = -best[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    found = []
    for symbol in symbols:
        known = symbol in PIECES
        found += [symbol] if known else [f"<0x{byte:02X}>" for byte in symbol.encode()]
    return found


@given(st.text("abc é\n", max_size=30))
def test_sentencepiece_against_a_slow_twin(text: str) -> None:
    assert ids(SPM, text) == ["<s>", *slow_pieces(text)]


@given(st.text(max_size=30).filter(lambda text: "<" not in text and "▁" not in text))
def test_round_trips(text: str) -> None:
    for tokenizer in (SPM, BPE):
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_special_tokens_of_sentencepiece() -> None:
    assert (SPM.bos_token_id, SPM.eos_token_id, SPM.unk_token_id) == (1, 2, 0)
    assert SPM.pad_token is None
    assert ids(SPM, "ab<tag>ab</s>a") == ["<s>", "▁ab", "<tag>", "▁ab", "</s>", "▁a"]
    assert ids(SPM, "a", add_special_tokens=False) == ["▁a"]
    assert SPM.decode(SPM("ab<tag></s>")["input_ids"], skip_special_tokens=True) == "ab<tag>"
    # BOS first and EOS last only where the file says so, in pairs of texts too.
    both = read(spm(add_bos_token=False, add_eos_token=True, bos_token_id=2, eos_token_id=1))
    assert ids(both, "a") == ["▁a", "<s>"]
    pair = SPM("a", "ab")["input_ids"]
    assert SPM.convert_ids_to_tokens(pair) == ["<s>", "▁a", "<s>", "▁ab"]


def test_gemma_puts_no_space_first() -> None:
    gemma = read(spm(add_space_prefix=False, padding_token_id=0))
    assert ids(gemma, "ab ab") == ["<s>", "ab", "▁ab"]
    assert gemma.decode([gemma.convert_tokens_to_ids("▁ab")]) == " ab"
    assert gemma.pad_token == "<unk>"


def test_text_without_a_piece_is_unknown_where_there_are_no_bytes() -> None:
    tokens = ["<unk>", "<s>", "</s>", *PIECES]
    scores = np.array([0.0, 0.0, 0.0, *map(float, PIECES.values())], dtype=np.float32)
    plain = read(spm(tokens=tokens, scores=scores, token_type=None))
    assert ids(plain, "ab日本ab") == ["<s>", "▁ab", "<unk>", "ab"]


def test_special_tokens_of_bpe() -> None:
    assert BPE.bos_token is None
    assert ids(BPE, "the the<|end|>") == ["t", "he", "Ġthe", "<|end|>"]
    first = read(bpe(pre="llama-bpe", bos_token_id=264, eos_token_id=265))
    assert ids(first, "the") == ["<|end|>", "t", "he"]
    assert ids(read(bpe(pre="llama-bpe", bos_token_id=264, add_bos_token=False)), "t") == ["t"]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", "I|'ll| pay| 1234|€|\n\n| '|LL| | x"),
        ("olmo", "I|'ll| pay| 1234|€|\n\n| '|LL| | x"),
        ("smollm", "I|'ll| pay| |1|2|3|4|€|\n\n| '|LL| | x"),
        ("llama-bpe", "I|'ll| pay| |123|4|€\n\n| '|LL| | x"),
        ("dbrx", "I|'ll| pay| |123|4|€\n\n| '|LL| | x"),
        ("qwen2", "I|'ll| pay| |1|2|3|4|€\n\n| '|LL| | x"),
        ("default", "I|'|ll| pay| |123|4|€|\n\n |'|LL| | x"),
    ],
)
def test_text_is_cut_as_the_file_says(pre: str, pieces: str) -> None:
    """Worked out by hand from the patterns of llama.cpp."""
    text = pieces.replace("|", "")
    cutter = read(bpe(pre=pre)).backend_tokenizer.pre_tokenizer
    spans = [text[start:end] for _, (start, end) in cutter.pre_tokenize_str(text)]
    assert "|".join(spans) == pieces


def test_names_for_the_same_cutting() -> None:
    for name, other in {"llama3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}.items():
        one, two = (read(bpe(pre=pre)).backend_tokenizer for pre in (name, other))
        assert one.to_str() == two.to_str()
    # Files of GPT-2 from before files named their cutting.
    old = bpe(pre=None) | {"general.architecture": "gpt2"}
    assert read(old).backend_tokenizer.to_str() == BPE.backend_tokenizer.to_str()


def test_characters_are_composed_where_the_model_was_trained_so() -> None:
    composed, apart = "é", "e\u0301"
    qwen = read(bpe(pre="qwen2"))
    assert qwen(apart)["input_ids"] == qwen(composed)["input_ids"]
    assert BPE(apart)["input_ids"] != BPE(composed)["input_ids"]


def test_chat_templates_are_kept_and_run_only_when_applied() -> None:
    template = "{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}"
    chat = read(bpe() | {"tokenizer.chat_template": template})
    said = chat.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False)
    assert said == "<|start|>the<|end|>"
    broken = read(bpe() | {"tokenizer.chat_template": "{{ 1 / 0 }}"})
    assert ids(broken, "the") == ["t", "he"]


def test_files_without_a_tokenizer() -> None:
    assert read({}) is None
    assert read(keyed({"model": "none"})) is None


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (bpe(model="bert"), "it is of type 'bert'; known types: gpt2, llama"),
        (
            bpe(pre="kimi-k2"),
            r"it cuts text as 'kimi-k2' \(tokenizer.ggml.pre\); known ways: gpt-2",
        ),
        (bpe(pre=None), "it does not say how text is cut"),
        (bpe(merges=None), r"it has no tokenizer\.ggml\.merges"),
        (bpe(merges=["t h"]), "the merge 't h' is not of two tokens into a third"),
        (bpe(merges=["th"]), "the merge 'th' is not of two tokens into a third"),
        (bpe(tokens=None), r"it has no tokenizer\.ggml\.tokens"),
        (bpe(tokens=["a"] * 266), "the token 'a' is there twice"),
        (bpe(token_type=np.array([1])), "token_type must give one number per token"),
        (bpe(bos_token_id=266), r"bos_token_id must be in 0\.\.265, got 266"),
        (bpe(add_bos_token=1), "add_bos_token must be true or false, got 1"),
        (spm(scores=None), "scores must give one number per token"),
        (spm(scores=np.full(273, np.nan, dtype=np.float32)), "a score is not finite"),
    ],
)
def test_vocabularies_that_do_not_fit(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(
        StoreError, match=f"the tokenizer in model.gguf cannot be read: .*{message}"
    ):
        read(metadata)


def test_more_tokens_than_the_model_embeds() -> None:
    with pytest.raises(StoreError, match="it has 266 tokens, and the model embeds 100"):
        read(bpe(), 100)


def test_a_subject_comes_with_its_tokenizer_or_without(tmp_path: Path) -> None:
    words = ["<unk>", "<s>", "</s>", "▁", "a", "▁a"]
    found = {"model": "llama", "tokens": words, "scores": [0.0, 0.0, 0.0, -3.0, -2.0, -1.0]}
    changes = {f"tokenizer__ggml__{key}": value for key, value in found.items()}
    path, _ = write_model(tmp_path / "model.gguf", "llama", **changes)
    assert load_gguf(path).tokenizer("a a")["input_ids"] == [1, 5, 5]
    changes["tokenizer__ggml__model"] = "rwkv"
    path, _ = write_model(tmp_path / "other.gguf", "llama", **changes)
    with pytest.raises(StoreError, match=r"'rwkv'.*without it: load_gguf\(.*, tokenizer=False\)"):
        load_gguf(path)
    assert load_gguf(path, tokenizer=False).tokenizer is None
