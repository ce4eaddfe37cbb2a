"""Single-edge activation patching: what happens when one edge alone is changed.

1. Noising: in the clean run, one edge at a time carries its writer's corrupted output. Denoising:
   in the corrupted run, one edge at a time carries the clean one.
2. An edge's effect on a prompt is the change of the loss; its score pools the effects.
3. On large graphs some edges alone may be tested: the best by EAP-IG, or named ones. The others
   then rank below them, in EAP-IG's order.

It is what attribution estimates, and so the oracle of its tests; itself it is tested against masked
runs. Prompts go in chunks, and within a chunk edges do: memory bounds the number of neither.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.engine.memory import Footprint, at_once, half
from graphcircuits.engine.resume import single_edge
from graphcircuits.methods.prepare import Progress, Signed, check_shared, for_scoring, prepare
from graphcircuits.methods.shortlist import shortlist
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs


@torch.no_grad()
def exact(
    subject: Transformer,
    pairs: Pairs,
    *,
    direction: str = "noising",
    pool: str = "abs",
    top: int | None = None,
    edges: Sequence[str] | None = None,
    memory_limit: int | None = None,
    progress: Progress | None = None,
    signed: Signed | None = None,
) -> Float[Tensor, " edge"]:
    """How much the loss changes with each edge alone.

    Only the `top` best edges by EAP-IG, or the named `edges`, are tested where either is given.
    `pool` takes the mean over prompts of the absolute change ("abs") or the absolute value of the
    mean change ("sum"). Memory stays below `memory_limit` bytes where one edge and one prompt
    allow it. `progress` hears how many of the runs are over, one per edge and prompt; there are no
    scores before the last. `signed` hears the mean changes with their signs, above 0 where the edge
    helps; of edges that were not tested, EAP-IG's estimates.
    """
    check_shared(direction=direction, pool=pool)
    subject = for_scoring(subject)
    pairs = prepare(subject, pairs, memory_limit)
    pos = pairs.clean.shape[1]
    size = Footprint(subject, pos)
    tested = shortlist(subject, pairs, top, edges, memory_limit)
    # Half of the memory is left to the edges that run at once.
    held = 2 * size.pair + size.passing
    prompts = at_once(subject, held, memory_limit, largest=pos * subject.config.d_mlp)
    n_edges = subject.graph.n_edges
    total = torch.zeros(n_edges, 2, dtype=subject.dtype, device=subject.device)
    chosen = torch.arange(n_edges) if tested is None else tested.edges
    rows = chosen.to(total.device)
    runs = 0

    def report(new: int) -> None:
        nonlocal runs
        runs += new
        if progress is not None:
            progress(min(runs, len(chosen) * len(pairs)), len(chosen) * len(pairs))

    for some in pairs.split(prompts):
        limit = half(memory_limit)
        total[rows] += _summed_effects(subject, some, chosen, direction, pool, limit, report)
    scores, means = total[:, 0].abs() / len(pairs), total[:, 1] / len(pairs)
    if signed is not None:
        means = means if direction == "noising" else -means
        signed(means if tested is None else tested.completed(means, tested.signed))
    return scores if tested is None else tested.completed(scores, tested.below)


def _summed_effects(
    subject: Transformer,
    pairs: Pairs,
    edges: Int[Tensor, " edge"],
    direction: str,
    pool: str,
    memory_limit: int | None,
    report: Callable[[int], None],
) -> Float[Tensor, "edge 2"]:
    """Effects of some edges summed over prompts: as `pool` says, and with their signs."""
    clean, corrupted = subject.run(pairs.clean), subject.run(pairs.corrupted)
    base, other = (clean, corrupted) if direction == "noising" else (corrupted, clean)
    before = pairs.loss(base.logits)

    def summed(logits: Float[Tensor, "edge batch pos d_vocab_out"]) -> Float[Tensor, "edge 2"]:
        effects = pairs.loss(logits) - before
        report(effects.numel())
        pooled = effects.abs() if pool == "abs" else effects
        return torch.stack([pooled.sum(-1), effects.sum(-1)], -1)

    return single_edge(base, other.writers, edges, metric=summed, memory_limit=memory_limit)
