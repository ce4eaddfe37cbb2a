"""A certificate in the viewer: its lines, circuits over the graph, how often edges came back."""

from typing import Any

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from tests.viewer.certified import certified
from tests.viewer.looking import Open, change, chosen, drawn, look, made, names, numbers, settle
from tests.viewer.reading import result_page

pytestmark = pytest.mark.slow
GRAPH = ComponentGraph(2, 4)
CIRCUIT = made(GRAPH).circuit(edges=14)
CORE, RIVAL = made(GRAPH).circuit(edges=9), chosen(GRAPH, 12, seed=3)
CERTIFICATE = certified(CIRCUIT, core=CORE, rivals=(RIVAL,))


def came_back() -> torch.Tensor:
    assert CERTIFICATE.edges is not None
    return CERTIFICATE.edges.came_back


def percent(edge: str) -> str:
    return f"{100 * came_back()[GRAPH.find_edge(edge)].item():.0f}%"


def certificate_page(**given: object) -> str:
    return result_page([made(GRAPH)], certificate=CERTIFICATE, **given)


def styled(link: dict[str, Any]) -> list[Any]:
    return [link[key] for key in ("colour", "width", "dash", "alpha")]


def press_until(page: Page, key: str, place: str) -> None:
    """Moves the focus to an element by keys alone."""
    for _ in range(40):
        page.keyboard.press(key)
        if page.locator(place).evaluate("one => document.activeElement === one"):
            return
    raise AssertionError(f"{place} is not reached by {key}")


def test_the_lines_stand_beside_the_circuit(opened: Open) -> None:
    page = look(opened, certificate_page())
    assert names(drawn(page)) == CIRCUIT.edges
    panel = page.get_by_role("region", name="Certificate")
    heads = panel.get_by_role("heading").all_inner_texts()
    assert heads == [
        "Certificate: fails: stable; not measured: unique",
        *("sufficient: passed", "stable: FAILED", "unique: missing", "Its edges"),
    ]
    assert panel.locator("p").all_inner_texts() == [
        "ib-3: a task",
        "Of 14 edges.",
        "Judged on 16 fresh pairs; searched again by eap on 32 pairs.",
        "a note.",
        *("0.96; asked: from 0.8 up", "keeps 0.96"),
        *(
            "0.25 [0.12, 0.50]; asked: at least 0.5",
            "8 fresh searches share this much with it",
        ),
        "the time was over",
        "what it is of",
    ]
    # It is of one circuit, whatever is shown; what is selected takes its place.
    change(page, edges=20, proposed=False)
    told = "Of 14 edges, not of the 20 edges that are shown now."
    assert panel.locator("p").all_inner_texts()[1] == told
    page.evaluate("graphcircuits.select('m0')")
    settle(page)
    assert panel.is_hidden()
    page.keyboard.press("Escape")
    settle(page)
    assert panel.is_visible()


def test_circuits_can_be_laid_over_the_graph(opened: Open) -> None:
    truth = chosen(GRAPH, 20, seed=1)
    page = look(opened, certificate_page(truth=truth))
    colour = page.locator("#colour")
    assert colour.locator("option").all_inner_texts() == [
        "query, key, value",
        "truth: the true circuit",
        "overlay: the certified circuit, 14 edges",
        "overlay: core, 9 edges",
        "overlay: rival 1, 12 edges",
    ]
    both, there, here = ("#0173b2", "solid"), ("#d55e00", "dashed"), ("#cc78bc", "dotted")
    for number, (name, other) in enumerate(
        {"the certified circuit": CIRCUIT, "core": CORE, "rival 1": RIVAL}.items()
    ):
        colour.select_option(f"overlay {number}")
        settle(page)
        expected = dict.fromkeys(CIRCUIT & other, both) | dict.fromkeys(other - CIRCUIT, there)
        expected |= dict.fromkeys(CIRCUIT - other, here)
        assert {one["name"]: (one["colour"], one["dash"]) for one in drawn(page)} == expected
        shared, missed, extra = (
            len(part) for part in (CIRCUIT & other, other - CIRCUIT, CIRCUIT - other)
        )
        counts = {"hits": str(shared), "misses": str(missed), "extra": str(extra)}
        assert numbers(page, "#overlaid") == counts
        assert page.locator("#overlaid").inner_text() == (
            f"{shared} also in {name}, {missed} only there, {extra} only here; "
            f"overlap (Jaccard) {shared / (shared + missed + extra):.2f}"
        )
        legend = page.locator("#legend .item").all_inner_texts()
        assert legend[:3] == ["in both", "only in the overlay", "not in the overlay"]
        assert page.locator("#edge-table thead th").last.text_content() == f"against {name}"
    [first, *_] = [edge for edge in RIVAL - CIRCUIT if edge.endswith(">")]
    page.evaluate("name => graphcircuits.select(name)", first.split("->")[1].split("<")[0])
    settle(page)
    assert page.locator("#details tr", has_text="(only in rival 1)").count() > 0
    colour.select_option("truth")
    settle(page)
    assert names(drawn(page)) == CIRCUIT.edges | truth.edges
    assert page.locator("#overlaid").inner_text() == ""


