"""Random subjects of every architecture, small enough for float64 oracles."""

from typing import Any

import torch
from torch import Tensor

from graphcircuits.subject.transformer import RotaryScaling, Transformer, TransformerConfig
from tests.tiers import some

_GATED: dict[str, Any] = {
    "norm": "rms",
    "positions": "rotary",
    "n_kv_heads": 2,
    "gated_mlp": True,
    "activation": "silu",
    "biases": False,
}
_GEMMA = _GATED | {
    "activation": "gelu-tanh",
    "norm_places": "both",
    "norm_eps": 1e-3,
    "embedding_scale": 8**0.5,
    "attention_scale": 0.4,
    "tied_unembedding": True,
    "d_vocab_out": 5,
}

# Each option by itself, then the combinations of known families.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bidirectional": {"causal": False},
    "rotary": {"positions": "rotary"},
    "partial-rotary": {"positions": "rotary", "rotary_dim": 2, "rotary_base": 100.0},
    "linear-rotary": {"positions": "rotary", "rotary_scaling": RotaryScaling("linear", 3.0)},
    "llama3-rotary": {
        "positions": "rotary",
        "rotary_dim": 8,
        "d_head": 10,
        "rotary_base": 100.0,
        # Of the four pairs one keeps its frequency, one loses all of it, two are in between.
        "rotary_scaling": RotaryScaling("llama3", 4.0, 0.2, 3.0, 20),
    },
    "no-positions": {"positions": "none"},
    "layer-norm": {"norm": "layer"},
    "rms-norm": {"norm": "rms", "norm_eps": 1e-2},
    "qk-norm": {"qk_norm": "head", "positions": "rotary", "n_kv_heads": 2, "norm_eps": 1e-2},
    "joint-qk-norm": {"qk_norm": "joint", "n_kv_heads": 2, "norm_eps": 1e-2},
    "norms-after": {"norm": "rms", "norm_places": "after", "norm_eps": 1e-2},
    "norms-around": {"norm": "rms", "norm_places": "both", "parallel": True, "gated_mlp": True},
    "gelu-tanh": {"activation": "gelu-tanh"},
    "relu": {"activation": "relu"},
    "silu": {"activation": "silu"},
    "gated": {"gated_mlp": True, "activation": "silu"},
    "no-biases": {"biases": False},
    "grouped-keys": {"n_kv_heads": 2},
    "one-key": {"n_kv_heads": 1},
    "tied": {"tied_unembedding": True, "d_vocab_out": 5},
    "logit-scale": {"logit_scale": 0.3},
    "attention-scale": {"attention_scale": 0.7},
    "score-cap": {"score_cap": 0.5},
    "logit-cap": {"logit_cap": 0.8, "logit_scale": 0.7},
    "windows": {"n_layers": 3, "windows": (2, None, 3), "norm": "layer"},
    "window-rotary": {
        "positions": "rotary",
        "windows": (2, None),
        "window_rotary_base": 50.0,
        "rotary_scaling": RotaryScaling("linear", 3.0),
    },
    "embedding-scale": {"embedding_scale": 3.0, "tied_unembedding": True, "d_vocab_out": 5},
    "parallel": {"parallel": True},
    "one-layer": {"n_layers": 1},
    "narrow-heads": {"d_head": 2},
    "many-outputs": {"d_vocab_out": 20},
    "gpt-2": {"norm": "layer", "tied_unembedding": True, "d_vocab_out": 5, "n_layers": 3},
    "neox": {"norm": "layer", "positions": "rotary", "rotary_dim": 2, "parallel": True},
    "llama": _GATED,
    "qwen-3": _GATED | {"qk_norm": "head", "d_head": 6},
    "olmo-2": _GATED | {"qk_norm": "joint", "norm_places": "after", "n_kv_heads": None},
    "gemma-2": _GEMMA | {"score_cap": 2.0, "logit_cap": 1.5, "windows": (3, None)},
    "gemma-3": _GEMMA
    | {
        "qk_norm": "head",
        "windows": (2, None),
        "rotary_base": 1000.0,
        "window_rotary_base": 50.0,
        "rotary_scaling": RotaryScaling("linear", 8.0),
    },
    # No family has all of it, biases included, and layers in parallel.
    "everything": {
        "n_kv_heads": 2,
        "norm": "rms",
        "norm_places": "both",
        "norm_eps": 1e-2,
        "qk_norm": "joint",
        "positions": "rotary",
        "rotary_scaling": RotaryScaling("llama3", 4.0, 0.2, 3.0, 20),
        "windows": (None, 2),
        "window_rotary_base": 50.0,
        "embedding_scale": 2.0,
        "attention_scale": 0.7,
        "score_cap": 1.0,
        "logit_cap": 1.5,
        "logit_scale": 0.7,
        "parallel": True,
    },
}
SOME = some(
    ARCHITECTURES,
    ("plain", "bidirectional", "grouped-keys", "gpt-2", "neox", "llama", "gemma-3", "everything"),
)
"""All of them as parameters, of which the fast tests take these."""


def make_config(**options: Any) -> TransformerConfig:
    sizes: dict[str, Any] = {"n_layers": 2, "n_heads": 4, "d_model": 8, "d_head": 4, "d_mlp": 12}
    data: dict[str, Any] = {"n_ctx": 6, "d_vocab": 5, "d_vocab_out": 3}
    return TransformerConfig(**(sizes | data | options))


def make_subject(architecture: str = "plain", seed: int = 0, **options: Any) -> Transformer:
    """Random weights, biases and norms included: no weight is zero or one."""
    generator = torch.Generator().manual_seed(seed)
    config = make_config(**(ARCHITECTURES[architecture] | options))
    plain = Transformer.random(config, generator, dtype=torch.float64)
    noise = {name: torch.randn(w.shape, generator=generator) for name, w in plain.weights.items()}
    weights = {name: w + 0.2 * noise[name].double() for name, w in plain.weights.items()}
    return Transformer(config, weights)


def make_tokens(subject: Transformer, seed: int = 1, batch: int = 3, pos: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(subject.config.d_vocab, (batch, pos), generator=generator)
