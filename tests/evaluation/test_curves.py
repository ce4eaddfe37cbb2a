"""Several results side by side: the numbers of single curves, and what is said and refused."""

import csv
import io
import json
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import graphcircuits
from graphcircuits.evaluation.curves import GRIDS, Evaluation, evaluate, file_names
from graphcircuits.evaluation.evaluate import (
    FRACTIONS,
    faithfulness,
    faithfulness_curve,
    log_sizes,
    mib_sizes,
)
from graphcircuits.graph import ComponentGraph
from graphcircuits.result.curve import MEASURES
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.accuracy import OftenWrong
from graphcircuits.task.pairs import Pairs
from tests.subjects import make_subject, make_tokens


def task(**options: Any) -> tuple[Transformer, Pairs]:
    """A subject and pairs whose targets are what it says on most of them."""
    subject = make_subject(**options)
    clean, corrupted = make_tokens(subject, seed=1), make_tokens(subject, seed=2)
    scored = torch.zeros(3, 5, dtype=torch.bool)
    scored[:, -1] = True
    logits = subject.logits(clean)[:, -1]
    targets, incorrect = logits.argmax(-1), logits.argmin(-1)
    return subject, Pairs(
        clean=clean,
        corrupted=corrupted,
        scored=scored,
        loss_name="logit-diff",
        targets=targets,
        incorrect=incorrect,
    )


def scored_by(graph: ComponentGraph, seed: int, **about: Any) -> Result:
    scores = torch.randn(graph.n_edges, generator=torch.Generator().manual_seed(seed))
    return Result(graph=graph, scores=scores, **about)


@cache
def evaluated(sizes: Any = "both") -> tuple[Evaluation, Transformer, Pairs, list[Result]]:
    subject, pairs = task()
    results = [scored_by(subject.graph, seed, method=f"m{seed}") for seed in (0, 1)]
    return evaluate(subject, pairs, results, sizes=sizes), subject, pairs, results


def test_both_grids_are_the_curves_of_each() -> None:
    found, subject, pairs, results = evaluated()
    assert [one.name for one in found.results] == ["m0", "m1"]
    assert found.grids == ("log", "mib")
    assert (found.n_pairs, found.right) == (3, 1.0)
    for one, result in zip(found.results, results, strict=True):
        for grid, curve in one.curves.items():
            by = "loss" if grid == "mib" else "output"
            alone = faithfulness_curve(subject, pairs, result, by=by, sizes=grid)
            assert curve.by == by
            assert (curve.fractions, curve.sizes, curve.pruned_sizes) == (
                alone.fractions,
                alone.sizes,
                alone.pruned_sizes,
            )
            assert curve.faithfulness == pytest.approx(alone.faithfulness)
            assert curve.cpr == pytest.approx(alone.cpr)


def test_a_measure_that_is_asked_for_goes_for_all_sizes() -> None:
    subject, pairs = task()
    result = scored_by(subject.graph, 0)
    for by in MEASURES:
        found = evaluate(subject, pairs, result, by=by)
        assert found.record()["by"] == by
        for grid, curve in found.results[0].curves.items():
            assert curve.by == by
            assert f"Faithfulness by {by}, {GRIDS[grid]}:" in found.table()
            alone = faithfulness_curve(subject, pairs, result, by=by, sizes=grid)
            assert curve.faithfulness == pytest.approx(alone.faithfulness)
    with pytest.raises(ValueError, match="by must be one of output, loss, got 'kl'"):
        evaluate(subject, pairs, result, by="kl")


def test_tables_have_the_sizes_that_all_results_have() -> None:
    """And figures of each result, from those of its own too."""
    found, _, _, _ = evaluated()
    curves = [one.curves["log"] for one in found.results]
    assert curves[0].sizes != curves[1].sizes
    _, cells = found.rows("log")
    shared = [size for size in curves[0].sizes if size in curves[1].sizes]
    assert set(log_sizes(110)) <= set(shared)
    assert [int(row[1]) for row in cells[: len(shared)]] == shared
    at = [dict(zip(curve.sizes, curve.faithfulness, strict=True)) for curve in curves]
    for row in cells[: len(shared)]:
        told = [one[int(row[1])] for one in at]
        assert [float(cell) for cell in row[2:]] == pytest.approx(told, abs=6e-4)
    assert [row[0] for row in cells[len(shared) :]] == [
        "edges for 0.8",
        "edges for 0.9",
        "edges for 0.95",
        "log area",
        "CPR",
        "CMD",
    ]
    assert cells[-5] == ["edges for 0.9", "", *(str(curve.edges_for(0.9)) for curve in curves)]
    assert cells[-3] == ["log area", "", *(f"{curve.log_area:.3f}" for curve in curves)]
    # MIB's sizes are too few to say how many edges it takes.
    assert [row[0] for row in found.rows("mib")[1][-3:]] == ["100%", "CPR", "CMD"]


