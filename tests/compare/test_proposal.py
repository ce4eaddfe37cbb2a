"""The proposed circuit: its size against the curve, and faithfulness where it can be measured."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from graphcircuits.compare import proposal
from graphcircuits.compare.evaluate import faithfulness, log_sizes, mib_sizes
from graphcircuits.compare.proposal import (
    GOAL,
    Proposal,
    fresh_seed,
    propose,
    recorded_curve,
    unseen,
)
from graphcircuits.corpus import load_case
from graphcircuits.methods import localize
from graphcircuits.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs


@pytest.fixture(scope="module")
def given() -> tuple[Transformer, Pairs, Pairs, Result]:
    case = load_case("ib-3")
    subject, pairs = case.subject().to(torch.float64), case.pairs(8)
    fresh = case.pairs(8, seed=fresh_seed(0))
    return subject, pairs, fresh, localize(subject, pairs, "eap")


Given = tuple[Transformer, Pairs, Pairs, Result]


@pytest.mark.slow
def test_the_smallest_circuit_that_keeps_enough(given: Given) -> None:
    subject, pairs, fresh, result = given
    found = propose(result, subject, pairs, fresh=fresh, seed=0)
    sizes = [size for size in log_sizes(110) if size < 110]
    values = [faithfulness(subject, pairs, [result.circuit(edges=n)])[0] for n in sizes]
    expected = next(n for n, value in zip(sizes, values, strict=True) if value >= GOAL)
    assert found.circuit == result.circuit(edges=expected)
    assert 1 < expected < 110
    assert found.curve is not None
    assert (found.curve.sizes, found.curve.pairs, found.curve.seed) == (tuple(sizes), 8, 0)
    assert found.curve.faithfulness == pytest.approx(values, abs=1e-9)
    assert found.found_on == pytest.approx(values[sizes.index(expected)])
    (on_fresh,) = faithfulness(subject, fresh, [found.circuit])
    assert (found.fresh, found.n_fresh) == (pytest.approx(on_fresh), 8)
    assert found.sentences() == [
        f"they keep {found.found_on:.2f} of the behaviour on the 8 pairs they were found on, "
        f"{on_fresh:.2f} on 8 fresh pairs",
        f"this is the smallest of {len(sizes)} sizes that keeps 0.8",
    ]
    record = found.record()
    assert record["curve"]["sizes"] == sizes
    assert record["fresh"] == found.fresh


def test_a_curve_at_all_sizes_and_one_more(given: Given) -> None:
    subject, pairs, _, result = given
    curve = recorded_curve(result, subject, pairs, size=50, seed=3)
    assert curve is not None
    assert 50 not in log_sizes(110)
    assert curve.sizes == tuple(sorted({*log_sizes(110), 50} - {110}))
    (value,) = faithfulness(subject, pairs, [result.circuit(edges=50)])
    assert curve.faithfulness[curve.sizes.index(50)] == pytest.approx(value)
    assert (curve.pairs, curve.seed) == (8, 3)
    same = replace(pairs, corrupted=pairs.clean)
    assert recorded_curve(result, subject, same, size=50) is None


def test_the_best_where_none_keeps_enough(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, pairs, _, result = given
    monkeypatch.setattr(proposal, "GOAL", 2.0)
    found = propose(result, subject, pairs)
    assert found.curve is not None
    assert found.found_on == max(found.curve.faithfulness)
    assert (
        found.sentences()[1]
        == f"none of {len(found.curve.sizes)} sizes keeps 2.0; this one keeps most"
    )


def test_a_size_that_is_given_is_kept(given: Given) -> None:
    subject, pairs, _, result = given
    found = propose(result, subject, pairs, edges=2)
    assert (len(found.circuit), found.curve, found.fresh) == (2, None, None)
    assert found.found_on == pytest.approx(faithfulness(subject, pairs, [found.circuit])[0])
    assert found.sentences() == [
        "they keep 0.00 of the behaviour on the 8 pairs they were found on"
    ]


def test_large_graphs_take_fewer_sizes_and_pairs(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, pairs, fresh, result = given
    monkeypatch.setattr(proposal, "LARGE", 110)
    monkeypatch.setattr(proposal, "FEW_PAIRS", 3)
    # A graph that is large has ten edges in the smallest of MIB's parts.
    monkeypatch.setattr(proposal, "mib_sizes", lambda n: mib_sizes(n)[3:])
    found = propose(result, subject, pairs, fresh=fresh)
    assert found.curve is not None
    assert (found.curve.sizes, found.curve.pairs) == ((1, 2, 5, 11, 22, 55), 3)
    assert (found.n_pairs, found.n_fresh) == (3, 3)
    assert found.found_on == pytest.approx(faithfulness(subject, pairs[:3], [found.circuit])[0])


def test_pairs_that_say_nothing(given: Given) -> None:
    subject, pairs, fresh, result = given
    same = replace(pairs, corrupted=pairs.clean)
    found = propose(result, subject, same, fresh=fresh)
    assert (len(found.circuit), found.found_on, found.fresh, found.curve) == (20, None, None, None)
    (said,) = found.sentences()
    assert said.startswith(
        "how faithful it is cannot be said: faithfulness needs a clean and an ab"
    )
    assert propose(result, subject, same, edges=7).circuit == result.circuit(edges=7)

    found = propose(result, subject, pairs, edges=7, fresh=replace(fresh, corrupted=fresh.clean))
    assert found.found_on is not None
    assert found.fresh is None
    assert "said: on fresh pairs: faithfulness needs a clean and" in found.sentences()[-1]
    found = propose(result, subject, pairs, edges=7, fresh=pairs[:5])
    assert found.problems == (
        "on fresh pairs: all 5 that were drawn are among those it was found on",
    )


def test_scores_outlive_a_lack_of_memory(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, pairs, fresh, result = given

    def full(*_: Any) -> None:
        raise MemoryError("out of memory on cuda")

    monkeypatch.setattr(proposal, "faithfulness", full)
    found = propose(result, subject, pairs, fresh=fresh)
    assert len(found.circuit) == 20
    assert found.sentences() == ["how faithful it is cannot be said: out of memory on cuda"]


def pairs_of(*prompts: tuple[list[int], list[int], int], **options: Any) -> Pairs:
    clean, corrupted, last = zip(*prompts, strict=True)
    scored = torch.zeros(len(clean), len(clean[0]), dtype=torch.bool)
    scored[range(len(last)), list(last)] = True
    return Pairs(
        clean=torch.tensor(clean),
        corrupted=torch.tensor(corrupted),
        scored=scored,
        loss_name="kl",
        **options,
    )


def test_seen_pairs_are_known_whatever_the_padding() -> None:
    seen = pairs_of(([1, 2, 0, 0], [1, 3, 0, 0], 1), ([4, 5, 6, 7], [4, 4, 4, 4], 3))
    drawn = pairs_of(
        ([1, 2, 9], [1, 3, 9], 1), ([1, 2, 9], [1, 4, 9], 1), ([4, 5, 6], [4, 4, 4], 2)
    )
    left = unseen(drawn, seen)
    assert left is not None
    assert left.corrupted.tolist() == [[1, 4, 9], [4, 4, 4]]
    assert unseen(drawn[:1], seen) is None


def test_one_pair_is_no_plural(given: Given) -> None:
    circuit = given[3].circuit(edges=1)
    found = Proposal(circuit=circuit, found_on=-0.001, n_pairs=1, fresh=1.004, n_fresh=1)
    assert found.sentences() == [
        "they keep 0.00 of the behaviour on the 1 pair they were found on, 1.00 on 1 fresh pair"
    ]


def test_fresh_seeds_are_others_and_allowed() -> None:
    assert (fresh_seed(0), fresh_seed(2**32 - 1)) == (1000, 999)
