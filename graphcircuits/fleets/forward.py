"""All subjects of a fleet run at once, plainly or with activations of another run.

`forward` can exchange components of each row: a head's result before its output matrix, an MLP's
hidden vector after its nonlinearity and gate. `forward_cut` exchanges edges: each reader takes what
chosen writers give it from another run, and normalizes the sum for itself.

On a GPU a run is bound by memory and by the number of its kernels, so what can be done to weights
is not done to activations: what reads a stream is joined into one matrix, with the weight of the
norm before it and the scale of scores multiplied in. No shape depends on data and nothing is copied
from the host, so that runs can be recorded as CUDA graphs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import FunctionCtx

from graphcircuits.fleets.fleet import Fleet, Weights
from graphcircuits.graph import Block
from graphcircuits.subject.attention import turned
from graphcircuits.subject.components import ACTIVATIONS

Drop = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Activations:
    """What components hold: heads before the output matrix, MLPs after nonlinearity and gate."""

    heads: list[Float[Tensor, "subject row pos head d_head"]]
    mlps: list[Float[Tensor, "subject row pos d_mlp"]]

    def first(self, rows: int) -> "Activations":
        """Those of the first rows."""
        return Activations([x[:, :rows] for x in self.heads], [x[:, :rows] for x in self.mlps])


@dataclass(frozen=True, eq=False)
class Patch:
    """Activations of another run, and which components of each row take theirs from it."""

    donor: Activations
    components: Bool[Tensor, "subject row component"]

    def of_layer(self, layer: int) -> Bool[Tensor, "subject row 1 component"]:
        """Which of a layer's heads, and last whether its MLP."""
        return self.components.chunk(len(self.donor.heads), dim=-1)[layer].unsqueeze(2)


def forward(
    fleet: Fleet,
    weights: Weights,
    tokens: Int[Tensor, "subject row pos"],
    patch: Patch | None = None,
    *,
    drop: Drop | None = None,
) -> tuple[Float[Tensor, "subject row pos d_vocab_out"], Activations]:
    """Logits of every row, and what the components held (after patching).

    `drop` is applied to the embedding, and to what a layer's heads together and its MLP add to the
    stream: residual dropout as in GPT-2.
    """
    drop = drop or (lambda x: x)
    tables = _tables(fleet, weights, tokens)
    stream = drop(_embed(weights, tokens))
    heads, mlps = [], []
    for number, layer in enumerate(_layers(fleet, weights)):
        unit = _unit(fleet, tables, stream)
        z = _attend(fleet, tables, _linear(unit, layer.into, layer.into_bias))
        if patch is not None:
            chosen = patch.of_layer(number)[..., :-1, None]
            z = torch.where(chosen, patch.donor.heads[number], z)
        heads.append(z)
        with_heads = stream + drop(_linear(z.flatten(-2), layer.W_O.flatten(1, 2), layer.b_O))
        at_mlp = unit if fleet.config.parallel else _unit(fleet, tables, with_heads)
        hidden = _hidden(fleet, layer, at_mlp)
        if patch is not None:
            hidden = torch.where(patch.of_layer(number)[..., -1:], patch.donor.mlps[number], hidden)
        mlps.append(hidden)
        stream = with_heads + drop(_linear(hidden, layer.W_out, layer.b_out))
    return _unembed(fleet, weights, _unit(fleet, tables, stream)), Activations(heads, mlps)


def writers(
    fleet: Fleet, weights: Weights, tokens: Int[Tensor, "subject row pos"], activations: Activations
) -> Float[Tensor, "subject row pos writer d_model"]:
    """What every component added to the stream, biases left out, in the graph's order."""
    outputs = [_embed(weights, tokens)[..., None, :]]
    by_layer = zip(activations.heads, activations.mlps, strict=True)
    for number, (z, hidden) in enumerate(by_layer):
        outputs.append(torch.einsum("srphe,shed->srphd", z, weights["W_O"][:, number]))
        outputs.append(_linear(hidden, weights["W_out"][:, number])[..., None, :])
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
    *blocks, last = fleet.graph.stream_blocks
    tables = _tables(fleet, weights, tokens)
    constants = _constants(fleet, weights)
    uncut = (~cut).to(donor.dtype)
    differences = _embed(weights, tokens)[..., None, :] - donor[..., :1, :]

    def read(block: Block) -> Float[Tensor, "subject row pos reader d_model"]:
        n = block.n_writers
        stream = donor[..., :n, :].sum(-2)
        if constants is not None:
            stream = stream + constants[block.stream][:, None, None]
        mine = torch.einsum(
            "srnw,srpwd->srpnd", uncut[:, :, block.readers, :n], differences[..., :n, :]
        )
        return _unit(fleet, tables, stream[..., None, :] + mine)

    for layer, at_heads, at_mlp in zip(
        _layers(fleet, weights), blocks[::2], blocks[1::2], strict=True
    ):
        into = layer.into.unflatten(-1, (at_heads.n_readers, -1))
        vectors = torch.einsum("srpnd,sdne->srpne", read(at_heads), into).flatten(-2)
        if layer.into_bias is not None:
            vectors = vectors + layer.into_bias[:, None, None]
        z = _attend(fleet, tables, vectors)
        heads = torch.einsum("srphe,shed->srphd", z, layer.W_O)
        differences = _with_new(differences, heads, donor)
        hidden = _hidden(fleet, layer, read(at_mlp)[..., 0, :])
        differences = _with_new(differences, _linear(hidden, layer.W_out)[..., None, :], donor)
    return _unembed(fleet, weights, read(last)[..., 0, :])


