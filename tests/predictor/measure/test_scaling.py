"""Ranges of edges, and scaled values of any of them."""

import pytest
import torch

from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor.measure.scaling import (
    NEGLIGIBLE,
    SCALINGS,
    Scales,
    place,
    rectangles,
    whole,
)
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
def test_places_count_larger_values_and_half_of_the_ties(dtype: torch.dtype) -> None:
    """In single precision bits are sorted, in other precisions numbers. Zeros are one place."""
    values = torch.randint(6, (4, 50), generator=seeded(0)).to(dtype)
    values[1] = torch.rand(50, generator=seeded(1)).pow(20)
    values[2] = 0
    limits = torch.finfo(dtype)
    values[3, :2] = torch.tensor([limits.tiny / 2, limits.max], dtype=dtype)
    larger = (values[:, None] > values[:, :, None]).sum(2)
    others = (values[:, None] == values[:, :, None]).sum(2) - 1
    expected = (1 + larger + (0.5 * others).where(values > 0, 0)).log().to(dtype)
    # Logarithms are those of single precision.
    torch.testing.assert_close(place(values), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(place(values[:, ::2]), place(values[:, ::2].clone()))


SMALL_AND_LARGE = (
    (ComponentGraph(2, 2), ComponentGraph(2, 5)),
    (ComponentGraph(1, 2), ComponentGraph(3, 2)),
    (ComponentGraph(2, 4, n_kv_heads=2), ComponentGraph(3, 6, n_kv_heads=3)),
    (ComponentGraph(2, 2, parallel=True), ComponentGraph(2, 3, parallel=True)),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("graph", "larger"), SMALL_AND_LARGE)
def test_edges_that_do_nothing_change_no_column_of_the_others(
    graph: ComponentGraph, larger: ComponentGraph, dtype: torch.dtype
) -> None:
    """Sums are taken in another order, so shares are those up to rounding; all else is equal."""
    old = larger.edge_indices(graph.edge_names)
    values = torch.rand(3, graph.n_edges, generator=seeded(0), dtype=dtype).pow(3)
    values[1, ::2] = 0
    # What is negligible counts as nothing, in the larger graph as in the smaller one.
    padded = torch.full((3, larger.n_edges), 0.5 * NEGLIGIBLE * float(values.max(1)[0].min()))
    padded = padded.to(dtype)
    padded[:, old] = values
    one, other = (
        Scales.of(x, g).columns(whole(g, CPU)) for x, g in ((values, graph), (padded, larger))
    )
    for number, name in enumerate(SCALINGS):
        found, expected = other[:, number, old], one[:, number]
        if name.endswith("_share"):
            torch.testing.assert_close(found, expected)
        else:
            assert torch.equal(found, expected), name
        # And all that was added is alike.
        added = other[:, number].index_fill(1, old, torch.nan)
        assert all(row[row.isfinite()].unique().numel() == 1 for row in added)
