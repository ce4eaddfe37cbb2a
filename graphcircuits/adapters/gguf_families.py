"""Which architectures of GGUF files are subjects: their settings, and their tensors by name.

1. `read_config` turns the metadata of a file into a configuration. Each setting is read once; a
   setting that nothing read and that is not known to change nothing is refused by name.
2. `layer_tensors` and `other_tensors` list the tensors that such a file holds, with their shapes.
3. `layer_in` turns the tensors of one layer into weights by our names.

What the metadata leaves open is fixed by the architecture, as it is in llama.cpp: which layers have
a window, the activation, the scale of Gemma's embedding. Norm weights of Gemma include the one that
its own code adds. Of `llama`, rows of queries and keys are stored so that neighbours turn together;
in all others, as in subjects, coordinate i turns with i + d_head / 2.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from graphcircuits.files import StoreError, short
from graphcircuits.subject.layers import RotaryScaling
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
    "olmo2": Architecture(
        norm_places="after", qk_norm="joint", may_tie=False, window_period=4
    ),
    "gpt2": Architecture(
        norm="layer", activation="gelu-tanh", gated=False, learned_positions=True, fused=True
    ),
    "gptneox": Architecture(
        norm="layer", activation="gelu", gated=False, fused=True, may_tie=False
    ),
}

# Settings that may stand in a file and change nothing if they have this value.
_NEUTRAL: dict[str, Any] = {
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "embedding_scale": 1.0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "pooling_type": 0,
    "rope.scaling.attn_factor": 1.0,
}
# Settings that say how a file came about.
_HISTORY = {
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "tensor_data_layout",
}


@dataclass
class Settings:
    """The metadata of one architecture; remembers what was asked for."""

    path: Any
    architecture: str
    metadata: Mapping[str, Any]
    read: set[str] = field(default_factory=set)

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """A setting of a kind; without a default it must be there."""
        name = f"{self.architecture}.{key}"
        self.read.add(name)
        value = self.metadata.get(name, default)
        if value is None:
            raise StoreError(f"{self.path} lacks {name} in its metadata.")
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = value[0].item()
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise StoreError(f"{self.path}: {name} is {short(value)}, which no subject has.")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        return self.get(key, int, default)

    def number(self, key: str, default: float | None = None) -> float:
        value = float(self.get(key, (int, float), default))
        if not math.isfinite(value) or value < 0:
            raise StoreError(f"{self.path}: {self.architecture}.{key} is {value}.")
        # Stored in 32 bits: the shortest decimal that gives those, as it was before it was stored.
        return float(str(np.float32(value))) if value == np.float32(value) else value

    def unread(self) -> list[str]:
        """Settings that nothing asked for and that may change the computation."""
        prefix = f"{self.architecture}."
        own = {key: value for key, value in self.metadata.items() if key.startswith(prefix)}
        return [
            f"{key}={short(value)}"
            for key, value in own.items()
            if key not in self.read
            and key.removeprefix(prefix) not in _HISTORY
            and not _is_neutral(key.removeprefix(prefix), value)
        ]


def _is_neutral(key: str, value: object) -> bool:
    return key in _NEUTRAL and not isinstance(value, np.ndarray) and value == _NEUTRAL[key]


def read_config(
    settings: Settings,
    shapes: Mapping[str, tuple[int, ...]],
    rotary_factors: Tensor | None,
) -> TransformerConfig:
    """The configuration that the metadata and the tensors of a file describe."""
    architecture = ARCHITECTURES[settings.architecture]
    n_layers, d_model = settings.integer("block_count"), settings.integer("embedding_length")
    n_heads = settings.integer("attention.head_count")
    # Each layer has tensors of its own: a count beyond theirs would be walked through for nothing.
    if not (0 < n_layers <= len(shapes) and n_heads > 0 and d_model > 0):
        raise StoreError(
            f"{settings.path} has {n_layers} layers of width {d_model} with {n_heads} heads by its "
            f"metadata, and holds {len(shapes)} tensors."
        )
    d_head = settings.integer("attention.key_length", d_model // n_heads)
    if (d_value := settings.integer("attention.value_length", d_head)) != d_head:
        raise StoreError(
            f"{settings.path} has values of {d_value} numbers and keys of {d_head}; in a subject "
            "they are of one length."
        )
    rms = architecture.norm == "rms"
    options = _positions(settings, architecture, d_head, rotary_factors)
    options |= _windows(settings, architecture, n_layers)
    if architecture.wide_layers:
        wide = n_layers == architecture.wide_layers
        options["attention_scale"] = (d_model // n_heads if wide else d_head) ** -0.5
    if architecture.scaled_embedding:
        options["embedding_scale"] = d_model**0.5
        options["logit_cap"] = settings.number("final_logit_softcapping", 0.0) or None
        options["score_cap"] = settings.number("attn_logit_softcapping", 0.0) or None
    biases = not rms or any(name.endswith(".bias") for name in shapes)
    d_vocab = shapes.get("token_embd.weight", (0,))[0]
    if settings.integer("vocab_size", d_vocab) != d_vocab:
        raise StoreError(
            f"{settings.path} has {settings.integer('vocab_size')} tokens by its metadata and "
            f"{d_vocab} rows in its embedding."
        )
    return TransformerConfig(
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=settings.integer("attention.head_count_kv", n_heads),
        d_model=d_model,
        d_head=d_head,
        d_mlp=settings.integer("feed_forward_length"),
        n_ctx=settings.integer("context_length"),
        d_vocab=d_vocab,
        d_vocab_out=d_vocab,
        norm=architecture.norm,
        norm_eps=settings.number(f"attention.layer_norm_{'rms_' * rms}epsilon"),
        norm_places=architecture.norm_places,
        qk_norm=architecture.qk_norm,
        activation=architecture.activation,
        gated_mlp=architecture.gated,
        parallel=(
            settings.architecture == "gptneox" and settings.get("use_parallel_residual", bool, True)
        ),
        tied_unembedding=architecture.may_tie and "output.weight" not in shapes,
        biases=biases,
        **options,
    )


def _positions(
    settings: Settings, architecture: Architecture, d_head: int, factors: Tensor | None
) -> dict[str, Any]:
    if architecture.learned_positions:
        return {"positions": "learned"}
    base = settings.number("rope.freq_base", 10000.0)
    rotary_dim = settings.integer("rope.dimension_count", d_head)
    kind = settings.get("rope.scaling.type", str, "linear")
    factor = settings.number("rope.scaling.factor", settings.number("rope.scale_linear", 0.0))
    scaling = None
    if kind == "linear" and factor not in (0.0, 1.0):
        scaling = RotaryScaling(kind="linear", factor=factor)
    elif kind not in ("linear", "none"):
        raise StoreError(
            f"{settings.path} scales rotary positions by {short(kind)}; known ways: linear, llama3."
        )
    if factors is not None:
        if scaling is not None:
            raise StoreError(f"{settings.path} scales rotary positions twice, with {ROTARY} too.")
        scaling = _scaling_of(settings, factors, base)
    return {
        "positions": "rotary",
        "rotary_base": base,
        "rotary_dim": None if rotary_dim == d_head else rotary_dim,
        "rotary_scaling": scaling,
    }


def _scaling_of(settings: Settings, factors: Tensor, base: float) -> RotaryScaling | None:
    """llama3's settings from what they make of each frequency, or linear scaling, or none.

    Between the two frequencies that bound it, the share that stays unscaled grows linearly with the
    frequency; a line through those points gives both bounds. Only their ratios to the original
    context can be known, so the lower factor is one, as in every published model.
    """
    factors = factors.double()
    turns = base ** -(torch.arange(len(factors)) / len(factors)).double() / (2 * math.pi)
    factor = float(factors.max())
    if factor == 1.0 == float(factors.min()):
        return None
    share = (1 / factors - 1 / factor) / (1 - 1 / factor)
    between = (share > 1e-3) & (share < 1 - 1e-3)
    candidates = [RotaryScaling(kind="llama3", factor=factor)]
    if bool((factors == factor).all()):
        candidates = [RotaryScaling(kind="linear", factor=factor)]
    elif int(between.sum()) > 1:
        points = torch.stack([turns[between], torch.ones_like(turns[between])], dim=1)
        slope, start = torch.linalg.lstsq(points, share[between, None]).solution[:, 0].tolist()
        if slope > 0 > start:
            high = round(1 - 1 / start, 4)
            context = round(-slope / start)
            candidates.insert(
                0,
                RotaryScaling(
                    kind="llama3", factor=factor, high_freq_factor=high, original_n_ctx=context
                ),
            )
    for found in candidates:
        if torch.allclose(_factors_of(found, turns), factors, rtol=1e-4):
            return found
    raise StoreError(
        f"{settings.path} scales rotary frequencies by {ROTARY} in a way that is neither llama3's "
        "nor linear."
    )


def _factors_of(scaling: RotaryScaling, turns: Tensor) -> Tensor:
    """What each frequency, in turns per position, is divided by."""
    if scaling.kind == "linear":
        return torch.full_like(turns, scaling.factor)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = ((scaling.original_n_ctx * turns - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - share) / scaling.factor + share)


def _windows(settings: Settings, architecture: Architecture, n_layers: int) -> dict[str, Any]:
    if architecture.window_period is None:
        return {}
    window = settings.integer("attention.sliding_window", architecture.window)
    key = "attention.sliding_window_pattern"
    pattern = settings.metadata.get(f"{settings.architecture}.{key}")
    if isinstance(pattern, np.ndarray):
        settings.read.add(f"{settings.architecture}.{key}")
        if len(pattern) != n_layers:
            raise StoreError(
                f"{settings.path}: {settings.architecture}.{key} has {len(pattern)} entries for "
                f"{n_layers} layers."
            )
        within = [bool(each) for each in pattern]
    else:
        period = settings.integer(key, architecture.window_period)
        within = [period == 0 or layer % period < period - 1 for layer in range(n_layers)]
    default = architecture.window_rotary_base
    base = settings.number("rope.freq_base_swa", default or 0.0)
    if window < 1 or not any(within):
        return {}
    windows = tuple(window if each else None for each in within)
    return {"windows": windows, "window_rotary_base": base or None}


# Tensors


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
        f"{name}.bias": shape[:1]
        for name, shape in matrices.items()
        if name in architecture.biases
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
        for part in ("weight", "bias"):
            parts = tensors.pop(f"attn_qkv.{part}").split([n * d_head for n in heads.values()])
            tensors |= {f"attn_{x}.{part}": rows for x, rows in zip(heads, parts, strict=True)}
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
        for ours, part in (("W", "weight"), ("b", "bias")):
            if (rows := tensors.get(f"attn_{x}.{part}")) is None:
                continue
            if architecture.interleaved and x != "v":
                rows = halves(rows, n)
            by_head = rows.unflatten(0, (n, d_head))
            weights[f"{ours}_{x.upper()}"] = by_head.mT if ours == "W" else by_head
        if (norm := tensors.get(f"attn_{x}_norm.weight")) is not None:
            joint = architecture.qk_norm == "joint"
            weights[f"{x}_norm_w"] = norm.unflatten(0, (n, d_head)) if joint else norm
    for name, ours in _NORMS.items():
        for end, part in (("w", "weight"), ("b", "bias")):
            if (norm := tensors.get(f"{name}.{part}")) is not None:
                weights[f"{ours}_{end}"] = norm
    return weights


def halves(rows: Tensor, n_heads: int) -> Tensor:
    """Rows of queries or keys whose neighbours turn together, as a subject has them: by halves."""
    pairs = rows.unflatten(0, (n_heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2)
