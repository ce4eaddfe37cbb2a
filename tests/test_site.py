"""The documentation site builds without a warning, leads nowhere that is not there, and loads
nothing from elsewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import graphcircuits
from tests.html_links import broken, from_outside, pages_of

ROOT = Path(graphcircuits.__file__).parents[1]
LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(([^)\s]+)\)")


def built(folder: Path) -> Path:
    """The built site; any warning ends the build."""
    words = ["-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]  # --quiet hears none
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert "WARNING" not in told
    return folder


def links_lead_somewhere(site: Path) -> None:
    assert len(pages_of(site)) > 50
    assert broken(site) == []


def nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert from_outside(site) == []


def search_works_from_the_files(site: Path) -> None:
    text = (site / "search" / "search_index.js").read_text("utf-8")
    index = json.loads(text.removeprefix("var __index = "))
    found = [doc["location"] for doc in index["docs"] if "faithfulness" in doc["text"].lower()]
    assert "evaluate.html#faithfulness" in found
    page = (site / "index.html").read_text("utf-8")
    assert re.search(r'<script src="[^"]*assets/iframe-worker.js"', page)


def the_commands_are_those_of_the_command_line(site: Path) -> None:
    import typer

    from graphcircuits.cli import app

    page = (site / "reference" / "commands.html").read_text("utf-8")
    commands = vars(typer.main.get_command(app))["commands"]
    assert len(commands) >= 13
    for name, command in commands.items():
        assert (f'<h2 id="{name}">' in page) is not command.hidden
        if command.hidden:
            continue
        for parameter in command.params:
            if parameter.name != "help" and parameter.opts[0].startswith("--"):
                assert f"<code>{parameter.opts[0]}</code>" in page, (name, parameter.opts)


def the_methods_are_those_of_the_table(site: Path) -> None:
    page = (site / "reference" / "methods.html").read_text("utf-8")
    rows = {name for name in graphcircuits.METHODS if f"<td><code>{name}</code></td>" in page}
    assert rows == set(graphcircuits.METHODS)
    assert re.search("<code>rule=.{1,6}midpoint", page)


def public_names_are_in_the_reference(site: Path) -> None:
    """By a heading of their own, where mkdocstrings found a docstring."""
    pages = pages_of(site)
    ids = set().union(*(page.ids for name, page in pages.items() if name.startswith("reference/")))
    modules = {"METHODS", "rasp", "tasks"}
    lost = [
        name
        for name in graphcircuits.__all__
        if name not in modules and not any(each.endswith(f".{name}") for each in ids)
    ]
    assert lost == []


@pytest.mark.slow
def test_the_site(tmp_path: Path) -> None:
    """One build for all of it: it takes seconds."""
    site = built(tmp_path / "site")
    links_lead_somewhere(site)
    nothing_is_loaded_from_elsewhere(site)
    search_works_from_the_files(site)
    the_commands_are_those_of_the_command_line(site)
    the_methods_are_those_of_the_table(site)
    public_names_are_in_the_reference(site)


def resolved(page: Path) -> list[str]:
    """Links of a Markdown page that lead to no file of the repository."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    local = [link.split("#")[0] for link in LINK.findall(text) if ":" not in link]
    return [link for link in local if link and not (page.parent / link).exists()]


def test_links_of_the_repository_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]
    assert ROOT / "README.md" in pages
    assert ROOT / "CONTRIBUTING.md" in pages
    assert {page.name: lost for page in pages if (lost := resolved(page))} == {}


def test_what_is_lost_or_outside_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">x</h1><a href="#top">1</a><a href="#low">2</a><a href="b.html">3</a>'
        '<a href="https://example.org">4</a><img src="data:image/png;base64,AA==">'
        '<img src="no.png">'
        '<script src="//cdn.example/x.js"></script><link rel="canonical" href="https://e.org/">'
        '<link rel="stylesheet" href="s.css"><style>p{background:url(https://e.org/f.png)}</style>'
        '<iframe src="http://e.org/"></iframe><a href="sub/">5</a>'
    )
    (tmp_path / "s.css").write_text("@import 'https://e.org/more.css'; p { color: red }")
    lost = ["#low", "b.html", "sub/", "no.png"]
    assert broken(tmp_path) == [f"a.html -> {each}" for each in lost]
    assert from_outside(tmp_path) == [
        "a.html -> //cdn.example/x.js",
        "a.html -> https://e.org/f.png",
        "a.html -> http://e.org/",
        "s.css -> https://e.org/more.css",
    ]
