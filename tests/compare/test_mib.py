"""Curves against the numbers of MIB's own evaluation, for the same model, prompts and scores."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from graphcircuits import localize
from graphcircuits.adapters.mib import write_submission
from graphcircuits.adapters.transformer_lens import from_transformer_lens
from graphcircuits.circuit import Circuit
from graphcircuits.engine.masked import masked_logits
from graphcircuits.evaluation.curves import evaluate
from graphcircuits.evaluation.evaluate import FRACTIONS, faithfulness, faithfulness_curve
from graphcircuits.result.files import ungrouped
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.accuracy import OftenWrong
from graphcircuits.task.pairs import Pairs
from tests.adapters.lens import EAP_IG, scored_model


def pruned_once(circuit: Circuit) -> int:
    """Edges whose ends have an edge in and an edge out, looked at once."""
    ends = [(writer, name.split("->")[1].partition("<")[0]) for name, writer, _ in circuit.links()]
    fed = {reader for _, reader in ends} | {"input"}
    read = {writer for writer, _ in ends} | {"logits"}
    return sum({writer, reader} <= fed & read for writer, reader in ends)


@pytest.mark.parametrize("reading", ["absolute", "signed"])
def test_areas_are_those_of_mib(reading: str) -> None:
    source, pairs, theirs = scored_model("gpt2-like")
    subject, numbers = from_transformer_lens(source), EAP_IG["gpt2-like"]["mib"][reading]
    graph = subject.graph
    scores = theirs["EAP"][graph.edge_writers, graph.edge_readers]
    signed = scores.abs() if reading == "absolute" else scores
    curve = faithfulness_curve(subject, pairs, signed, by="loss", sizes="mib")
    assert curve.faithfulness == pytest.approx(numbers["faithfulnesses"], abs=1e-9)
    assert curve.cpr == pytest.approx(numbers["area_under"], abs=1e-9)
    assert curve.cmd == pytest.approx(numbers["area_from_1"], abs=1e-9)
    # MIB stops pruning after one round; what it keeps beyond ours changes no faithfulness.
    result = Result(graph=graph, scores=signed)
    once = [pruned_once(result.circuit(edges=size)) for size in curve.sizes]
    assert once == numbers["weighted_edge_counts"]
    assert all(ours <= theirs for ours, theirs in zip(curve.pruned_sizes, once, strict=True))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("reading", ["absolute", "signed"])
def test_our_own_scores_have_the_areas_of_theirs(reading: str) -> None:
    """What `eap` says of the model, with its signs, ranks the edges as EAP's own numbers do."""
    source, pairs, _ = scored_model("gpt2-like")
    subject, numbers = from_transformer_lens(source), EAP_IG["gpt2-like"]["mib"][reading]
    result = localize(subject, pairs, "eap", pool="sum", keep=None)
    ranked = result.by_sign() if reading == "signed" else result
    curve = faithfulness_curve(subject, pairs, ranked, by="loss", sizes="mib")
    assert curve.cpr == pytest.approx(numbers["area_under"], abs=1e-9)
    assert curve.cmd == pytest.approx(numbers["area_from_1"], abs=1e-9)


def mib_areas(
    subject: Transformer, pairs: Pairs, scores: Tensor, *, absolute: bool
) -> tuple[float, float]:
    """CPR and CMD as `evaluate_area_under_curve` of MIB has them, step by step.

    At each part the first `int(part * edges)` edges by `apply_topn`, the others corrupted; the
    logit difference of that run between those of the corrupted and of the whole model; areas by
    trapezoids over the parts.
    """
    values = (scores.abs() if absolute else scores).tolist()
    order = sorted(range(len(values)), key=lambda edge: -values[edge])
    corrupted = subject.run(pairs.corrupted).writers

    def metric(size: int) -> float:
        mask = torch.zeros(len(values), dtype=torch.float64)
        mask[order[:size]] = 1.0
        pruned = Circuit.from_mask(subject.graph, mask.bool()).pruned().mask.double()
        logits = masked_logits(subject, pairs.clean, pruned, corrupted)
        return -float(pairs.loss(logits).mean())

    low, high = metric(0), -float(pairs.loss(subject.logits(pairs.clean)).mean())
    kept = [(metric(int(part * len(values))) - low) / (high - low) for part in FRACTIONS]
    under = from_one = 0.0
    for (left, first), (right, second) in pairwise(zip(FRACTIONS, kept, strict=True)):
        under += (right - left) * (first + second) / 2
        from_one += (right - left) * (abs(1 - first) + abs(1 - second)) / 2
    return under, from_one


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("absolute", [True, False], ids=["absolute", "signed"])
def test_areas_by_the_rule_of_mib(absolute: bool, tmp_path: Path) -> None:
    """A submission with signed scores, read by MIB's rule, has the areas that we compute."""
    source, pairs, _ = scored_model("gpt2-like")
    subject = from_transformer_lens(source)
    result = localize(subject, pairs, "eap-ig", keep=None)
    (path,) = write_submission(tmp_path, {("ioi", "x"): result}, signed=True)
    edges = json.loads(path.read_text())["edges"]
    scores = torch.tensor([edges[name]["score"] for name in subject.graph.edge_names]).double()
    expected = mib_areas(subject, pairs, scores, absolute=absolute)
    ranked = result.by_sign()
    ranked = replace(ranked, scores=ranked.scores.abs()) if absolute else ranked
    curve = faithfulness_curve(subject, pairs, ranked, by="loss", sizes="mib")
    assert (curve.cpr, curve.cmd) == pytest.approx(expected, abs=1e-9)


