"""Node attribution patching: how much each component matters (Nanda 2023; Syed et al. 2023).

1. The subject runs on clean and corrupted prompts. A component's first-order effect on a prompt is
   (corrupted - clean output) . (gradient of the loss at that output), summed over positions: what
   noising all it writes would do if the rest were linear. It is the sum of what EAP gives to the
   edges that leave it, at a fraction of the work, which the tests check.
2. A component's score pools its effects on the prompts, as in `eap`.
3. `nap` lifts them to edges: an edge scores the smaller of its two components, so that the best
   edges are those among the best components. A reader of a group of heads counts as the best of
   them; `logits`, which writes nothing, as the best component of all.
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.memory import Footprint, at_once, explained
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods.eap import Effects, pooled
from graphcircuits.methods.prepare import Signed, check_shared, flat_loss, for_scoring, on_device
from graphcircuits.subject.states import Trace
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs


def nap(
    subject: Transformer,
    pairs: Pairs,
    *,
    steps: int = 0,
    pool: str = "abs",
    memory_limit: int | None = None,
    signed: Signed | None = None,
) -> Float[Tensor, " edge"]:
    """For each edge the smaller score of its two components; options as in `node_scores`.

    `signed` hears the smaller of their signed effects: above 0 where both components help.
    """
    scores, means = _scores(subject, pairs, steps, pool, memory_limit)
    if signed is not None:
        signed(lifted(subject.graph, means))
    return lifted(subject.graph, scores)


def node_scores(
    subject: Transformer,
    pairs: Pairs,
    *,
    steps: int = 0,
    pool: str = "abs",
    memory_limit: int | None = None,
) -> dict[str, float]:
    """First-order effect of noising each component that writes: `input`, heads and MLPs, by name.

    Args:
        subject: the transformer.
        pairs: its prompts.
        steps: 0 for gradients at the clean run; from 1 on, averaged over so many points on the path
            from corrupted to clean inputs.
        pool: the mean over prompts of absolute effects ("abs"), or the absolute value of the mean
            effect ("sum").
        memory_limit: bytes that runs stay below where one prompt allows it.

    Returns:
        One number per component, such as {"input": 2.1, "a0.h0": 0.3, "m0": 1.7}.

    Example:
        gc.node_scores(subject, pairs)["m0"]

    See docs/methods.md; node attribution patching is that of Syed et al., arXiv:2310.10348.
    """
    scores, _ = _scores(subject, pairs, steps, pool, memory_limit)
    return dict(zip(subject.graph.writer_names, scores.tolist(), strict=True))


def lifted(graph: ComponentGraph, writers: Float[Tensor, " writer"]) -> Float[Tensor, " edge"]:
    """Edge scores from those of components: the smaller of an edge's two ends."""
    served = [graph.components_of(reader) for reader in range(graph.n_readers - 1)]
    ends = [writers[each.start : each.stop].max() for each in served]
    readers = torch.stack([*ends, writers.max()])
    ends_of = (graph.edge_writers.to(writers.device), graph.edge_readers.to(writers.device))
    return torch.minimum(writers[ends_of[0]], readers[ends_of[1]])


def _scores(
    subject: Transformer, pairs: Pairs, steps: int, pool: str, memory_limit: int | None
) -> tuple[Float[Tensor, " writer"], Float[Tensor, " writer"]]:
    """Pooled effects of the components, and their means with signs."""
    check_shared(pool=pool)
    if steps < 0:
        raise ValueError(f"steps must be at least 0, got {steps}.")
    subject = for_scoring(subject, widen=False)
    pairs = on_device(subject, pairs)
    advice = "give nap steps, such as 5, or give answers"
    if pairs.needs_targets and not steps:
        raise flat_loss("component", advice)
    size = Footprint(subject, pairs.clean.shape[1])
    numbers = size.backward + 2 * size.states
    prompts = min(len(pairs), at_once(subject, numbers, memory_limit))
    with explained(subject, "prompts", prompts, numbers):
        of_some = partial(_effects, subject, steps=steps)
        return pooled(pairs.split(prompts), pool, of_some, "component", advice)


def _effects(subject: Transformer, pairs: Pairs, steps: int) -> Effects:
    """The effects of all components."""
    first, last = (subject.embed(x).detach() for x in (pairs.clean, pairs.corrupted))
    with torch.no_grad():
        if pairs.needs_targets:
            pairs = pairs.with_targets_from(subject.logits(pairs.clean))
        corrupted = subject.trace(last, pairs.columns)
        clean = subject.trace(first, pairs.columns) if steps else None
    if clean is None:
        clean, slopes = _with_gradients(subject, first, pairs)
        effects = _contracted(clean, corrupted, slopes)
    else:
        effects = torch.zeros((), device=subject.device)
        for step in range(steps):
            stream = torch.lerp(last, first, (step + 0.5) / steps)
            _, slopes = _with_gradients(subject, stream, pairs)
            effects = effects + _contracted(clean, corrupted, slopes) / steps
    losses = [pairs.loss_at_columns(run.logits.detach()) for run in (clean, corrupted)]
    return effects, losses[0], losses[1]


def _outputs(trace: Trace) -> list[Tensor]:
    """What the components put out, before the weights that write it: `input`, then a layer at a
    time its heads and its MLP."""
    computed = [trace.layers[0].at_heads]
    for layer in trace.layers:
        computed += [layer.z, layer.hidden]
    return computed


def _with_gradients(
    subject: Transformer, stream: Float[Tensor, "batch pos d_model"], pairs: Pairs
) -> tuple[Trace, tuple[Tensor, ...]]:
    """A run, and the gradients at its outputs."""
    with torch.enable_grad():
        trace = subject.trace(stream.detach().requires_grad_(), pairs.columns)
        total = pairs.loss_at_columns(trace.logits).sum()
    return trace, torch.autograd.grad(total, _outputs(trace))


@torch.no_grad()
def _contracted(
    clean: Trace, corrupted: Trace, slopes: tuple[Tensor, ...]
) -> Float[Tensor, "batch writer"]:
    """The change of each output times the gradient there."""

    def product(clean: Tensor, corrupted: Tensor, slope: Tensor) -> Float[Tensor, "batch _"]:
        wide = torch.promote_types(clean.dtype, torch.float32)
        by_position = ((corrupted - clean) * slope).sum(-1, dtype=wide)
        return (by_position if clean.ndim == 4 else by_position[..., None]).sum(1)

    outputs = zip(_outputs(clean), _outputs(corrupted), slopes, strict=True)
    return torch.cat([product(*each) for each in outputs], dim=1)
