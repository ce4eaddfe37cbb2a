"""Subjects from GGUF files, the format of llama.cpp: weights, settings and tokenizer in one file.

1. The header is read and checked against the file (`gguf_file`).
2. The metadata gives the configuration (`gguf_settings`), the architecture the tensors that must be
   there, and may be (`gguf_families`). What is missing, unknown or of another shape is listed, and
   nothing is loaded.
3. Layer by layer the tensors are turned into numbers and written into the stacked weights.
4. The tokenizer is built from the vocabulary in the file (`gguf_tokenizer`).

Weights are float32, whatever they were packed as; where all matrices of a file are bfloat16, or all
are float16, they stay that.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphcircuits.adapters.gguf_families import (
    ARCHITECTURES,
    ROTARY,
    layer_in,
    layer_tensors,
    other_tensors,
)
from graphcircuits.adapters.gguf_file import GgufFile, read_gguf
from graphcircuits.adapters.gguf_settings import Settings, read_config
from graphcircuits.adapters.gguf_tokenizer import read_tokenizer
from graphcircuits.io.files import StoreError, short
from graphcircuits.io.store import check_finite
from graphcircuits.subject.transformer import Transformer, TransformerConfig, weight_shapes


def load_gguf(path: str | Path, *, tokenizer: bool = True) -> Transformer:
    """The subject in a GGUF file, with the tokenizer in it; `tokenizer=False` leaves that out."""
    file = read_gguf(path)
    settings = Settings(path, _architecture(file), file.metadata)
    try:
        config = read_config(settings, _shapes(file), _rotary_factors(file))
    except StoreError:
        raise
    except ValueError as error:
        raise StoreError(f"{path} describes no subject: {error}") from error
    _check(file, settings, config)
    made = _tokenizer(file, config) if tokenizer else None
    weights = _weights(file, settings, config)
    check_finite(path, weights)
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


def _shapes(file: GgufFile) -> dict[str, tuple[int, ...]]:
    return {name: stored.shape for name, stored in file.tensors.items()}


def _rotary_factors(file: GgufFile) -> Tensor | None:
    return torch.from_numpy(file.numbers(ROTARY)) if ROTARY in file.tensors else None


def _check(file: GgufFile, settings: Settings, config: TransformerConfig) -> None:
    """Refuse what a subject of this configuration would leave out, or lacks."""
    architecture = ARCHITECTURES[settings.architecture]
    needed, optional = other_tensors(config), dict[str, tuple[int, ...]]()
    in_layer, may_be = layer_tensors(architecture, config)
    for layer in range(config.n_layers):
        needed |= {f"blk.{layer}.{name}": shape for name, shape in in_layer.items()}
        optional |= {f"blk.{layer}.{name}": shape for name, shape in may_be.items()}
    if config.positions == "rotary":
        optional[ROTARY] = (config.rotary_size // 2,)
    known, found = needed | optional, _shapes(file)
    problems = []
    if unread := settings.unread():
        problems.append(f"its settings {_few(unread)} are not known")
    if missing := [name for name in needed if name not in found]:
        problems.append(f"it lacks {_few(missing)}")
    if unknown := [name for name in found if name not in known]:
        problems.append(f"it holds {_few(unknown)}, which is not known")
    if other := [name for name in found if name in known and found[name] != known[name]]:
        shapes = [f"{name} of shape {found[name]}, not {known[name]}" for name in other]
        problems.append(f"it holds {_few(shapes)}")
    if problems:
        raise StoreError(
            f"{file.path} is not a model of architecture {settings.architecture} as it is known "
            f"here: {'; '.join(problems)}."
        )


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _weights(file: GgufFile, settings: Settings, config: TransformerConfig) -> dict[str, Tensor]:
    architecture, dtype = ARCHITECTURES[settings.architecture], _dtype(file)
    # Biases that a file lacks stay zero.
    weights: dict[str, Any] = {
        name: torch.zeros(shape, dtype=dtype) for name, shape in weight_shapes(config).items()
    }
    parts = {"W_E": "token_embd.weight", "W_pos": "position_embd.weight", "W_U": "output.weight"}
    parts |= {"final_norm_w": "output_norm.weight", "final_norm_b": "output_norm.bias"}
    for ours, name in parts.items():
        if ours in weights:
            values = torch.from_numpy(file.numbers(name))
            weights[ours].copy_(values.T if ours == "W_U" else values)
    for layer in range(config.n_layers):
        prefix = f"blk.{layer}."
        own = {
            name.removeprefix(prefix): torch.from_numpy(file.numbers(name))
            for name in file.tensors
            if name.startswith(prefix)
        }
        for ours, values in layer_in(architecture, config, own).items():
            weights[ours][layer].copy_(values)
    return weights


def _dtype(file: GgufFile) -> torch.dtype:
    kinds = {stored.kind for stored in file.tensors.values() if len(stored.shape) > 1}
    return {"BF16": torch.bfloat16, "F16": torch.float16}.get(
        kinds.pop() if len(kinds) == 1 else "", torch.float32
    )
