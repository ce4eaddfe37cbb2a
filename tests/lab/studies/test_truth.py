"""What rows of the study of truth say: correlation by ranks, small circuits unlike the planted."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcircuits.cases import load_case
from graphcircuits.methods.shipped import shipped
from lab import ROOT
from lab.studies import truth
from lab.studies.truth import Row, agreement, example_lines, main, read_rows, table, unlike

PLAIN = Row(
    case="plm-0@count",
    method="eap",
    auroc=1.0,
    auprc=1.0,
    edges_for=3,
    log_area=0.1,
    size=3,
    true_size=3,
    precision=1.0,
    recall=1.0,
    keeps=1.0,
    true_keeps=1.0,
    without_missing=1.0,
    missing="",
    extra="",
)


def rows(*values: tuple[float, float]) -> list[Row]:
    """Rows with these log areas and AUPRCs."""
    return [
        replace(PLAIN, case=f"c-{n}", log_area=area, auprc=auprc)
        for n, (area, auprc) in enumerate(values)
    ]


def test_agreement_is_that_of_ranks() -> None:
    assert agreement(rows((0.1, 0.9), (0.2, 0.5), (0.9, 0.1))) == "+1.00"
    assert agreement(rows((0.1, 0.1), (0.2, 0.5), (0.9, 0.9))) == "-1.00"
    # Ranks with a tie: 2, 0.5, 0.5 against 2, 1, 0.
    assert agreement(rows((0.1, 0.9), (0.2, 0.5), (0.2, 0.1))) == "+0.87"
    assert agreement(rows((0.1, 1.0), (0.2, 1.0))) == "none: all alike"


def test_small_faithful_circuits_that_are_not_the_planted_ones() -> None:
    small = replace(PLAIN, size=2, recall=2 / 3, missing="m1->logits", extra="m0->logits")
    others = [
        PLAIN,
        replace(small, keeps=0.96),  # does not do the job
        replace(small, size=4),  # larger
        replace(small, true_size=4),  # lacks less than a third
    ]
    assert unlike([small, *others]) == [small]
    backed = replace(small, method="gcl", keeps=0.981, without_missing=0.25)
    (line,) = example_lines([backed, replace(small, without_missing=0.25), *others])
    assert line == (
        "- `plm-0@count`: 2 edges keep 0.981, the 3 planted ones 1.000. The small circuit lacks "
        "`m1->logits` and has `m0->logits` instead. With just the edges that it lacks cut, the "
        "whole model keeps 0.250. Proposed with `gcl`, `eap`."
    )


@pytest.mark.usefixtures("unchecked")
def test_the_start_of_gcl_is_its_ranking_where_the_network_is_not_trusted() -> None:
    case = load_case("plm-0@count")
    subject, pairs = case.subject(), case.pairs(8)
    found = truth.gcl_start(subject, pairs)
    given: Any = {"trust": lambda _: 0.0}
    expected, whole = (
        ensemble.predict_case(subject, pairs, generator=torch.Generator()).logits
        for ensemble in (replace(shipped("default"), **given), shipped("default"))
    )
    assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(found, whole, atol=1e-2)


def test_a_line_for_each_method() -> None:
    some = [*rows((0.1, 1.0), (0.4, 0.5)), replace(PLAIN, method="gcl", edges_for=12)]
    eap, gcl = table(some).splitlines()[2:]
    assert eap.startswith("| eap | 1.000 [1.000, 1.000] | 0.750 [0.500, 1.000] |")
    assert eap.endswith("| 3.0 | 3.0 | +1.00 |")
    assert gcl.endswith("| 12.0 | 3.0 | none: all alike |")


def test_the_page_says_what_its_rows_say() -> None:
    page = ROOT / "docs" / "results" / "planted-truth.md"
    rows = read_rows(page.with_suffix(".csv"))
    command = "python -m lab.studies truth"
    assert page.read_text() == truth.page(rows, command, "planted-truth.csv", []) + "\n"


@pytest.mark.slow
def test_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting is planted well: the proposed circuit is the true one, edge for edge."""
    monkeypatch.setattr(truth, "case_ids", lambda *_: ["plm-0@count", "plm-10@add"])
    page = tmp_path / "truth.md"
    main(["--page", str(page), "--methods", "eap", "gcl-start", "random", "--pairs", "16"])
    lines = (tmp_path / "truth.csv").read_text().splitlines()
    found = {row["method"]: row for row in csv.DictReader(lines)}
    assert set(found) == {"eap", "gcl-start", "random"}
    assert float(found["eap"]["precision"]) == float(found["eap"]["recall"]) == 1
    assert float(found["random"]["auroc"]) < float(found["eap"]["auroc"])
    assert float(found["eap"]["true_keeps"]) > 0.97
    text = page.read_text()
    assert text.startswith("# Faithfulness and truth in language models\n\n1 programs in ")
    assert "Without a subject at hand: plm-10@add." in text
    assert f"`python -m lab.studies truth --page {page}" in text


def test_without_models_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "case_ids", lambda *_: ["plm-10@add"])
    with pytest.raises(FileNotFoundError, match="no model of the test split is at hand; make them"):
        main(["--page", str(tmp_path / "truth.md")])
    assert list(tmp_path.iterdir()) == []
