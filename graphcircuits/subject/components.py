"""What the components of a subject compute, from what they read to what they write.

1. A reader normalizes the stream (`normalize`; `pull_through_norm` takes gradients back,
   `through_norm` folds what is linear of it into a matrix).
2. The heads of a layer form queries, keys and values and attend (`attention`, `attend`); its MLP
   activates (`mlp`, `hidden`).
3. Their vectors go to the stream by `write_weight`; biases that belong to no edge are `constants`.
4. The last stream is normalized and unembedded (`unembed`).

The plain run (`transformer.py`) and all interventions are made of these.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.subject.attention import attend, rotate, soft_cap
from graphcircuits.subject.layers import TransformerConfig

Heads = Float[Tensor, "*lead pos d_head"]
Vectors = Float[Tensor, "..."]
"""Queries, keys, values or z of heads: the last two axes are pos and d_head."""
Stream = Float[Tensor, "*batch d_model"]
Spread = Float[Tensor, "*#batch d_model"]
"""What may be the same along some of the axes of a stream."""
Weight = Float[Tensor, " d_model"]
Hidden = Float[Tensor, "*batch d_mlp"]
"""What an MLP holds before and behind its nonlinearity."""
Logits = Float[Tensor, "*batch d_vocab_out"]


class Rules:
    """How a run departs from the plain one; these rules depart nowhere.

    Interventions that change what components compute or read derive from them, and
    `replace(subject, rules=...)` is the same subject, run by them.
    """

    def read(
        self, stream: Float[Tensor, "*batch pos d_model"], index: int
    ) -> Float[Tensor, "*batch pos d_model"]:
        """What the readers of a stream read where the run has `stream`, by its number (`Run`)."""
        return stream

    def attend(
        self, config: TransformerConfig, layer: int, q: Vectors, k: Vectors, v: Vectors
    ) -> Vectors:
        """What attention finds among the values, q and k being as scores take them."""
        return attend(config, layer, q, k, v)

    def normalize(
        self, config: TransformerConfig, stream: Stream, weight: Weight, bias: Weight | None
    ) -> Stream:
        """A reader's norm of its input."""
        if config.norm == "layer":
            return F.layer_norm(stream, (config.d_model,), weight, bias, config.norm_eps)
        return F.rms_norm(stream, (config.d_model,), weight, config.norm_eps)

    def pull_through_norm(
        self, config: TransformerConfig, stream: Spread, weight: Spread, grad: Stream
    ) -> Stream:
        """The gradient at the input of that norm, given the one at its output."""
        stream, inverse = norm_scale(config, stream)
        unit, scaled = stream * inverse, grad * weight
        along = (scaled * unit).mean(-1, keepdim=True)
        pulled = torch.addcmul(scaled, unit, along, value=-1)
        if config.norm == "layer":
            pulled = pulled - scaled.mean(-1, keepdim=True)
        return pulled * inverse

    def scale_of(self, written: Stream) -> Stream:
        """What a norm after a component takes its scale from, given what the component writes."""
        return written

    def bend(
        self,
        function: Callable[[Float[Tensor, "*any"]], Float[Tensor, "*any"]],
        x: Float[Tensor, "*any"],
    ) -> Float[Tensor, "*any"]:
        """A nonlinear function: an activation, a norm of queries or keys, a cap of logits."""
        return function(x)

    def multiply(self, gate: Hidden, pre: Hidden) -> Hidden:
        """The product in a gated MLP."""
        return gate * pre

    def then(self, other: "Rules") -> "Rules":
        """Other rules in place of these; rules that only watch a run stay around the others."""
        return other


PLAIN = Rules()
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
"""The nonlinearities of MLPs."""


def graph_of(config: TransformerConfig) -> ComponentGraph:
    """The component graph of a subject."""
    return ComponentGraph(
        config.n_layers, config.n_heads, n_kv_heads=config.n_kv_heads, parallel=config.parallel
    )


