"""Curves against the numbers of MIB's own evaluation, for the same model, prompts and scores."""

import pytest

from graphcircuits.adapters.transformer_lens import from_transformer_lens
from graphcircuits.circuit import Circuit
from graphcircuits.compare.evaluate import faithfulness_curve
from graphcircuits.result import Result
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
    curve = faithfulness_curve(scores.abs() if reading == "absolute" else scores, subject, pairs)
    assert curve.faithfulness == pytest.approx(numbers["faithfulnesses"], abs=1e-9)
    assert curve.cpr == pytest.approx(numbers["area_under"], abs=1e-9)
    assert curve.cmd == pytest.approx(numbers["area_from_1"], abs=1e-9)
    # MIB stops pruning after one round; what it keeps beyond ours changes no faithfulness.
    result = Result(graph=graph, scores=scores.abs() if reading == "absolute" else scores)
    once = [pruned_once(result.circuit(edges=size)) for size in curve.sizes]
    assert once == numbers["weighted_edge_counts"]
    assert all(ours <= theirs for ours, theirs in zip(curve.kept, once, strict=True))
