"""Subjects written in InterpBench's layout, so that other programs can load them.

TransformerLens's configuration has settings for more than a subject's sizes and direction, but
only these are written: subjects with learned positions, gelu, biases and no norm.
"""

import io
import pickle
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphcircuits.adapters.hooked import EMBEDDINGS, WHOLE, stream_end, weight_keys
from graphcircuits.adapters.interpbench import CODEC_KEY, CONFIG, EDGES, META, MODEL
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.files import write_atomic, write_json
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.transformer import Transformer, TransformerConfig

_SIZES = ("n_layers", "n_heads", "d_model", "d_head", "d_mlp", "n_ctx", "d_vocab", "d_vocab_out")
_FIXED = {
    "act_fn": "gelu",
    "normalization_type": None,
    "positional_embedding_type": "standard",
    "use_attn_scale": True,
}


def export_interpbench(
    directory: str | Path,
    transformer: Transformer,
    circuit: Circuit,
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Write a subject in the published layout, its codec and `meta` in `meta.json`."""
    folder, notes = Path(directory), dict(meta or {})
    if circuit.graph != transformer.graph:
        raise ValueError(
            f"the circuit is of {circuit.graph}, the subject of {transformer.graph}; "
            "export a circuit of the subject's own graph."
        )
    if CODEC_KEY in notes:
        raise ValueError(f"meta must not have the key {CODEC_KEY!r}: the codec is stored there.")
    if transformer.codec is not None:
        notes[CODEC_KEY] = _storable(transformer.codec)
    settings = pickle.dumps(write_settings(transformer), protocol=4)
    edges = pickle.dumps(write_edges(circuit), protocol=4)
    state = io.BytesIO()
    torch.save(name_weights(transformer), state)
    write_json(folder / META, notes)
    write_atomic(folder / EDGES, edges)
    write_atomic(folder / CONFIG, settings)
    write_atomic(folder / MODEL, state.getvalue())


def _storable(codec: Codec) -> Codec:
    for symbol in (*codec.vocab, *(codec.outputs or ())):
        if symbol is not None and not isinstance(symbol, str | int | float):
            raise TypeError(
                f"only text, numbers and booleans can be stored as symbols: {symbol!r}."
            )
    return codec


def write_settings(transformer: Transformer) -> dict[str, Any]:
    """The settings of a subject; an error where TransformerLens's names do not cover it."""
    config = transformer.config
    plain = TransformerConfig(**{n: getattr(config, n) for n in _SIZES}, causal=config.causal)
    # Details of what is switched on elsewhere; n_groups says all about n_kv_heads.
    details = ("n_kv_heads", "rotary_dim", "rotary_base", "norm_eps")
    names = [field.name for field in fields(config) if field.name not in details]
    others = [
        f"{name}={getattr(config, name)!r}"
        for name in (*names, "n_groups")
        if getattr(config, name) != getattr(plain, name)
    ]
    if others:
        raise ValueError(
            f"there is no place for {', '.join(others)}; only subjects with learned positions, "
            "gelu, biases and no norm can be written."
        )
    hooks = ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in")
    return {
        **{name: getattr(config, name) for name in _SIZES},
        **_FIXED,
        "attention_dir": "causal" if config.causal else "bidirectional",
        "model_name": "custom",
        "device": "cpu",
        "dtype": transformer.dtype,
        **dict.fromkeys(hooks, True),
    }


def name_weights(transformer: Transformer) -> dict[str, Tensor]:
    """The state dict of a subject, with the constants that TransformerLens expects in it."""
    config, state = transformer.config, {}
    for name, weight in transformer.weights.items():
        layers = [weight] if name in WHOLE else weight.unbind()
        # Copies: a saved slice would carry the whole stack with it.
        copies = [layer.detach().cpu().clone() for layer in layers]
        state |= zip(weight_keys(config, name), copies, strict=True)
    for layer in range(config.n_layers):
        # The mask is triangular whatever the direction of attention.
        mask = torch.ones(config.n_ctx, config.n_ctx, dtype=torch.bool).tril()
        state[f"blocks.{layer}.attn.mask"] = mask
        state[f"blocks.{layer}.attn.IGNORE"] = torch.tensor(-torch.inf)
    return state


def write_edges(circuit: Circuit) -> list[tuple[str, str]]:
    """Pairs of hook points; then, as in published lists, the step into the head for its inputs.

    Hook points tell token from position embedding: an edge from `input` is written from both.
    """
    edges: list[tuple[str, str]] = []
    inside: dict[tuple[str, str], None] = {}
    for name in circuit:
        writer, reader = name.split("->")
        hook = _reader_hook(reader, circuit.graph)
        edges += [(from_hook, hook) for from_hook in _writer_hooks(writer)]
        if reader.startswith("a"):
            inside[hook, re.sub(r"hook_([qkv])_input", r"attn.hook_\1", hook)] = None
    return [*edges, *inside]


def _writer_hooks(name: str) -> tuple[str, ...]:
    if name == "input":
        return EMBEDDINGS
    layer, _, head = name[1:].partition(".h")
    return (f"blocks.{layer}." + (f"attn.hook_result[{head}]" if head else "hook_mlp_out"),)


def _reader_hook(name: str, graph: ComponentGraph) -> str:
    if name == "logits":
        return stream_end(graph)
    layer, _, head = name[1:].partition(".h")
    # The head's part reads such as `2<q>`.
    return f"blocks.{layer}." + (f"hook_{head[-2]}_input[{head[:-3]}]" if head else "hook_mlp_in")
