"""The configuration that computes what a TransformerLens model of given settings computes.

`read_settings` gives it; all that keeps a subject from computing that is an error. Settings that
change nothing in the logits are passed over; any other that is not known here has to be off.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from graphcircuits.io.files import short
from graphcircuits.subject.layers import RotaryScaling
from graphcircuits.subject.transformer import TransformerConfig

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
}
"""TransformerLens's names of activations -> ours."""
NORMS = {None: "none", "LN": "layer", "LNPre": "layer", "RMS": "rms", "RMSPre": "rms"}
"""Likewise; `Pre` stands for norms whose weights were folded into those that follow."""
POST_NORM = ("Olmo2ForCausalLM", "Olmo3ForCausalLM")
"""Architectures whose two norms of a layer stand behind attention and MLP."""
_SIZES = ("n_layers", "n_heads", "d_model", "d_head", "n_ctx", "d_vocab", "d_vocab_out")
_DIRECTIONS = {"causal": True, "bidirectional": False}
# What is none of our business: devices, seeds, tokenizers, hooks, and the details of norms, rotary
# positions and experts, which are switched on elsewhere. Any other setting has to be off.
_NEUTRAL = re.compile(
    r"device|dtype|n_devices|n_params|model_name|original_architecture|from_checkpoint"
    r"|checkpoint_\w+|seed|init_\w+|initializer_range|weight_init_mode|train_seq_length"
    r"|tokenizer_\w+|trust_remote_code|default_prepend_bos|decoder_start_token_id"
    r"|use_(attn_in|attn_result|hook_mlp_in|hook_tokens|split_qkv_input)"
    r"|ungroup_grouped_query_attention|eps|final_rms|layer_norm_folding|experts_per_token"
    r"|(rotary|NTK|yarn|relative_attention)_\w+"
)
# Settings that have their place below.
_KNOWN = {
    *_SIZES,
    *("d_mlp", "n_key_value_heads", "act_fn", "normalization_type", "positional_embedding_type"),
    *("use_attn_scale", "attn_scale", "scale_attn_by_inverse_layer_idx", "attention_dir"),
    *("attn_scores_soft_cap", "output_logits_soft_cap", "use_local_attn", "window_size"),
    *("attn_types", "attn_only", "gated_mlp", "parallel_attn_mlp", "use_qk_norm"),
    *("use_normalization_before_and_after", "use_NTK_by_parts_rope"),
    # No part of what is computed: how weights came about, or what a bridge is made of.
    *("tie_word_embeddings", "quantization_method", "norm_topk_prob", "uses_rms_norm"),
    *("architecture", "default_padding_side", "attn_implementation", "split_attention_weights"),
}


