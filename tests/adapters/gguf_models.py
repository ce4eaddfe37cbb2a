"""Small random models of every architecture, written to GGUF files as llama.cpp's converter does.

Names come from the converter's own table in the `gguf` package. What it does to the numbers is done
here again: rows of Llama's queries and keys side by side, one added to Gemma's norms, GPT-2's
matrices turned, GPT-NeoX's queries, keys and values sorted apart.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 64,
    "max_position_embeddings": 16,
    "vocab_size": 19,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
GEMMA = GROUPED | {
    "tie_word_embeddings": True,
    "head_dim": 16,
    "num_hidden_layers": 7,
    "sliding_window": 3,
}
GPT2 = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 16, "vocab_size": 19}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 40.0,
    "original_max_position_embeddings": 64,
}

MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", "Llama", GROUPED, {}),
    "llama-tied": ("llama", "Llama", SIZES | {"tie_word_embeddings": True}, {}),
    "llama-biases": ("llama", "Llama", GROUPED | {"attention_bias": True}, {}),
    "llama-wide": ("llama", "Llama", SIZES | {"head_dim": 16}, {}),
    "llama3": ("llama", "Llama", SIZES | {"head_dim": 16, "rope_parameters": LLAMA3}, {}),
    "llama-linear": (
        "llama",
        "Llama",
        SIZES | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "mistral": (
        "llama",
        "Mistral",
        GROUPED | {"sliding_window": 3},
        {"attention.sliding_window": 3},
    ),
    "qwen2": ("qwen2", "Qwen2", GROUPED, {}),
    "qwen3": ("qwen3", "Qwen3", GROUPED | {"head_dim": 16}, {}),
    "gemma2": (
        "gemma2",
        "Gemma2",
        GEMMA
        | {
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 0.3,
            "final_logit_softcapping": 2.0,
        },
        {
            "attention.sliding_window": 3,
            "attn_logit_softcapping": 0.3,
            "final_logit_softcapping": 2.0,
        },
    ),
    "gemma3": (
        "gemma3",
        "Gemma3Text",
        GEMMA | {"query_pre_attn_scalar": 16},
        {"attention.sliding_window": 3, "rope.freq_base": 1e6},
    ),
    "olmo2": ("olmo2", "Olmo2", GROUPED, {}),
    "gpt2": ("gpt2", "GPT2", GPT2, {}),
    "gptneox": ("gptneox", "GPTNeoX", SIZES | {"rotary_pct": 0.5}, {}),
    "gptneox-sequential": (
        "gptneox",
        "GPTNeoX",
        SIZES | {"use_parallel_residual": False},
        {"use_parallel_residual": False},
    ),
}


def make_model(name: str) -> Any:
    _, kind, options, _ = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**options)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    # Fresh models have zero biases and unit norms, which would hide a mistake.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def settings_of(name: str, model: Any) -> dict[str, Any]:
    """The metadata of a model under its architecture, as the converter writes it."""
    config, (architecture, kind, _, more) = model.config, MODELS[name]
    if kind == "GPT2":
        sizes = (config.n_layer, config.n_positions, config.n_embd, 4 * config.n_embd)
        heads, eps = config.n_head, {"attention.layer_norm_epsilon": config.layer_norm_epsilon}
    else:
        sizes = (config.num_hidden_layers, config.max_position_embeddings)
        sizes += (config.hidden_size, config.intermediate_size)
        heads = config.num_attention_heads
        rope = config.rope_parameters
        theta = rope["rope_theta"] if "rope_theta" in rope else rope["full_attention"]["rope_theta"]
        eps = {"rope.freq_base": theta}
        if kind == "GPTNeoX":
            eps["attention.layer_norm_epsilon"] = config.layer_norm_eps
            share = rope.get("partial_rotary_factor", 1.0)
            eps["rope.dimension_count"] = int(share * config.hidden_size // heads)
            eps["use_parallel_residual"] = True
        else:
            eps["attention.layer_norm_rms_epsilon"] = config.rms_norm_eps
            eps["attention.head_count_kv"] = config.num_key_value_heads
            if getattr(config, "head_dim", None):
                eps |= {"attention.key_length": config.head_dim}
                eps |= {"attention.value_length": config.head_dim}
    names = ("block_count", "context_length", "embedding_length", "feed_forward_length")
    found = dict(zip(names, sizes, strict=True)) | {"attention.head_count": heads} | eps | more
    return {f"{architecture}.{key}": value for key, value in found.items()}


def tensors_of(name: str, model: Any) -> dict[str, np.ndarray]:
    """The tensors of a model by the names, and in the order of rows, of the converter."""
    architecture, kind, _, _ = MODELS[name]
    config = model.config
    known = {text: key for key, text in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    table = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", heads)
    tensors = {}
    for theirs, weight in model.state_dict().items():
        if theirs == "lm_head.weight" and config.tie_word_embeddings:
            continue
        ours = table.get_name(theirs, try_suffixes=(".weight", ".bias"))
        assert ours is not None, theirs
        if kind == "GPT2" and weight.ndim == 2 and ".h." in theirs:
            weight = weight.T
        if kind == "GPTNeoX" and "query_key_value" in theirs:
            weight = weight.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
        if kind.startswith("Gemma") and "norm" in theirs:
            weight = weight + 1
        if architecture == "llama" and "_proj" in theirs and theirs.split(".")[-2][0] in "qk":
            n = heads if "q_proj" in theirs else groups
            weight = weight.unflatten(0, (n, 2, -1)).transpose(1, 2).flatten(0, 2)
        tensors[ours] = weight.contiguous().numpy()
    if name == "llama3":
        tensors["rope_freqs.weight"] = rope_factors(LLAMA3, 16)
    return tensors


def rope_factors(rope: Mapping[str, Any], d_head: int) -> np.ndarray:
    """What llama3's scaling divides each frequency by, as the converter computes it."""
    factors = []
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    context, factor = rope["original_max_position_embeddings"], rope["factor"]
    for i in range(0, d_head, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (i / d_head)
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def write(
    path: Path,
    architecture: str,
    settings: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    kind: str = "F32",
) -> Path:
    """A GGUF file; matrices are packed as `kind`, which must fit their rows."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in settings.items():
        writer.add_key_value(key, value, *_type(value))
    packing = gguf.GGMLQuantizationType[kind]
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and kind != "F32":
            packed = gguf.quants.quantize(np.ascontiguousarray(tensor), packing)
            writer.add_tensor(name, packed, raw_dtype=packing)
        else:
            writer.add_tensor(name, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _type(value: Any) -> tuple[Any, ...]:
    kinds = gguf.GGUFValueType
    match value:
        case bool():
            return (kinds.BOOL,)
        case int():
            return (kinds.UINT32,)
        case float():
            return (kinds.FLOAT32,)
        case str():
            return (kinds.STRING,)
        case [str(), *_]:
            return kinds.ARRAY, kinds.STRING
        case [bool(), *_]:
            return kinds.ARRAY, kinds.BOOL
        case [int(), *_]:
            return kinds.ARRAY, kinds.INT32
        case _:
            return kinds.ARRAY, kinds.FLOAT32


def write_model(path: Path, name: str, kind: str = "F32", **changes: Any) -> tuple[Path, Any]:
    """A model in a file, and the model; `changes` go over its settings, dots written as __."""
    model = make_model(name)
    settings = settings_of(name, model)
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    return write(path, MODELS[name][0], settings, tensors_of(name, model), kind), model


def write_raw(path: Path, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """A GGUF file with these settings and no others, not even an architecture of its own."""
    writer = gguf.GGUFWriter(path, "")
    writer.kv_data[0].clear()
    for key, value in settings.items():
        writer.add_key_value(key, value, *_type(value))
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