def ungrouped_twin(subject: Transformer) -> Transformer:
    """The same model with keys and values for each head, as TransformerLens has it for MIB."""
    config, shared = subject.config, ("W_K", "W_V", "b_K", "b_V")
    weights = {
        name: weight.repeat_interleave(config.heads_per_group, 1) if name in shared else weight
        for name, weight in subject.weights.items()
    }
    return Transformer(replace(config, n_kv_heads=None), weights)


def test_edges_into_groups_of_heads_count_once_for_each_head() -> None:
    """On the twin nothing is grouped, so there our counting and MIB's are one."""
    source, pairs, theirs = scored_model("llama-like")
    subject = from_transformer_lens(source)
    twin, graph = ungrouped_twin(subject), subject.graph
    full, shared = ungrouped(graph)
    assert (graph.n_edges, full.n_edges) == (82, twin.graph.n_edges) == (82, 110)
    torch.testing.assert_close(subject.logits(pairs.clean), twin.logits(pairs.clean))
    scores = theirs["EAP"][full.edge_writers, full.edge_readers].abs()
    result = Result(graph=full, scores=scores).on(graph)
    curve = faithfulness_curve(subject, pairs, result, by="loss", sizes="mib")
    # At each size the same edges on the twin: one edge more, or its group, would be too many.
    order, expected = result.ranking(), []
    for fraction, size in zip(FRACTIONS, curve.sizes, strict=True):
        chosen = torch.isin(shared, order[:size])
        most = math.floor(fraction * full.n_edges + 1e-9)
        assert int(chosen.sum()) <= most
        assert size == graph.n_edges or int(torch.isin(shared, order[: size + 1]).sum()) > most
        expected.append(Circuit.from_mask(full, chosen).pruned())
    values = faithfulness(twin, pairs, expected, by="loss")
    assert curve.faithfulness == pytest.approx(values, abs=1e-9)
    area = torch.trapezoid(torch.tensor(values), torch.tensor(FRACTIONS))
    assert curve.cpr == pytest.approx(float(area), abs=1e-6)
    with pytest.warns(OftenWrong):
        found = evaluate(subject, pairs, result)
    assert found.results[0].curves["mib"] == curve
    assert found.notes[0].endswith("once for each head: 110 edges where we count 82")
    assert found.rows("mib")[1][-4][:2] == ["50%", "55"]
    # Without this counting the circuits are others.
    assert curve.sizes != tuple(math.floor(f * graph.n_edges) for f in FRACTIONS)


@pytest.mark.slow
def test_the_area_on_grouped_heads_is_that_of_the_ungrouped_twin() -> None:
    """MIB ranks the heads of a group alike, and cuts within a group too."""
    source, pairs, _ = scored_model("llama-like")
    subject = from_transformer_lens(source)
    twin, shared = ungrouped_twin(subject), ungrouped(subject.graph)[1]
    gaps = []
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        scores = torch.rand(subject.graph.n_edges, generator=generator, dtype=torch.float64)
        theirs = faithfulness_curve(twin, pairs, scores[shared], by="loss", sizes="mib").cpr
        ours = faithfulness_curve(subject, pairs, scores, by="loss", sizes="mib").cpr
        result = Result(graph=subject.graph, scores=scores)
        parts = [result.circuit(fraction=part, prune=True) for part in FRACTIONS]
        values = faithfulness(subject, pairs, parts, by="loss")
        once = torch.tensor(values, dtype=torch.float64)
        counted_once = torch.trapezoid(once, torch.tensor(FRACTIONS, dtype=torch.float64))
        gaps.append((abs(ours - theirs), abs(float(counted_once) - theirs)))
    own, other = zip(*gaps, strict=True)
    # Where no size falls within a group, the circuits are the same.
    assert sum(gap < 1e-9 for gap in own) >= 5
    assert sum(own) < 0.5 * sum(other)
