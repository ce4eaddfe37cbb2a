"""The prompts that a result is kept with, in its files.

1. Texts are lists of lists in either kind of file. Patterns are base64 in JSON and tensors of bytes
   in safetensors.
2. Readers take the shape of the patterns from the texts and from the graph, and compare it with
   what the file holds before they build anything of that shape.

Files without prompts have no word of it.
"""

import base64
import binascii
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphcircuits.files import StoreError, short
from graphcircuits.store import check_types
from graphcircuits.task.stored import StoredPrompts

PATTERNS = ("patterns", "patterns_corrupted")
"""The tables of a safetensors file, and the fields of JSON that hold the same."""
_TEXTS: Mapping[str, tuple[type, ...]] = {
    "clean": (list,),
    "corrupted": (list,),
    "answers": (list,),
}


def texts_to_json(prompts: StoredPrompts) -> dict[str, Any]:
    """Prompts and answers without patterns."""
    return {
        "clean": [list(tokens) for tokens in prompts.clean],
        "corrupted": [list(tokens) for tokens in prompts.corrupted],
        "answers": list(prompts.answers),
    }


def prompts_to_json(prompts: StoredPrompts) -> dict[str, Any]:
    """Prompts, answers and patterns as JSON values."""
    tables = {name: getattr(prompts, name).numpy().tobytes() for name in PATTERNS}
    told = {name: base64.b64encode(table).decode() for name, table in tables.items()}
    return texts_to_json(prompts) | told


def prompts_from_json(
    path: str | Path, found: Mapping[str, Any], n_layers: int, n_heads: int
) -> StoredPrompts | None:
    """Those in a block of ours, where it has some."""
    if "prompts" not in found:
        return None
    prompts = _mapping(path, found, {**_TEXTS, **dict.fromkeys(PATTERNS, (str,))})
    shape = _shape(path, prompts, n_layers, n_heads)
    tables = {}
    for name in PATTERNS:
        try:
            held = base64.b64decode(prompts[name], validate=True)
        except (binascii.Error, ValueError) as error:
            raise StoreError(f"{path}: {name} of prompts must be base64: {error}.") from error
        _check_size(path, name, len(held), shape)
        table = torch.frombuffer(bytearray(held), dtype=torch.uint8)
        tables[name] = table.view(shape)
    return _built(path, prompts, tables)


def prompts_from_tensors(
    path: str | Path,
    found: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    n_layers: int,
    n_heads: int,
) -> StoredPrompts | None:
    """Those in the header of a safetensors file, with patterns from its tensors."""
    present = [name for name in PATTERNS if name in tensors]
    if "prompts" not in found and not present:
        return None
    if "prompts" not in found or len(present) < len(PATTERNS):
        raise StoreError(
            f"{path} is not a whole result: prompts need their texts, {' and '.join(PATTERNS)}, "
            f"got {', '.join([*(['texts'] if 'prompts' in found else []), *present])} alone."
        )
    prompts = _mapping(path, found, _TEXTS)
    shape = _shape(path, prompts, n_layers, n_heads)
    for name in PATTERNS:
        table = tensors[name]
        if (table.dtype, tuple(table.shape)) != (torch.uint8, shape):
            raise StoreError(
                f"{path}: {name} must be bytes of shape {shape}, got {table.dtype} of shape "
                f"{tuple(table.shape)}."
            )
    return _built(path, prompts, {name: tensors[name] for name in PATTERNS})


def _mapping(
    path: str | Path, found: Mapping[str, Any], expected: Mapping[str, tuple[type, ...]]
) -> dict[str, Any]:
    check_types(path, {"prompts": found["prompts"]}, {"prompts": (dict,)}, "result")
    prompts = found["prompts"]
    check_types(path, prompts, expected, "set of prompts")
    for name in ("clean", "corrupted"):
        for tokens in prompts[name]:
            if type(tokens) is not list or any(type(token) is not str for token in tokens):
                raise StoreError(
                    f"{path}: {name} prompts must be lists of texts, got {short(tokens)}."
                )
    if any(type(answer) not in (str, type(None)) for answer in prompts["answers"]):
        raise StoreError(f"{path}: answers must be texts or null, got {short(prompts['answers'])}.")
    return prompts


def _shape(
    path: str | Path, prompts: Mapping[str, Any], n_layers: int, n_heads: int
) -> tuple[int, ...]:
    """Of the patterns, as texts and graph have it."""
    if not prompts["clean"] or not prompts["clean"][0]:
        raise StoreError(f"{path}: there must be at least one prompt of at least one token.")
    length = len(prompts["clean"][0])
    return (len(prompts["clean"]), n_layers, n_heads, length, length)


def _check_size(path: str | Path, name: str, held: int, shape: tuple[int, ...]) -> None:
    if held != math.prod(shape):
        raise StoreError(
            f"{path}: {name} must hold {math.prod(shape)} bytes for {shape[0]} prompts of "
            f"{shape[-1]} tokens and {shape[1]} x {shape[2]} heads, got {held}."
        )


def _built(
    path: str | Path, prompts: Mapping[str, Any], tables: Mapping[str, Any]
) -> StoredPrompts:
    try:
        return StoredPrompts(**{name: prompts[name] for name in _TEXTS}, **tables)
    except ValueError as error:
        raise StoreError(f"{path}: {error}") from error
