"""Would any circuit do? Random ones of the same size, and of the same degrees.

connected  random paths from input to logits until there are as many edges
degrees    the circuit's own edges, with the readers of two of them exchanged again and again: every
           writer keeps its number of edges, and so does every reader
"""

import torch
from jaxtyping import Bool
from torch import Tensor

from graphcircuits.certificates.certificate import Line
from graphcircuits.certificates.judging import Judge, share_interval
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph

RANDOM = 40
"""Random circuits of each kind: none of them as good is a chance below one in twenty."""
TRIES = 200
"""Paths in a row that do not fit before a circuit is left smaller."""
SWAPS = 10
"""Exchanges tried for each edge."""


def by_chance(
    judge: Judge, circuit: Circuit, most: float, generator: torch.Generator, n: int = RANDOM
) -> Line:
    """The share of random circuits that keep as much: of the kind that does better."""
    kinds = {
        "connected": [random_connected(circuit.graph, len(circuit), generator) for _ in range(n)],
        "same degrees": [rewired(circuit, generator) for _ in range(n)],
    }
    # Where the degrees allow nothing else, the exchanged circuit is the circuit itself.
    kinds = {
        name: others
        for name, some in kinds.items()
        if (others := [one for one in some if one != circuit])
    }
    ours = judge.kept(circuit)
    details, worst = {}, (0, 1)
    for name, some in kinds.items():
        kept = judge.shares(some).mean(1)
        as_good = int((kept >= ours).sum())
        details[name] = {
            "circuits": len(some),
            "edges": sum(map(len, some)) / len(some),
            "as_good": as_good,
            "mean": float(kept.mean()),
            "best": float(kept.max()),
        }
        if not worst[0] or as_good * worst[1] > worst[0] * len(some):
            worst = as_good, len(some)
    if not details:
        raise ValueError("there is no other circuit of this size or these degrees")
    value, best = worst[0] / worst[1], max(one["best"] for one in details.values())
    return Line(
        name="not by chance",
        passed=value <= most,
        value=value,
        interval=share_interval(*worst),
        asked=f"at most {most:g}",
        sentence=f"{worst[0]} of {worst[1]} random circuits keep as much; the best {best:.2f}",
        details=details,
    )


def random_connected(graph: ComponentGraph, size: int, generator: torch.Generator) -> Circuit:
    """Random paths from input to logits, together of so many edges or, where that does not come
    out, a few less."""
    mask, left, failed = torch.zeros(graph.n_edges, dtype=torch.bool), size, 0
    while left > 0 and failed < TRIES:
        path = torch.tensor(_random_path(graph, generator))
        new = path[~mask[path]]
        if not 0 < len(new) <= left:
            failed += 1
            continue
        mask[new], left, failed = True, left - len(new), 0
    return Circuit.from_mask(graph, mask)


def _random_path(graph: ComponentGraph, generator: torch.Generator) -> list[int]:
    """Its edges from logits back to the input, every step to a writer drawn from all that can be
    read."""

    def drawn(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    readers = _readers_of_components(graph)
    reader, path = graph.n_readers - 1, []
    while True:
        writer = drawn(int(graph.reads[reader]))
        path.append(int(graph.offsets[reader]) + writer)
        if writer == 0:
            return path
        slots = readers[writer]
        reader = slots[drawn(len(slots))]


def _readers_of_components(graph: ComponentGraph) -> list[list[int]]:
    """The readers that each writer computes from; none for the input."""
    found: list[list[int]] = [[] for _ in range(graph.n_writers)]
    for reader in range(graph.n_readers - 1):
        for writer in graph.components_of(reader):
            found[writer].append(reader)
    return found


def rewired(circuit: Circuit, generator: torch.Generator) -> Circuit:
    """The circuit with readers of its edges exchanged at random, where both new edges exist."""
    graph, mask = circuit.graph, circuit.mask.clone()
    writers, readers = (ends.tolist() for ends in graph.ends(mask.nonzero().flatten()))
    n, reads, offsets = len(writers), graph.reads.tolist(), graph.offsets.tolist()
    if n < 2:
        return circuit
    chosen: Bool[Tensor, " edge"] = mask
    for one, other in torch.randint(n, (SWAPS * n, 2), generator=generator).tolist():
        a, b = writers[one], writers[other]
        r, s = readers[one], readers[other]
        if a >= reads[s] or b >= reads[r]:
            continue
        old, new = (offsets[r] + a, offsets[s] + b), (offsets[s] + a, offsets[r] + b)
        if chosen[new[0]] or chosen[new[1]]:
            continue
        chosen[list(old)], chosen[list(new)] = False, True
        readers[one], readers[other] = s, r
    return Circuit.from_mask(graph, chosen)
