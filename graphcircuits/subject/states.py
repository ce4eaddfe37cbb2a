"""What a plain run of a subject holds: layer by layer as it is computed, and stacked over layers.

1. `LayerStates` is one layer, `Trace` a run as a list of them: nothing is copied.
2. `States` holds the vectors at every place where a component reads or writes, stacked.
"""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LayerStates:
    """What a layer read and computed, by the names of `States`, and the stream after it."""

    at_heads: Float[Tensor, "*batch pos d_model"]
    at_mlp: Float[Tensor, "*batch pos d_model"]
    q: Float[Tensor, "*batch pos head d_head"]
    k: Float[Tensor, "*batch pos kv d_head"]
    v: Float[Tensor, "*batch pos kv d_head"]
    z: Float[Tensor, "*batch pos head d_head"]
    pre: Float[Tensor, "*batch pos d_mlp"]
    gate: Float[Tensor, "*batch pos d_mlp"] | None
    hidden: Float[Tensor, "*batch pos d_mlp"]
    after: Float[Tensor, "*batch pos d_model"]

    @property
    def readers(self) -> list[Tensor]:
        """What its readers read by their weights: q, k, v, the MLP and, if there is one, a gate."""
        return [self.q, self.k, self.v, self.pre, *([] if self.gate is None else [self.gate])]


@dataclass(frozen=True, eq=False)
class Trace:
    """A plain run, layer by layer."""

    layers: list[LayerStates]
    uncapped: Float[Tensor, "batch pos d_vocab_out"]
    """The logits before their soft cap; the same ones where there is none."""
    logits: Float[Tensor, "batch pos d_vocab_out"]

    @property
    def streams(self) -> Float[Tensor, "stream batch pos d_model"]:
        """In the order of `Run`."""
        read = [x for layer in self.layers for x in (layer.at_heads, layer.at_mlp)]
        return torch.stack([*read, self.layers[-1].after])

    def by_name(self) -> dict[str, list[Tensor]]:
        """The values of each field of `States`, a layer at a time."""
        single = {"input": [self.layers[0].at_heads], "logits": [self.uncapped]}
        names = [field.name for field in fields(States) if field.name not in single]
        layered = {name: [getattr(layer, name) for layer in self.layers] for name in names}
        return single | {name: [x for x in each if x is not None] for name, each in layered.items()}


@dataclass(frozen=True, eq=False)
class States:
    """The vector at every place where a component reads or writes, or a gradient there.

    Attention readers have queries, keys and values (before norm and rotation), heads write z
    (before W_O); MLPs read `pre` (and `gate`) before the nonlinearity and write `hidden` after it;
    `input` writes its stream vector and `logits` reads itself, before its soft cap. z and hidden
    carry the scale of a norm that stands after them.
    """

    input: Float[Tensor, "batch pos d_model"]
    q: Float[Tensor, "layer batch pos head d_head"]
    k: Float[Tensor, "layer batch pos kv d_head"]
    v: Float[Tensor, "layer batch pos kv d_head"]
    z: Float[Tensor, "layer batch pos head d_head"]
    pre: Float[Tensor, "layer batch pos d_mlp"]
    gate: Float[Tensor, "layer batch pos d_mlp"] | None
    hidden: Float[Tensor, "layer batch pos d_mlp"]
    logits: Float[Tensor, "batch pos d_vocab_out"]

    @classmethod
    def stacked(cls, trace: dict[str, list[Tensor]]) -> "States":
        single = {name: trace[name][0] for name in ("input", "logits")}
        layered = {name: trace[name] for name in trace if name not in single}
        stacks = {name: torch.stack(xs) if xs else None for name, xs in layered.items()}
        return cls(**single, **stacks)  # pyright: ignore[reportArgumentType]
