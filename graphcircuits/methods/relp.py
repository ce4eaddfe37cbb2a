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
conserved, which the tests check. Scores pool effects as in `eap`; what differs from it is a value
of `Rules` that the subject is run by.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.methods.eap import attribute
from graphcircuits.methods.prepare import Signed, check_choice
from graphcircuits.subject.components import (
    Hidden,
    Rules,
    Spread,
    Stream,
    Vectors,
    Weight,
    norm_scale,
)
from graphcircuits.subject.layers import TransformerConfig
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
    signed: Signed | None = None,
) -> Float[Tensor, " edge"]:
    """Effect of noising each edge, from relevance coefficients at the clean run.

    `attention` is taken by its "gradient", or with its "pattern" held constant, which leaves
    queries and keys without a score. `pool`, `memory_limit` and `signed` as in `eap`.
    """
    check_choice("attention", attention, ATTENTION)
    ruled = relevant(subject, attention)
    return attribute(ruled, pairs, "inputs", torch.ones(1), pool, memory_limit, signed=signed)


def relevant(subject: Transformer, attention: str = "gradient") -> Transformer:
    """The same subject, whose gradients are relevance coefficients."""
    rules = _Relevance(constant_patterns=attention == "pattern")
    return replace(subject, rules=subject.rules.then(rules))


@dataclass(frozen=True)
class _Relevance(Rules):
    """Rules 1 to 3, and on request the fourth: values as in the plain run, other gradients."""

    constant_patterns: bool

    def normalize(
        self, config: TransformerConfig, stream: Stream, weight: Weight, bias: Weight | None
    ) -> Stream:
        constant = stream.detach()
        change = _centred(config, stream - constant) * _scale(config, constant) * weight
        return super().normalize(config, constant, weight, bias) + change

    def pull_through_norm(
        self, config: TransformerConfig, stream: Spread, weight: Spread, grad: Stream
    ) -> Stream:
        return _centred(config, grad * weight) * _scale(config, stream)

    def scale_of(self, written: Stream) -> Stream:
        return written.detach()

    def bend(
        self,
        function: Callable[[Float[Tensor, "*any"]], Float[Tensor, "*any"]],
        x: Float[Tensor, "*any"],
    ) -> Float[Tensor, "*any"]:
        # The value, as x times a constant: its gradient is value / x, and 0 where x is.
        constant = x.detach()
        value = function(constant)
        slope = (value / constant).where(constant != 0, 0.0)
        return value + (x - constant) * slope

    def multiply(self, gate: Hidden, pre: Hidden) -> Hidden:
        product = gate * pre
        return product / 2 + (product / 2).detach()

    def attend(
        self, config: TransformerConfig, layer: int, q: Vectors, k: Vectors, v: Vectors
    ) -> Vectors:
        if self.constant_patterns:
            # Queries and keys stay in the graph: their gradient is asked for, and is zero.
            q, k = (x.detach() + 0 * x for x in (q, k))
        return super().attend(config, layer, q, k, v)


def _centred(config: TransformerConfig, x: Stream) -> Stream:
    return x - x.mean(-1, keepdim=True) if config.norm == "layer" else x


def _scale(config: TransformerConfig, stream: Stream) -> Float[Tensor, "*batch 1"]:
    """What the norm multiplies by; squares may be beyond half precision."""
    wide = stream.to(torch.promote_types(stream.dtype, torch.float32))
    return norm_scale(config, wide)[1].to(stream)
