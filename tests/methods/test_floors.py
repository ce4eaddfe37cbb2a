"""What methods are compared with: rankings that see nothing of what a subject computes."""

from collections import Counter
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
import torch

from graphcircuits.cases import case_ids, load_case, split_records
from graphcircuits.cases.relations import groups_of, twins
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.methods import FLOORS, METHODS, find_method, localize
from graphcircuits.methods.floors import edge_frequency, usable_circuits
from graphcircuits.subject.transformer import Transformer
from tests.methods.tasks import make_pairs
from tests.subjects import make_subject

pytestmark = pytest.mark.usefixtures("unchecked", "uninformed")


def test_floors_are_no_methods_to_choose_from() -> None:
    assert METHODS.keys().isdisjoint(FLOORS)
    assert all(find_method(name) is entry for name, entry in FLOORS.items())
    subject = make_subject()
    notes = localize(subject, make_pairs(subject), "edge-frequency").notes
    assert notes == (
        "edge-frequency is a floor to compare methods with, and no way to find circuits",
    )


# Edges by how often they are in circuits


@pytest.mark.slow
def test_a_case_meets_no_circuit_of_its_fold_and_none_related_to_it() -> None:
    pool = {id: record for id, record in split_records().items() if record["split"] == "pool"}
    assert usable_circuits(None, "complete").keys() == pool.keys()
    for id in case_ids(split="test"):
        # One test case has twins, which differ from it in whether they read a token or a position.
        same = {"ib-110", "tb-one-hot-first"} if id == "ib-19" else set()
        assert usable_circuits(id, "complete").keys() == pool.keys() - same
        assert groups_of(id).isdisjoint(record["group"] for record in pool.values())
    for id in (*list(pool)[::7], "mt-7@ib-4", "ib-25"):
        known = usable_circuits(id, "complete").keys()
        own = {pool[one]["fold"] for one in pool if groups_of(id) & groups_of(one)}
        assert id not in known
        assert not twins(id) & known
        assert not any(pool[one]["fold"] in own for one in known)
        assert len(known) > 60


@pytest.mark.slow
@pytest.mark.parametrize(("labels", "expected"), [("interpbench", 0.902), ("complete", 0.902)])
def test_the_median_of_the_test_cases(labels: str, expected: float) -> None:
    found = []
    for id in case_ids(split="test"):
        case = load_case(id)
        scores = edge_frequency(case.subject(), case.pairs(2), labels=labels)
        found.append(auroc(scores, case.labels(labels)))
    assert median(found) == pytest.approx(expected, abs=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [{"n_heads": 4}, {"n_heads": 4, "n_kv_heads": 2}])
def test_names_are_counted_in_graphs_of_any_size(heads: dict[str, Any]) -> None:
    subject, circuits = make_subject(**heads), usable_circuits(None, "complete").values()
    scores = edge_frequency(subject, make_pairs(subject))
    named = dict(zip(subject.graph.edge_names, scores.tolist(), strict=True))
    counts = Counter(name for edges in circuits for name in edges)
    assert named["m0->logits"] == pytest.approx(counts["m0->logits"] / len(circuits))
    if "n_kv_heads" in heads:  # the key of either head is that of their group
        either = [edges for edges in circuits if edges & {f"input->a0.h{n}<k>" for n in (0, 1)}]
        assert named["input->a0.g0<k>"] == pytest.approx(len(either) / len(circuits))
    else:
        expected = {name: counts[name] / len(circuits) for name in named}
        assert named == pytest.approx(expected)


# Predictors that see the graph alone


def other_weights(subject: Transformer) -> Transformer:
    weights = {name: 0.5 * weight.flip(0) for name, weight in subject.weights.items()}
    return replace(subject, weights=weights)


@pytest.mark.parametrize("name", ["gcl", "gcl-paper"])
def test_blind_predictors_see_the_graph_alone(name: str) -> None:
    subject = make_subject(n_heads=4)
    pairs = make_pairs(subject, "cross-entropy")
    scores = [
        find_method(method)(each, pairs)
        for method in (f"{name}-blind", name)
        for each in (subject, other_weights(subject))
    ]
    torch.testing.assert_close(scores[0], scores[1])
    assert (scores[2] - scores[3]).abs().max() > 1e-3
    assert scores[0].unique().numel() > 1


def test_a_blind_predictor_is_kept_from_the_case_as_well() -> None:
    case = load_case("ib-7")
    result = localize(case.subject(), case.pairs(2), "gcl-blind")
    assert result.options == {"predictor": "fold-0"}
    with pytest.raises(ValueError, match="was trained on ib-7 itself"):
        localize(case.subject(), case.pairs(2), "gcl-blind", predictor="default")
