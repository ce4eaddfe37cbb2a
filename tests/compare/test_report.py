"""The tables of a bench, against runs made by hand."""

import csv
import io
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from torch import Tensor

from graphcircuits.cases import case_ids, load_case
from graphcircuits.cases.multitask import multi_records
from graphcircuits.compare.figures import CERTIFIED
from graphcircuits.compare.report import Report
from graphcircuits.compare.runs import BenchRun, Failure
from graphcircuits.compare.selection import BenchConfig, Unit
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.result.curve import FaithfulnessCurve

METHODS = ("eap", "random")


def one_run(
    case: str, method: str, seed: int, kept: float, scores: Tensor | None = None
) -> BenchRun:
    """A run whose best edges, however many, keep this part of the behaviour."""
    graph = Unit.of(case).case.graph
    generator = torch.Generator().manual_seed(seed)
    return BenchRun(
        case=case,
        method=method,
        seed=seed,
        graph=graph,
        scores=torch.rand(graph.n_edges, generator=generator) if scores is None else scores,
        curve=FaithfulnessCurve(
            n_edges=graph.n_edges,
            sizes=(1, graph.n_edges),
            fractions=(0.0, 1.0),
            faithfulness=(kept, kept),
            n_pairs=1,
        ),
        seconds=1.0 + seed,
        peak_bytes=None if seed else 3 * 2**20,
        reused=False,
    )


def report(found: Sequence[BenchRun | Failure], **changes: Any) -> Report:
    cases = tuple(dict.fromkeys(one.case for one in found))
    given: dict[str, Any] = {"cases": cases, "methods": METHODS, "seeds": (0, 1)}
    config = BenchConfig(**(given | changes))
    return Report.of(config, found, command="graphcircuits bench")


def test_rows_summarize_the_runs() -> None:
    runs = [one_run(case, "eap", seed, 0.75) for case in ("ib-3", "ib-8") for seed in (0, 1, 2)]
    made = report([*runs], seeds=(0, 1, 2))
    (row,) = made.rows()
    expected = [
        mean(auroc(one.scores, load_case(id).circuit) for one in runs if one.case == id)
        for id in ("ib-3", "ib-8")
    ]
    assert row.case_means == pytest.approx(expected)
    assert row.summary.quantiles[0] == pytest.approx(min(expected))
    assert row.summary.quantiles[2] == pytest.approx(mean(expected))
    assert row.summary.spread is not None
    assert (row.summary.n_cases, row.summary.n_seeds) == (2, 3)
    assert (row.cpr, row.cmd, row.wins) == (0.75, 0.25, 2)
    assert row.log_area == pytest.approx(0.25)
    # The best edges never keep 0.9 here, so that it takes all of them.
    assert row.needed == pytest.approx(110)
    assert (row.seconds, row.peak_bytes) == (2.0, 3 * 2**20)
    # Two layers or more than two: nothing is divided where circuits are known.
    assert made.breakdowns() == []


def test_files(tmp_path: Path) -> None:
    circuit = load_case("ib-3").circuit
    perfect = one_run("ib-3", "random", 0, 1.0, circuit.mask.double())
    made = report([one_run("ib-3", "eap", 0, 0.5), perfect], seeds=(0,))
    written = made.write(tmp_path / "new" / "folder")
    assert [row.method for row in made.rows()] == ["random", "eap"]
    table = list(csv.DictReader(io.StringIO(written["table.csv"].read_text())))
    assert [(line["method"], line["measure"]) for line in table] == [
        ("random", "auroc"),
        ("eap", "auroc"),
    ]
    assert float(table[0]["median"]) == float(table[0]["precision_at_size"]) == 1.0
    assert [float(line["cmd"]) for line in table] == [0.0, 0.5]
    assert [float(line["log_area"]) for line in table] == pytest.approx([0.0, 0.5])
    assert [float(line["edges_for_0.9"]) for line in table] == pytest.approx([1, 110])
    cases = list(csv.DictReader(io.StringIO(written["cases.csv"].read_text())))
    assert [(line["case"], line["method"], line["edges"], line["cpr"]) for line in cases] == [
        ("ib-3", "eap", "110", "0.5"),
        ("ib-3", "random", "110", "1"),
    ]
    assert [(line["fleet"], line["architecture"]) for line in cases] == [("planted", "plain")] * 2
    assert [(line["by"], line["edges_for_0.9"], line["log_area"]) for line in cases] == [
        ("output", "110", "0.5"),
        ("output", "1", "0"),
    ]
    assert cases[0]["auroc"] == f"{auroc(made.runs[0].scores, circuit):.4g}"
    markdown = written["table.md"].read_text()
    ones = " | ".join(["1.000"] * 7)
    assert f"| random | {ones} | 1.0 | 1.000 | 0.000 | 1 | 3 MiB |" in markdown
    assert "Faithfulness of the best edges is by output, on prompts that the method" in markdown
    assert "Made with `graphcircuits bench`." in markdown
    assert "Labels `complete`, level `head`, 1 cases, 64 pairs per case, seeds 0." in markdown


