"""What a family of Hugging Face models gives, and the maps that families share."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor

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
    weights of one layer; `layer_out` is its inverse. `needs` says what a model type asks of a
    subject, and whether the subject has it.
    """

    layer_prefix: str
    embedding: str
    final_norm: str
    config_in: Callable[[Any], dict[str, Any]]
    config_out: Callable[[Transformer], Any]
    layer_in: Callable[[TransformerConfig, Tensors], Tensors]
    layer_out: Callable[[TransformerConfig, Tensors], Tensors]
    needs: Callable[[Transformer], dict[str, bool]]
    positions: str | None = None
    one_plus: bool = False
    """Norms multiply by one plus the stored weight."""


def load_transformers() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "Hugging Face models need the package transformers; "
            "install it with: pip install 'graphcircuits[hf]'"
        ) from error
    return transformers


def norm_in(ours: str, state: Tensors, theirs: str, one_plus: bool = False) -> Tensors:
    parts = {"w": "weight", "b": "bias"}
    found = {f"{ours}_{ab}": state.pop(f"{theirs}.{part}", None) for ab, part in parts.items()}
    return {
        name: weight + 1 if one_plus else weight
        for name, weight in found.items()
        if weight is not None
    }


def norm_out(ours: str, weights: Tensors, theirs: str, one_plus: bool = False) -> Tensors:
    parts = {"w": "weight", "b": "bias"}
    return {
        f"{theirs}.{part}": weights[f"{ours}_{ab}"] - 1 if one_plus else weights[f"{ours}_{ab}"]
        for ab, part in parts.items()
        if f"{ours}_{ab}" in weights
    }


def split_heads(W: Tensor, heads: int) -> Tensor:
    """(d_model, heads * d_head) -> (heads, d_model, d_head)."""
    return W.unflatten(1, (heads, -1)).transpose(0, 1)


def join_heads(W: Tensor) -> Tensor:
    return W.transpose(0, 1).flatten(1)


def activation_in(name: str) -> str:
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"cannot convert the activation {name!r}; known ones: {known}.")
    return ACTIVATIONS[name]


def activation_out(name: str) -> str:
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == name)


def only(family: str, config: Any, **allowed: tuple[Any, ...]) -> None:
    """Refuse options that change what is computed, by name, but for the values allowed.

    An option that a configuration lacks is one that its version does not have.
    """
    for name, values in allowed.items():
        value = getattr(config, name, values[0])
        if value not in values:
            raise ValueError(f"cannot convert a {family} model with {name}={value}.")


def common_needs(subject: Transformer) -> dict[str, bool]:
    """What every model type asks of a subject."""
    config, weights = subject.config, subject.weights
    return {
        "causal": config.causal,
        "logit_scale=1": config.logit_scale == 1.0,
        "d_vocab_out=d_vocab": config.d_vocab_out == config.d_vocab,
        "no output bias": not config.biases or not weights["b_U"].any(),
    }


def plain_needs(subject: Transformer) -> dict[str, bool]:
    """What model types ask that have none of the later options."""
    config = subject.config
    absent = ("attention_scale", "score_cap", "logit_cap", "windows")
    return {
        "qk_norm=none": config.qk_norm == "none",
        "norm_places=before": config.norm_places == "before",
        "embedding_scale=1": config.embedding_scale == 1.0,
        **{f"no {name}": getattr(config, name) is None for name in absent},
    }
