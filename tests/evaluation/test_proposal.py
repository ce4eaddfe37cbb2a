"""The proposed circuit: its size against smaller ones, and how faithful it is."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import graphcircuits as gc
from graphcircuits.cases import load_case
from graphcircuits.evaluation import proposal
from graphcircuits.evaluation.evaluate import faithfulness, log_sizes
from graphcircuits.evaluation.proposal import Proposal, fresh_seed, propose, recorded_curve
from graphcircuits.methods import localize
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

Given = tuple[Transformer, Pairs, Pairs, Result]


@pytest.fixture(scope="module")
def given() -> Given:
    case = load_case("ib-3")
    subject, pairs = case.subject().to(torch.float64), case.pairs(8)
    fresh = case.pairs(8, seed=fresh_seed(0))
    return subject, pairs, fresh, localize(subject, pairs, "eap")


def kept(given: Given, size: int) -> float:
    subject, pairs, _, result = given
    return faithfulness(subject, pairs, [result.circuit(edges=size)])[0]


def test_no_fewer_of_the_best_edges_keep_enough(given: Given) -> None:
    subject, pairs, fresh, result = given
    heard: list[tuple[int, int]] = []
    found = propose(
        subject, pairs, result, fresh=fresh, seed=0, progress=lambda *step: heard.append(step)
    )
    assert kept(given, found.best) >= 0.9 > kept(given, found.best - 1)
    assert found.circuit == result.circuit(edges=found.best, prune=True)
    assert found.found_on == pytest.approx(kept(given, found.best))
    assert found.curve is not None
    assert found.best in found.curve.sizes
    assert (found.curve.n_pairs, found.curve.seed) == (8, 0)
    for size, value in zip(found.curve.sizes, found.curve.faithfulness, strict=True):
        assert value == pytest.approx(kept(given, size), abs=1e-9)
    assert len(found.curve.sizes) <= 8
    assert heard
    assert all(0 < done <= total for done, total in heard)
    (on_fresh,) = faithfulness(subject, fresh, [found.circuit])
    assert (found.fresh, found.n_fresh) == (pytest.approx(on_fresh), 8)
    assert found.sentences()[1:] == [
        f"they keep {found.found_on:.2f} of the behaviour on the 8 pairs they were found on, "
        f"{on_fresh:.2f} on 8 fresh pairs",
        "fewer of the best edges keep less than 0.9",
    ]
    assert found.record()["best_edges"] == found.best


@pytest.mark.slow
def test_the_rule_is_the_same_for_every_method_and_in_python(given: Given) -> None:
    subject, pairs, _, _ = given
    for method in ("eap", "gcl", "random"):
        result = gc.localize(subject, pairs, method)
        assert result.circuit() == propose(subject, pairs, localize(subject, pairs, method)).circuit
        (value,) = gc.faithfulness(subject, pairs, [result.circuit()])
        assert value >= 0.9 - 1e-9
        assert (result.subject, result.task) == ("ib-3", load_case("ib-3").task)
    few = gc.localize(subject, pairs, "eap", keep=0.5)
    assert len(few.circuit()) <= len(gc.localize(subject, pairs, "eap").circuit())
    assert gc.localize(subject, pairs, "eap", keep=None).chosen is None
    with pytest.raises(ValueError, match="keep must be above 0 and at most 1, got 0"):
        gc.localize(subject, pairs, "eap", keep=0.0)


def test_edges_on_no_path_are_left_out(given: Given) -> None:
    subject, pairs, _, result = given
    # The worst edge that ends in a head of the last layer, first of all: nothing reads that head.
    dead = result.graph.edge_indices(["input->a1.h3<q>"])
    scores = result.scores.clone()
    scores[dead] = scores.max() + 1
    found = propose(subject, pairs, replace(result, scores=scores))
    usual = propose(subject, pairs, result)
    assert found.circuit == usual.circuit
    assert found.best == usual.best + 1
    said = f"{len(found.circuit)} of 110 edges in the circuit: the {found.best} best, without 1 on"
    assert found.sentences()[0].startswith(said)


def test_a_curve_at_all_sizes_and_one_more(given: Given) -> None:
    subject, pairs, _, result = given
    curve = recorded_curve(subject, pairs, result, size=50, seed=3)
    assert curve is not None
    assert 50 not in log_sizes(110)
    assert curve.sizes == tuple(sorted({*log_sizes(110), 50} - {110}))
    assert curve.faithfulness[curve.sizes.index(50)] == pytest.approx(kept(given, 50))
    assert (curve.n_pairs, curve.seed) == (8, 3)
    same = replace(pairs, corrupted=pairs.clean)
    assert recorded_curve(subject, same, result, size=50) is None


def test_a_size_that_is_given_is_kept(given: Given) -> None:
    subject, pairs, _, result = given
    found = propose(subject, pairs, result, edges=2)
    assert (len(found.circuit), found.curve, found.fresh) == (2, None, None)
    assert found.found_on == pytest.approx(kept(given, 2))
    assert found.sentences() == [
        "2 of 110 edges in the circuit",
        "they keep 0.00 of the behaviour on the 8 pairs they were found on",
    ]


def test_large_graphs_take_fewer_pairs_and_say_so(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, pairs, fresh, result = given
    monkeypatch.setattr(proposal, "LARGE", 110)
    monkeypatch.setattr(proposal, "FEW_PAIRS", 3)
    found = propose(subject, pairs, result, fresh=fresh)
    assert (found.n_pairs, found.of_pairs, found.n_fresh) == (3, 8, 3)
    assert found.found_on == pytest.approx(faithfulness(subject, pairs[:3], [found.circuit])[0])
    assert "on 3 of the 8 pairs they were found on" in found.sentences()[1]


def test_a_circuit_of_much_of_a_graph_is_warned_of(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, pairs, _, result = given
    found = propose(subject, pairs, result, edges=60)
    assert found.warnings() == []
    monkeypatch.setattr(proposal, "MUCH_OF", 100)
    (said,) = found.warnings()
    assert said.startswith("the circuit has 55% of all edges, too many to explain anything")
    assert propose(subject, pairs, result, edges=5).warnings() == []
    assert gc.localize(subject, pairs, "random").notes[-1].startswith("the circuit has ")


def test_pairs_that_say_nothing(given: Given) -> None:
    subject, pairs, fresh, result = given
    same = replace(pairs, corrupted=pairs.clean)
    found = propose(subject, same, result, fresh=fresh)
    assert (len(found.circuit), found.found_on, found.fresh, found.curve) == (20, None, None, None)
    assert found.sentences()[1].startswith(
        "how faithful it is cannot be said: faithfulness needs a clean and an ab"
    )
    assert propose(subject, same, result, edges=7).circuit == result.circuit(edges=7)

    found = propose(subject, pairs, result, edges=7, fresh=replace(fresh, corrupted=fresh.clean))
    assert found.found_on is not None
    assert found.fresh is None
    assert "said: on fresh pairs: faithfulness needs a clean and" in found.sentences()[-1]
    found = propose(subject, pairs, result, edges=7, fresh=pairs[:5])
    assert found.problems == (
        "on fresh pairs: all 5 that were drawn are among those it was found on",
    )


def test_scores_outlive_a_lack_of_memory(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, pairs, fresh, result = given

    def full(*_: Any) -> None:
        raise MemoryError("out of memory on cuda")

    monkeypatch.setattr(proposal, "CircuitRuns", full)
    found = propose(subject, pairs, result, fresh=fresh)
    assert len(found.circuit) == 20
    assert found.sentences()[1:] == ["how faithful it is cannot be said: out of memory on cuda"]
    result = gc.localize(subject, pairs, "eap")
    assert result.chosen is None
    assert result.notes[-1] == "no circuit is proposed: out of memory on cuda"


def test_one_pair_is_no_plural(given: Given) -> None:
    subject, pairs, _, result = given
    circuit = result.circuit(edges=1)
    found = Proposal(
        circuit=circuit, best=1, found_on=-0.001, n_pairs=1, of_pairs=1, fresh=1.004, n_fresh=1
    )
    assert found.sentences()[1] == (
        "they keep 0.00 of the behaviour on the 1 pair they were found on, 1.00 on 1 fresh pair"
    )
    assert gc.localize(subject, pairs[:1], "eap").notes[0].startswith("found on one pair alone: ")


def test_fresh_seeds_are_others_and_allowed() -> None:
    assert (fresh_seed(0), fresh_seed(2**32 - 1)) == (1000, 999)