def _constants(
    fleet: Fleet, weights: Weights
) -> tuple[Float[Tensor, "subject d_model"], ...] | None:
    """The biases that each stream holds beside its writers' outputs, in stream order."""
    if not fleet.config.biases:
        return None
    b_O, b_out = weights["b_O"], weights["b_out"]
    after = (b_O + b_out).cumsum(1)
    before = F.pad(after, (0, 0, 1, -1))
    at_mlp = before if fleet.config.parallel else before + b_O
    by_layer = torch.stack([before, at_mlp], dim=2).flatten(1, 2)
    return (*by_layer.unbind(1), after[:, -1])


def _with_new(differences: Tensor, outputs: Tensor, donor: Tensor) -> Tensor:
    """The writers' differences from the donor run, with those of the next writers added."""
    start = differences.shape[-2]
    new = outputs - donor[..., start : start + outputs.shape[-2], :]
    return torch.cat([differences, new], dim=-2)


# --- weights as the runs use them ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _StackedLayer:
    """One layer's weights: what reads a stream takes it as a norm leaves it before its weight."""

    into: Float[Tensor, "subject d_model vectors"]
    """To the queries, keys and values of all heads, reader by reader; queries are scaled."""
    into_bias: Float[Tensor, "subject vectors"] | None
    W_O: Float[Tensor, "subject head d_head d_model"]
    b_O: Float[Tensor, "subject d_model"] | None
    mlp: Float[Tensor, "subject d_model pre"]
    """To the hidden vector before its nonlinearity; of a gated MLP, its gate comes first."""
    mlp_bias: Float[Tensor, "subject pre"] | None
    W_out: Float[Tensor, "subject d_mlp d_model"]
    b_out: Float[Tensor, "subject d_model"] | None


def _layers(fleet: Fleet, weights: Weights) -> Iterator[_StackedLayer]:
    """The layers' weights, made of those of all layers at once."""
    config = fleet.config
    scale = fleet.scale.to(weights["W_Q"].dtype)[:, None, None, None]
    by_reader = [weights["W_Q"] * scale[..., None], weights["W_K"], weights["W_V"]]
    into = torch.cat([W.transpose(2, 3) for W in by_reader], dim=3).flatten(3)
    mlp, into_bias, mlp_bias = weights["W_in"], None, None
    if config.biases:
        by_reader = [weights["b_Q"] * scale, weights["b_K"], weights["b_V"]]
        into_bias = torch.cat(by_reader, dim=2).flatten(2)
        mlp_bias = weights["b_in"]
    if config.gated_mlp:
        mlp = torch.cat([weights["W_gate"], mlp], dim=-1)
        if mlp_bias is not None:
            mlp_bias = F.pad(mlp_bias, (config.d_mlp, 0))
    used: tuple[Tensor | None, ...] = (
        *_after_norm(fleet, weights, "attn_norm", into, into_bias),
        *(weights["W_O"], weights.get("b_O")),
        *_after_norm(fleet, weights, "mlp_norm", mlp, mlp_bias),
        *(weights["W_out"], weights.get("b_out")),
    )
    # One unbinding has one gradient, where a slice per layer would have one each of the whole size.
    nothing = (None,) * config.n_layers
    return map(_StackedLayer, *(nothing if w is None else w.unbind(1) for w in used))


def _after_norm(
    fleet: Fleet,
    weights: Weights,
    norm: str,
    W: Float[Tensor, "subject *layer d_model out"],
    bias: Float[Tensor, "subject *layer out"] | None,
) -> tuple[Float[Tensor, "subject *layer d_model out"], Float[Tensor, "subject *layer out"] | None]:
    """A matrix and bias that take what `_unit` gives, with the norm's weight and bias in them."""
    if fleet.config.norm == "none":
        return W, bias
    if fleet.config.norm == "layer":
        shift = (weights[f"{norm}_b"][..., None, :] @ W).squeeze(-2)
        bias = shift if bias is None else bias + shift
    return W * weights[f"{norm}_w"][..., None], bias


# --- what components compute ---------------------------------------------------------------------


def _embed(
    weights: Weights, tokens: Int[Tensor, "subject row pos"]
) -> Float[Tensor, "subject row pos d_model"]:
    # A product with one-hot rows: its gradient is a product too, where an index would scatter.
    table = weights["W_E"]
    one_hot = (tokens[..., None] == torch.arange(table.shape[1], device=tokens.device)).to(table)
    embedded = _linear(one_hot, table)
    if "W_pos" not in weights:
        return embedded
    return embedded + weights["W_pos"][:, None, : tokens.shape[2]]


