"""Scaled values of edges: shares, largest values and ranks."""

import pytest
import torch

from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor.measure.scaling import (
    NEGLIGIBLE,
    SCALINGS,
    log_rank,
    scaled,
)
from tests.predictor.graphs import seeded

GRAPHS = (
    ComponentGraph(3, 2),
    ComponentGraph(2, 4, n_kv_heads=2),
    ComponentGraph(2, 3, parallel=True),
)


@pytest.mark.parametrize("graph", GRAPHS)
def test_shares_and_largest_by_the_ends_of_each_edge(graph: ComponentGraph) -> None:
    values = torch.rand(2, graph.n_edges, generator=seeded(0), dtype=torch.float64) + 0.1
    columns: dict[str, torch.Tensor] = dict(
        zip(SCALINGS, scaled(values, graph).unbind(2), strict=True)
    )
    for side, ends in (("reader", graph.edge_readers), ("writer", graph.edge_writers)):
        for edge in range(graph.n_edges):
            here = values[:, ends == ends[edge]]
            share, largest = columns[f"{side}_share"][edge], columns[f"{side}_top"][edge]
            torch.testing.assert_close(share, values[:, edge] / here.sum(1))
            torch.testing.assert_close(largest, (values[:, edge] / here.amax(1)).log())
    torch.testing.assert_close(columns["case"], (values / values.amax(1, keepdim=True)).log().T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranks_count_larger_values_and_half_of_the_ties(dtype: torch.dtype) -> None:
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
    torch.testing.assert_close(log_rank(values), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(log_rank(values[:, ::2]), log_rank(values[:, ::2].clone()))


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
    one, other = (scaled(x, g).permute(1, 2, 0) for x, g in ((values, graph), (padded, larger)))
    for number, name in enumerate(SCALINGS):
        found, expected = other[:, number, old], one[:, number]
        if name.endswith("_share"):
            torch.testing.assert_close(found, expected)
        else:
            assert torch.equal(found, expected), name
        # And all that was added is alike.
        added = other[:, number].index_fill(1, old, torch.nan)
        assert all(row[row.isfinite()].unique().numel() == 1 for row in added)
