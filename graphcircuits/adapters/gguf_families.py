"""Which architectures of GGUF files are subjects, and their tensors.

`ARCHITECTURES` says what an architecture fixes and no file does, as it is in llama.cpp: which
layers have a window, the activation, the scale of Gemma's embedding.

Norm weights of Gemma include the one that its own code adds. Of `llama`, rows of queries and keys
are stored so that neighbours turn together; in all others, as in subjects, coordinate i turns with
i + d_head / 2.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from graphcircuits.adapters.rows import Shape, from_rows, halves, layer_shapes, stored_shape
from graphcircuits.subject.transformer import TransformerConfig, weight_shapes

ROTARY = "rope_freqs.weight"
"""What each rotary frequency is divided by: how llama3's scaling is stored."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What `general.architecture` says about a file beyond its settings."""

    norm: Literal["layer", "rms"] = "rms"
    norm_places: Literal["before", "after", "both"] = "before"
    qk_norm: Literal["none", "head", "joint"] = "none"
    activation: Literal["gelu", "gelu-tanh", "silu"] = "silu"
    gated: bool = True
    learned_positions: bool = False
    interleaved: bool = False
    """Queries and keys are stored with the coordinates that turn together side by side."""
    fused: bool = False
    """Queries, keys and values are one matrix."""
    may_tie: bool = True
    """Without an output matrix the embedding takes its place."""
    biases: frozenset[str] = frozenset()
    """That a layer may have, by our names; with LayerNorm all are there."""
    scaled_embedding: bool = False
    window: int = 0
    """The window where the metadata gives none; 0 means that there is none then."""
    window_period: int | None = None
    """Of so many layers the last has no window; None: windows are not read, 0: all have one."""
    window_rotary_base: float | None = None
    wide_layers: int = 0
    """With so many layers the scale of scores follows d_model / heads: the largest of a family."""


_QKV = frozenset({"b_Q", "b_K", "b_V"})
ARCHITECTURES = {
    "llama": Architecture(
        interleaved=True, biases=_QKV | {"b_O", "b_in", "b_out"}, window_period=0
    ),
    "qwen2": Architecture(biases=_QKV),
    "qwen3": Architecture(biases=_QKV, qk_norm="head"),
    "gemma2": Architecture(
        norm_places="both",
        activation="gelu-tanh",
        scaled_embedding=True,
        window=4096,
        window_period=2,
        wide_layers=46,
    ),
    "gemma3": Architecture(
        norm_places="both",
        qk_norm="head",
        activation="gelu-tanh",
        scaled_embedding=True,
        window_period=6,
        window_rotary_base=10000.0,
        wide_layers=62,
    ),
    "olmo2": Architecture(norm_places="after", qk_norm="joint", may_tie=False, window_period=4),
    "gpt2": Architecture(
        norm="layer", activation="gelu-tanh", gated=False, learned_positions=True, fused=True
    ),
    "gptneox": Architecture(
        norm="layer", activation="gelu", gated=False, fused=True, may_tie=False
    ),
}


WHOLE = {
    "W_E": "token_embd.weight",
    "W_pos": "position_embd.weight",
    "W_U": "output.weight",
    "final_norm_w": "output_norm.weight",
    "final_norm_b": "output_norm.bias",
}
"""Our names -> those of tensors outside the layers."""
_MATRICES = {"Q": "attn_q", "K": "attn_k", "V": "attn_v", "O": "attn_output"}
_MATRICES |= {"in": "ffn_up", "gate": "ffn_gate", "out": "ffn_down"}
_NORMS = {
    "attn_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "attn_out_norm": "post_attention_norm",
    "mlp_out_norm": "post_ffw_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
}
_IN_LAYER = {
    **{f"W_{ours}": f"{name}.weight" for ours, name in _MATRICES.items()},
    **{f"b_{ours}": f"{name}.bias" for ours, name in _MATRICES.items()},
    **{f"{ours}_w": f"{name}.weight" for ours, name in _NORMS.items()},
    **{f"{ours}_b": f"{name}.bias" for ours, name in _NORMS.items()},
}


def stored_tensors(
    architecture: Architecture, config: TransformerConfig
) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """The tensors of a file, by name, with their shapes: those it has and those it may have."""
    in_layer: dict[str, Shape] = {}
    may_be: dict[str, Shape] = {}
    for ours, shape in layer_shapes(config).items():
        if config.norm == "layer" or not ours.startswith("b_"):
            in_layer[_IN_LAYER[ours]] = stored_shape(ours, shape)
        elif ours in architecture.biases:
            may_be[_IN_LAYER[ours]] = stored_shape(ours, shape)
    if architecture.fused:
        for kind in ("weight", "bias"):
            shapes = [in_layer.pop(f"attn_{x}.{kind}") for x in "qkv"]
            in_layer[f"attn_qkv.{kind}"] = (sum(x[0] for x in shapes), *shapes[0][1:])
    whole = {x: shape for x, shape in weight_shapes(config).items() if x in WHOLE}
    needed = {WHOLE[ours]: stored_shape(ours, shape) for ours, shape in whole.items()}
    optional: dict[str, Shape] = {}
    for layer in range(config.n_layers):
        needed |= {f"blk.{layer}.{name}": shape for name, shape in in_layer.items()}
        optional |= {f"blk.{layer}.{name}": shape for name, shape in may_be.items()}
    if config.positions == "rotary":
        optional[ROTARY] = (config.rotary_size // 2,)
    return needed, optional


def layer_in(
    architecture: Architecture, config: TransformerConfig, tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The weights of one layer, by our names, that these tensors of a file hold."""
    sizes = [n * config.d_head for n in (config.n_heads, config.n_groups, config.n_groups)]
    for kind in ("weight", "bias"):
        if (fused := tensors.get(f"attn_qkv.{kind}")) is not None:
            parts = zip("qkv", fused.split(sizes), strict=True)
            tensors = tensors | {f"attn_{x}.{kind}": rows for x, rows in parts}
    weights = {}
    for ours, shape in layer_shapes(config).items():
        if (rows := tensors.get(_IN_LAYER[ours])) is not None:
            if architecture.interleaved and ours in ("W_Q", "b_Q", "W_K", "b_K"):
                rows = halves(rows, shape[0])
            weights[ours] = from_rows(ours, rows, shape)
    return weights
