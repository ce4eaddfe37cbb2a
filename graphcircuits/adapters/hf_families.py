"""How GPT-2, GPT-NeoX and Llama of Hugging Face `transformers` name and shape their parts.

Each family gives maps for a configuration and for the weights of one layer, both ways.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from graphcircuits.subject.transformer import Transformer, TransformerConfig

Tensors = dict[str, Tensor]
"""By name: theirs or ours."""

# Hugging Face's names of an activation -> ours.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Family:
    """How one model type names and shapes what a subject has.

    `layer_in` turns the state of one layer, its prefix removed, into our weights of one layer;
    `layer_out` is its inverse.
    """

    layer_prefix: str
    embedding: str
    final_norm: str
    config_in: Callable[[Any], dict[str, Any]]
    config_out: Callable[[Transformer], Any]
    layer_in: Callable[[TransformerConfig, Tensors], Tensors]
    layer_out: Callable[[TransformerConfig, Tensors], Tensors]
    positions: str | None = None


def load_transformers() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "Hugging Face models need the package transformers; "
            "install it with: pip install 'graphcircuits[hf]'"
        ) from error
    return transformers


# Maps between one Hugging Face tensor and ours


def norm_in(ours: str, state: Tensors, theirs: str) -> Tensors:
    parts = {"w": "weight", "b": "bias"}
    found = {f"{ours}_{ab}": state.get(f"{theirs}.{part}") for ab, part in parts.items()}
    return {name: weight.clone() for name, weight in found.items() if weight is not None}


def norm_out(ours: str, weights: Tensors, theirs: str) -> Tensors:
    parts = {"w": "weight", "b": "bias"}
    return {
        f"{theirs}.{part}": weights[f"{ours}_{ab}"]
        for ab, part in parts.items()
        if f"{ours}_{ab}" in weights
    }


def _split_heads(W: Tensor, heads: int) -> Tensor:
    """(d_model, heads * d_head) -> (heads, d_model, d_head)."""
    return W.unflatten(1, (heads, -1)).transpose(0, 1)


def _join_heads(W: Tensor) -> Tensor:
    return W.transpose(0, 1).flatten(1)


def _activation_in(name: str) -> str:
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"cannot convert the activation {name!r}; known ones: {known}.")
    return ACTIVATIONS[name]


def _activation_out(name: str) -> str:
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == name)


def _rotary_in(config: Any, d_head: int) -> dict[str, Any]:
    """Rotary positions; versions before 5 keep them in separate fields."""
    old = {
        "rope_theta": getattr(config, "rope_theta", getattr(config, "rotary_emb_base", 10000.0)),
        "partial_rotary_factor": getattr(config, "rotary_pct", 1.0),
        **(getattr(config, "rope_scaling", None) or {}),
    }
    rope = getattr(config, "rope_parameters", None) or old
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise ValueError(f"cannot convert rotary positions of type {kind!r}, only 'default'.")
    return {
        "positions": "rotary",
        "rotary_dim": int(d_head * rope.get("partial_rotary_factor", 1.0)),
        "rotary_base": rope["rope_theta"],
    }


def _rotary_out(config: TransformerConfig) -> dict[str, Any]:
    """The fields of version 5 and those before it."""
    part = config.rotary_size / config.d_head
    rope = {"rope_type": "default", "rope_theta": config.rotary_base}
    return {
        "rope_parameters": {**rope, "partial_rotary_factor": part},
        "rope_theta": config.rotary_base,
        "rotary_emb_base": config.rotary_base,
        "rotary_pct": part,
    }


# GPT-2: matrices multiply from the right, q, k and v side by side


def _gpt2_config_in(config: Any) -> dict[str, Any]:
    refused = {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False}
    for name, value in refused.items():
        if getattr(config, name) == value:
            raise ValueError(f"cannot convert a GPT-2 model with {name}={value}.")
    return {
        "n_layers": config.n_layer,
        "n_heads": config.n_head,
        "d_model": config.n_embd,
        "d_head": config.n_embd // config.n_head,
        "d_mlp": config.n_inner or 4 * config.n_embd,
        "n_ctx": config.n_positions,
        "norm": "layer",
        "norm_eps": config.layer_norm_epsilon,
        "activation": _activation_in(config.activation_function),
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
        activation_function=_activation_out(config.activation),
        tie_word_embeddings=config.tied_unembedding,
    )


def _gpt2_layer_in(config: TransformerConfig, state: Tensors) -> Tensors:
    weights = norm_in("attn_norm", state, "ln_1") | norm_in("mlp_norm", state, "ln_2")
    matrices = state["attn.c_attn.weight"].chunk(3, dim=1)
    biases = state["attn.c_attn.bias"].chunk(3)
    for name, W, b in zip("QKV", matrices, biases, strict=True):
        weights[f"W_{name}"] = _split_heads(W, config.n_heads)
        weights[f"b_{name}"] = b.unflatten(0, (config.n_heads, -1))
    return weights | {
        "W_O": state["attn.c_proj.weight"].unflatten(0, (config.n_heads, -1)),
        "b_O": state["attn.c_proj.bias"],
        "W_in": state["mlp.c_fc.weight"],
        "b_in": state["mlp.c_fc.bias"],
        "W_out": state["mlp.c_proj.weight"],
        "b_out": state["mlp.c_proj.bias"],
    }


def _gpt2_layer_out(config: TransformerConfig, weights: Tensors) -> Tensors:
    state = norm_out("attn_norm", weights, "ln_1") | norm_out("mlp_norm", weights, "ln_2")
    return state | {
        "attn.c_attn.weight": torch.cat([_join_heads(weights[f"W_{x}"]) for x in "QKV"], dim=1),
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
    if not getattr(config, "attention_bias", True):
        raise ValueError("cannot convert a GPT-NeoX model with attention_bias=False.")
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
        "activation": _activation_in(config.hidden_act),
        "parallel": config.use_parallel_residual,
        **_rotary_in(config, d_head),
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
        hidden_act=_activation_out(config.activation),
        use_parallel_residual=config.parallel,
        tie_word_embeddings=config.tied_unembedding,
        **_rotary_out(config),
    )


_NEOX_NORMS = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}


def _neox_layer_in(config: TransformerConfig, state: Tensors) -> Tensors:
    weights: Tensors = {}
    for ours, theirs in _NEOX_NORMS.items():
        weights |= norm_in(ours, state, theirs)
    by_head = (config.n_heads, 3, config.d_head)
    matrices = state["attention.query_key_value.weight"].unflatten(0, by_head).unbind(1)
    biases = state["attention.query_key_value.bias"].unflatten(0, by_head).unbind(1)
    for name, W, b in zip("QKV", matrices, biases, strict=True):
        weights[f"W_{name}"], weights[f"b_{name}"] = W.transpose(1, 2), b
    return weights | {
        "W_O": state["attention.dense.weight"].T.unflatten(0, (config.n_heads, -1)),
        "b_O": state["attention.dense.bias"],
        "W_in": state["mlp.dense_h_to_4h.weight"].T,
        "b_in": state["mlp.dense_h_to_4h.bias"],
        "W_out": state["mlp.dense_4h_to_h.weight"].T,
        "b_out": state["mlp.dense_4h_to_h.bias"],
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


# Llama: matrices multiply from the left, q, k and v apart


def _llama_config_in(config: Any) -> dict[str, Any]:
    if config.mlp_bias:
        raise ValueError("cannot convert a Llama model with mlp_bias=True: its gate has a bias.")
    d_head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "d_model": config.hidden_size,
        "d_head": d_head,
        "d_mlp": config.intermediate_size,
        "n_ctx": config.max_position_embeddings,
        "norm": "rms",
        "norm_eps": config.rms_norm_eps,
        "activation": _activation_in(config.hidden_act),
        "gated_mlp": True,
        "biases": config.attention_bias,
        **_rotary_in(config, d_head),
    }


def _llama_config_out(subject: Transformer) -> Any:
    config = subject.config
    return load_transformers().LlamaConfig(
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_groups,
        hidden_size=config.d_model,
        head_dim=config.d_head,
        intermediate_size=config.d_mlp,
        max_position_embeddings=config.n_ctx,
        vocab_size=config.d_vocab,
        rms_norm_eps=config.norm_eps,
        hidden_act=_activation_out(config.activation),
        attention_bias=config.biases,
        tie_word_embeddings=config.tied_unembedding,
        **_rotary_out(config),
    )


_LLAMA_NORMS = _NEOX_NORMS
_LLAMA_MLP = {"W_in": "up_proj", "W_gate": "gate_proj", "W_out": "down_proj"}


def _llama_layer_in(config: TransformerConfig, state: Tensors) -> Tensors:
    weights: Tensors = {}
    for ours, theirs in _LLAMA_NORMS.items():
        weights |= norm_in(ours, state, theirs)
    for name, heads in zip("QKV", (config.n_heads, config.n_groups, config.n_groups), strict=True):
        theirs = f"self_attn.{name.lower()}_proj"
        weights[f"W_{name}"] = _split_heads(state[f"{theirs}.weight"].T, heads)
        if config.biases:
            weights[f"b_{name}"] = state[f"{theirs}.bias"].unflatten(0, (heads, -1))
    weights["W_O"] = state["self_attn.o_proj.weight"].T.unflatten(0, (config.n_heads, -1))
    for ours, theirs in _LLAMA_MLP.items():
        weights[ours] = state[f"mlp.{theirs}.weight"].T
    if config.biases:
        weights["b_O"] = state["self_attn.o_proj.bias"]
        weights["b_in"] = weights["b_O"].new_zeros(config.d_mlp)
        weights["b_out"] = weights["b_O"].new_zeros(config.d_model)
    return weights


def _llama_layer_out(config: TransformerConfig, weights: Tensors) -> Tensors:
    state: Tensors = {}
    for ours, theirs in _LLAMA_NORMS.items():
        state |= norm_out(ours, weights, theirs)
    for name in "QKV":
        theirs = f"self_attn.{name.lower()}_proj"
        state[f"{theirs}.weight"] = _join_heads(weights[f"W_{name}"]).T
        if config.biases:
            state[f"{theirs}.bias"] = weights[f"b_{name}"].flatten()
    state["self_attn.o_proj.weight"] = weights["W_O"].flatten(0, 1).T
    if config.biases:
        state["self_attn.o_proj.bias"] = weights["b_O"]
    for ours, theirs in _LLAMA_MLP.items():
        state[f"mlp.{theirs}.weight"] = weights[ours].T
    return state


FAMILIES = {
    "gpt2": Family(
        layer_prefix="h",
        embedding="wte",
        positions="wpe",
        final_norm="ln_f",
        config_in=_gpt2_config_in,
        config_out=_gpt2_config_out,
        layer_in=_gpt2_layer_in,
        layer_out=_gpt2_layer_out,
    ),
    "gpt_neox": Family(
        layer_prefix="layers",
        embedding="embed_in",
        final_norm="final_layer_norm",
        config_in=_neox_config_in,
        config_out=_neox_config_out,
        layer_in=_neox_layer_in,
        layer_out=_neox_layer_out,
    ),
    "llama": Family(
        layer_prefix="layers",
        embedding="embed_tokens",
        final_norm="norm",
        config_in=_llama_config_in,
        config_out=_llama_config_out,
        layer_in=_llama_layer_in,
        layer_out=_llama_layer_out,
    ),
}
