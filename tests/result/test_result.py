"""Results: views against plain sorting, files of ours and of EAP-IG, damage, refusals."""

import csv
import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.store import StoreError
from graphcircuits.result.curve import FaithfulnessCurve
from graphcircuits.result.files import ABOUT
from graphcircuits.result.result import Result
from tests.damage import rehashed_result
from tests.viewer.reading import bits, data_of, floats

GRAPHS = [
    ComponentGraph(2, 4),
    ComponentGraph(1, 1),
    ComponentGraph(2, 3, parallel=True),
    ComponentGraph(2, 4, n_kv_heads=2),
    ComponentGraph(2, 4, n_kv_heads=1, parallel=True),
]
graphs = pytest.mark.parametrize("graph", GRAPHS, ids=str)


def make(graph: ComponentGraph = GRAPHS[0], seed: int = 0, **changes: Any) -> Result:
    scores = torch.randn(graph.n_edges, generator=torch.Generator().manual_seed(seed))
    given: dict[str, Any] = {
        "graph": graph,
        "scores": scores,
        "subject": "ib-3",
        "task": "prefix fraction",
        "method": "eap-ig",
        "options": {"steps": 5, "pool": None, "span": (0, 1)},
        "seed": seed,
        "seconds": 0.25,
        "d_model": 12,
        "notes": ["chosen by hand", "beyond <all>"],
    }
    return Result(**(given | changes))


def eap_ig_edges(n_layers: int, n_heads: int, parallel: bool) -> set[str]:
    """The edges of EAP-IG's graph, by its definition: a stream that later components read."""
    stream, edges = ["input"], set()
    for layer in range(n_layers):
        heads = [f"a{layer}.h{head}" for head in range(n_heads)]
        edges |= {f"{s}->{head}<{kind}>" for s in stream for head in heads for kind in "qkv"}
        seen_by_mlp = stream if parallel else stream + heads
        edges |= {f"{s}->m{layer}" for s in seen_by_mlp}
        stream = [*stream, *heads, f"m{layer}"]
    return edges | {f"{s}->logits" for s in stream}


def theirs(graph: ComponentGraph, **edge: Any) -> dict[str, Any]:
    """A file as EAP-IG writes it; `edge` maps field -> function of the edge's number."""
    names = sorted(eap_ig_edges(graph.n_layers, graph.n_heads, graph.parallel))
    return {
        "cfg": {
            "n_layers": graph.n_layers,
            "n_heads": graph.n_heads,
            "parallel_attn_mlp": graph.parallel,
            "d_model": 64,
            "model_name": "gpt2",
        },
        "nodes": {name: {"in_graph": False} for name in (*graph.writer_names, "logits")},
        "edges": {
            name: {field: value(number) for field, value in edge.items()}
            for number, name in enumerate(names)
        },
    }


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


# The value


def test_scores_are_copied() -> None:
    scores = torch.zeros(110, requires_grad=True)
    result = make(scores=scores)
    with torch.no_grad():
        scores += 1
    assert not result.scores.requires_grad
    assert not result.scores.any()


def test_equality() -> None:
    assert make() == make()
    assert make() != make(seconds=1.0)
    assert make() != make(seed=1)
    assert make() != make(chosen=make().circuit(edges=3))
    assert make() != "result"


@pytest.mark.parametrize("length", [0, 53, 111])
def test_wrong_length(length: int) -> None:
    message = rf"one number for each of 110 edges, got shape \({length},\)"
    with pytest.raises(ValueError, match=message):
        make(scores=torch.zeros(length))


def test_bad_scores_are_named() -> None:
    scores = torch.zeros(110)
    scores[[0, 7]] = torch.tensor([torch.nan, -torch.inf])
    names = GRAPHS[0].edge_names
    with pytest.raises(ValueError, match="scores must be finite, 2 of 110 are not: ") as caught:
        make(scores=scores)
    assert f"{names[0]} (nan), {names[7]} (-inf); look for a division" in str(caught.value)
    scores[:20] = torch.inf
    with pytest.raises(ValueError, match=r"20 of 110 are not: .*, \.\.\.; look for"):
        make(scores=scores)


