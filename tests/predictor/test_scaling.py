"""Ranges of edges, and scaled values of any of them."""

import pytest
import torch

from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor.scaling import Scales, rank, rectangles, whole
from tests.predictor.graphs import seeded

GRAPHS = (
    ComponentGraph(3, 2),
    ComponentGraph(2, 4, n_kv_heads=2),
    ComponentGraph(2, 3, parallel=True),
)
CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [None, 1, 7])
@pytest.mark.parametrize("graph", GRAPHS)
def test_rectangles_hold_every_edge_once(graph: ComponentGraph, size: int | None) -> None:
    edges = torch.arange(graph.n_edges)[None].float()
    spans = list(rectangles(graph, size))
    found = [span.of(edges) for span in spans]
    assert torch.equal(torch.cat([x.flatten() for x in found]), edges[0])
    for span, x in zip(spans, found, strict=True):
        assert x.shape == (1, *span.shape)
        for name, ends in (("readers", graph.edge_readers), ("writers", graph.edge_writers)):
            count = graph.n_readers if name == "readers" else graph.n_writers
            numbers = torch.arange(count)[None].float()
            at = span.at_readers(numbers) if name == "readers" else span.at_writers(numbers)
            assert torch.equal(at.expand_as(x).flatten(), ends[span.edges].float())
        assert size is None or span.shape[0] == 1 or x.numel() <= size


@pytest.mark.parametrize("graph", GRAPHS)
def test_columns_of_rectangles_are_those_of_the_whole(graph: ComponentGraph) -> None:
    values = torch.rand(3, graph.n_edges, generator=seeded(0)).pow(8)
    scales = Scales.of(values, graph)
    found = torch.cat([scales.columns(span) for span in rectangles(graph, 9)], dim=2)
    torch.testing.assert_close(found, scales.columns(whole(graph, CPU)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranks_count_smaller_values_and_half_of_the_ties(dtype: torch.dtype) -> None:
    """In single precision bits are sorted, in other precisions numbers."""
    values = torch.randint(6, (4, 50), generator=seeded(0)).to(dtype)
    values[1] = torch.rand(50, generator=seeded(1)).pow(20)
    values[2] = 0
    limits = torch.finfo(dtype)
    values[3, :2] = torch.tensor([limits.tiny / 2, limits.max], dtype=dtype)
    gaps = values[:, :, None] - values[:, None]
    expected = ((gaps > 0).to(dtype) + 0.5 * (gaps == 0)).mean(2)
    torch.testing.assert_close(rank(values), expected)
    torch.testing.assert_close(rank(values[:, ::2]), rank(values[:, ::2].clone()))
