"""Heat maps: one cell per value, colours by sign and size, and nothing from outside."""

import re
from xml.etree import ElementTree

from graphcircuits.viewer.heatmap import (
    DARK,
    LEGEND,
    LIGHT,
    WRITTEN,
    contrast,
    heat_maps,
    mixed,
    value_ink,
)
from graphcircuits.viewer.page import page

NAME = "{http://www.w3.org/2000/svg}"
MATRIX = [[0.0, -2.0], [4.0, 0.0]]


def cells(svg: str) -> dict[str, list[tuple[str | None, ...]]]:
    """Class, colour and opacity of the squares of each cell by its hint."""
    names = ("class", "fill", "fill-opacity")
    return {
        group.findtext(f"{NAME}title") or "": [
            tuple(rect.get(name) for name in names) for rect in group.findall(f"{NAME}rect")
        ]
        for group in ElementTree.fromstring(svg).iter(f"{NAME}g")
    }


def test_colours_follow_sign_and_size() -> None:
    svg = heat_maps(["input", "<a>"], {"whole": MATRIX}, title="a & b")
    ground = ("cell ground", "#ffffff", None)
    assert cells(svg) == {
        "input, input: 0": [ground],
        "input, <a>: -2": [ground, ("below", "#2166ac", "0.500")],
        "<a>, input: 4": [ground, ("above", "#b2182b", "1.000")],
        "<a>, <a>: 0": [ground],
    }
    root = ElementTree.fromstring(svg)
    assert root.findtext(f"{NAME}title") == "a & b"
    texts = [text.text for text in root.iter(f"{NAME}text")]
    assert texts.count("<a>") == 2
    assert {"whole", "-2", "4", "full colour ±4", LEGEND} <= set(texts)


def test_the_dark_picture_is_told_in_the_same_file() -> None:
    svg = heat_maps(["x", "y"], {"m": MATRIX}, title="")
    style = ElementTree.fromstring(svg).findtext(f"{NAME}style") or ""
    light, dark = style.split("@media (prefers-color-scheme:dark)")
    assert "#" not in light
    for name, colour in (("ground", "#18181c"), ("below", "#5faaf5"), ("above", "#ff7b72")):
        assert f".heat .{name}{{fill:{colour}}}" in dark
    # No rule of the picture is about anything outside it.
    rules = re.findall(r"([^{}]+)\{[^{}]+\}", light + dark)
    assert rules
    assert all(rule.startswith(".heat ") for rule in rules)
    # On the full cell black is read better in the dark, and white in the light.
    assert re.findall(r'class="(value[^"]*)".*?fill="(#\w+)">', svg) == [
        ("value", "#000000"),
        ("value black", "#ffffff"),
    ]


def test_values_can_be_read_on_every_cell() -> None:
    for colours in (LIGHT, DARK):
        for kind in ("below", "above"):
            for step in range(101):
                cell = mixed(colours, kind, step / 100)
                assert contrast(cell, value_ink(cell)) > 4.5, (kind, step)
            # A full cell is told from the ground, and from one of the other sign by its brightness
            # or by blue against red, which nobody mixes up.
            assert contrast(colours[kind], colours["ground"]) > 4.5
    assert contrast((0, 0, 0), (255, 255, 255)) == 21


def test_panels_side_by_side_have_their_own_scales() -> None:
    panels = {"one": MATRIX, "other": [[0.0, 0.0], [0.0, 0.0]], "third": [[0.0, 1.0], [1.0, 0.0]]}
    svg = heat_maps(["x", "y"], panels, title="")
    found = list(re.findall(r'class="(?:above|below)".*?fill-opacity="([\d.]+)"', svg))
    assert found == ["0.500", "1.000", "1.000", "1.000"]
    assert "full colour ±0<" in svg


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
    picture = heat_maps(["x", "y"], {"one": MATRIX}, title="<t>")
    text = page(picture, title="<t>", text="a < b")
    assert "<h1>&lt;t&gt;</h1><p>a &lt; b</p>" in text
    assert picture in text
    assert re.search(r"<script|https?:(?!//www.w3.org/2000/svg)|src=|@import", text) is None
