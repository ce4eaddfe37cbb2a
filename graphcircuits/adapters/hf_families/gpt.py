"""How GPT-2 and GPT-NeoX of Hugging Face `transformers` name and shape their parts."""

from typing import Any

import torch

from graphcircuits.adapters.hf_families import (
    SIZES,
    Family,
    Tensors,
    activation_in,
    activation_out,
    fields_in,
    fields_out,
    load_transformers,
    only,
    rotary_in,
    rotary_out,
)
from graphcircuits.adapters.rows import from_rows, layer_shapes, to_rows
from graphcircuits.subject.transformer import Transformer, TransformerConfig


def _names(*parts: str) -> dict[str, str]:
    """Our weights of a layer -> theirs, but those of queries, keys and values, by its parts."""
    weights = ("attn_norm_w", "W_O", "mlp_norm_w", "W_in", "W_out")
    biases = ("attn_norm_b", "b_O", "mlp_norm_b", "b_in", "b_out")
    names = {ours: f"{part}.weight" for ours, part in zip(weights, parts, strict=True)}
    return names | {ours: f"{part}.bias" for ours, part in zip(biases, parts, strict=True)}


# GPT-2: matrices multiply from the right, q, k and v side by side

_GPT2_FIELDS = {
    "n_layers": "n_layer",
    "n_heads": "n_head",
    "d_model": "n_embd",
    "n_ctx": "n_positions",
    "norm_eps": "layer_norm_epsilon",
}
_GPT2_NAMES = _names("ln_1", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")


def _gpt2_config_in(config: Any) -> dict[str, Any]:
    only("GPT-2", config, scale_attn_by_inverse_layer_idx=(False,))
    only("GPT-2", config, scale_attn_weights=(True,), add_cross_attention=(False,))
    return fields_in(config, _GPT2_FIELDS) | {
        "d_head": config.n_embd // config.n_head,
        "d_mlp": config.n_inner or 4 * config.n_embd,
        "norm": "layer",
        "activation": activation_in(config.activation_function),
    }


def _gpt2_config_out(subject: Transformer) -> Any:
    config = subject.config
    return load_transformers().GPT2Config(
        **fields_out(config, _GPT2_FIELDS),
        n_inner=config.d_mlp,
        activation_function=activation_out(config.activation),
    )


def _gpt2_layer_in(config: TransformerConfig, state: Tensors) -> Tensors:
    weights = {ours: state.pop(theirs) for ours, theirs in _GPT2_NAMES.items()}
    weights["W_O"] = weights["W_O"].unflatten(0, (config.n_heads, -1))
    shape = (config.n_heads, config.d_model, config.d_head)
    matrices = state.pop("attn.c_attn.weight").T.chunk(3)
    biases = state.pop("attn.c_attn.bias").chunk(3)
    for name, W, b in zip("QKV", matrices, biases, strict=True):
        weights[f"W_{name}"] = from_rows(f"W_{name}", W, shape)
        weights[f"b_{name}"] = b.unflatten(0, (config.n_heads, -1))
    return weights


def _gpt2_layer_out(config: TransformerConfig, weights: Tensors) -> Tensors:
    return {theirs: weights[ours] for ours, theirs in _GPT2_NAMES.items()} | {
        "attn.c_attn.weight": torch.cat([to_rows(f"W_{x}", weights[f"W_{x}"]) for x in "QKV"]).T,
        "attn.c_attn.bias": torch.cat([weights[f"b_{x}"].flatten() for x in "QKV"]),
        "attn.c_proj.weight": weights["W_O"].flatten(0, 1),
    }


# GPT-NeoX: matrices multiply from the left, q, k and v side by side within each head

_NEOX_FIELDS = SIZES | {"norm_eps": "layer_norm_eps", "parallel": "use_parallel_residual"}
_NEOX_NAMES = _names(
    *("input_layernorm", "attention.dense", "post_attention_layernorm"),
    *("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
)


def _neox_config_in(config: Any) -> dict[str, Any]:
    only("GPT-NeoX", config, attention_bias=(True,))
    d_head = config.hidden_size // config.num_attention_heads
    return fields_in(config, _NEOX_FIELDS) | {
        "d_head": d_head,
        "norm": "layer",
        "activation": activation_in(config.hidden_act),
        **rotary_in(config, d_head, partial=True),
    }


def _neox_config_out(subject: Transformer) -> Any:
    config = subject.config
    return load_transformers().GPTNeoXConfig(
        **fields_out(config, _NEOX_FIELDS),
        hidden_act=activation_out(config.activation),
        **rotary_out(config),
    )


def _neox_layer_in(config: TransformerConfig, state: Tensors) -> Tensors:
    shapes = layer_shapes(config)
    weights = {
        ours: from_rows(ours, state.pop(theirs), shapes[ours])
        for ours, theirs in _NEOX_NAMES.items()
    }
    by_head = (config.n_heads, 3, config.d_head)
    matrices = state.pop("attention.query_key_value.weight").unflatten(0, by_head).unbind(1)
    biases = state.pop("attention.query_key_value.bias").unflatten(0, by_head).unbind(1)
    for name, W, b in zip("QKV", matrices, biases, strict=True):
        weights[f"W_{name}"], weights[f"b_{name}"] = W.transpose(1, 2), b
    return weights


def _neox_layer_out(config: TransformerConfig, weights: Tensors) -> Tensors:
    matrices = torch.stack([weights[f"W_{x}"].transpose(1, 2) for x in "QKV"], dim=1)
    biases = torch.stack([weights[f"b_{x}"] for x in "QKV"], dim=1)
    return {theirs: to_rows(ours, weights[ours]) for ours, theirs in _NEOX_NAMES.items()} | {
        "attention.query_key_value.weight": matrices.flatten(0, 2),
        "attention.query_key_value.bias": biases.flatten(),
    }


GPT2 = Family(
    layer_prefix="h",
    embedding="wte",
    positions="wpe",
    final_norm="ln_f",
    config_in=_gpt2_config_in,
    config_out=_gpt2_config_out,
    layer_in=_gpt2_layer_in,
    layer_out=_gpt2_layer_out,
)
GPT_NEOX = Family(
    layer_prefix="layers",
    embedding="embed_in",
    final_norm="final_layer_norm",
    config_in=_neox_config_in,
    config_out=_neox_config_out,
    layer_in=_neox_layer_in,
    layer_out=_neox_layer_out,
)
