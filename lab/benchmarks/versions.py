"""Whether the package works with the versions that it allows: Pythons, and the oldest dependencies.

    python -m lab.benchmarks.versions                                          # make lower-bounds
    python -m lab.benchmarks.versions --versions pinned --python python3.13 --tests tests

1. `lower_bounds` reads what pyproject.toml itself demands of dependencies and extras: each
   `name>=version` becomes `name==version`. Nothing is typed twice.
2. A virtual environment is made with the Python named, and the package is installed there as a
   wheel with all extras: at those bounds, at the versions of constraints.txt (pinned), or at what
   the index has today (newest).
3. The smoke: every module is imported, and the commands that a new user tries first run in an empty
   folder, where the checkout cannot be imported by chance.
4. With `--tests` the words behind it go to pytest, which runs in the checkout in one process.

The last lines say what was tried with what; the exit status is not zero if anything failed. Pip's
own settings decide which build of PyTorch is taken; its usual one for Linux brings 5 GB of CUDA.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lab import ROOT

OWN = "graphcircuits"
DEVELOPERS = "dev"
"""The extra that users do not install."""
TOOLS = (
    "beartype",
    "hatchling",
    "hypothesis",
    "import-linter",
    "pytest",
    "pytest-xdist",
    "torch_geometric",
)
"""Of the development environment, what most tests need."""
IMPORTS = """
import importlib, pkgutil, sys, graphcircuits
names = [one.name for one in pkgutil.walk_packages(graphcircuits.__path__, "graphcircuits.")]
for name in names:
    importlib.import_module(name)
for name in graphcircuits.__all__:
    getattr(graphcircuits, name)
print(f"{len(names)} modules imported from {graphcircuits.__path__[0]}")
"""
SMOKE = (
    ("--version",),
    ("cases",),
    ("compile", "ib-3"),
    ("localize", "ib-3"),
    ("localize", "ib-3", "--method", "eap-ig", "--out", "ib-3.json", "--json"),
    ("evaluate", "ib-3.json", "--plot", "ib-3.svg"),
)


def lower_bounds(project: Mapping[str, Any]) -> dict[str, str]:
    """The oldest version that each dependency may have, by name; those of developers left out.

    `project` is the table of that name in pyproject.toml. A dependency without a lower bound, or
    with different ones in different places, is refused.
    """
    extras = project.get("optional-dependencies", {})
    listed = [
        *project.get("dependencies", []),
        *(line for name, lines in extras.items() if name != DEVELOPERS for line in lines),
    ]
    found: dict[str, str] = {}
    for requirement in map(Requirement, listed):
        name = canonicalize_name(requirement.name)
        if name == OWN:
            continue  # one extra that takes in another
        bounds = [one.version for one in requirement.specifier if one.operator in (">=", "==")]
        if len(bounds) != 1 or found.get(name, bounds[0]) != bounds[0]:
            raise ValueError(f"{requirement} must have one lower bound, the same everywhere.")
        found[name] = bounds[0]
    return found


def user_extras(project: Mapping[str, Any]) -> list[str]:
    return [name for name in project.get("optional-dependencies", {}) if name != DEVELOPERS]


def pins(kind: str, project: Mapping[str, Any], root: Path) -> str:
    """The constraints that pip is given."""
    if kind == "lowest":
        return "".join(f"{name}=={version}\n" for name, version in lower_bounds(project).items())
    return (root / "constraints.txt").read_text(encoding="utf-8") if kind == "pinned" else ""


def make(folder: Path, python: str, kind: str, *, tools: bool) -> None:
    """The virtual environment with the package in it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    run([python, "-m", "venv", "--clear", str(folder)])
    constraints = folder / "constraints.txt"
    constraints.write_text(pins(kind, project, ROOT), encoding="utf-8")
    wanted = [f"{ROOT}[{','.join(user_extras(project))}]", *(TOOLS if tools else ())]
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--constraint", str(constraints), *wanted])


def smoke(folder: Path) -> list[str]:
    """What fails of the first things that users do; one line each."""
    binaries, failures = folder / "bin", []
    commands = [[str(binaries / "python"), "-c", IMPORTS]]
    commands += [[str(binaries / OWN), *words] for words in SMOKE]
    with tempfile.TemporaryDirectory() as empty:
        for command in commands:
            ended = subprocess.run(
                command, cwd=empty, capture_output=True, text=True, check=False, timeout=600
            )
            name = "import everything" if command[1] == "-c" else " ".join(command[1:])
            lines = (ended.stderr if ended.returncode else ended.stdout).strip().splitlines()
            print(f"{'FAILED' if ended.returncode else 'ok':8}{name}", flush=True)
            if ended.returncode:
                print("\n".join(lines[-20:]), flush=True)
                failures.append(f"{name}: {lines[-1] if lines else ended.returncode}")
    return failures


def installed(folder: Path) -> dict[str, str]:
    """The versions of what is installed, by name."""
    listing = [str(folder / "bin" / "python"), "-m", "pip", "list", "--format", "json"]
    ended = subprocess.run(listing, capture_output=True, text=True, check=True)
    return {canonicalize_name(one["name"]): one["version"] for one in json.loads(ended.stdout)}


def run(command: Sequence[str]) -> None:
    if code := subprocess.run(command, check=False).returncode:
        raise SystemExit(f"error: exit code {code} of: {' '.join(command)}")


def tests(folder: Path, words: Sequence[str]) -> list[str]:
    """What pytest says in its last line, if anything failed."""
    command = [str(folder / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    with subprocess.Popen(
        [*command, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as running:
        last = ""
        for line in running.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
    return [f"pytest {' '.join(words)}: {last}"] if running.returncode else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, help="the environment; build/versions/... if left out")
    parser.add_argument("--python", default=sys.executable, help="the Python to make it with")
    parser.add_argument("--versions", choices=("lowest", "pinned", "newest"), default="lowest")
    parser.add_argument("--keep", action="store_true", help="use the environment that is there")
    parser.add_argument("--tests", nargs=argparse.REMAINDER, help="run pytest with these words")
    options = parser.parse_args()
    name = re.sub(r"[^\w.]+", "-", Path(options.python).name)
    folder = options.into or ROOT / "build" / "versions" / f"{name}-{options.versions}"
    folder = folder.absolute()
    if not (options.keep and folder.exists()):
        make(folder, options.python, options.versions, tools=options.tests is not None)
    failures = smoke(folder)
    if options.tests is not None:
        failures += tests(folder, options.tests)
    there = installed(folder)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = ", ".join(f"{x} {there.get(x, 'missing')}" for x in lower_bounds(project))
    ended = subprocess.run(
        [str(folder / "bin" / "python"), "--version"], capture_output=True, text=True, check=True
    )
    print(f"{ended.stdout.strip()}, {options.versions}: {listed}")
    for failure in failures:
        print(f"failed: {failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
