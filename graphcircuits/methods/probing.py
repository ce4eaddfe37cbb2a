"""Subnetwork probing: train gates that keep the task and close all they can (Cao et al. 2021).

1. Every edge (`sp_edge`) or every reader (`sp_node`) has a hard-concrete gate; a closed one lets
   the corrupted value through.
2. Adam minimizes loss + sparsity * (share of gates expected open).
3. A gate's score is its location: larger means more likely open.

A node of `sp_node` is a reader: q, k and v of each head, and each MLP. Closing it cuts all its
incoming edges, and so gives it the value of the corrupted run; `input` and `logits` have no gate.
Node scores are lifted to edges by InterpBench's rule, which removes every edge that touches a
masked node, where a head counts as masked once its q, k and v all are: an edge scores the smaller
of its ends, a head as a writer scoring the largest of its q, k and v. (The published code looks for
the input of a masked MLP under a name that newer graphs do not have, and so leaves the edges into
it in place; we follow the rule.) `input->logits`, with no gate at either end, scores as much as the
best gate.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.methods.hard_concrete import Locations, Training, fit, probability_open
from graphcircuits.methods.prepare import Progress, prepare, settled
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

START = 1.0
"""Where gates start: open with a probability of 0.93."""


def sp_edge(
    subject: Transformer,
    pairs: Pairs,
    *,
    sparsity: float = 10.0,
    steps: int = 200,
    learning_rate: float = 0.1,
    prompts: int = 32,
    samples: int = 2,
    memory_limit: int | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, " edge"]:
    """Locations of edge gates.

    `sparsity` weighs the share of open gates against the loss; each of `steps` draws `prompts`
    prompts and `samples` samples of all gates. Without a generator the seed is 0.
    Memory stays below `memory_limit` bytes where one sample on the prompts of a step allows it.
    """
    training = Training(
        steps=steps,
        learning_rate=learning_rate,
        prompts=prompts,
        samples=samples,
        generator=generator,
        progress=progress,
        memory_limit=memory_limit,
    )
    subject = settled(subject)
    pairs = prepare(subject, pairs, memory_limit)
    start = torch.full((subject.graph.n_edges,), START)

    def share_open(locations: Locations, _: int) -> Float[Tensor, ""]:
        return sparsity * probability_open(locations).mean()

    return fit(subject, pairs, start, lambda gates: gates, share_open, training)


def sp_node(
    subject: Transformer,
    pairs: Pairs,
    *,
    sparsity: float = 0.3,
    steps: int = 200,
    learning_rate: float = 0.1,
    prompts: int = 32,
    samples: int = 2,
    memory_limit: int | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, " edge"]:
    """Locations of reader gates, lifted to edges; options as in `sp_edge`."""
    training = Training(
        steps=steps,
        learning_rate=learning_rate,
        prompts=prompts,
        samples=samples,
        generator=generator,
        progress=progress,
        memory_limit=memory_limit,
    )
    subject = settled(subject)
    pairs = prepare(subject, pairs, memory_limit)
    start = torch.full((subject.graph.n_readers - 1,), START)
    readers = subject.graph.edge_readers.to(subject.device)

    def to_masks(gates: Float[Tensor, "sample gate"]) -> Float[Tensor, "sample edge"]:
        logits = torch.ones_like(gates[:, :1])
        return torch.cat([gates, logits], dim=1)[:, readers]

    def share_open(locations: Locations, _: int) -> Float[Tensor, ""]:
        return sparsity * probability_open(locations).mean()

    return lifted(subject.graph, fit(subject, pairs, start, to_masks, share_open, training))


def lifted(graph: ComponentGraph, readers: Float[Tensor, " gate"]) -> Float[Tensor, " edge"]:
    """Edge scores from those of all readers but `logits`: the smaller of an edge's two ends."""
    best = readers.max()
    writers = torch.full((graph.n_writers,), -torch.inf, dtype=readers.dtype)
    writers[0] = best
    for reader, score in enumerate(readers.tolist()):
        served = graph.components_of(reader)
        writers[served.start : served.stop] = writers[served.start : served.stop].clamp(min=score)
    all_readers = torch.cat([readers, best[None]]).cpu()
    ends = torch.minimum(writers[graph.edge_writers], all_readers[graph.edge_readers])
    return ends.to(readers.device)