@dataclass(frozen=True, eq=False)
class Components:
    """Configuration and weights, and what each component makes of its input."""

    config: TransformerConfig
    weights: dict[str, Tensor]
    rules: Rules = field(default=PLAIN, kw_only=True, repr=False, compare=False)
    """How runs depart from the plain one. It is no part of what the subject is."""

    @cached_property
    def graph(self) -> ComponentGraph:
        return graph_of(self.config)

    def attention(
        self, stream: Float[Tensor, "*batch pos d_model"], layer: int
    ) -> tuple[
        Float[Tensor, "*batch pos head d_head"],
        Float[Tensor, "*batch pos kv d_head"],
        Float[Tensor, "*batch pos kv d_head"],
        Float[Tensor, "*batch pos head d_head"],
    ]:
        """Queries, keys and values before norm and rotation, and z, what the heads write."""
        config = self.config
        blocks = [self.weights[name][layer].transpose(0, 1) for name in ("W_Q", "W_K", "W_V")]
        W = torch.cat(blocks, dim=1)
        read = self.normalize("attn_norm", stream, layer) @ W.flatten(1)
        read = read.unflatten(-1, W.shape[1:])
        if config.biases:
            read = read + torch.cat([self.weights[name][layer] for name in ("b_Q", "b_K", "b_V")])
        q, k, v = read.split((config.n_heads, config.n_groups, config.n_groups), dim=-2)
        by_head = [x.transpose(-2, -3) for x in (q, k, v)]
        return q, k, v, self.attend(*by_head, layer=layer).transpose(-2, -3)

    def attend(self, q: Vectors, k: Vectors, v: Vectors, layer: int, dim: int = -3) -> Vectors:
        """z, what heads write by `write_weight`, from q, k and v before norm and rotation.

        Heads lie along `dim`, keys and values once per head or once per group of heads; the last
        two axes are pos and d_head. Where heads are coupled, all of the layer's must be there.
        """
        q, k = (self._qk_normalize(kind, x, layer, dim) for kind, x in (("q", q), ("k", k)))
        if self.config.positions == "rotary":
            q, k = self._rotate_both(q, k, layer, dim)
        if (served := q.shape[dim] // k.shape[dim]) > 1:
            k, v = (x.repeat_interleave(served, dim=dim) for x in (k, v))
        z = self.rules.attend(self.config, layer, q, k, v)
        if not self.config.norms_after:
            return z
        written = z.movedim(dim, -2).flatten(-2) @ self.weights["W_O"][layer].flatten(0, 1)
        return (z * self._out_scale(written).unsqueeze(dim)).to(z.dtype)

    def _rotate_both(self, q: Vectors, k: Vectors, layer: int, dim: int) -> tuple[Vectors, Vectors]:
        """Queries and keys rotated, at once if they can be: a GPU waits for steps, not sizes."""
        if q.ndim != k.ndim or q.select(dim, 0).shape != k.select(dim, 0).shape:
            return rotate(self.config, layer, q), rotate(self.config, layer, k)
        both = rotate(self.config, layer, torch.cat([q, k], dim))
        q, k = both.split((q.shape[dim], k.shape[dim]), dim)
        return q, k

    def _out_scale(self, written: Stream) -> Float[Tensor, "*batch 1"]:
        """What the norm after a component multiplies by, besides its weight."""
        return rms_scale(self.rules.scale_of(written), self.config.norm_eps)

    def for_scores(self, kind: str, x: Heads, layer: int, dim: int = -3) -> Heads:
        """Queries (`q`) or keys (`k`) as scores take them: after QK-norm and rotation."""
        x = self._qk_normalize(kind, x, layer, dim)
        return rotate(self.config, layer, x) if self.config.positions == "rotary" else x

    def _qk_normalize(self, kind: str, x: Heads, layer: int, dim: int) -> Heads:
        return self.rules.bend(partial(self._qk_norm, kind, layer, dim), x)

    def _qk_norm(self, kind: str, layer: int, dim: int, x: Heads) -> Heads:
        if self.config.qk_norm == "none":
            return x
        weight, eps = self.weights[f"{kind}_norm_w"][layer], self.config.norm_eps
        if self.config.qk_norm == "head":
            return F.rms_norm(x, weight.shape, weight, eps)
        assert x.shape[dim] == len(weight), "a joint norm is of all heads"
        unit = (x * rms_scale(x, eps, (dim, -1))).to(x.dtype)
        return unit * weight.view(len(weight), *[1] * (-dim - 2), -1)

    def expand_groups(self, x: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
        """Keys or values once for every head instead of once for every group."""
        if x.shape[dim] == self.config.n_heads:
            return x
        return x.repeat_interleave(self.config.heads_per_group, dim=dim)

    def mlp(self, stream: Stream, layer: int) -> tuple[Hidden, Hidden | None, Hidden]:
        """Pre-activation, that of the gate if there is one, and the hidden vector."""
        read = self.normalize("mlp_norm", stream, layer)
        pre = self._linear(read, self.weights["W_in"][layer], "b_in", layer)
        gate = read @ self.weights["W_gate"][layer] if self.config.gated_mlp else None
        return pre, gate, self.hidden(pre, gate, layer)

    def hidden(self, pre: Hidden, gate: Hidden | None, layer: int) -> Hidden:
        """What the MLP writes by `write_weight`: after the nonlinearity and the gate."""
        bent = self.rules.bend(ACTIVATIONS[self.config.activation], pre if gate is None else gate)
        hidden = bent if gate is None else self.rules.multiply(bent, pre)
        if not self.config.norms_after:
            return hidden
        return (hidden * self._out_scale(hidden @ self.weights["W_out"][layer])).to(hidden.dtype)

    @property
    def unembedding(self) -> Float[Tensor, "d_model d_vocab_out"]:
        return self.weights["W_E"].T if self.config.tied_unembedding else self.weights["W_U"]

    def normalize(self, name: str, stream: Stream, layer: int | None = None) -> Stream:
        """A reader's norm of its own input: attn_norm or mlp_norm of a layer, or final_norm."""
        weight, bias = self._norm_weights(name, layer)
        return stream if weight is None else self.rules.normalize(self.config, stream, weight, bias)

    def _norm_weights(
        self, name: str, layer: int | slice | None
    ) -> tuple[Tensor | None, Tensor | None]:
        stored = [self.weights.get(f"{name}_{part}") for part in "wb"]
        weight, bias = (x if x is None or layer is None else x[layer] for x in stored)
        if isinstance(layer, slice):
            # Between the layers and d_model lie the readers, prompts and positions.
            weight, bias = (x if x is None else x[:, None, None, None] for x in (weight, bias))
        return weight, bias

    def write_weight(self, name: str, layer: int | None = None) -> Float[Tensor, "... d_model"]:
        """What takes z (`W_O`) or hidden (`W_out`) to the stream, of a layer or of all.

        z and hidden carry the scale of the norm that stands after them, this matrix its weight.
        """
        norm = {"W_O": "attn_out_norm", "W_out": "mlp_out_norm"}[name]
        W, (weight, _) = self.weights[name], self._norm_weights(norm, layer)
        W = W if layer is None else W[layer]
        if weight is None:
            return W
        return W * weight.view(*weight.shape[:-1], *[1] * (W.ndim - weight.ndim), -1)

    def _linear(
        self, x: Float[Tensor, "*batch d_in"], W: Float[Tensor, "d_in d_out"], bias: str, layer: int
    ) -> Float[Tensor, "*batch d_out"]:
        return F.linear(x, W.T, self.bias(bias, layer))

    def bias(self, name: str, layer: int) -> Tensor | None:
        """A layer's bias, or None in a subject without it."""
        return self.weights[name][layer] if name in self.weights else None

    def pull_through_norm(
        self, name: str, stream: Spread, grad: Stream, layer: int | slice | None = None
    ) -> Stream:
        """The gradient at a norm's input, given the one at its output.

        That of several layers has the axes (layer, reader, batch, pos, d_model).
        """
        weight, _ = self._norm_weights(name, layer)
        if weight is None:
            return grad
        return self.rules.pull_through_norm(self.config, stream, weight, grad)

    def through_norm(
        self, name: str, W: Float[Tensor, "*lead d_model d_out"], layer: int | None = None
    ) -> Float[Tensor, "*lead d_model d_out"]:
        """The linear part of a norm, followed by W: its weight, and the centring of LayerNorm.

        What is left of the norm is a scale, one number per stream and context. Without a layer the
        first axis of W is that of all layers, or the norm is the last one.
        """
        weight, _ = self._norm_weights(name, layer)
        if weight is None:
            return W
        between = (1,) * (W.ndim - weight.ndim - 1)
        W = W * weight.to(W.dtype).view(*weight.shape[:-1], *between, -1, 1)
        return W - W.mean(-2, keepdim=True) if self.config.norm == "layer" else W

    def unembed(self, stream: Stream) -> Logits:
        """Logits from the last stream."""
        return self.capped(self.uncapped(stream))

    def capped(self, logits: Logits) -> Logits:
        """Logits after their soft cap, where there is one."""
        return self.rules.bend(partial(soft_cap, cap=self.config.logit_cap), logits)

    def uncapped(self, stream: Stream) -> Logits:
        """What `logits` reads: logits before their soft cap."""
        logits = self.normalize("final_norm", stream) @ self.unembedding
        if self.config.biases:
            logits = logits + self.weights["b_U"]
        return logits if self.config.logit_scale == 1.0 else logits * self.config.logit_scale

    @property
    def constants(self) -> Float[Tensor, "stream d_model"]:
        """The biases that each stream holds beside its writers' outputs, in stream order."""
        n_layers, d_model = self.config.n_layers, self.config.d_model
        if "b_O" not in self.weights:
            return self.weights["W_E"].new_zeros(2 * n_layers + 1, d_model)
        b_O, b_out = self.weights["b_O"], self.weights["b_out"]
        after = (b_O + b_out).cumsum(0)
        before = torch.cat([torch.zeros_like(after[:1]), after[:-1]])
        at_mlp = before if self.config.parallel else before + b_O
        return torch.cat([torch.stack([before, at_mlp], dim=1).flatten(0, 1), after[-1:]])


# Norms


def norm_scale(
    config: TransformerConfig, stream: Stream
) -> tuple[Stream, Float[Tensor, "*batch 1"]]:
    """The stream as a norm centres it, and what the norm then multiplies it by."""
    if config.norm == "none":
        return stream, torch.ones_like(stream[..., :1])
    if config.norm == "layer":
        stream = stream - stream.mean(-1, keepdim=True)
    return stream, (stream.square().mean(-1, keepdim=True) + config.norm_eps).rsqrt()


def rms_scale(
    x: Float[Tensor, "..."], eps: float, axes: tuple[int, ...] = (-1,)
) -> Float[Tensor, "..."]:
    """What an RMS norm over some axes multiplies by, in single precision at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide.square().mean(axes, keepdim=True) + eps).rsqrt()
