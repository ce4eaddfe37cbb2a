"""Graphs that EAP-IG saved: signs, and heads that share keys and values."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.adapters.eap_ig import read_graph
from graphcircuits.adapters.transformer_lens import from_transformer_lens
from graphcircuits.graph import ComponentGraph
from graphcircuits.methods.eap import eap
from graphcircuits.result.result import Result
from tests.adapters.lens import scored_model


def written(folder: Path, suffix: str) -> Path:
    """EAP's scores of a model with two keys for four heads, as EAP-IG writes them."""
    _, _, scores = scored_model("llama-like")
    graph, path = ComponentGraph(2, 4), folder / f"graph{suffix}"
    cfg = {"n_layers": 2, "n_heads": 4, "parallel_attn_mlp": False, "d_model": 6}
    values = scores["EAP"][graph.edge_writers, graph.edge_readers].float()
    if suffix == ".json":
        edges = zip(graph.edge_names, values.tolist(), strict=True)
        content: dict[str, Any] = {
            "cfg": cfg,
            "nodes": {name: {"in_graph": True} for name in (*graph.writer_names, "logits")},
            "edges": {name: {"score": score, "in_graph": False} for name, score in edges},
        }
        path.write_text(json.dumps(content))
    else:
        matrix = scores["EAP"].float()
        content = {
            "cfg": cfg,
            "src_nodes": list(graph.writer_names),
            "dst_nodes": list(graph.reader_names),
            "edges_scores": matrix,
            "edges_in_graph": matrix < -1e-3,
        }
        torch.save(content, path)
    return path


@pytest.mark.parametrize("suffix", [".json", ".pt"])
def test_groups_have_the_effect_of_their_heads_together(tmp_path: Path, suffix: str) -> None:
    source, pairs, _ = scored_model("llama-like")
    subject, path = from_transformer_lens(source), written(tmp_path, suffix)
    result = read_graph(path, n_kv_heads=2)
    assert result.graph == subject.graph
    # It divides by the number of prompts twice.
    expected = eap(subject, pairs, pool="sum") / 6
    torch.testing.assert_close(result.scores.double(), expected, rtol=1e-4, atol=1e-7)


def test_signs(tmp_path: Path) -> None:
    path = written(tmp_path, ".pt")
    signed = read_graph(path, absolute=False)
    assert signed == Result.load(path)
    assert signed.scores.min() < 0
    absolute = read_graph(path)
    assert torch.equal(absolute.scores, signed.scores.abs())
    assert torch.equal(absolute.by_sign().scores, signed.scores)
    grouped = read_graph(path, n_kv_heads=2)
    assert grouped.signed is not None
    assert torch.equal(grouped.signed.abs(), grouped.scores)


def test_a_group_is_in_the_circuit_if_a_head_of_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, ".pt")
    single, groups = read_graph(path).chosen, read_graph(path, n_kv_heads=2).chosen
    assert single is not None
    assert groups is not None
    # Heads 0 and 1 share a key, and so do 2 and 3.
    expected = {name for name in single if "<q>" in name or "<" not in name}
    for name in set(single) - expected:
        writer, reader = name.split("->")
        layer, head = reader.removesuffix(">")[:-2].split(".h")
        expected.add(f"{writer}->{layer}.g{int(head) // 2}<{reader[-2]}>")
    assert set(groups) == expected


def test_as_many_groups_as_heads(tmp_path: Path) -> None:
    path = written(tmp_path, ".pt")
    assert read_graph(path, n_kv_heads=4) == read_graph(path)
    with pytest.raises(ValueError, match="n_kv_heads must divide n_heads=4, got 3"):
        read_graph(path, n_kv_heads=3)
