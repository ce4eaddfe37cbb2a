"""The package as a whole: what importing it loads, its public names, how its modules import."""

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jaxtyping
import pytest
import torch

import graphcircuits
from graphcircuits import ComponentGraph

PACKAGE = Path(graphcircuits.__file__).parent
HEAVY = {"matplotlib", "networkx", "numpy", "torch", "transformers"}


def module_names() -> list[str]:
    """Every module below the package, as `rasp.language`; a package by its own name."""
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    names = (".".join(path.parts).removesuffix("__init__").removesuffix(".") for path in paths)
    return sorted(name for name in names if name)


def test_modules_name_what_they_import() -> None:
    """A public name taken from the package itself would hide from the contracts on imports."""
    own = {"__version__", *(name for name in module_names() if "." not in name)}
    taken = {
        (path.name, alias.name)
        for path in PACKAGE.rglob("*.py")
        if re.search(r"from\s+graphcircuits\s+import\b", text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module == "graphcircuits"
        for alias in node.names
    }
    assert ("store.py", "__version__") in taken
    assert {(path, name) for path, name in taken if name not in own} == set()


@pytest.mark.slow
def test_a_class_name_is_used_once() -> None:
    found = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert found["ComponentGraph"] == 1
    assert [name for name, count in found.items() if count > 1] == []


def modules_loaded(code: str, *args: str) -> set[str]:
    """The modules that a fresh interpreter has loaded when it ends, having run `code`."""
    report = "import atexit, sys; atexit.register(lambda: sys.stderr.write(' '.join(sys.modules)))"
    command = [sys.executable, "-c", f"{report}\n{code}", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_importing_loads_nothing_heavy() -> None:
    loaded = modules_loaded("import graphcircuits; dir(graphcircuits)")
    assert "graphcircuits" in loaded
    assert loaded & HEAVY == set()


def test_help_loads_nothing_heavy() -> None:
    loaded = modules_loaded("from graphcircuits.cli import main; main()", "--help")
    assert "graphcircuits.cli" in loaded
    assert loaded & HEAVY == set()


def test_all_lists_the_exports() -> None:
    assert sorted(graphcircuits.__all__) == sorted(graphcircuits._MODULES)
    assert set(graphcircuits.__all__) <= set(dir(graphcircuits))


@pytest.mark.parametrize("name", graphcircuits.__all__)
def test_public_names_resolve(name: str) -> None:
    value = getattr(graphcircuits, name)
    # A table has no name of its own.
    assert getattr(value, "__name__", name).rpartition(".")[2] == name


@pytest.mark.parametrize("name", graphcircuits.__all__)
def test_public_names_hide_no_module(name: str) -> None:
    """Once imported, a module would take the place of a function of the same name."""
    assert name not in module_names() or graphcircuits._MODULES[name] == f"graphcircuits.{name}"


@pytest.mark.parametrize("name", graphcircuits.__all__)
def test_public_names_are_documented(name: str) -> None:
    """By a docstring of their own; a table would show that of its type."""
    value = getattr(graphcircuits, name)
    # A dataclass without a docstring is given its signature for one.
    assert name == "METHODS" or (value.__doc__ and not value.__doc__.startswith(f"{name}("))


@pytest.mark.parametrize("name", sorted(set(graphcircuits.__all__) - {"METHODS"}))
def test_public_names_have_an_example_and_a_reference(name: str) -> None:
    value = getattr(graphcircuits, name)
    text = inspect.getdoc(value) or ""
    function = callable(value) and not inspect.isclass(value)
    for heading in ("Args:", "Returns:", "Example") if function else ("Example",):
        if heading != "Args:" or inspect.signature(value).parameters:
            assert heading in text, f"{name} says no {heading}"
    assert re.search(r"docs/|paper|Reference|arXiv", text), f"{name} names no page to read on"


def test_the_page_of_public_names_is_complete() -> None:
    page = (PACKAGE.parent / "docs" / "api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\S.*) \|$", page, flags=re.MULTILINE)
    assert [name for name, _ in rows] == graphcircuits.__all__


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'graphcircuits' has no attribute 'load_cases'"):
        graphcircuits.load_cases  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_wrong_shapes_raise_in_the_test_session() -> None:
    """Without this the shape checker could fall off and every other test would still pass."""
    graph = ComponentGraph(2, 4)
    graph.promote(torch.zeros(graph.n_edges))
    with pytest.raises(jaxtyping.TypeCheckError, match="promote"):
        graph.promote(torch.tensor(0.0))
