"""What pages are told: every table can be read back, and edges rank as they do here."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphcircuits.certificates.certificate import Certificate
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.result.curve import FaithfulnessCurve
from graphcircuits.result.result import Result
from graphcircuits.task.stored import StoredPrompts
from graphcircuits.viewer.payload import (
    circuit_payload,
    on_one_graph,
    ranked_alike,
    result_payload,
)
from tests.viewer.certified import certified
from tests.viewer.reading import bits, floats, patterns

GRAPHS = [
    ComponentGraph(2, 4),
    ComponentGraph(3, 4, n_kv_heads=2),
    ComponentGraph(2, 2, parallel=True),
]


def make(graph: ComponentGraph = GRAPHS[0], seed: int = 0, **given: Any) -> Result:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(graph.n_edges, generator=generator)
    fields: dict[str, Any] = {"subject": "ib-3", "method": "eap", "task": "a task"}
    return Result(graph=graph, scores=scores, **fields | given)


def make_prompts(graph: ComponentGraph) -> StoredPrompts:
    shape = (2, graph.n_layers, graph.n_heads, 3, 3)
    generator = torch.Generator().manual_seed(0)
    tables = [torch.randint(256, shape, generator=generator).to(torch.uint8) for _ in range(2)]
    return StoredPrompts(
        clean=[["a", "b", "c"], ["d", "e", "f"]],
        corrupted=[["A", "B", "C"], ["D", "E", "F"]],
        answers=["g", None],
        patterns=[*tables[0]],
        patterns_corrupted=[*tables[1]],
    )


class Said(NamedTuple):
    """What is shown as its text."""

    text: str

    def __str__(self) -> str:
        return self.text


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_result_can_be_read_back(graph: ComponentGraph) -> None:
    result = make(graph, notes=("one", "two"))
    likely = result.scores.sigmoid()
    curve = FaithfulnessCurve(
        n_edges=graph.n_edges, sizes=[1, 3], faithfulness=[0.1, 0.9], n_pairs=5, seed=7
    )
    prompts = make_prompts(graph)
    result = replace(result, probabilities=likely, curve=curve, prompts=prompts)
    truth = make(graph, seed=1).circuit(edges=4)
    told_of = {"notes": {"m0": "sum"}, "roles": {"m0": Said("adds them up")}}
    payload = result_payload([result], truth=truth, truth_name="known", **told_of)
    assert json.loads(json.dumps(payload)) == payload
    assert (
        ComponentGraph(
            payload["graph"]["n_layers"],
            payload["graph"]["n_heads"],
            n_kv_heads=payload["graph"]["n_kv_heads"],
            parallel=payload["graph"]["parallel"],
        )
        == graph
    )
    (told,) = payload["results"]
    assert torch.equal(floats(told["scores"]), result.scores)
    assert torch.equal(floats(told["probabilities"]), likely)
    assert told["curve"] == {
        "sizes": [1, 3], "faithfulness": [0.1, 0.9], "by": "output", "pairs": 5, "seed": 7,
    }  # fmt: skip
    named = {key: told[key] for key in ("name", "subject", "task", "method", "notes")}
    assert named == {
        "name": "ib-3, eap",
        "subject": "ib-3",
        "task": "a task",
        "method": "eap",
        "notes": ["one", "two"],
    }
    assert payload["truth"]["name"] == "known"
    assert torch.equal(bits(payload["truth"]["edges"], graph.n_edges), truth.mask)
    assert payload["component_notes"] == {"m0": "sum"}
    assert payload["component_roles"] == {"m0": "adds them up"}
    assert (payload["title"], payload["text"]) == ("Circuit of ib-3", ["a task"])
    shape = prompts.patterns[0].shape
    assert [prompt["answer"] for prompt in payload["prompts"]] == ["g", None]
    for pair, prompt in enumerate(payload["prompts"]):
        assert tuple(prompt["clean"]) == prompts.clean[pair]
        assert tuple(prompt["corrupted"]) == prompts.corrupted[pair]
        assert torch.equal(patterns(prompt["patterns"], *shape), prompts.patterns[pair])
        corrupted = patterns(prompt["patterns_corrupted"], *shape)
        assert torch.equal(corrupted, prompts.patterns_corrupted[pair])


def test_what_is_missing_is_told_as_missing() -> None:
    payload = result_payload([make(subject="", method="", task="")])
    (told,) = payload["results"]
    assert told["name"] == "a result"
    assert {told[key] for key in ("probabilities", "chosen", "chosen_edges", "curve")} == {None}
    assert payload["truth"] is None
    assert (payload["text"], payload["prompts"], payload["component_notes"]) == ([], [], {})
    assert payload["component_roles"] == {}
    assert payload["title"] == "Circuit of a subject"
    assert payload["start"] == {"edges": 20}


def test_the_chosen_circuit() -> None:
    result = make()
    best = replace(result, chosen=result.circuit(edges=5))
    payload = result_payload([best])
    (told,) = payload["results"]
    assert (told["chosen"], told["chosen_edges"], payload["start"]["edges"]) == (5, None, 5)
    other = Circuit.from_mask(result.graph, ~result.circuit(edges=100).mask)
    payload = result_payload([replace(result, chosen=other)])
    (told,) = payload["results"]
    assert told["chosen"] is None
    assert torch.equal(bits(told["chosen_edges"], result.graph.n_edges), other.mask)
    assert payload["start"]["edges"] == len(other)
    small = ComponentGraph(1, 1)
    assert result_payload([make(small)])["start"] == {"edges": small.n_edges}


def test_a_circuit_alone() -> None:
    circuit = make().circuit(edges=7)
    told = {"notes": {"m1": "x"}, "roles": {"m1": "maps"}}
    payload = circuit_payload(circuit, title="mine", text="what it is", **told)
    assert (payload["component_notes"], payload["component_roles"]) == (
        told["notes"],
        told["roles"],
    )
    assert payload["results"] == []
    assert torch.equal(bits(payload["truth"]["edges"], circuit.graph.n_edges), circuit.mask)
    assert (payload["title"], payload["text"]) == ("mine", ["what it is"])
    assert payload["truth"]["name"] == "mine"
    assert payload["start"] == {"edges": 7}
    assert circuit_payload(circuit, title="", text=["a", "b"])["text"] == ["a", "b"]


# Certificates


def test_a_certificate_can_be_read_back(tmp_path: Path) -> None:
    result = make()
    graph, circuit = result.graph, result.circuit(edges=5)
    core, rival = result.circuit(edges=3), make(seed=1).circuit(edges=4)
    made = certified(circuit, core=core, rivals=(rival, core))
    payload = result_payload([result], certificate=made)
    assert json.loads(json.dumps(payload)) == payload
    told = payload["certificate"]
    shown = {key: told[key] for key in ("of", "verdict", "judged", "notes", "meaning")}
    assert shown == {
        "of": ["ib-3", "a task"],
        "verdict": "fails: stable; not measured: unique",
        "judged": [16, 32, "eap"],
        "notes": ["a note"],
        "meaning": "what it is of",
    }
    assert told["rows"] == made.rows()
    assert [row[:2] for row in told["rows"]] == [
        *(["sufficient", "passed"], ["stable", "FAILED"], ["unique", "missing"])
    ]
    expected = {"the certified circuit": circuit, "core": core, "rival 1": rival, "rival 2": core}
    assert [one["name"] for one in told["circuits"]] == [*expected]
    for one in told["circuits"]:
        assert torch.equal(bits(one["edges"], graph.n_edges), expected[one["name"]].mask)
    assert made.edges is not None
    assert made.edges.probability is not None
    back, likely = floats(told["came_back"]), floats(told["probability"])
    assert torch.equal(back, made.edges.came_back)
    known = circuit.mask | (back > 0)
    assert torch.equal(likely.isnan(), ~known)
    assert torch.equal(likely[known], made.edges.probability[known])
    # A page of the file is the same, up to what a file rounds; the page opens at the circuit.
    made.save(tmp_path / "c.json")
    again = result_payload([result], certificate=Certificate.load(tmp_path / "c.json"))
    rounded = floats(again["certificate"].pop("probability"))
    assert torch.allclose(rounded, likely, atol=1e-4, equal_nan=True)
    assert torch.allclose(floats(again["certificate"].pop("came_back")), back, atol=1e-4)
    assert again["certificate"] == {key: told[key] for key in again["certificate"]}
    assert (payload["results"][0]["chosen"], payload["start"]) == (5, {"edges": 5})


def test_a_certificate_may_hold_little() -> None:
    result = make()
    made = certified(make(seed=1).circuit(edges=2), edges=None)
    payload = result_payload([result], certificate=made)
    told = payload["certificate"]
    assert (told["came_back"], told["probability"], told["meaning"]) == (None, None, "")
    assert [one["name"] for one in told["circuits"]] == ["the certified circuit"]
    # It is not the best of the result.
    assert torch.equal(
        bits(payload["results"][0]["chosen_edges"], result.graph.n_edges), made.circuit.mask
    )
    assert result_payload([result])["certificate"] is None


def test_a_certificate_is_of_the_same_graph() -> None:
    single, shared = make(ComponentGraph(2, 4)), make(ComponentGraph(2, 4, n_kv_heads=2))
    made = certified(shared.circuit(edges=3))
    payload = result_payload([single], certificate=made)
    assert payload["graph"]["n_kv_heads"] == 2
    with pytest.raises(
        ValueError,
        match=r"subject: ib-3, eap is of 2 layers x 4 heads; the true circuit is of 2 layers x 4 "
        r"heads; the certificate is of 2 layers x 4 heads \(2 keys\)\.$",
    ):
        result_payload([single], truth=single.circuit(edges=2), certificate=made)
    with pytest.raises(ValueError, match=r"a is of 1 layers x 2 heads; the certificate is of 2"):
        on_one_graph([make(ComponentGraph(1, 2))], "a", certificate=made)


# Ranking


def is_ranked_alike(scores: torch.Tensor) -> None:
    told = torch.from_numpy(ranked_alike(scores))
    assert told.dtype == torch.float32
    assert told.isfinite().all()
    ranking = scores.sort(descending=True, stable=True).indices
    assert torch.equal(told.sort(descending=True, stable=True).indices, ranking)


close = st.sampled_from([1.0, 1.0 + 1e-12, 1.0 - 1e-12, 0.0, -0.0, 1e-320, -1e-320, 1e-46, 1e300])
anything = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(close | anything | anything.map(lambda x: -x), min_size=1, max_size=40))
def test_edges_rank_as_their_scores_do(scores: list[float]) -> None:
    is_ranked_alike(torch.tensor(scores, dtype=torch.float64))


def test_scores_that_need_no_help_are_left_alone() -> None:
    scores = torch.randn(1000).sort().values
    assert torch.equal(torch.from_numpy(ranked_alike(scores)), scores)
    half = torch.tensor([1.0, 1.0, -2.0, 0.5], dtype=torch.bfloat16)
    assert ranked_alike(half).tolist() == half.tolist()
    flat = torch.zeros(5)
    assert np.array_equal(ranked_alike(flat), flat.numpy())


def test_scores_beyond_single_precision_move_by_steps_only() -> None:
    scores = 1 + torch.linspace(0, 1e-10, 50, dtype=torch.float64)
    told = torch.from_numpy(ranked_alike(scores)).double()
    assert len(told.unique()) == 50
    assert (told - scores).abs().max() < 1e-5
    is_ranked_alike(scores)


# One graph


def test_results_come_to_the_graph_of_the_truth() -> None:
    shared = ComponentGraph(2, 4, n_kv_heads=2)
    single, own = make(ComponentGraph(2, 4)), make(shared)
    truth = own.circuit(edges=3)
    payload = result_payload([single], truth=truth)
    assert payload["graph"]["n_kv_heads"] == 2
    assert torch.equal(floats(payload["results"][0]["scores"]), single.on(shared).scores)
    # Without one, whatever suits all.
    assert [result.graph for result in on_one_graph([single, own], "ab")] == [shared, shared]
    assert on_one_graph([single], "a") == [single]


def test_graphs_that_differ_are_refused_by_name() -> None:
    small, large = make(ComponentGraph(1, 2)), make(ComponentGraph(2, 2, parallel=True))
    with pytest.raises(
        ValueError,
        match=r"^what one page shows must be of one subject: a is of 1 layers x 2 heads; b is of "
        r"2 layers x 2 heads, attention and MLP in parallel\.$",
    ):
        result_payload([small, large], names=["a", "b"])
    truth = make(ComponentGraph(2, 4, n_kv_heads=2)).circuit(edges=1)
    with pytest.raises(ValueError, match=r"the true circuit is of 2 layers x 4 heads \(2 keys\)\."):
        result_payload([small], truth=truth)
    with pytest.raises(ValueError, match="a page needs at least one result, got none"):
        result_payload([])


def test_results_are_told_apart() -> None:
    results = [make(), make(seed=1), make(seed=2, method="gcl")]
    payload = result_payload(results)
    names = [told["name"] for told in payload["results"]]
    assert names == ["eap (1)", "eap (2)", "gcl"]
    others = result_payload([make(), make(subject="ib-4")])["results"]
    assert [told["name"] for told in others] == ["ib-3, eap", "ib-4, eap"]
    assert payload["text"] == ["a task"]
    assert [r["name"] for r in result_payload(results, names="xyz")["results"]] == [*"xyz"]


def test_the_first_prompts_there_are() -> None:
    graph = GRAPHS[0]
    prompts = make_prompts(graph)
    payload = result_payload([make(), make(prompts=prompts)])
    assert len(payload["prompts"]) == 2


def test_notes_are_for_components() -> None:
    with pytest.raises(
        ValueError, match=r"notes and roles are for components .*, got \['m9'\] for"
    ):
        result_payload([make()], notes={"m0": "fine", "logits": "fine", "m9": "none"})
    with pytest.raises(ValueError, match=r"got \['m9'\] for"):
        result_payload([make()], notes={"m0": "fine"}, roles={"m1": "fine", "m9": "none"})
