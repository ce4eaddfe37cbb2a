"""Looking: what every edge is worth to the circuits that a ranking itself proposes.

Attribution looks at the whole subject. A small circuit is judged in another place: with nearly all
other edges cut. So look there:

1. An edge's value is the logit of its rank (`rank_logits`) among the edges that do anything.
2. At sizes in equal ratios between all of these edges and one, the best edges so far are a circuit:
   a mask sigmoid((value - threshold) / SPREAD), soft near the threshold (`proposed`).
3. All of these circuits run at once (`worths`), on a few prompts. The gradient of the distance from
   the subject's own output by every mask says what each edge would be worth to this very circuit,
   inside of it and outside, and the distance itself how much this circuit lacks.
4. `look_table` makes numbers of it that look alike over subjects: worths in their own unit and as
   ranks, how far an edge is from each threshold, and what each circuit lacks.

Silent components change nothing of it: their edges have no rank, are in no circuit and worth 0.
Leading axes are cases of one graph. `looker.py` is the network that reads these tables, and
`methods.own_circuits` looks without one; docs/research/looking.md has what was tried.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.engine.masked import masked_gradients
from graphcircuits.engine.memory import Footprint, at_once, explained
from graphcircuits.engine.relaxed import ranks
from graphcircuits.predictor.measure.scaling import TINY, log_rank
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

SPREAD = 0.5
"""How soft a circuit is around its threshold, in logits of ranks."""
COLUMNS = 6
"""Of `look_table`, for each circuit."""
FARTHEST = 8.0
"""From a threshold, in logits of ranks, at which distances end."""

Scores = Float[Tensor, "*case edge"]
Masks = Float[Tensor, "*case mask edge"]
Worths = Callable[
    [Float[Tensor, "mask edge"]], tuple[Float[Tensor, " mask"], Float[Tensor, "mask edge"]]
]
"""Of masks, what they lack of the output, and by how much that falls as each edge opens."""


def rank_logits(scores: Scores, alive: Bool[Tensor, "*case edge"] | None = None) -> Scores:
    """The logit of every edge's rank; ties are broken by edge order, as ever.

    Edges that are not `alive` have no rank: their value is minus infinity.
    """
    if alive is not None:
        scores = scores.masked_fill(~alive, -torch.inf)
    n = scores.shape[-1] if alive is None else alive.sum(-1, keepdim=True)
    logits = (1 - (ranks(scores).double() + 0.5) / n).clamp_min(0).logit().float()
    return logits if alive is None else logits.masked_fill(~alive, -torch.inf)


def circuit_sizes(n_edges: Int[Tensor, "*case"], n: int) -> Float[Tensor, "*case size"]:
    """Whole numbers in equal ratios between all edges and one, both left out; large ones first."""
    share = torch.arange(n, 0, -1, dtype=torch.float64, device=n_edges.device) / (n + 1)
    return (n_edges.double().log()[..., None] * share).exp().round()


def proposed(values: Scores, n: int, spread: float = SPREAD) -> tuple[Masks, Masks]:
    """How far every value is above the threshold of `n` circuits, and their masks."""
    last = circuit_sizes(values.isfinite().sum(-1), n).long() - 1
    best = values.sort(dim=-1, descending=True).values
    above = values[..., None, :] - best.gather(-1, last)[..., None]
    return above, torch.sigmoid(above / spread)


def worths(
    subject: Transformer,
    pairs: Pairs,
    *,
    memory_limit: int | None = None,
    precision: str = "full",
) -> Worths:
    """A function of masks: what each lacks of the subject's output, and the worth of every edge.

    What is lacking is the distance from the subject's own output, by that with every edge cut.
    """
    pairs = pairs.by_output(subject.config.d_vocab_out)
    pairs = pairs.up_to_last_column() if subject.config.causal else pairs
    numbers = Footprint(subject, pairs.clean.shape[1]).masked(grad=True)
    chunk = min(len(pairs), at_once(subject, numbers, memory_limit))
    parts, gap = [], 0.0
    with torch.no_grad():
        for some in pairs.split(chunk):
            clean = subject.logits(some.clean)
            some = some.with_targets_from(clean) if some.needs_targets else some
            cut = subject.run(some.corrupted)
            whole, empty = (float(some.loss(x).sum()) for x in (clean, cut.logits))
            parts.append((some, cut.writers, whole))
            gap += empty - whole
    gap = max(gap, TINY)

    def lacking(
        masks: Float[Tensor, "mask edge"],
    ) -> tuple[Float[Tensor, " mask"], Float[Tensor, "mask edge"]]:
        lacks, gains = masks.new_zeros(len(masks)), torch.zeros_like(masks)
        with explained(subject, "prompts", chunk, numbers):
            for some, cut, whole in parts:
                losses, gradients = masked_gradients(
                    subject,
                    some.clean,
                    masks.detach(),
                    cut,
                    some.loss_at_columns,
                    columns=some.columns,
                    memory_limit=memory_limit,
                    precision=precision,
                )
                lacks += (losses.sum(1) - whole) / gap
                gains -= gradients * (len(some) / gap)
        return lacks, gains

    return lacking


def look_table(
    above: Masks, masks: Masks, lacks: Float[Tensor, "*case mask"], gains: Masks
) -> Float[Tensor, "*case edge column"]:
    """What a look says of every edge, six numbers for each circuit: how far the edge is above its
    threshold; the worth of the edge, and that times the slope of its mask, in units of those near
    the threshold; the rank of its worth and of the size of it; and what the circuit lacks."""
    # Of two zeros the negative one has other bits, by which `log_rank` sorts.
    gains, lacks = gains.to(above) + 0.0, lacks.to(above)
    slopes = masks * (1 - masks)
    near = slopes.sum(-1, keepdim=True).clamp_min(TINY)
    unit = ((gains.square() * slopes).sum(-1, keepdim=True) / near).sqrt().clamp_min(TINY)
    rows = gains.flatten(0, -2)
    columns = [
        above.clamp(-FARTHEST, FARTHEST) / 4,
        torch.asinh(3 * gains / unit),
        torch.asinh(12 * gains * slopes / unit),
        log_rank(rows.clamp_min(0)).view_as(gains),
        log_rank(rows.abs()).view_as(gains),
        lacks.clamp(0, 2)[..., None].expand_as(above),
    ]
    return torch.cat(columns, dim=-2).transpose(-1, -2)
