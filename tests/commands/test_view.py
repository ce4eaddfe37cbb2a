"""`graphcircuits view`: one page of results and a circuit, refusals in one line, nothing else."""

import json
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.certificates.certificate import Certificate
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.result.result import Result
from tests.shell import Command, refused
from tests.viewer.certified import certified
from tests.viewer.reading import bits, data_of, floats

GRAPH = ComponentGraph(2, 4)


def make(path: Path, graph: ComponentGraph = GRAPH, seed: int = 0, **given: Any) -> Result:
    """A result, also as a file."""
    scores = torch.rand(graph.n_edges, generator=torch.Generator().manual_seed(seed))
    about: dict[str, Any] = {"method": "eap", "subject": "ib-3"}
    result = Result(graph=graph, scores=scores, **about | given)
    result.save(path)
    return result


def page(path: Path) -> dict[str, Any]:
    return data_of(path.read_text())


def test_a_page_beside_the_result(command: Command, tmp_path: Path) -> None:
    result = make(tmp_path / "a.json")
    ended = command("view", "a.json")
    assert (ended.code, ended.out, ended.err) == (0, "a: 20 of 110 edges\nwrote a.html\n", "")
    data = page(tmp_path / "a.html")
    assert torch.equal(floats(data["results"][0]["scores"]), result.scores)
    assert data["results"][0]["name"] == "ib-3, eap"
    assert data["truth"] is None
    assert data["component_roles"] == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.json"]


def test_results_beside_the_circuit_of_a_case(command: Command, tmp_path: Path) -> None:
    case = load_case("ib-3")
    truth = case.circuit
    first = make(tmp_path / "a.json")
    first = replace(first, chosen=first.circuit(edges=9))
    first.save(tmp_path / "a.json")
    make(tmp_path / "b.safetensors", seed=1)
    ended = command("view", "a.json", "b.safetensors", "--truth", "ib-3", "--out", "new/c.html")
    assert ended.code == 0, ended.err
    hits = len(first.circuit(edges=9) & truth)
    assert ended.out.splitlines()[0] == (
        f"a: 9 of 110 edges; {hits} of the true circuit's, {len(truth) - hits} missed, "
        f"{9 - hits} false alarms"
    )
    data = page(tmp_path / "new" / "c.html")
    assert [one["name"] for one in data["results"]] == ["a", "b"]
    assert data["truth"]["name"] == "the circuit of ib-3"
    assert torch.equal(bits(data["truth"]["edges"], 110), truth.mask)
    assert data["component_notes"] == case.variables
    assert data["component_roles"] == {name: role.text for name, role in case.roles.items()}
    assert data["component_notes"].keys() <= truth.components


def test_for_machines(command: Command, tmp_path: Path) -> None:
    result = make(tmp_path / "a.json")
    ended = command("view", "a.json", "--truth", "ib-3", "--json")
    record, truth = json.loads(ended.out), load_case("ib-3").circuit
    best = result.circuit(edges=20)
    assert record == {
        "page": "a.html",
        "bytes": (tmp_path / "a.html").stat().st_size,
        "truth": "the circuit of ib-3",
        "certificate": None,
        "results": [
            {
                "file": "a.json",
                "subject": "ib-3",
                "task": "",
                "method": "eap",
                "graph_edges": 110,
                "circuit_edges": 20,
                "curve": False,
                "prompts": 0,
                "hits": len(best & truth),
                "misses": len(truth - best),
                "false_alarms": len(best - truth),
            }
        ],
    }
    plain = json.loads(command("view", "a.json", "--json").out)
    assert (plain["truth"], plain["results"][0]["hits"]) == (None, None)


def theirs(path: Path, marked: int) -> None:
    """A file as EAP-IG writes it."""
    names = GRAPH.edge_names
    edges = {name: {"score": -float(i), "in_graph": i < marked} for i, name in enumerate(names)}
    cfg = {"n_layers": 2, "n_heads": 4, "parallel_attn_mlp": False, "d_model": 8}
    path.write_text(json.dumps({"cfg": cfg, "nodes": {}, "edges": edges}))


def test_files_of_eap_ig_and_circuits(command: Command, tmp_path: Path) -> None:
    theirs(tmp_path / "theirs.json", marked=3)
    circuit = Circuit.from_names(GRAPH, ["input->m0"])
    circuit.save(tmp_path / "circuit.json")
    circuit.save(tmp_path / "circuit.safetensors")
    first = Circuit.from_mask(GRAPH, torch.arange(110) < 3)
    for name, mask in (
        ("circuit.json", circuit.mask),
        ("circuit.safetensors", circuit.mask),
        ("theirs.json", first.mask),
    ):
        ended = command("view", "theirs.json", "--truth", name, "--out", "a.html")
        assert ended.code == 0, ended.err
        data = page(tmp_path / "a.html")
        assert torch.equal(bits(data["truth"]["edges"], 110), mask)
        assert data["truth"]["name"] == name
        # It says nothing of itself, so its file does.
        assert data["results"][0]["name"] == "theirs"
        assert data["results"][0]["chosen"] == 3


