"""What the component graph of a large model costs, and the circuits on it.

1. The endpoints of every edge of 32 layers of 32 heads, 1.6 million edges.
2. The best half of the edges as a circuit, and that circuit pruned, on one thread.
"""

from collections.abc import Iterator

import torch

from graphcircuits import Circuit, ComponentGraph, Result
from lab.benchmarks import Measurement, best_of


def measure() -> Iterator[Measurement]:
    yield from endpoints()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from circuits(ComponentGraph(24, 16), limit=0.15)
        yield from circuits(ComponentGraph(32, 32), limit=1.0)
    finally:
        torch.set_num_threads(threads)


def endpoints() -> Iterator[Measurement]:
    def build() -> ComponentGraph:
        graph = ComponentGraph(32, 32)
        assert len(graph.edge_writers) == len(graph.edge_readers) == graph.n_edges
        return graph

    yield Measurement("endpoints of every edge, 32x32 heads", best_of(build), "s", limit=1.0)
    graph = build()
    held = graph.edge_writers.nbytes + graph.edge_readers.nbytes
    yield Measurement("memory they hold", held / 2**20, "MiB")


def circuits(graph: ComponentGraph, limit: float) -> Iterator[Measurement]:
    scores = torch.rand(graph.n_edges, generator=torch.Generator().manual_seed(0))
    result = Result(graph=graph, scores=scores)

    def pruned() -> Circuit:
        return result.circuit(fraction=0.5).pruned()

    where = f"{graph.n_edges:,} edges"
    yield Measurement(f"best half, pruned, {where}", best_of(pruned), "s", limit=limit)
    half, kept = result.circuit(fraction=0.5), pruned()
    algebra = best_of(lambda: {half, kept, half & kept, half - kept})
    yield Measurement(f"intersection, difference and a set of four, {where}", algebra, "s")
    yield Measurement(f"names of the pruned half, {where}", best_of(lambda: list(kept), 2), "s")
