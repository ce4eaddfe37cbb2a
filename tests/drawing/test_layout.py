"""Layouts of random circuits: no edge runs through a box, edges in a gap are apart, nothing is
outside the picture, and every edge leaves and arrives where it should."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.drawing.layout import (
    LANE,
    Box,
    CircuitLayout,
    Route,
    layout,
    port,
)
from graphcircuits.graph import ComponentGraph
from tests.graphs import graphs


@st.composite
def circuits(draw: st.DrawFn) -> tuple[ComponentGraph, list[int]]:
    graph = draw(graphs())
    count = draw(st.integers(0, min(40, graph.n_edges)))
    order = torch.randperm(graph.n_edges, generator=torch.Generator().manual_seed(draw(SEEDS)))
    return graph, order[:count].tolist()


SEEDS = st.integers(0, 2**32)


def inside(box: Box, x: float, y: float) -> bool:
    return box.x < x < box.x + box.width and box.y < y < box.y + box.height


def crosses(box: Box, route: Route) -> bool:
    """Whether a way, or the curve that is drawn for it, could come into a box.

    Where a way changes sides, the curve stays in the rectangle around both of its ends.
    """
    for (x1, y1), (x2, y2) in pairwise(route.points):
        across = min(x1, x2) < box.x + box.width and max(x1, x2) > box.x
        up = min(y1, y2) < box.y + box.height and max(y1, y2) > box.y
        if across and up:
            return True
    return False


def named(drawn: CircuitLayout) -> dict[str, Box]:
    return {box.name: box for box in drawn.boxes if not box.folded}


@given(circuits())
def test_random_circuits(given: tuple[ComponentGraph, list[int]]) -> None:
    drawn = layout(*given)
    no_edge_runs_through_a_box(drawn)
    edges_run_upwards_from_their_writer_to_their_slot(*given, drawn)
    everything_is_in_the_picture_and_boxes_are_apart(given[0], drawn)
    edges_of_a_gap_are_apart(drawn)


def no_edge_runs_through_a_box(drawn: CircuitLayout) -> None:
    assert [
        (route.edge, box.name)
        for route in drawn.routes
        for box in drawn.boxes
        if crosses(box, route)
    ] == []


def edges_run_upwards_from_their_writer_to_their_slot(
    graph: ComponentGraph, edges: list[int], drawn: CircuitLayout
) -> None:
    boxes = named(drawn)
    expected = set()
    for edge in edges:
        writer, _, reader = graph.edge_name(edge).partition("->")
        end = reader.partition("<")[0]
        expected.add((edge, writer, end, reader[-2] if ">" in reader else ""))
    assert {(r.edge, r.writer, r.reader, r.slot) for r in drawn.routes} == expected
    assert len(drawn.routes) == len(expected)
    for route in drawn.routes:
        (x1, y1), (x2, y2) = route.points[0], route.points[-1]
        writer, reader = boxes[route.writer], boxes[route.reader]
        assert writer.x < x1 < writer.x + writer.width
        assert y1 == writer.y
        assert abs(x2 - port(reader, route.slot)) < reader.width / (2 if not route.slot else 6)
        assert y2 == reader.y + reader.height
        assert all(below > above for (_, below), (_, above) in pairwise(route.points))
        assert route.points[-2][0] == x2


def everything_is_in_the_picture_and_boxes_are_apart(
    graph: ComponentGraph, drawn: CircuitLayout
) -> None:
    for box in drawn.boxes:
        assert 0 < box.x < box.x + box.width < drawn.width
        assert 0 < box.y < box.y + box.height < drawn.height
        others = [other for other in drawn.boxes if other is not box]
        assert not any(inside(other, box.middle, box.y + box.height / 2) for other in others)
    for route in drawn.routes:
        assert all(0 < x < drawn.width and 0 < y < drawn.height for x, y in route.points)
    used = {name for route in drawn.routes for name in (route.writer, route.reader)}
    assert named(drawn).keys() == used | {"input", "logits"}
    order = ["input", *graph.writer_names[1:], "logits"]
    heights = [box.y for name in order if (box := named(drawn).get(name)) is not None]
    assert heights == sorted(heights, reverse=True)
    boxes, expected = named(drawn), set()
    for name in boxes:
        layer, _, head = name.partition(".h")
        group = f"{layer}.g{int(head) * graph.n_groups // graph.n_heads}" if head else ""
        if group in boxes:
            expected.add((boxes[group].middle, boxes[name].middle))
    assert {(x, x2) for (x, _), (x2, _) in drawn.shared} == expected
    assert all(y > y2 for (_, y), (_, y2) in drawn.shared)


def edges_of_a_gap_are_apart(drawn: CircuitLayout) -> None:
    lanes: dict[float, list[float]] = {}
    for route in drawn.routes:
        for (x, y), (x2, y2) in pairwise(route.points[1:-2]):
            if x == x2 and y - y2 > 20:
                lanes.setdefault(y, []).append(x)
    for own in lanes.values():
        # At most 40 edges go through gaps that have room for 20 at full distance.
        assert all(b - a > LANE / 3 for a, b in pairwise(sorted(own)))


def test_unused_components_are_folded() -> None:
    graph = ComponentGraph(8, 4)
    names = ["input->a1.h2<q>", "a1.h2->m2", "m2->a6.h0<v>", "a6.h0->m6", "m6->logits"]
    drawn = layout(graph, graph.edge_indices(names).tolist())
    folded = [box.name for box in drawn.boxes if box.folded]
    assert folded == ["+3 heads +m1", "+4 heads", "+3 heads"]
    assert [words for words, _ in drawn.breaks] == [
        "layer 0: no edge",
        "layers 3 to 5: no edge",
        "layer 7: no edge",
    ]
    below, _, above = [y for _, y in drawn.breaks]
    boxes = named(drawn)
    assert boxes["a1.h2"].y < below < boxes["input"].y
    assert boxes["logits"].y < above < boxes["m6"].y


def test_shared_keys_and_values_arrive_at_their_group() -> None:
    graph = ComponentGraph(2, 6, n_kv_heads=2)
    drawn = layout(graph, graph.edge_indices(["input->a1.g0<k>", "a1.h2->logits"]).tolist())
    assert [box.name for box in drawn.boxes if not box.folded] == [
        *("input", "a1.g0", "a1.h2", "logits")
    ]
    boxes = named(drawn)
    group, head = boxes["a1.g0"], boxes["a1.h2"]
    assert drawn.shared == (((group.middle, group.y), (head.middle, head.y + head.height)),)


def test_one_edge_and_none() -> None:
    graph = ComponentGraph(2, 1)
    drawn = layout(graph, [])
    assert [box.name for box in drawn.boxes] == ["input", "logits"]
    assert [words for words, _ in drawn.breaks] == ["layers 0 to 1: no edge"]
    whole = layout(graph, range(graph.n_edges))
    assert whole.breaks == ()
    assert not any(box.folded for box in whole.boxes)
    # An edge given twice is drawn once, and the order in which edges are given does not matter.
    assert layout(graph, [3, 1, 3]) == layout(graph, [1, 3])


def test_unknown_edges_are_refused() -> None:
    with pytest.raises(IndexError, match=r"edges must be in 0\.\.7, got 3\.\.8\."):
        layout(ComponentGraph(1, 1), [3, 8])
