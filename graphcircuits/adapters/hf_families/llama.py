"""How Llama and its kin of Hugging Face `transformers` name and shape their parts.

They share names and shapes: matrices multiply from the left, q, k and v lie apart, the MLP is
gated, norms are RMS. `Kin` says where one differs from Llama: where its norms stand and how their
weights are stored, whether queries and keys are normalized, which biases it has, which layers have
a window, and Gemma's scales and caps.
"""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Literal

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

_FIELDS = SIZES | {"norm_eps": "rms_norm_eps"}
FULL, SLIDING = "full_attention", "sliding_attention"

# Our norms -> theirs, by where they stand.
_BEFORE = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_AFTER = {"attn_out_norm": "post_attention_layernorm", "mlp_out_norm": "post_feedforward_layernorm"}
_BOTH = _AFTER | {"attn_norm": "input_layernorm", "mlp_norm": "pre_feedforward_layernorm"}
_NORMS = {"before": _BEFORE, "after": _AFTER, "both": _BOTH}
_MLP = {"W_in": "up_proj", "W_gate": "gate_proj", "W_out": "down_proj"}


@dataclass(frozen=True)
class Kin:
    """Where a model type differs from Llama."""

    title: str
    """Its name in errors."""
    config: str
    """Its class of configurations in `transformers`."""
    _: KW_ONLY
    norm_places: Literal["before", "after", "both"] = "before"
    qk_norm: Literal["none", "head", "joint"] = "none"
    biases: Literal["never", "option", "qkv"] = "never"
    """On attention: none, on q, k, v and the output if the configuration says so, on q, k, v."""
    layer_types: Callable[[Any], list[str]] | None = None
    """Which layers have a window where the configuration does not list them; None: none has."""
    by_layer: bool = False
    """Layers with a window have a rotary base of their own."""
    free_heads: bool = True
    """A head may have another size than d_model / n_heads."""
    scaled: bool = False
    """Gemma: scaled embeddings and attention, caps, and norms by one plus their weight."""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Options that would change what is computed, and the values that do not."""


# Configurations in


def _config_in(kin: Kin, config: Any) -> dict[str, Any]:
    only(kin.title, config, **kin.only)
    n_heads = config.num_attention_heads
    d_head = getattr(config, "head_dim", None) or config.hidden_size // n_heads
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    windows = _windows_in(kin, config)
    fields = fields_in(config, _FIELDS) | {
        "n_kv_heads": config.num_key_value_heads or n_heads,
        "d_head": d_head,
        "norm": "rms",
        "norm_places": kin.norm_places,
        "qk_norm": kin.qk_norm,
        "activation": activation_in(activation),
        "gated_mlp": True,
        "biases": kin.biases == "qkv" or (kin.biases == "option" and bool(config.attention_bias)),
        "windows": windows,
        **rotary_in(config, d_head, by_layer=kin.by_layer),
    }
    if windows is None:
        fields.pop("window_rotary_base", None)
    if kin.scaled:
        scalar = config.query_pre_attn_scalar
        fields |= {
            "embedding_scale": config.hidden_size**0.5,
            "attention_scale": None if scalar == d_head else scalar**-0.5,
            "score_cap": config.attn_logit_softcapping,
            "logit_cap": config.final_logit_softcapping,
        }
    return fields


def _windows_in(kin: Kin, config: Any) -> tuple[int | None, ...] | None:
    if kin.layer_types is None:
        return None
    listed = getattr(config, "layer_types", None)
    types = kin.layer_types(config) if listed is None else list(listed)
    if kin.layer_types is _all_sliding:
        only(kin.title, config, layer_types=(None, _all_sliding(config)))
    if unknown := sorted(set(types) - {FULL, SLIDING}):
        raise ValueError(f"cannot convert a {kin.title} model with layers of {', '.join(unknown)}.")
    if SLIDING not in types:
        return None
    if config.sliding_window is None:
        raise ValueError(
            f"cannot convert a {kin.title} model with layers of {SLIDING}, but sliding_window=None."
        )
    return tuple(config.sliding_window if type == SLIDING else None for type in types)


def _all_sliding(config: Any) -> list[str]:
    return [FULL if config.sliding_window is None else SLIDING] * config.num_hidden_layers


def _upper_sliding(config: Any) -> list[str]:
    slides = config.use_sliding_window and config.sliding_window is not None
    first = config.max_window_layers if slides else config.num_hidden_layers
    return [SLIDING if layer >= first else FULL for layer in range(config.num_hidden_layers)]


def _alternating(config: Any) -> list[str]:
    return [FULL if layer % 2 else SLIDING for layer in range(config.num_hidden_layers)]


def _every_sixth_full(config: Any) -> list[str]:
    every = getattr(config, "sliding_window_pattern", 6)
    layers = range(1, config.num_hidden_layers + 1)
    return [SLIDING if layer % every else FULL for layer in layers]


# Configurations out


def _config_out(kin: Kin, subject: Transformer) -> Any:
    config = subject.config
    activation = "hidden_activation" if kin.scaled else "hidden_act"
    fields = fields_out(config, _FIELDS) | {
        "num_key_value_heads": config.n_groups,
        "head_dim": config.d_head,
        activation: activation_out(config.activation),
        "attention_bias": kin.biases == "option" and config.biases,
        "pad_token_id": None,  # the default of some is beyond a small vocabulary
        **rotary_out(config, by_layer=kin.by_layer),
    }
    if not kin.free_heads:
        del fields["head_dim"]
    if kin.scaled:
        scale = config.attention_scale
        fields |= {
            "query_pre_attn_scalar": config.d_head if scale is None else round(scale**-2),
            "attn_logit_softcapping": config.score_cap,
            "final_logit_softcapping": config.logit_cap,
        }
    return getattr(load_transformers(), kin.config)(**fields, **_windows_out(kin, config))


def _windows_out(kin: Kin, config: TransformerConfig) -> dict[str, Any]:
    if kin.layer_types is None:
        return {}
    windows = config.windows or (None,) * config.n_layers
    size = next((window for window in windows if window is not None), None)
    if kin.layer_types is _all_sliding:
        return {"sliding_window": size}
    fields: dict[str, Any] = {"layer_types": [FULL if w is None else SLIDING for w in windows]}
    if kin.layer_types is _upper_sliding:
        return fields | {"sliding_window": size, "use_sliding_window": size is not None}
    # Gemma asks for a window even where no layer has one.
    return fields | {"sliding_window": size or config.n_ctx}


# Weights


def _names(kin: Kin) -> dict[str, str]:
    """Our weights of a layer -> theirs; biases that the model type lacks have no name."""
    names = {f"W_{x}": f"self_attn.{x.lower()}_proj.weight" for x in "QKVO"}
    biases = "QKVO" if kin.biases == "option" else "QKV"
    names |= {f"b_{x}": f"self_attn.{x.lower()}_proj.bias" for x in biases}
    names |= {f"{x}_norm_w": f"self_attn.{x}_norm.weight" for x in "qk"}
    names |= {f"{ours}_w": f"{theirs}.weight" for ours, theirs in _NORMS[kin.norm_places].items()}
    return names | {ours: f"mlp.{theirs}.weight" for ours, theirs in _MLP.items()}


def _adds_one(kin: Kin, name: str) -> bool:
    """Whether it is the weight of a norm of Gemma."""
    return kin.scaled and name.endswith("_norm_w")


def _layer_in(kin: Kin, config: TransformerConfig, state: Tensors) -> Tensors:
    names = _names(kin)
    weights = {}
    for ours, shape in layer_shapes(config).items():
        if ours in names:
            rows = from_rows(ours, state.pop(names[ours]), shape)
            weights[ours] = rows + 1 if _adds_one(kin, ours) else rows
        else:
            weights[ours] = torch.zeros(shape)
    return weights


def _layer_out(kin: Kin, config: TransformerConfig, weights: Tensors) -> Tensors:
    return {
        theirs: to_rows(ours, weights[ours] - 1 if _adds_one(kin, ours) else weights[ours])
        for ours, theirs in _names(kin).items()
        if ours in weights
    }


def _family(kin: Kin) -> Family:
    return Family(
        layer_prefix="layers",
        embedding="embed_tokens",
        final_norm="norm",
        config_in=partial(_config_in, kin),
        config_out=partial(_config_out, kin),
        layer_in=partial(_layer_in, kin),
        layer_out=partial(_layer_out, kin),
        one_plus=kin.scaled,
    )


_NO_BIAS = {"attention_bias": (False, None)}
_CAUSAL = {"use_bidirectional_attention": (None, False)}

LLAMA_KIN = {
    name: _family(kin)
    for name, kin in {
        "llama": Kin("Llama", "LlamaConfig", biases="option", only={"mlp_bias": (False, None)}),
        "mistral": Kin("Mistral", "MistralConfig", layer_types=_all_sliding, only=_NO_BIAS),
        "qwen2": Kin(
            "Qwen 2", "Qwen2Config", biases="qkv", layer_types=_upper_sliding, free_heads=False
        ),
        "qwen3": Kin(
            "Qwen 3", "Qwen3Config", qk_norm="head", biases="option", layer_types=_upper_sliding
        ),
        "gemma2": Kin(
            "Gemma 2",
            "Gemma2Config",
            norm_places="both",
            layer_types=_alternating,
            scaled=True,
            only=_NO_BIAS | _CAUSAL,
        ),
        "gemma3_text": Kin(
            "Gemma 3",
            "Gemma3TextConfig",
            norm_places="both",
            qk_norm="head",
            layer_types=_every_sixth_full,
            by_layer=True,
            scaled=True,
            # Their code has the option and does not use it.
            only=_NO_BIAS | _CAUSAL | {"attn_logit_softcapping": (None,)},
        ),
        "olmo2": Kin(
            "OLMo 2",
            "Olmo2Config",
            norm_places="after",
            qk_norm="joint",
            free_heads=False,
            only=_NO_BIAS,
        ),
    }.items()
}
