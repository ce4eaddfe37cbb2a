"""The viewer's files: all of them are joined, and none can make markup or code from data."""

import re
from importlib.resources import files

import pytest

from graphcircuits.viewer import app
from graphcircuits.viewer.page import viewer_app

FOLDER = files(app)


def text(name: str) -> str:
    return FOLDER.joinpath(name).read_text("utf-8")


def test_every_script_is_joined_once() -> None:
    found = {entry.name for entry in FOLDER.iterdir() if entry.name.endswith(".js")}
    assert sorted(app.SCRIPTS) == sorted(found)
    assert all(text(name) in viewer_app().script for name in found)


def test_the_viewer_is_small() -> None:
    assert sum(len(part.encode()) for part in viewer_app()) < 160_000


@pytest.mark.parametrize("name", app.SCRIPTS)
def test_scripts_make_neither_markup_nor_code_from_text(name: str) -> None:
    source = text(name)
    made = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    assert re.findall(made, source) == []
    assert (
        re.findall(r"setAttribute\(\"(?:style|on\w+)\"|fetch\(|XMLHttpRequest|import\(", source)
        == []
    )
    lines = source.splitlines()
    assert len(lines) < 400
    assert max(map(len, lines)) <= 100


def test_markup_has_no_style_or_script_of_its_own() -> None:
    assert re.findall(r"\s(?:style|on\w+)\s*=|<script|<style|https?:", text("page.html")) == []


def test_controls_of_the_page_are_known_to_the_script() -> None:
    ids = set(re.findall(r'\bid="([\w-]+)"', text("page.html")))
    used = set(re.findall(r'byId\("([\w-]+)"\)', viewer_app().script)) - {"data", "prompt"}
    assert used <= ids
