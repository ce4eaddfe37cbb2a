"""Is all of the circuit needed, and is it all there is? Edges are cut and the loss is measured.

necessary  the circuit's edges alone are cut from the whole subject: what is left?
minimal    each edge of the circuit is cut from it alone: what does that cost?
complete   a part is cut from the circuit, and the same edges from the whole subject: where the
           circuit suffers much more, the subject has another way, which the circuit leaves out
           (Wang et al. 2022). Components that take over are named: of those whose edges seem to
           matter more once the part is gone, the ones that do when they are cut as well.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.certificates.certificate import Line
from graphcircuits.certificates.judging import Judge, between, draws, mean_interval, share_interval
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.pruning import Estimate

MOST_EDGES, MOST_ON_LARGE = 400, 150
"""Edges of a circuit that are cut one by one; of more, so many are drawn; on large graphs fewer."""
IDLE = 0.1
"""The share of an even part of the circuit's work below which an edge does nothing measurable."""
LEAST_COST = 1e-5
"""What cutting an edge has to cost at least, however large the circuit."""
PARTS, RANDOM_PARTS = 12, 6
"""Parts that are cut to see whether another way is left: components, and random halves."""
TAKEN_OVER = 0.02
"""How much more a component has to matter once the part is gone, to be called its backup."""
CANDIDATES = 8
"""Components that are looked at as backups."""


def necessary(judge: Judge, circuit: Circuit, most: float) -> Line:
    """What is left when the circuit's edges alone are cut."""
    shares = judge.shares([without(circuit)])[0]
    left, interval = float(shares.mean()), mean_interval(shares)
    return Line(
        name="necessary",
        passed=left <= most,
        value=left,
        interval=interval,
        asked=f"at most {most:g}",
        sentence=f"all edges but the circuit's keep {left:.2f} of the output",
    )


def without(circuit: Circuit) -> Circuit:
    """All edges but these."""
    return Circuit.from_mask(circuit.graph, ~circuit.mask)


@dataclass(frozen=True, eq=False)
class EdgeCosts:
    """What cutting single edges of a circuit costs."""

    edges: list[int]
    """Those that were cut, of the circuit's."""
    by_prompt: Float[Tensor, "edge prompt"]
    """How much less is kept without each."""


def edge_costs(judge: Judge, circuit: Circuit, most: int, generator: torch.Generator) -> EdgeCosts:
    """Of all edges, or of so many drawn at random."""
    edges = torch.tensor(circuit.edge_numbers)
    if len(edges) > most:
        edges = edges[torch.randperm(len(edges), generator=generator)[:most]].sort().values
    masks = circuit.mask.repeat(len(edges), 1)
    masks[torch.arange(len(edges)), edges] = False
    smaller = [Circuit.from_mask(circuit.graph, mask).pruned() for mask in masks]
    whole = judge.shares([circuit])[0]
    return EdgeCosts(edges.tolist(), whole - judge.shares(smaller))


def minimal(circuit: Circuit, costs: EdgeCosts, least: float) -> Line:
    """The share of edges whose own removal costs something measurable."""
    even = 1 / max(1, len(circuit))
    floor = max(LEAST_COST, IDLE * min(even, 0.1))
    needed = costs.by_prompt.mean(1) > floor
    share = float(needed.double().mean())
    n, drawn = len(costs.edges), len(costs.edges) < len(circuit)
    if drawn:
        interval = share_interval(int(needed.sum()), n)
    elif costs.by_prompt.shape[1] < 4:
        interval = None
    else:
        again = draws(costs.by_prompt.shape[1], 400)
        means = torch.stack([costs.by_prompt[:, rows].mean(1) for rows in again])
        interval = between((means > floor).double().mean(1))
    idle = [edge for edge, one in zip(costs.edges, needed.tolist(), strict=True) if not one]
    of = f"of {n:,} edges drawn from {len(circuit):,}" if drawn else f"of {n:,} edges"
    return Line(
        name="minimal",
        passed=share >= least,
        value=share,
        interval=interval,
        asked=f"at least {least:g}",
        sentence=f"{of}, {len(idle):,} can be cut alone at a cost of at most {floor:.2g}",
        details={
            "measurable_from": floor,
            "idle": circuit.graph.names_of(torch.tensor(idle, dtype=torch.int64)),
            "costs": {
                circuit.graph.edge_name(edge): float(cost)
                for edge, cost in zip(costs.edges, costs.by_prompt.mean(1), strict=True)
            },
        },
    )


