"""Edge attribution patching (EAP) and its integrated-gradients form (EAP-IG).

1. The subject runs on clean and corrupted prompts. An edge's first-order effect on a prompt is
   (corrupted - clean output of its writer) . (gradient of the loss at its reader's input), summed
   over positions: what noising the edge would do if the rest were linear.
2. EAP takes the gradient at the clean run (Syed et al. 2023) or, denoising, at the corrupted one.
   EAP-IG (Hanna et al. 2024) averages it along a path from corrupted to clean, at the midpoints of
   equal steps, which converges faster than their right ends, as published; `points` has the other
   rules, those that take both ends of the path among them. Over inputs, the path interpolates the
   input embeddings; over activations, it interpolates the outputs of one group of writers at a time
   (the input, the heads of a layer, an MLP) with everything below it clean.
3. A score pools an edge's effects on the prompts: by default the mean of absolute values, where the
   papers add up signed effects (`pool="sum"`); docs/research/pooling.md has the comparison.

It is the cheapest look at all edges, and the start of most others. The tests check that it equals
exact patching where the subject is linear, and the gradient by the edges' masks everywhere; along a
path, that the edges leaving `input` add up to the loss gap.

Plain passes give all that is needed, and none is made twice: the gradients of EAP come from its
clean run. Values stay in lists by layer, gradients are taken to the stream a layer at a time, and
prompts and steps go in chunks, so that memory bounds neither the number of edges nor of prompts.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.memory import Footprint, at_once, explained, keep_freed_memory
from graphcircuits.engine.passes import Pass, add_effects, detached, with_gradients, writer_deltas
from graphcircuits.methods.prepare import (
    Signed,
    check_choice,
    check_positive,
    check_shared,
    flat_loss,
    for_scoring,
    on_device,
)
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs, check_losses

PATHS = ("inputs", "activations")
IN_A_STEP = {"left": 0.0, "midpoint": 0.5, "right": 1.0}
"""Where in each of equal steps the gradient is taken."""
RULES = (*IN_A_STEP, "endpoints", "trapezoid")

Effects = tuple[Float[Tensor, "batch_or_1 score"], Float[Tensor, " batch"], Float[Tensor, " batch"]]
"""Signed effects, and the clean and the corrupted losses."""
Stream = Float[Tensor, "batch pos d_model"]
Walk = Callable[
    [Transformer, Pairs, Stream, Stream, Float[Tensor, "batch column d_vocab_out"]],
    Float[Tensor, "step batch pos d_model"],
]
"""A path of its own: what `input` writes at each point, given what it writes in the clean and in
the corrupted run, and the corrupted logits at the columns that the loss reads."""


def eap(
    subject: Transformer,
    pairs: Pairs,
    *,
    direction: str = "noising",
    pool: str = "abs",
    memory_limit: int | None = None,
    signed: Signed | None = None,
) -> Float[Tensor, " edge"]:
    """First-order effect of each edge, from gradients at one end.

    `direction` says at which: "noising" an edge of the clean run, or "denoising" one of the
    corrupted run. `pool` takes the mean over prompts of absolute effects ("abs") or the absolute
    value of the mean effect ("sum"), in which effects of opposite signs cancel. Memory stays below
    `memory_limit` bytes where one prompt allows it. `signed` hears the mean effects with their
    signs.
    """
    check_shared(direction=direction)
    shares = torch.ones(1) if direction == "noising" else torch.zeros(1)
    return attribute(subject, pairs, "inputs", shares, pool, memory_limit, signed=signed)


def eap_ig(
    subject: Transformer,
    pairs: Pairs,
    *,
    over: str = "inputs",
    steps: int = 5,
    rule: str = "midpoint",
    pool: str = "abs",
    memory_limit: int | None = None,
    signed: Signed | None = None,
) -> Float[Tensor, " edge"]:
    """Effect of noising each edge, from gradients averaged along a path from corrupted to clean.

    `over` names the path: "inputs" takes `steps` passes, "activations" that many for each group of
    writers. `rule` says where the gradient is taken (`points`): in the middle of each step, at its
    "right" end, the clean one, as published, or at its "left" one, as in the EAP-IG package of
    today; or at as many equally spaced points that include both ends of the path, all alike with
    "endpoints", or the ends by half with "trapezoid". `pool`, `memory_limit` and `signed` as in
    `eap`. The signed effects of the edges leaving `input` add up to the loss gap as `steps` grow.
    """
    check_choice("over", over, PATHS)
    shares, weights = points(rule, steps)
    return attribute(subject, pairs, over, shares, pool, memory_limit, weights, signed)


def points(rule: str, steps: int) -> tuple[Float[Tensor, " step"], Float[Tensor, " step"] | None]:
    """The shares of clean at which a rule takes gradients, and how much each counts if not alike.

    `steps` are gradients, whichever the rule: equal steps from corrupted to clean with one each, or
    so many points of which the first is the corrupted run and the last the clean one.
    """
    check_choice("rule", rule, RULES)
    check_positive(steps=steps)
    if rule in IN_A_STEP:
        return (torch.arange(steps) + IN_A_STEP[rule]) / steps, None
    if steps < 2:
        raise ValueError(f"rule {rule} takes both ends, so steps must be at least 2, got {steps}.")
    shares, weights = torch.linspace(0, 1, steps), torch.ones(steps)
    weights[[0, -1]] = 0.5
    return shares, None if rule == "endpoints" else weights


def attribute(
    subject: Transformer,
    pairs: Pairs,
    over: str | Walk,
    shares: Float[Tensor, " step"],
    pool: str,
    memory_limit: int | None,
    weights: Float[Tensor, " step"] | None = None,
    signed: Signed | None = None,
) -> Float[Tensor, " edge"]:
    """Pooled effects, with gradients averaged over these shares of clean on the path.

    A walk has points of its own, as many as there are shares, and they all count alike.
    """
    check_shared(pool=pool)
    subject = for_scoring(subject, widen=False)
    pairs = on_device(subject, pairs)
    pairs = pairs.up_to_last_column() if subject.config.causal else pairs
    advice = "use eap-ig, exact or the gradient at the corrupted run (denoising), or give answers"
    if pairs.needs_targets and over == "inputs" and shares.tolist() == [1.0]:
        raise flat_loss("edge", advice)  # rounding would leave something to rank by
    prompts, steps, numbers = _chunks(subject, pairs, len(shares), memory_limit)

    def of_some(some: Pairs) -> Effects:
        by_prompt = pool == "abs"
        return effects(subject, some, over, shares.split(steps), weights, by_prompt=by_prompt)

    with explained(subject, "prompts", prompts, numbers):
        scores, means = pooled(pairs.split(prompts), pool, of_some, "edge", advice)
    if signed is not None:
        signed(means)
    return scores


def pooled(
    chunks: Iterable[Pairs], pool: str, effects: Callable[[Pairs], Effects], what: str, advice: str
) -> tuple[Float[Tensor, " score"], Float[Tensor, " score"]]:
    """The mean over prompts of absolute effects, or the absolute value of their mean; and the mean
    of the effects with their signs.

    `what` has effects, and `advice` is what to do where they are all zero.
    """
    keep_freed_memory()
    sums, losses = [], []
    for some in chunks:
        values, *both = effects(some)
        signed = values.sum(0)
        new = [values.abs_().sum(0) if pool == "abs" else signed, signed]
        sums = [old + more for old, more in zip(sums or (0, 0), new, strict=True)]
        losses.append(both)
    clean, corrupted = (torch.cat(each) for each in zip(*losses, strict=True))
    check_losses(clean, corrupted)
    total, signed = sums
    if not total.any():
        raise flat_loss(what, advice)
    return total.abs() / len(clean), signed / len(clean)


def run_with_gradients(
    subject: Transformer,
    streams: Float[Tensor, "run pos d_model"],
    pairs: Pairs,
    weights: Float[Tensor, " step"] | None = None,
) -> Pass:
    """A run on each prompt, once or for several steps in a row, with gradients of its loss.

    `weights` are how much the loss of each step counts; all count alike without them.
    """

    def losses(logits: Float[Tensor, "run column d_vocab_out"]) -> Float[Tensor, "step batch"]:
        by_step = pairs.loss_at_columns(logits.unflatten(0, (-1, len(pairs))))
        return by_step if weights is None else by_step * weights[:, None]

    return with_gradients(subject, streams, pairs.columns, losses)


def effects(
    subject: Transformer,
    pairs: Pairs,
    over: str | Walk,
    shares: tuple[Float[Tensor, " _"], ...],
    weights: Float[Tensor, " step"] | None = None,
    *,
    by_prompt: bool = True,
) -> Effects:
    """Signed first-order effects of noising each edge, summed over prompts unless `by_prompt`.

    Gradients are averaged over the shares of clean, one pass for each tensor of them.
    """
    points = torch.cat(shares).tolist()
    # At an end of the path its own run gives the gradients.
    end = points[0] if over == "inputs" and points in ([0.0], [1.0]) else None
    embedded, other = (subject.embed(x).detach() for x in (pairs.clean, pairs.corrupted))
    with torch.no_grad():
        if pairs.needs_targets:
            pairs = pairs.with_targets_from(subject.logits(pairs.clean))
        clean = None if end == 1.0 else detached(subject, subject.trace(embedded, pairs.columns))
        corrupted = None if end == 0.0 else detached(subject, subject.trace(other, pairs.columns))
    clean = clean or run_with_gradients(subject, embedded, pairs)
    corrupted = corrupted or run_with_gradients(subject, other, pairs)
    deltas = writer_deltas(subject, clean, corrupted)
    scores = deltas.new_zeros(len(pairs) if by_prompt else 1, subject.graph.n_edges)
    if end is None:
        runs = _runs(subject, pairs, over, shares, weights, (clean, corrupted), deltas)
    else:
        (whole,) = _paths(subject, clean, deltas, "inputs")
        runs = [(whole, clean if end == 1.0 else corrupted)]
    for path, run in runs:
        add_effects(
            scores, subject.graph, run, deltas, first_layer=path.first_layer, writers=path.writers
        )
    scores /= len(points) if weights is None else float(weights.sum())
    before, after = (
        pairs.loss_at_columns(run.logits) if run.losses is None else run.losses[0]
        for run in (clean, corrupted)
    )
    return scores, before, after


# Paths


@dataclass(frozen=True)
class _Path:
    """A line from corrupted to clean on which one group of writers moves.

    `suffix` is what follows the group, as a subject of its own.
    """

    suffix: Transformer
    first_layer: int
    """The layer of the whole subject that is the suffix's first."""
    writers: tuple[int, int]
    """The writers to score along this path, as a range."""
    stream: Float[Tensor, "batch pos d_model"]
    """Behind the group, in the clean run."""
    change: Float[Tensor, "batch pos d_model"]
    """What full corruption of the group adds to the stream."""


