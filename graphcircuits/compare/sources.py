"""The code that a function runs, as one hash: stored results know when it has changed.

1. `sources_of` lists a module and the modules of this package that it imports, directly or through
   others, wherever in their text. A name that the package itself hands on stands for its module.
   Of a package only what is imported from it counts, not the rest of what its `__init__` loads.
   Rooms that only draw are left out: no score depends on a picture.
2. `source_hash` hashes their texts, comments and all: any changed line among them changes it.

Not covered are other libraries, and methods typed at a prompt, which have no file.
"""

import ast
import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

import graphcircuits
from graphcircuits.io.store import content_hash

PACKAGE = graphcircuits.__name__
ROOT = Path(graphcircuits.__file__).parent
PICTURES = (f"{PACKAGE}.drawing", f"{PACKAGE}.viewer")


def source_hash(function: Callable[..., object]) -> str:
    """A hash of the text of the function's module and of all that it imports from this package."""
    return _hash(inspect.unwrap(getattr(function, "func", function)).__module__)


@cache
def _hash(module: str) -> str:
    return content_hash({name: text_of(name) for name in sources_of(module)})


def sources_of(module: str) -> list[str]:
    """The module and those of this package that it depends on, sorted by name."""
    found, waiting = {module}, [module]
    while waiting:
        imported = {name for name in _imports(waiting.pop()) if not name.startswith(PICTURES)}
        imported -= found
        found |= imported
        waiting += imported
    return sorted(found)


@cache
def _imports(module: str) -> frozenset[str]:
    """The modules of this package that a module imports anywhere in its text."""
    path = _path(module)
    inside = (
        module if path is not None and path.name == "__init__.py" else module.rpartition(".")[0]
    )
    found = set()
    for node in ast.walk(ast.parse(text_of(module))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = resolve_name("." * node.level + (node.module or ""), inside)
            names = [f"{start}.{alias.name}" for alias in node.names]
        ours = [name for name in names if name.startswith(f"{PACKAGE}.")]
        found |= {_module_of(name) for name in ours}
    return frozenset(found - {PACKAGE})


def _module_of(name: str) -> str:
    """The module of this package that holds a dotted name, or is called by it."""
    name = graphcircuits._EXPORTS.get(name.removeprefix(f"{PACKAGE}."), name)
    while name != PACKAGE and _path(name) is None:
        name = name.rpartition(".")[0]
    return name


def _path(module: str) -> Path | None:
    """The file of a module of this package, if there is such a module."""
    stem = ROOT.joinpath(*module.split(".")[1:])
    for path in (stem / "__init__.py", stem.with_suffix(".py")):
        if module.split(".")[0] == PACKAGE and path.is_file():
            return path
    return None


def text_of(module: str) -> str:
    """The text of a module, ours or a user's; nothing where it has no file."""
    path = _path(module)
    if path is None:
        file = getattr(sys.modules.get(module), "__file__", None)
        path = Path(file) if file else None
    return "" if path is None else path.read_text("utf-8")
