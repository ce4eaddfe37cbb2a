"""The bench as one call: names and functions side by side, and what is said of them."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import graphcircuits
from graphcircuits import METHODS, Pairs, Transformer
from graphcircuits.cases.case import Case
from graphcircuits.compare import bench as bench_module
from graphcircuits.compare import runs
from graphcircuits.compare.runs import BenchRun, run
from graphcircuits.compare.selection import BenchConfig, Unit
from graphcircuits.methods import learned
from graphcircuits.predictor.ensemble import Ensemble

CASES = ("ib-8", "ib-3")


def edge_number(subject: Transformer, pairs: Pairs, *, sign: float = 1.0) -> Tensor:
    return sign * torch.arange(subject.graph.n_edges).float()


def broken(subject: Transformer, pairs: Pairs) -> Tensor:
    raise RuntimeError("no scores today")


@pytest.mark.slow
def test_functions_and_names_run_side_by_side(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    report = graphcircuits.bench(
        ["eap", edge_number], CASES, n_pairs=4, progress=lambda *step: told.append(step)
    )
    assert [(run.case, run.method) for run in report.runs] == [
        (case, method) for case in CASES for method in ("eap", "edge_number")
    ]
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert report.title == "2 methods on 2 cases"
    assert torch.equal(report.runs[1].scores, torch.arange(len(report.runs[1].scores)).double())
    assert {row.method for row in report.rows()} == {"eap", "edge_number"}
    assert "| edge_number |" in report.markdown()
    drawn = report.plot().axes[0]
    assert {label.get_text() for label in drawn.get_xticklabels()} == {"eap", "edge_number"}
    report.plot(tmp_path / "boxes.svg")
    assert "edge_number" in (tmp_path / "boxes.svg").read_text("utf-8")
    with pytest.raises(ValueError, match=r"a plot is written as \.svg, \.png, \.pdf, got b\.gif\."):
        report.plot("b.gif")


def test_named_methods_are_those_of_the_command(tmp_path: Path) -> None:
    report = graphcircuits.bench("eap", "ib-8", n_pairs=4)
    config = BenchConfig(cases=("ib-8",), methods=("eap",), n_pairs=4)
    (stored,) = run(config, tmp_path)
    assert isinstance(stored, BenchRun)
    assert torch.equal(stored.scores, report.runs[0].scores)
    assert stored.curve == report.runs[0].curve


def test_a_mapping_names_methods_and_options_go_by_those_names() -> None:
    given = {"up": edge_number, "down": edge_number, "eap, sum": "eap"}
    options = {"down": {"sign": -1.0}, "eap, sum": {"pool": "sum"}}
    report = graphcircuits.bench(given, "ib-8", n_pairs=4, options=options)
    up, down, summed = (run.scores for run in report.runs)
    assert torch.equal(up, -down)
    case = graphcircuits.load_case("ib-8")
    expected = METHODS["eap"](case.subject(), case.pairs(4), pool="sum")
    assert torch.equal(summed, expected.double())


@pytest.mark.slow
def test_methods_are_compared_by_certificates_too() -> None:
    """Of the package's methods and of one's own; figures are those of `certify`."""
    report = graphcircuits.bench(["eap", edge_number], "ib-3", n_pairs=16, certify=True)
    assert report.problems() == []
    told = report.certified()
    assert {name: means["circuits"] for name, means in told.items()} == dict.fromkeys(told, 1)
    assert {*told} == {"eap", "edge_number"}
    assert told["edge_number"]["stable"] <= 1
    case, certified = graphcircuits.load_case("ib-3"), report.runs[0].certified
    seed = runs.method_seed("ib-3", 0)
    subject, pairs = case.subject(), case.pairs(16)
    result = graphcircuits.localize(subject, pairs, "eap", seed=seed)
    fresh = case.pairs(16, seed=runs.FRESH)
    alone = graphcircuits.certify(subject, pairs, result, fresh=fresh, seed=seed)
    assert certified["passes"] == alone.passed
    assert {name: certified[name] for name in alone.lines} == pytest.approx(
        {name: line.value for name, line in alone.lines.items()}
    )


def test_runs_of_ones_own_functions_are_not_kept(tmp_path: Path) -> None:
    for reused in (False, True):
        report = graphcircuits.bench(["random", edge_number], "ib-8", n_pairs=4, out=tmp_path)
        assert [run.reused for run in report.runs] == [reused, False]
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["random"]


def test_a_failure_is_warned_of_and_the_others_are_kept() -> None:
    words = r"^1 of 2 runs failed, the first on ib-8, broken, seed 0: RuntimeError: no scores today"
    with pytest.warns(UserWarning, match=words):
        report = graphcircuits.bench([broken, edge_number], "ib-8", n_pairs=4)
    assert [run.method for run in report.runs] == ["edge_number"]
    assert [failure.method for failure in report.failures] == ["broken"]


@pytest.mark.parametrize(
    ("methods", "error"),
    [
        (
            [edge_number, partial(edge_number, sign=-1.0)],
            "methods must have distinct names, got edge_number, edge_number; give them others in a "
            "mapping from name to method.",
        ),
        (["eapp"], "unknown method 'eapp'; did you mean 'eap'?"),
        ({"eap": edge_number}, "the package has a method eap; give your own another name."),
        ([], "methods must be distinct, at least one, got []"),
    ],
)
def test_methods_that_cannot_be_told_apart_are_refused(methods: Sequence[Any], error: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(error)}"):
        graphcircuits.bench(methods, "ib-8")


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_method_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a method must be a name of METHODS or a function, got 3"):
        graphcircuits.bench({"three": 3}, "ib-8")  # pyright: ignore[reportArgumentType]


def test_each_decision_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace of a bench of three methods: what is loaded, chosen and run, and how often."""
    calls: Counter[str] = Counter()

    def counted(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return real(*args, **options)

        monkeypatch.setattr(owner, name, call)

    for owner, name in (
        (bench_module, "select_subjects"),
        (Unit, "subject"),
        (Case, "pairs"),
        (runs, "choose_method"),
        (runs, "faithfulness_curve"),
        (learned, "choose_predictor"),
        (Ensemble, "predict_case"),
    ):
        counted(owner, name)
    ran: list[str] = []

    def noted(subject: Transformer, pairs: Pairs) -> Tensor:
        ran.append("noted")
        return edge_number(subject, pairs)

    report = graphcircuits.bench(["gcl", "eap", noted], "ib-3", n_pairs=16)
    assert len(report.runs) == 3
    assert ran == ["noted"]
    assert calls == {
        "select_subjects": 1,  # which subjects
        "subject": 1,  # read once for all methods
        "pairs": 2,  # those that methods see, and those of the curve
        "choose_method": 3,  # options and the predictor, once for each run
        "faithfulness_curve": 3,  # once for each run
        "choose_predictor": 1,  # which predictor is blind to the case
        "predict_case": 1,
    }
