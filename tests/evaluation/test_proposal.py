"""The proposed circuit: its size against smaller ones, and how faithful it is."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

import graphcircuits as gc
from graphcircuits.cases import load_case
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation import proposal, pruning
from graphcircuits.evaluation.evaluate import CircuitRuns, faithfulness, log_sizes
from graphcircuits.evaluation.proposal import (
    Check,
    Proposal,
    fresh_seed,
    propose,
    resampled_interval,
)
from graphcircuits.methods import localize
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.fresh import hold_back
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


def without(circuit: Circuit, edge: int) -> Circuit:
    mask = circuit.mask.clone()
    mask[edge] = False
    return Circuit.from_mask(circuit.graph, mask)


def test_the_size_is_the_first_that_keeps_enough_and_no_edge_can_go(given: Given) -> None:
    subject, pairs, fresh, result = given
    heard: list[tuple[int, int]] = []
    found = propose(
        subject, pairs, result, fresh=fresh, seed=0, progress=lambda *step: heard.append(step)
    )
    # By brute force: all sizes, then all single removals.
    assert found.best == next(size for size in range(111) if kept(given, size) >= 0.9)
    assert found.circuit <= result.circuit(edges=found.best)
    smaller = [without(found.circuit, edge) for edge in found.circuit.edge_numbers]
    assert max(faithfulness(subject, pairs, smaller)) < 0.9
    assert found.why == pruning.NEEDED
    assert found.found_on == pytest.approx(faithfulness(subject, pairs, [found.circuit])[0])
    assert found.curve is not None
    assert {found.best, *log_sizes(110)[:-1]} <= {*found.curve.sizes}
    assert (found.curve.n_pairs, found.curve.seed, found.curve.by) == (8, 0, "output")
    for size, value in zip(found.curve.sizes, found.curve.faithfulness, strict=True):
        assert value == pytest.approx(kept(given, size), abs=1e-9)
    assert heard
    assert all(0 < done <= total for done, total in heard)
    (on_fresh,) = faithfulness(subject, fresh, [found.circuit])
    (check,) = found.checks
    assert (check.on, check.n_pairs) == ("fresh", 8)
    assert check.faithfulness == pytest.approx(on_fresh)
    assert check.interval is not None
    low, high = check.interval
    assert low <= on_fresh <= high
    assert found.sentences()[-2:] == [
        f"they keep {found.found_on:.2f} of the subject's output on the 8 pairs they were found "
        f"on, {on_fresh:.2f} [{low:.2f}, {high:.2f}] on 8 fresh pairs",
        pruning.NEEDED,
    ]
    record = found.record()
    assert (record["best_edges"], record["by"]) == (found.best, "output")
    assert record["fresh"]["interval"] == [low, high]
    assert record["why"] == pruning.NEEDED


def test_a_quarter_is_held_back_where_there_are_enough(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, pairs, fresh, result = given
    monkeypatch.setattr(proposal, "ENOUGH", 8)
    monkeypatch.setattr(proposal, "HELD_BACK", 0.5)
    found = propose(subject, pairs, result, fresh=fresh)
    held, on_fresh = found.checks
    assert (held.on, held.n_pairs + found.n_pairs, found.of_pairs) == ("held back", 8, 8)
    assert (on_fresh.on, on_fresh.n_pairs) == ("fresh", 8)
    assert f"{held.n_pairs} pairs held back" in "\n".join(found.sentences())
    # Fresh pairs judge, and decide nothing.
    assert found.circuit == propose(subject, pairs, result).circuit


def test_pairs_held_back_that_say_nothing_are_not_held_back(given: Given) -> None:
    """Their corruption changes nothing, so that no circuit could be judged on them."""
    subject, _, _, result = given
    pairs = load_case("ib-3").pairs(32)
    _, held = hold_back(pairs, proposal.HELD_BACK)
    among = torch.tensor([any(torch.equal(row, one) for one in held.clean) for row in pairs.clean])
    silent = torch.where(among[:, None], pairs.clean, pairs.corrupted)
    found = propose(subject, replace(pairs, corrupted=silent), result)
    assert (found.n_pairs, found.checks, found.problems) == (len(pairs), (), ())
    assert propose(subject, pairs, result).checks[0].n_pairs == len(held)


def test_a_circuit_that_falls_short_is_looked_for_with_a_higher_aim(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, pairs, _, result = given
    usual = propose(subject, pairs, result)
    monkeypatch.setattr(proposal, "ENOUGH", 8)
    short = Check(on="held back", n_pairs=4, faithfulness=0.85, interval=(0.8, 0.89))
    monkeypatch.setattr(proposal, "_checked", lambda *_: short)
    found = propose(subject, pairs, result)
    assert found.aim == pytest.approx(0.975)  # half of what is left to 1, the second time
    assert found.found_on is not None
    assert found.found_on >= 0.975 - 1e-9
    assert len(found.circuit) >= len(usual.circuit)
    assert any("asking for 0.97" in one for one in found.sentences())
    assert found.warnings()[-1].startswith("the circuit keeps 0.85 [0.80, 0.89] on 4 pairs held ba")


def test_what_was_pruned_comes_back_if_that_is_enough(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, pairs, _, result = given
    monkeypatch.setattr(proposal, "ENOUGH", 8)
    poor = replace(result, scores=torch.rand(110, generator=torch.Generator().manual_seed(0)))

    def checked(on: str, runs: CircuitRuns, circuit: Circuit) -> Check:
        top = len(circuit) > 40
        return Check(
            on=on, n_pairs=4, faithfulness=0.9, interval=(0.8, 0.95) if top else (0.7, 0.8)
        )

    monkeypatch.setattr(proposal, "_checked", checked)
    found = propose(subject, pairs, poor)
    assert found.circuit == poor.circuit(edges=found.best, prune=True)
    assert (found.why, found.aim) == (proposal.UNPRUNED, 0.9)


def test_likely_edges_come_first_and_stay(given: Given) -> None:
    subject, pairs, _, result = given
    alone = propose(subject, pairs, result)
    names = ["input->a0.h0<q>", "input->a0.h0<v>", "a0.h0->m0", "input->m0"]
    likely = torch.zeros(110)
    likely[result.graph.edge_indices(names)] = 0.9
    found = propose(subject, pairs, replace(result, probabilities=likely))
    assert set(names) <= found.circuit.edges
    assert alone.circuit <= found.circuit
    assert found.likely == 4
    assert found.sentences()[1] == (
        f"4 likely edges came first, {found.best - 4} more were added to keep enough"
    )
    assert found.why == pruning.NEEDED.replace("its edges", "the edges added to the likely ones")
    enough = torch.zeros(110)
    enough[alone.circuit.mask] = 0.6
    found = propose(subject, pairs, replace(result, probabilities=enough))
    assert found.circuit == alone.circuit
    assert found.why == "edges with a probability above 0.5 stay, and they alone keep enough"
    # On a natural subject the probability is no truth to be had beside what is measured.
    natural = load_case("ib-3").subject("natural").to(torch.float64)
    found = propose(natural, pairs, replace(result, probabilities=likely))
    assert found.likely == 0


def test_estimates_alone_prune_as_far_as_measured_runs_allow(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in circuits too large to cut every edge alone."""
    subject, pairs, _, result = given
    monkeypatch.setattr(pruning, "SMALL", 0)
    runs = CircuitRuns(subject, pairs)
    whole = result.circuit(fraction=1.0)
    circuit, why = pruning.pruned(runs, whole, 0.9)
    assert why == pruning.NONE_LEFT
    assert len(circuit) < len(whole) / 4
    assert runs([circuit])[0] >= 0.9
    fixed = Circuit.from_names(result.graph, ["input->a0.h0<v>", "a0.h0->logits"])
    assert fixed <= pruning.pruned(runs, whole, 0.9, fixed)[0]


