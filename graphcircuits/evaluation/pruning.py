"""A circuit without the edges that it does not need to keep enough of the behaviour.

1. Edges on no path from input to logits change nothing and go first.
2. One masked run with gradients estimates, to first order, what cutting each edge costs. Of the
   cheapest edges as many go, together, as measured runs allow: their number is found by halving.
   That is repeated until few go. It takes some seven runs a round, whatever the graph.
3. In a small circuit (SMALL, WORK) each edge is then cut alone, and what that costs is measured.
   The cheapest go in the same way, until every edge that is left is needed.

The estimate only orders the edges: what goes is decided by running the circuit without it.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.engine.memory import Footprint, at_once, explained
from graphcircuits.evaluation.evaluate import CircuitRuns
from graphcircuits.methods.prepare import MaskedLosses, for_scoring, from_clean_run

ESTIMATES, MEASUREMENTS = 8, 32
"""Rounds at most: of estimated costs, and of costs that are measured edge by edge."""
SMALL, WORK = 200, 2_000_000
"""Edges up to which every edge of a circuit is cut alone, and at most how many times those of the
graph they are: on large graphs the runs would take longer than all else."""
STEP, FEW = 0.01, 0.05
"""Shares of a circuit's edges: to which the number that goes is found, and up to which a round of
estimates is the last."""
BETWEEN = 0.75
"""How far edges are open where gradients are taken. A circuit that keeps most of the behaviour is
close to the least loss, where gradients say little of what a cut does."""
NEEDED = "each of its edges is needed: cut alone, any of them leaves less than asked for"
NONE_LEFT = "of the edges that seem to matter least, no more can go"
STOPPED = "more edges might go: pruning ended after its last round"


def pruned(
    runs: CircuitRuns, circuit: Circuit, least: float, fixed: Circuit | None = None
) -> tuple[Circuit, str]:
    """The circuit without edges that it can do without as long as it keeps `least`; why it ended.

    Edges that are `fixed` stay, unless they lie on no path from input to logits.
    """
    circuit, loose = circuit.pruned(), ~torch.zeros_like(circuit.mask)
    if fixed is not None:
        loose = ~fixed.mask
    why = STOPPED
    estimate = Estimate(runs)
    for _ in range(ESTIMATES):
        before = len(circuit)
        circuit = _without_cheapest(runs, circuit, estimate(circuit), loose, least)
        if before - len(circuit) <= FEW * before:
            why = NONE_LEFT
            break
    if len(circuit) > min(SMALL, WORK // len(loose)):
        return circuit, why
    asked = loose
    for _ in range(MEASUREMENTS):
        left = _left(runs, circuit, circuit.mask & asked)
        can_go = left >= least
        if bool(can_go.any()):
            circuit = _without_cheapest(runs, circuit, -left, can_go, least)
            asked = can_go & circuit.mask
        elif asked is loose:
            return circuit, NEEDED
        # What could not go seldom can when less is left: it is asked again once nothing else goes.
        if not bool((can_go & circuit.mask).any()):
            asked = loose
    return circuit, STOPPED


def _without_cheapest(
    runs: CircuitRuns,
    circuit: Circuit,
    costs: Float[Tensor, " edge"],
    loose: Bool[Tensor, " edge"],
    least: float,
) -> Circuit:
    """Without as many of the loose edges that cost least as leave it at `least`.

    What is kept need not fall with every edge. The circuit that is returned keeps enough, and with
    one edge fewer, or STEP of them, it does not.
    """
    edges = (circuit.mask & loose).nonzero().flatten()
    edges = edges[costs[edges].argsort(stable=True)]
    few, many, smaller = 0, len(edges) + 1, circuit
    while many - few > max(1.0, STEP * len(edges)):
        count = (few + many) // 2
        mask = circuit.mask.clone()
        mask[edges[:count]] = False
        tried = Circuit.from_mask(circuit.graph, mask).pruned()
        if runs([tried])[0] >= least:
            few, smaller = count, tried
        else:
            many = count
    return smaller


def _left(
    runs: CircuitRuns, circuit: Circuit, asked: Bool[Tensor, " edge"]
) -> Float[Tensor, " edge"]:
    """What the circuit keeps without each of these edges alone; minus infinity for other edges."""
    edges = asked.nonzero().flatten()
    masks = circuit.mask.repeat(len(edges), 1)
    masks[torch.arange(len(edges)), edges] = False
    kept = runs([Circuit.from_mask(circuit.graph, mask).pruned() for mask in masks])
    left = torch.full(circuit.mask.shape, -torch.inf, dtype=torch.float64)
    left[edges] = torch.tensor(kept, dtype=torch.float64)
    return left


class Estimate:
    """What cutting each edge adds to the loss of a circuit, to first order."""

    def __init__(self, runs: CircuitRuns) -> None:
        self.subject = for_scoring(runs.subject, widen=False)
        self.pairs = from_clean_run(self.subject, runs.pairs, runs.memory_limit)
        self.losses = MaskedLosses(self.subject, self.pairs, runs.memory_limit)
        self.numbers = Footprint(self.subject, self.pairs.clean.shape[1]).masked(grad=True)
        self.prompts = at_once(self.subject, self.numbers, runs.memory_limit)

    def __call__(self, circuit: Circuit) -> Float[Tensor, " edge"]:
        mask = circuit.mask.to(self.subject.device, self.subject.dtype)
        gates = (BETWEEN * mask).requires_grad_()
        total = torch.zeros(len(gates), dtype=torch.float64)
        rows = torch.arange(len(self.pairs), device=self.subject.device)
        with explained(self.subject, "prompts of a masked run", self.prompts, self.numbers):
            for some in rows.split(self.prompts):
                (gradient,) = torch.autograd.grad(self.losses(gates[None], some).sum(), gates)
                total -= gradient.double().cpu()
        return total
