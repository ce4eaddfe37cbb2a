"""The distributions as the package index gets them: what is in them, what their page shows, what
type checkers see, and how to cite them. `make dist` builds them, twice, and compares the bytes."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.builders.plugin.interface import BuilderInterface
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from markdown_it import MarkdownIt

import graphcircuits
from hatch_build import IndexReadme, for_index

ROOT = Path(graphcircuits.__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def files_of(builder: type[BuilderInterface[Any, Any]]) -> dict[str, Path]:
    """What a distribution holds: paths there, and where they come from."""
    found = builder(str(ROOT)).recurse_included_files()
    return {one.distribution_path: Path(one.path) for one in found}


def tree(folder: Path) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_and_nothing_else() -> None:
    found = set(files_of(WheelBuilder))
    assert found == tree(ROOT / "graphcircuits")
    assert "graphcircuits/py.typed" in found
    assert sum(name.startswith("graphcircuits/data/subjects/") for name in found) > 100


def test_the_source_holds_what_builds_and_tests_it() -> None:
    found = files_of(SdistBuilder)
    tops = {name.partition("/")[0] for name in found}
    assert tops >= {"graphcircuits", "tests", "docs", "lab", "hatch_build.py", "README.md"}
    assert tops >= {"LICENSE", "CITATION.cff", "constraints.txt", "pyproject.toml", "Makefile"}
    assert not tops & {".venv", "build", "dist", ".git", "runs", "results"}
    assert set(found) >= tree(ROOT / "graphcircuits") | tree(ROOT / "tests")
    # As a checkout weighs it, in whole blocks.
    blocks = sum(-(-path.stat().st_size // 4096) for path in found.values())
    assert blocks * 4096 < 48 * 2**20


# The page on the index


LINKS = """
[docs](docs/a.md), [web](https://a.org/b), ![a graph](docs/a.png) and [![sign](a.svg)](docs/b.md).

```md
[kept](docs/a.md)
```

<picture><source srcset="docs/dark.png"><img width="9" src="docs/light.png" alt="a page"></picture>
<img src="https://a.org/b.png"> [there](#there)
"""


def test_what_only_the_repository_has_is_not_linked() -> None:
    assert (
        for_index(LINKS)
        == """
docs, [web](https://a.org/b), a graph and sign.

```md
[kept](docs/a.md)
```

<picture>a page</picture>
<img src="https://a.org/b.png"> [there](#there)
"""
    )


def test_the_page_renders_without_dead_links() -> None:
    metadata: dict[str, Any] = {}
    IndexReadme(str(ROOT), {}).update(metadata)
    assert metadata["readme"]["content-type"] == "text/markdown"
    text = metadata["readme"]["text"]
    assert text.startswith("# graphcircuits\n")
    page = MarkdownIt("commonmark").enable("table").render(text)
    assert page.count("<pre>") == text.count("```") / 2
    targets = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_metadata() -> None:
    names = PROJECT["classifiers"]
    versions = [name.rpartition(" ")[2] for name in names if re.search(r":: 3\.\d+$", name)]
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    assert PROJECT["requires-python"] == ">=3.11"
    assert (PROJECT["license"], PROJECT["license-files"]) == ("MIT", ["LICENSE"])
    assert "Typing :: Typed" in names
    assert all(re.match(r"https://\S+$", address) for address in PROJECT.get("urls", {}).values())
    assert set(PROJECT["dynamic"]) == {"readme", "version"}


def test_the_citation_names_the_package_and_the_paper() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    # What the format, 1.2.0, demands.
    assert found["cff-version"] == "1.2.0"
    assert all(isinstance(found[key], str) and found[key] for key in ("message", "title"))
    assert found["type"] == "software"
    assert found["authors"]
    assert (found["title"], found["version"]) == ("graphcircuits", graphcircuits.__version__)
    assert found["license"] == PROJECT["license"]
    [paper] = found["references"]
    assert paper["title"] == "Can Graph Learning Learn Circuits?"
    for key in ("type", "title", "authors"):
        assert paper[key]
    for author in [*found["authors"], *paper["authors"]]:
        assert set(author) in ({"name"}, {"family-names", "given-names"})


# Types


PROBE = """
import graphcircuits as gc
from graphcircuits import rasp

case = gc.load_case("ib-3")
result = gc.localize(case.subject(), case.pairs(8))
reveal_type(gc.load_case)
reveal_type(gc.localize(case.subject(), case.pairs(8)))
reveal_type(result.circuit(edges=3))
reveal_type(gc.compile_program)
reveal_type(rasp.tokens)
gc.load_case(3)
"""


@pytest.mark.slow
def test_type_checkers_see_the_names_that_are_imported_late(tmp_path: Path) -> None:
    """In an environment of its own, into which the wheel's Python files were put."""
    venv.create(tmp_path / "venv", symlinks=True)
    [site] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    for name, path in files_of(WheelBuilder).items():
        if path.suffix in (".py", ".typed"):
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, site / name)
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"])
    (tmp_path / "probe.py").write_text(PROBE)
    python = tmp_path / "venv" / "bin" / "python"
    ended = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", python, "probe.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(ended.stdout)["generalDiagnostics"]
    told = [one["message"] for one in found if one["severity"] == "information"]
    assert told == [
        'Type of "gc.load_case" is "(id: str) -> Case"',
        'Type of "gc.localize(case.subject(), case.pairs(8))" is "Result"',
        'Type of "result.circuit(edges=3)" is "Circuit"',
        told[3],
        'Type of "rasp.tokens" is "SOp"',
    ]
    assert told[3].endswith('-> CompiledModel"')
    [wrong] = [one for one in found if one["severity"] == "error"]
    assert 'cannot be assigned to parameter "id"' in wrong["message"]
    assert wrong["range"]["start"]["line"] == PROBE.splitlines().index("gc.load_case(3)")
