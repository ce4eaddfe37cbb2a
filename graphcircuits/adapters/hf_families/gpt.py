"""How GPT-2 and GPT-NeoX of Hugging Face `transformers` name and shape their parts."""

from typing import Any

import torch

from graphcircuits.adapters.hf_families import (
    SIZES,
    Family,
    Tensors,
    activation_in,
    activation_out,
    common_needs,
    fields_in,
    fields_out,
    join_heads,
    load_transformers,
    norm_in,
    norm_out,
    only,
    rotary_in,
    rotary_out,
    split_heads,
    unscaled_needs,
)
from graphcircuits.subject.transformer import Transformer, TransformerConfig

# GPT-2: matrices multiply from the right, q, k and v side by side

_GPT2_FIELDS = {
    "n_layers": "n_layer",
    "n_heads": "n_head",
    "d_model": "n_embd",
    "n_ctx": "n_positions",
    "norm_eps": "layer_norm_epsilon",
}
_GPT2_PLAIN = {
    "b_O": "attn.c_proj.bias",
    "W_in": "mlp.c_fc.weight",
    "b_in": "mlp.c_fc.bias",
    "W_out": "mlp.c_proj.weight",
    "b_out": "mlp.c_proj.bias",
}


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
    weights = norm_in("attn_norm", state, "ln_1") | norm_in("mlp_norm", state, "ln_2")
    matrices = state.pop("attn.c_attn.weight").chunk(3, dim=1)
    biases = state.pop("attn.c_attn.bias").chunk(3)
    for name, W, b in zip("QKV", matrices, biases, strict=True):
        weights[f"W_{name}"] = split_heads(W, config.n_heads)
        weights[f"b_{name}"] = b.unflatten(0, (config.n_heads, -1))
    weights["W_O"] = state.pop("attn.c_proj.weight").unflatten(0, (config.n_heads, -1))
    return weights | {ours: state.pop(theirs) for ours, theirs in _GPT2_PLAIN.items()}


def _gpt2_layer_out(config: TransformerConfig, weights: Tensors) -> Tensors:
    state = norm_out("attn_norm", weights, "ln_1") | norm_out("mlp_norm", weights, "ln_2")
    return state | {
        "attn.c_attn.weight": torch.cat([join_heads(weights[f"W_{x}"]) for x in "QKV"], dim=1),
        "attn.c_attn.bias": torch.cat([weights[f"b_{x}"].flatten() for x in "QKV"]),
        "attn.c_proj.weight": weights["W_O"].flatten(0, 1),
        **{theirs: weights[ours] for ours, theirs in _GPT2_PLAIN.items()},
    }


# GPT-NeoX: matrices multiply from the left, q, k and v side by side within each head

_NEOX_FIELDS = SIZES | {"norm_eps": "layer_norm_eps", "parallel": "use_parallel_residual"}
_NEOX_NORMS = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_NEOX_BIASES = {
    "b_O": "attention.dense.bias",
    "b_in": "mlp.dense_h_to_4h.bias",
    "b_out": "mlp.dense_4h_to_h.bias",
}


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
    weights: Tensors = {}
    for ours, theirs in _NEOX_NORMS.items():
        weights |= norm_in(ours, state, theirs)
    by_head = (config.n_heads, 3, config.d_head)
    matrices = state.pop("attention.query_key_value.weight").unflatten(0, by_head).unbind(1)
    biases = state.pop("attention.query_key_value.bias").unflatten(0, by_head).unbind(1)
    for name, W, b in zip("QKV", matrices, biases, strict=True):
        weights[f"W_{name}"], weights[f"b_{name}"] = W.transpose(1, 2), b
    return weights | {
        "W_O": state.pop("attention.dense.weight").T.unflatten(0, (config.n_heads, -1)),
        "W_in": state.pop("mlp.dense_h_to_4h.weight").T,
        "W_out": state.pop("mlp.dense_4h_to_h.weight").T,
        **{ours: state.pop(theirs) for ours, theirs in _NEOX_BIASES.items()},
    }


def _neox_layer_out(config: TransformerConfig, weights: Tensors) -> Tensors:
    state: Tensors = {}
    for ours, theirs in _NEOX_NORMS.items():
        state |= norm_out(ours, weights, theirs)
    matrices = torch.stack([weights[f"W_{x}"].transpose(1, 2) for x in "QKV"], dim=1)
    biases = torch.stack([weights[f"b_{x}"] for x in "QKV"], dim=1)
    return state | {
        "attention.query_key_value.weight": matrices.flatten(0, 2),
        "attention.query_key_value.bias": biases.flatten(),
        "attention.dense.weight": weights["W_O"].flatten(0, 1).T,
        "mlp.dense_h_to_4h.weight": weights["W_in"].T,
        "mlp.dense_4h_to_h.weight": weights["W_out"].T,
        **{theirs: weights[ours] for ours, theirs in _NEOX_BIASES.items()},
    }


def _layer_norm_needs(subject: Transformer) -> dict[str, bool]:
    config = subject.config
    return {
        **common_needs(subject),
        "norm=layer": config.norm == "layer",
        "gated_mlp=False": not config.gated_mlp,
        "biases": config.biases,
        "n_kv_heads=n_heads": config.n_groups == config.n_heads,
        "d_model=n_heads d_head": config.d_model == config.n_heads * config.d_head,
        "qk_norm=none": config.qk_norm == "none",
        "norm_places=before": config.norm_places == "before",
        **unscaled_needs(config, "windows"),
    }


def _gpt2_needs(subject: Transformer) -> dict[str, bool]:
    config = subject.config
    return _layer_norm_needs(subject) | {
        "positions=learned": config.positions == "learned",
        "parallel=False": not config.parallel,
    }


def _neox_needs(subject: Transformer) -> dict[str, bool]:
    return _layer_norm_needs(subject) | {"positions=rotary": subject.config.positions == "rotary"}


GPT2 = Family(
    layer_prefix="h",
    embedding="wte",
    positions="wpe",
    final_norm="ln_f",
    config_in=_gpt2_config_in,
    config_out=_gpt2_config_out,
    layer_in=_gpt2_layer_in,
    layer_out=_gpt2_layer_out,
    needs=_gpt2_needs,
)
GPT_NEOX = Family(
    layer_prefix="layers",
    embedding="embed_in",
    final_norm="final_layer_norm",
    config_in=_neox_config_in,
    config_out=_neox_config_out,
    layer_in=_neox_layer_in,
    layer_out=_neox_layer_out,
    needs=_neox_needs,
)
