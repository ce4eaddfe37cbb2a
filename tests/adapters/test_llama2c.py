"""Files of llama2.c: the logits of the Llama they were written from, its tokenizer, refusals."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from graphcircuits.adapters.llama2c import load_llama2c, read_llama2c_tokenizer
from graphcircuits.io.files import StoreError
from tests.damage import limits

PIECES = {"▁": -20.0, "a": -21.0, "b": -22.0, "▁a": -1.0, "ab": -2.0, "▁ab": -3.0}
D_VOCAB = 3 + 256 + len(PIECES)


@pytest.fixture(autouse=True)
def random_state() -> Any:
    """Their constructors draw from the global generator; leave it as it was."""
    with torch.random.fork_rng(devices=[]):
        yield


def make_model(tied: bool) -> Any:
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        hidden_size=16,
        intermediate_size=24,
        max_position_embeddings=12,
        vocab_size=D_VOCAB,
        tie_word_embeddings=tied,
        rms_norm_eps=1e-5,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def write(path: Path, model: Any, *, base: float = 1e4) -> Path:
    """As llama2.c exports version 0: matrices by kind, each over all layers."""
    config, state = model.config, model.state_dict()
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    half = config.hidden_size // heads // 2

    def beside(weight: torch.Tensor, n: int) -> torch.Tensor:
        return weight.unflatten(0, (n, 2, half)).transpose(1, 2).flatten(0, 2)

    def layers(name: str) -> list[torch.Tensor]:
        found = [state[f"model.layers.{i}.{name}.weight"] for i in range(config.num_hidden_layers)]
        turned = {"self_attn.q_proj": heads, "self_attn.k_proj": groups}
        return [beside(weight, turned[name]) for weight in found] if name in turned else found

    vocabulary = config.vocab_size * (1 if config.tie_word_embeddings else -1)
    sizes = (config.hidden_size, config.intermediate_size, config.num_hidden_layers, heads, groups)
    parts = [state["model.embed_tokens.weight"], *layers("input_layernorm")]
    for name in "qkvo":
        parts += layers(f"self_attn.{name}_proj")
    parts += layers("post_attention_layernorm")
    for name in ("gate", "down", "up"):
        parts += layers(f"mlp.{name}_proj")
    n_ctx = config.max_position_embeddings
    angles = torch.arange(n_ctx)[:, None] * base ** -(torch.arange(half) / half)
    parts += [state["model.norm.weight"], angles.cos(), angles.sin()]
    if not config.tie_word_embeddings:
        parts.append(state["lm_head.weight"])
    header = struct.pack("<7i", *sizes, vocabulary, n_ctx)
    path.write_bytes(header + b"".join(part.contiguous().numpy().tobytes() for part in parts))
    return path


def write_tokenizer(path: Path, *, old: bool = False) -> Path:
    """As llama2.c exports it; old files hold characters where newer ones name bytes."""
    texts = ["<unk>", "\n<s>\n", "\n</s>\n"]
    texts += [chr(i) if old else f"<0x{i:02X}>" for i in range(256)]
    pairs = [(text, 0.0) for text in texts]
    pairs += [(piece.replace("▁", " "), score) for piece, score in PIECES.items()]
    content = struct.pack("<i", 8)
    for text, score in pairs:
        content += struct.pack("<fi", score, len(text.encode())) + text.encode()
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_the_logits_of_transformers(tmp_path: Path, tied: bool) -> None:
    model = make_model(tied)
    subject = load_llama2c(write(tmp_path / "model.bin", model))
    tokens = torch.randint(D_VOCAB, (3, 11), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(tokens).logits
    torch.testing.assert_close(subject.logits(tokens), expected, rtol=1e-5, atol=1e-5)
    assert subject.tokenizer is None
    half = load_llama2c(tmp_path / "model.bin", dtype=torch.bfloat16)
    for name, weight in subject.weights.items():
        assert torch.equal(half.weights[name], weight.bfloat16()), name


@pytest.mark.parametrize("old", [True, False])
def test_the_tokenizer_beside_the_model(tmp_path: Path, old: bool) -> None:
    write_tokenizer(tmp_path / "tokenizer.bin", old=old)
    tokenizer = load_llama2c(write(tmp_path / "model.bin", make_model(tied=True))).tokenizer
    found = tokenizer("ab a\né")["input_ids"]
    expected = ["<s>", "▁ab", "▁a", "<0x0A>", "<0xC3>", "<0xA9>"]
    assert tokenizer.convert_ids_to_tokens(found) == expected
    assert tokenizer.decode(found, skip_special_tokens=True) == "ab a\né"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)


def test_a_tokenizer_elsewhere(tmp_path: Path) -> None:
    elsewhere = write_tokenizer(tmp_path / "words.bin")
    subject = load_llama2c(write(tmp_path / "model.bin", make_model(tied=True)), elsewhere)
    assert subject.tokenizer.convert_ids_to_tokens([259]) == ["▁"]


def test_cut_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.bin", make_model(tied=True))
    content = path.read_bytes()
    size = len(content)
    for changed in (content[:-4], content + b"abcd"):
        path.write_bytes(changed)
        message = rf"by its header \(16, 24, 2, 4, 2, 265, 12\) it takes {size} bytes, and it holds"
        with pytest.raises(StoreError, match=message):
            load_llama2c(path)
    path.write_bytes(content[:9])
    with pytest.raises(StoreError, match=r"not a model of llama2\.c: it holds 9 bytes"):
        load_llama2c(path)
    for sizes in ((2**31 - 1,) * 7, (0,) * 7, (-5,) * 7, (8, 8, 1, 3, 2, 9, 9)):
        path.write_bytes(struct.pack("<7i", *sizes) + bytes(64))
        with limits(), pytest.raises(StoreError, match=r"is not a (whole )?model of llama2\.c: "):
            load_llama2c(path)
    path.write_bytes(struct.pack("<7i", 0x616B3432, 2, *[0] * 5))
    with pytest.raises(StoreError, match=r"in version 2 of llama2\.c's format; version 0 is read"):
        load_llama2c(path)


def test_other_positions_and_numbers_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.bin", make_model(tied=True), base=5e5)
    with pytest.raises(StoreError, match="rotary positions whose base is not 10000"):
        load_llama2c(path)
    content = bytearray(write(path, make_model(tied=True)).read_bytes())
    content[100:104] = np.float32("nan").tobytes()
    path.write_bytes(content)
    with pytest.raises(StoreError, match="holds numbers that are not finite"):
        load_llama2c(path)


def test_tokenizers_that_do_not_fit(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "tokenizer.bin")
    content = path.read_bytes()
    with pytest.raises(StoreError, match="is not the tokenizer of this model: it ends after 265"):
        read_llama2c_tokenizer(path, D_VOCAB + 1)
    with pytest.raises(StoreError, match="bytes follow 260 tokens"):
        read_llama2c_tokenizer(path, 260)
    with pytest.raises(StoreError, match="its first 259 tokens are fixed, and it has 10"):
        read_llama2c_tokenizer(path, 10)
    path.write_bytes(content[:-1])
    with pytest.raises(StoreError, match="token 264 has 3 bytes, 2 are left"):
        read_llama2c_tokenizer(path, D_VOCAB)
    path.write_bytes(content[:-1] + b"\xff")
    with pytest.raises(StoreError, match="a token is not UTF-8"):
        read_llama2c_tokenizer(path, D_VOCAB)
