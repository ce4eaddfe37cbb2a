"""Many subjects of one depth as one stack of weights, padded with zeros to common sizes.

A subject's weights sit in a corner of the stack; the rest is zero and gets zero gradients, so it
stays zero: nothing reads what padded directions hold, and nothing writes to them. Outputs that a
subject does not have are masked; positions beyond its context are neither attended nor scored.

`forward` runs all subjects at once and can replace, row by row, the activations of chosen
components by those of another run: a head's result before its output matrix, an MLP's hidden
vector after its nonlinearity. `forward_cut` does the same for edges: each reader takes what chosen
writers give it from another run.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.graph import Block, ComponentGraph
from graphcircuits.subject.transformer import Transformer, TransformerConfig, weight_shapes

Weights = dict[str, Tensor]
SIZES = ("d_model", "d_head", "d_mlp", "n_ctx", "d_vocab", "d_vocab_out")
FREE = ("causal", "n_kv_heads", "rotary_dim", "rotary_base", "norm_eps")
PLAIN = {
    each.name: each.default
    for each in fields(TransformerConfig)
    if each.default is not MISSING and each.name not in FREE
}
"""The architecture that `forward` computes: every option off."""


@dataclass(frozen=True, eq=False)
class Activations:
    """What components hold: heads before the output matrix, MLPs after the nonlinearity."""

    heads: list[Float[Tensor, "subject row pos head d_head"]]
    mlps: list[Float[Tensor, "subject row pos d_mlp"]]

    def first(self, rows: int) -> "Activations":
        """Those of the first rows."""
        return Activations([x[:, :rows] for x in self.heads], [x[:, :rows] for x in self.mlps])


@dataclass(frozen=True, eq=False)
class Patch:
    """Activations of another run, and which components of each row take theirs from it."""

    donor: Activations
    heads: Bool[Tensor, "subject row layer head"]
    mlps: Bool[Tensor, "subject row layer"]


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

    @property
    def graph(self) -> ComponentGraph:
        config = self.config
        return ComponentGraph(
            config.n_layers,
            config.n_heads,
            n_kv_heads=config.n_kv_heads,
            parallel=config.parallel,
        )

    def to(self, device: torch.device) -> "Fleet":
        moved = {name: getattr(self, name).to(device) for name in ("attends", "scale", "outputs")}
        return replace(self, **moved)


def form(members: Sequence[TransformerConfig]) -> Fleet:
    """A fleet of subjects with equal layers and heads."""
    shapes = {(member.n_layers, member.n_heads) for member in members}
    if len(shapes) != 1:
        raise ValueError(f"a fleet has one number of layers and heads, got {sorted(shapes)}.")
    for member in members:
        _require_plain(member)
    config = replace(
        members[0], **{name: max(getattr(m, name) for m in members) for name in SIZES}, causal=False
    )
    place = torch.arange(config.n_ctx)
    attends = torch.stack([_attends(member, place) for member in members])
    scale = torch.tensor([member.d_head**-0.5 for member in members], dtype=torch.float64)
    outputs = torch.stack(
        [torch.arange(config.d_vocab_out) < member.d_vocab_out for member in members]
    )
    return Fleet(config, tuple(members), attends, scale, outputs)


def _require_plain(member: TransformerConfig) -> None:
    """Refuse what `forward` would compute as something else."""
    wanted = PLAIN | {"n_groups": member.n_heads}
    problems = [
        f"{name} must be {value!r}, got {getattr(member, name)!r}"
        for name, value in wanted.items()
        if getattr(member, name) != value
    ]
    if problems:
        raise ValueError(f"a fleet is of plain subjects: {'; '.join(problems)}.")


def _attends(member: TransformerConfig, place: Int[Tensor, " pos"]) -> Bool[Tensor, "query key"]:
    """Keys within the context, and not after the query where attention is causal."""
    within = (place < member.n_ctx)[None, :].expand(len(place), -1)
    return within & (place[None, :] <= place[:, None]) if member.causal else within


def stack(fleet: Fleet, subjects: Sequence[Transformer]) -> Weights:
    """The subjects' weights in one padded tensor a name, subjects first."""
    stacked = {}
    for name, shape in weight_shapes(fleet.config).items():
        parts = [subject.weights[name] for subject in subjects]
        stacked[name] = parts[0].new_zeros(len(parts), *shape)
        for row, part in zip(stacked[name], parts, strict=True):
            row[tuple(slice(size) for size in part.shape)] = part
    return stacked


