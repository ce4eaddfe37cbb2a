"""The page of the command line, from the commands themselves: what `--help` says, as tables.

The page holds the line `<!-- commands -->`; what stands for it is made at every build, so that it
cannot fall out of step.
"""

import re
from typing import Any

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(MARK, sections()) if MARK in markdown else markdown


def sections() -> str:
    """One section per command: what it does, how it is called, its arguments and options."""
    import typer

    from graphcircuits.cli import app

    commands: Any = typer.main.get_command(app)
    shown = {name: one for name, one in commands.commands.items() if not one.hidden}
    return "\n\n".join(_section(name, command) for name, command in shown.items())


def _section(name: str, command: Any) -> str:
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    rows = [_row(parameter) for parameter in shown if parameter.name != "help"]
    table = ["| Argument or option | Meaning |", "| --- | --- |", *rows]
    usage = " ".join(["graphcircuits", name, *filter(None, map(_usage, shown)), "[OPTIONS]"])
    return "\n\n".join(
        [f"## {name}", _escaped(command.help), f"```text\n{usage}\n```", "\n".join(table)]
    )


def _usage(parameter: Any) -> str:
    if _is_option(parameter):
        return f"{parameter.opts[0]} {_takes(parameter)}" if parameter.required else ""
    name = _takes(parameter)
    return name if parameter.required else f"[{name}]"


def _row(parameter: Any) -> str:
    option = _is_option(parameter)
    names = ", ".join(f"`{each}`" for each in (parameter.opts if option else [_takes(parameter)]))
    takes = f" {_takes(parameter)}" if option and not parameter.is_flag else ""
    more = []
    if parameter.required:
        more.append("Required.")
    if parameter.default not in (None, False, [], ()):
        more.append(f"Default: `{parameter.default}`.")
    return f"| {names}{takes} | {' '.join([_escaped(parameter.help or ''), *more])} |"


def _is_option(parameter: Any) -> bool:
    return parameter.opts[0].startswith("-")


def _takes(parameter: Any) -> str:
    """What stands for the value: that of `--help` where it names one, else the name or the type."""
    if parameter.metavar:
        return parameter.metavar.strip("[]")
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", str)
    name: str = parameter.name.upper().replace("_", "-")
    kinds: dict[object, str] = {int: "N", float: "NUMBER"}
    return kinds.get(kind, name) if _is_option(parameter) else name


def _escaped(text: str) -> str:
    """Words of the terminal as Markdown: one paragraph per paragraph, brackets and bars as such."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()))
    return re.sub(r"([\[\]|<>*_])", r"\\\1", "\n\n".join(paragraphs))