def test_a_report_is_the_same_whichever_run_came_first() -> None:
    found: list[BenchRun | Failure] = [
        one_run(case, method, seed, 0.5)
        for case in ("ib-3", "ib-8")
        for seed in (0, 1)
        for method in METHODS
    ]
    failures = [
        Failure(case="ib-18", error="x"),
        Failure(case="ib-20", method="eap", seed=1, error="y"),
    ]
    cases = ("ib-18", "ib-3", "ib-8", "ib-20")
    first = report([*failures, *found], cases=cases)
    mixed = [*found, *failures]
    random.Random(0).shuffle(mixed)
    again = report(mixed, cases=cases)
    assert list(first.runs) == found
    assert list(map(id, again.runs)) == list(map(id, found))
    assert again.failures == first.failures == tuple(failures)
    assert again.markdown() == first.markdown()
    assert again.case_csv() == first.case_csv()
    assert "- failed: ib-18: x\n- failed: ib-20, eap, seed 1: y\n" in first.markdown()


def test_floors_and_methods_with_one_seed_are_named() -> None:
    runs = [one_run("ib-3", "eap", seed, 0.5) for seed in (0, 1)]
    floor = one_run("ib-3", "edge-frequency", 0, 0.5)
    made = report([*runs, floor], methods=("eap", "edge-frequency"), once=("edge-frequency",))
    text = made.markdown()
    assert "seeds 0, 1 (edge-frequency: 0 alone)" in text
    assert "Floors, which look at nothing that the subject computes: `edge-frequency`." in text


def test_certificates_are_a_second_table(tmp_path: Path) -> None:
    values = {"eap": (0.5, 0.75), "random": (0.25, 0.25)}
    found: list[BenchRun | Failure] = []
    for method, stables in values.items():
        for seed, stable in enumerate(stables):
            told = dict.fromkeys(CERTIFIED, 1.0) | {"stable": stable, "passes": float(seed)}
            run = one_run("ib-3", method, seed, 0.5)
            found.append(replace(run, certified={**told, "judged_by": "x"}))
    found += [replace(one_run("ib-8", "eap", 0, 0.5), certified={"left_out": "no effect"})]
    made = report(found, certify=True)
    assert made.certified()["eap"]["stable"] == 0.625
    assert (made.certified()["eap"]["circuits"], made.certified()["eap"]["passes"]) == (2, 0.5)
    markdown = made.markdown()
    assert (
        "| Method | Circuits | Pass all | Sufficient | Necessary | Minimal | Stable |" in markdown
    )
    ones = " | ".join(["1.00 (100%)"] * 3)
    assert f"| eap | 2 | 50% | {ones} | 0.62 (100%) |" in markdown
    assert markdown.endswith("\n\n- no certificate: eap, 1x: no effect\n")
    assert made.record()["certificates"]["random"]["stable"] == 0.25
    written = made.write(tmp_path)
    lines = list(csv.DictReader(io.StringIO(written["cases.csv"].read_text())))
    assert [line["stable"] for line in lines] == ["0.5", "0.25", "0.75", "0.25", ""]
    (line,) = (
        one
        for one in csv.DictReader(io.StringIO(written["table.csv"].read_text()))
        if one["method"] == "eap"
    )
    assert (line["circuits"], line["stable"]) == ("2", "0.625")
    # Where nobody asks, nothing is there.
    plain = report([one_run("ib-3", "eap", 0, 0.5)])
    assert "certificates" not in plain.record()
    assert "stable" not in plain.case_csv() + plain.markdown()


NATURAL = ("ib-3.natural.plain.0", "ib-3.natural.llama.0", "ib-2.natural.llama.0")
KEPT = {"eap": (0.5, 0.75, 0.5), "random": (0.5, 0.5, 1.0)}
"""By method, of the natural subjects."""


def natural(**changes: Any) -> Report:
    found = [
        one_run(case, method, seed, kept)
        for method, parts in KEPT.items()
        for case, kept in zip(NATURAL, parts, strict=True)
        for seed in (0, 1)
    ]
    return report([*found], **changes)


