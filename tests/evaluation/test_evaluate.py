"""Faithfulness against one run at a time, exact subjects and MIB's areas."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import graphcircuits
from graphcircuits.circuit import Circuit
from graphcircuits.engine.masked import ablated_writers, masked_logits
from graphcircuits.engine.relaxed import LOG_SIZES
from graphcircuits.evaluation.evaluate import (
    CLOSE,
    FRACTIONS,
    CircuitRuns,
    faithfulness,
    faithfulness_curve,
    log_sizes,
)
from graphcircuits.graph import ComponentGraph
from graphcircuits.result.curve import CROSSINGS, MEASURES, FaithfulnessCurve
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from tests.subjects import SOME, make_subject, make_tokens


def task(loss_name: str = "kl", **options: Any) -> tuple[Any, Pairs]:
    subject = make_subject(**options)
    scored = torch.ones(3, 5, dtype=torch.bool)
    clean, corrupted = make_tokens(subject, seed=1), make_tokens(subject, seed=2)
    targets = None if loss_name == "kl" else torch.tensor([0, 1, 2])
    incorrect = torch.tensor([1, 2, 0]) if loss_name == "logit-diff" else None
    return subject, Pairs(
        clean=clean,
        corrupted=corrupted,
        scored=scored,
        loss_name=loss_name,
        targets=targets,
        incorrect=incorrect,
    )


def test_a_curve_computed_by_hand() -> None:
    curve = FaithfulnessCurve(n_edges=10, sizes=(0, 5, 10), faithfulness=(0.0, 1.5, 1.0), n_pairs=1)
    assert curve.fractions == (0.0, 0.5, 1.0)
    assert curve.cpr == pytest.approx(0.5 * 0.75 + 0.5 * 1.25)
    assert curve.cmd == pytest.approx(0.5 * 0.75 + 0.5 * 0.25)
    straight = FaithfulnessCurve(
        n_edges=10, sizes=(0,) * 10, fractions=FRACTIONS, faithfulness=FRACTIONS, n_pairs=1
    )
    assert straight.cpr == pytest.approx((1 - 0.001**2) / 2)
    assert straight.cpr + straight.cmd == pytest.approx(1 - 0.001)


def curve_of(sizes: Sequence[int], values: Sequence[float]) -> FaithfulnessCurve:
    return FaithfulnessCurve(n_edges=sizes[-1], sizes=sizes, faithfulness=values, n_pairs=1)


def test_edges_for_passes_over_a_lucky_crossing() -> None:
    curve = curve_of((1, 2, 4, 8, 16), (0.95, 0.3, 0.92, 0.9, 0.99))
    assert [curve.edges_for(share) for share in (0.3, 0.9, 0.95, 1.0)] == [1, 4, 16, None]
    assert curve.crossings == {"0.8": 4, "0.9": 4, "0.95": 16}
    for share in (0.0, 1.1):
        with pytest.raises(ValueError, match=f"above 0 and at most 1, got {share}"):
            curve.edges_for(share)


def test_the_log_area_by_hand() -> None:
    # In steps of one and three octaves, means .75 and .25; beyond 0 and 1 nothing counts.
    for values in ((0.0, 0.5, 1.0), (-3.0, 0.5, 7.0)):
        assert curve_of((1, 2, 16), values).log_area == pytest.approx((0.75 + 3 * 0.25) / 4)
        # No edge has no place on the axis.
        assert curve_of((0, 1, 2, 16), (0.0, *values)).log_area == pytest.approx(0.375)
    with pytest.raises(ValueError, match=r"log_area needs two sizes above 0, got \(0, 4\)"):
        _ = curve_of((0, 4), (0.0, 1.0)).log_area
    assert curve_of((0, 4), (0.0, 1.0)).areas == {"log_area": None, "cpr": 0.5, "cmd": 0.5}


@pytest.mark.parametrize("by", MEASURES)
@pytest.mark.parametrize("ablation", ["corrupted", "zero", "mean"])
@pytest.mark.parametrize("loss_name", ["kl", "cross-entropy"])
def test_all_and_nothing(loss_name: str, ablation: str, by: str) -> None:
    subject, pairs = task(loss_name)
    whole = Circuit.from_names(subject.graph, subject.graph.edge_names)
    found = faithfulness(subject, pairs, [whole, whole - whole], by=by, ablation=ablation)
    assert found == pytest.approx([1.0, 0.0])


# By output


@pytest.mark.parametrize("outputs", [None, 1])
@pytest.mark.parametrize("architecture", SOME)
def test_by_output_all_is_one_nothing_zero_and_none_is_more(
    architecture: str, outputs: int | None
) -> None:
    """Distributions and, with a single output, numbers; whatever the loss of the pairs is."""
    number = {} if outputs is None else {"d_vocab_out": 1, "tied_unembedding": False}
    subject = make_subject(architecture=architecture, **number)
    clean, corrupted = make_tokens(subject, seed=1), make_tokens(subject, seed=2)
    pairs = Pairs(
        clean=clean,
        corrupted=corrupted,
        scored=torch.ones_like(clean, dtype=torch.bool),
        loss_name="l1" if outputs else "cross-entropy",
        targets=torch.full(clean.shape, 9.0) if outputs else torch.zeros_like(clean),
    )
    graph, generator = subject.graph, torch.Generator().manual_seed(0)
    masks = (
        torch.rand(6, graph.n_edges, generator=generator) < torch.linspace(0.4, 0.98, 6)[:, None]
    )
    masks = torch.cat([torch.ones_like(masks[:1]), torch.zeros_like(masks[:1]), masks])
    found = faithfulness(subject, pairs, [Circuit.from_mask(graph, mask) for mask in masks])
    assert found[:2] == pytest.approx([1.0, 0.0])
    assert all(value <= 1 for value in found[2:])
    assert len({round(value, 6) for value in found}) > 3


def test_by_output_is_the_divergence_enumerated() -> None:
    """Position by position and answer by answer, from plain runs with masks in float64."""
    subject, pairs = task("cross-entropy")
    assert subject.weights["W_E"].dtype == torch.float64
    pairs.scored[0, :3] = False
    pairs.scored[2, 4] = False
    graph, generator = subject.graph, torch.Generator().manual_seed(0)
    masks = torch.rand(3, graph.n_edges, generator=generator) < 0.8
    masks = torch.cat([torch.zeros_like(masks[:1]), masks])
    cut = subject.run(pairs.corrupted).writers
    clean, runs = (
        subject.logits(pairs.clean),
        masked_logits(subject, pairs.clean, masks.double(), cut),
    )

    def distribution(logits: Tensor) -> list[float]:
        powers = [math.exp(x) for x in logits.tolist()]
        return [x / sum(powers) for x in powers]

    def divergence(run: Tensor) -> float:
        by_prompt = []
        for prompt, scored in enumerate(pairs.scored):
            terms = []
            for at in scored.nonzero().flatten().tolist():
                of_all, of_circuit = (distribution(x[prompt, at]) for x in (clean, run))
                both = zip(of_all, of_circuit, strict=True)
                terms.append(sum(p * math.log(p / q) for p, q in both))
            by_prompt.append(statistics.mean(terms))
        return statistics.mean(by_prompt)

    nothing, *others = map(divergence, runs)
    circuits = [Circuit.from_mask(graph, mask) for mask in masks[1:]]
    expected = [1 - one / nothing for one in others]
    assert faithfulness(subject, pairs, circuits) == pytest.approx(expected, abs=1e-9)


def test_by_output_of_numbers_is_their_distance() -> None:
    subject = make_subject(d_vocab_out=1)
    clean, corrupted = make_tokens(subject, seed=1), make_tokens(subject, seed=2)
    scored = torch.ones_like(clean, dtype=torch.bool)
    far = torch.full(clean.shape, 9.0, dtype=torch.float64)
    pairs = Pairs(clean=clean, corrupted=corrupted, scored=scored, loss_name="l1", targets=far)
    circuit = Circuit.from_names(subject.graph, ["input->m0", "m0->m1", "m1->logits"])
    cut = subject.run(corrupted).writers
    run = masked_logits(subject, clean, circuit.mask.double(), cut)
    whole, nothing = subject.logits(clean), subject.logits(corrupted)
    expected = 1 - float((run - whole).abs().mean() / (nothing - whole).abs().mean())
    assert faithfulness(subject, pairs, [circuit]) == [pytest.approx(expected)]
    # By the loss it is another number.
    assert abs(faithfulness(subject, pairs, [circuit], by="loss")[0] - expected) > 1e-3


def test_a_ranking_that_overshoots_is_caught_by_output() -> None:
    """One head works against the answer. A ranking by logit difference puts it last, and its best
    edges answer five times as surely as the subject does, which is not what the subject says."""
    plain, pairs, shares = additive()
    weights, against = dict(plain.weights), "a0.h2"
    turned = weights["W_O"].clone()
    turned[0, 2] *= -0.8 * (1 - shares[against]) / shares[against]
    subject = Transformer(plain.config, weights | {"W_O": turned})
    scores = torch.full((subject.graph.n_edges,), -1.0, dtype=torch.float64)
    for name, share in shares.items():
        path = [f"input->{name}<v>", f"{name}->logits"] if name[0] == "a" else [f"{name}->logits"]
        scores[subject.graph.edge_indices(path)] = -0.5 if name == against else share
    sizes = [*range(1, subject.graph.n_edges + 1)]
    by_loss, by_output = (
        faithfulness_curve(subject, pairs, scores, by=by, sizes=sizes) for by in MEASURES[::-1]
    )
    without = 8  # those of input and three heads, and the silent MLP's
    assert by_loss.faithfulness[without - 1] == pytest.approx(5)
    assert by_output.faithfulness[without - 1] < 0
    lost, kept = by_loss.edges_for(0.9), by_output.edges_for(0.9)
    assert lost is not None
    assert kept is not None
    assert lost < without < kept == without + 2


class KnownRuns(CircuitRuns):
    """Runs whose faithfulness follows from the number of edges alone."""

    def __call__(self, circuits: Sequence[Circuit]) -> list[float]:
        return [self.value(len(circuit)) for circuit in circuits]

    def value(self, size: int) -> float:
        return min(1.0, (size / 300) ** 0.5)


class DippingRuns(KnownRuns):
    """With a range of sizes that keep less than some smaller ones."""

    def value(self, size: int) -> float:
        return 0.1 if 150 <= size < 190 else super().value(size)


@pytest.mark.parametrize("kind", [KnownRuns, DippingRuns])
def test_sizes_around_crossings_give_edges_for_to_a_twentieth(kind: type[KnownRuns]) -> None:
    subject, pairs = task(n_layers=5)
    n_edges = subject.graph.n_edges
    scores = torch.randn(n_edges, generator=torch.Generator().manual_seed(0)).double()
    result = Result(graph=subject.graph, scores=scores)
    runs = kind(subject, pairs)
    curve = runs.curve(result, log_sizes(n_edges), prune=False, crossings=CROSSINGS)
    brute = runs.curve(result, range(1, n_edges + 1), prune=False)
    for share in CROSSINGS:
        exact, found = brute.edges_for(share), curve.edges_for(share)
        assert exact is not None
        assert found is not None
        assert exact <= found <= max(exact, (1 + CLOSE) * exact)
    # The grid, and few more: a crossing lies between two of its sizes.
    assert set(log_sizes(n_edges)) <= set(curve.sizes)
    assert len(curve.sizes) < len(log_sizes(n_edges)) + 5 * len(CROSSINGS)


def test_no_size_of_a_curve_is_far_below_what_a_crossing_takes() -> None:
    """On true runs, where faithfulness goes up and down: brute force over all sizes never needs
    fewer edges than the curve says, but for a twentieth."""
    subject, pairs = task(n_layers=1)
    n_edges = subject.graph.n_edges
    for seed in range(3):
        scores = torch.randn(n_edges, generator=torch.Generator().manual_seed(seed)).double()
        brute = faithfulness_curve(subject, pairs, scores, sizes=range(1, n_edges + 1))
        curve = faithfulness_curve(subject, pairs, scores)
        for share in CROSSINGS:
            exact, found = brute.edges_for(share), curve.edges_for(share)
            assert exact is not None
            assert found is not None
            assert found <= max(exact, (1 + CLOSE) * exact)


def test_faithfulness_is_the_closed_part_of_the_gap() -> None:
    subject, pairs = task("cross-entropy")
    circuit = Circuit.from_names(subject.graph, ["input->m0", "m0->m1", "m1->logits"])
    cut = subject.run(pairs.corrupted).writers
    loss = pairs.loss(masked_logits(subject, pairs.clean, circuit.mask.double(), cut)).mean()
    clean = pairs.loss(subject.logits(pairs.clean)).mean()
    corrupted = pairs.loss(subject.logits(pairs.corrupted)).mean()
    expected = float((loss - corrupted) / (clean - corrupted))
    assert faithfulness(subject, pairs, [circuit], by="loss") == [pytest.approx(expected)]


@pytest.mark.slow
@pytest.mark.parametrize("ablation", ["corrupted", "mean", "zero"])
@pytest.mark.parametrize("kind", ["cross-entropy", "kl"])
def test_prompts_that_do_not_fit_at_once_change_nothing(ablation: str, kind: str) -> None:
    runs: list[int] = []

    class Watched(Transformer):
        def embed(self, tokens: Tensor) -> Tensor:
            runs.append(len(tokens))
            return super().embed(tokens)

    plain, pairs = task(kind)
    subject = Watched(plain.config, plain.weights)
    # Each prompt scores another position, so each chunk reads other columns.
    pairs = replace(pairs, scored=torch.eye(*pairs.clean.shape, dtype=torch.bool))
    circuits = [Circuit.from_names(subject.graph, ["input->m0", "m0->m1", "m1->logits"])]
    whole = faithfulness(subject, pairs, circuits, by="loss", ablation=ablation)
    assert max(runs) == len(pairs) > 1
    runs.clear()
    parts = faithfulness(subject, pairs, circuits, by="loss", ablation=ablation, memory_limit=1)
    assert parts == pytest.approx(whole)
    assert max(runs) == 1


@pytest.mark.parametrize("ablation", ["corrupted", "mean", "zero"])
def test_faithfulness_by_masked_runs(ablation: str) -> None:
    """Also where the prompts go on behind the last scored position."""
    subject, pairs = task("cross-entropy")
    pairs.scored[:, 3:] = False
    graph, generator = subject.graph, torch.Generator().manual_seed(0)
    masks = torch.rand(5, graph.n_edges, generator=generator) < 0.4
    cut = ablated_writers(subject, pairs.corrupted, ablation)
    masks = torch.cat([masks, torch.ones_like(masks[:1]), torch.zeros_like(masks[:1])])
    losses = masked_logits(subject, pairs.clean, masks.double(), cut, metric=pairs.loss).mean(1)
    expected = (losses[-1] - losses[:5]) / (losses[-1] - losses[-2])
    circuits = [Circuit.from_mask(graph, mask) for mask in masks[:5]]
    found = faithfulness(subject, pairs, circuits, by="loss", ablation=ablation)
    assert found == pytest.approx(expected.tolist())


def test_the_curve_takes_the_best_edges() -> None:
    subject, pairs = task()
    graph = subject.graph
    scores = torch.randn(graph.n_edges, generator=torch.Generator().manual_seed(0)).double()
    curve = faithfulness_curve(subject, pairs, scores, sizes="mib", prune=False)
    assert curve.fractions == FRACTIONS
    assert curve.sizes == curve.pruned_sizes == tuple(int(f * graph.n_edges) for f in FRACTIONS)
    result = Result(graph=graph, scores=scores)
    one_by_one = [faithfulness(subject, pairs, [result.circuit(edges=n)])[0] for n in curve.sizes]
    assert curve.faithfulness == pytest.approx(one_by_one)
    pruned = graphcircuits.faithfulness_curve(subject, pairs, result, sizes="mib")
    assert pruned.sizes == curve.sizes
    assert pruned.pruned_sizes[-1] == graph.n_edges
    assert (
        pruned.pruned_sizes[-2]
        == len(result.circuit(fraction=0.5, prune=True))
        < curve.pruned_sizes[-2]
    )
    # Edges on no path change nothing.
    assert pruned.faithfulness == pytest.approx(curve.faithfulness)


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_log_sizes_run_from_one_edge_to_all(layers: int) -> None:
    subject, pairs = task(n_layers=layers)
    n = subject.graph.n_edges
    scores = torch.randn(n, generator=torch.Generator().manual_seed(0)).double()
    curve = faithfulness_curve(subject, pairs, scores, crossings=())
    ratio = n ** (1 / (LOG_SIZES - 1))
    assert curve.sizes == tuple(sorted({round(ratio**step) for step in range(LOG_SIZES)}))
    assert (curve.sizes[0], curve.sizes[-1], curve.faithfulness[-1]) == (1, n, 1.0)
    assert curve.fractions == tuple(size / n for size in curve.sizes)
    assert curve == faithfulness_curve(subject, pairs, scores, sizes=curve.sizes)


def additive() -> tuple[Any, Pairs, dict[str, float]]:
    """A subject whose heads attend evenly and whose MLP is silent, and the share of each path.

    The logit difference is then the sum of what `input` and the heads write; all shares are made
    positive by the signs of the heads.
    """
    subject, pairs = task("logit-diff", n_layers=1)
    weights = dict(subject.weights)
    for name in ("W_Q", "b_Q", "W_out"):
        weights[name] = torch.zeros_like(weights[name])
    assert pairs.targets is not None
    assert pairs.incorrect is not None
    correct, incorrect = pairs.targets[:, 0], pairs.incorrect[:, 0]
    direction = weights["W_U"][:, correct] - weights["W_U"][:, incorrect]

    def written(weights: dict[str, Tensor]) -> Tensor:
        tuned = Transformer(subject.config, weights)
        change = tuned.run(pairs.clean).writers - tuned.run(pairs.corrupted).writers
        return torch.einsum("bpwm,mb->w", change, direction)

    signs = written(weights)[:-1].sign()
    weights["W_O"] = weights["W_O"] * (signs[1:] * signs[0])[None, :, None, None]
    parts = written(weights)
    shares = dict(zip(subject.graph.writer_names, (parts / parts.sum()).tolist(), strict=True))
    return Transformer(subject.config, weights), pairs, shares


def test_the_curve_of_an_additive_subject_climbs_by_shares() -> None:
    subject, pairs, shares = additive()
    assert min(shares[name] for name in shares if name != "m0") > 0
    scores = torch.zeros(subject.graph.n_edges, dtype=torch.float64)
    expected, reached = [0.0], 0.0
    heads = sorted((name for name in shares if name[0] == "a"), key=lambda name: -shares[name])
    for rank, name in enumerate(["input", *heads]):
        # A head counts from the second of its edges on.
        path = [f"input->{name}<v>", f"{name}->logits"] if rank else ["input->logits"]
        scores[subject.graph.edge_indices(path)] = 10.0 - rank
        expected += [reached] * (len(path) - 1)
        reached += shares[name]
        expected.append(reached)
    sizes = [*range(len(expected)), subject.graph.n_edges]
    expected.append(1.0)
    curve = faithfulness_curve(subject, pairs, scores, by="loss", sizes=sizes)
    assert curve.faithfulness == pytest.approx(expected)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(curve.faithfulness))
    assert curve.pruned_sizes == (0, 1, 1, 3, 3, 5, 5, 7, 7, 9, subject.graph.n_edges)
    # The areas strip by strip: the mean of two sides times the part of the edges between them.
    strips = itertools.pairwise(zip(sizes, expected, strict=True))
    cpr = sum((a + b) / 2 * (n - m) / subject.graph.n_edges for (m, a), (n, b) in strips)
    assert curve.cpr == pytest.approx(cpr)
    assert curve.cmd == pytest.approx(1 - cpr)


def test_bad_curves() -> None:
    subject, pairs = task()
    scores = torch.zeros(subject.graph.n_edges)
    for sizes in ("linear", "both", [5], [5, 1], [1, 1], [1, 999], [-1, 3]):
        with pytest.raises(ValueError, match=r"sizes must be .*, got"):
            faithfulness_curve(subject, pairs, scores, sizes=sizes)
    other = ComponentGraph(1, 1)
    with pytest.raises(ValueError, match=r"the scores are of .*, the subject of "):
        faithfulness_curve(subject, pairs, Result(graph=other, scores=torch.zeros(other.n_edges)))
    same = Pairs(clean=pairs.clean, corrupted=pairs.clean, scored=pairs.scored, loss_name="kl")
    with pytest.raises(ValueError, match=r"runs? that differ, .*pairs whose corruption changes"):
        faithfulness(subject, same, [])


# Names of the release before


@pytest.mark.usefixtures("unchecked")
def test_the_subject_comes_first() -> None:
    subject, pairs = task()
    scores = torch.zeros(subject.graph.n_edges)
    calls: dict[Callable[..., object], str] = {
        faithfulness: "circuits",
        faithfulness_curve: "scores",
        graphcircuits.evaluate: "results",
    }
    for call, third in calls.items():
        with pytest.raises(TypeError, match=rf"takes subject, pairs, {third}, in this order"):
            call(scores, subject, pairs)