@dataclass(frozen=True, eq=False)
class _Tables:
    """What a run needs besides weights and tokens, in the dtype of the weights."""

    unseen: Float[Tensor, "subject 1 1 query key"]
    """Added to scores: far below zero where a query does not see a key. The queries are those of
    all heads of a group, one after the other."""
    turns: tuple[Float[Tensor, "pos rotary_dim"], ...] | None
    centre: Float[Tensor, "subject d_model d_model"] | None


def _tables(fleet: Fleet, weights: Weights, tokens: Int[Tensor, "subject row pos"]) -> _Tables:
    pos, dtype = tokens.shape[2], weights["W_E"].dtype
    unseen = ~fleet.attends[:, None, None, :pos, :pos]
    return _Tables(
        unseen=unseen.repeat(1, 1, 1, fleet.config.heads_per_group, 1).to(dtype) * -1e9,
        turns=None if fleet.turns is None else fleet.turns[:, :pos].to(dtype).unbind(0),
        centre=None if fleet.centre is None else fleet.centre.to(dtype),
    )


def _unit(
    fleet: Fleet, tables: _Tables, stream: Float[Tensor, "subject *lead d_model"]
) -> Float[Tensor, "subject *lead d_model"]:
    """A norm of streams, each over the subject's own width, without its weight and bias."""
    if fleet.config.norm == "none":
        return stream
    if tables.centre is not None:
        stream = torch.bmm(stream.flatten(1, -2), tables.centre).view_as(stream)
    width = fleet.width.view(-1, *[1] * (stream.ndim - 1))
    unit = _RmsNorm.apply(stream, width, fleet.config.norm_eps)
    assert isinstance(unit, Tensor)
    return unit


class _RmsNorm(torch.autograd.Function):
    """stream * inverse, where inverse = (sum of squares / width + eps) ** -1/2.

    torch's norms have one width for all rows. The gradient is written out because autograd's would
    go over the streams almost twice as often.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        stream: Float[Tensor, "subject *lead d_model"],
        width: Float[Tensor, "subject ..."],
        eps: float,
    ) -> Float[Tensor, "subject *lead d_model"]:
        length = torch.linalg.vector_norm(stream, dim=-1, keepdim=True)
        inverse = (length.square() / width + eps).rsqrt()
        unit = stream * inverse
        ctx.save_for_backward(unit, inverse, width)
        return unit

    @staticmethod
    def backward(ctx: Any, *grads: Float[Tensor, "subject *lead d_model"]) -> Any:
        (grad,), (unit, inverse, width) = grads, ctx.saved_tensors
        along = (grad * unit).sum(-1, keepdim=True) / width
        return torch.addcmul(grad, unit, along, value=-1) * inverse, None, None


def _attend(
    fleet: Fleet, tables: _Tables, vectors: Float[Tensor, "subject row pos vectors"]
) -> Float[Tensor, "subject row pos head d_head"]:
    """Softmax attention of queries, keys and values, each subject within its own mask."""
    config = fleet.config
    n_heads, groups, pos = config.n_heads, config.n_groups, vectors.shape[2]
    by_reader = vectors.unflatten(-1, (-1, config.d_head)).transpose(2, 3)
    if tables.turns is None:
        q, k, v = by_reader.split((n_heads, groups, groups), dim=2)
    else:
        scored, v = by_reader.split((n_heads + groups, groups), dim=2)
        q, k = turned(scored, *tables.turns).split((n_heads, groups), dim=2)
    # The queries of a group's heads, one after the other, meet its keys once.
    q = q.unflatten(2, (groups, -1)).flatten(3, 4)
    scores = q @ k.transpose(-1, -2) + tables.unseen
    z = scores.softmax(-1) @ v
    return z.unflatten(3, (-1, pos)).flatten(2, 3).transpose(2, 3)


def _hidden(
    fleet: Fleet, layer: _StackedLayer, unit: Float[Tensor, "subject row pos d_model"]
) -> Float[Tensor, "subject row pos d_mlp"]:
    """What the MLP writes by W_out."""
    pre = _linear(unit, layer.mlp, layer.mlp_bias)
    if not fleet.config.gated_mlp:
        return ACTIVATIONS[fleet.config.activation](pre)
    gate, pre = pre.chunk(2, dim=-1)
    return ACTIVATIONS[fleet.config.activation](gate) * pre


def _unembed(
    fleet: Fleet, weights: Weights, unit: Float[Tensor, "subject row pos d_model"]
) -> Float[Tensor, "subject row pos d_vocab_out"]:
    W_U, b_U = _after_norm(fleet, weights, "final_norm", weights["W_U"], weights.get("b_U"))
    return _linear(unit, W_U, b_U)


def _linear(
    x: Float[Tensor, "subject row pos into"],
    weight: Float[Tensor, "subject into out"],
    bias: Float[Tensor, "subject out"] | None = None,
) -> Float[Tensor, "subject row pos out"]:
    flat = x.flatten(1, 2)
    out = torch.bmm(flat, weight) if bias is None else torch.baddbmm(bias[:, None], flat, weight)
    return out.unflatten(1, x.shape[1:3])
