"""The circuit viewer as it is used: slider, overlays, selection, search, keys, two results."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from playwright.sync_api import Page

from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.result.curve import FaithfulnessCurve
from graphcircuits.result.result import Result
from graphcircuits.task.stored import StoredPrompts
from tests.viewer.looking import Open, change, chosen, drawn, look, made, names, numbers, settle
from tests.viewer.reading import circuit_page, result_page

pytestmark = pytest.mark.slow
GRAPH = ComponentGraph(2, 4)
CURVE = FaithfulnessCurve(
    n_edges=GRAPH.n_edges, sizes=(2, 10, 40), faithfulness=(0.1, 0.7, 0.96), n_pairs=16
)


def slide(page: Page, edges: int) -> None:
    """Moves the slider, as a hand does."""
    page.locator("#edges").evaluate(
        "(slider, edges) => { slider.value = edges; slider.dispatchEvent(new Event('input')); }",
        edges,
    )
    settle(page)


def test_the_slider_admits_edges_and_tells_their_faithfulness(opened: Open) -> None:
    result = made(GRAPH, curve=CURVE, chosen=made(GRAPH).circuit(edges=13))
    page = look(opened, result_page([result]))
    assert page.locator("#edges-number").input_value() == "13"
    faithfulness = page.locator("#faithfulness")
    for edges, words in {
        2: "of the output kept, measured at 2 edges",
        10: "measured at 10 edges on 16 pairs",
        22: "of the output kept, between 10 and 40 measured edges",
        1: "not measured here, only from 2 to 40 edges",
        110: "not measured here",
    }.items():
        slide(page, edges)
        links = drawn(page)
        assert names(links) == result.circuit(edges=edges).edges
        assert len(links) == edges
        assert words in faithfulness.inner_text()
        told = numbers(page, "#faithfulness")["value"]
        if 2 <= edges <= 40:
            expected = float(np.interp(edges, CURVE.sizes, CURVE.faithfulness))
            assert float(told) == pytest.approx(expected)
        else:
            assert told == ""
    page.locator("#proposed").click()
    settle(page)
    assert names(drawn(page)) == result.circuit(edges=13).edges
    page.locator("#edges-number").fill("7")
    settle(page)
    assert names(drawn(page)) == result.circuit(edges=7).edges
    assert page.locator("#edges").input_value() == "7"


def test_without_a_curve_the_page_says_how_to_measure(opened: Open) -> None:
    page = look(opened, result_page([made(GRAPH)]))
    told = page.locator("#faithfulness").inner_text()
    assert told == "faithfulness not measured; it is by graphcircuits localize --html"


def test_a_proposed_circuit_that_is_not_the_best_edges(opened: Open) -> None:
    own = chosen(GRAPH, 9, seed=4)
    page = look(opened, result_page([made(GRAPH, chosen=own)]))
    assert names(drawn(page)) == own.edges
    slide(page, 9)
    assert names(drawn(page)) == made(GRAPH).circuit(edges=9).edges != own.edges
    page.keyboard.press("p")
    settle(page)
    assert names(drawn(page)) == own.edges


def test_large_graphs_have_a_slider_that_starts_slowly(opened: Open) -> None:
    graph = ComponentGraph(5, 6)
    page = look(opened, result_page([made(graph)]))
    sizes = page.evaluate("app.sizes")
    assert sizes[:12] == list(range(12))
    assert sizes[-1] == graph.n_edges
    assert all(one < other for one, other in pairwise(sizes))
    assert len(sizes) < 250
    slide(page, len(sizes) - 1)
    assert page.locator("#edges-number").input_value() == str(graph.n_edges)


def test_overlay_colours_and_counts_are_those_of_the_truth(opened: Open) -> None:
    result, truth = made(GRAPH), chosen(GRAPH, 20, seed=1)
    page = look(opened, result_page([result], truth=truth))
    hit, miss, wrong = ("#0173b2", "solid"), ("#d55e00", "dashed"), ("#cc78bc", "dotted")
    for edges in (5, 30):
        slide(page, edges)
        found = result.circuit(edges=edges)
        expected = dict.fromkeys(found & truth, hit) | dict.fromkeys(truth - found, miss)
        expected |= dict.fromkeys(found - truth, wrong)
        assert {one["name"]: (one["colour"], one["dash"]) for one in drawn(page)} == expected
        hits = len(found & truth)
        counts = numbers(page, "#counts")
        assert counts == {"hits": str(hits), "misses": str(20 - hits), "false": str(edges - hits)}
        text = page.locator("#counts").inner_text()
        assert f"precision {hits / edges:.2f}, recall {hits / 20:.2f}" in text
    page.evaluate("graphcircuits.select('m1')")
    settle(page)
    missed = [edge for edge in truth - found if "m1" in edge.split("->")]
    assert missed
    assert page.locator("#details tr", has_text="(missed)").count() == len(missed)
    change(page, theme="dark")
    lighter = {hit[0]: "#56b4e9", miss[0]: "#ff8f4d", wrong[0]: "#e6a3d6"}
    in_dark = {name: (lighter[colour], dash) for name, (colour, dash) in expected.items()}
    assert {one["name"]: (one["colour"], one["dash"]) for one in drawn(page)} == in_dark
    change(page, theme="light")
    page.locator("#colour").select_option("kind")
    settle(page)
    kinds = {"q": "#0173b2", "k": "#de8f05", "v": "#029e73", "": "#56565e"}
    for link in drawn(page):
        assert link["colour"] == kinds[link["name"][-2] if link["name"].endswith(">") else ""]
        assert link["dash"] == "solid"
    assert names(drawn(page)) == result.circuit(edges=30).edges


def test_what_is_seen_has_the_colours_of_the_overlay(opened: Open) -> None:
    """Pixels, since all else asks the script."""
    found, missed = (Circuit.from_names(GRAPH, [name]) for name in ("m0->logits", "input->m0"))
    result = Result(graph=GRAPH, scores=found.mask.float())

    def seen(truth: Circuit) -> tuple[bool, bool, bool]:
        """Whether there is blue, orange, and pink."""
        page = look(opened, result_page([result], truth=truth))
        change(page, edges=1, proposed=False)
        pixels = page.evaluate(
            """() => {
              const { front, canvas } = app.panels[0];
              const { data } = front.getImageData(0, 0, canvas.width, canvas.height);
              const seen = new Set();
              for (let i = 0; i < data.length; i += 4) seen.add(data.slice(i, i + 3).join(" "));
              return [...seen];
            }"""
        )
        red, green, blue = torch.tensor([[int(part) for part in one.split()] for one in pixels]).T
        pink = (red - green > 40) & (blue - green > 25)
        return bool((blue - red > 80).any()), bool((red - blue > 80).any()), bool(pink.any())

    assert seen(found) == (True, False, False)
    assert seen(missed) == (False, True, True)


def test_a_circuit_that_is_not_connected_says_so(opened: Open) -> None:
    loose = Circuit.from_names(GRAPH, ["input->m0", "a1.h0->m1"])
    path = Circuit.from_names(GRAPH, ["input->m0", "a1.h0->m1", "m0->m1", "m1->logits"])
    scores = 2 * loose.mask.float() + path.mask.float()
    page = look(opened, result_page([Result(graph=GRAPH, scores=scores)]))
    change(page, edges=2, proposed=False)
    connected = page.locator("#connected")
    assert numbers(page, "#connected") == {"connected": "false"}
    assert "Not connected: no path" in connected.inner_text()
    change(page, edges=4)
    assert numbers(page, "#connected") == {"connected": "true"}
    assert connected.inner_text() == "Connected, 1 edge on no path."
    page.locator("#prune").check()
    settle(page)
    assert names(drawn(page)) == path.pruned().edges
    assert connected.inner_text() == "Connected, 1 loose edge left out."


def test_a_clicked_component_tells_its_edges_and_paths(opened: Open) -> None:
    result = made(GRAPH, probabilities=torch.linspace(0, 1, GRAPH.n_edges))
    page = look(opened, result_page([result]))
    slide(page, 60)
    box = next(box for box in page.evaluate("graphcircuits.boxes()") if box["name"] == "m0")
    view, frame = page.evaluate("graphcircuits.view()"), page.locator("#graph-0").bounding_box()
    assert frame is not None
    middle = [
        frame[side] + view["scale"] * (box[side] + box[length] / 2) + view[side]
        for side, length in (("x", "width"), ("y", "height"))
    ]
    page.mouse.move(*middle)
    settle(page)
    assert page.locator("#tooltip").inner_text() == "m0"
    page.mouse.click(*middle)
    settle(page)
    assert page.locator("#details h2").inner_text() == "m0"
    expected = [
        [str(place + 1), f"{score:.4g}", f"{round(100 * likely)}%"]
        for place, ((name, score), likely) in enumerate(
            zip(result.top(60), result.top_probabilities(60) or [], strict=True)
        )
        if name.split("->")[1] == "m0"
    ]
    table = page.locator("#details table").first
    rows = table.locator("tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('.number')].map((x) => x.textContent))"
    )
    assert rows == expected
    paths = page.locator("#paths li").evaluate_all("all => all.map((one) => one.dataset.path)")
    assert [path.split() for path in paths] == page.evaluate("graphcircuits.paths('m0')")
    assert len(paths) == 5
    page.locator("#paths li").first.hover()
    settle(page)
    assert len(page.evaluate("app.marked")) == len(paths[0].split()) - 1


def test_what_a_component_does_is_told_to_every_reader(opened: Open) -> None:
    """Beside the graph, under the pointer, to screen readers, and as a table."""
    roles = {"m0": "adds <b>them</b> up", "a0.h1": "reads the token at the position before"}
    page = look(opened, result_page([made(GRAPH)], notes={"m0": "sum_1"}, roles=roles))
    page.locator("#roles-open summary").click()
    assert page.locator("#role-table").is_visible()
    found = page.locator("#role-table tr").evaluate_all(
        "rows => rows.map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    assert found == [[name, text] for name, text in roles.items()]
    page.evaluate("graphcircuits.select('m0')")
    settle(page)
    assert page.locator("#announce").inner_text() == "m0 selected: adds <b>them</b> up"
    assert page.locator("#details p").all_inner_texts()[:2] == ["sum_1", roles["m0"]]
    slide(page, 60)
    texts = page.evaluate(
        """() => ["m0", "a0.h1", "m1"].map((name) => {
          const { component } = app.scene.layout.rows.flatMap((row) => row.cells)
            .find((cell) => cell.name === name);
          app.pointed = { component };
          return app.tipText(app.scene.panels[0]);
        })"""
    )
    assert texts == [f"m0: sum_1\n{roles['m0']}", f"a0.h1\n{roles['a0.h1']}", "m1"]
    page = look(opened, result_page([made(GRAPH)]))
    assert page.locator("#roles-open").is_hidden()


def test_edges_can_be_pointed_at(opened: Open) -> None:
    result = made(GRAPH)
    page = look(opened, result_page([result]))
    slide(page, 12)
    view, frame = page.evaluate("graphcircuits.view()"), page.locator("#graph-0").bounding_box()
    assert frame is not None
    found = []
    for link in drawn(page):
        x, y = link["route"][-1]  # at the reader, where links lie apart
        page.mouse.move(
            frame["x"] + view["scale"] * x + view["x"],
            frame["y"] + view["scale"] * (y + 3) + view["y"],
        )
        settle(page)
        found.append(page.locator("#tooltip").inner_text().split("\n"))
    assert [name for name, _ in found] == [name for name, _ in result.top(12)]
    scores = [text.split("score ")[1] for _, text in found]
    assert [float(score) for score in scores] == [score for _, score in result.top(12)]


def test_search_finds_components_edges_and_notes(opened: Open) -> None:
    page = look(opened, result_page([made(GRAPH)], notes={"m1": "The Majority"}))
    page.keyboard.press("/")
    search = page.locator("#search")
    assert search.evaluate("one => document.activeElement === one")
    search.type("a0.h1")
    first = page.locator("#matches [role=option]").first
    assert first.locator("span").first.inner_text() == "a0.h1"
    page.keyboard.press("Enter")
    settle(page)
    assert page.locator("#details h2").inner_text() == "a0.h1"
    assert page.evaluate("graphcircuits.state.selected") == 2
    search.fill("majority")
    assert page.locator("#matches [role=option]").all_inner_texts() == ["m1\nThe Majority"]
    search.fill("m0->a1.h2<v>")
    page.keyboard.press("Enter")
    settle(page)
    assert page.locator("#details h2").inner_text() == "m0->a1.h2<v>"
    search.fill("nothing of the kind")
    assert page.locator("#matches").is_hidden()
    assert page.locator("#announce").inner_text() == "0 matches"


def test_keys_are_enough(opened: Open) -> None:
    page = look(opened, result_page([made(GRAPH)]))
    change(page, edges=60, proposed=False)
    page.locator("#graph-0").focus()

    def press(*keys: str) -> str:
        for key in keys:
            page.keyboard.press(key)
        settle(page)
        return page.evaluate(
            "() => { const { selected } = graphcircuits.state;"
            " return selected < 0 ? '' : componentName(app.model.graph, selected); }"
        )

    assert press("ArrowUp") == "input"
    assert press("ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft") == "a0.h0"
    assert press("ArrowRight") == "a0.h1"
    assert press("ArrowUp") == "m0"
    assert press("ArrowDown", "ArrowDown", "ArrowDown") == "input"
    assert press("Escape") == ""
    press("]", "]", "+")
    assert page.locator("#edges-number").input_value() == "63"
    press("[", "-", "{")
    assert page.locator("#edges-number").input_value() == "51"
    page.locator("#zoom-in").click()
    assert not page.evaluate("graphcircuits.view().fitted")
    press("0")
    assert page.evaluate("graphcircuits.view().fitted")
    press("?")
    assert page.locator("#help").is_visible()
    press("Escape")
    assert page.locator("#help").is_hidden()


def test_two_results_open_at_what_each_proposes(opened: Open) -> None:
    left, right = (
        made(GRAPH, seed, method=name, curve=CURVE, chosen=made(GRAPH, seed).circuit(edges=edges))
        for seed, name, edges in ((0, "one", 6), (1, "two", 11))
    )
    page = look(opened, result_page([left, right, made(GRAPH, 2, method="three")]))

    def shown() -> tuple[list[int], str, str | None]:
        sizes = [len(drawn(page, panel)) for panel in (0, 1)]
        pressed = page.locator("#proposed").get_attribute("aria-pressed")
        return sizes, page.locator("#of-all").inner_text(), pressed

    assert shown() == ([6, 11], "and 11 of 110", "true")
    assert page.locator("#curve circle.now").count() == 2
    captions = [page.locator(f"#caption-{panel}").inner_text() for panel in (0, 1)]
    assert captions == ["one: 6 edges", "two: 11 edges"]
    slide(page, 9)
    assert shown() == ([9, 9], "of 110", "false")
    page.keyboard.press("p")
    settle(page)
    assert shown() == ([6, 11], "and 11 of 110", "true")
    page.locator("#left").select_option("1")
    page.locator("#right").select_option("2")
    settle(page)
    assert shown() == ([11, 11], "of 110", "true")


def test_two_results_and_their_difference(opened: Open) -> None:
    left = made(GRAPH, 0, method="one")
    noise = torch.randn(GRAPH.n_edges, generator=torch.Generator().manual_seed(9))
    right = Result(graph=GRAPH, scores=(2 * (left.scores + noise)).round() / 2, method="two")
    third = made(GRAPH, 5, method="three")
    page = look(opened, result_page([left, right, third]))
    change(page, edges=40, proposed=False)

    def check(one: Result, other: Result) -> None:
        first, second = one.circuit(edges=40), other.circuit(edges=40)
        both = len(first & second)
        ranks = [rank_means(result.scores) for result in (one, other)]
        correlation = torch.corrcoef(torch.tensor(ranks))[0, 1].item()
        told = numbers(page, "#difference")
        assert [told[key] for key in ("both", "left", "right")] == [
            *(str(both), str(40 - both), str(40 - both))
        ]
        assert float(told["jaccard"]) == pytest.approx(both / (80 - both))
        assert float(told["correlation"]) == pytest.approx(correlation)
        alone = [("#0173b2", "dashed"), ("#d55e00", "dotted")]
        for panel, (own, rest) in enumerate([(first, second), (second, first)]):
            expected = dict.fromkeys(own & rest, ("#56565e", "solid"))
            expected |= dict.fromkeys(own - rest, alone[panel])
            found = {link["name"]: (link["colour"], link["dash"]) for link in drawn(page, panel)}
            assert found == expected

    check(left, right)
    page.locator("#right").select_option("2")
    settle(page)
    check(left, third)
    page.locator("#right").select_option("-1")
    settle(page)
    assert page.locator("#graph-1").is_hidden()
    assert page.locator("#colour").input_value() == "kind"


def rank_means(scores: torch.Tensor) -> list[float]:
    """Ranks with ties at their mean."""
    less = (scores[:, None] > scores).sum(1)
    equal = (scores[:, None] == scores).sum(1)
    return (less + (equal - 1) / 2).tolist()


def test_attention_of_a_head(opened: Open) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (2, GRAPH.n_layers, GRAPH.n_heads, 3, 3)
    clean, corrupted = torch.randint(0, 255, shape, generator=generator, dtype=torch.uint8)
    clean[:, :, 0, 0] = 255  # a sink, stronger than all that the last position looks at
    prompts = StoredPrompts(
        clean=[("x", " y", "z")],
        corrupted=[("x", "y", "w")],
        answers=["z"],
        patterns=[clean],
        patterns_corrupted=[corrupted],
    )
    page = look(opened, result_page([made(GRAPH, prompts=prompts)]))
    page.evaluate("graphcircuits.select('a1.h2')")
    settle(page)
    figures = page.locator("#attention figure")
    assert figures.locator("figcaption").all_inner_texts() == ["clean prompt", "corrupted prompt"]
    canvas = figures.first.locator("canvas")
    canvas.scroll_into_view_if_needed()
    label, cell = page.evaluate(
        "() => [Math.max(...['x', '␣y', 'z'].map((token) => textWidth(token, `11px ${FONT}`))) + 8,"
        " CELL]"
    )
    frame = canvas.bounding_box()
    assert frame is not None
    last = clean[1, 2, 2].tolist()
    first, second, _ = sorted(range(3), key=lambda key: -last[key])
    shown = ("x (0)", "␣y (1)", "z (2)")
    most = f"last position: z (2) looks at {shown[first]}: {last[first] / 255:.2f}"
    then = f"{most}, then at {shown[second]}: {last[second] / 255:.2f}"
    assert figures.first.locator(".value").inner_text() == then
    page.mouse.move(frame["x"] + label + 1.5 * cell, frame["y"] + label + 2.5 * cell)
    value = last[1] / 255
    assert figures.first.locator(".value").inner_text() == f"z (2) looks at ␣y (1): {value:.2f}"
    page.evaluate("graphcircuits.select('m0')")
    settle(page)
    assert page.locator("#attention").inner_text() == ""


def test_a_circuit_alone(opened: Open) -> None:
    circuit = chosen(GRAPH, 14)
    page = look(opened, circuit_page(circuit, title="alone", text="A text."))
    assert names(drawn(page)) == circuit.edges
    assert page.locator("#edges").is_hidden()
    assert page.locator("#faithfulness").is_hidden()
    assert page.locator("h1").inner_text() == "alone"
