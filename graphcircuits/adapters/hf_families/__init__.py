"""What the families of Hugging Face `transformers` share: `gpt` has those of GPT-2 and GPT-NeoX,
`llama` those of Llama and all that came of it.

A `Family` gives maps for a configuration and for the weights of one layer, both ways. Rotary
positions stand in `rope_parameters` since version 5 of `transformers`, which Gemma 3 splits by kind
of layer; versions before have the base and the scaling in separate fields, of several names. Kinds
of scaling and parameters that a subject does not have are refused by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor

from graphcircuits.subject.layers import RotaryScaling
from graphcircuits.subject.transformer import Transformer, TransformerConfig

Tensors = dict[str, Tensor]
"""By name: theirs or ours."""

# Hugging Face's names of an activation -> ours.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Family:
    """How one model type names and shapes what a subject has.

    `layer_in` takes what it knows out of the state of one layer, its prefix removed, and gives our
    weights of one layer; `layer_out` is its inverse. What a model type does not have is left out on
    the way to it, and comes back as something else: so `to_hf` knows whether it can hold a subject.
    """

    layer_prefix: str
    embedding: str
    final_norm: str
    config_in: Callable[[Any], dict[str, Any]]
    config_out: Callable[[Transformer], Any]
    layer_in: Callable[[TransformerConfig, Tensors], Tensors]
    layer_out: Callable[[TransformerConfig, Tensors], Tensors]
    positions: str | None = None
    one_plus: bool = False
    """Norms multiply by one plus the stored weight."""


# Fields of our configurations -> theirs, in all families but GPT-2.
SIZES = {
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "d_model": "hidden_size",
    "d_mlp": "intermediate_size",
    "n_ctx": "max_position_embeddings",
}


def fields_in(config: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Fields of theirs by our names."""
    return {ours: getattr(config, theirs) for ours, theirs in names.items()}


def fields_out(config: TransformerConfig, names: Mapping[str, str]) -> dict[str, Any]:
    """Our fields by their names, with those that all families share."""
    shared = {"vocab_size": config.d_vocab, "tie_word_embeddings": config.tied_unembedding}
    return {theirs: getattr(config, ours) for ours, theirs in names.items()} | shared


def load_transformers() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "Hugging Face models need the package transformers; "
            "install it with: pip install 'graphcircuits[hf]'"
        ) from error
    return transformers


def activation_in(name: str) -> str:
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"cannot convert the activation {name!r}; known ones: {known}.")
    return ACTIVATIONS[name]


def activation_out(name: str) -> str:
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == name)


def few(names: list[str]) -> str:
    """The first three, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def only(family: str, config: Any, **allowed: tuple[Any, ...]) -> None:
    """Refuse options that change what is computed, by name, but for the values allowed.

    An option that a configuration lacks is one that its version does not have.
    """
    for name, values in allowed.items():
        value = getattr(config, name, values[0])
        if value not in values:
            raise ValueError(f"cannot convert a {family} model with {name}={value}.")


# Rotary positions

_FACTORS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
"""Their kinds of scaling that a subject has, with parameters that it calls as they do."""
_ORIGINAL = "original_max_position_embeddings"
"""The last parameter of llama3's."""
_PARAMETERS = {
    *("rope_type", "type", "rope_theta", "partial_rotary_factor"),
    *(*_FACTORS["llama3"], _ORIGINAL),
}
_BY_LAYER = ("full_attention", "sliding_attention")


def rotary_in(
    config: Any, d_head: int, *, partial: bool = False, by_layer: bool = False
) -> dict[str, Any]:
    """The fields of a subject's configuration that say how positions turn queries and keys.

    Model types that are `partial` may turn a part of each head; those that go `by_layer` may have
    a base of their own in layers with a window.
    """
    whole, local = _by_layer(config)
    share = whole.get("partial_rotary_factor", 1.0)
    if share != 1.0 and not partial:
        raise ValueError(f"cannot convert rotary positions with partial_rotary_factor={share}.")
    fields: dict[str, Any] = {
        "positions": "rotary",
        "rotary_dim": int(d_head * share),
        "rotary_base": whole["rope_theta"],
        "rotary_scaling": _scaling_in(whole, config.max_position_embeddings),
    }
    if not by_layer:
        if local not in (None, whole):
            raise ValueError("cannot convert rotary positions that differ by layer.")
        return fields
    assert local is not None
    if (kind := _kind(local)) != "default":
        raise ValueError(f"cannot convert rotary positions of type {kind!r} in sliding layers.")
    return fields | {"window_rotary_base": local["rope_theta"]}


def _by_layer(config: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The parameters in all layers or in full ones, and, if they are apart, in sliding ones."""
    rope = getattr(config, "rope_parameters", None)
    if rope and any(kind in rope for kind in _BY_LAYER):
        full, sliding = (rope.get(kind) for kind in _BY_LAYER)
        return _known(full or sliding), _known(sliding or full)
    if rope:
        return _known(rope), None
    old = {
        "rope_theta": getattr(config, "rope_theta", getattr(config, "rotary_emb_base", 10000.0)),
        "partial_rotary_factor": getattr(
            config, "rotary_pct", getattr(config, "partial_rotary_factor", 1.0)
        ),
        **(getattr(config, "rope_scaling", None) or {}),
    }
    local = getattr(config, "rope_local_base_freq", None)
    return _known(old), None if local is None else {"rope_theta": local}


def _kind(rope: dict[str, Any]) -> str:
    return rope.get("rope_type", rope.get("type", "default"))


def _known(rope: dict[str, Any]) -> dict[str, Any]:
    kind = _kind(rope)
    if kind not in _FACTORS:
        raise ValueError(
            f"cannot convert rotary positions of type {kind!r}; known ones: {', '.join(_FACTORS)}."
        )
    if other := {name for name, value in rope.items() if value is not None} - _PARAMETERS:
        listed = ", ".join(sorted(other))
        raise ValueError(f"cannot convert rotary positions of type {kind!r} with {listed}.")
    return rope


def _scaling_in(rope: dict[str, Any], n_ctx: int) -> RotaryScaling | None:
    if (kind := _kind(rope)) == "default":
        return None
    settings: dict[str, Any] = {"kind": kind} | {name: rope[name] for name in _FACTORS[kind]}
    if kind == "llama3":
        settings["original_n_ctx"] = rope.get(_ORIGINAL) or n_ctx
    return RotaryScaling(**settings)


def rotary_out(config: TransformerConfig, *, by_layer: bool = False) -> dict[str, Any]:
    """The fields of version 5 and those before it; with `by_layer`, those of windows apart."""
    share = config.rotary_size / config.d_head
    scaling = _scaling_out(config.rotary_scaling)
    rope = {"rope_type": "default", "rope_theta": config.rotary_base, **scaling}
    old = {"rope_theta": config.rotary_base, "rope_scaling": scaling or None}
    if by_layer:
        local = config.window_rotary_base or config.rotary_base
        sliding = {"rope_type": "default", "rope_theta": local}
        parameters = {"full_attention": rope, "sliding_attention": sliding}
        return old | {"rope_parameters": parameters, "rope_local_base_freq": local}
    return old | {
        "rope_parameters": {**rope, "partial_rotary_factor": share},
        "rotary_emb_base": config.rotary_base,
        "rotary_pct": share,
    }


def _scaling_out(scaling: RotaryScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {}
    factors = {name: getattr(scaling, name) for name in _FACTORS[scaling.kind]}
    original = {_ORIGINAL: scaling.original_n_ctx} if scaling.kind == "llama3" else {}
    return {"rope_type": scaling.kind, **factors, **original}
