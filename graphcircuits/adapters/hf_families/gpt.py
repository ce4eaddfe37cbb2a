"""How GPT-2 and GPT-NeoX of Hugging Face `transformers` name and shape their parts."""

from typing import Any

import torch

from graphcircuits.adapters.hf_families import (
    Family,
    Tensors,
    activation_in,
    activation_out,
    common_needs,
    join_heads,
    load_transformers,
    norm_in,
    norm_out,
    only,
    plain_needs,
    rotary_in,
    rotary_out,
    split_heads,
)
from graphcircuits.subject.transformer import Transformer, TransformerConfig

# GPT-2: matrices multiply from the right, q, k and v side by side


def _gpt2_config_in(config: Any) -> dict[str, Any]:
    only("GPT-2", config, scale_attn_by_inverse_layer_idx=(False,))
    only("GPT-2", config, scale_attn_weights=(True,), add_cross_attention=(False,))
    return {
        "n_layers": config.n_layer,
        "n_heads": config.n_head,
        "d_model": config.n_embd,
        "d_head": config.n_embd // config.n_head,
        "d_mlp": config.n_inner or 4 * config.n_embd,
        "n_ctx": config.n_positions,
        "norm": "layer",
        "norm_eps": config.layer_norm_epsilon,
        "activation": activation_in(config.activation_function),
    }


def _gpt2_config_out(subject: Transformer) -> Any:
    config = subject.config
    return load_transformers().GPT2Config(
        n_layer=config.n_layers,
        n_head=config.n_heads,
        n_embd=config.d_model,
        n_inner=config.d_mlp,
        n_positions=config.n_ctx,
        vocab_size=config.d_vocab,
        layer_norm_epsilon=config.norm_eps,
        activation_function=activation_out(config.activation),
        tie_word_embeddings=config.tied_unembedding,
    )


def _gpt2_layer_in(config: TransformerConfig, state: Tensors) -> Tensors:
    weights = norm_in("attn_norm", state, "ln_1") | norm_in("mlp_norm", state, "ln_2")
    matrices = state.pop("attn.c_attn.weight").chunk(3, dim=1)
    biases = state.pop("attn.c_attn.bias").chunk(3)
    for name, W, b in zip("QKV", matrices, biases, strict=True):
        weights[f"W_{name}"] = split_heads(W, config.n_heads)
        weights[f"b_{name}"] = b.unflatten(0, (config.n_heads, -1))
    return weights | {
        "W_O": state.pop("attn.c_proj.weight").unflatten(0, (config.n_heads, -1)),
        "b_O": state.pop("attn.c_proj.bias"),
        "W_in": state.pop("mlp.c_fc.weight"),
        "b_in": state.pop("mlp.c_fc.bias"),
        "W_out": state.pop("mlp.c_proj.weight"),
        "b_out": state.pop("mlp.c_proj.bias"),
    }


def _gpt2_layer_out(config: TransformerConfig, weights: Tensors) -> Tensors:
    state = norm_out("attn_norm", weights, "ln_1") | norm_out("mlp_norm", weights, "ln_2")
    return state | {
        "attn.c_attn.weight": torch.cat([join_heads(weights[f"W_{x}"]) for x in "QKV"], dim=1),
        "attn.c_attn.bias": torch.cat([weights[f"b_{x}"].flatten() for x in "QKV"]),
        "attn.c_proj.weight": weights["W_O"].flatten(0, 1),
        "attn.c_proj.bias": weights["b_O"],
        "mlp.c_fc.weight": weights["W_in"],
        "mlp.c_fc.bias": weights["b_in"],
        "mlp.c_proj.weight": weights["W_out"],
        "mlp.c_proj.bias": weights["b_out"],
    }


# GPT-NeoX: matrices multiply from the left, q, k and v side by side within each head


def _neox_config_in(config: Any) -> dict[str, Any]:
    only("GPT-NeoX", config, attention_bias=(True,))
    d_head = config.hidden_size // config.num_attention_heads
    return {
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "d_model": config.hidden_size,
        "d_head": d_head,
        "d_mlp": config.intermediate_size,
        "n_ctx": config.max_position_embeddings,
        "norm": "layer",
        "norm_eps": config.layer_norm_eps,
        "activation": activation_in(config.hidden_act),
        "parallel": config.use_parallel_residual,
        **rotary_in(config, d_head, partial=True),
    }


def _neox_config_out(subject: Transformer) -> Any:
    config = subject.config
    return load_transformers().GPTNeoXConfig(
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        hidden_size=config.d_model,
        intermediate_size=config.d_mlp,
        max_position_embeddings=config.n_ctx,
        vocab_size=config.d_vocab,
        layer_norm_eps=config.norm_eps,
        hidden_act=activation_out(config.activation),
        use_parallel_residual=config.parallel,
        tie_word_embeddings=config.tied_unembedding,
        **rotary_out(config),
    )


_NEOX_NORMS = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}


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
        "b_O": state.pop("attention.dense.bias"),
        "W_in": state.pop("mlp.dense_h_to_4h.weight").T,
        "b_in": state.pop("mlp.dense_h_to_4h.bias"),
        "W_out": state.pop("mlp.dense_4h_to_h.weight").T,
        "b_out": state.pop("mlp.dense_4h_to_h.bias"),
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
        "attention.dense.bias": weights["b_O"],
        "mlp.dense_h_to_4h.weight": weights["W_in"].T,
        "mlp.dense_h_to_4h.bias": weights["b_in"],
        "mlp.dense_4h_to_h.weight": weights["W_out"].T,
        "mlp.dense_4h_to_h.bias": weights["b_out"],
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
        **plain_needs(subject),
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
