"""Probabilities of edges: what may raise them, what a broken file says, and abstaining."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphcircuits import load_case, localize
from graphcircuits.certificates import probability
from graphcircuits.certificates.probability import (
    FEATURES,
    GROWING,
    KIND,
    LANGUAGE,
    NATURAL,
    PLANTED,
    Chances,
    edge_chances,
    edge_features,
    load_chances,
    shipped_chances,
)
from graphcircuits.certificates.searching import Searches
from graphcircuits.circuit import Circuit
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.files import StoreError
from graphcircuits.io.store import save_artifact
from graphcircuits.predictor.facts.familiarity import Familiarity
from graphcircuits.result.result import Result

GRAPH = ComponentGraph(n_layers=1, n_heads=2)
N = GRAPH.n_edges


def searches(rows: list[list[int]], scores: torch.Tensor | None = None) -> Searches:
    """Fresh searches that found these edges."""
    found = Searches()
    for row in rows:
        mask = torch.zeros(N, dtype=torch.bool)
        mask[row] = True
        ranked = torch.arange(N).flip(0).float() if scores is None else scores
        chosen = Circuit.from_mask(GRAPH, mask)
        found.results.append(Result(graph=GRAPH, scores=ranked, chosen=chosen))
    return found


CIRCUIT = Circuit.from_mask(GRAPH, torch.arange(N) < 3)


def test_what_the_features_of_edges_are() -> None:
    found = searches([[0, 1], [0, 2], [0, 1], [0, 3]])
    features = edge_features(CIRCUIT, found)
    back = features["came back"].sigmoid()
    assert back[:4].tolist() == pytest.approx([0.9, 0.5, 0.3, 0.3])
    # Ranks 1, 2, 4 where circuits have two edges.
    ratios = features["rank"][[0, 1, 3]].exp()
    assert ratios.tolist() == pytest.approx([2, 1, 0.5])
    assert features["inside"].tolist() == [1.0] * 3 + [0.0] * (N - 3)
    assert features["size"].exp().tolist() == pytest.approx([2 / N] * N)
    assert {*features} == {*FEATURES} - {"network", "network rank"}
    asked = edge_features(CIRCUIT, found, torch.arange(N).float())
    assert float(asked["network rank"][-1].exp()) == pytest.approx(2)


def test_edges_that_tie_share_the_mean_of_their_ranks() -> None:
    scores = torch.zeros(N)
    scores[5] = 1.0
    rank = edge_features(CIRCUIT, searches([[0, 1]], scores))["rank"].exp()
    assert float(rank[5]) == pytest.approx(2)
    others = (N + 2) / 2
    assert rank[:5].tolist() == pytest.approx([2 / others] * 5)


@pytest.mark.parametrize("name", [PLANTED, NATURAL, LANGUAGE])
def test_more_never_makes_an_edge_less_likely(name: str) -> None:
    chances, generator = shipped_chances()[name], torch.Generator().manual_seed(0)
    features = {
        feature: torch.randn(50, generator=generator, dtype=torch.float64) for feature in FEATURES
    }
    before = chances(features)
    assert ((before >= 0) & (before <= 1)).all()
    for feature in GROWING:
        assert (chances({**features, feature: features[feature] + 1}) >= before).all()
    assert chances.weights["came back"] > 0


def test_an_edge_that_came_back_more_often_is_likelier() -> None:
    scores = torch.zeros(N)
    likely = []
    for back in range(5):
        found = searches([[1, 2, 0 if n < back else 3] for n in range(4)], scores)
        likely.append(float(shipped_chances()[NATURAL](edge_features(CIRCUIT, found))[0]))
    assert likely == sorted(set(likely))


@pytest.mark.parametrize(
    ("weights", "bias", "says"),
    [
        ({"luck": 1.0}, 0.0, "weights must be of"),
        ({}, 0.0, "weights must be of"),
        ({"rank": -1.0}, 0.0, "from 0 up for rank"),
        ({"rank": float("inf")}, 0.0, "must be numbers"),
        ({"rank": 1.0}, float("nan"), "must be numbers"),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights: dict, bias: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Chances(weights, bias)


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    path, whole = tmp_path / "c.json", {"weights": {"rank": 1.0}, "bias": 0.0}
    rest = {PLANTED: whole, LANGUAGE: whole}
    broken = [
        rest,
        rest | {NATURAL: {**whole, "bias": None}},
        rest | {NATURAL: {**whole, "weights": {"rank": -1.0}}},
        rest | {NATURAL: {**whole, "weights": {"rank": "1"}}},
        rest | {NATURAL: {**whole, "weights": 3}},
        rest | {NATURAL: [whole]},
    ]
    for meta in broken:
        save_artifact(path, kind=KIND, config={}, seed=0, meta=meta)
        with pytest.raises(StoreError, match="holds no chances of edges"):
            load_chances(path)
    save_artifact(path, kind=KIND, config={}, seed=0, meta=rest | {NATURAL: whole})
    assert load_chances(path)[NATURAL] == Chances({"rank": 1.0}, 0.0)
    stored = json.loads(path.read_text())
    stored["meta"][NATURAL]["bias"] = 9.0
    path.write_text(json.dumps(stored))
    with pytest.raises(StoreError, match="has changed"):
        load_chances(path)


def test_a_planted_circuit_is_told_from_the_rest() -> None:
    case = load_case("ib-3")
    subject, pairs = case.subject(), case.pairs(32, seed=0)
    result = localize(subject, pairs, "eap-ig")
    found = Searches([result, localize(subject, pairs[:16], "eap-ig")])
    said = edge_chances(subject, result.circuit(), found, pairs=pairs)
    truth = case.labels(graph=subject.graph).mask
    assert said.probability is not None
    assert said.probability[truth].min() > said.probability[~truth].max()
    assert "planted" in said.meaning
    assert said.came_back.equal(found.came_back)


def test_it_abstains_where_the_predictor_does_not_know_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = load_case("ib-3")
    subject, pairs = case.subject(), case.pairs(16, seed=0)
    found = Searches([localize(subject, pairs, "eap-ig")])
    circuit = found.results[0].circuit()
    said = edge_chances(subject, circuit, found)
    assert said.probability is None
    assert said.meaning.startswith("I do not know this model: no prompts were given")
    strange = Familiarity(share=0.0, strangeness=3.0, disagreement=3.0, distance=0.5)
    predict = type(probability.GCL).predict

    def stranger(*given: object) -> object:
        return replace(predict(*given), familiarity=strange)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(type(probability.GCL), "predict", stranger)
    said = edge_chances(subject, circuit, found, pairs=pairs)
    assert said.probability is None
    assert said.meaning.startswith("I do not know this model: the networks of the predictor")


def test_of_natural_models_it_says_what_comes_back() -> None:
    case = load_case("ib-3")
    subject, pairs = case.subject("natural"), case.pairs(32, seed=0)
    found = Searches([localize(subject, pairs, "eap-ig")])
    said = edge_chances(subject, found.results[0].circuit(), found)
    assert said.probability is not None
    assert said.meaning.startswith("of coming back in one more search")
    back = found.came_back > 0
    assert said.probability[back].mean() > said.probability[~back].mean()
