"""Figures of circuits: every edge an arrow, widths by score, styles by truth, and a legend for it
all."""

import sys
from typing import Any

import pytest
import torch

from graphcircuits.circuit import Circuit
from graphcircuits.drawing.figure import (
    THICK,
    THIN,
    TRUTH,
    arrowhead,
    curve,
    kinds_of,
    widths_of,
)
from graphcircuits.graph import ComponentGraph
from graphcircuits.result.result import Result

GRAPH = ComponentGraph(2, 2)
NAMES = ["input->a0.h0<q>", "a0.h0->a1.h1<k>", "a0.h0->a1.h1<v>", "a1.h1->logits"]


def circuit(names: list[str]) -> Circuit:
    return Circuit.from_names(GRAPH, names)


def legend(figure: Any) -> list[str]:
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def strokes(figure: Any) -> Any:
    """The collection of lines; the other one has the arrowheads."""
    lines, heads = figure.axes[0].collections
    assert len(lines.get_paths()) == len(heads.get_paths())
    return lines


def test_a_circuit_has_an_arrow_for_every_edge_and_a_legend() -> None:
    figure = circuit(NAMES).plot(title="costs $5")
    assert len(strokes(figure).get_paths()) == len(NAMES)
    assert legend(figure) == [
        "to the query",
        "to the key",
        "to the value",
        "to the MLP or logits input",
        "components without an edge",
    ]
    words = [text.get_text() for text in figure.axes[0].texts]
    assert {"input", "a0.h0", "a1.h1", "logits", "+1 head +m0", "q", "k", "v"} <= set(words)
    assert figure.texts[0].get_text() == r"costs \$5"


def test_scores_give_widths_and_truth_gives_styles() -> None:
    scores = torch.zeros(GRAPH.n_edges)
    scores[circuit(NAMES).mask] = torch.tensor([4.0, 3.0, 2.0, 1.0])
    result = Result(graph=GRAPH, scores=scores, method="eap", subject="s")
    true = circuit([*NAMES[1:], "m0->m1"])
    figure = result.plot(edges=4, truth=true)
    lines = strokes(figure)
    assert len(lines.get_paths()) == 5
    assert lines.get_linewidths() == pytest.approx([THICK, 2.625, 2.05, 1.475, THIN])
    # Three hits, one false alarm and one miss; matplotlib scales dashes by the width.
    solid = [style[1] is None for style in lines.get_linestyles()]
    assert solid.count(True) == 3
    assert legend(figure)[:3] == [
        "hit: in both circuits (3)",
        "miss: only in the true circuit (1)",
        "false alarm: only in this circuit (1)",
    ]
    assert "highest score, 4" in legend(figure)
    assert "lowest score, 0" in legend(figure)
    assert figure.texts[0].get_text() == "eap of s"


def test_the_chosen_circuit_is_drawn_unless_another_is_given() -> None:
    scores = torch.arange(GRAPH.n_edges, dtype=torch.float32)
    result = Result(graph=GRAPH, scores=scores, chosen=circuit(NAMES))
    assert len(strokes(result.plot()).get_paths()) == 4
    assert len(strokes(result.plot(circuit=circuit(NAMES[:2]))).get_paths()) == 2
    with pytest.raises(ValueError, match=r"a circuit or a number of edges, got both, and 3 edges"):
        result.plot(circuit=circuit(NAMES), edges=3)


def test_it_draws_on_axes_that_are_there() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4))
    left, right = figure.subplots(1, 2)
    assert circuit(NAMES).plot(ax=left, title="one") is figure
    assert circuit(NAMES[:1]).plot(ax=right, truth=circuit([])) is figure
    assert left.get_title() == "one"
    first = right.get_legend().get_texts()[0]
    assert first.get_text() == "false alarm: only in this circuit (1)"
    # Letters shrink with the boxes they stand in.
    (name,) = [text for text in left.texts if text.get_text() == "a1.h1"]
    assert name.get_fontsize() < 10


def test_an_empty_circuit_is_a_picture_too() -> None:
    figure = circuit([]).plot()
    assert legend(figure) == ["layers without an edge"]


def test_kinds_and_widths() -> None:
    assert kinds_of([1, 2], None) == {}
    assert kinds_of([1, 2], [2, 3]) == {1: "false", 2: "hit", 3: "miss"}
    assert widths_of([1, 2], {1: 5.0, 2: 7.0}) == {1: THIN, 2: THICK}
    assert len({*widths_of([1, 2], {1: 5.0, 2: 5.0}).values(), THIN, THICK}) == 3
    assert len({style for _, style, _ in TRUTH.values()}) == len(TRUTH)


def test_curves_are_vertical_at_both_ends_and_end_in_the_arrowhead() -> None:
    steps = curve([(0.0, 90.0), (10.0, 50.0), (10.0, 0.0)], 1.0)
    assert [code for code, _ in steps] == ["M", "C", "C", "C", "L"]
    points = [point for _, point in steps]
    assert points[0][0] == points[1][0]
    assert points[2][0] == points[3][0] == points[4][0]
    tip, left, right = arrowhead((10.0, 0.0), 1.0)
    assert tip == (10.0, 0.0)
    assert left[1] == right[1] > points[4][1] > 0


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = r"plot\(\) needs matplotlib; install it with: pip install 'graphcircuits\[plot\]'"
    with pytest.raises(ImportError, match=said):
        circuit(NAMES).plot()
