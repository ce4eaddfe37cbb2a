"""The package as a whole: what importing it loads, its public names, the order of its modules."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import jaxtyping
import pytest
import torch

import graphcircuits
from graphcircuits import ComponentGraph

PACKAGE = Path(graphcircuits.__file__).parent
HEAVY = {"matplotlib", "networkx", "numpy", "torch", "transformers"}

# First the nouns, then the stages in pipeline order: a module may import what stands above it, or
# on its own line. A package name covers those of its modules that are not listed by themselves.
LAYERS = [
    "disk",
    "files",
    "config",
    "codec",
    "graph",
    "layers",
    "subject",
    "transformer",
    "interfaces",
    "engine",
    "intervene",
    "single_edge",
    "store",
    "circuit",
    "prompts",
    "task",
    "viewer",
    "result_files",
    "result",
    "rasp.values",
    "rasp.functions",
    "rasp.expression rasp.language rasp.interpret",  # calling a program on a list interprets it
    "rasp.selectors rasp.calls",
    "rasp.tabulate",
    "rasp.describe",
    "rasp.lookup",
    "rasp.selection",
    "rasp.layout",
    "rasp.size",
    "rasp.validate",
    "rasp.weights",
    "rasp.compile",
    "rasp.sample",
    "rasp",
    "siit",
    "benchmark",
    "features",
    "predictor.transform",
    "predictor.block",
    "predictor.align predictor.invariant predictor.dirgnn predictor.dagformer predictor.pool",
    "predictor.model",
    "predictor.ensemble",
    "predictor",
    "methods",
    "evaluate",
    "interactions",
    "figures",
    "measure",
    "cost",
    "sources",
    "bench",
    "predictor.train",
    "predictor.select",
    "runner",
    "adapters",
    "commands",
    "cli",
]
PLACES = {name: place for place, line in enumerate(LAYERS) for name in line.split()}


def module_names() -> list[str]:
    """Every module below the package, as `rasp.language`; a package by its own name."""
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    names = (".".join(path.parts).removesuffix("__init__").removesuffix(".") for path in paths)
    return sorted(name for name in names if name)


def module_path(name: str) -> Path:
    stem = PACKAGE.joinpath(*name.split("."))
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


def package_imports(source: str, module: str, *, is_package: bool) -> set[str]:
    """The modules of the package that `source`, being the text of `module`, imports anywhere."""
    known = set(module_names())
    here = ["graphcircuits", *module.split(".")]
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            up = node.level - is_package
            base = here[: len(here) - up] if node.level else []
            base += node.module.split(".") if node.module else []
            targets = [".".join([*base, alias.name]) for alias in node.names]
        for target in targets:
            root, _, name = target.partition(".")
            if root != "graphcircuits":
                continue
            # A public name stands for the module that defines it.
            name = graphcircuits._EXPORTS.get(name, target).removeprefix("graphcircuits.")
            while name not in known and "." in name:
                name = name.rpartition(".")[0]
            if name in known:
                found.add(name)
    return found - {module}


def place_of(module: str) -> int:
    """The line of LAYERS that holds `module`, by its own name or that of the nearest package."""
    name = module
    while name not in PLACES and "." in name:
        name = name.rpartition(".")[0]
    assert name in PLACES, f"{module} has no place in LAYERS of tests/test_package.py; add it there"
    return PLACES[name]


def downward(source: str, module: str, *, is_package: bool = False) -> set[str]:
    """What `module` imports from below its own place in LAYERS."""
    place = place_of(module)
    imports = package_imports(source, module, is_package=is_package)
    return {name for name in imports if place_of(name) > place}


@pytest.mark.parametrize("module", module_names())
def test_imports_point_upward(module: str) -> None:
    path = module_path(module)
    source = path.read_text(encoding="utf-8")
    assert downward(source, module, is_package=path.name == "__init__.py") == set()


@pytest.mark.parametrize(
    ("source", "module", "expected"),
    [
        ("import graphcircuits.rasp.language", "graph", {"rasp.language"}),
        ("from graphcircuits import rasp", "graph", {"rasp"}),
        ("from graphcircuits import load_case, Circuit", "codec", {"benchmark", "circuit"}),
        ("from graphcircuits.rasp import language", "graph", {"rasp.language"}),
        ("from graphcircuits.rasp.language import tokens", "graph", {"rasp.language"}),
        ("from .rasp.language import tokens", "graph", {"rasp.language"}),
        ("from . import rasp", "graph", {"rasp"}),
        ("def late():\n    from graphcircuits import rasp", "graph", {"rasp"}),
        ("from .language import tokens", "rasp.compile", set()),
        ("from .interpret import evaluate", "rasp.language", set()),
        ("from graphcircuits.codec import Codec", "graph", set()),
        ("from graphcircuits import __version__", "codec", set()),
        ("import torch", "codec", set()),
    ],
)
def test_the_import_check_fires(source: str, module: str, expected: set[str]) -> None:
    assert downward(source, module) == expected


def test_a_module_without_a_place_is_reported() -> None:
    with pytest.raises(AssertionError, match="stray has no place in LAYERS"):
        downward("", "stray")


def test_a_package_resolves_relative_imports_from_itself() -> None:
    source = "from .language import tokens\nfrom ..codec import Codec"
    found = package_imports(source, "rasp", is_package=True)
    assert found == {"rasp.language", "codec"}


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
    assert sorted(graphcircuits.__all__) == sorted(graphcircuits._EXPORTS)
    assert set(graphcircuits.__all__) <= set(dir(graphcircuits))


@pytest.mark.parametrize("name", graphcircuits.__all__)
def test_public_names_resolve(name: str) -> None:
    value = getattr(graphcircuits, name)
    # A table has no name of its own.
    assert getattr(value, "__name__", name).rpartition(".")[2] == name


@pytest.mark.parametrize("name", graphcircuits.__all__)
def test_public_names_hide_no_module(name: str) -> None:
    """Once imported, a module would take the place of a function of the same name."""
    assert name not in module_names() or graphcircuits._EXPORTS[name] == f"graphcircuits.{name}"


@pytest.mark.parametrize("name", graphcircuits.__all__)
def test_public_names_are_documented(name: str) -> None:
    """By a docstring of their own; a table would show that of its type."""
    value = getattr(graphcircuits, name)
    # A dataclass without a docstring is given its signature for one.
    assert name == "METHODS" or (value.__doc__ and not value.__doc__.startswith(f"{name}("))


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