def unstack(fleet: Fleet, weights: Weights, subject: int) -> Weights:
    """One subject's own weights, the padding cut off."""
    return {
        name: weights[name][subject][tuple(slice(size) for size in shape)].clone()
        for name, shape in weight_shapes(fleet.members[subject]).items()
    }


def forward(
    fleet: Fleet,
    weights: Weights,
    tokens: Int[Tensor, "subject row pos"],
    patch: Patch | None = None,
    *,
    drop: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Float[Tensor, "subject row pos d_vocab_out"], Activations]:
    """Logits of every row, and what the components held (after patching).

    `drop` is applied to the embedding and to what the heads together and the MLP add.
    """
    config = fleet.config
    kept = drop if drop is not None else _as_is
    stream = kept(_embed(weights, tokens))
    heads, mlps = [], []
    for layer in range(config.n_layers):
        z = _attend(fleet, weights, stream, layer)
        if patch is not None:
            z = torch.where(patch.heads[:, :, None, layer, :, None], patch.donor.heads[layer], z)
        heads.append(z)
        W_O = weights["W_O"][:, layer].flatten(1, 2)
        stream = stream + kept(_linear(z.flatten(-2), W_O, weights["b_O"][:, layer]))
        hidden = F.gelu(_linear(stream, weights["W_in"][:, layer], weights["b_in"][:, layer]))
        if patch is not None:
            hidden = torch.where(
                patch.mlps[:, :, None, layer, None], patch.donor.mlps[layer], hidden
            )
        mlps.append(hidden)
        added = _linear(hidden, weights["W_out"][:, layer], weights["b_out"][:, layer])
        stream = stream + kept(added)
    logits = _linear(stream, weights["W_U"], weights["b_U"])
    return logits, Activations(heads, mlps)


def _as_is(x: Tensor) -> Tensor:
    return x


def patch_of(fleet: Fleet, donor: Activations, parts: Bool[Tensor, "subject row part"]) -> Patch:
    """The components marked take their activations from the donor run."""
    config = fleet.config
    by_layer = parts.unflatten(-1, (config.n_layers, config.n_heads + 1))
    return Patch(donor, by_layer[..., :-1], by_layer[..., -1])


def writers(
    fleet: Fleet,
    weights: Weights,
    tokens: Int[Tensor, "subject row pos"],
    activations: Activations,
) -> Float[Tensor, "subject row pos writer d_model"]:
    """What every component added to the stream, biases left out, in the graph's order."""
    outputs = [_embed(weights, tokens)[..., None, :]]
    for layer in range(fleet.config.n_layers):
        outputs.append(_heads_out(weights, activations.heads[layer], layer))
        outputs.append(_mlp_out(weights, activations.mlps[layer], layer)[..., None, :])
    return torch.cat(outputs, dim=-2)


def forward_cut(
    fleet: Fleet,
    weights: Weights,
    tokens: Int[Tensor, "subject row pos"],
    donor: Float[Tensor, "subject row pos writer d_model"],
    cut: Bool[Tensor, "subject row reader writer"],
) -> Float[Tensor, "subject row pos d_vocab_out"]:
    """Logits when every cut edge carries what its writer put out in the donor run.

    Readers and writers are in the graph's order: a layer's queries, keys, values, its MLP.
    """
    *blocks, last = ComponentGraph(fleet.config.n_layers, fleet.config.n_heads).stream_blocks
    kept = (~cut).to(donor.dtype)
    own = _embed(weights, tokens)[..., None, :]
    differences = own - donor[..., :1, :]
    constant = torch.zeros_like(weights["b_O"][:, 0])[:, None, None]

    def read(block: Block) -> Float[Tensor, "subject row pos reader d_model"]:
        stream = donor[..., : block.n_writers, :].sum(-2) + constant
        return stream[..., None, :] + torch.einsum(
            "srnw,srpwd->srpnd", kept[:, :, block.readers, : block.n_writers], differences
        )

    for layer, (head_block, mlp_block) in enumerate(zip(blocks[::2], blocks[1::2], strict=True)):
        at_heads = read(head_block).unflatten(-2, (3, -1))
        joined = torch.stack([weights[f"W_{x}"][:, layer] for x in "QKV"], dim=1)
        bias = torch.stack([weights[f"b_{x}"][:, layer] for x in "QKV"], dim=1)
        projected = torch.einsum("srpxhd,sxhde->srpxhe", at_heads, joined) + bias[:, None, None]
        z = _attention(fleet, projected)
        heads = _heads_out(weights, z, layer)
        constant = constant + weights["b_O"][:, layer, None, None]
        differences = _with_new(differences, heads, donor)
        at_mlp = read(mlp_block)[..., 0, :]
        hidden = F.gelu(_linear(at_mlp, weights["W_in"][:, layer], weights["b_in"][:, layer]))
        constant = constant + weights["b_out"][:, layer, None, None]
        differences = _with_new(differences, _mlp_out(weights, hidden, layer)[..., None, :], donor)
    return _linear(read(last)[..., 0, :], weights["W_U"], weights["b_U"])