def test_the_interval_is_that_of_prompts_drawn_again() -> None:
    generator = torch.Generator().manual_seed(3)
    empty = 1 + torch.rand(40, generator=generator, dtype=torch.float64)
    circuit = 0.1 * torch.rand(40, generator=generator, dtype=torch.float64)
    interval = resampled_interval(torch.stack([empty, 0 * empty, circuit]))
    assert interval is not None
    drawn = random.Random(0)
    values = []
    for _ in range(2000):
        rows = drawn.choices(range(40), k=40)
        values.append(1 - float(circuit[rows].sum() / empty[rows].sum()))
    values.sort()
    assert interval == pytest.approx((values[50], values[-51]), abs=1e-3)
    assert resampled_interval(torch.ones(3, 3)) is None


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
    loose = found.best - len(found.circuit)
    said = f"{len(found.circuit)} of 110 edges in the circuit: the {found.best} best, without "
    assert found.sentences()[0] == f"{said}{loose} that it does not need"


def test_a_size_that_is_given_is_kept(given: Given) -> None:
    subject, pairs, _, result = given
    found = propose(subject, pairs, result, edges=2, with_curve=False)
    assert (len(found.circuit), found.curve, found.checks) == (2, None, ())
    assert found.found_on == pytest.approx(kept(given, 2))
    assert found.sentences() == [
        "2 of 110 edges in the circuit",
        "they keep 0.00 of the subject's output on the 8 pairs they were found on",
    ]
    curve = propose(subject, pairs, result, edges=50).curve
    assert curve is not None
    assert curve.sizes == tuple(sorted({*log_sizes(110), 50} - {110}))


