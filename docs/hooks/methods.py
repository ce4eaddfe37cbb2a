"""The table of methods with their options, from the methods themselves, at every build."""

import inspect
from typing import Any

MARK = "<!-- methods -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(MARK, table()) if MARK in markdown else markdown


def table() -> str:
    from graphcircuits.methods import METHODS

    rows = [
        "| Method | Computes | Options, with defaults | File in `methods/` |",
        "| --- | --- | --- | --- |",
    ]
    for name, entry in METHODS.items():
        run: Any = entry.run
        says = (inspect.getdoc(run) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        options = ", ".join(f"`{key}={_shown(value)}`" for key, value in entry.options.items())
        file = inspect.getmodule(run).__name__.rpartition(".")[2]  # type: ignore[union-attr]
        rows.append(f"| `{name}` | {says} | {options} | `{file}.py` |")
    return "\n".join(rows)


def _shown(value: object) -> str:
    """A long row of numbers by its ends."""
    if isinstance(value, tuple) and len(value) > 4:
        return f"({value[0]:g}, ..., {value[-1]:g})"
    return repr(value)
