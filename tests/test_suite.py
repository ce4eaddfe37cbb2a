"""The tests as a whole: what they compare with is in the checkout, and none is passed over."""

import ast
import gzip
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import CLUSTER, pytest_collection_modifyitems
from tests.tiers import some

TESTS = Path(__file__).parent
DATA = TESTS / "data"
PASSING_OVER = {"skip", "skipif", "importorskip", "xfail", "SkipTest", "skipTest"}


def passed_over(source: str) -> Iterator[int]:
    """Lines that leave a test out, or that let it fail."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) | ast.alias(name=name) if name in PASSING_OVER:
                yield node.lineno


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import pytest\n@pytest.mark.skipif(True, reason='')\ndef test_a(): pass", [2]),
        ("import pytest\ntorch = pytest.importorskip('torch')", [2]),
        ("from pytest import skip\n\n\ndef test_a():\n    skip('later')", [1]),
        ("import pytest\n@pytest.mark.gpu\ndef test_a(skip=1): pass", []),
    ],
)
def test_what_passes_a_test_over_is_found(source: str, lines: list[int]) -> None:
    assert list(passed_over(source)) == lines


def test_no_test_is_passed_over() -> None:
    """What needs CUDA has the mark `gpu`, what needs weights of others `models`; everything else
    runs on every machine."""
    found = {
        f"{path.relative_to(TESTS)}:{line}"
        for path in TESTS.rglob("*.py")
        if any(word in (text := path.read_text("utf-8")) for word in PASSING_OVER)
        for line in passed_over(text)
    }
    assert found == set()


NEEDED = {"einops", "jaxtyping", "networkx", "numpy", "safetensors", "torch"}
GPU_MACHINE = NEEDED | {"hypothesis", "pytest", "transformers"}
"""Installed wherever there is a GPU; what tests of pages, notebooks and packaging need is not."""


def imported(path: Path, seen: set[Path]) -> set[str]:
    """Packages that a file of the tests imports as it is read, and the files of the tests that it
    imports in turn."""
    if path in seen:
        return set()
    seen.add(path)
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            file = (TESTS.parent / name.replace(".", "/")).with_suffix(".py")
            found |= imported(file, seen) if file.is_file() else {name.partition(".")[0]}
    return found - {"graphcircuits", "lab", "tests"} - sys.stdlib_module_names


def test_tests_for_a_gpu_run_where_the_tools_of_developers_are_missing() -> None:
    target = re.search(r"^test-gpu:.*\n(?:\t.*\n)+", (TESTS.parent / "Makefile").read_text(), re.M)
    assert target is not None
    assert "grep -rl --include='test_*.py' 'pytest.mark.gpu' tests" in target[0]
    files = [path for path in TESTS.rglob("test_*.py") if "pytest.mark.gpu" in path.read_text()]
    assert len(files) > 10
    folders = {folder for path in files for folder in path.parents}
    files += [folder / "conftest.py" for folder in folders if (folder / "conftest.py").is_file()]
    seen: set[Path] = set()
    assert {name for path in files for name in imported(path, seen)} <= GPU_MACHINE
    assert TESTS / "subjects.py" in seen
    assert imported(TESTS / "viewer" / "conftest.py", set()) > {"playwright"}


def test_the_data_is_described_and_has_one_case_per_line() -> None:
    described = (DATA / "README.md").read_text("utf-8")
    files = sorted(path for path in DATA.iterdir() if path.name != "README.md")
    assert files
    for path in files:
        assert f"| `{path.name}` |" in described
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        values = json.loads(text)
        if isinstance(values, list):
            assert [json.loads(line.rstrip(",")) for line in text.splitlines()[1:-1]] == values
    assert sum(path.stat().st_size for path in files) < 2**20


def test_the_file_that_starts_a_cluster_comes_first_and_all_else_as_it_was() -> None:
    assert CLUSTER.is_file()
    others = [TESTS / "b.py", TESTS / "a.py"]
    given = [others[0], CLUSTER, others[1], CLUSTER]
    items: list[Any] = [SimpleNamespace(path=path) for path in given]
    pytest_collection_modifyitems(items)
    assert [item.path for item in items] == [CLUSTER, CLUSTER, *others]


def test_some_parameters_are_fast_and_none_is_lost() -> None:
    def tiers(parameters: list[Any]) -> dict[bool, list[Any]]:
        return {
            slow: [tuple(p.values) for p in parameters if (pytest.mark.slow in p.marks) is slow]
            for slow in (False, True)
        }

    assert tiers(some(range(17))) == {
        False: [(0,), (8,), (16,)],
        True: [(i,) for i in range(17) if i % 8],
    }
    assert tiers(some("abc", "b")) == {False: [("b",)], True: [("a",), ("c",)]}
    assert tiers(some([(1, 2), (3, 4)])) == {False: [(1, 2)], True: [(3, 4)]}
    with pytest.raises(AssertionError, match=r"\['d'\] must be among \['a', 'b'\]"):
        some("ab", ["d"])
