"""What the page's script derives is what Python derives: names, ranking, pruning, paths, routes."""

from xml.etree import ElementTree

import pytest
import torch
from playwright.sync_api import Page

from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.result.result import Result
from tests.viewer.looking import (
    GRAPHS,
    SVG,
    Open,
    change,
    chosen,
    drawn,
    look,
    made,
    settle,
    sizes,
)
from tests.viewer.reading import result_page

pytestmark = pytest.mark.slow


def bare(opened: Open) -> Page:
    """Any page: its functions are called with other graphs."""
    return look(opened, result_page([made(ComponentGraph(1, 1))]))


def test_names_and_edge_order(opened: Open) -> None:
    page = bare(opened)
    found = page.evaluate(
        """all => all.map((sizes) => {
          const graph = makeGraph(sizes);
          const list = (count, name) => Array.from({ length: count }, (_, i) => name(graph, i));
          return [list(graph.nEdges, edgeName), list(graph.nReaders, readerName),
            list(graph.nWriters, componentName)];
        })""",
        [sizes(graph) for graph in GRAPHS],
    )
    for graph, (edges, readers, writers) in zip(GRAPHS, found, strict=True):
        assert edges == graph.edge_names
        assert readers == list(graph.reader_names)
        assert writers == list(graph.writer_names)


def test_the_page_ranks_as_results_do(opened: Open) -> None:
    graph = ComponentGraph(3, 4)
    scores = made(graph).scores
    scores[:4] = torch.tensor([0.0, -0.0, 0.0, -0.0])
    result = Result(graph=graph, scores=scores)
    assert len(scores.unique()) < graph.n_edges // 4  # there are ties
    page = look(opened, result_page([result]))
    assert page.evaluate("graphcircuits.ranking()") == result.ranking().tolist()


