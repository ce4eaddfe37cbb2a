"""Every page forbids the network to itself, and holds nothing that its own policy would stop."""

import base64
import hashlib
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.result.curve import FaithfulnessCurve
from graphcircuits.result.result import Result
from graphcircuits.task.stored import StoredPrompts
from graphcircuits.viewer import app
from graphcircuits.viewer.heatmap import heat_maps
from graphcircuits.viewer.page import data_text, page, viewer_app
from tests.test_readme import python_blocks, run_block
from tests.viewer.certified import certified
from tests.viewer.reading import Tags, circuit_page, data_of, result_page

HOSTILE = "\"'></script><!--<script src=//evil.example/x.js></script>\u2028<img src=x onerror=a()>"
GRAPH = ComponentGraph(1, 2)


def result(text: str) -> Result:
    """A result with this text in every place that can hold one."""
    table = torch.zeros(1, 1, 2, 2, 2, dtype=torch.uint8)
    return Result(
        graph=GRAPH,
        scores=torch.arange(GRAPH.n_edges).float(),
        subject=text,
        task=text,
        method=text,
        options={text: text},
        notes=(text,),
        curve=FaithfulnessCurve(n_edges=GRAPH.n_edges, sizes=[1], faithfulness=[0.5], n_pairs=3),
        prompts=StoredPrompts(
            clean=[[text, text]],
            corrupted=[[text, "b"]],
            answers=[text],
            patterns=[*table],
            patterns_corrupted=[*table],
        ),
    )


def viewer(text: str) -> str:
    truth = Circuit.from_names(GRAPH, ["input->m0"])
    given = {"truth": truth, "truth_name": text, "notes": {"m0": text}, "title": text}
    given["certificate"] = certified(truth, text=text)
    return result_page([result(text), result("other")], **given)


def circuit(text: str) -> str:
    found = Circuit.from_names(GRAPH, ["input->m0"])
    return circuit_page(found, title=text, text=text, notes={"m0": text})


def heat_map(text: str) -> str:
    picture = heat_maps([text, "y"], {text: [[0.0, 1.0], [2.0, 0.0]]}, title=text)
    return page(picture, title=text, text=text)


def bare(text: str) -> str:
    return page("<p>content</p>", title=text, text=text)


def rules_of(text: str) -> dict[str, list[str]]:
    tags = Tags(text).found
    assert [tag for tag, _ in tags[:3]] == ["html", "meta", "meta"]
    about = tags[2][1]
    assert about["http-equiv"] == "Content-Security-Policy"
    rules = [rule.split() for rule in (about["content"] or "").split(";")]
    return {name: sources for name, *sources in rules}


def hashes(texts: list[str]) -> list[str]:
    digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]


@pytest.mark.parametrize("make", [viewer, circuit, heat_map, bare])
@pytest.mark.parametrize("text", ["title", HOSTILE])
def test_the_policy_comes_first_and_allows_what_is_there_by_hash(
    make: Callable[[str], str], text: str
) -> None:
    html = make(text)
    rules, tags = rules_of(html), Tags(html)
    styles = [inside for tag, inside in tags.inside if tag == "style"]
    kinds = [attributes.get("type") for tag, attributes in tags.found if tag == "script"]
    scripts = [inside for tag, inside in tags.inside if tag == "script"]
    expected = {
        "default-src": ["'none'"],
        "style-src": hashes(styles),
        "img-src": ["data:", "blob:"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    if make in (viewer, circuit):
        assert kinds == ["application/json", None]
        expected["script-src"] = hashes(scripts[1:])
        assert len(styles) == 1
    else:
        assert kinds == []
    assert rules == expected
    # The policy would stop them.
    assert not any("style" in attributes for _, attributes in tags.found)


@pytest.mark.parametrize("make", [viewer, circuit, heat_map, bare])
def test_no_text_becomes_a_tag(make: Callable[[str], str]) -> None:
    found, plain = Tags(make(HOSTILE)).found, Tags(make("title")).found
    assert [tag for tag, _ in found] == [tag for tag, _ in plain]
    assert [attributes.keys() for _, attributes in found] == [keys.keys() for _, keys in plain]
    loading = {"img", "link", "iframe", "object", "embed", "base", "use", "image"}
    assert loading.isdisjoint(tag for tag, _ in found)
    names = {name for _, attributes in found for name in attributes}
    assert not {name for name in names if name.startswith("on")} | (names & {"src", "href"})


def test_data_ends_nothing_and_is_read_back() -> None:
    html = viewer(HOSTILE)
    text = re.findall(r'id="data">(.*?)</script>', html)[0]
    assert "<" not in text
    assert text.isascii()
    data = data_of(html)
    assert data["title"] == data["truth"]["name"] == data["component_notes"]["m0"] == HOSTILE
    assert data["prompts"][0]["clean"] == [HOSTILE, HOSTILE]
    assert data["results"][0]["notes"] == data["certificate"]["notes"] == [HOSTILE]
    assert data_text({"a": "\ud800\u2029"}) == r'{"a":"\ud800\u2029"}'
    with pytest.raises(ValueError, match="JSON compliant"):
        data_text({"a": float("nan")})


def test_titles_of_undecodable_paths() -> None:
    assert "<title>\\udc80</title>" in bare("\udc80")
    bare("\udc80").encode()


def test_the_viewer_is_made_of_its_files() -> None:
    found, folder = viewer_app(), files(app)
    for name, part in (("page.html", found.markup), ("style.css", found.style)):
        assert folder.joinpath(name).read_text("utf-8") == part
    texts = [folder.joinpath(name).read_text("utf-8") for name in app.SCRIPTS]
    assert "\n".join(texts) == found.script
    there = {file.name for file in folder.iterdir() if file.name.endswith(".js")}
    assert there == set(app.SCRIPTS)


def test_a_page_is_small() -> None:
    """110 edges, and four prompts of ten tokens: 400 kB at most."""
    graph = ComponentGraph(2, 4)
    table = torch.zeros(4, 2, 4, 10, 10, dtype=torch.uint8)
    words = [["a word"] * 10] * 4
    prompts = StoredPrompts(
        clean=words,
        corrupted=words,
        answers=[None] * 4,
        patterns=[*table],
        patterns_corrupted=[*table],
    )
    scored = Result(graph=graph, scores=torch.randn(graph.n_edges), prompts=prompts)
    assert graph.n_edges == 110
    assert len(result_page([scored, scored], truth=scored.circuit(edges=9)).encode()) < 400_000


@pytest.mark.slow
def test_the_page_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/viewer.md says of Python works, and its pictures are there."""
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "viewer.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    for block in python_blocks(text):
        run_block(block, {})
    data = data_of((tmp_path / "ib-13.html").read_text())
    assert [one["name"] for one in data["results"]] == ["gcl", "eap-ig"]
    pictures = re.findall(r"!\[[^\]]+\]\((figures/\S+)\)", text)
    assert len(pictures) == 4
    assert all(0 < (docs / picture).stat().st_size < 250_000 for picture in pictures)