def test_options_must_be_plain() -> None:
    assert make().options == {"steps": 5, "pool": None, "span": [0, 1]}
    with pytest.raises(TypeError, match=r"options must be JSON values, got .*dtype is not JSON"):
        make(options={"dtype": torch.float32})
    with pytest.raises(TypeError, match="options must be JSON values"):
        make(options={"rate": float("nan")})


def test_chosen_must_be_of_the_graph() -> None:
    other = Circuit.from_names(GRAPHS[1], ["input->m0"])
    with pytest.raises(ValueError, match=r"bring it over with chosen\.on\(graph\)"):
        make(chosen=other)
    assert make(chosen=other.on(GRAPHS[0])).chosen == other.on(GRAPHS[0])


# Views


@given(scores=st.lists(st.sampled_from([0.0, 0.5, 1.0, -2.0]), min_size=110, max_size=110))
@settings(max_examples=8, deadline=None)
def test_top_and_circuit_are_plain_sorting(scores: list[float]) -> None:
    result = make(scores=torch.tensor(scores))
    names = GRAPHS[0].edge_names
    # Python's sort keeps ties in edge order.
    order = sorted(range(110), key=lambda edge: -scores[edge])
    assert result.top(110) == [(names[edge], scores[edge]) for edge in order]
    assert result.top(1000) == result.top(110)
    for count in (0, 1, 17, 110):
        assert result.circuit(edges=count).edges == {names[edge] for edge in order[:count]}
    assert result.circuit(threshold=0.5).edges == {
        n for n, s in zip(names, scores, strict=True) if s >= 0.5
    }
    assert result.circuit(fraction=0.1) == result.circuit(edges=11)


def test_fractions_are_not_short_of_an_edge() -> None:
    result = make(ComponentGraph(3, 4))
    short = [edges for edges in range(262) if int(edges / 262 * 262) < edges]
    assert short
    for edges in short[:5]:
        assert len(result.circuit(fraction=edges / 262)) == edges


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_scores_of_any_precision_are_sorted(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    result = make(scores=torch.randn(110, generator=generator).to(dtype))
    for count in (1, 17, 110):
        chosen = result.circuit(edges=count).mask.nonzero().flatten()
        assert chosen.tolist() == sorted(result.ranking()[:count].tolist())


def test_pruned_circuit() -> None:
    scores = torch.zeros(110)
    graph = GRAPHS[0]
    path = ["input->a0.h1<v>", "a0.h1->logits"]
    scores[graph.edge_indices([*path, "a0.h2->m1"])] = 1.0
    result = make(scores=scores)
    assert len(result.circuit(edges=3)) == 3
    assert result.circuit(edges=3, prune=True).edges == set(path)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({}, r"without a proposed circuit.* such as result\.circuit\(edges=20\)"),
        ({"edges": 1, "fraction": 0.1}, "one of edges, .* got edges and fraction"),
        ({"edges": 111}, r"edges must be in 0\.\.110, got 111"),
        ({"edges": -1}, r"edges must be in 0\.\.110, got -1"),
        ({"fraction": 1.1}, r"fraction must be in 0\.\.1, got 1.1"),
        ({"fraction": float("nan")}, r"fraction must be in 0\.\.1, got nan"),
        ({"threshold": float("nan")}, "threshold must be a number, got NaN"),
    ],
)
def test_circuit_refusals(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make().circuit(**choice)


def test_the_proposed_circuit_is_the_one_that_is_not_asked_for() -> None:
    result = make()
    chosen = result.circuit(edges=3)
    proposed = replace(result, chosen=chosen)
    assert proposed.circuit() == chosen
    assert proposed.circuit(prune=True) == chosen.pruned()


def test_a_result_says_what_it_is_in_one_line() -> None:
    result = make(method="eap", subject="ib-3")
    (edge, score), *_ = result.top(1)
    said = f"Result(eap on ib-3: 110 edges, no circuit proposed, best {edge} with {score:.4g})"
    assert repr(result) == said
    with_circuit = repr(replace(result, chosen=result.circuit(edges=3)))
    assert "110 edges, 3 in the circuit, best" in with_circuit


def test_top_refuses_nothing() -> None:
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        make().top(0)


def test_head_level() -> None:
    result = make()
    scores = dict(zip(GRAPHS[0].edge_names, result.scores.tolist(), strict=True))
    expected: dict[str, float] = {}
    for name, score in scores.items():
        short = name.split("<")[0]
        expected[short] = max(score, expected[short]) if short in expected else score
    del expected["input->logits"]
    assert result.head_level() == expected
    assert len(expected) == 53


def test_csv() -> None:
    result = make()
    rows = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert [(row["edge"], float(row["score"])) for row in rows] == result.top(110)
    assert [int(row["rank"]) for row in rows] == list(range(1, 111))
    assert all(f"{row['writer']}->{row['reader']}" == row["edge"] for row in rows)


@graphs
def test_dot_draws_the_circuit(graph: ComponentGraph) -> None:
    result = make(graph)
    circuit = result.circuit(edges=5)
    text = result.to_dot(circuit)
    drawn = {line.split('tooltip="')[1].split(":")[0] for line in text.split("\n") if "->" in line}
    assert drawn == circuit.edges
    boxes = {line.split('"')[1] for line in text.split("\n") if "shape=box" in line}
    assert boxes == circuit.components
    assert "penwidth=4.00" in text
    assert "penwidth=0.50" in text
    # Without a circuit: the chosen one, else everything. An empty circuit is a circuit.
    assert make(graph, chosen=circuit).to_dot() == text
    assert result.to_dot() == result.to_dot(result.circuit(fraction=1.0))
    empty = result.circuit(edges=0)
    assert result.to_dot(empty) == make(graph, chosen=empty).to_dot() == "digraph circuit {\n}\n"


# Our files


@graphs
@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_round_trip(tmp_path: Path, graph: ComponentGraph, suffix: str, dtype: torch.dtype) -> None:
    path = tmp_path / f"circuit{suffix}"
    for chosen in (None, make(graph).circuit(edges=0), make(graph).circuit(edges=2)):
        result = make(graph, scores=make(graph).scores.to(dtype), chosen=chosen)
        result.save(path)
        loaded = Result.load(path)
        assert loaded == result
        assert loaded.scores.dtype == dtype


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    scores=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=8, max_size=8),
    subject=st.text(),
    options=st.dictionaries(st.text(), st.integers() | st.text() | st.none(), max_size=3),
    seed=st.none() | st.integers(),
)
def test_any_values_survive(
    tmp_path: Path, scores: list[float], subject: str, options: dict[str, Any], seed: int | None
) -> None:
    result = Result(
        graph=GRAPHS[1],
        scores=torch.tensor(scores, dtype=torch.float64),
        subject=subject,
        options=options,
        seed=seed,
    )
    for suffix in (".json", ".safetensors"):
        result.save(tmp_path / f"circuit{suffix}")
        assert Result.load(tmp_path / f"circuit{suffix}") == result


