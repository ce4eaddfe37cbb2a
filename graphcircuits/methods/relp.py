"""Relevance patching: EAP with relevance coefficients in place of gradients (RelP; Jafari et al.
2025).

An edge's effect on a prompt is (corrupted - clean output of its writer) . (coefficient of the loss
at its reader's input), summed over positions. Coefficients come from one backward pass through the
clean run, as gradients do, but with the rules of layer-wise relevance propagation, which treat what
bends a component as a constant factor of it:

1. LN-rule: what a norm divides by is a constant; centring and weights stay. It holds for the norms
   of readers, of queries and keys, and after components alike.
2. Identity-rule: an activation is its input times a constant, act(x) / x. A soft cap of logits is
   treated likewise.
3. Half-rule: of a product, that of a gated MLP, each factor gets half.
4. AH-rule, on request: attention patterns are constants, so that relevance flows through values
   alone and every edge into a query or key scores zero. The paper lists it; the code published with
   it leaves it out and takes attention by its gradient, as is done here unless told: circuits are
   asked for edges into queries and keys as well.

The loss itself is differentiated as it is, and linear maps keep their gradient (0-rule). Without
biases, and with all four rules, what reaches the input adds up to the output: relevance is
conserved. Scores pool effects as in `eap`.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.methods.eap import attribute
from graphcircuits.methods.prepare import check_choice
from graphcircuits.subject.norms import norm_scale
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

ATTENTION = ("gradient", "pattern")


def relp(
    subject: Transformer,
    pairs: Pairs,
    *,
    attention: str = "gradient",
    pool: str = "abs",
    memory_limit: int | None = None,
) -> Float[Tensor, " edge"]:
    """Effect of noising each edge, from relevance coefficients at the clean run.

    `attention` is taken by its "gradient", or with its "pattern" held constant, which leaves
    queries and keys without a score. `pool` and `memory_limit` as in `eap`.
    """
    check_choice("attention", attention, ATTENTION)
    ruled = relevant(subject, attention)
    return attribute(ruled, pairs, "inputs", torch.ones(1), pool, memory_limit)


def relevant(subject: Transformer, attention: str = "gradient") -> Transformer:
    """The same subject, whose gradients are relevance coefficients."""
    rules = _Rules if attention == "gradient" else _ConstantPatterns
    # Whatever class the subject has: its values are computed as before.
    kind = type("RelevantTransformer", (rules, type(subject)), {})
    return kind(subject.config, subject.weights, subject.codec, subject.case)


_Base = Transformer if TYPE_CHECKING else object


class _Rules(_Base):
    """Rules 1 to 3, over any class of subjects."""

    def normalize(
        self, name: str, stream: Float[Tensor, "*batch d_model"], layer: int | None = None
    ) -> Float[Tensor, "*batch d_model"]:
        constant = stream.detach()
        weight, _ = self._norm_weights(name, layer)
        if weight is None:
            return stream
        change = self._centred(stream - constant) * self._scale(constant) * weight
        return super().normalize(name, constant, layer) + change

    def pull_through_norm(
        self,
        name: str,
        stream: Float[Tensor, "*#batch d_model"],
        grad: Float[Tensor, "*batch d_model"],
        layer: int | slice | None = None,
    ) -> Float[Tensor, "*batch d_model"]:
        weight, _ = self._norm_weights(name, layer)
        return grad if weight is None else self._centred(grad * weight) * self._scale(stream)

    def _centred(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return x - x.mean(-1, keepdim=True) if self.config.norm == "layer" else x

    def _scale(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch 1"]:
        """What the norm multiplies by; squares may be beyond half precision."""
        wide = stream.to(torch.promote_types(stream.dtype, torch.float32))
        return norm_scale(self.config, wide)[1].to(stream)

    def _out_scale(self, written: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch 1"]:
        return super()._out_scale(written.detach())

    def _qk_normalize(
        self, kind: str, x: Float[Tensor, "*lead pos d_head"], layer: int, dim: int
    ) -> Float[Tensor, "*lead pos d_head"]:
        # Without centring the norm is one factor per coordinate.
        return _secant(x, super()._qk_normalize(kind, x.detach(), layer, dim))

    def activated(
        self, pre: Float[Tensor, "*batch d_mlp"], gate: Float[Tensor, "*batch d_mlp"] | None
    ) -> Float[Tensor, "*batch d_mlp"]:
        bent = pre if gate is None else gate
        found = _secant(bent, super().activated(bent.detach(), None))
        if gate is None:
            return found
        product = found * pre
        return product / 2 + (product / 2).detach()

    def capped(
        self, logits: Float[Tensor, "*batch d_vocab_out"]
    ) -> Float[Tensor, "*batch d_vocab_out"]:
        return _secant(logits, super().capped(logits.detach()))


class _ConstantPatterns(_Rules):
    """All four rules."""

    def attend(
        self,
        q: Float[Tensor, "..."],
        k: Float[Tensor, "..."],
        v: Float[Tensor, "..."],
        layer: int,
        dim: int = -3,
    ) -> Float[Tensor, "..."]:
        # Queries and keys stay in the graph: their gradient is asked for, and is zero.
        q, k = (x.detach() + 0 * x for x in (q, k))
        return super().attend(q, k, v, layer, dim)


def _secant(x: Float[Tensor, "*any"], value: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """The value, as x times a constant: its gradient is value / x, and 0 where x is."""
    constant = x.detach()
    slope = (value / constant).where(constant != 0, 0.0)
    return value + (x - constant) * slope
