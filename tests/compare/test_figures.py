"""Tables and the box plot."""

import csv
import io
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from graphcircuits.compare.figures import (
    AREA_HEADER,
    CERTIFIED,
    CERTIFIED_HEADER,
    HEADER,
    Row,
    Summary,
    cells,
    certified_rows,
    row_figure,
    summarize,
    to_csv,
)
from graphcircuits.drawing.library import save_figure


def row(spread: bool, peak: int | None = 3 * 2**20, *, truth: bool = True) -> Row:
    return Row(
        method="eap_x",
        summary=Summary(
            quantiles=(0.1, 0.2, 0.3, 0.4, 0.51234),
            spread=(0.01, 0.02, 0.03, 0.04, 0.05) if spread else None,
            n_cases=4,
            n_seeds=2 if spread else 1,
        ),
        case_means=(0.1, 0.2, 0.4, 0.5),
        auprc=0.5 if truth else None,
        precision=0.25 if truth else None,
        needed=1234.56,
        log_area=0.0625,
        cpr=0.875,
        cmd=0.125,
        wins=1.5,
        seconds=12.3456,
        peak_bytes=peak,
    )


def test_cells() -> None:
    assert cells(row(spread=False)) == [
        *("eap_x", "0.100", "0.200", "0.300", "0.400", "0.512"),
        *("0.500", "0.250", "1,234.6", "0.875", "0.125", "12.3", "3 MiB"),
    ]
    assert cells(row(spread=False, truth=False))[6:] == [
        *("0.062", "1,234.6", "0.875", "0.125", "1.5", "12.3", "3 MiB")
    ]
    assert len(cells(row(spread=False))) == len(HEADER)
    assert len(cells(row(spread=False, truth=False))) == len(AREA_HEADER)
    assert cells(row(spread=True))[1] == "0.100 ± 0.010"
    assert cells(row(spread=True, peak=None))[-1] == ""


def test_csv() -> None:
    (line,) = csv.DictReader(io.StringIO(to_csv([row(spread=True)], {})))
    assert (float(line["max"]), float(line["q3_std"])) == (0.51234, 0.04)
    assert (line["precision_at_size"], line["edges_for_0.9"]) == ("0.25", "1234.56")
    assert (line["log_area"], line["cpr"], line["cmd"]) == ("0.0625", "0.875", "0.125")


def test_certificates_in_cells_and_csv() -> None:
    """Of a question that was never answered there is a dash, and nothing in CSV."""
    means = {name: 0.25 for name in CERTIFIED if not name.startswith("complete")}
    told = {"eap_x": {"circuits": 3, **means, "circuit_edges": 12.5}}
    ((method, circuits, passes, *values, complete, edges),) = certified_rows(told)
    assert (method, circuits, passes, complete, edges) == ("eap_x", "3", "25%", "-", "12.5")
    assert values == ["0.25 (25%)"] * 6
    assert len(CERTIFIED_HEADER) == len(values) + 5
    other = replace(row(spread=True), method="other")
    first, second = csv.DictReader(io.StringIO(to_csv([row(spread=True), other], told)))
    assert (first["circuits"], first["circuit_edges"], first["complete"]) == ("3", "12.5", "")
    assert (first["stable"], first["stable passes"]) == ("0.25", "0.25")
    assert {second[name] for name in ("circuits", *CERTIFIED)} == {""}


@pytest.mark.slow
def test_the_box_plot_is_reproducible(tmp_path: Path) -> None:
    rows = [row(spread=True), row(spread=False)]
    for name in ("a", "b"):
        save_figure(row_figure(rows, title="Boxes & $x_1$"), tmp_path / f"{name}.svg")
    save_figure(row_figure([row(spread=True, truth=False)], title="Boxes"), tmp_path / "c.svg")
    a, b, c = (path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert a == b
    assert a.startswith(b"<?xml")
    assert b"Edge AUROC" in a
    assert b"Boxes &amp; $x_1$" in a
    assert b"Log area, smaller is better" in c


def test_what_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="a box plot needs at least one row, got none"):
        row_figure([], title="")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'graphcircuits\[plot\]'"):
        row_figure([row(spread=True)], title="")


# Summaries


def test_seeds_are_averaged_within_cases_first() -> None:
    values = {"a": {0: 0.0, 1: 1.0}, "b": {0: 0.2, 1: 0.4}, "c": {0: 1.0, 1: 0.8}}
    summary = summarize(values)
    assert summary.quantiles == pytest.approx((0.3, 0.4, 0.5, 0.7, 0.9))
    quantiles = [0, 0.25, 0.5, 0.75, 1]
    by_seed = [np.quantile([case[s] for case in values.values()], quantiles) for s in (0, 1)]
    expected = [statistics.stdev(map(float, both)) for both in zip(*by_seed, strict=True)]
    assert summary.spread == pytest.approx(expected)
    assert (summary.n_cases, summary.n_seeds) == (3, 2)


def test_one_seed_has_no_spread() -> None:
    summary = summarize({"a": {3: 0.25}, "b": {3: 0.75}})
    assert summary.quantiles == (0.25, 0.375, 0.5, 0.625, 0.75)
    assert summary.spread is None
    # Seeds that a case lacks say nothing about the spread over all cases.
    assert summarize({"a": {0: 0.1, 1: 0.3}, "b": {0: 0.5}}).spread is None


def test_empty_summaries_are_refused() -> None:
    for values in ({}, {"a": {}, "b": {0: 1.0}}):
        with pytest.raises(ValueError, match="every case needs a value"):
            summarize(values)