def _runs(
    subject: Transformer,
    pairs: Pairs,
    over: str | Walk,
    shares: tuple[Float[Tensor, " _"], ...],
    weights: Float[Tensor, " step"] | None,
    ends: tuple[Pass, Pass],
    deltas: Float[Tensor, "writer batch pos d_model"],
) -> Iterator[tuple[_Path, Pass]]:
    """The runs at all points, with the path that each belongs to."""
    clean, corrupted = ends
    sizes = [len(some) for some in shares]
    counts = [None] * len(sizes) if weights is None else weights.to(deltas).split(sizes)
    if isinstance(over, str):
        for path in _paths(subject, clean, deltas, over):
            for some, count in zip(shares, counts, strict=True):
                corrupted_shares = (1 - some.to(deltas))[:, None, None, None]
                streams = (path.stream + corrupted_shares * path.change).to(path.stream.dtype)
                yield path, run_with_gradients(path.suffix, streams.flatten(0, 1), pairs, count)
        return
    first, last = (end.layers[0].at_heads for end in ends)
    streams = over(subject, pairs, first, last, corrupted.logits)
    (path,) = _paths(subject, clean, deltas, "inputs")
    for some in streams.split(sizes):
        yield path, run_with_gradients(subject, some.flatten(0, 1), pairs)