def read_settings(settings: Mapping[str, Any]) -> TransformerConfig:
    """The configuration; all that keeps it from being one of ours is an error."""
    attn_only, norm = bool(settings.get("attn_only")), settings.get("normalization_type")
    sizes = (*_SIZES, *(() if attn_only else ("d_mlp",)))
    problems = [
        f"{name} must be a whole number from 1, got {short(settings.get(name))}"
        for name in sizes
        if type(settings.get(name)) is not int or settings[name] < 1
    ]
    choices: dict[str, Any] = {
        "normalization_type": NORMS,
        "positional_embedding_type": {"standard": "learned", "rotary": "rotary"},
        "attention_dir": _DIRECTIONS,
    }
    if not attn_only:
        choices["act_fn"] = ACTIVATIONS
    chosen = {}
    for name, known in choices.items():
        value = settings.get(name)
        if not isinstance(value, str | None) or value not in known:
            allowed = ", ".join(str(x) for x in known)
            problems.append(f"{name} must be one of {allowed}, got {short(value)}")
        else:
            chosen[name] = known[value]
    problems += [
        f"{name} must be off, got {short(value)}"
        for name, value in settings.items()
        if name not in _KNOWN
        and not _NEUTRAL.fullmatch(name)
        and value is not None
        and value is not False
    ]
    if settings.get("final_rms") and norm in ("LN", "LNPre"):
        problems.append("final_rms must be off where the other norms are LayerNorm, got True")
    if settings.get("use_normalization_before_and_after") and norm in ("LN", "LNPre"):
        problems.append("use_normalization_before_and_after must be off for LayerNorm, got True")
    if problems:
        raise ValueError("; ".join(problems) + ".")
    try:
        return TransformerConfig(
            **{name: settings[name] for name in _SIZES},
            d_mlp=1 if attn_only else settings["d_mlp"],
            n_kv_heads=settings.get("n_key_value_heads"),
            causal=chosen["attention_dir"],
            positions=chosen["positional_embedding_type"],
            norm=chosen["normalization_type"],
            norm_eps=float(settings.get("eps", 1e-5)),
            norm_places=_norm_places(settings),
            qk_norm=_qk_norm(settings),
            activation=chosen.get("act_fn", "gelu"),
            gated_mlp=bool(settings.get("gated_mlp")) and not attn_only,
            parallel=bool(settings.get("parallel_attn_mlp")),
            attention_scale=_attention_scale(settings),
            score_cap=_cap(settings.get("attn_scores_soft_cap")),
            logit_cap=_cap(settings.get("output_logits_soft_cap")),
            **_rotary(settings),
            **_windows(settings),
        )
    except (ArithmeticError, TypeError) as error:
        raise ValueError(f"{error}.") from error


def _norm_places(settings: Mapping[str, Any]) -> Any:
    if settings.get("normalization_type") is None:
        return "before"
    if settings.get("original_architecture") in POST_NORM:
        return "after"
    return "both" if settings.get("use_normalization_before_and_after") else "before"


def _qk_norm(settings: Mapping[str, Any]) -> Any:
    if settings.get("use_qk_norm"):
        return "head"
    return "joint" if settings.get("original_architecture") in POST_NORM else "none"


def _attention_scale(settings: Mapping[str, Any]) -> float | None:
    """None for the usual scale; TransformerLens divides by its number, -1 standing for the root."""
    divisor = float(settings.get("attn_scale", -1)) if settings.get("use_attn_scale", True) else 1.0
    usual = divisor == -1 or math.isclose(divisor, math.sqrt(settings["d_head"]), rel_tol=1e-6)
    return None if usual else 1 / divisor


def _cap(value: Any) -> float | None:
    return float(value) if value is not None and value > 0 else None


def _rotary(settings: Mapping[str, Any]) -> dict[str, Any]:
    if settings["positional_embedding_type"] != "rotary":
        return {}
    fields: dict[str, Any] = {
        "rotary_dim": settings.get("rotary_dim"),
        "rotary_base": float(settings.get("rotary_base", 10000)),
    }
    local, factor = settings.get("rotary_base_local"), settings.get("rotary_scaling_factor", 1.0)
    has_windows = _windows(settings) != {}
    if settings.get("use_NTK_by_parts_rope"):
        if local is not None and has_windows:
            raise ValueError("rotary_base_local must be off with use_NTK_by_parts_rope.")
        fields["rotary_scaling"] = RotaryScaling(
            "llama3",
            float(settings.get("NTK_by_parts_factor", 8.0)),
            float(settings.get("NTK_by_parts_low_freq_factor", 1.0)),
            float(settings.get("NTK_by_parts_high_freq_factor", 4.0)),
            int(settings.get("NTK_original_ctx_len", 8192)),
        )
        return fields
    if factor != 1.0:
        fields["rotary_scaling"] = RotaryScaling("linear", float(factor))
    if has_windows and (local is not None or factor != 1.0):
        # Layers with a window are not scaled, whether or not their base differs.
        fields["window_rotary_base"] = float(fields["rotary_base"] if local is None else local)
    return fields


def _windows(settings: Mapping[str, Any]) -> dict[str, Any]:
    types = settings.get("attn_types") if settings.get("use_local_attn") else None
    if not types or "local" not in types:
        return {}
    return {"windows": tuple(settings.get("window_size") if x == "local" else None for x in types)}
