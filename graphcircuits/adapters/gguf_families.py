"""Which architectures of GGUF files are subjects, and their tensors.

1. `ARCHITECTURES` says what an architecture fixes and no file does, as it is in llama.cpp: which
   layers have a window, the activation, the scale of Gemma's embedding.
2. `layer_tensors` and `other_tensors` list the tensors of a file with their shapes.
3. `layer_in` turns the tensors of one layer into weights by our names.

Norm weights of Gemma include the one that its own code adds. Of `llama`, rows of queries and keys
are stored so that neighbours turn together; in all others, as in subjects, coordinate i turns with
i + d_head / 2.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from graphcircuits.subject.transformer import TransformerConfig

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
    """Tensors of a layer that may have a bias; with LayerNorm all have one."""
    scaled_embedding: bool = False
    window: int = 0
    """The window where the metadata gives none; 0 means that there is none then."""
    window_period: int | None = None
    """Of so many layers the last has no window; None: windows are not read, 0: all have one."""
    window_rotary_base: float | None = None
    wide_layers: int = 0
    """With so many layers the scale of scores follows d_model / heads: the largest of a family."""


_QKV = frozenset({"attn_q", "attn_k", "attn_v"})
ARCHITECTURES = {
    "llama": Architecture(
        interleaved=True,
        biases=_QKV | {"attn_output", "ffn_up", "ffn_down"},
        window_period=0,
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


def other_tensors(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """The tensors outside the layers, by name, with their shapes."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.d_vocab, config.d_model),
        "output_norm.weight": (config.d_model,),
    }
    if config.norm == "layer":
        shapes["output_norm.bias"] = (config.d_model,)
    if config.positions == "learned":
        shapes["position_embd.weight"] = (config.n_ctx, config.d_model)
    if not config.tied_unembedding:
        shapes["output.weight"] = (config.d_vocab_out, config.d_model)
    return shapes


def layer_tensors(
    architecture: Architecture, config: TransformerConfig
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """The tensors of a layer, by name, with their shapes: those it has and those it may have."""
    d_model, d_mlp = config.d_model, config.d_mlp
    queries, keys = config.n_heads * config.d_head, config.n_groups * config.d_head
    matrices: dict[str, tuple[int, ...]] = {
        "attn_output": (d_model, queries),
        "ffn_up": (d_mlp, d_model),
        "ffn_down": (d_model, d_mlp),
    }
    if architecture.fused:
        matrices["attn_qkv"] = (queries + 2 * keys, d_model)
    else:
        matrices |= {"attn_q": (queries, d_model)}
        matrices |= {"attn_k": (keys, d_model), "attn_v": (keys, d_model)}
    if architecture.gated:
        matrices["ffn_gate"] = (d_mlp, d_model)
    norms: dict[str, tuple[int, ...]] = {}
    if architecture.norm_places != "after":
        norms |= {"attn_norm": (d_model,), "ffn_norm": (d_model,)}
    if architecture.norm_places != "before":
        norms |= {"post_attention_norm": (d_model,), "post_ffw_norm": (d_model,)}
    if architecture.qk_norm != "none":
        per_head = architecture.qk_norm == "head"
        norms["attn_q_norm"] = (config.d_head if per_head else queries,)
        norms["attn_k_norm"] = (config.d_head if per_head else keys,)
    needed = {f"{name}.weight": shape for name, shape in (matrices | norms).items()}
    if architecture.norm == "layer":
        needed |= {f"{name}.bias": shape[:1] for name, shape in (matrices | norms).items()}
    optional = {
        f"{name}.bias": shape[:1] for name, shape in matrices.items() if name in architecture.biases
    }
    return needed, optional


_NORMS = {
    "attn_norm": "attn_norm",
    "ffn_norm": "mlp_norm",
    "post_attention_norm": "attn_out_norm",
    "post_ffw_norm": "mlp_out_norm",
}


def layer_in(
    architecture: Architecture, config: TransformerConfig, tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The weights of one layer by our names; biases that the file lacks are left out."""
    tensors = dict(tensors)
    n_heads, n_groups, d_head = config.n_heads, config.n_groups, config.d_head
    heads = {"q": n_heads, "k": n_groups, "v": n_groups}
    if architecture.fused:
        for kind in ("weight", "bias"):
            rows_of = tensors.pop(f"attn_qkv.{kind}").split([n * d_head for n in heads.values()])
            tensors |= {f"attn_{x}.{kind}": rows for x, rows in zip(heads, rows_of, strict=True)}
    weights = {
        "W_O": tensors["attn_output.weight"].T.unflatten(0, (n_heads, d_head)),
        "W_in": tensors["ffn_up.weight"].T,
        "W_out": tensors["ffn_down.weight"].T,
    }
    biases = {"b_O": "attn_output", "b_in": "ffn_up", "b_out": "ffn_down"}
    weights |= {
        ours: tensors[f"{name}.bias"] for ours, name in biases.items() if f"{name}.bias" in tensors
    }
    if architecture.gated:
        weights["W_gate"] = tensors["ffn_gate.weight"].T
    for x, n in heads.items():
        for ours, kind in (("W", "weight"), ("b", "bias")):
            if (rows := tensors.get(f"attn_{x}.{kind}")) is None:
                continue
            if architecture.interleaved and x != "v":
                rows = halves(rows, n)
            by_head = rows.unflatten(0, (n, d_head))
            weights[f"{ours}_{x.upper()}"] = by_head.mT if ours == "W" else by_head
        if (norm := tensors.get(f"attn_{x}_norm.weight")) is not None:
            joint = architecture.qk_norm == "joint"
            weights[f"{x}_norm_w"] = norm.unflatten(0, (n, d_head)) if joint else norm
    for name, ours in _NORMS.items():
        for end, kind in (("w", "weight"), ("b", "bias")):
            if (norm := tensors.get(f"{name}.{kind}")) is not None:
                weights[f"{ours}_{end}"] = norm
    return weights


def halves(rows: Tensor, n_heads: int) -> Tensor:
    """Rows of queries or keys whose neighbours turn together, as a subject has them: by halves."""
    pairs = rows.unflatten(0, (n_heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2)