def test_tables_say_how_often_edges_came_back(opened: Open) -> None:
    page = look(opened, certificate_page())
    change(page, edges=60, proposed=False)
    assert CERTIFICATE.edges is not None
    likely = CERTIFICATE.edges.probability
    assert likely is not None
    heads = page.locator("#edge-table thead th").all_text_contents()
    assert heads == [
        *("edge", "writer", "reader", "rank", "score", "came back", "certified probability")
    ]
    rows = page.locator("#edge-table tbody tr").evaluate_all(
        "all => all.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    assert {row[0]: row[5] for row in rows} == {row[0]: percent(row[0]) for row in rows}
    unknown = {row[0] for row in rows if row[6] == "–"}  # noqa: RUF001
    assert unknown == {row[0] for row in rows if row[0] not in CIRCUIT and row[5] == "0%"}
    for row in rows:
        number = likely[GRAPH.find_edge(row[0])].item()
        assert row[0] in unknown or abs(float(row[6].rstrip("%")) - 100 * number) <= 0.5
    # The same in details of a component and of an edge, and under the pointer.
    edge = rows[3][0]
    page.locator("#search").fill(edge)
    page.keyboard.press("Enter")
    settle(page)
    facts = page.locator("#details dl").inner_text()
    assert f"came back\n{percent(edge)}\ncertified probability\n{rows[3][6]}" in facts
    tip = page.evaluate(
        "edge => { app.pointed = { edge }; return app.tipText(app.scene.panels[0]); }",
        GRAPH.find_edge(edge),
    )
    assert tip.endswith(f", came back {percent(edge)}, certified probability {rows[3][6]}")
    page.evaluate("graphcircuits.select('m0')")
    settle(page)
    first = page.locator("#details table").first
    assert first.locator("thead th").all_text_contents()[3:] == heads[5:]
    found = first.locator("tbody tr").first.locator(".number").all_text_contents()
    assert found[2:] == next(row[5:] for row in rows if row[2] == "m0")


def test_opacity_can_say_how_often_edges_came_back(opened: Open) -> None:
    page = look(opened, certificate_page())
    change(page, edges=60, proposed=False, colouring="overlay 2")
    plain = {one["name"]: styled(one) for one in drawn(page)}
    page.get_by_role("checkbox", name="opacity by how often edges came back").check()
    settle(page)
    links = drawn(page)
    shares = [came_back()[GRAPH.find_edge(one["name"])].item() for one in links]
    assert len(set(shares)) > 2
    assert [one["alpha"] for one in links] == pytest.approx([0.15 + 0.85 * one for one in shares])
    # The most certain lie on top; all else is as it was.
    assert shares == sorted(shares, reverse=True)
    for one in links:
        assert styled(one)[:3] == plain[one["name"]][:3]
    legend = page.locator("#legend .item").all_inner_texts()
    assert "fainter: came back less often" in legend
    page.locator("#fade").uncheck()
    settle(page)
    assert {one["name"]: styled(one) for one in drawn(page)} == plain


def test_keys_are_enough_for_a_certificate(opened: Open) -> None:
    page = look(opened, certificate_page())
    press_until(page, "Tab", "#colour")
    page.keyboard.press("End")
    settle(page)
    assert page.evaluate("graphcircuits.state.colouring") == "overlay 2"
    assert names(drawn(page)) == CIRCUIT.edges | RIVAL.edges
    press_until(page, "Tab", "#fade")
    page.keyboard.press("Space")
    settle(page)
    assert page.evaluate("graphcircuits.state.fade")
    assert page.locator("#fade").evaluate("one => document.activeElement === one")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_is_found_by_axe(opened: Open, theme: str) -> None:
    page = look(opened, certificate_page(), color_scheme=theme)
    change(page, colouring="overlay 2", fade=True)
    page.locator("#list-open summary").click()
    settle(page)
    found = Axe().run(page).response
    assert len(found["passes"]) > 20
    grave = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in grave] == []


def test_two_results_beside_one_certificate(opened: Open) -> None:
    results = [made(GRAPH, seed, method=f"method {seed}") for seed in (0, 1)]
    page = look(opened, result_page(results, certificate=CERTIFICATE))
    change(page, edges=25, proposed=False, colouring="overlay 1")
    for panel, result in enumerate(results):
        assert names(drawn(page, panel)) == result.circuit(edges=25).edges | CORE.edges
    lines = page.locator("#overlaid .line").all_inner_texts()
    shared = [len(result.circuit(edges=25) & CORE) for result in results]
    assert [line.split(",")[0] for line in lines] == [
        f"method {panel}: {count} also in core" for panel, count in enumerate(shared)
    ]


def test_without_figures_there_is_nothing_to_choose(opened: Open) -> None:
    own = Circuit.from_names(GRAPH, ["input->m0"])
    bare = certified(own, edges=None, missing={}, lines={}, subject="", task="", notes=())
    page = look(opened, result_page([made(GRAPH)], certificate=bare))
    assert page.locator("#fade-group").is_hidden()
    assert page.locator("#certificate").inner_text().startswith("Certificate: passed\n")
    assert "came back" not in page.locator("#edge-table").inner_text()
    page = look(opened, result_page([made(GRAPH)]))
    assert page.locator("#certificate").is_hidden()
    assert page.locator("#fade-group").is_hidden()