def test_the_chosen_circuit_is_measured_too() -> None:
    subject, pairs = task()
    result = scored_by(subject.graph, 0)
    chosen = result.circuit(edges=60)
    marked = Result(graph=subject.graph, scores=result.scores, chosen=chosen)
    (found,) = evaluate(subject, pairs, marked, sizes=[1]).results
    (alone,) = faithfulness(subject, pairs, [chosen])
    assert found.circuit is not None
    assert found.circuit == (60, pytest.approx(alone))
    table = evaluate(subject, pairs, marked, sizes=[1]).table()
    assert f"The 60 edges marked in the file keep {alone:.2f} of the output." not in table
    assert f"Result 1: the 60 edges marked in the file keep {alone:.2f} of the output." in table


def test_sizes_that_repeat_are_named() -> None:
    found, subject, _, _ = evaluated(sizes="mib")
    (note,) = found.notes
    assert note.startswith("MIB's sizes say little here: of 110 edges they are 0, 0, 0, 1, 2, 5,")
    assert "so 3 of 10 circuits repeat or are empty" in note
    assert evaluated(sizes="log")[0].notes == ()
    assert mib_sizes(100_000)[0] == 100
    assert mib_sizes(110) == [
        len(scored_by(subject.graph, 0).circuit(fraction=f)) for f in FRACTIONS
    ]


def test_a_subject_that_gets_the_task_wrong_is_warned_of() -> None:
    subject, pairs = task()
    assert pairs.targets is not None
    assert pairs.incorrect is not None
    turned = Pairs(
        clean=pairs.clean,
        corrupted=pairs.corrupted,
        scored=pairs.scored,
        loss_name="logit-diff",
        targets=pairs.incorrect,
        incorrect=pairs.targets,
    )
    text = "the model is right on 0% of 3 prompts only, below 60%; a circuit of a task that it"
    with pytest.warns(OftenWrong, match=text):
        found = evaluate(subject, turned, scored_by(subject.graph, 0), sizes="log")
    assert found.right == 0.0
    assert found.notes[-1].startswith(text)
    # A loss without right answers has nothing to be right about.
    clean = Pairs(clean=pairs.clean, corrupted=pairs.corrupted, scored=pairs.scored, loss_name="kl")
    assert evaluate(subject, clean, scored_by(subject.graph, 0), sizes=[1]).right is None


@pytest.mark.slow
def test_results_by_name_file_and_method(tmp_path: Path) -> None:
    subject, pairs = task()
    graph = subject.graph
    first, second = scored_by(graph, 0, method="eap"), scored_by(graph, 1, method="eap")
    (tmp_path / "b").mkdir()
    files = [tmp_path / "one.json", tmp_path / "two.json", tmp_path / "b" / "one.json"]
    for file in files:
        first.save(file)

    def names(given: Any) -> list[str]:
        return [one.name for one in evaluate(subject, pairs, given, sizes=[5]).results]

    assert names(first) == ["eap"]
    assert names([first, second]) == ["eap (1)", "eap (2)"]
    assert names([scored_by(graph, 0), second]) == ["result 1", "eap"]
    assert names({"mine": first, "yours": second}) == ["mine", "yours"]
    assert names(str(files[0])) == ["one"]
    assert names([files[0], first]) == ["one", "eap"]
    assert file_names(files) == [str(files[0]), "two", str(files[2])]


def test_results_of_single_heads_come_to_a_subject_that_shares_keys() -> None:
    subject, pairs = task(architecture="grouped-keys")
    single = ComponentGraph(2, 4)
    result = scored_by(single, 0, method="theirs")
    found = evaluate(subject, pairs, result, sizes="log")
    assert found.notes == (
        "theirs scores keys and values of single heads, which the subject's heads share: the best "
        "of each group counts",
    )
    ours = evaluate(subject, pairs, result.on(subject.graph), sizes="log")
    assert found.results == ours.results


