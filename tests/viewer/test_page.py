"""Every page forbids the network to itself, and holds nothing that its own policy would stop."""

from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.viewer.circuit import circuit_page
from graphcircuits.viewer.heatmap import heat_map_page
from graphcircuits.viewer.page import page

HOSTILE = "\"'><script src=//evil.example/x.js></script><img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """The tags of a page with their attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def circuit(text: str) -> str:
    found = Circuit.from_names(ComponentGraph(1, 2), ["input->m0"])
    return circuit_page(found, title=text, text=text, notes={"m0": text}, scores={"input->m0": 1.0})


def heat_map(text: str) -> str:
    return heat_map_page([text, "y"], {text: [[0.0, 1.0], [2.0, 0.0]]}, title=text, text=text)


def bare(text: str) -> str:
    return page("<p>content</p>", title=text, text=text)


@pytest.mark.parametrize("make", [circuit, heat_map, bare])
def test_the_policy_comes_first_and_allows_styles_only(make: Callable[[str], str]) -> None:
    tags = Tags(make("title")).found
    assert [tag for tag, _ in tags[:3]] == ["html", "meta", "meta"]
    about = tags[2][1]
    assert about["http-equiv"] == "Content-Security-Policy"
    rules = dict(rule.strip().split(" ", 1) for rule in (about["content"] or "").split(";"))
    assert rules == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


@pytest.mark.parametrize("make", [circuit, heat_map, bare])
def test_no_text_becomes_a_tag(make: Callable[[str], str]) -> None:
    found, plain = Tags(make(HOSTILE)).found, Tags(make("title")).found
    assert [tag for tag, _ in found] == [tag for tag, _ in plain]
    assert [attributes.keys() for _, attributes in found] == [keys.keys() for _, keys in plain]
    loading = {"script", "img", "link", "iframe", "object", "embed", "form", "base", "use", "image"}
    assert loading.isdisjoint(tag for tag, _ in found)
    names = {name for _, attributes in found for name in attributes}
    assert not {name for name in names if name.startswith("on")} | (names & {"src", "href"})