# Another way


@dataclass(frozen=True, eq=False)
class Part:
    """Edges of a circuit that are cut together."""

    name: str
    edges: Bool[Tensor, " edge"]


def parts_of(circuit: Circuit, generator: torch.Generator) -> list[Part]:
    """What each component writes in the circuit, of those with most edges, and random halves."""
    graph, mask = circuit.graph, circuit.mask
    writers, counts = graph.edge_writers[mask].unique(return_counts=True)
    writers = writers[counts.argsort(descending=True, stable=True)].tolist()
    by_component = [
        Part(graph.writer_names[writer], mask & (graph.edge_writers == writer))
        for writer in writers
        if writer != 0  # without the input nothing is left in either
    ]
    halves = [
        Part(f"half {n + 1}", mask & (torch.rand(len(mask), generator=generator) < 0.5))
        for n in range(RANDOM_PARTS)
    ]
    return [*by_component[:PARTS], *(half for half in halves if bool(half.edges.any()))]


def complete(judge: Judge, circuit: Circuit, most: float, generator: torch.Generator) -> Line:
    """How much better the subject gets along without a part of the circuit than the circuit."""
    parts = parts_of(circuit, generator)
    if not parts:
        raise ValueError("a circuit of the input alone has no part to cut")
    graph = circuit.graph
    inside = [Circuit.from_mask(graph, circuit.mask & ~part.edges).pruned() for part in parts]
    outside = [Circuit.from_mask(graph, ~part.edges) for part in parts]
    # Below 0 a run is further from the output than with every edge cut: nothing is left there.
    within, around = (judge.shares(some) for some in (inside, outside))
    apart = around.mean(1).clamp(min=0) - within.mean(1).clamp(min=0)
    largest = int(apart.abs().argmax())
    value = float(apart[largest].abs())
    part, sign = parts[largest], -1 if apart[largest] < 0 else 1
    backups = _backups(judge, part, circuit) if sign > 0 and value > TAKEN_OVER else {}
    kept = f"{within[largest].mean():.2f} is left in the circuit and {around[largest].mean():.2f}"
    told = f"without {part.name}, {kept} in the whole subject"
    if backups:
        told += f"; {', '.join(backups)} take over" if len(backups) > 1 else ""
        told += f"; {next(iter(backups))} takes over" if len(backups) == 1 else ""
    return Line(
        name="complete",
        passed=value <= most,
        value=value,
        interval=mean_interval(sign * (around[largest] - within[largest])),
        asked=f"at most {most:g}",
        sentence=told,
        details={
            "part": part.name,
            "edges": graph.names_of(part.edges.nonzero().flatten()),
            "backups": backups,
            "by_part": {
                one.name: {"circuit": float(a), "subject": float(b)}
                for one, a, b in zip(parts, within.mean(1), around.mean(1), strict=True)
            },
        },
    )


def _backups(judge: Judge, part: Part, circuit: Circuit) -> dict[str, float]:
    """Components that matter more once a part is cut, with how much more, the most first."""
    graph = circuit.graph
    whole, broken = (
        Circuit.from_mask(graph, mask) for mask in (torch.ones_like(part.edges), ~part.edges)
    )
    estimate = Estimate(judge.runs)
    judge.clock.check()
    rise = (estimate(broken) - estimate(whole)) * ~circuit.mask
    by_writer = torch.zeros(graph.n_writers, dtype=rise.dtype)
    by_writer.index_add_(0, graph.edge_writers, rise)
    by_writer[0] = -torch.inf
    by_writer[graph.edge_writers[part.edges].unique()] = -torch.inf
    candidates = by_writer.topk(min(CANDIDATES, graph.n_writers)).indices.tolist()
    names, cut = [], []
    for writer in candidates:
        if by_writer[writer] <= 0:
            continue
        own = (graph.edge_writers == writer) & ~circuit.mask
        names.append(graph.writer_names[writer])
        cut += [Circuit.from_mask(graph, ~own), Circuit.from_mask(graph, ~(own | part.edges))]
    kept, without_part, *rest = judge.shares([whole, broken, *cut]).mean(1).tolist()
    more = {
        name: (without_part - both) - (kept - alone)
        for name, alone, both in zip(names, rest[::2], rest[1::2], strict=True)
    }
    ranked = sorted(more.items(), key=lambda item: -item[1])
    return {name: value for name, value in ranked if value >= TAKEN_OVER}
