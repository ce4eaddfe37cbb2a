"""What the summary token of the paper's aligner reads of a vector, without making its tokens.

A token is t = v w + a, where v is the value, w the projection of values, and a = C i + r what the
coordinate's identifier i and the role add. The summary token s asks the same of every vector, so
its query is one constant per head, and a layer of attention from it needs of each token only

1. the scale of its LayerNorm: its variance is v^2 ww + 2 v wa + aa, with ww, wa, aa the
   covariances of w and a (w and a stand without their means from here on);
2. its score per head: scale * (v u.w + u.a), with u the query seen through the keys; what keys
   and queries add to all tokens alike falls out of the softmax;
3. sums over tokens, weighted by attention p: of p scale, p scale v and p scale i. Values are linear
   in them.

So a token costs a few numbers per head instead of some vectors, and identifiers stay as short as
they were drawn. `TabpfnAligner._tokens` and `FeatureAttention` are the same, step by step.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.predictor.block import along

if TYPE_CHECKING:
    from graphcircuits.predictor.paper.align import FeatureAttention, TabpfnAligner


def summarize(
    aligner: "TabpfnAligner",
    layer: "FeatureAttention",
    values: Float[Tensor, "*lead vector row coordinate"],
    identifiers: Float[Tensor, "*lead vector coordinate identifier"],
    role: Int[Tensor, " vector"],
    known: Bool[Tensor, "*lead coordinate"] | None,
) -> tuple[Float[Tensor, "*lead vector row d_align"], Float[Tensor, "..."]]:
    """What the heads read of each vector, side by side, and the summary token that asked."""
    stack = aligner.is_stack
    heads, size = layer.heads, aligner.d_align // layer.heads

    def fit(x: Tensor, like: Tensor) -> Tensor:
        """Numbers of a run, or of all vectors, in the shape that meets `like`."""
        return along(x, like) if stack else x

    def by_role(x: Tensor) -> Tensor:
        """Of every vector what its role has, with the axes of cases."""
        return x[:, role].unsqueeze(1) if stack else x[role]

    # What all tokens share, without its mean.
    w = _centered(aligner.value.weight[..., 0])
    c = aligner.coordinate.weight
    c = c - c.mean(-2, keepdim=True)
    r = _centered(aligner.role + aligner.value.bias.unsqueeze(-2))
    s = _centered(aligner.summary)
    s = s * (s.square().mean(-1, keepdim=True) + layer.norm.eps).rsqrt()
    scale, shift = layer.norm.weight, layer.norm.bias
    # The query through the keys, and values, by head.
    query = layer.query((s * scale + shift).unsqueeze(-2)).squeeze(-2).unflatten(-1, (heads, size))
    keys, maps = layer.key_value.weight.unflatten(-2, (2, heads, size)).unbind(-4)
    u = (query.unsqueeze(-2) @ keys).squeeze(-2) * scale.unsqueeze(-2) * size**-0.5
    plain, maps = maps, maps * scale[..., None, None, :]
    # Of every coordinate: score without the value, covariance with w, variance.
    d = aligner.d_align
    columns = [(u @ c).mT, (w.unsqueeze(-2) @ c).mT / d, c.mT @ c / d]
    if stack:
        table = torch.bmm(identifiers.flatten(1, -2), torch.cat(columns, dim=-1))
        table = table.unflatten(1, identifiers.shape[1:-1])
    else:
        table = identifiers @ torch.cat(columns, dim=-1)
    a = table[..., :heads] + by_role((u @ r.mT).mT).unsqueeze(-2)
    wa = table[..., heads] + by_role((r @ w.unsqueeze(-1)) / d)
    cross = table[..., heads + 1 :] + by_role(2 * (r @ c) / d).unsqueeze(-2)
    aa = (identifiers * cross).sum(-1) + by_role(r.square().mean(-1, keepdim=True))
    # Attention of each head, then the sums.
    like = values.unsqueeze(-3)

    def attention() -> tuple[
        Float[Tensor, "*lead vector head row coordinate"], Float[Tensor, "*lead vector head row 1"]
    ]:
        """To every coordinate, times the scale of its token, and to the summary; what is made on
        the way is as large, and given back."""
        ww = fit(w.square().mean(-1), values)
        variance = (ww * values + 2 * wa.unsqueeze(-2)) * values + aa.unsqueeze(-2)
        scale = (variance.clamp_min(0) + layer.norm.eps).rsqrt().unsqueeze(-3)
        by_value, on_itself = (fit((u @ x.unsqueeze(-1)).unsqueeze(-1), like) for x in (w, s))
        scores = scale * (by_value * like + a.mT.unsqueeze(-2))
        if known is not None:
            scores = scores.masked_fill(~known[..., None, None, None, :], -torch.inf)
        total = torch.logaddexp(scores.logsumexp(-1, keepdim=True), on_itself)
        return (scores - total).exp() * scale, (on_itself - total).exp()

    weights, on_summary = attention()
    sums = weights.flatten(-3, -2) @ identifiers
    read = [
        sums.unflatten(-2, weights.shape[-3:-1]),
        (weights * like).sum(-1, keepdim=True),
        on_summary,
    ]
    mapped = [maps @ c.unsqueeze(-3), *(maps @ x[..., None, :, None] for x in (w, s))]
    linear = torch.cat(mapped, dim=-1).mT
    attended = torch.cat(read, dim=-1) @ fit(linear, like)
    roles = (maps.unsqueeze(-4) @ r[..., None, :, None]).squeeze(-1)
    attended = attended + weights.sum(-1, keepdim=True) * by_role(roles).unsqueeze(-2)
    constant = (plain @ shift[..., None, :, None]).squeeze(-1)
    constant = constant + layer.key_value.bias.unflatten(-1, (2, heads, size)).select(-3, 1)
    attended = (attended + fit(constant.unsqueeze(-2), attended)).movedim(-3, -2).flatten(-2)
    return attended, fit(aligner.summary, attended)


def _centered(x: Float[Tensor, "*lead width"]) -> Float[Tensor, "*lead width"]:
    return x - x.mean(-1, keepdim=True)
