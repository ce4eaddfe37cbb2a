"""What a subject is made of: its configuration, and its weights by name.

`TransformerConfig` gives sizes and architecture; `weight_shapes` lists every weight.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args, get_origin

from torch import Tensor

ROTARY_SCALINGS = ("linear", "llama3")
ABOVE_ZERO = ("embedding_scale", "attention_scale", "score_cap", "logit_cap", "window_rotary_base")


@dataclass(frozen=True, slots=True)
class RotaryScaling:
    """How rotary frequencies are made slower, for contexts longer than those first trained on.

    "linear" divides all by the factor (position interpolation). "llama3" divides those that turn
    less than `low_freq_factor` times in the original context, leaves those that turn more than
    `high_freq_factor` times, and goes linearly from one to the other in between.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_n_ctx: int = 8192

    def __post_init__(self) -> None:
        problems = []
        if self.kind not in ROTARY_SCALINGS:
            known = ", ".join(ROTARY_SCALINGS)
            problems.append(f"kind must be one of {known}, got {self.kind!r}")
        if not 0 < self.factor < math.inf:
            problems.append(f"factor must be a number above 0, got {self.factor}")
        if not 0 < self.low_freq_factor < self.high_freq_factor < math.inf:
            problems.append(
                "high_freq_factor must be above low_freq_factor, and both above 0, "
                f"got {self.high_freq_factor} and {self.low_freq_factor}"
            )
        if self.original_n_ctx < 1:
            problems.append(f"original_n_ctx must be at least 1, got {self.original_n_ctx}")
        if problems:
            raise ValueError("; ".join(problems) + ".")


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """Sizes and architecture of a subject; what does not fit together is refused at once.

    Example:
        sizes = dict(n_layers=2, n_heads=4, d_model=32, d_head=8, d_mlp=64)
        gc.TransformerConfig(**sizes, n_ctx=10, d_vocab=7, d_vocab_out=7)

    See docs/models.md.
    """

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    n_ctx: int
    """Longest sequence, BOS included."""
    d_vocab: int
    d_vocab_out: int
    n_kv_heads: int | None = None
    """Groups of heads that share keys and values; None means every head has its own."""
    causal: bool = True
    positions: Literal["learned", "rotary", "none"] = "learned"
    rotary_dim: int | None = None
    """Leading coordinates of each head that are rotated; None means all of them."""
    rotary_base: float = 10000.0
    rotary_scaling: RotaryScaling | None = None
    norm: Literal["none", "layer", "rms"] = "none"
    norm_eps: float = 1e-5
    norm_places: Literal["before", "after", "both"] = "before"
    """Norms of what a component reads, of what it writes (RMS, without biases; the heads of a layer
    are summed first), or both. The one before the unembedding is always there."""
    qk_norm: Literal["none", "head", "joint"] = "none"
    """RMS norm of queries and of keys, before rotation: of each head, or of a layer's heads as one
    vector."""
    activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = "gelu"
    gated_mlp: bool = False
    """hidden = activation(x W_gate) * (x W_in + b_in)."""
    parallel: bool = False
    """The MLP reads the same stream as the attention of its layer."""
    tied_unembedding: bool = False
    """The unembedding is W_E transposed; there is no W_U."""
    biases: bool = True
    logit_scale: float = 1.0
    """Factor on the finished logits, bias included."""
    embedding_scale: float = 1.0
    """Factor on token embeddings where they enter the stream, not where they are unembeddings."""
    attention_scale: float | None = None
    """Factor on attention scores; None means 1/sqrt(d_head)."""
    score_cap: float | None = None
    """Soft cap of the scaled scores x: cap * tanh(x / cap)."""
    logit_cap: float | None = None
    """Soft cap of the finished logits, after `logit_scale`."""
    windows: tuple[int | None, ...] | None = None
    """By layer: how many positions a query sees, itself and those before it; None means all."""
    window_rotary_base: float | None = None
    """The rotary base of layers with a window, where it is not `rotary_base`; `rotary_scaling` then
    holds for the layers without one."""

    def __post_init__(self) -> None:
        sizes = ("n_layers", "n_heads", "d_model", "d_head", "d_mlp")
        problems = [
            f"{name} must be at least 1, got {getattr(self, name)}"
            for name in (*sizes, "n_ctx", "d_vocab", "d_vocab_out")
            if getattr(self, name) < 1
        ]
        if self.n_groups < 1 or self.n_heads % self.n_groups:
            problems.append(f"n_kv_heads must divide n_heads={self.n_heads}, got {self.n_groups}")
        problems += [
            f"{field.name} must be one of {', '.join(get_args(field.type))}, got {value!r}"
            for field in fields(self)
            if get_origin(field.type) is Literal
            and (value := getattr(self, field.name)) not in get_args(field.type)
        ]
        rotary_fits = self.rotary_size % 2 == 0 and 2 <= self.rotary_size <= self.d_head
        if self.positions == "rotary" and not rotary_fits:
            problems.append(
                f"rotary_dim must be even and in 2..d_head={self.d_head}, got {self.rotary_size}"
            )
        problems += [
            f"{name} must be a number above 0, got {value}"
            for name in ABOVE_ZERO
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf
        ]
        if self.rotary_scaling is not None and self.positions != "rotary":
            problems.append(f"rotary_scaling needs positions=rotary, got {self.positions!r}")
        if self.window_rotary_base is not None and not (
            self.positions == "rotary" and self.windows
        ):
            problems.append("window_rotary_base needs positions=rotary and windows")
        if self.windows is not None and len(self.windows) != self.n_layers:
            problems.append(
                f"windows must hold one entry per layer, {self.n_layers} in all, "
                f"got {len(self.windows)}"
            )
        if any(window is not None and window < 1 for window in self.windows or ()):
            problems.append(f"windows must be None or at least 1, got {self.windows}")
        if self.windows is not None and not self.causal:
            problems.append("windows look back, so they need causal=True")
        if self.norms_after and self.norm != "rms":
            problems.append(
                f"norms after components (norm_places={self.norm_places}) must be rms, "
                f"got norm={self.norm!r}"
            )
        if self.tied_unembedding and self.d_vocab != self.d_vocab_out:
            problems.append(
                "tied_unembedding needs d_vocab_out equal to d_vocab, "
                f"got {self.d_vocab_out} and {self.d_vocab}"
            )
        if problems:
            raise ValueError("; ".join(problems) + ".")

    def window(self, layer: int) -> int | None:
        """How many positions a query of this layer sees, itself and those before it; None: all."""
        return None if self.windows is None else self.windows[layer]

    def from_layer(self, layer: int) -> "TransformerConfig":
        """The configuration of the layers from this one on."""
        windows = None if self.windows is None else self.windows[layer:]
        return replace(self, n_layers=self.n_layers - layer, windows=windows)

    @property
    def n_groups(self) -> int:
        """Groups of heads that share keys and values."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def heads_per_group(self) -> int:
        return self.n_heads // self.n_groups

    @property
    def coupled_heads(self) -> bool:
        """Whether what one head reads changes what others of its layer write."""
        return self.qk_norm == "joint" or self.norms_after

    @property
    def norms_after(self) -> bool:
        """Whether what components write is normalized."""
        return self.norm_places != "before"

    @property
    def layer_states(self) -> int:
        """Numbers that a layer computes at a position: q, k, v, z, and thrice the MLP's width."""
        return (2 * self.n_heads + 2 * self.n_groups) * self.d_head + 3 * self.d_mlp

    @property
    def score_scale(self) -> float:
        """What attention scores are multiplied by."""
        return self.d_head**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def rotary_size(self) -> int:
        return self.d_head if self.rotary_dim is None else self.rotary_dim


