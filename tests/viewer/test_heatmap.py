"""Heat maps: one cell per value, colours by sign and size, and nothing from outside."""

import re
from xml.etree import ElementTree

from graphcircuits.viewer.heatmap import WRITTEN, heat_map_page, heat_maps

NAME = "{http://www.w3.org/2000/svg}"
MATRIX = [[0.0, -2.0], [4.0, 0.0]]


def cells(svg: str) -> dict[str, str]:
    """The colour of each cell by its hint."""
    found = {}
    for group in ElementTree.fromstring(svg).iter(f"{NAME}g"):
        rect = group.find(f"{NAME}rect")
        assert rect is not None
        found[group.findtext(f"{NAME}title") or ""] = rect.get("fill") or ""
    return found


def test_colours_follow_sign_and_size() -> None:
    svg = heat_maps(["input", "<a>"], {"whole": MATRIX}, title="a & b")
    assert cells(svg) == {
        "input, input: 0": "#ffffff",
        "input, <a>: -2": "#90b2d6",
        "<a>, input: 4": "#b2182b",
        "<a>, <a>: 0": "#ffffff",
    }
    root = ElementTree.fromstring(svg)
    assert root.findtext(f"{NAME}title") == "a & b"
    texts = [text.text for text in root.iter(f"{NAME}text")]
    assert texts.count("<a>") == 2
    assert {"whole", "-2", "4", "white 0, full colour ±4"} <= set(texts)


def test_panels_side_by_side_have_their_own_scales() -> None:
    panels = {"one": MATRIX, "other": [[0.0, 0.0], [0.0, 0.0]], "third": [[0.0, 1.0], [1.0, 0.0]]}
    svg = heat_maps(["x", "y"], panels, title="")
    fills = list(re.findall(r'fill="(#\w+)" stroke', svg))
    assert fills[4:8] == ["#ffffff"] * 4
    assert fills[9] == fills[10] == "#b2182b"
    assert len(fills) == 12


def test_many_labels_have_values_only_as_hints() -> None:
    size = WRITTEN + 1
    svg = heat_maps([f"w{i}" for i in range(size)], {"m": [[0.5] * size] * size}, title="")
    assert 'class="value' not in svg
    assert svg.count("w0, w1: 0.5") == 1


def test_faint_values_are_only_hints() -> None:
    svg = heat_maps(["x", "y"], {"m": [[0.0, 1.0], [0.001, 0.0]]}, title="")
    assert svg.count('class="value') == 1
    assert svg.count("y, x: 0.001") == 1


def test_page() -> None:
    page = heat_map_page(["x", "y"], {"one": MATRIX}, title="<t>", text="a < b")
    assert "<h1>&lt;t&gt;</h1><p>a &lt; b</p>" in page
    assert heat_maps(["x", "y"], {"one": MATRIX}, title="<t>") in page
    assert re.search(r"<script|https?:(?!//www.w3.org/2000/svg)|src=|@import", page) is None
