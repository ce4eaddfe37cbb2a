"""The page of certificates, from made-up ones and from one that was measured and stored."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graphcircuits import localize
from graphcircuits.cases import load_case
from graphcircuits.certificates import certify as certifying
from graphcircuits.certificates.certificate import NAMES, Certificate, Line
from graphcircuits.certificates.certify import certify
from graphcircuits.certificates.rivals import find_rivals
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from lab.benchmarks import certificates
from lab.benchmarks.certificates import Unit, main, means, measure, page, story, table, units_in
from tests.methods.tasks import make_pairs
from tests.subjects import make_subject
from tests.viewer.certified import certified

GRAPH = ComponentGraph(1, 2)
CIRCUIT = Circuit.from_names(GRAPH, ["input->m0", "m0->logits"])


def about(**given: Any) -> dict[str, Any]:
    usual = {"model": "tiny", "task": "ioi", "method": "eap-ig", "right": 0.75, "seconds": 1.0}
    return {**usual, "certified_in": 12.3, "dtype": "float32", **given}


def line(name: str, value: float, given: Any = None, *, passed: bool = True, **more: Any) -> Line:
    return Line(
        name=name,
        passed=passed,
        value=value,
        interval=None,
        asked="much",
        sentence="is",
        details=given or more,
    )


def whole(value: float = 0.75, **changed: Line) -> Certificate:
    """Every line with this value, but for those that are given."""
    others = {"by loss": {"value": 1.25}, "zero ablation": {"value": -0.5}}
    rivals = [
        {"edges": 3, "shared": 0.5, "kept": 0.9, "equal": True},
        {"edges": 9, "shared": 0.25, "kept": 0.5, "equal": False},
    ]
    lines = {name: line(name, value) for name in NAMES} | {
        "sufficient": line("sufficient", value, others),
        "stable": line("stable", value, among_themselves=0.625),
        "not by chance": line(
            "not by chance", value, {"same degrees": {"mean": 0.375, "best": 0.875}}
        ),
        "unique": line("unique", value, rivals=rivals),
    }
    return certified(CIRCUIT, lines=lines | changed, missing={}, core=CIRCUIT)


def cells(text: str) -> list[list[str]]:
    rows = [row for row in text.splitlines() if row.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_a_row_for_each_circuit() -> None:
    bad = whole(stable=line("stable", 0.25, passed=False, among_themselves=None))
    bare = certified(CIRCUIT, lines={}, missing=dict.fromkeys(NAMES, "no time"), core=None)
    units: list[Unit] = [
        (about(), whole()),
        (about(method="mattr"), bad),
        (about(method="gcl"), bare),
    ]
    header, _, first, second, third = cells(table(units))
    assert header == ["method", "edges", *NAMES, "searches share", "core", "seconds"]
    assert first == ["eap-ig", "2", *["0.75"] * 7, "0.62", "2", "12"]
    assert second == ["mattr", "2", *["0.75"] * 3, "**0.25**", *["0.75"] * 3, "-", "2", "12"]
    assert third == ["gcl", "2", *["-"] * 7, "-", "-", "12"]


def test_minimal_is_judged_by_the_threshold_of_today() -> None:
    """Whatever it was when the line was measured."""
    old = whole(minimal=line("minimal", 0.75, passed=False))
    low = whole(minimal=line("minimal", 0.25, passed=True))
    rows = cells(table([(about(), old), (about(), low)]))[2:]
    assert [row[4] for row in rows] == ["0.75", "**0.25**"]
    (_, _, row) = cells(means([(about(), old), (about(), low)]))
    assert row[:2] == ["eap-ig", "1/2"]
    assert row[4] == "0.50, 1/2"


def test_means_of_each_method() -> None:
    failed = whole(0.25, stable=line("stable", 0.25, passed=False), minimal=line("minimal", 0.75))
    bare = certified(CIRCUIT, lines={}, missing=dict.fromkeys(NAMES, "no time"))
    units: list[Unit] = [
        (about(), whole()),
        (about(), failed),
        (about(method="gcl"), whole()),
        (about(method="gcl"), bare),
    ]
    header, _, gcl, eap = cells(means(units))
    assert header == ["method", "pass all", *NAMES]
    # What was not measured does not pass, and counts in no mean.
    assert gcl == ["gcl", "1/2", *["0.75, 1/1"] * 7]
    assert eap[:4] == ["eap-ig", "1/2", "0.50, 2/2", "0.50, 2/2"]
    assert eap[4:6] == ["0.75, 2/2", "0.50, 1/2"]


def test_the_story_of_one_task() -> None:
    units: list[Unit] = [(about(), whole()), (about(task="capitals"), whole())]
    assert story(units) == (
        "- **tiny, eap-ig**: 2 of 13 edges keep 0.75 of the output; 1.25 by logit difference, "
        "-0.50 with zeros instead of corrupted values; 25% of its edges do nothing measurable when "
        "cut alone; fresh searches share 0.75 with it and 0.62 among themselves; random circuits "
        "of the same degrees keep 0.38 in the mean, 0.88 at best; a rival of 3 edges keeps 0.90 "
        "and shares 50%."
    )


def test_the_story_of_what_could_not_be_measured() -> None:
    """One search alone, zeros that change nothing, no rival; and nothing at all."""
    some = whole(
        sufficient=line(
            "sufficient", 0.9, {"by loss": {"value": None}, "zero ablation": {"value": None}}
        ),
        stable=line("stable", 0.5, among_themselves=None),
        unique=line("unique", 1.0, rivals=[]),
    )
    told = story([(about(), some)])
    assert "logit difference" not in told
    assert "; fresh searches share 0.50 with it; random circuits" in told
    assert told.endswith("; no rival was found.")
    bare = certified(CIRCUIT, lines={}, missing={})
    assert story([(about(), bare)]) == ""


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Certificate]:
    """A certificate of ib-3 in a store, as `measure` writes it."""
    monkeypatch.setattr(certifying, "find_rivals", partial(find_rivals, attempts=[]))
    case = load_case("ib-3")
    subject, pairs = case.subject(), case.pairs(16)
    result = localize(subject, pairs, "eap")
    found = certify(subject, pairs, result, fresh=case.pairs(16, seed=1000), searches=2)
    place = tmp_path / "store" / "ib" / "ioi" / "eap-ig.json"
    place.parent.mkdir(parents=True)
    found.save(place.with_suffix(".certificate.json"))
    place.write_text(json.dumps(about(model="ib")))
    return tmp_path / "store", found


@pytest.mark.usefixtures("unchecked")
def test_the_page_of_a_stored_certificate(stored: tuple[Path, Certificate], tmp_path: Path) -> None:
    store, found = stored
    ((said, read),) = units_in(store)
    assert said == about(model="ib")
    assert read.record() == found.record()
    text = page([(said, read)], "python -m it")
    assert text.startswith("# Certificates of circuits in language models\n\n")
    titles = [row for row in text.splitlines() if row.startswith("#")][1:]
    assert titles == ["## Indirect object identification", "## All", "## ib", "### ioi"]
    assert "110 edges, float32." in text
    assert "Right on 75% of the fresh prompts." in text
    assert means([(said, read)]) in text
    assert table([(said, read)]) in text
    row = cells(table([(said, read)]))[2]
    assert row[2:9] == [found.lines[name].figure for name in NAMES]
    assert text.endswith("\n\nBy `python -m it`.\n")
    place = tmp_path / "page.md"
    words = ["--only-page", "--store", str(store), "--page", str(place)]
    assert main(words) == 0
    assert place.read_text().rpartition("\n\n")[0] == text.rstrip().rpartition("\n\n")[0]


def test_units_are_in_order(tmp_path: Path) -> None:
    places = [("b", "ioi", "mattr"), ("a", "capitals", "gcl"), ("b", "ioi", "gcl")]
    places += [("a", "ioi", "refined")]
    for model, task, method in places:
        place = tmp_path / model / task / f"{method}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(about(model=model, task=task, method=method)))
        whole().save(place.with_suffix(".certificate.json"))
    found = [(said["model"], said["task"], said["method"]) for said, _ in units_in(tmp_path)]
    assert found == [
        ("a", "ioi", "refined"),
        ("a", "capitals", "gcl"),
        ("b", "ioi", "gcl"),
        ("b", "ioi", "mattr"),
    ]


def test_what_is_there_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that a model fails are left out, those that it does are counted."""
    subject = make_subject(n_layers=1, n_heads=2)
    asked: list[tuple[str, str]] = []

    def drawn(subject: Transformer, task: str, n: int) -> tuple[Pairs, Pairs]:
        if task == "ioi":
            raise ValueError("no such words")
        pairs = replace(make_pairs(subject, batch=n), task=task)
        return pairs, pairs

    def found_by(method: str, subject: Transformer, pairs: Pairs, seed: int, keep: float) -> Any:
        asked.append((pairs.task, method))
        raise KeyboardInterrupt

    monkeypatch.setattr("graphcircuits.adapters.load.load_model", lambda *_, **__: subject)
    monkeypatch.setattr(certificates, "drawn", drawn)
    monkeypatch.setattr(certificates, "found_by", found_by)
    monkeypatch.setattr(
        certificates, "share_right", lambda _, pairs: 0.1 if pairs.task == "capitals" else 0.9
    )
    file = tmp_path / "tiny.gguf"
    with pytest.raises(KeyboardInterrupt):
        measure(file, tmp_path, ["gcl", "eap-ig"], "cpu", "float32", 4, float("inf"))
    assert asked == [("agreement", "gcl")]
    there = tmp_path / "tiny" / "agreement"
    there.mkdir(parents=True)
    (there / "gcl.json").write_text("{}")
    with pytest.raises(KeyboardInterrupt):
        measure(file, tmp_path, ["gcl", "eap-ig"], "cpu", "float32", 4, float("inf"))
    assert asked[1:] == [("agreement", "eap-ig")]
    # Without time nothing is begun.
    measure(file, tmp_path, ["gcl", "eap-ig"], "cpu", "float32", 4, 0.0)
    assert len(asked) == 2
