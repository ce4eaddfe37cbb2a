"""Notebooks as pages: text as it is, code as blocks, and what came of it below.

1. `on_files` takes every `notebooks/NAME.ipynb` of the docs and adds a page `notebooks/NAME.md`.
2. Links from one notebook to another lead to its page.
3. Of each output the richest form is shown: a page fragment, a picture, else text.

Nothing is run here: outputs are those in the file.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File


def on_files(files: Any, config: Any) -> Any:
    for path in sorted((Path(config.docs_dir) / "notebooks").glob("*.ipynb")):
        uri = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, uri, content=as_markdown(path)))
    return files


def as_markdown(path: Path) -> str:
    """The notebook as one Markdown page, with a link to the notebook itself."""
    import nbformat

    notebook: Any = nbformat.read(path, as_version=4)
    told = f"This page is a notebook: [{path.name}]({path.name}) can be run as it is."
    parts = [_cell(cell) for cell in notebook.cells]
    title, *rest = [part for part in parts if part]
    head, _, opening = title.partition("\n")
    return "\n\n".join([head, told, opening.strip(), *rest]) + "\n"


def _cell(cell: Any) -> str:
    if cell.cell_type == "markdown":
        return re.sub(r"\]\((\w+)\.ipynb", r"](\1.md", cell.source)
    if cell.cell_type != "code" or not cell.source.strip():
        return ""
    shown = [_output(output) for output in cell.outputs]
    return "\n\n".join([_fenced(cell.source, "python"), *filter(None, shown)])


def _output(output: Any) -> str:
    if output.output_type == "stream":
        return _fenced(output.text, "text")
    data = output.get("data", {})
    if "text/html" in data:
        return _apart(data["text/html"])
    if "image/svg+xml" in data:
        return _apart(data["image/svg+xml"])
    if "image/png" in data:
        encoded = "".join(data["image/png"].split())
        return (
            f'<img class="output" alt="output of the cell" src="data:image/png;base64,{encoded}">'
        )
    if "text/plain" in data:
        return _fenced(data["text/plain"], "text")
    return _fenced("\n".join(output.get("traceback", [])), "text")


def _fenced(text: str, language: str) -> str:
    """A block that nothing inside can close."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).rstrip()
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}" if text else ""


def _apart(fragment: str) -> str:
    """A fragment in a tree of its own: the site's styles do not reach it, its own stay inside. What
    it inherits are colours, so that it is readable on a dark page too."""
    inside = f'<template shadowrootmode="open">{fragment}</template>'
    return f'<div class="output">{re.sub(chr(10) + "+", chr(10), inside)}</div>'
