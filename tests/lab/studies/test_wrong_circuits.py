"""Wrong circuits: how they are made, and what made-up records say."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.certificates.certificate import NAMES
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.evaluate import CircuitRuns
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.store import save_artifact
from graphcircuits.training.sources import MINED
from lab.studies import wrong_circuits
from lab.studies.wrong_circuits import (
    Job,
    exchanged,
    failed,
    gamed,
    jobs_of,
    logit_difference,
    main,
    page,
    rows,
)
from tests.methods.tasks import make_pairs
from tests.subjects import make_subject

GRAPH = ComponentGraph(2, 4)


def of_first(n: int) -> Circuit:
    return Circuit.from_mask(GRAPH, torch.arange(GRAPH.n_edges) < n)


# How they are made


@pytest.mark.parametrize(("size", "changed"), [(1, 1), (9, 1), (20, 2), (50, 5), (109, 1)])
def test_a_tenth_is_exchanged(size: int, changed: int) -> None:
    circuit = of_first(size)
    other = exchanged(circuit, torch.Generator().manual_seed(0))
    assert len(other) == size
    assert (len(circuit - other), len(other - circuit)) == (changed, changed)
    assert circuit == of_first(size)


def test_which_edges_are_exchanged_follows_the_generator() -> None:
    circuit = of_first(40)
    one, again, another = (
        exchanged(circuit, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert one == again
    assert one != another


def test_of_all_edges_none_can_be_exchanged() -> None:
    circuit = of_first(GRAPH.n_edges)
    assert exchanged(circuit, torch.Generator().manual_seed(0)) == circuit


def test_the_difference_is_asked_for_where_answers_differ() -> None:
    subject = make_subject(n_layers=1, n_heads=2)
    pairs = make_pairs(subject, batch=12)
    some = torch.rand(pairs.scored.shape, generator=torch.Generator().manual_seed(0)) < 0.7
    some[:, 0] = True
    pairs = replace(pairs, scored=some)
    asked = logit_difference(subject, pairs)
    assert asked is not None
    assert asked.loss_name == "logit-diff"
    kept = []
    for row in range(12):
        a, b = (
            subject.logits(tokens[row][None]).argmax(-1)[0]
            for tokens in (pairs.clean, pairs.corrupted)
        )
        places = [n for n in range(5) if bool(pairs.scored[row, n]) and a[n] != b[n]]
        if places:
            kept.append((row, places, a.tolist(), b.tolist()))
    assert len(asked) == len(kept) < 12
    for found, (row, places, right, wrong) in enumerate(kept):
        assert torch.equal(asked.clean[found], pairs.clean[row])
        assert torch.equal(asked.corrupted[found], pairs.corrupted[row])
        assert asked.scored[found].nonzero().flatten().tolist() == places
        assert asked.targets is not None
        assert asked.incorrect is not None
        assert asked.targets[found].tolist() == right
        assert asked.incorrect[found].tolist() == wrong


def test_where_too_few_answers_differ_there_is_no_difference() -> None:
    subject = make_subject(n_layers=1, n_heads=2)
    pairs = make_pairs(subject, batch=6)
    assert logit_difference(subject, replace(pairs, corrupted=pairs.clean)) is None
    numbers = make_subject(n_layers=1, n_heads=2, d_vocab_out=1)
    assert logit_difference(numbers, make_pairs(numbers, "l1")) is None
    assert gamed(numbers, make_pairs(numbers, "l1")) is None


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_gamed_circuit_keeps_the_difference() -> None:
    """And no edge of it can go."""
    subject = make_subject(n_layers=1, n_heads=2)
    pairs = make_pairs(subject, batch=12)
    circuit, asked = gamed(subject, pairs), logit_difference(subject, pairs)
    assert circuit is not None
    assert asked is not None
    runs = CircuitRuns(subject, asked, by="loss")
    assert runs([circuit])[0] >= 0.9
    for edge in circuit.edge_numbers:
        mask = circuit.mask.clone()
        mask[edge] = False
        assert runs([Circuit.from_mask(circuit.graph, mask)])[0] < 0.9


def test_every_case_is_asked_beside_the_next_task_of_its_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ids = ["a@x", "b", "a@y", "a@z"]
    monkeypatch.setattr(wrong_circuits, "unit_ids", lambda *_: ids)
    jobs = list(jobs_of(["language"], "test", tmp_path, tmp_path, None))
    assert [(job.id, job.partner) for job in jobs] == [
        ("a@x", "a@y"),
        ("b", None),
        ("a@y", "a@z"),
        ("a@z", "a@x"),
    ]
    assert jobs[0].file == tmp_path / "a@x.json"
    few = list(jobs_of(["language", "planted"], "test", tmp_path, tmp_path, 2))
    assert [(job.group, job.id) for job in few] == [
        ("language", "a@x"),
        ("language", "b"),
        ("planted", "a@x"),
        ("planted", "b"),
    ]


# What records say


def record(*fails: str, keeps: float = 0.9, seconds: float = 1.0) -> dict[str, Any]:
    """A certificate of which these lines failed."""
    lines = {
        name: {"passed": name not in fails, "value": float(name not in fails), "interval": None}
        for name in NAMES
    }
    return {"edges": 5, "seconds": seconds, "lines": lines, "missing": {}, "keeps": keeps}


def files() -> list[dict[str, Any]]:
    one = {
        "found": record(seconds=2.0),
        "truth": record("stable"),
        "exchanged": record("minimal", keeps=0.4),
        "gamed": record("stable", keeps=0.3),
        "other": record("sufficient", keeps=0.1),
    }
    two = {
        "found": record("unique", "stable", seconds=4.0),
        "exchanged": record(keeps=0.85),
        "gamed": record("sufficient", "unique", keeps=0.2),
        "few": record("stable", keeps=0.95),
    }
    return [
        {"group": "natural", "id": "n", "edges": 110, "circuits": one},
        {"group": "planted", "id": "p", "edges": 110, "circuits": two},
    ]


def test_a_line_that_was_not_measured_did_not_fail() -> None:
    some = record("stable", "minimal")
    assert failed(some, ["stable"])
    assert failed(some, ["sufficient", "minimal"])
    assert not failed(some, ["sufficient", "complete"])
    del some["lines"]["stable"]
    assert not failed(some, ["stable"])


def test_rows_by_hand() -> None:
    right, wrong = rows(files())
    # sufficient, necessary, minimal, stable, not by chance, unique, complete
    assert right == [
        ["found", "2", "0.50", "0.00", "0.00", "0.00", "0.50", "0.00", "0.50", "0.00"],
        ["truth", "1", "0.00", "0.00", "0.00", "0.00", "1.00", "0.00", "0.00", "0.00"],
    ]
    by_kind = {row[0]: row[1:] for row in wrong}
    # Gamed ones are caught by `sufficient` alone, though both fail something.
    assert by_kind["gamed"][:5] == ["2", "sufficient", "0.50", "0, -", "0.50"]
    assert by_kind["gamed"][5:] == ["0.50", "0.00", "0.00", "0.50", "0.00", "0.50", "0.00"]
    three = "sufficient, minimal, stable"
    # One of the exchanged ones keeps enough elsewhere: lucky, and not caught.
    assert by_kind["exchanged"][:5] == ["2", three, "0.50", "1, 0.00", "1.00"]
    assert by_kind["few"][:5] == ["1", three, "1.00", "1, 1.00", "-"]
    assert by_kind["other"][:5] == ["1", "sufficient", "1.00", "0, -", "1.00"]
    assert rows([]) == ([], [])


def test_the_page_of_records() -> None:
    text = page(files(), "python -m it")
    assert text.startswith("# Right and wrong circuits under certificates\n\n")
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles == ["## All subjects", "## Natural", "## Planted"]
    assert "2 subjects with a task." in text
    assert text.count("1 subjects with a task.") == 2
    assert "A certificate took 4.0 s in the median" in text
    assert "\n\nBy `python -m it`; which lines" in text
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    for row in (*rows(files())[0], *rows(files())[1]):
        assert row in cells


def test_files_that_are_there_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    (store / "test").mkdir(parents=True)
    for one in files():
        (store / "test" / f"{one['id']}.json").write_text(json.dumps(one))
    monkeypatch.setattr(
        wrong_circuits, "unit_ids", lambda group, *_: ["n" if group == "natural" else "p"]
    )

    class Here:
        """Workers that are this process."""

        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> "Here":
            return self

        def __exit__(self, *_: object) -> None: ...

        def submit(self, function: Any, job: Job) -> Any:
            return Done(function(job))

    class Done:
        def __init__(self, value: Path) -> None:
            self.value = value

        def result(self) -> Path:
            return self.value

    monkeypatch.setattr(wrong_circuits, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(wrong_circuits, "as_completed", list)
    place = tmp_path / "page.md"
    words = ["--subjects", "natural", "planted", "--store", str(store), "--page", str(place)]
    main(words)
    remark = f"{len(files())} of {len(files())} subjects with a task were measured."
    assert place.read_text().startswith(page(files(), "", remark).rpartition("\n\n")[0])
    assert f"wrong-circuits --subjects natural planted --store {store}" in place.read_text()
    lines = gzip.decompress(place.with_suffix(".jsonl.gz").read_bytes()).decode().splitlines()
    first = json.loads(lines[0])
    assert first["id"] == "n"
    assert {kind: one["fails"] for kind, one in first["circuits"].items()} == {
        "found": [],
        "truth": ["stable"],
        "exchanged": ["minimal"],
        "gamed": ["stable"],
        "other": ["sufficient"],
    }


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_planted_case_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its truth passes, and a circuit of four edges of which one was exchanged is caught."""
    case = load_case("ib-3")
    subject = case.subject()
    given = wrong_circuits.Problem(
        subject,
        case.pairs(16),
        case.pairs(16, seed=1000),
        case.pairs(32, seed=2000),
        case.labels(graph=subject.graph),
    )
    monkeypatch.setattr(wrong_circuits, "problem", lambda *_: given)
    job = Job("planted", "ib-3", None, tmp_path, tmp_path)
    written = wrong_circuits.measured(job)
    assert written == job.file
    told = json.loads(written.read_text())
    assert (told["id"], told["edges"]) == ("ib-3", 110)
    kinds = told["circuits"]
    assert {*kinds} == {"found", "truth", "exchanged", "few"}
    assert failed(kinds["exchanged"], wrong_circuits.SHOULD_FAIL["exchanged"])
    assert not failed(kinds["found"], NAMES)
    assert kinds["found"]["keeps"] > 0.9 > 0.5 > kinds["exchanged"]["keeps"]
    stamp = written.stat().st_mtime_ns
    assert wrong_circuits.measured(job).stat().st_mtime_ns == stamp


def test_mined_tasks_of_one_kind_are_taken_together(tmp_path: Path) -> None:
    """The first kinds of a model that have two tasks or more."""
    kinds = ["copy.1", "copy.10", "copyist", "case.0", "name", "name.3", "case.1", "verb.1"]
    about = {"kinds": {kind: {} for kind in [*kinds, "copy"]}}
    tensors = {"x": torch.zeros(1)}
    save_artifact(
        tmp_path / "m.safetensors", kind=MINED, config={}, seed=0, tensors=tensors, meta=about
    )
    assert wrong_circuits.small_ids(tmp_path) == ["m@case", "m@copy"]
    assert wrong_circuits.unit_ids("small", "test", tmp_path) == ["m@case", "m@copy"]
