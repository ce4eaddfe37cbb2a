"""`make demo`: its commands leave one page, with what was found and what is true."""

import re
import shlex
from pathlib import Path

import pytest

from graphcircuits.cases import load_case
from tests.shell import Command
from tests.viewer.reading import data_of

MAKEFILE = Path(__file__).parent.parent / "Makefile"


def commands() -> list[list[str]]:
    """The words of the demo's commands."""
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", MAKEFILE.read_text(), re.MULTILINE)
    assert recipe is not None
    lines = re.findall(r"^\t\$\(BIN\)/graphcircuits (.*)$", recipe[1], re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.mark.slow
def test_the_demo_leaves_one_page(command: Command, tmp_path: Path) -> None:
    told = commands()
    assert [words[0] for words in told] == ["compile", "localize"]
    for words in told:
        ended = command(*words)
        assert (ended.code, ended.err) == (0, "")
    (page,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert page.relative_to(tmp_path).as_posix() == "build/demo/ib-13.html"
    data = data_of(page.read_text())
    assert len(data["results"]) == 1
    assert data["results"][0]["curve"] is not None
    assert data["truth"] is not None
    assert data["component_notes"] == load_case("ib-13").variables
    assert list(data["component_roles"]) == list(load_case("ib-13").roles)
    assert len(data["prompts"]) == 4
    assert page.stat().st_size < 400_000
