"""Submissions to MIB: what is written is read back, and MIB would take its sizes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphcircuits.adapters.mib import PARTS, read_submission, write_submission
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.store import StoreError
from graphcircuits.result.result import Result


def result(graph: ComponentGraph | None = None, seed: int = 0) -> Result:
    graph = graph or ComponentGraph(3, 4)
    generator = torch.Generator().manual_seed(seed)
    return Result(graph=graph, scores=torch.rand(graph.n_edges, generator=generator), method="eap")


def test_scores(tmp_path: Path) -> None:
    results = {("ioi", "gpt2"): result(), ("arc_easy", "llama3"): result(seed=1)}
    paths = write_submission(tmp_path, results)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        "ioi_gpt2/importances.json",
        "arc-easy_llama3/importances.json",
    ]
    (tmp_path / "README.md").write_text("notes")
    (tmp_path / ".git").mkdir()
    entries = read_submission(tmp_path)
    assert entries.keys() == {("ioi", "gpt2"), ("arc-easy", "llama3")}
    assert entries["ioi", "gpt2"].result == results["ioi", "gpt2"]
    assert entries["ioi", "gpt2"].circuits == ()


@pytest.mark.parametrize("groups", [4, 2])
def test_circuits(tmp_path: Path, groups: int) -> None:
    scores = result(ComponentGraph(3, 4, n_kv_heads=groups))
    paths = write_submission(tmp_path, {("ioi", "qwen2.5"): scores}, circuits=True)
    assert [path.name for path in paths][:4] == [f"circuit-{x}.json" for x in (0.1, 0.2, 0.5, 1)]
    marked = []
    for part, path in zip(PARTS, paths, strict=True):
        edges = json.loads(path.read_text())["edges"]
        # As MIB counts: every head has its own keys and values.
        assert len(edges) == 262
        marked.append(sum(info["in_graph"] for info in edges.values()))
        assert marked[-1] <= part * 262
    assert marked[-1] > 100
    (entry,) = read_submission(tmp_path).values()
    assert entry.result is None
    assert len(entry.circuits) == 9
    if groups == 4:
        assert [len(circuit) for circuit in entry.circuits] == marked
        expected = [scores.circuit(edges=int(part * 262)).pruned() for part in PARTS]
        assert list(entry.circuits) == expected


def test_signed_effects(tmp_path: Path) -> None:
    """The scores are what MIB ranks by; the circuits are of edges that help."""
    plain = result()
    effects = plain.scores - 0.5
    scores = replace(plain, scores=effects.abs(), signed=effects)
    (path,) = write_submission(tmp_path / "scores", {("ioi", "x"): scores}, signed=True)
    values = [edge["score"] for edge in json.loads(path.read_text())["edges"].values()]
    assert values == effects.tolist()
    (entry,) = read_submission(tmp_path / "scores").values()
    assert entry.result == scores
    paths = write_submission(
        tmp_path / "circuits", {("ioi", "x"): scores}, circuits=True, signed=True
    )
    for part, path in zip(PARTS, paths, strict=True):
        best = plain.circuit(edges=int(part * 262)).pruned()
        assert _chosen(path) == set(best)


def _chosen(path: Path) -> set[str]:
    edges = json.loads(path.read_text())["edges"]
    return {name for name, info in edges.items() if info["in_graph"]}


def test_the_next_edge_would_be_too_many(tmp_path: Path) -> None:
    # One edge into a group of two heads is two of MIB's.
    graph = ComponentGraph(3, 4, n_kv_heads=2)
    scores = torch.zeros(graph.n_edges)
    names = ["input->a0.g0<v>", "a0.h0->logits", "a0.h1->logits"]
    scores[graph.edge_indices(names)] = torch.tensor([3.0, 2.0, 1.0])
    paths = write_submission(
        tmp_path, {("ioi", "x"): Result(graph=graph, scores=scores)}, circuits=True
    )
    # 1% of 262 edges are two, 2% five; the first alone leads nowhere.
    found = [Result.load(path).chosen for path in paths[3:5]]
    assert found[0] == Circuit.from_names(graph, [])
    assert found[1] is not None
    assert set(names) <= set(found[1])


def test_files_that_torch_saved(tmp_path: Path) -> None:
    graph = ComponentGraph(1, 1)
    (tmp_path / "ioi_gpt2").mkdir()
    for size in (1, 3):
        matrix = torch.zeros(3, 5, dtype=torch.bool)
        matrix[0, -size:] = True
        content = {
            "cfg": {"n_layers": 1, "n_heads": 1},
            "src_nodes": list(graph.writer_names),
            "dst_nodes": list(graph.reader_names),
            "edges_scores": torch.zeros(3, 5),
            "edges_in_graph": matrix,
        }
        torch.save(content, tmp_path / "ioi_gpt2" / f"{9 - size}.pt")
    (entry,) = read_submission(tmp_path).values()
    assert [list(circuit) for circuit in entry.circuits] == [
        ["input->logits"],
        ["input->a0.h0<v>", "input->m0", "input->logits"],
    ]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    results = {("../up", "a"): result(), ("a_b", "c"): result(), ("a-b", "c"): result()}
    with pytest.raises(ValueError, match=r"'\.\./up_a' cannot be a folder; 'a-b_c' is given twice"):
        write_submission(tmp_path / "x", results)
    with pytest.raises(ValueError, match=r"such as \('ioi', 'gpt2'\): there are no results"):
        write_submission(tmp_path / "x", {})
    assert not (tmp_path / "x").exists()


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match="is not a submission to MIB: it has no folder named after"
    ):
        read_submission(tmp_path)
    place = tmp_path / "ioi_gpt2"
    place.mkdir()
    with pytest.raises(StoreError, match=r"holds neither \.json nor \.pt; expected importances"):
        read_submission(tmp_path)
    result().save(place / "importances.json")
    result().save(place / "other.json")
    with pytest.raises(StoreError, match=r"holds importances\.json and 1 other files: which of"):
        read_submission(tmp_path)
    (place / "importances.json").rename(place / "one.json")
    result(ComponentGraph(2, 4)).save(place / "other.json")
    with pytest.raises(StoreError, match=r"its circuits are of different graphs: ComponentGraph\("):
        read_submission(tmp_path)
