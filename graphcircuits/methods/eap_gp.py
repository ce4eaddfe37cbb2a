"""Edge attribution patching along a gradient path (EAP-GP; Zhang et al. 2025).

A straight path from clean to corrupted inputs may run through regions where the loss is saturated
and its gradient says nothing. This one bends:

1. It starts at the clean input. Each step goes against the gradient of the squared distance between
   the logits there and those of the corrupted run, taken with respect to what `input` writes.
2. An edge's effect on a prompt is (corrupted - clean output of its writer) . (mean over the points
   that were reached of the gradient of the loss at its reader), as in EAP-IG; its score pools them.

Departures from the paper. It walks from every component's output; here one path over inputs serves
all edges, as in EAP-IG, which is what its reported cost speaks for. Each prompt walks on its own,
and its steps are as long as equal steps on the straight path to its corrupted input would be
(`stride="gap"`); the paper's have length 1 ("unit"), which depends on the scale of the embeddings.
The distance is taken at the positions that the loss looks at. Pooling as in `eap`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.methods.eap import attribute
from graphcircuits.methods.prepare import Signed, check_choice, check_positive
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

STRIDES = ("gap", "unit")


def eap_gp(
    subject: Transformer,
    pairs: Pairs,
    *,
    steps: int = 5,
    stride: str = "gap",
    pool: str = "abs",
    memory_limit: int | None = None,
    signed: Signed | None = None,
) -> Float[Tensor, " edge"]:
    """Effect of noising each edge, from gradients averaged along a path that follows gradients.

    The path has `steps` points beside the clean input, and its steps are a `stride` long: the
    distance to the corrupted input divided by `steps` ("gap"), or 1 ("unit"). `pool`,
    `memory_limit` and `signed` as in `eap`.
    """
    check_positive(steps=steps)
    check_choice("stride", stride, STRIDES)

    def walk(
        subject: Transformer,
        pairs: Pairs,
        clean: Float[Tensor, "batch pos d_model"],
        corrupted: Float[Tensor, "batch pos d_model"],
        goal: Float[Tensor, "batch column d_vocab_out"],
    ) -> Float[Tensor, "step batch pos d_model"]:
        length = _norms(corrupted - clean) / steps if stride == "gap" else 1.0
        points = [clean]
        for _ in range(steps):
            direction = _unit(_slope(subject, pairs, points[-1], goal))
            points.append(points[-1] - (length * direction).to(clean))
        return torch.stack(points[1:])

    return attribute(subject, pairs, walk, torch.zeros(steps), pool, memory_limit, signed=signed)


def _slope(
    subject: Transformer,
    pairs: Pairs,
    stream: Float[Tensor, "batch pos d_model"],
    goal: Float[Tensor, "batch column d_vocab_out"],
) -> Float[Tensor, "batch pos d_model"]:
    """The gradient of each prompt's distance to the goal, over the scored positions.

    It points where that of the squared distance does, and does not outgrow half precision.
    """
    with torch.enable_grad():
        start = stream.detach().requires_grad_()
        logits = subject.trace(start, pairs.columns).logits
    scored = pairs.scored[:, pairs.columns, None]
    gaps = (logits.detach() - goal).masked_fill(~scored, 0.0)
    return torch.autograd.grad(logits, start, _unit(gaps).to(logits))[0]


def _unit(vectors: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos d"]:
    """The vectors of each prompt, scaled to length 1 as one; where they are zero they stay so."""
    norms = _norms(vectors)
    return vectors / norms.where(norms > 0, 1.0)


def _norms(vectors: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch 1 1"]:
    """The length of each prompt's vectors as one."""
    wide = torch.promote_types(vectors.dtype, torch.float32)
    return torch.linalg.vector_norm(vectors, dim=(1, 2), keepdim=True, dtype=wide)