def weight_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of a subject of this configuration: the single list of names and shapes."""
    layer, head, kv = config.n_layers, config.n_heads, config.n_groups
    d_model, d_head, d_mlp = config.d_model, config.d_head, config.d_mlp
    shapes: dict[str, tuple[int, ...]] = {"W_E": (config.d_vocab, d_model)}
    if config.positions == "learned":
        shapes["W_pos"] = (config.n_ctx, d_model)
    shapes |= {
        "W_Q": (layer, head, d_model, d_head),
        "W_K": (layer, kv, d_model, d_head),
        "W_V": (layer, kv, d_model, d_head),
        "W_O": (layer, head, d_head, d_model),
        "W_in": (layer, d_model, d_mlp),
        "W_out": (layer, d_mlp, d_model),
    }
    if config.gated_mlp:
        shapes["W_gate"] = (layer, d_model, d_mlp)
    if not config.tied_unembedding:
        shapes["W_U"] = (d_model, config.d_vocab_out)
    if config.biases:
        shapes |= {
            "b_Q": (layer, head, d_head),
            "b_K": (layer, kv, d_head),
            "b_V": (layer, kv, d_head),
            "b_O": (layer, d_model),
            "b_in": (layer, d_mlp),
            "b_out": (layer, d_model),
            "b_U": (config.d_vocab_out,),
        }
    if config.norms_after:
        shapes = {name: shape for name, shape in shapes.items() if name not in ("b_O", "b_out")}
    if config.qk_norm != "none":
        joint = config.qk_norm == "joint"
        shapes |= {
            "q_norm_w": (layer, head, d_head) if joint else (layer, d_head),
            "k_norm_w": (layer, kv, d_head) if joint else (layer, d_head),
        }
    norms: dict[str, tuple[int, ...]] = {"final_norm": (d_model,)}
    if config.norms_after:
        norms = {"attn_out_norm": (layer, d_model), "mlp_out_norm": (layer, d_model)} | norms
    if config.norm_places != "after":
        norms = {"attn_norm": (layer, d_model), "mlp_norm": (layer, d_model)} | norms
    for name, shape in norms.items():
        if config.norm != "none":
            shapes[f"{name}_w"] = shape
        if config.norm == "layer":
            shapes[f"{name}_b"] = shape
    return shapes


def weight_problems(config: TransformerConfig, weights: dict[str, Tensor]) -> list[str]:
    """Everything that keeps these weights from fitting this configuration."""
    shapes = weight_shapes(config)
    problems = []
    if missing := sorted(shapes.keys() - weights.keys()):
        problems.append(f"missing weights: {', '.join(missing)}")
    if unknown := sorted(weights.keys() - shapes.keys()):
        problems.append(f"weights this configuration does not have: {', '.join(unknown)}")
    known = [(name, weights[name]) for name in shapes if name in weights]
    problems += [
        f"{name} must have shape {shapes[name]}, got {tuple(weight.shape)}"
        for name, weight in known
        if weight.shape != shapes[name]
    ]
    kinds = {(weight.dtype, weight.device) for _, weight in known}
    if len(kinds) > 1 or any(not dtype.is_floating_point for dtype, _ in kinds):
        present = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        problems.append(f"weights must share one floating dtype and one device, got {present}")
    return problems
