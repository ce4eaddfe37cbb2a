"""What a certificate says, its files, and files that are none."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.certificates.certificate import NAMES, Certificate, EdgeChances, Line
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.files import StoreError
from graphcircuits.io.store import save_artifact
from tests.damage import limits
from tests.viewer.certified import certified

GRAPH = ComponentGraph(1, 2)
CIRCUIT = Circuit.from_names(GRAPH, ["input->m0", "m0->logits", "a0.h1->m0"])
CORE, RIVAL = (Circuit.from_names(GRAPH, [name]) for name in ("input->m0", "input->logits"))
HOSTILE = "</td><script>alert(1)</script>|\n# \x1b[2J\u202e"


def line(name: str, **given: Any) -> Line:
    usual = {"passed": True, "value": 0.5, "interval": None, "asked": "much", "sentence": "is"}
    return Line(**{"name": name, **usual, **given})


WHOLE = certified(
    CIRCUIT,
    core=CORE,
    rivals=(RIVAL, CORE),
    lines={
        "sufficient": line("sufficient", interval=(0.25, 0.75), details={"a": [1, None, "b"]}),
        "stable": line("stable", passed=False, seconds=1.25),
    },
    seed=7,
)


# What it says


def test_it_passes_only_if_every_line_was_measured_and_passed() -> None:
    lines = {name: line(name) for name in NAMES}
    assert certified(CIRCUIT, lines=lines, missing={}).passed
    missing = {"unique": "the time was over"}
    assert not certified(CIRCUIT, lines=lines, missing=missing).passed
    failed = lines | {"stable": line("stable", passed=False)}
    assert not certified(CIRCUIT, lines=failed, missing={}).passed


def test_the_verdict_in_words() -> None:
    passed = certified(CIRCUIT, lines={"stable": line("stable")}, missing={})
    assert passed.verdict == "passed"
    assert WHOLE.verdict == "fails: stable; not measured: unique"
    assert repr(WHOLE) == "Certificate(3 edges, fails: stable; not measured: unique)"


def test_figures() -> None:
    assert line("x", value=0.126).figure == "0.13"
    assert line("x", value=0.5, interval=(0.1, 0.987)).figure == "0.50 [0.10, 0.99]"
    assert line("x", value=-0.001, interval=(-0.2, -0.0)).figure == "0.00 [-0.20, 0.00]"


def test_rows_are_in_the_order_of_the_questions() -> None:
    names = [*NAMES]
    random.Random(0).shuffle(names)
    assert names != [*NAMES]
    lines = {name: line(name) for name in names if name != "minimal"}
    rows = certified(CIRCUIT, lines=lines, missing={"minimal": "why not"}).rows()
    assert [row[0] for row in rows] == [*NAMES]
    assert rows[2] == ["minimal", "missing", "-", "-", "why not"]
    assert rows[0] == ["sufficient", "passed", "0.50", "much", "is"]
    assert WHOLE.rows()[1][:2] == ["stable", "FAILED"]


def test_the_table() -> None:
    text = WHOLE.table()
    first, *_ = text.splitlines()
    assert first == "ib-3: a task, 3 of 13 edges: fails: stable; not measured: unique."
    assert "| sufficient | passed | 0.50 [0.25, 0.75] | much | is |" in text.splitlines()
    assert text.endswith("\n\na note.\n")
    bare = certified(CIRCUIT, subject="", task="", notes=())
    assert bare.table().startswith("A circuit, 3 of 13 edges: ")


# Edges


def chances(back: list[float], likely: list[float] | None) -> EdgeChances:
    def filled(values: list[float]) -> torch.Tensor:
        return torch.tensor([*values, *[0.0] * (GRAPH.n_edges - len(values))])

    return EdgeChances(
        came_back=filled(back), probability=None if likely is None else filled(likely), meaning="x"
    )


def test_edges_the_likeliest_first() -> None:
    last = Circuit.from_names(GRAPH, [GRAPH.edge_names[4]])
    edges = chances([0.5, 1.0, 0.25, 0.5], [0.5, 0.7, 0.9, 0.5, 0.1])
    rows = certified(last, edges=edges).most_likely()
    # Edge 4 never came back, but is in the circuit; all others neither. 0 and 3 tie.
    assert [row["edge"] for row in rows] == [GRAPH.edge_names[n] for n in (2, 1, 0, 3, 4)]
    assert [row["in_circuit"] for row in rows] == [False] * 4 + [True]
    assert rows[0] == {
        "edge": GRAPH.edge_names[2],
        "in_circuit": False,
        "came_back": 0.25,
        "probability": 0.9,
    }


def test_likely_edges_are_told_of_though_they_never_came_back() -> None:
    edges = chances([1.0, 0.0, 0.0], [0.9, 0.6, 0.4])
    rows = certified(CORE, edges=edges).most_likely()
    names = [GRAPH.edge_names[n] for n in (0, 1)]
    assert [row["edge"] for row in rows] == [*names, "input->m0"]


def test_without_probabilities_what_came_back_counts() -> None:
    rows = certified(CORE, edges=chances([0.5, 1.0, 0.25], None)).most_likely()
    first = [row["edge"] for row in rows][:3]
    assert first == [GRAPH.edge_names[n] for n in (1, 0, 2)]
    assert {row["probability"] for row in rows} == {None}
    assert certified(CORE, edges=None).most_likely() == []


# Files


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    for one in (
        WHOLE,
        certified(CIRCUIT, HOSTILE),
        certified(CIRCUIT, edges=None, core=None, missing={}, lines={}),
        certified(CIRCUIT, edges=chances([0.5, 1.0], None)),
    ):
        one.save(path)
        read = Certificate.load(path)
        assert read.record() == one.record()
        assert read.circuit == one.circuit
        assert (read.core, read.rivals) == (one.core, one.rivals)
        assert (read.lines, read.missing) == (one.lines, one.missing)
        assert (read.seed, read.n_pairs, read.n_fresh) == (one.seed, 32, 16)
        assert (read.passed, read.verdict, read.table()) == (one.passed, one.verdict, one.table())


def test_figures_of_edges_are_read_again(tmp_path: Path) -> None:
    """Figures that are closer to each other than what is stored."""
    path, generator = tmp_path / "certificate.json", torch.Generator().manual_seed(0)
    likely = 0.5 + 1e-5 * torch.rand(GRAPH.n_edges, generator=generator)
    back = torch.randint(1, 5, (GRAPH.n_edges,), generator=generator) / 4
    given = EdgeChances(came_back=back, probability=likely, meaning="x")
    one = certified(CIRCUIT, edges=given)
    one.save(path)
    read = Certificate.load(path)
    assert read.edges is not None
    assert read.edges.probability is not None
    assert torch.allclose(read.edges.came_back, back, atol=1e-4)
    assert torch.allclose(read.edges.probability, likely, atol=1e-4)
    assert read.record() == one.record()


def test_the_table_is_what_md_holds(tmp_path: Path) -> None:
    WHOLE.save(tmp_path / "certificate.md")
    assert (tmp_path / "certificate.md").read_text() == WHOLE.table()


@pytest.mark.parametrize("name", ["c.txt", "c.pdf", "c", "c.safetensors"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"is saved as \.json, \.md, \.html, got .*c"):
        WHOLE.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_certificate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    CIRCUIT.save(path)
    with pytest.raises(StoreError, match="holds a 'circuit' artifact; expected 'certificate'"):
        Certificate.load(path)
    path.write_text("{}")
    with pytest.raises(StoreError, match=r"c\.json"):
        Certificate.load(path)
    WHOLE.save(path)
    stored = json.loads(path.read_text())
    stored["meta"]["lines"]["stable"]["passed"] = True
    path.write_text(json.dumps(stored))
    with pytest.raises(StoreError, match="has changed since it was written"):
        Certificate.load(path)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("circuit", ["input->m9"]),
        ("circuit", 3),
        ("lines", {"stable": {"name": "stable"}}),
        ("lines", {"stable": {**line("stable").__dict__, "value": "much"}}),
        ("lines", {"stable": {**line("stable").__dict__, "interval": [0.5]}}),
        ("lines", [1]),
        ("edges", [{"edge": "input->m9", "came_back": 1.0, "probability": None}]),
        ("edges", [{"edge": "input->m0", "came_back": "often", "probability": None}]),
        ("edges", [{"edge": "input->m0", "came_back": 1.5, "probability": None}]),
        ("edges", [{"edge": "input->m0", "came_back": 1.0, "probability": -0.5}]),
        ("edges", [{"edge": "input->m0"}]),
        ("edges", 7),
        ("core", ["x"]),
        ("rivals", [["x"]]),
        ("missing", None),
        ("missing", {"luck": "why not"}),
        ("notes", 3),
        ("pairs", "many"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "c.json"
    meta = WHOLE.record() | {name: value}
    save_artifact(path, kind="certificate", config=GRAPH, seed=0, meta=meta)
    with pytest.raises(StoreError, match=r"c\.json is not a whole certificate: "):
        Certificate.load(path)
    del meta[name]
    save_artifact(path, kind="certificate", config=GRAPH, seed=0, meta=meta)
    with pytest.raises(StoreError, match=r"c\.json is not a whole certificate: "):
        Certificate.load(path)


def test_a_vast_graph_in_a_small_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    vast = {"n_layers": 10**5, "n_heads": 10**5}
    save_artifact(path, kind="certificate", config=vast, seed=0, meta=WHOLE.record())
    with limits(), pytest.raises(StoreError, match="is not a whole certificate: "):
        Certificate.load(path)
