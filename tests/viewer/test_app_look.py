"""The circuit viewer for every eye: exports, markup in data, accessibility, themes, many edges."""

import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from graphcircuits.graph import ComponentGraph
from graphcircuits.result.curve import FaithfulnessCurve
from tests.viewer.looking import SVG, Open, change, chosen, drawn, look, made, names, settle
from tests.viewer.reading import result_page
from tests.viewer.test_page import HOSTILE

pytestmark = pytest.mark.slow
GRAPH = ComponentGraph(2, 4)


def saved(page: Page, button: str) -> bytes:
    with page.expect_download() as waiting:
        page.locator(button).click()
    return Path(waiting.value.path()).read_bytes()


def test_pictures_can_be_kept(opened: Open) -> None:
    truth = chosen(GRAPH, 12)
    curve = FaithfulnessCurve(n_edges=GRAPH.n_edges, sizes=(30,), faithfulness=(0.625,), n_pairs=8)
    results = [
        made(GRAPH, seed, method=f"{HOSTILE} {seed} \x01", task="A long task. " * 30, curve=curve)
        for seed in (0, 1)
    ]
    page = look(opened, result_page(results, truth=truth, notes={"m0": HOSTILE}, title="T < U"))
    change(page, edges=30, proposed=False, colouring="truth")
    tree = ElementTree.fromstring(saved(page, "#save-svg"))
    # What a picture says when it stands alone: title, task, results, legend.
    texts = [one.text or "" for one in tree.findall(f"{SVG}text")]
    assert texts[0] == "T < U"
    assert "".join(texts).count("A long task.") == 30
    told = " ".join(texts)
    assert all(f"{seed} \N{REPLACEMENT CHARACTER}: 30 edges, keeps 0.6" in told for seed in (0, 1))
    assert texts[-6:] == ["hit", "miss", "false alarm", "query", "key", "value"]
    keys = [one.attrib.get("stroke") for one in tree.findall(f"{SVG}path")]
    assert keys[:3] == ["#0173b2", "#d55e00", "#cc78bc"]
    for one in tree.findall(f"{SVG}text"):
        assert 0 < float(one.attrib["y"]) < float(tree.attrib["height"])
    panels = tree.findall(f"{SVG}g")
    assert len(panels) == 2
    for number, panel in enumerate(panels):
        links = panel.findall(f"{SVG}g[@data-edge]")
        assert {link.attrib["data-edge"] for link in links} == names(drawn(page, number))
        assert all(len(link.findall(f"{SVG}path")) == 2 for link in links)
        expected = {(one["name"], one["colour"]) for one in drawn(page, number)}
        strokes = {
            (link.attrib["data-edge"], link.findall(f"{SVG}path")[0].attrib["stroke"])
            for link in links
        }
        assert strokes == expected
    text = "".join(tree.itertext())
    assert HOSTILE.replace(" ", "") in text.replace(" ", "").replace("\n", "")
    assert {element.tag.removeprefix(SVG) for element in tree.iter()} == {
        *("svg", "g", "title", "path", "rect", "text")
    }
    png = saved(page, "#save-png")
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    box = [float(part) for part in tree.attrib["viewBox"].split()]
    assert abs(width - 2 * box[2]) <= 2
    assert abs(height - 2 * box[3]) <= 2


def test_markup_in_data_is_text(opened: Open) -> None:
    hostile = made(GRAPH, method=HOSTILE, subject=HOSTILE, task=HOSTILE, notes=[HOSTILE])
    notes = {"a0.h1": HOSTILE}
    found = opened(
        result_page(
            [hostile, hostile], notes=notes, roles=notes, title=HOSTILE, truth=chosen(GRAPH, 5)
        )
    )
    page = found.page
    settle(page)
    assert page.locator("h1").inner_text() == HOSTILE
    page.evaluate("graphcircuits.select('a0.h1')")
    page.locator("#search").fill("onerror")
    settle(page)
    assert HOSTILE in page.locator("#details").inner_text()
    assert page.locator("#matches [role=option]").count() == 1
    assert page.locator("img, [onerror], script[src]").count() == 0
    assert (found.said, found.asked) == ([], [])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_is_found_by_axe(opened: Open, theme: str) -> None:
    results = [made(GRAPH, seed, method=f"method {seed}", notes=["A note."]) for seed in (0, 1)]
    roles = {"a0.h1": "reads the token at the position before"}
    text = result_page(results, truth=chosen(GRAPH, 12), roles=roles)
    page = look(opened, text, color_scheme=theme)
    assert page.locator("html").get_attribute("data-theme") == theme
    page.evaluate("graphcircuits.select('a0.h1')")
    page.locator("#list-open summary").click()
    page.locator("#roles-open summary").click()
    settle(page)
    found = Axe().run(page).response
    assert len(found["passes"]) > 20
    grave = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    told = [(one["id"], [node["html"] for node in one["nodes"]]) for one in grave]
    assert told == []


def test_the_theme_can_be_changed(opened: Open) -> None:
    page = look(opened, result_page([made(GRAPH)]))
    plain = [link["colour"] for link in drawn(page) if link["name"].endswith("logits")]
    assert set(plain) == {"#56565e"}
    page.locator("#theme").click()
    settle(page)
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert {link["colour"] for link in drawn(page) if link["name"].endswith("logits")} == {
        "#b9b9c4"
    }
    ground = page.evaluate("[...app.panels[0].front.getImageData(2, 2, 1, 1).data].slice(0, 3)")
    assert max(ground) < 40


def test_the_table_says_what_the_picture_shows(opened: Open) -> None:
    result = made(GRAPH)
    page = look(opened, result_page([result]))
    change(page, edges=105, proposed=False)
    rows = page.locator("#edge-table tbody tr")
    told = rows.evaluate_all(
        "all => all.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    assert [row[0] for row in told] == [name for name, _ in result.top(100)]
    assert [float(row[4]) for row in told] == [score for _, score in result.top(100)]
    assert page.locator("#edge-table caption").text_content() == "The best 100 of 105 edges"


def test_a_narrow_window(opened: Open) -> None:
    page = look(opened, result_page([made(GRAPH), made(GRAPH, 1)]))
    page.set_viewport_size({"width": 420, "height": 800})
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    for number in (0, 1):
        frame = page.locator(f"#graph-{number}").bounding_box()
        assert frame is not None
        assert frame["width"] > 300
        assert frame["height"] > 250


def test_many_edges_do_not_hold_up_the_page(opened: Open) -> None:
    """Generous, since other tests run beside it; `python -m lab.benchmarks.viewer` measures."""
    graph = ComponentGraph(18, 12)
    assert graph.n_edges > 70_000
    page = opened(result_page([made(graph)])).page
    settle(page)
    page.evaluate("graphcircuits.frameTimes.length = 0")
    change(page, edges=graph.n_edges, proposed=False)
    page.mouse.move(500, 500)
    settle(page)
    times = page.evaluate("graphcircuits.frameTimes")
    assert len(times) > 20
    assert sorted(times)[int(0.9 * len(times))] < 150
    assert page.evaluate("graphcircuits.firstPaint") < 8000
    assert page.evaluate("app.scene.panels[0].shown.length") == graph.n_edges
