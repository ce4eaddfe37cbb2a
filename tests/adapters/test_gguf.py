"""GGUF files: the logits of the model they were written from, and refusals by name."""

import weakref
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graphcircuits.adapters import gguf_file
from graphcircuits.adapters.gguf import Settings, load_gguf, read_config
from graphcircuits.io.files import StoreError
from graphcircuits.subject.layers import RotaryScaling
from tests.adapters.gguf_models import (
    LLAMA3,
    MODELS,
    make_model,
    rope_factors,
    settings_of,
    tensors_of,
    write,
    write_model,
)


@pytest.fixture(autouse=True)
def random_state() -> Any:
    """Their constructors draw from the global generator; leave it as it was."""
    with torch.random.fork_rng(devices=[]):
        yield


def tokens() -> torch.Tensor:
    return torch.randint(19, (3, 11), generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_logits_of_transformers(tmp_path: Path, name: str) -> None:
    path, model = write_model(tmp_path / "model.gguf", name)
    subject = load_gguf(path)
    assert subject.dtype == torch.float32
    assert subject.tokenizer is None
    with torch.no_grad():
        expected = model(tokens()).logits
    torch.testing.assert_close(subject.logits(tokens()), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0"])
def test_packed_weights(tmp_path: Path, kind: str) -> None:
    """The model that is filled with what the file holds gives the same logits."""
    path, model = write_model(tmp_path / "model.gguf", "qwen3", kind)
    packing = gguf.GGMLQuantizationType[kind]
    dtype = {"F16": torch.float16, "BF16": torch.bfloat16}.get(kind, torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                packed = gguf.quants.quantize(weight.numpy(), packing)
                weight.copy_(torch.from_numpy(gguf.quants.dequantize(packed, packing)))
            # Norms are float32 in the file and are rounded with the rest.
            weight.copy_(weight.to(dtype))
        expected = model(tokens()).logits
    subject = load_gguf(path)
    assert subject.dtype == dtype
    found = subject.to(torch.float32).logits(tokens())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_matrices_of_two_kinds_are_read_as_float32(tmp_path: Path) -> None:
    model = make_model("llama")
    tensors = tensors_of("llama", model)
    tensors["token_embd.weight"] = tensors["token_embd.weight"].astype(np.float16)
    path = write(tmp_path / "model.gguf", "llama", settings_of("llama", model), tensors)
    assert load_gguf(path).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("name", "kind"), [("gemma3", "Q8_0"), ("gptneox", "BF16")])
def test_any_dtype_is_the_float32_cast(
    tmp_path: Path, name: str, kind: str, dtype: torch.dtype
) -> None:
    path, _ = write_model(tmp_path / "model.gguf", name, kind)
    expected = load_gguf(path, dtype=torch.float32)
    found = load_gguf(path, dtype=dtype)
    assert found.dtype == dtype
    for weight, exact in found.weights.items():
        assert torch.equal(exact, expected.weights[weight].to(dtype)), weight


def test_numbers_beyond_a_dtype_are_refused(tmp_path: Path) -> None:
    model = make_model("llama")
    tensors = tensors_of("llama", model)
    tensors["output_norm.weight"][3] = 1e5
    path = write(tmp_path / "model.gguf", "llama", settings_of("llama", model), tensors)
    assert load_gguf(path, dtype=torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(
        StoreError, match=r"'output_norm\.weight' holds numbers that float16 cannot hold; load"
    ):
        load_gguf(path, dtype=torch.float16)


class LiveBytes(TorchDispatchMode):
    """The most that tensors hold at once while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            if (key := storage._cdata) not in self.seen:
                self.seen.add(key)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.gone, key, storage.nbytes())
        return made

    def gone(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_memory_holds_the_weights_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(gguf_file, "_CHUNK", 2**9)
    path, _ = write_model(tmp_path / "model.gguf", "gemma3", "Q8_0")
    with LiveBytes() as live:
        subject = load_gguf(path, dtype=dtype)
    size = sum(weight.nbytes for weight in subject.weights.values())
    assert size <= live.peak <= 1.3 * size


# Rotary positions


@pytest.mark.parametrize(
    ("rope", "d_head"),
    [
        (LLAMA3, 16),
        (
            LLAMA3
            | {"rope_theta": 5e5, "high_freq_factor": 4.0}
            | {"original_max_position_embeddings": 8192},
            128,
        ),
        (
            LLAMA3
            | {"rope_theta": 5e5, "high_freq_factor": 4.0, "factor": 32.0}
            | {"original_max_position_embeddings": 8192},
            64,
        ),
    ],
)
def test_llama3_scaling_is_recovered(tmp_path: Path, rope: dict[str, Any], d_head: int) -> None:
    """As in the toy, Llama 3.1 8B, Llama 3.2 1B."""
    path = scaled(tmp_path, rope_factors(rope, d_head), d_head, rope["rope_theta"])
    assert load_gguf(path).config.rotary_scaling == RotaryScaling(
        kind="llama3",
        factor=rope["factor"],
        high_freq_factor=rope["high_freq_factor"],
        original_n_ctx=rope["original_max_position_embeddings"],
    )


def scaled(tmp_path: Path, factors: np.ndarray, d_head: int, theta: float) -> Path:
    """A one-layer llama whose rotary frequencies are divided by these factors."""
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd": (5, 8),
        "output_norm": (8,),
        "blk.0.attn_norm": (8,),
        "blk.0.ffn_norm": (8,),
        "blk.0.attn_q": (d_head, 8),
        "blk.0.attn_k": (d_head, 8),
        "blk.0.attn_v": (d_head, 8),
        "blk.0.attn_output": (8, d_head),
        "blk.0.ffn_up": (4, 8),
        "blk.0.ffn_gate": (4, 8),
        "blk.0.ffn_down": (8, 4),
    }
    tensors = {f"{k}.weight": rng.normal(size=v).astype(np.float32) for k, v in shapes.items()}
    settings = {
        "block_count": 1,
        "context_length": 8,
        "embedding_length": 8,
        "feed_forward_length": 4,
        "attention.head_count": 1,
        "attention.key_length": d_head,
        "attention.value_length": d_head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": theta,
    }
    tensors["rope_freqs.weight"] = factors.astype(np.float32)
    own = {f"llama.{key}": value for key, value in settings.items()}
    return write(tmp_path / "model.gguf", "llama", own, tensors)


def test_other_rotary_factors(tmp_path: Path) -> None:
    ones = load_gguf(scaled(tmp_path, np.ones(8), 16, 500.0))
    assert ones.config.rotary_scaling is None
    linear = load_gguf(scaled(tmp_path, np.full(8, 4.0), 16, 500.0))
    assert linear.config.rotary_scaling == RotaryScaling(kind="linear", factor=4.0)
    with pytest.raises(
        StoreError, match=r"by rope_freqs\.weight in a way that is neither llama3's"
    ):
        load_gguf(scaled(tmp_path, np.arange(1.0, 9.0), 16, 500.0))


# What is refused


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {"llama.expert_count": 8}, r"its settings llama\.expert_count=8 are not known"),
        ("llama", {"llama.logit_scale": 0.5}, r"its settings llama\.logit_scale=0\.5 are not"),
        ("qwen2", {"qwen2.attention.sliding_window": 3}, r"sliding_window=3 are not known"),
        (
            "llama",
            {"llama.rope.scaling.type": "yarn"},
            "scales rotary positions by 'yarn'; known ways: linear, llama3",
        ),
        (
            "llama3",
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
            "scales rotary positions twice",
        ),
        ("llama", {"llama.attention.value_length": 4}, "values of 4 numbers and keys of 8"),
        ("llama", {"llama.attention.head_count_kv": [2, 1]}, "head_count_kv is array.*no subject"),
        ("llama", {"llama.attention.head_count_kv": 3}, "no subject: n_kv_heads must divide"),
        ("llama", {"llama.block_count": 2**31}, "2147483648 layers .* and holds 21 tensors"),
        ("llama", {"llama.block_count": 3}, r"it lacks blk\.2\.attn_q\.weight, .* and 6 more"),
        ("llama", {"llama.block_count": 1}, r"it holds blk\.1\.\w+\.weight, .* which is not known"),
        ("llama", {"llama.feed_forward_length": 65}, r"it holds blk\.0\.\w+\.weight of shape \("),
        ("llama", {"llama.vocab_size": 20}, "20 tokens by its metadata and 19 rows"),
        ("llama", {"llama.context_length": "16"}, "context_length is '16', which no subject has"),
        (
            "llama",
            {"llama.attention.layer_norm_rms_epsilon": float("nan")},
            r"layer_norm_rms_epsilon is nan",
        ),
        ("gemma3", {"gemma3.attention.sliding_window_pattern": [True]}, "1 entries for 7 layers"),
        ("llama", {"general.type": "adapter"}, "holds no model: its general.type is 'adapter'"),
        ("llama", {"split.count": 3}, "one of 3 parts of a model; join them with"),
    ],
)
def test_what_a_subject_cannot_compute_is_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, name, **{key.replace(".", "__"): value for key, value in changes.items()})
    with pytest.raises(StoreError, match=message) as caught:
        load_gguf(path)
    assert str(path) in str(caught.value)


def test_settings_that_change_nothing_are_passed_over(tmp_path: Path) -> None:
    changes = {"llama__expert_count": 0, "llama__rope__scaling__type": "none"}
    changes |= {"llama__attention__head_count_kv": [2, 2], "llama__tensor_data_layout": "Meta AI"}
    path, model = write_model(tmp_path / "model.gguf", "llama", **changes)
    with torch.no_grad():
        expected = model(tokens()).logits
    torch.testing.assert_close(load_gguf(path).logits(tokens()), expected, rtol=1e-5, atol=1e-5)


def test_windows_by_layer(tmp_path: Path) -> None:
    pattern = [False, True, True, False, False, True, False]
    path, _ = write_model(
        tmp_path / "model.gguf", "gemma3", gemma3__attention__sliding_window_pattern=pattern
    )
    expected = tuple(3 if within else None for within in pattern)
    assert load_gguf(path).config.windows == expected


@pytest.mark.parametrize(
    ("name", "n_layers", "d_scale"),
    [("gemma2", 46, 8), ("gemma2", 42, 16), ("gemma3", 62, 8), ("gemma3", 48, 16)],
)
def test_the_largest_of_gemma_scale_scores_by_width(name: str, n_layers: int, d_scale: int) -> None:
    """As in llama.cpp, which knows them by their number of layers: no file says it."""
    found = settings_of(name, make_model(name)) | {f"{name}.block_count": n_layers}
    shapes = {"token_embd.weight": (19, 32)} | {f"blk.{i}": (1,) for i in range(n_layers)}
    config = read_config(Settings("model.gguf", name, found), shapes, None)
    assert config.attention_scale == d_scale**-0.5


def test_unknown_architectures_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "mamba", {}, {})
    with pytest.raises(StoreError, match="architecture 'mamba'; known ones: llama, qwen2, qwen3, "):
        load_gguf(path)


@pytest.mark.parametrize(
    ("name", "lost"), [("llama", "output_norm.weight"), ("olmo2", "output.weight")]
)
def test_missing_tensors_are_named(tmp_path: Path, name: str, lost: str) -> None:
    model = make_model(name)
    tensors = tensors_of(name, model)
    del tensors[lost]
    path = write(tmp_path / "model.gguf", MODELS[name][0], settings_of(name, model), tensors)
    with pytest.raises(StoreError, match=f"it lacks {lost}"):
        load_gguf(path)


def test_unknown_tensors_are_named(tmp_path: Path) -> None:
    model = make_model("llama")
    tensors = tensors_of("llama", model) | {"blk.0.ffn_gate.bias": np.ones(64, dtype=np.float32)}
    path = write(tmp_path / "model.gguf", "llama", settings_of("llama", model), tensors)
    with pytest.raises(StoreError, match=r"it holds blk\.0\.ffn_gate\.bias, which is not known"):
        load_gguf(path)