def _with_new(differences: Tensor, outputs: Tensor, donor: Tensor) -> Tensor:
    """The writers' differences from the donor run, with those of the next writers added."""
    start = differences.shape[-2]
    new = outputs - donor[..., start : start + outputs.shape[-2], :]
    return torch.cat([differences, new], dim=-2)


def _heads_out(
    weights: Weights, z: Float[Tensor, "subject row pos head d_head"], layer: int
) -> Float[Tensor, "subject row pos head d_model"]:
    return torch.einsum("srphe,shed->srphd", z, weights["W_O"][:, layer])


def _mlp_out(
    weights: Weights, hidden: Float[Tensor, "subject row pos d_mlp"], layer: int
) -> Float[Tensor, "subject row pos d_model"]:
    flat = torch.bmm(hidden.flatten(1, 2), weights["W_out"][:, layer])
    return flat.unflatten(1, hidden.shape[1:3])


def _linear(
    x: Float[Tensor, "subject row pos into"],
    weight: Float[Tensor, "subject into out"],
    bias: Float[Tensor, "subject out"],
) -> Float[Tensor, "subject row pos out"]:
    flat = torch.baddbmm(bias[:, None], x.flatten(1, 2), weight)
    return flat.unflatten(1, x.shape[1:3])


def _embed(
    weights: Weights, tokens: Int[Tensor, "subject row pos"]
) -> Float[Tensor, "subject row pos d_model"]:
    # A product with one-hot rows: its gradient is a product too, where an index would scatter.
    table = weights["W_E"]
    one_hot = (tokens[..., None] == torch.arange(table.shape[1], device=tokens.device)).to(table)
    embedded = torch.bmm(one_hot.flatten(1, 2), table).unflatten(1, tokens.shape[1:])
    return embedded + weights["W_pos"][:, None, : tokens.shape[2]]


def _attend(
    fleet: Fleet, weights: Weights, stream: Float[Tensor, "subject row pos d_model"], layer: int
) -> Float[Tensor, "subject row pos head d_head"]:
    config = fleet.config
    into = [weights[f"W_{x}"][:, layer] for x in "QKV"]
    bias = torch.cat([weights[f"b_{x}"][:, layer].flatten(1) for x in "QKV"], dim=1)
    # (subject, d_model, q/k/v, head, d_head) as one matrix per subject.
    joined = torch.stack(into, dim=1).permute(0, 3, 1, 2, 4).flatten(2)
    read = _linear(stream, joined, bias).unflatten(-1, (3, config.n_heads, config.d_head))
    return _attention(fleet, read)


def _attention(
    fleet: Fleet, read: Float[Tensor, "subject row pos 3 head d_head"]
) -> Float[Tensor, "subject row pos head d_head"]:
    """Softmax attention of queries, keys and values, each subject within its own mask."""
    q, k, v = (x.transpose(2, 3) for x in read.unbind(3))
    scores = q @ k.transpose(-1, -2) * fleet.scale.to(read.dtype)[:, None, None, None, None]
    pos = read.shape[2]
    unseen = ~fleet.attends[:, None, None, :pos, :pos]
    return (scores.masked_fill(unseen, -1e9).softmax(-1) @ v).transpose(2, 3)