def test_circuit_argument_marks_edges(tmp_path: Path) -> None:
    result = make(chosen=make().circuit(edges=5))
    wanted = result.circuit(edges=2)
    for suffix in (".json", ".safetensors"):
        result.save(tmp_path / f"circuit{suffix}", circuit=wanted)
        assert Result.load(tmp_path / f"circuit{suffix}").chosen == wanted


def test_text_forms_and_suffixes(tmp_path: Path) -> None:
    result = make()
    result.save(tmp_path / "a.csv")
    result.save(tmp_path / "a.dot")
    assert (tmp_path / "a.csv").read_text() == result.to_csv()
    assert (tmp_path / "a.dot").read_text() == result.to_dot()
    with pytest.raises(ValueError, match=r"saved as \.json, \.safetensors, \.csv or \.dot, got"):
        result.save(tmp_path / "a.pt")
    with pytest.raises(
        ValueError, match=r"is read from \.json, \.safetensors or \.pt, got .*a\.csv"
    ):
        Result.load(tmp_path / "a.csv")


def test_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "circuit.json"
    make().save(path)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        make(seed=1).save(path)
    assert Result.load(path) == make()
    assert len(list(tmp_path.iterdir())) == 1


# The files of EAP-IG and MIB


@graphs
def test_json_is_what_eap_ig_reads(tmp_path: Path, graph: ComponentGraph) -> None:
    result = make(graph)
    circuit = result.circuit(edges=4)
    result.save(tmp_path / "circuit.json", circuit=circuit)
    content = json.loads((tmp_path / "circuit.json").read_text())
    assert content.keys() == {"cfg", "nodes", "edges", "graphcircuits"}
    assert content["cfg"] == {
        "n_layers": graph.n_layers,
        "n_heads": graph.n_heads,
        "d_model": 12,
        "parallel_attn_mlp": graph.parallel,
    }
    assert content["edges"].keys() == eap_ig_edges(graph.n_layers, graph.n_heads, graph.parallel)
    per_group = graph.n_heads // graph.n_groups
    for name, info in content["edges"].items():
        assert info.keys() == {"score", "in_graph"}
        writer, reader = name.split("->")
        if per_group > 1 and reader[-2] in "kv":
            layer, head = reader.split("<")[0].split(".h")
            name = f"{writer}->{layer}.g{int(head) // per_group}<{reader[-2]}>"
        # Some scores are negative: the place in the ranking stands for them.
        own = result.scores[graph.edge_index(name)]
        assert info["score"] == (result.scores < own).sum()
        assert info["in_graph"] == (name in circuit)
    nodes = {name for name, info in content["nodes"].items() if info["in_graph"]}
    assert nodes == circuit.components | {"logits"}
    assert content["nodes"].keys() == {*graph.writer_names, "logits"}


