"""The prompts stored with a result, in its files.

1. Texts are lists of lists in either kind of file. Patterns are the bytes of all tables, one after
   the other, as base64 in JSON and as a tensor of bytes in safetensors.
2. Readers take the shapes of the tables from the texts and from the graph, and compare them with
   what the file holds before they build anything of these shapes.

Files without prompts have no word of it.
"""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.io.files import StoreError, short
from graphcircuits.io.store import check_types
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


def prompt_tensors(prompts: StoredPrompts) -> dict[str, UInt8[Tensor, " byte"]]:
    """The patterns by their names in a file."""
    return {
        name: torch.cat([table.flatten() for table in getattr(prompts, name)]) for name in PATTERNS
    }


def prompts_to_json(prompts: StoredPrompts) -> dict[str, Any]:
    """Prompts, answers and patterns as JSON values."""
    tables = {name: table.numpy().tobytes() for name, table in prompt_tensors(prompts).items()}
    tables_as_text = {name: base64.b64encode(table).decode() for name, table in tables.items()}
    return texts_to_json(prompts) | tables_as_text


def prompts_from_json(
    path: str | Path, stored: Mapping[str, Any], graph: ComponentGraph
) -> StoredPrompts | None:
    """Those in a block of ours, where it has some."""
    if "prompts" not in stored:
        return None
    prompts = _mapping(path, stored, {**_TEXTS, **dict.fromkeys(PATTERNS, (str,))})
    tables = {}
    for name in PATTERNS:
        try:
            held = base64.b64decode(prompts[name], validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"{name} of prompts must be base64: {error}.") from error
        tables[name] = torch.from_numpy(np.frombuffer(held, np.uint8).copy())
    return _built(prompts, tables, graph)


def prompts_from_tensors(
    path: str | Path,
    stored: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    graph: ComponentGraph,
) -> StoredPrompts | None:
    """Those in the header of a safetensors file, with patterns from its tensors."""
    present = [name for name in PATTERNS if name in tensors]
    if "prompts" not in stored and not present:
        return None
    if "prompts" not in stored or len(present) < len(PATTERNS):
        raise StoreError(
            f"{path} is not a whole result: prompts need their texts, {' and '.join(PATTERNS)}, "
            f"got {', '.join([*(['texts'] if 'prompts' in stored else []), *present])} alone."
        )
    prompts = _mapping(path, stored, _TEXTS)
    for name in PATTERNS:
        table = tensors[name]
        if table.dtype != torch.uint8 or table.ndim != 1:
            raise ValueError(
                f"{name} must be one row of bytes, got {table.dtype} of shape {tuple(table.shape)}."
            )
    return _built(prompts, tensors, graph)


def _mapping(
    path: str | Path, stored: Mapping[str, Any], expected: Mapping[str, tuple[type, ...]]
) -> dict[str, Any]:
    check_types(path, {"prompts": stored["prompts"]}, {"prompts": (dict,)}, "result")
    prompts = stored["prompts"]
    check_types(path, prompts, expected, "set of prompts")
    for name in ("clean", "corrupted"):
        for tokens in prompts[name]:
            if type(tokens) is not list or any(type(token) is not str for token in tokens):
                raise ValueError(f"{name} prompts must be lists of texts, got {short(tokens)}.")
    if any(type(answer) not in (str, type(None)) for answer in prompts["answers"]):
        raise ValueError(f"answers must be texts or null, got {short(prompts['answers'])}.")
    return prompts


def _built(
    prompts: Mapping[str, Any], tables: Mapping[str, Tensor], graph: ComponentGraph
) -> StoredPrompts:
    n_layers, n_heads = graph.n_layers, graph.n_heads
    lengths = [len(tokens) for tokens in prompts["clean"]]
    if not lengths or not min(lengths):
        raise ValueError("there must be a prompt, and none without tokens.")
    sizes = [n_layers * n_heads * length**2 for length in lengths]
    for name in PATTERNS:
        if len(tables[name]) != sum(sizes):
            raise ValueError(
                f"{name} must hold {sum(sizes)} bytes for prompts of {short(lengths)} "
                f"tokens and {n_layers} x {n_heads} heads, got {len(tables[name])}."
            )
    split: dict[str, Any] = {
        name: [
            pattern.view(n_layers, n_heads, length, length)
            for pattern, length in zip(tables[name].split(sizes), lengths, strict=True)
        ]
        for name in PATTERNS
    }
    return StoredPrompts(**{name: prompts[name] for name in _TEXTS}, **split)