def test_refusals() -> None:
    subject, pairs = task()
    result = scored_by(subject.graph, 0, method="eap")
    other = scored_by(ComponentGraph(3, 2, n_kv_heads=1, parallel=True), 0, method="far")
    with pytest.raises(ValueError, match="nothing to evaluate; give at least one result"):
        evaluate(subject, pairs, [])
    said = (
        r"results must be of the subject, which has 2 layers x 4 heads; far is of 3 layers x 2 "
        r"heads \(1 keys\), attention and MLP in parallel\."
    )
    with pytest.raises(ValueError, match=said):
        evaluate(subject, pairs, [result, other])
    with pytest.raises(ValueError, match="must be mib, log, both or numbers of edges, got 'a'"):
        evaluate(subject, pairs, result, sizes="a")
    for sizes in ([], [3, 2], [1, 1], [0, 111], [-1, 2], [True, 2]):
        with pytest.raises(ValueError, match=r"sizes must be growing numbers in 0\.\.110, got \["):
            evaluate(subject, pairs, result, sizes=sizes)


def test_losses_that_are_not_finite() -> None:
    subject, pairs = task()
    huge = {name: 1e160 * subject.weights[name] for name in ("W_E", "W_U")}
    broken = Transformer(subject.config, dict(subject.weights) | huge)
    circuit = scored_by(subject.graph, 0).circuit(edges=1)
    with pytest.raises(ValueError, match=r"losses must be finite, \d of 3 circuits have one that"):
        faithfulness(broken, pairs, [circuit], by="loss")
    with pytest.raises(ValueError, match=r"own output must be finite: compute in float32 or bfloa"):
        faithfulness(broken, pairs, [circuit])


def test_tables_and_files(tmp_path: Path) -> None:
    found, _, _, _ = evaluated(sizes=(0, 4, 110))
    lines = found.table().splitlines()
    assert lines[0] == "Faithfulness by output, the sizes that were given:"
    assert lines[2:6] == [
        "| part | edges | m0 | m1 |",
        "| ---: | ---: | ---: | ---: |",
        "| 0% | 0 | 0.000 | 0.000 |",
        "| 3.64% | 4 | 0.000 | 0.000 |",
    ]
    curve = found.results[1].curves["given"]
    assert lines[8].split(" | ")[3].rstrip(" |") == str(curve.edges_for(0.9)) == "110"
    assert lines[10].split(" | ")[3].rstrip(" |") == f"{curve.log_area:.3f}"
    assert lines[11].split(" | ")[3].rstrip(" |") == f"{curve.cpr:.3f}"
    assert lines[12].startswith("| CMD |  | ")

    for name in ("a.json", "a.csv", "a.md"):
        found.save(tmp_path / name)
    record = json.loads((tmp_path / "a.json").read_text())
    assert record == json.loads(json.dumps(found.record()))
    told = record["results"][1]["curves"]["given"]
    assert (told["cmd"], told["log_area"], told["by"]) == (curve.cmd, curve.log_area, "output")
    assert told["edges_for"] == {"0.8": 110, "0.9": 110, "0.95": 110}
    assert record["results"][0]["circuit"] is None
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    assert [row["edges"] for row in rows] == ["0", "4", "110"] * 2
    assert float(rows[4]["faithfulness"]) == curve.faithfulness[1]
    assert {(row["by"], row["edges_for_0.9"]) for row in rows} == {("output", "110")}
    assert float(rows[4]["log_area"]) == curve.log_area
    assert (tmp_path / "a.md").read_text() == found.table()
    with pytest.raises(ValueError, match=r"is saved as \.json, \.csv, \.md, got a\.x"):
        found.save("a.x")


def test_a_single_size_has_no_area() -> None:
    found, _, _, _ = evaluated(sizes=(4,))
    assert "CPR" not in found.table()
    assert found.record()["results"][0]["curves"]["given"]["cpr"] is None
    assert found.to_csv().splitlines()[1].endswith(",,")


@pytest.mark.slow
def test_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, _, _ = evaluated()
    for name in ("a.svg", "b.svg"):
        found.plot(tmp_path / "new" / name)
    drawn = (tmp_path / "new" / "a.svg").read_text()
    assert drawn == (tmp_path / "new" / "b.svg").read_text()
    # A curve is a path with a marker at each size; those of no edge are left out.
    shared = len({size for size in log_sizes(110) if size > 0})
    assert drawn.count("<use") > 2 * shared
    # The legend names what is no curve too.
    assert ">1: as good as the whole subject<" in drawn
    assert ">size that was measured<" in drawn
    with pytest.raises(ValueError, match=r"a plot is written as \.svg, \.png, \.pdf, got a\.gif"):
        found.plot("a.gif")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"the plot needs matplotlib; install it with: pip inst"):
        found.plot(tmp_path / "c.svg")


def test_the_public_name() -> None:
    assert graphcircuits.evaluate is evaluate
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluated(sizes=(1,))
