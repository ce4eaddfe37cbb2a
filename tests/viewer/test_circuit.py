"""The page of a circuit: one curve per edge, widths by score, no script, nothing from outside."""

import re
from xml.etree import ElementTree

import pytest

from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.viewer.circuit import circuit_page

GRAPH = ComponentGraph(2, 4)
EDGES = ["input->a0.h1<q>", "a0.h1->m1", "m1->logits"]


def svg(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page[page.index("<svg") : page.index("</html>")])


def curves(page: str) -> dict[str, float]:
    """The width of each curve by its hint."""
    return {
        path.findtext("title") or "": float(path.get("stroke-width") or "nan")
        for path in svg(page).iter("path")
    }


def test_one_curve_an_edge() -> None:
    circuit = Circuit.from_names(GRAPH, EDGES)
    page = circuit_page(circuit, title="<Circuit>", text="a & b", notes={"m1": "<sum>"})
    assert curves(page).keys() == set(EDGES)
    assert "<title>&lt;Circuit&gt;</title>" in page
    assert "a &amp; b" in page
    used = {
        group.findtext("title") for group in svg(page).iter("g") if group.get("class") == "used"
    }
    assert used == {"input", "a0.h1", "m1 <sum>", "logits"}
    assert len(list(svg(page).iter("g"))) == GRAPH.n_writers + 1
    assert re.search(r"<script|https?:|src=|@import", page) is None


def test_better_edges_are_thicker() -> None:
    circuit = Circuit.from_names(GRAPH, EDGES)
    scores = dict(zip(EDGES, [0.1, 3.0, 2.0], strict=True))
    widths = curves(circuit_page(circuit, title="", scores=scores))
    assert list(widths) == ["input->a0.h1<q> 0.1", "a0.h1->m1 3", "m1->logits 2"]
    thin, thick, middle = widths.values()
    assert thin < middle < thick
    flat = curves(circuit_page(circuit, title="", scores=dict.fromkeys(EDGES, 1.0)))
    assert len(set(flat.values())) == 1


@pytest.mark.parametrize("names", [[], ["input->logits"]])
def test_small_circuits(names: list[str]) -> None:
    circuit = Circuit.from_names(GRAPH, names)
    scores = dict.fromkeys(names, 0.5)
    assert len(curves(circuit_page(circuit, title="", scores=scores))) == len(names)


def test_grouped_keys_reach_every_head_of_the_group() -> None:
    graph = ComponentGraph(2, 4, n_kv_heads=2)
    page = circuit_page(Circuit.from_names(graph, ["m0->a1.g1<k>"]), title="")
    used = {
        group.findtext("title") for group in svg(page).iter("g") if group.get("class") == "used"
    }
    assert used == {"m0", "a1.h2", "a1.h3"}
    assert len(list(svg(page).iter("path"))) == 2
