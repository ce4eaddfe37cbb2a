"""What the site makes of pages: links that lead out, the command line, notebooks."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HOOKS = Path(__file__).parent.parent / "docs" / "hooks"


def hook(name: str) -> Any:
    """The module, as mkdocs loads it: by its path."""
    spec = spec_from_file_location(f"site_{name}", HOOKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("repo_url", "wanted"),
    [
        ("", '<span title="CONTRIBUTING.md, in the repository">more</span>'),
        ("https://e.org/x/", "[more](https://e.org/x/blob/main/CONTRIBUTING.md)"),
    ],
)
def test_links_that_lead_out(repo_url: str, wanted: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="results/a.md"))
    text = "[more](../../CONTRIBUTING.md), [b](../b.md#c), ![p](../p.png), [n](notebooks/n.ipynb)"
    found = hook("links").on_page_markdown(text, page, SimpleNamespace(repo_url=repo_url))
    assert found == f"{wanted}, [b](../b.md#c), ![p](../p.png), [n](notebooks/n.md)"


def test_commands_as_tables() -> None:
    text = hook("commands").sections()
    assert "## localize\n\nRank the edges of a transformer" in text
    assert "graphcircuits evaluate RESULT..." in text
    assert "graphcircuits train --out OUT [OPTIONS]" in text
    assert "| `--pairs` N | " in text
    assert "Default: `64`. |" in text
    assert "| `--ray` ADDRESS | Work on Ray instead" in text
    assert hook("commands").on_page_markdown("plain text") == "plain text"


NOTEBOOK = """{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [
 {"cell_type": "markdown", "id": "a", "metadata": {},
  "source": "# Title\\n\\nOpening [b](b.ipynb)."},
 {"cell_type": "code", "id": "b", "metadata": {}, "execution_count": 1, "source": "x = '```'",
  "outputs": [{"output_type": "stream", "name": "stdout", "text": "\\u001b[1mtold\\u001b[0m\\n"},
   {"output_type": "display_data", "metadata": {}, "data":
    {"text/plain": "plain", "text/html": "<b>rich</b>\\n\\n<i>more</i>"}},
   {"output_type": "display_data", "metadata": {}, "data": {"image/png": "QUJD\\n"}},
   {"output_type": "execute_result", "execution_count": 1, "metadata": {},
    "data": {"text/plain": "3"}}]}]}"""


def test_notebooks_as_pages(tmp_path: Path) -> None:
    path = tmp_path / "five.ipynb"
    path.write_text(NOTEBOOK, "utf-8")
    parts = hook("notebooks").as_markdown(path).rstrip().split("\n\n")
    assert parts == [
        "# Title",
        "This page is a notebook: [five.ipynb](five.ipynb) can be run as it is.",
        "Opening [b](b.md).",
        "````python\nx = '```'\n````",
        "```text\ntold\n```",
        '<div class="output"><template shadowrootmode="open">'
        "<b>rich</b>\n<i>more</i></template></div>",
        '<img class="output" alt="output of the cell" src="data:image/png;base64,QUJD">',
        "```text\n3\n```",
    ]
