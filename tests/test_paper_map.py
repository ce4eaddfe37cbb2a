"""The page that maps the paper to the code: every equation is there, and all it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import graphcircuits

PACKAGE = Path(graphcircuits.__file__).parent
ROOT = PACKAGE.parent
PAGE = ROOT / "docs" / "paper-map.md"
REFERENCE = re.compile(r"`([\w/]+\.py)(?:: ([\w.]+))?`")
EQUATIONS = 59
"""As many as the paper numbers."""


def place(path: str) -> Path:
    own = ROOT if path.startswith(("tests/", "lab/")) else PACKAGE
    return own / path


@cache
def names_of(path: Path) -> frozenset[str]:
    """What a file defines, and the members of its classes as `Class.member`."""
    found: set[str] = set()

    def add(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.FunctionDef(name=name):
                    found.add(prefix + name)
                case ast.ClassDef(name=name, body=inside):
                    found.add(prefix + name)
                    add(inside, f"{name}.")
                case ast.Assign(targets=[ast.Name(id=name)]):
                    found.add(prefix + name)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(prefix + name)

    add(ast.parse(path.read_text("utf-8")).body, "")
    return frozenset(found)


def missing(text: str) -> list[str]:
    """Files and names in the text that do not exist."""
    lost = []
    for path, name in REFERENCE.findall(text):
        if not place(path).is_file() or (name and name not in names_of(place(path))):
            lost.append(f"{path}: {name}")
    return lost


def test_every_file_and_name_exists() -> None:
    text = PAGE.read_text("utf-8")
    assert len(REFERENCE.findall(text)) > 80
    assert missing(text) == []


def test_what_does_not_exist_is_found() -> None:
    assert missing("`graph.py: Circuit`, `graph.py: ComponentGraph.promote`, `nowhere.py`") == [
        "graph.py: Circuit",
        "nowhere.py: ",
    ]


def test_every_equation_has_its_row_once() -> None:
    rows = re.findall(r"^\| ((?:\(\d+\)(?:, )?)+)", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    numbers = [int(number) for row in rows for number in re.findall(r"\d+", row)]
    assert numbers == list(range(1, EQUATIONS + 1))


def test_what_is_not_implemented_has_a_reason() -> None:
    text = PAGE.read_text("utf-8")
    told = re.findall(r"not implemented[^|]*", text)
    assert len(told) >= 5
    assert [one for one in told if not re.search(r"because|:", one)] == []