@pytest.mark.parametrize("graph", [g for g in GRAPHS if g.n_groups == g.n_heads], ids=str)
def test_their_files_are_read(tmp_path: Path, graph: ComponentGraph) -> None:
    content = theirs(graph, score=lambda n: n / 7, in_graph=lambda n: n < 2)
    result = Result.load(write(tmp_path / "theirs.json", content))
    assert result.graph == graph
    assert result.d_model == 64
    for name, score in zip(graph.edge_names, result.scores.tolist(), strict=True):
        assert score == content["edges"][name]["score"]
    assert result.chosen is not None
    assert result.chosen.edges == {n for n, info in content["edges"].items() if info["in_graph"]}
    # And back, with nothing of theirs changed.
    result.save(tmp_path / "ours.json")
    ours = json.loads((tmp_path / "ours.json").read_text())
    assert ours["edges"] == content["edges"]
    assert {key: content["cfg"][key] for key in ours["cfg"]} == ours["cfg"]


def test_their_variants(tmp_path: Path) -> None:
    graph = GRAPHS[1]
    path = tmp_path / "theirs.json"
    # No circuit picked, nodes as plain booleans, whole numbers as scores.
    content = theirs(graph, score=lambda n: n, in_graph=lambda n: False)
    content["nodes"] = dict.fromkeys(content["nodes"], False)
    del content["cfg"]["d_model"]
    result = Result.load(write(path, content))
    assert result.chosen is None
    assert result.d_model is None
    # Circuits without scores, absent or null: membership is the score.
    for scores in ({}, {"score": lambda n: None}):
        content = theirs(graph, in_graph=lambda n: n == 3, **scores)
        result = Result.load(write(path, content))
        assert result.top(1) == [(sorted(content["edges"])[3], 1.0)]
        assert result.scores.sum() == 1


def test_unknown_width_is_written_as_zero(tmp_path: Path) -> None:
    make(d_model=None).save(tmp_path / "circuit.json")
    assert json.loads((tmp_path / "circuit.json").read_text())["cfg"]["d_model"] == 0
    assert Result.load(tmp_path / "circuit.json").d_model is None


# The page


@graphs
def test_show(graph: ComponentGraph, tmp_path: Path) -> None:
    path, result = tmp_path / "new" / "circuit.html", make(graph)

    def shown(result: Result, **given: Any) -> dict[str, Any]:
        result.show(path, **given)
        return data_of(path.read_text())

    data = shown(result)
    assert data["title"] == "Circuit of ib-3"
    assert data["start"] == {"edges": min(20, graph.n_edges)}
    assert torch.equal(floats(data["results"][0]["scores"]), result.scores.float())
    chosen = result.circuit(edges=2)
    assert shown(make(graph, chosen=chosen))["results"][0]["chosen"] == 2
    assert shown(result, circuit=result.circuit(edges=1))["results"][0]["chosen"] == 1
    assert shown(make(graph, subject=""))["title"] == "Circuit of a subject"
    data = shown(result, truth=chosen, others=[make(graph, method="other")], notes={"m0": "x"})
    assert torch.equal(bits(data["truth"]["edges"], graph.n_edges), chosen.mask)
    assert [one["method"] for one in data["results"]] == ["eap-ig", "other"]
    assert data["component_notes"] == {"m0": "x"}


