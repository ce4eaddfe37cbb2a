"""EAP-IG's `.pt` files: its matrices in our edge order, and nothing in a file is run."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.graph import ComponentGraph
from graphcircuits.io.store import StoreError
from graphcircuits.result.result import Result
from tests.adapters.lens import EAP_IG

GRAPH = ComponentGraph(3, 4)


def content(**others: Any) -> dict[str, Any]:
    """What `Graph.to_pt` saves of the scored model of the facts."""
    scores = torch.tensor(EAP_IG["gpt2-like"]["scores"]["EAP"])
    readers = [[f"a{n}.h{h}<{x}>" for x in "qkv" for h in range(4)] + [f"m{n}"] for n in range(3)]
    writers = [[f"a{n}.h{h}" for h in range(4)] + [f"m{n}"] for n in range(3)]
    return {
        "cfg": {"n_layers": 3, "n_heads": 4, "parallel_attn_mlp": False, "d_model": 8},
        "src_nodes": ["input", *(name for layer in writers for name in layer)],
        "dst_nodes": [*(name for layer in readers for name in layer), "logits"],
        "edges_scores": scores,
        "edges_in_graph": scores.abs() > 0.02,
        "nodes_in_graph": torch.ones(16, dtype=torch.bool),
        **others,
    }


def saved(folder: Path, value: Any) -> Path:
    torch.save(value, folder / "graph.pt")
    return folder / "graph.pt"


def test_scores_and_circuit_by_name(tmp_path: Path) -> None:
    whole = content()
    result = Result.load(saved(tmp_path, whole))
    assert result.graph == GRAPH
    assert result.d_model == 8
    assert result.chosen is not None
    rows, columns = whole["src_nodes"], whole["dst_nodes"]
    for edge, name in enumerate(GRAPH.edge_names):
        writer, reader = name.split("->")
        place = (rows.index(writer), columns.index(reader))
        assert result.scores[edge] == whole["edges_scores"][place]
        assert result.chosen.mask[edge] == whole["edges_in_graph"][place]


def test_a_parallel_graph_and_entries_that_are_no_edges(tmp_path: Path) -> None:
    cfg = {"n_layers": 3, "n_heads": 4, "parallel_attn_mlp": True, "d_model": 8}
    graph = ComponentGraph(3, 4, parallel=True)
    noisy = torch.full((16, 40), torch.nan)
    noisy[graph.edge_writers, graph.edge_readers] = torch.arange(1.0, graph.n_edges + 1)
    result = Result.load(saved(tmp_path, content(cfg=cfg, edges_scores=noisy)))
    assert result.graph == graph
    assert result.scores.tolist() == list(range(1, graph.n_edges + 1))


def test_a_circuit_without_scores(tmp_path: Path) -> None:
    whole = content()
    path = saved(tmp_path, whole | {"edges_scores": torch.zeros(16, 40)})
    result = Result.load(path)
    assert result.chosen is not None
    assert torch.equal(result.scores, result.chosen.mask.float())


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch trapped",)


def test_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path, content(nodes_scores=Trap()))
    with pytest.raises(
        StoreError, match=r"refused and nothing of it was run: it asks for '.*system"
    ):
        Result.load(path)
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cfg": None}, "cfg must hold n_layers and n_heads, whole numbers from 1"),
        ({"cfg": {"n_layers": True, "n_heads": 4}}, "cfg must hold n_layers and n_heads, whole"),
        (
            {"cfg": {"n_layers": 3, "n_heads": 4, "d_model": "8", "parallel_attn_mlp": 0}},
            "a whole number as d_model and true or false as parallel_attn_mlp, got '8' and 0",
        ),
        (
            {"cfg": {"n_layers": 10**9, "n_heads": 10**9}},
            r"edges_scores must be a matrix of \d+ writers x \d+ readers of float16 or .*, "
            r"got torch\.float32 of shape \(16, 40\)",
        ),
        ({"edges_scores": torch.zeros(16, 40).long()}, r"got torch\.int64 of shape \(16, 40\)"),
        ({"edges_scores": [1.0]}, r"edges_scores must be a matrix .*, got \[1\.0\]"),
        (
            {"edges_in_graph": torch.ones(16, 40)},
            "edges_in_graph must be a matrix of 16 writers x 40 readers of bool, as its cfg says",
        ),
        ({"src_nodes": ["input", "m0"]}, r"src_nodes must be input, a0\.h0, \.\.\., m2, got \['in"),
        ({"dst_nodes": 3}, r"dst_nodes must be a0\.h0<q>, .*, logits, got 3"),
        (
            {"edges_scores": torch.zeros(16, 40), "nodes_scores": torch.tensor([torch.nan, 1])},
            "scores nodes, not edges; a result needs a score for each edge",
        ),
        ({"edges_scores": torch.full((16, 40), torch.inf)}, "scores must be finite, 262 of 262"),
    ],
)
def test_graphs_that_are_not_whole(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(StoreError, match=rf"graph\.pt.* {reason}"):
        Result.load(saved(tmp_path, content(**changes)))


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"not a graph of EAP-IG: it lacks cfg, src_nodes, dst_n"):
        Result.load(saved(tmp_path, {"a": torch.zeros(2)}))
    with pytest.raises(StoreError, match=r"must hold values by name, got \[1\]"):
        Result.load(saved(tmp_path, [1]))