def test_large_graphs_take_fewer_pairs_and_say_so(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, pairs, fresh, result = given
    monkeypatch.setattr(proposal, "LARGE", 110)
    monkeypatch.setattr(proposal, "FEW_PAIRS", 3)
    monkeypatch.setattr(proposal, "FEW_CHECKED", 2)
    found = propose(subject, pairs, result, fresh=fresh)
    assert (found.n_pairs, found.of_pairs, found.checks[0].n_pairs) == (3, 8, 2)
    assert found.checks[0].interval is None
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
    monkeypatch.setattr(proposal, "MUCH", 0.02)
    assert gc.localize(subject, pairs, "eap").notes[-1].startswith("the circuit has 3% of all")


def test_pairs_that_say_nothing(given: Given) -> None:
    subject, pairs, fresh, result = given
    same = replace(pairs, corrupted=pairs.clean)
    found = propose(subject, same, result, fresh=fresh)
    assert (len(found.circuit), found.found_on, found.checks, found.curve) == (20, None, (), None)
    assert found.sentences()[1].startswith(
        "how faithful it is cannot be said: faithfulness needs a clean and an ab"
    )
    assert propose(subject, same, result, edges=7).circuit == result.circuit(edges=7)

    found = propose(subject, pairs, result, edges=7, fresh=replace(fresh, corrupted=fresh.clean))
    assert found.found_on is not None
    assert not found.checks
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
    fresh = Check(on="fresh", n_pairs=1, faithfulness=1.004, interval=None)
    found = Proposal(
        circuit=circuit, best=1, found_on=-0.001, n_pairs=1, of_pairs=1, checks=(fresh,)
    )
    assert found.sentences()[1] == (
        "they keep 0.00 of the subject's output on the 1 pair they were found on, "
        "1.00 on 1 fresh pair"
    )
    assert gc.localize(subject, pairs[:1], "eap").notes[0].startswith("found on one pair alone: ")


def test_fresh_seeds_are_others_and_allowed() -> None:
    assert (fresh_seed(0), fresh_seed(2**32 - 1)) == (1000, 999)