def test_show_refuses_other_graphs(tmp_path: Path) -> None:
    result, other = make(ComponentGraph(2, 4)), make(ComponentGraph(3, 4))
    path = tmp_path / "circuit.html"
    beside: list[dict[str, Any]] = [{"others": [other]}, {"truth": other.circuit(edges=1)}]
    for words in beside:
        with pytest.raises(ValueError, match=r"must be of one subject: .* of 3 layers x 4 heads"):
            result.show(path, **words)
    with pytest.raises(ValueError, match="edges are not in the graph"):
        result.show(path, circuit=other.circuit(fraction=1.0))
    assert not path.exists()


def test_notes_are_on_the_page_and_in_files(tmp_path: Path) -> None:
    result = make()
    assert result.notes == ("chosen by hand", "beyond <all>")
    result.show(tmp_path / "circuit.html")
    data = data_of((tmp_path / "circuit.html").read_text())
    assert data["text"] == [result.task]
    assert data["results"][0]["notes"] == [*result.notes]
    for name in ("a.json", "a.safetensors"):
        result.save(tmp_path / name)
        assert Result.load(tmp_path / name).notes == result.notes
    assert make(notes=()) != result


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("notes", ["one", 3, [3], None])
def test_notes_are_texts(notes: Any) -> None:
    with pytest.raises(TypeError, match="notes must be a list of texts, got "):
        make(notes=notes)


def test_show_refuses_other_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a page is written as \.html, got .*circuit\.png"):
        make().show(tmp_path / "circuit.png")


# Damage and refusals