def test_pruning_is_that_of_circuits(opened: Open) -> None:
    cases = [
        (graph, chosen(graph, edges, seed))
        for graph in GRAPHS
        for seed, edges in enumerate((0, graph.n_edges // 6, graph.n_edges // 3, graph.n_edges))
    ]
    told = [[sizes(graph), circuit.mask.nonzero().flatten().tolist()] for graph, circuit in cases]
    found = bare(opened).evaluate(
        """all => all.map(([sizes, edges]) => {
          const useful = onPaths(makeGraph(sizes), edges);
          return edges.filter((edge) => useful[edge]);
        })""",
        told,
    )
    kept = [circuit.pruned().mask.nonzero().flatten().tolist() for _, circuit in cases]
    assert found == kept
    assert len({len(edges) for edges in kept}) > 3


def all_paths(result: Result, edges: int) -> list[tuple[list[int], list[str]]]:
    """Every path from input to logits in the best edges, the places of its edges from the worst.

    Between two components counts their best edge.
    """
    place = {edge: number for number, edge in enumerate(result.ranking().tolist())}
    hops: dict[str, dict[str, int]] = {}
    circuit = result.circuit(edges=edges)
    for name, writer, ends in circuit.links():
        for end in ends:
            own = place[result.graph.edge_index(name)]
            hops.setdefault(writer, {})
            hops[writer][end] = min(own, hops[writer].get(end, own))
    found, open_paths = [], [(["input"], [])]
    while open_paths:
        path, places = open_paths.pop()
        if path[-1] == "logits":
            found.append((sorted(places, reverse=True), path))
            continue
        open_paths += [
            ([*path, end], [*places, own]) for end, own in hops.get(path[-1], {}).items()
        ]
    return sorted(found)


@pytest.mark.parametrize(
    ("graph", "edges"),
    [
        (ComponentGraph(2, 2), 38),
        (ComponentGraph(3, 2), 60),
        (ComponentGraph(2, 4, n_kv_heads=2), 60),
    ],
)
def test_strongest_paths_are_those_of_all_paths(
    opened: Open, graph: ComponentGraph, edges: int
) -> None:
    result = made(graph, 3)
    page = look(opened, result_page([result]))
    change(page, edges=edges, proposed=False)
    paths = all_paths(result, edges)
    assert len(paths) > 10
    for name in (*graph.writer_names, "logits"):
        expected = [path for _, path in paths if name in path][:5]
        assert page.evaluate("name => graphcircuits.paths(name)", name) == expected


# In the page, since thousands of routes travel slowly. A link is wrong where a stretch of it lies
# in a box, or where it does not run from the top of its writer to the bottom of its reader.
CROSSED = """sizes => sizes.flatMap((edges) => {
  graphcircuits.set({ edges, proposed: false });
  const boxes = graphcircuits.boxes();
  const named = new Map(boxes.map((box) => [box.name, box]));
  const near = 0.01;
  const within = (x, box) => x >= box.x && x <= box.x + box.width;
  return graphcircuits.drawn().filter(({ name, component, route }) => {
    const [writer, reader] = [named.get(name.split("->")[0]), named.get(component)];
    const [first, last] = [route[0], route.at(-1)];
    if (Math.abs(first[1] - writer.y) > near || !within(first[0], writer)) return true;
    const bottom = reader.y + reader.height;
    if (Math.abs(last[1] - bottom) > near || !within(last[0], reader)) return true;
    return route.slice(1).some(([x2, y2], i) => {
      const [x1, y1] = route[i];
      return boxes.some((box) => Math.max(x1, x2) > box.x + near
        && Math.min(x1, x2) < box.x + box.width - near && Math.max(y1, y2) > box.y + near
        && Math.min(y1, y2) < box.y + box.height - near);
    });
  }).map((link) => `${edges}: ${link.name}`);
})"""


@pytest.mark.parametrize("graph", [*GRAPHS[2:5:2], ComponentGraph(7, 4), ComponentGraph(4, 9)])
def test_no_link_crosses_a_box(opened: Open, graph: ComponentGraph) -> None:
    notes = {"m0": "a longer note that needs several lines", "a0.h1": "x" * 60, "logits": "out"}
    page = look(opened, result_page([made(graph, 5)], notes=notes))
    tried = [edges for edges in (0, 1, 7, 40, 150, 600, 1200) if edges <= graph.n_edges]
    assert page.evaluate(CROSSED, [*tried, graph.n_edges]) == []


def test_a_crossed_box_would_be_seen(opened: Open) -> None:
    page = look(opened, result_page([made(ComponentGraph(3, 4))]))
    page.evaluate(
        """() => { const own = graphcircuits.drawn; graphcircuits.drawn = () => own().map(
          (link) => ({ ...link, route: [link.route[0], link.route.at(-1)] })); }"""
    )
    assert page.evaluate(CROSSED, [60])


def test_labels_stay_inside_their_boxes(opened: Open) -> None:
    long = "a word, another_word_with_underscores and " + "w" * 80
    notes = {"m0": long, "a0.h0": "short", "input": long}
    page = look(opened, result_page([made(ComponentGraph(2, 3))], notes=notes))
    change(page, edges=60, proposed=False)
    cells = page.evaluate(
        """() => app.scene.cells.filter((cell) => cell.component >= 0).map((cell) => ({
          name: cell.name, lines: cell.lines, width: cell.w, height: cell.h,
          widest: Math.max(textWidth(cell.name, NAME_FONT),
            ...cell.lines.map((line) => textWidth(line, NOTE_FONT))),
          bottom: BOX_HEIGHT + LINE * cell.lines.length }))"""
    )
    for cell in cells:
        assert cell["widest"] + 8 <= cell["width"]
        assert cell["bottom"] <= cell["height"]
    written = {cell["name"]: "".join(cell["lines"]) for cell in cells}
    for name, note in notes.items():
        assert written[name].replace(" ", "") == note.replace(" ", "")


def test_shared_keys_and_values_are_drawn_as_the_group_that_reads_them(opened: Open) -> None:
    graph = ComponentGraph(3, 6, n_kv_heads=2)
    path = ["input->a1.g0<k>", "a1.h2->logits"]
    dead = ["m0->a2.g1<v>", "input->a0.h5<q>"]
    circuit = Circuit.from_names(graph, [*path, *dead])
    result = Result(graph=graph, scores=circuit.mask.float(), chosen=circuit)
    page = look(opened, result_page([result]))

    def boxes() -> list[str]:
        return [box["name"] for box in page.evaluate("graphcircuits.boxes()") if not box["folded"]]

    ends = {name: name.split("->")[1].partition("<")[0] for name in (*path, *dead)}
    assert {link["name"]: link["component"] for link in drawn(page)} == ends
    assert len(drawn(page)) == 4
    # Of the heads in a group, those that write or are asked; a0.h0 to a0.h4 and others are not.
    assert boxes() == ["input", "a0.h5", "m0", "a1.g0", "a1.h2", "a2.g1", "logits"]
    change(page, prune=True)
    assert boxes() == ["input", "a1.g0", "a1.h2", "logits"]
    page.evaluate("graphcircuits.select('a1.g0')")
    settle(page)
    text = page.locator("#details").inner_text()
    assert "Keys and values shared by a1.h0, a1.h1, a1.h2." in text
    assert "Edges in (1)" in text
    assert "Edges out" not in text
    page.evaluate("graphcircuits.select('a1.h2')")
    settle(page)
    assert page.evaluate("graphcircuits.paths('a1.h2')") == [["input", "a1.h2", "logits"]]
    assert "Edges in (1)" in page.locator("#details").inner_text()


def test_names_of_layers_have_room(opened: Open) -> None:
    graph = ComponentGraph(120, 2)
    only = Circuit.from_names(graph, ["input->a100.h1<k>", "a100.h1->logits"])
    result = Result(graph=graph, scores=only.mask.float(), chosen=only)
    page = look(opened, result_page([result]))
    text = "layers 101–119 unused"  # noqa: RUF001
    widest = page.evaluate("text => textWidth(text, GUTTER_FONT)", text)
    view = page.evaluate("graphcircuits.view()")
    assert view["x"] > view["scale"] * (22 + widest)
    # In a saved picture, from the left end of each text to the first column.
    svg = ElementTree.fromstring(page.evaluate("graphcircuits.svg()"))
    [panel] = svg.findall(f"{SVG}g")
    shift = float(panel.attrib["transform"].split("(")[1].split()[0])
    names = [one for one in panel.iter(f"{SVG}text") if one.attrib["text-anchor"] == "end"]
    assert {one.text for one in names} >= {text, "layer 100"}
    assert all(float(one.attrib["x"]) + shift - widest > 0 for one in names)
    stubs = page.evaluate("graphcircuits.boxes().filter((box) => box.folded)")
    assert stubs
    width = float(svg.attrib["width"])
    assert all(box["x"] + box["width"] + shift < width for box in stubs)


def test_unused_components_are_folded(opened: Open) -> None:
    graph = ComponentGraph(5, 4)
    only = Circuit.from_names(graph, ["input->a1.h2<k>", "a1.h2->m3", "m3->logits"])
    result = Result(graph=graph, scores=only.mask.float(), chosen=only)
    page = look(opened, result_page([result]))
    boxes = page.evaluate("graphcircuits.boxes()")
    assert [box["name"] for box in boxes if not box["folded"]] == [
        *("input", "a1.h2", "m3", "logits")
    ]
    assert [box["name"] for box in boxes if box["folded"]] == ["+3 m1", "+4"]
    folds = page.evaluate("app.scene.layout.folds.map(({ from, to }) => [from, to])")
    assert folds == [[0, 0], [2, 2], [4, 4]]
