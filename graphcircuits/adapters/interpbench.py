"""Subjects in the layout in which InterpBench publishes its own.

A directory holds `ll_model.pth` (a TransformerLens state dict), `ll_model_cfg.pkl` (its
configuration), `edges.pkl` (the circuit, as pairs of hook names) and `meta.json` (how the subject
was trained). No pickle is run: all three are read as data, and the first two as those of any model
of TransformerLens.

The layout does not say which symbol a token id stands for, only how many ids there are, BOS and
PAD included. We keep the codec in `meta.json`; a subject without one there is imported without.
"""

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcircuits.adapters.hooked import read_edges
from graphcircuits.adapters.lens_settings import read_settings
from graphcircuits.adapters.transformer_lens import read_state
from graphcircuits.circuit import Circuit
from graphcircuits.io.config import build_config
from graphcircuits.io.files import StoreError, read_json, short
from graphcircuits.io.pickles import Made, read_pickle, read_weights
from graphcircuits.io.store import check_finite
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.transformer import Transformer, TransformerConfig

MODEL, CONFIG, EDGES, META = "ll_model.pth", "ll_model_cfg.pkl", "edges.pkl", "meta.json"
CODEC_KEY = "graphcircuits"
"""Where `meta.json` holds what only we write: the codec."""

# Published configurations are dictionaries or, some of them, pickled objects of one class; in both
# there are a torch dtype and numbers that numpy pickled.
_IN_CONFIG = re.compile(
    r"transformer_lens(\.\w+)*\.HookedTransformerConfig"
    r"|torch\.(float16|bfloat16|float32|float64|device)"
    r"|numpy\.dtype|numpy\.(core|_core)\.multiarray\.scalar"
)
_NOTHING = re.compile(r"(?!)")


@dataclass(frozen=True, eq=False)
class Imported:
    """A subject in InterpBench's layout, as values of ours."""

    transformer: Transformer
    circuit: Circuit
    meta: dict[str, Any]
    """What `meta.json` says, our own key left out."""


def import_interpbench(directory: str | Path) -> Imported:
    """Read a subject, its circuit and its training notes; no code in the files is run."""
    folder = Path(directory)
    missing = [name for name in (MODEL, CONFIG, EDGES, META) if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder} is not a subject in InterpBench's layout: no {', '.join(missing)}; "
            f"expected {MODEL}, {CONFIG}, {EDGES} and {META}."
        )
    codec, meta = _read_meta(folder / META)
    settings, config = _read_config(folder / CONFIG)
    state = read_weights(folder / MODEL)
    try:
        config, weights = read_state(settings, config, state)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        shapes = "" if isinstance(error, ValueError) else "its weights have other shapes: "
        raise StoreError(f"{folder / MODEL} does not fit {CONFIG}: {shapes}{error}") from error
    check_finite(folder / MODEL, weights)
    try:
        transformer = Transformer(config, weights, codec)
    except ValueError as error:
        raise StoreError(f"{folder / META} does not fit {CONFIG}: {error}") from error
    return Imported(transformer, _read_circuit(folder / EDGES, transformer), meta)


def _read_meta(path: Path) -> tuple[Codec | None, dict[str, Any]]:
    meta = read_json(path)
    if not isinstance(meta, dict):
        raise StoreError(f"{path} must hold a JSON object, got {short(meta)}.")
    stored = meta.pop(CODEC_KEY, None)
    if stored is None:
        return None, meta
    if not isinstance(stored, dict):
        raise StoreError(f"{path}: {CODEC_KEY!r} must be a JSON object, got {short(stored)}.")
    try:
        return build_config(Codec, stored), meta
    except ValueError as error:
        raise StoreError(f"{path}: {error}") from error


def _read_config(path: Path) -> tuple[dict[str, Any], TransformerConfig]:
    """The settings of a model, and the configuration that they give."""
    stored = read_pickle(path, _IN_CONFIG)
    if isinstance(stored, Made):
        stored = stored.state
    if not isinstance(stored, dict):
        raise StoreError(f"{path} must hold a configuration, got {short(stored)}.")
    settings = {name: _plain_number(value) for name, value in stored.items()}
    try:
        return settings, read_settings(settings)
    except ValueError as error:
        raise StoreError(f"{path} is of a model that is not supported: {error}") from error


def _plain_number(value: object) -> object:
    """A number that numpy pickled, as a number; anything else as it is."""
    match value:
        case Made(
            arguments=(Made(arguments=("f8" | "i8" as kind, *_), state=(_, "<", *_)), bytes(data))
        ) if len(data) == 8:
            return struct.unpack("<d" if kind == "f8" else "<q", data)[0]
    return value


def _read_circuit(path: Path, transformer: Transformer) -> Circuit:
    stored = read_pickle(path, _NOTHING)
    if not isinstance(stored, list | tuple):
        raise StoreError(f"{path} must hold a list of pairs of hook names, got {short(stored)}.")
    names, problems = read_edges(transformer.graph, stored)
    if problems:
        raise StoreError(
            f"{path}: {len(problems)} of {len(stored)} entries are not edges: "
            f"{'; '.join(problems[:5])}{'; ...' if len(problems) > 5 else ''}; expected such as "
            "('blocks.0.hook_mlp_out', 'blocks.1.hook_q_input[2]')."
        )
    for name in sorted(names):
        # The first one alone: looking for names that are near takes a while.
        try:
            transformer.graph.edge_index(name)
        except ValueError as error:
            raise StoreError(f"{path}: {error}") from error
    return Circuit.from_names(transformer.graph, names)