def test_without_a_circuit_methods_are_compared_by_log_area(tmp_path: Path) -> None:
    made = natural()
    first, second = made.rows()
    assert [first.method, second.method] == ["random", "eap"]
    assert first.case_means == pytest.approx((0.5, 0.5, 0.0))
    assert second.case_means == pytest.approx((0.5, 0.25, 0.5))
    assert first.summary.quantiles == pytest.approx((0.0, 0.25, 0.5, 0.5, 0.5))
    assert (first.log_area, first.cmd, second.cpr) == pytest.approx((1 / 3, 1 / 3, 7 / 12))
    # All edges of two subjects, and one edge where one keeps everything.
    n_edges = [Unit.of(case).case.graph.n_edges for case in NATURAL]
    assert first.needed == pytest.approx((n_edges[0] * n_edges[1]) ** (1 / 3))
    # One subject is shared, each of the others has one winner.
    assert (first.wins, second.wins) == (1.5, 1.5)
    assert (first.auprc, first.precision) == (None, None)
    markdown = made.markdown()
    columns = "| Median | Q3 | Max. | Mean | Edges 0.9 | CPR | CMD | Wins | Seconds |"
    assert columns in markdown
    assert f"| 0.333 | {first.needed:.1f} | 0.667 | 0.333 | 1.5 | 1.5 | 3 MiB |" in markdown
    assert "No circuit is known; 3 subjects, 64 pairs per subject, seeds 0, 1." in markdown
    assert "Labels" not in markdown
    written = made.write(tmp_path)
    for name, blank in (("table.csv", "auprc"), ("cases.csv", "auroc")):
        lines = list(csv.DictReader(io.StringIO(written[name].read_text())))
        assert {line[blank] for line in lines} == {""}
        assert all(float(line["cmd"]) >= 0 for line in lines)


def test_subjects_are_divided_by_architecture_and_layers() -> None:
    made = natural()
    architecture, layers = made.breakdowns()
    assert architecture.title == "Mean log area by architecture"
    assert architecture.sizes == {"llama": 2, "plain": 1}
    assert architecture.means == {
        "random": pytest.approx({"llama": 0.25, "plain": 0.5}),
        "eap": pytest.approx({"llama": 0.375, "plain": 0.5}),
    }
    assert layers.sizes == {"2": 2, "4": 1}
    assert layers.means["random"] == pytest.approx({"2": 0.5, "4": 0.0})
    table = "| Method | llama (2) | plain (1) |\n| --- | ---: | ---: |\n| random | 0.250 | 0.500 |"
    assert table in made.markdown()


def test_tasks_are_divided_by_how_many_a_model_has() -> None:
    """With circuits, which each task has in its model's graph."""
    tasks = [f"mt-0@{case}" for case in multi_records()["mt-0"]["cases"]]
    cases = (*tasks[:2], "ib-3")
    parts = zip(cases, (0.5, 0.0, 1.0), strict=True)
    found = [one_run(case, "eap", 0, kept) for case, kept in parts]
    made = report([*found])
    by_auroc, by_area, _, by_heads = made.breakdowns()
    assert by_auroc.title == "Mean AUROC by tasks in a model"
    assert by_heads.title == "Mean log area by heads of its tasks"
    assert by_heads.sizes == {"own": 1, "shared": 2}
    several = str(len(tasks))
    assert by_area.sizes == {"1": 1, several: 2}
    assert by_area.means == {"eap": pytest.approx({"1": 0.0, several: 0.75})}
    own = auroc(found[1].scores, load_case(tasks[1]).circuit)
    assert made.by_case("auroc", "eap")[tasks[1]] == {0: own}


def test_all_labels_only_on_the_test_cases() -> None:
    test = tuple(case_ids(split="test"))
    natural = tuple(f"{id}.natural.plain.0" for id in test)
    for cases, level, shown in (
        (test, "head", True),
        (tuple(f"{id}.public.plain.0" for id in test), "head", True),
        (natural, "head", False),
        (test[1:], "head", False),
        (test, "qkv", False),
    ):
        given = BenchConfig(cases=cases, methods=("random",), level=level)
        assert bool(Report(config=given, runs=()).other_labels()) == shown


def test_labels_that_are_not_the_papers_own_are_named() -> None:
    cases = ("ib-8", "ib-18.public.plain.0", "ib-21.public.plain.0")
    given = BenchConfig(cases=cases[1:], methods=("random",), labels="paper")
    text = Report(config=given, runs=()).markdown()
    told = "Labels `paper` (worked out, not published: ib-18.public.plain.0, ib-21.public.plain.0)"
    assert told in text
    given = BenchConfig(cases=cases[:1], methods=("random",), labels="paper")
    assert "Labels `paper`, level `head`" in Report(config=given, runs=()).markdown()


def test_the_test_cases_have_tables_by_all_labels() -> None:
    """Scores that are the complete circuit are perfect by complete labels alone."""
    runs = [
        one_run(id, "eap", 0, 1.0, load_case(id).circuit.mask.double())
        for id in case_ids(split="test")
    ]
    made = report([*runs], seeds=(0,))
    others = {other.config.labels: other.rows()[0].summary for other in made.other_labels()}
    assert list(others) == ["interpbench", "paper"]
    assert made.rows()[0].summary.quantiles[0] == 1
    assert all(summary.quantiles[0] < 1 for summary in others.values())
    markdown = made.markdown()
    for labels, summary in others.items():
        _, table = markdown.split(f"AUROC of the same runs under `{labels}` labels:\n\n")
        assert f"| eap | {summary.quantiles[0]:.3f} |" in table
    assert report([*runs[:-1]], seeds=(0,)).other_labels() == []
