"""Figures of docs/limits.md and rows of README's two tables say where they come from."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from graphcircuits.cli import app

ROOT = Path(__file__).parent.parent
LIMITS, README = ROOT / "docs" / "limits.md", ROOT / "README.md"
COMMAND = re.compile(r"(graphcircuits|python -m|make) ([a-z][\w.-]*)")
LINK = re.compile(r"\]\(([^)#]+\.md)[^)]*\)")


def bullets(text: str) -> list[str]:
    return [part.partition("\n\n")[0] for part in re.split(r"^- ", text, flags=re.MULTILINE)[1:]]


def rows(text: str) -> Iterator[str]:
    """Those of the tables of what the package is good at, and not."""
    for table in re.findall(
        r"^\| (?:Good|Not good) at \|.*\n\|.*\n((?:\|.*\n)+)", text, re.MULTILINE
    ):
        yield from table.splitlines()


def has_figure(claim: str) -> bool:
    """Whether there is a number in its words: links and code are left out."""
    return re.search(r"\d", re.sub(r"\]\([^)]*\)|`[^`]*`", "", claim)) is not None


def commands(text: str) -> list[tuple[str, str]]:
    """Those that stand as code, in a line or in a block."""
    code = re.findall(r"```(?:sh|text)?\n.*?```|`[^`]+`", text, flags=re.DOTALL)
    return [match for part in code for match in COMMAND.findall(part)]


def origins(claim: str, page: Path) -> list[tuple[str, str]]:
    """The commands that a claim names, or else those of the pages that it links to."""
    linked = [page.parent / target for target in LINK.findall(claim)]
    return commands(claim) or [x for path in linked for x in commands(path.read_text("utf-8"))]


def test_every_figure_of_the_limits_has_its_command() -> None:
    claims = [claim for claim in bullets(LIMITS.read_text("utf-8")) if has_figure(claim)]
    assert len(claims) > 10
    assert [claim for claim in claims if not origins(claim, LIMITS)] == []


def test_every_row_of_the_readme_has_its_command_or_its_page() -> None:
    claims = list(rows(README.read_text("utf-8")))
    assert len(claims) > 6
    assert [row for row in claims if not LINK.search(row) and not commands(row)] == []
    figures = [row for row in claims if has_figure(row)]
    assert [row for row in figures if not origins(row, README)] == []


def test_the_commands_of_the_limits_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    words = {
        info.name or getattr(info.callback, "__name__", "") for info in app.registered_commands
    }
    found = commands(LIMITS.read_text("utf-8"))
    assert len(found) > 10
    for program, name in found:
        known = {"make": targets, "graphcircuits": words}.get(program)
        assert find_spec(name) if known is None else name in known, f"{program} {name}"


def test_a_figure_without_a_command_is_caught(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    [bare, *_] = bullets("- Its CMD is .13 ([page](page.md#there)).\n- Other.\n")
    for text, expected in [("Words.", []), ("By `make it`.", [("make", "it")])]:
        page.write_text(text, "utf-8")
        assert has_figure(bare)
        assert origins(bare, page) == expected
    assert not has_figure("Two of `ib-3` ([page](results/2.md)).")


@pytest.mark.parametrize("text", ["| Good at | |\n| --- | --- |\n| This | .9 |\n\n| Other |\n"])
def test_rows_are_those_of_the_two_tables(text: str) -> None:
    assert list(rows(text)) == ["| This | .9 |"]