def changed(tmp_path: Path, *keys: str, to: Any, graph: ComponentGraph = GRAPHS[0]) -> Path:
    """A saved result with one entry changed, or removed if `to` is the word "absent"."""
    path = tmp_path / "circuit.json"
    make(graph).save(path)
    content = json.loads(path.read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    if to == "absent":
        del place[keys[-1]]
    else:
        place[keys[-1]] = to
    return write(path, rehashed_result(content))


@pytest.mark.parametrize(
    ("keys", "to", "message"),
    [
        (["cfg"], "absent", "is not a circuit: it must hold the objects cfg, nodes and edges"),
        (["edges"], [], "is not a circuit: it must hold the objects cfg, nodes and edges"),
        (["cfg", "n_layers"], "absent", "cfg must hold n_layers and n_heads, whole numbers from 1"),
        (["cfg", "n_heads"], 0, "cfg must hold n_layers and n_heads, whole numbers from 1"),
        (["cfg", "d_model"], "x", "d_model in cfg must be a whole number, got 'x'"),
        (["edges", "m0->logits", "score"], 10**400, r"circuit\.json: .*int too large"),
        (["cfg", "n_layers"], 10**12, "there are too few edges for 1000000000000 x 4 heads"),
        (
            ["cfg", "n_layers"],
            3,
            r"not those of 3 layers x 4 heads; 152 missing: input->a2\.h0<q>, .*, \.\.\.\.$",
        ),
        (["cfg", "parallel_attn_mlp"], True, r"heads, attention and MLP in parallel; 8 not in the"),
        (["edges", "m0->logits"], "absent", "2 layers x 4 heads; 1 missing: m0->logits"),
        (["edges", "a9.h0->m0"], {}, r"2 layers x 4 heads; 1 not in the graph: a9\.h0->m0"),
        (["edges", "m0->logits"], {"score": "1"}, r"m0->logits must hold .*, got \{'score': '1'\}"),
        (["edges", "m0->logits"], {"score": True}, r"m0->logits must hold .*\"in_graph\": true or"),
        (["edges", "m0->logits", "in_graph"], 1, r"m0->logits must hold \{\"score\": number"),
        (["edges", "m0->logits"], 0.5, "m0->logits must hold .*, got 0.5"),
        (["edges", "m0->logits", "score"], None, "1 of 110 edges have no score, first m0->logits"),
        (["edges", "m0->logits", "score"], float("nan"), r"circuit\.json holds NaN, which is"),
        (["graphcircuits", "version"], 2, "has format version 2, .* upgrade with pip install"),
        (["graphcircuits", "format"], "x", "was not written by graphcircuits"),
        (["graphcircuits", "more"], 2, "is not a whole result: unknown key 'more'"),
        (["graphcircuits", "seed"], "absent", "is not a whole result: no 'seed'"),
        (["graphcircuits", "dtype"], "load", "dtype must be one of float16, bfloat16, float32"),
        (["graphcircuits", "n_kv_heads"], 3, r"circuit\.json: n_kv_heads must divide n_heads=4"),
        (["graphcircuits", "n_kv_heads"], 2, r"input->a0\.h\d<k> differs from another head of its"),
    ],
)  # fmt: skip
def test_damaged_json(tmp_path: Path, keys: list[str], to: Any, message: str) -> None:
    path = changed(tmp_path, *keys, to=to)
    with pytest.raises(StoreError, match=message):
        Result.load(path)


def test_other_json_is_refused(tmp_path: Path) -> None:
    for content in ([1], {}, None, {"cfg": {}, "nodes": {}}):
        with pytest.raises(StoreError, match="is not a circuit: it must hold the objects cfg"):
            Result.load(write(tmp_path / "other.json", content))
    newer = {"graphcircuits": {"format": "graphcircuits", "version": 9}}
    path = write(tmp_path / "newer.json", newer)
    with pytest.raises(StoreError, match=r"has format version 9, .* upgrade"):
        Result.load(path)


def test_node_scores_are_not_edge_scores(tmp_path: Path) -> None:
    content = theirs(GRAPHS[1], score=lambda n: 0.0, in_graph=lambda n: False)
    content["nodes"]["m0"]["score"] = 0.5
    with pytest.raises(
        StoreError, match="scores nodes, not edges; a result needs a score for each"
    ):
        Result.load(write(tmp_path / "nodes.json", content))


def test_cut_json(tmp_path: Path) -> None:
    path = tmp_path / "circuit.json"
    make(GRAPHS[1]).save(path)
    whole = path.read_bytes().rstrip()
    for length in range(0, len(whole), 13):
        path.write_bytes(whole[:length])
        with pytest.raises(StoreError, match="is not complete JSON"):
            Result.load(path)


def test_pickles_and_foreign_tensors(tmp_path: Path) -> None:
    for suffix in (".json", ".safetensors"):
        torch.save({"cfg": {}}, tmp_path / f"circuit{suffix}")
        with pytest.raises(StoreError, match="is a pickle or a zip of pickles"):
            Result.load(tmp_path / f"circuit{suffix}")


def test_safetensors_of_another_shape(tmp_path: Path) -> None:
    from graphcircuits.io.store import save_artifact

    path = tmp_path / "circuit.safetensors"
    about = {name: getattr(make(), name) for name in ABOUT if name != "seed"} | {"d_model": 12}

    def save(config: Any, tensors: dict[str, Any], meta: dict[str, Any]) -> None:
        save_artifact(path, kind="result", config=config, seed=0, tensors=tensors, meta=meta)

    save(GRAPHS[0], {"scores": torch.zeros(109)}, about)
    with pytest.raises(StoreError, match=r"safetensors: scores must be one number for each of 110"):
        Result.load(path)
    save(GRAPHS[0], {"score": torch.zeros(110)}, about)
    with pytest.raises(StoreError, match="whole result: no 'scores', unknown key 'score'"):
        Result.load(path)
    save(GRAPHS[0], {"scores": torch.zeros(110)}, about | {"mood": "good"})
    with pytest.raises(StoreError, match="whole result: unknown key 'mood'"):
        Result.load(path)
    save({"n_layers": 2}, {"scores": torch.zeros(110)}, about)
    with pytest.raises(StoreError, match="ComponentGraph: missing key 'n_heads'"):
        Result.load(path)


def test_a_measured_curve_is_shown(tmp_path: Path) -> None:
    result = make()
    measured = FaithfulnessCurve(
        n_edges=result.graph.n_edges,
        sizes=(0, 2, 2, 10),
        faithfulness=(0.0, 0.5, 0.5, 1.0),
        n_pairs=7,
    )
    result.show(tmp_path / "page.html", curve=measured)
    [shown] = data_of((tmp_path / "page.html").read_text("utf-8"))["results"]
    assert shown["curve"] == {
        "sizes": [0, 2, 10],
        "faithfulness": [0.0, 0.5, 1.0],
        "by": "output",
        "pairs": 7,
        "seed": None,
    }
    assert result.curve is None
