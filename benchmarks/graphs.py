"""What the component graph of a large model costs: 32 layers of 32 heads, 1.6 million edges."""

from collections.abc import Iterator

from benchmarks import Measurement, best_of
from graphcircuits import ComponentGraph


def measure() -> Iterator[Measurement]:
    def build() -> ComponentGraph:
        graph = ComponentGraph(32, 32)
        assert len(graph.edge_sources) == len(graph.edge_dests) == graph.n_edges
        return graph

    yield Measurement("endpoints of every edge, 32x32 heads", best_of(build), "s", limit=1.0)
    graph = build()
    held = graph.edge_sources.nbytes + graph.edge_dests.nbytes
    yield Measurement("memory they hold", held / 2**20, "MiB")