def test_scores_of_single_heads_come_to_the_graph_of_the_circuit(
    command: Command, tmp_path: Path
) -> None:
    theirs(tmp_path / "theirs.json", marked=0)
    shared = ComponentGraph(2, 4, n_kv_heads=2)
    Circuit.from_names(shared, ["input->a0.g1<k>"]).save(tmp_path / "circuit.json")
    assert command("view", "theirs.json", "--truth", "circuit.json", "--out", "a.html").code == 0
    data = page(tmp_path / "a.html")
    brought = Result.load(tmp_path / "theirs.json").on(shared)
    assert torch.equal(floats(data["results"][0]["scores"]), brought.scores.float())


def test_what_a_certificate_says_stands_beside_the_circuit(
    command: Command, tmp_path: Path
) -> None:
    result = make(tmp_path / "a.json")
    made = certified(result.circuit(edges=4), core=result.circuit(edges=3))
    made.save(tmp_path / "c.json")
    ended = command("view", "a.json", "--certificate", "c.json")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == [
        "a: 4 of 110 edges",
        "certificate: fails: stable; not measured: unique",
        "wrote a.html",
    ]
    data = page(tmp_path / "a.html")
    assert data["certificate"]["rows"] == made.rows()
    assert data["results"][0]["chosen"] == 4
    result.show(tmp_path / "b.html", certificate=Certificate.load(tmp_path / "c.json"))
    assert page(tmp_path / "b.html") == data
    ended = command("view", "a.json", "--certificate", "c.json", "--json")
    assert json.loads(ended.out)["certificate"] == made.verdict


def test_open(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "a.json")
    asked, there = [], True
    monkeypatch.setattr(webbrowser, "open", lambda uri: (asked.append(uri), there)[1])
    assert command("view", "a.json", "--open").err == ""
    assert asked == [(tmp_path / "a.html").as_uri()]
    there = False
    ended = command("view", "a.json", "--open")
    assert ended.code == 0
    assert ended.err == "warning: no browser was found here; open a.html by hand\n"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["none.json"], "none.json: no such file or directory"),
        (["ib-3"], "ib-3 is a case, not a file: make one with graphcircuits localize ib-3 --out"),
        (["a.json", "a.json"], "RESULT names a.json twice"),
        (["a.csv"], "a result is read from .json, .safetensors or .pt, got a.csv"),
        (["bad.json"], "bad.json"),
        (["a.json", "--out", "a.svg"], "--out must end in .html, .htm, got a.svg"),
        (["a.html", "--out", "a.html"], "--out would overwrite a.html, which is read"),
        (["a.json", "--truth", "ib-3000"], "--truth must be a case, such as ib-3, or a file that"),
        (["a.json", "--truth", "x.txt"], "ends in .json, .safetensors, .pt, got x.txt"),
        (["a.json", "--truth", "bad.json"], "bad.json"),
        (["a.json", "--truth", "a.json"], "--truth a.json is a result in which no circuit is mark"),
        (
            ["b.json", "--truth", "ib-3"],
            "--truth ib-3 is of 2 layers x 4 heads, the results of 3 layers x 4 heads; give the",
        ),
        (["a.json", "--certificate", "c.html"], "--certificate must end in .json, got c.html"),
        (["a.json", "--certificate", "none.json"], "none.json: no such file or directory"),
        (
            ["a.json", "--certificate", "a.json"],
            "--certificate must be a file that certify wrote: a.json was not written by",
        ),
        (
            ["a.json", "--certificate", "circuit.json"],
            "circuit.json holds a 'circuit' artifact; expected 'certificate'.",
        ),
        (
            ["a.json", "--certificate", "certificate.json", "--out", "certificate.json"],
            "--out must end in .html, .htm, got certificate.json",
        ),
        (
            ["b.json", "--certificate", "certificate.json"],
            "b is of 3 layers x 4 heads; the certificate is of 2 layers x 4 heads.",
        ),
        (
            ["a.json", "b.json"],
            "must be of one subject: a is of 2 layers x 4 heads; b is of 3 layers x 4 heads.",
        ),
        (
            ["b.json", "--truth", "circuit.json"],
            "b is of 3 layers x 4 heads; the true circuit is of 2 layers x 4 heads.",
        ),
    ],
)
def test_refusals(command: Command, tmp_path: Path, given: list[str], text: str) -> None:
    make(tmp_path / "a.json")
    make(tmp_path / "b.json", ComponentGraph(3, 4))
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "a.csv").write_text("")
    circuit = Circuit.from_names(GRAPH, ["input->m0"])
    circuit.save(tmp_path / "circuit.json")
    certified(circuit).save(tmp_path / "certificate.json")
    before = sorted(path.name for path in tmp_path.iterdir())
    refused(command("view", *given), text)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_full_disk(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "a.json")

    def full(path: str | Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", f"{path}.tmp")

    monkeypatch.setattr("graphcircuits.io.store.write_atomic", full)
    ended = command("view", "a.json", "--open")
    assert (ended.code, ended.err) == (1, "error: cannot write a.html: no space left on device\n")
    assert ended.out == "a: 20 of 110 edges\n"
