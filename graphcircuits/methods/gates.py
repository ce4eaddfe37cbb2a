"""Methods that train one gate for each edge or reader: `sp_edge`, `sp_node`, `edge_pruning`, `ugs`.

They look for a circuit by gradient steps on the masks themselves, where attribution looks at one
gradient and a search at one edge at a time. All four are one loop, `Descent`:

1. A gate has one parameter, its location. Each step draws prompts and values of all gates
   (`engine.relaxed`), and runs the subject with them as edge masks: what a gate does not let
   through is replaced by the corrupted value.
2. Adam minimizes the distance from the subject's own output + a penalty on open gates.
3. A gate's score is its location: larger means more likely open. The ranking is good near the size
   that the penalty leads to: by default near the one that usually keeps .9 of the output.

Subnetwork probing (Cao et al. 2021, arXiv 2104.03514): hard-concrete gates, sparsity * (share of
gates expected open). A node of `sp_node` is a reader: q, k and v of each head, and each MLP.
Closing it cuts all its incoming edges, and so gives it the value of the corrupted run; `input` and
`logits` have no gate. Node scores are lifted to edges by InterpBench's rule, which removes every
edge that touches a masked node, where a head counts as masked once its q, k and v all are. (The
published code looks for the input of a masked MLP under a name that newer graphs do not have, and
so leaves the edges into it in place; we follow the rule.)

Edge pruning (Bhaskar et al. 2024, arXiv 2406.16778): hard-concrete gates whose expected share of
closed ones is driven to a goal that rises from 0 over the first part of training: a * gap + b *
gap^2 is minimized over the gates and maximized over the multipliers a and b (a Lagrangian), the gap
being goal minus share. The published method also gates nodes, to save memory in large models.

Uniform gradient sampling (Li and Janson 2024, arXiv 2407.03779): an edge is kept with a probability
p, the sigmoid of its location, and its gate is drawn by `relaxed.window`. Keeping an edge changes
the expected loss by the mean slope of the loss over gates from 0 to 1, the others being drawn, so
the slope at a gate that fell into its window estimates the gradient; without bias where the loss is
linear in each gate. Departures from the paper: ablation is by corrupted activations alone; all
masks of a step are judged on all its prompts; slopes are divided by the chance of the window and
not by how many samples fell into it; components have no penalty of their own, and edges on no path
are not cut before a run.

The tests check the draws against counted probabilities, the gradient of `ugs` against the sum over
all masks, the lifting against its definition, and that the sparsity asked for is reached.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.engine.memory import Footprint, explained
from graphcircuits.engine.relaxed import hard_concrete, probability_open, window
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods.prepare import (
    MaskedLosses,
    Progress,
    Stop,
    check_positive,
    for_scoring,
    prepare,
    to_clean_output,
)
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

START = 1.0
"""Where gates start: a hard-concrete one is open with a probability of 0.93, one of `ugs` 0.73."""
OPEN = 3.0
"""Where those of `edge_pruning` start: almost surely open, so that training leaves from the whole
subject."""

Locations = Float[Tensor, " gate"]
Draw = Callable[[Locations, int, torch.Generator], Float[Tensor, "mask gate"]]
Penalty = Callable[[Locations, int], Float[Tensor, ""]]
"""Added to the loss, given the locations and the step."""


def sp_edge(
    subject: Transformer,
    pairs: Pairs,
    *,
    sparsity: float | None = None,
    steps: int = 200,
    learning_rate: float = 0.1,
    prompts: int = 32,
    samples: int = 2,
    memory_limit: int | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, " edge"]:
    """Locations of edge gates by subnetwork probing.

    `sparsity` weighs the share of open gates against the loss, as `usual_weight` does without one;
    each of `steps` draws `prompts` prompts and `samples` samples of all gates. Without a generator
    the seed is 0.
    Memory stays below `memory_limit` bytes where one sample on the prompts of a step allows it.
    """
    descent = Descent(steps, learning_rate, prompts, generator, progress)
    weight = usual_weight(subject.graph.n_edges) if sparsity is None else sparsity
    return fit(subject, pairs, descent, samples, memory_limit, _share_open(weight))


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
    readers = subject.graph.edge_readers.to(subject.device)

    def to_masks(gates: Float[Tensor, "mask gate"]) -> Float[Tensor, "mask edge"]:
        logits = torch.ones_like(gates[:, :1])
        return torch.cat([gates, logits], dim=1)[:, readers]

    descent = Descent(steps, learning_rate, prompts, generator, progress)
    penalty, n_gates = _share_open(sparsity), subject.graph.n_readers - 1
    locations = fit(
        subject, pairs, descent, samples, memory_limit, penalty, n_gates=n_gates, to_masks=to_masks
    )
    return lifted(subject.graph, locations)


def edge_pruning(
    subject: Transformer,
    pairs: Pairs,
    *,
    sparsity: float | None = None,
    warmup: float = 0.7,
    steps: int = 300,
    learning_rate: float = 0.1,
    multiplier_rate: float = 1.0,
    prompts: int = 32,
    samples: int = 2,
    memory_limit: int | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, " edge"]:
    """Locations of edge gates by edge pruning.

    `sparsity` is the share of edges to close, aimed at after a share `warmup` of the steps; without
    one it leaves as many open as `usual_size` says, since a ranking is good near the size that it
    was trained at and the usual question is for .9 of the output;
    `multiplier_rate` is the step size of the multipliers' ascent: 1 meets the goal closely in a
    few hundred steps, .1 may leave twice as many open. Other options as in `sp_edge`.
    """
    if sparsity is None:
        sparsity = 1 - usual_size(subject.graph.n_edges) / subject.graph.n_edges
    problems = [
        f"{name} must be in 0..1, got {value}"
        for name, value in (("sparsity", sparsity), ("warmup", warmup))
        if not 0 <= value <= 1
    ]
    if problems:
        raise ValueError("; ".join(problems) + ".")
    multipliers = torch.zeros(2, device=subject.device)

    def lagrangian(locations: Locations, step: int) -> Float[Tensor, ""]:
        goal = sparsity * min(1.0, (step + 1) / max(1.0, warmup * steps))
        gap = goal - (1 - probability_open(locations).mean())
        powers = torch.stack([gap, gap.square()])
        term = multipliers.to(gap, copy=True) @ powers
        # Ascent: each multiplier grows by its own gradient. Nothing waits for the device.
        multipliers.add_(powers.detach().float(), alpha=multiplier_rate)
        return term

    descent = Descent(steps, learning_rate, prompts, generator, progress)
    return fit(subject, pairs, descent, samples, memory_limit, lagrangian, start=OPEN)


def ugs(
    subject: Transformer,
    pairs: Pairs,
    *,
    sparsity: float | None = None,
    steps: int = 200,
    learning_rate: float = 0.1,
    prompts: int = 4,
    samples: int = 16,
    memory_limit: int | None = None,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Float[Tensor, " edge"]:
    """Locations of the edges' probabilities by uniform gradient sampling.

    `sparsity` weighs the mean probability of an edge against the loss, as `usual_weight` does
    without one; other options as in `sp_edge`.
    """
    descent = Descent(steps, learning_rate, prompts, generator, progress)
    weight = usual_weight(subject.graph.n_edges) if sparsity is None else sparsity
    penalty = _share_open(weight, torch.sigmoid)
    return fit(subject, pairs, descent, samples, memory_limit, penalty, draw=window)


def lifted(graph: ComponentGraph, readers: Float[Tensor, " gate"]) -> Float[Tensor, " edge"]:
    """Edge scores from those of all readers but `logits`: the smaller of an edge's two ends.

    A head as a writer scores the largest of its q, k and v; `input->logits`, with no gate at either
    end, as much as the best gate.
    """
    best = readers.max()
    writers = torch.full((graph.n_writers,), -torch.inf, dtype=readers.dtype)
    writers[0] = best
    for reader, score in enumerate(readers.tolist()):
        served = graph.components_of(reader)
        writers[served.start : served.stop] = writers[served.start : served.stop].clamp(min=score)
    all_readers = torch.cat([readers, best[None]]).cpu()
    ends = torch.minimum(writers[graph.edge_writers], all_readers[graph.edge_readers])
    return ends.to(readers.device)


def usual_size(n_edges: int) -> float:
    """About how many edges keep .9 of the output: four times the root of all, at most half.

    Rankings by EAP-IG take 72 in the geometric mean over natural subjects of 82 to 761 edges
    (docs/research/own-circuits.md), and 1,008 of the 70,651 of SmolLM2-135M over 11 tasks.
    """
    return min(4 * n_edges**0.5, n_edges / 2)


def usual_weight(n_edges: int) -> float:
    """The weight of the share of open gates at which a gate must be worth one in `usual_size`.

    Where .9 of the output is kept, one more edge brings about that much of a divergence of a few
    nats. One weight for all sizes would ask a thousand times less of an edge in a language model
    than in a small subject.
    """
    return n_edges / usual_size(n_edges)


# Training


@dataclass(frozen=True)
class Descent:
    """How parameters are trained: by Adam, on prompts that are drawn for each step."""

    steps: int
    learning_rate: float
    prompts: int
    """Of a step, at most all; none is drawn again until fewer are left than a step takes."""
    generator: torch.Generator | None = None
    """Without one the seed is 0."""
    progress: Progress | None = None

    @cached_property
    def draws(self) -> torch.Generator:
        """The generator that was given, or one with the seed 0."""
        return self.generator or torch.Generator().manual_seed(0)

    def minimize(
        self,
        parameters: Sequence[Tensor],
        objective: Callable[[Int[Tensor, " prompt"], int], Float[Tensor, ""]],
        n_pairs: int,
    ) -> None:
        """Minimize an objective of drawn prompts and the step, changing the parameters."""
        optimizer = torch.optim.Adam(parameters, lr=self.learning_rate)
        order = torch.empty(0, dtype=torch.int64)
        prompts = min(self.prompts, n_pairs)
        for step in range(self.steps):
            if len(order) < prompts:
                order = torch.randperm(n_pairs, generator=self.draws)
            rows, order = order[:prompts], order[prompts:]
            value = objective(rows, step)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            try:
                if self.progress is not None:
                    self.progress(step + 1, self.steps)
            except Stop:
                return


def _share_open(
    weight: float, chance: Callable[[Locations], Locations] = probability_open
) -> Penalty:
    return lambda locations, _: weight * chance(locations).mean()


def _sample(locations: Locations, n: int, generator: torch.Generator) -> Float[Tensor, "mask gate"]:
    return hard_concrete(locations.expand(n, -1), generator)


def fit(
    subject: Transformer,
    pairs: Pairs,
    descent: Descent,
    samples: int,
    memory_limit: int | None,
    penalty: Penalty | None = None,
    *,
    start: float = START,
    n_gates: int | None = None,
    draw: Draw = _sample,
    to_masks: Callable[[Float[Tensor, "mask gate"]], Float[Tensor, "mask edge"]] = lambda x: x,
) -> Locations:
    """The locations after training to keep the subject's own output, and whatever a penalty asks.

    Gates are the masks of edges unless `to_masks` is given.
    """
    steps, rate, prompts = descent.steps, descent.learning_rate, descent.prompts
    check_positive(steps=steps, learning_rate=rate, prompts=prompts, samples=samples)
    subject = for_scoring(subject)
    pairs = to_clean_output(subject, prepare(subject, pairs, memory_limit), memory_limit)
    pairs = pairs.up_to_last_column() if subject.config.causal else pairs
    losses = MaskedLosses(subject, pairs, memory_limit)
    locations = torch.full((n_gates or subject.graph.n_edges,), start)
    locations = locations.to(subject.weights["W_E"]).requires_grad_()

    def objective(rows: Int[Tensor, " prompt"], step: int) -> Float[Tensor, ""]:
        masks = to_masks(draw(locations, samples, descent.draws))
        loss = losses(masks, rows.to(subject.device)).mean()
        return loss if penalty is None else loss + penalty(locations, step)

    numbers = Footprint(subject, pairs.clean.shape[1]).masked(grad=True)
    with explained(subject, "masks", samples, min(prompts, len(pairs)) * numbers):
        descent.minimize([locations], objective, len(pairs))
    return locations.detach()
