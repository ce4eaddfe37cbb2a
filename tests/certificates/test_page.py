"""The page: no scripts, nothing from outside, hostile text escaped, all that is known in it."""

import re
from collections import Counter
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from graphcircuits.certificates import page as module
from graphcircuits.certificates.certificate import EdgeChances
from graphcircuits.certificates.page import certificate_page
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from tests.drawing.test_notebook import HOSTILE
from tests.viewer.certified import certified, chances

GRAPH = ComponentGraph(2, 2)
CIRCUIT = Circuit.from_names(GRAPH, ["input->m0", "m0->a1.h0<v>", "a1.h0->logits"])
CORE = Circuit.from_names(GRAPH, ["input->m0", "m0->logits"])
RIVAL = Circuit.from_names(GRAPH, ["input->m0", "m0->a1.h0<v>", "input->m1", "m1->logits"])
EMPTY = {"meta", "br", "hr", "img", "link", "input"}


class Read(HTMLParser):
    """Tags, the values of attributes, and the text of a page whose tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.headings: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)


def read(text: str) -> Read:
    """A page that has no script, fetches nothing, and says so to the browser."""
    found = Read(text)
    assert text.startswith("<!doctype html>")
    assert not {*found.tags} & {"script", "iframe", "img", "link", "object", "embed", "form"}
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert not [name for name, _ in found.attributes if name in ("src", "href", "action")]
    policy = ("content", "default-src 'none'; style-src 'unsafe-inline'")
    assert policy in found.attributes
    assert not re.search(r"url\(|@import", text)
    return found


def test_all_that_is_known_is_on_it() -> None:
    certificate = certified(CIRCUIT, core=CORE, rivals=(RIVAL,))
    found = read(certificate_page(certificate))
    assert found.headings == [
        "ib-3: a task",
        "The circuit",
        "Its edges",
        "The stable core: 2 edges that came back in most fresh searches",
        "Rival 1: 4 edges that keep as much, 2 of them the circuit's",
    ]
    assert "Fails: stable; not measured: unique" in found.texts
    assert (
        f"3 of {GRAPH.n_edges} edges. Judged on 16 fresh pairs; searched again by eap on 32 pairs. "
        "1.5 s."
    ) in found.texts
    for row in certificate.rows():
        assert {*row} <= {*found.texts}
    assert {"Probabilities are what it is of", "a note.", "probability"} <= {*found.texts}
    assert found.tags["svg"] == 3
    for row in certificate.most_likely():
        assert row["edge"] in found.texts


def test_without_searches_there_are_no_edges_and_no_core() -> None:
    bare = certified(CIRCUIT, edges=None, subject="", task="", notes=())
    found = read(certificate_page(bare))
    assert found.headings == ["A circuit", "The circuit"]
    assert found.tags["svg"] == 1


def test_without_probabilities_there_is_no_column() -> None:
    given = chances(CIRCUIT)
    unknown = EdgeChances(came_back=given.came_back, probability=None, meaning="why not")
    found = read(certificate_page(certified(CIRCUIT, edges=unknown)))
    assert "probability" not in found.texts
    assert {"came back", "No probabilities: why not", "25%"} <= {*found.texts}


def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    certificate = certified(CIRCUIT, HOSTILE, core=CORE, rivals=(RIVAL,))
    path = tmp_path / "certificate.html"
    certificate.save(path)
    text = path.read_text()
    assert text == certificate_page(certificate)
    found = read(text)
    assert "<script" not in text
    plain = read(certificate_page(certified(CIRCUIT, "plain", core=CORE, rivals=(RIVAL,))))
    assert found.tags == plain.tags
    assert found.attributes == plain.attributes
    # It is in every place where it was given, as it was.
    expected = "".join(plain.texts).count("plain")
    assert unescape(text).count(HOSTILE) == text.count(escape(HOSTILE)) == expected > 8


def test_of_many_edges_the_first_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EDGES", 5)
    every = torch.ones(GRAPH.n_edges)
    given = EdgeChances(came_back=every, probability=None, meaning="x")
    found = read(certificate_page(certified(CIRCUIT, edges=given)))
    assert found.texts.count("100%") == 5
    assert f"and {GRAPH.n_edges - 5} more" in found.texts
