"""Hashes of sources: which modules a method depends on, and what changes the hash."""

import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import grimp
import pytest

from graphcircuits.compare import sources
from graphcircuits.compare.sources import PICTURES, source_hash, sources_of
from graphcircuits.methods import METHODS, acdc, floor
from tests.tiers import some


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Hashes are kept for the life of a process, in which texts do not change; here they do."""
    for clear in (sources._hash.cache_clear, sources._imports.cache_clear):
        clear()
    yield
    for clear in (sources._hash.cache_clear, sources._imports.cache_clear):
        clear()


@cache
def imports() -> grimp.ImportGraph:
    """Who imports whom, as the library behind the contracts on imports sees it."""
    return grimp.build_graph("graphcircuits")


def reachable(module: str) -> set[str]:
    """What a module imports directly or through others; the package itself hands names on only."""
    found, waiting = {module}, [module]
    while waiting:
        new = imports().find_modules_directly_imported_by(waiting.pop()) - found
        new -= {"graphcircuits"}
        found |= new
        waiting += new
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", some(METHODS, ("eap", "gcl")))
def test_a_method_depends_on_all_it_imports(name: str) -> None:
    module = METHODS[name].run.__module__
    found = set(sources_of(module))
    drawing = {name for name in reachable(module) if name.startswith(PICTURES)}
    assert "graphcircuits.drawing.figure" in drawing
    assert found == reachable(module) - drawing
    assert {module, "graphcircuits.subject.transformer"} <= found


def test_a_changed_dependency_changes_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = source_hash(acdc.acdc), source_hash(floor.random_scores)
    assert source_hash(acdc.acdc_circuit) == before[0] == source_hash(partial(acdc.acdc))
    assert before[0] != before[1]
    read = sources.text_of
    # What only one of the two runs, and not itself.
    apart = set(sources_of(acdc.__name__)) - set(sources_of(floor.__name__)) - {acdc.__name__}
    changed = min(apart)

    def edited(module: str) -> str:
        text = read(module)
        return text + "\n" if module == changed else text

    monkeypatch.setattr(sources, "text_of", edited)
    sources._hash.cache_clear()
    assert source_hash(acdc.acdc) != before[0]
    assert source_hash(floor.random_scores) == before[1]


def test_a_method_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own_method_for_sources.py"
    path.write_text("from graphcircuits.methods import exact\ndef method(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_method_for_sources as own  # pyright: ignore[reportMissingImports]

    found = sources_of(own.__name__)
    assert {"own_method_for_sources", "graphcircuits.methods.exact"} < set(found)
    assert "graphcircuits.engine.resume" in found
    before = source_hash(own.method)
    path.write_text(path.read_text() + "# other\n")
    assert source_hash(own.method) == before
    sources._hash.cache_clear()
    assert source_hash(own.method) != before
    del sys.modules[own.__name__]
