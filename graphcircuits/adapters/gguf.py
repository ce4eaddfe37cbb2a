"""Subjects from GGUF files, the format of llama.cpp: weights, settings and tokenizer in one file.

A setting that nothing asks for, and that is not known to change nothing, is refused by name; so are
tensors that are missing, unknown or of another shape, all at once and before any is loaded.

Weights are float32, whatever they were packed as, or where all matrices of a file are bfloat16, or
all are float16, that; or else what is asked for, which each is cast to as it is read. One tensor is
read at a time: memory holds the weights about once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphcircuits.adapters.gguf_families import (
    ARCHITECTURES,
    ROTARY,
    WHOLE,
    Architecture,
    layer_in,
    stored_tensors,
)
from graphcircuits.adapters.gguf_file import GgufFile, read_gguf
from graphcircuits.adapters.gguf_packing import PLAIN
from graphcircuits.adapters.gguf_tokenizer import read_tokenizer
from graphcircuits.adapters.hf_families import few
from graphcircuits.adapters.rows import from_rows
from graphcircuits.io.files import StoreError, short
from graphcircuits.subject.layers import RotaryScaling
from graphcircuits.subject.transformer import Transformer, TransformerConfig, weight_shapes

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
_HISTORY = {"rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout"}


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
        ours = {key: value for key, value in self.metadata.items() if key.startswith(prefix)}
        return [
            f"{key}={short(value)}"
            for key, value in ours.items()
            if key not in self.read
            and key.removeprefix(prefix) not in _HISTORY
            and (isinstance(value, np.ndarray) or value != _NEUTRAL.get(key.removeprefix(prefix)))
        ]


def load_gguf(
    path: str | Path,
    *,
    tokenizer: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Transformer:
    """The subject in a GGUF file, with the tokenizer in it; `tokenizer=False` leaves that out.

    By default it is on the CPU, in the stored dtype, or in float32 where weights are quantized.
    """
    file = read_gguf(path)
    settings = Settings(path, _architecture(file), file.metadata)
    factors = file.numbers(ROTARY) if ROTARY in file.tensors else None
    try:
        config = read_config(settings, file.shapes, factors)
    except StoreError:
        raise
    except ValueError as error:
        raise StoreError(f"{path} describes no subject: {error}") from error
    _check(file, settings, config)
    made = _tokenizer(file, config) if tokenizer else None
    kinds = {stored.kind for stored in file.tensors.values() if len(stored.shape) > 1}
    plain = PLAIN.get(kinds.pop() if len(kinds) == 1 else "", torch.float32)
    kind = {"device": device or "cpu", "dtype": dtype or plain}
    weights = _weights(file, ARCHITECTURES[settings.architecture], config, kind)
    return Transformer(config, weights, tokenizer=made)


def _tokenizer(file: GgufFile, config: TransformerConfig) -> Any:
    try:
        return read_tokenizer(file.path, file.metadata, config.d_vocab)
    except StoreError as error:
        raise StoreError(
            f"{error} The model loads without it: load_gguf({str(file.path)!r}, tokenizer=False)."
        ) from error


def _architecture(file: GgufFile) -> str:
    """The architecture of a file that holds a whole model."""
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise StoreError(f"{file.path} holds no model: its general.type is {short(kind)}.")
    if file.metadata.get("split.count", 0) not in (0, 1):
        raise StoreError(
            f"{file.path} is one of {short(file.metadata['split.count'])} parts of a model; "
            "join them with: llama-gguf-split --merge FIRST WHOLE."
        )
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise StoreError(
            f"{file.path} holds a model of architecture {short(name)}; "
            f"known ones: {', '.join(ARCHITECTURES)}."
        )
    return name


def _check(file: GgufFile, settings: Settings, config: TransformerConfig) -> None:
    """Refuse what a subject of this configuration would leave out, or lacks."""
    needed, optional = stored_tensors(ARCHITECTURES[settings.architecture], config)
    known, stored = needed | optional, file.shapes
    problems = []
    if unread := settings.unread():
        problems.append(f"its settings {few(unread)} are not known")
    if missing := [name for name in needed if name not in stored]:
        problems.append(f"it lacks {few(missing)}")
    if unknown := [name for name in stored if name not in known]:
        problems.append(f"it holds {few(unknown)}, which is not known")
    if other := [name for name in stored if name in known and stored[name] != known[name]]:
        shapes = [f"{name} of shape {stored[name]}, not {known[name]}" for name in other]
        problems.append(f"it holds {few(shapes)}")
    if problems:
        raise StoreError(
            f"{file.path} is not a model of architecture {settings.architecture} as it is known "
            f"here: {'; '.join(problems)}."
        )


def _weights(
    file: GgufFile, architecture: Architecture, config: TransformerConfig, kind: dict[str, Any]
) -> dict[str, Tensor]:
    shapes, ours_of = weight_shapes(config), {theirs: ours for ours, theirs in WHOLE.items()}
    # Biases that a file lacks stay zero. The rest takes no memory before it is written.
    weights: dict[str, Any] = {
        name: (torch.zeros if name.startswith("b_") else torch.empty)(shape, **kind)
        for name, shape in shapes.items()
        if name not in WHOLE
    }
    sizes = {name: math.prod(shape) for name, shape in file.shapes.items() if name != ROTARY}
    # Memory that was written before is much faster than fresh memory.
    one = torch.empty(max(sizes[x] for x in sizes if x not in ours_of), dtype=kind["dtype"])
    # The largest first: while one is turned, most of the others are not there yet.
    for name in sorted(sizes, key=lambda x: -sizes[x]):
        if ours := ours_of.get(name):
            rows = file.numbers(name, one.new_empty(sizes[name])).to(kind["device"])
            weights[ours] = from_rows(ours, rows, shapes[ours]).contiguous()
            continue
        _, layer, part = name.split(".", 2)
        rows = file.numbers(name, one).to(kind["device"])
        for ours, values in layer_in(architecture, config, {part: rows}).items():
            weights[ours][int(layer)].copy_(values)
    return weights


# The configuration


def read_config(
    settings: Settings, shapes: Mapping[str, tuple[int, ...]], rotary_factors: Tensor | None
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
            fitted = replace(candidates[0], high_freq_factor=high, original_n_ctx=context)
            candidates.insert(0, fitted)
    for scaling in candidates:
        if torch.allclose(_factors_of(scaling, turns), factors, rtol=1e-4):
            return scaling
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
