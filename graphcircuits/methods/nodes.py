"""Node attribution patching: how much each component matters (Nanda 2023; Syed et al. 2023).

1. The subject runs on clean and corrupted prompts. A component's first-order effect on a prompt is
   (corrupted - clean output) . (gradient of the loss at that output), summed over positions: what
   noising all it writes would do if the rest were linear. It is the sum of what EAP gives to the
   edges that leave it, at a fraction of the work.
2. The gradient is that at the clean run or, with `steps`, the mean over points on the straight path
   from corrupted to clean inputs, as in EAP-IG.
3. A component's score pools its effects on the prompts, as in `eap`. `node_scores` gives these.
4. `nap` lifts them to edges: an edge scores the smaller of its two components, so that the best
   edges are those among the best components. A reader of a group of heads counts as the best of
   them; `logits`, which writes nothing, as the best component of all.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.memory import MEMORY_LIMIT, Footprint, at_once, keep_freed_memory
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods.prepare import POOLS, check_choice, placed, settled
from graphcircuits.subject.states import Trace
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs, check_losses


def nap(
    subject: Transformer,
    pairs: Pairs,
    *,
    steps: int = 0,
    pool: str = "abs",
    memory_limit: int = MEMORY_LIMIT,
) -> Float[Tensor, " edge"]:
    """For each edge the smaller score of its two components; options as in `node_scores`."""
    return lifted(subject.graph, _scores(subject, pairs, steps, pool, memory_limit))


def node_scores(
    subject: Transformer,
    pairs: Pairs,
    *,
    steps: int = 0,
    pool: str = "abs",
    memory_limit: int = MEMORY_LIMIT,
) -> dict[str, float]:
    """First-order effect of noising each component that writes: `input`, heads and MLPs, by name.

    Gradients are those at the clean run or, from 1 on, averaged over `steps` points on the path
    from corrupted to clean inputs. `pool` takes the mean over prompts of absolute effects ("abs")
    or the absolute value of the mean effect ("sum"). Memory stays below `memory_limit` bytes where
    one prompt allows it.
    """
    scores = _scores(subject, pairs, steps, pool, memory_limit)
    return dict(zip(subject.graph.writer_names, scores.tolist(), strict=True))


def lifted(graph: ComponentGraph, writers: Float[Tensor, " writer"]) -> Float[Tensor, " edge"]:
    """Edge scores from those of components: the smaller of an edge's two ends."""
    served = [graph.components_of(reader) for reader in range(graph.n_readers - 1)]
    ends = [writers[each.start : each.stop].max() for each in served]
    readers = torch.stack([*ends, writers.max()])
    places = (graph.edge_writers.to(writers.device), graph.edge_readers.to(writers.device))
    return torch.minimum(writers[places[0]], readers[places[1]])


def _scores(
    subject: Transformer, pairs: Pairs, steps: int, pool: str, memory_limit: int
) -> Float[Tensor, " writer"]:
    check_choice("pool", pool, POOLS)
    if steps < 0:
        raise ValueError(f"steps must be at least 0, got {steps}.")
    subject = settled(subject, widen=False)
    pairs = placed(subject, pairs)
    size = Footprint(subject, pairs.clean.shape[1])
    prompts = at_once(subject, size.backward + 2 * size.states, memory_limit)
    keep_freed_memory()
    dtype = torch.promote_types(subject.dtype, torch.float32)
    total = torch.zeros(subject.graph.n_writers, dtype=dtype, device=subject.device)
    losses = []
    for part in pairs.split(prompts):
        found, *both = _effects(subject, part, steps)
        total += (found.abs() if pool == "abs" else found).sum(0)
        losses.append(both)
    check_losses(*(torch.cat(each) for each in zip(*losses, strict=True)))
    if not total.any():
        raise ValueError(
            "the gradient of the loss is zero at every component, so all scores would be zero; a "
            "loss whose targets are the clean run's own outputs is flat there: give nap steps."
        )
    return total.abs() / len(pairs)


