"""Many subjects of one depth and architecture as one stack of weights, padded to common sizes.

A subject's weights sit in a corner of the stack; the rest is zero and gets zero gradients, so it
stays zero: nothing reads what padded directions hold, and nothing writes to them. Norms are of each
subject's own width. Outputs that a subject does not have are masked; positions beyond its context
are neither attended nor scored. What a fleet computes is in `forward.py`.
"""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.subject.attention import turns
from graphcircuits.subject.components import graph_of
from graphcircuits.subject.transformer import Transformer, TransformerConfig, weight_shapes

Weights = dict[str, Tensor]
SIZES = ("d_model", "d_head", "d_mlp", "n_ctx", "d_vocab", "d_vocab_out")
SHARED = ("positions", "norm", "activation", "gated_mlp", "parallel", "biases")
ROTARY = ("rotary_dim", "rotary_base", "rotary_scaling")
OFF = {
    each.name: each.default
    for each in fields(TransformerConfig)
    if each.default is not MISSING
    and each.name not in (*SHARED, *ROTARY, "causal", "n_kv_heads", "norm_eps")
}
"""Options that `forward` does not compute, and what they are where there is nothing to compute."""
BY_SUBJECT = ("attends", "scale", "outputs", "width", "centre")


@dataclass(frozen=True, eq=False)
class Fleet:
    """The sizes that a stack shares, and what of it each subject may see."""

    config: TransformerConfig
    """Common sizes: the largest of any subject."""
    members: tuple[TransformerConfig, ...]
    attends: Bool[Tensor, "subject query key"]
    scale: Float[Tensor, " subject"]
    """What attention scores are multiplied by: each subject's own, not that of the padded size."""
    outputs: Bool[Tensor, "subject d_vocab_out"]
    turns: Float[Tensor, "2 pos rotary_dim"] | None
    """The tables of rotary positions."""
    width: Float[Tensor, " subject"]
    """Each subject's own d_model, over which its norms average."""
    centre: Float[Tensor, "subject d_model d_model"] | None
    """What takes the mean off a subject's own coordinates, where norms are LayerNorms."""

    @cached_property
    def graph(self) -> ComponentGraph:
        return graph_of(self.config)

    def to(self, device: torch.device) -> "Fleet":
        names = (*BY_SUBJECT, "turns")
        held = {name: x for name in names if (x := getattr(self, name)) is not None}
        return replace(self, **{name: x.to(device) for name, x in held.items()})

    def take(self, indices: Sequence[int]) -> "Fleet":
        """Some of the subjects. The common sizes stay as they are."""
        chosen = torch.tensor(indices, dtype=torch.int64, device=self.scale.device)
        held = {name: x for name in BY_SUBJECT if (x := getattr(self, name)) is not None}
        indexed = {name: x[chosen] for name, x in held.items()}
        return replace(self, members=tuple(self.members[index] for index in indices), **indexed)


def form(members: Sequence[TransformerConfig]) -> Fleet:
    """A fleet of subjects with equal layers, heads and architecture; sizes may differ."""
    shapes = {(member.n_layers, member.n_heads) for member in members}
    if len(shapes) != 1:
        raise ValueError(f"a fleet has one number of layers and heads, got {sorted(shapes)}.")
    for member in members:
        _require_computed(member)
    _require_alike(members)
    largest = {name: max(getattr(member, name) for member in members) for name in SIZES}
    config = replace(members[0], **largest, causal=False)
    pos = torch.arange(config.n_ctx)
    outputs = torch.arange(config.d_vocab_out)
    return Fleet(
        config=config,
        members=tuple(members),
        attends=torch.stack(
            # Keys within the context, and not after the query where attention is causal.
            [
                (pos < member.n_ctx) & ((pos <= pos[:, None]) | (not member.causal))
                for member in members
            ]
        ),
        scale=torch.tensor([member.score_scale for member in members], dtype=torch.float64),
        outputs=torch.stack([outputs < member.d_vocab_out for member in members]),
        turns=None
        if config.positions != "rotary"
        else torch.stack(turns(config, 0, config.n_ctx, torch.device("cpu"), torch.float64)),
        width=torch.tensor([float(member.d_model) for member in members]),
        centre=_centre(config, members),
    )


def _require_computed(member: TransformerConfig) -> None:
    """Refuse what `forward` would compute as something else."""
    problems = [
        f"{name} must be {value!r}, got {getattr(member, name)!r}"
        for name, value in OFF.items()
        if getattr(member, name) != value
    ]
    if problems:
        raise ValueError(f"a fleet cannot train this architecture: {'; '.join(problems)}.")


def _require_alike(members: Sequence[TransformerConfig]) -> None:
    """Refuse subjects that no single run computes."""
    options: dict[str, dict[object, None]] = {}
    for member in members:
        for name, value in _architecture(member).items():
            options.setdefault(name, {})[value] = None
    unlike = [
        f"{name} {' and '.join(map(repr, values))}"
        for name, values in options.items()
        if len(values) > 1
    ]
    if unlike:
        raise ValueError(
            f"a fleet has one architecture, got {'; '.join(unlike)}; form a fleet of each."
        )


def _architecture(member: TransformerConfig) -> dict[str, object]:
    """What the subjects of a fleet have in common besides layers and heads, where it matters."""
    shared: dict[str, object] = {name: getattr(member, name) for name in SHARED}
    shared["n_kv_heads"] = member.n_groups
    if member.norm != "none":
        shared["norm_eps"] = member.norm_eps
    if member.positions == "rotary":
        shared |= {name: getattr(member, name) for name in ROTARY}
        shared["rotary_dim"] = member.rotary_size
    return shared


def _centre(
    config: TransformerConfig, members: Sequence[TransformerConfig]
) -> Float[Tensor, "subject d_model d_model"] | None:
    if config.norm != "layer":
        return None
    width = config.d_model
    centre = torch.zeros(len(members), width, width, dtype=torch.float64)
    for corner, member in zip(centre, members, strict=True):
        size = member.d_model
        corner[:size, :size] = torch.eye(size, dtype=torch.float64) - 1 / size
    return centre


def stack(fleet: Fleet, subjects: Sequence[Transformer]) -> Weights:
    """The subjects' weights in one padded tensor a name, subjects first."""
    stacked = {}
    for name, shape in weight_shapes(fleet.config).items():
        each = [subject.weights[name] for subject in subjects]
        stacked[name] = each[0].new_zeros(len(each), *shape)
        for row, weight in zip(stacked[name], each, strict=True):
            row[tuple(slice(size) for size in weight.shape)] = weight
    return stacked


def unstack(fleet: Fleet, weights: Weights, subject: int) -> Weights:
    """One subject's own weights, the padding cut off."""
    return {
        name: weights[name][subject][tuple(slice(size) for size in shape)].clone()
        for name, shape in weight_shapes(fleet.members[subject]).items()
    }
