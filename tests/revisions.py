"""Fingerprints of the code behind revision numbers, so that nobody forgets to raise one.

Stored runs of a bench are used again as long as revision numbers are the same (`compare/runs.py`).
The fingerprint of a number is a hash of the modules that its scores depend on, without comments,
docstrings and layout. tests/data/revisions.json holds number and fingerprint as they were recorded.

After a change of code: raise the number if scores change, then record the new fingerprints with

    python -m tests.revisions
"""

import ast
import hashlib
import json
from functools import cache
from pathlib import Path

import grimp

import graphcircuits
from graphcircuits.compare.runs import CERTIFICATE_REVISION, CURVE_REVISION, SHARED_REVISION
from graphcircuits.methods import FLOORS, METHODS

FILE = Path(__file__).parent / "data" / "revisions.json"
ROOT = Path(graphcircuits.__file__).parent
SHARED = ("graph", "circuit", "subject", "engine", "task", "predictor.paths")
"""What all methods run on."""
METHOD = ("methods", "predictor")
CURVE = ("evaluation.evaluate", "result.curve", "result.result", "adapters.mib")
ASKING = ("chance", "cuts", "judging", "rivals", "searching", "sufficient")
CERTIFICATE = (
    *(f"certificates.{name}" for name in ASKING),
    *(f"evaluation.{name}" for name in ("evaluate", "localize", "proposal", "pruning")),
    "methods.refine",
)

Recorded = dict[str, tuple[int, str]]


def current() -> Recorded:
    """Revision and fingerprint of every method, of what they share, of curve and certificates."""
    shared = {name for name in imports().modules if _is_in(name, SHARED)}
    found = {
        "what all methods share": (SHARED_REVISION, fingerprint(shared)),
        "the faithfulness curve": (
            CURVE_REVISION,
            fingerprint(behind("graphcircuits.evaluation.evaluate", CURVE)),
        ),
        "certificates": (
            CERTIFICATE_REVISION,
            fingerprint(behind("graphcircuits.certificates.certify", CERTIFICATE)),
        ),
    }
    for name, method in {**METHODS, **FLOORS}.items():
        modules = behind(method.run.__module__, METHOD) - shared
        found[name] = (method.revision, fingerprint(modules))
    return found


@cache
def imports() -> grimp.ImportGraph:
    """Who imports whom, as the library behind the contracts on imports sees it."""
    return grimp.build_graph("graphcircuits", exclude_type_checking_imports=True)


def behind(module: str, rooms: tuple[str, ...]) -> set[str]:
    """A module and those of these rooms that it imports, directly or through others of them."""
    found, waiting = {module}, [module]
    while waiting:
        new = imports().find_modules_directly_imported_by(waiting.pop()) - found
        waiting += [name for name in new if _is_in(name, rooms)]
        found |= set(waiting)
    return found


def fingerprint(modules: set[str]) -> str:
    """A hash of what modules do: their text without comments, docstrings and layout."""
    texts = [f"{name}\n{normalised(_path(name).read_text('utf-8'))}" for name in sorted(modules)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def normalised(text: str) -> str:
    """The syntax tree of a module, without texts that stand alone: docstrings of any kind."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_docstring(one)]  # pyright: ignore
    return ast.dump(tree)


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_in(module: str, rooms: tuple[str, ...]) -> bool:
    name = module.removeprefix("graphcircuits.")
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def _path(module: str) -> Path:
    stem = ROOT.joinpath(*module.split(".")[1:])
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


def recorded() -> Recorded:
    return {name: tuple(values) for name, values in json.loads(FILE.read_text()).items()}


if __name__ == "__main__":
    FILE.write_text(json.dumps(current(), indent=1) + "\n")