def _effects(
    subject: Transformer, pairs: Pairs, steps: int
) -> tuple[Float[Tensor, "batch writer"], Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Signed effects, and the clean and the corrupted losses."""
    first, last = (subject.embed(x).detach() for x in (pairs.clean, pairs.corrupted))
    with torch.no_grad():
        if pairs.needs_targets:
            pairs = pairs.with_targets_from(subject.logits(pairs.clean))
        corrupted = _Outputs.of(subject.trace(last))
        clean = _Outputs.of(subject.trace(first)) if steps else None
    if clean is None:
        clean, gradients = _with_gradients(subject, first, pairs)
        found = _contracted(subject, clean, corrupted, gradients)
    else:
        found = torch.zeros((), device=subject.device)
        for step in range(steps):
            stream = torch.lerp(last, first, (step + 0.5) / steps)
            _, gradients = _with_gradients(subject, stream, pairs)
            found = found + _contracted(subject, clean, corrupted, gradients) / steps
    return found, pairs.loss(clean.logits), pairs.loss(corrupted.logits)


@dataclass(frozen=True)
class _Outputs:
    """What the components of a run put out, before the weights that write it."""

    input: Float[Tensor, "batch pos d_model"]
    z: list[Float[Tensor, "batch pos head d_head"]]
    hidden: list[Float[Tensor, "batch pos d_mlp"]]
    logits: Float[Tensor, "batch pos d_vocab_out"]

    @classmethod
    def of(cls, trace: Trace) -> "_Outputs":
        z = [layer.z.detach() for layer in trace.layers]
        hidden = [layer.hidden.detach() for layer in trace.layers]
        return cls(trace.layers[0].at_heads.detach(), z, hidden, trace.logits.detach())


def _with_gradients(
    subject: Transformer, stream: Float[Tensor, "batch pos d_model"], pairs: Pairs
) -> tuple[_Outputs, list[Float[Tensor, "batch pos d_model"]]]:
    """A run, and the gradients where writers join the stream: `input`, each layer's heads and MLP.

    The stream there is the one that holds their sum, and all that follows reads it.
    """
    with torch.enable_grad():
        trace = subject.trace(stream.detach().requires_grad_())
        total = pairs.loss(trace.logits).sum()
    joined = [trace.layers[0].at_heads]
    for layer in trace.layers:
        # In parallel the layer's heads join where its MLP does.
        joined += [layer.after if subject.config.parallel else layer.at_mlp, layer.after]
    return _Outputs.of(trace), list(torch.autograd.grad(total, joined))


@torch.no_grad()
def _contracted(
    subject: Transformer,
    clean: _Outputs,
    corrupted: _Outputs,
    gradients: list[Float[Tensor, "batch pos d_model"]],
) -> Float[Tensor, "batch writer"]:
    """Each writer's change times the gradient where it joins, which is taken to the writer."""
    dtype = torch.promote_types(subject.dtype, torch.float32)

    def product(change: Tensor, gradient: Tensor) -> Float[Tensor, "batch _"]:
        by_head = change.unflatten(-1, (1, -1)) if change.ndim == 3 else change
        return (by_head * gradient.view_as(by_head)).sum((1, 3), dtype=dtype)

    at_input, *rest = gradients
    columns = [product(corrupted.input - clean.input, at_input)]
    for layer in range(subject.config.n_layers):
        at_heads, at_mlp = rest[2 * layer : 2 * layer + 2]
        W_O = subject.weights["W_O"][layer].flatten(0, 1)
        W_out = subject.weights["W_out"][layer]
        columns.append(product(corrupted.z[layer] - clean.z[layer], at_heads @ W_O.T))
        columns.append(product(corrupted.hidden[layer] - clean.hidden[layer], at_mlp @ W_out.T))
    return torch.cat(columns, dim=1)