def _paths(
    subject: Transformer, clean: Pass, deltas: Float[Tensor, "writer batch pos d_model"], over: str
) -> Iterator[_Path]:
    graph = subject.graph
    embedded = clean.layers[0].at_heads
    if over == "inputs":
        yield _Path(subject, 0, (0, graph.n_writers), embedded, deltas[0])
        return
    yield _Path(subject, 0, (0, 1), embedded, deltas[0])
    ends = [*(layer.at_heads for layer in clean.layers[1:]), clean.stream]
    for layer, end in enumerate(ends):
        first = 1 + layer * graph.writers_per_layer
        mlp = first + graph.n_heads
        # In parallel the layer's MLP does not read its heads, which then come after it.
        behind = end if graph.parallel else clean.layers[layer].at_mlp
        suffix = _suffix(subject, layer, with_mlp=not graph.parallel)
        yield _Path(suffix, layer, (first, mlp), behind, deltas[first:mlp].sum(0))
        suffix = _suffix(subject, layer, with_mlp=False)
        yield _Path(suffix, layer, (mlp, mlp + 1), end, deltas[mlp])


def _suffix(subject: Transformer, layer: int, *, with_mlp: bool) -> Transformer:
    """The subject from a layer on, with that layer's heads and, if told, its MLP silent."""
    silent = ("W_O", "b_O") if with_mlp else ("W_O", "b_O", "W_out", "b_out")
    weights = dict(subject.weights)
    for name in weights.keys() - {"W_E", "W_pos", "W_U", "b_U", "final_norm_w", "final_norm_b"}:
        suffix = weights[name][layer:]
        if name in silent:
            suffix = torch.cat([torch.zeros_like(suffix[:1]), suffix[1:]])
        weights[name] = suffix
    return Transformer(subject.config.from_layer(layer), weights)


def _chunks(
    subject: Transformer, pairs: Pairs, steps: int, memory_limit: int | None
) -> tuple[int, int, int]:
    """Prompts per chunk and steps per pass that fit in memory, one each at least.

    Third, how many numbers a prompt then holds.
    """
    size = Footprint(subject, pairs.clean.shape[1], pairs.columns.stop - pairs.columns.start)
    run = size.backward + 3 * size.readers
    prompt = 2 * size.writers + 2 * size.states + 2 * subject.graph.n_edges
    together = min(steps, at_once(subject, run, memory_limit, taken=prompt))
    numbers = prompt + together * run
    return min(len(pairs), at_once(subject, numbers, memory_limit)), together, numbers
