"""Tables and the box plot; the published figures agree with themselves."""

import csv
import io
import sys
from pathlib import Path

import pytest

from graphcircuits.compare.figures import (
    CMD_HEADER,
    HEADER,
    Row,
    box_plot,
    cells,
    to_csv,
    to_latex,
    to_markdown,
)
from graphcircuits.compare.published import HIGHLIGHTED
from graphcircuits.evaluation.evaluate import Summary


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
        cpr=0.875,
        cmd=0.125,
        wins=1.5,
        seconds=12.3456,
        peak_bytes=peak,
    )


def test_published_figures_are_consistent() -> None:
    assert len(HIGHLIGHTED) == 8
    for one in HIGHLIGHTED:
        low, *_, high = one.quantiles
        assert list(one.quantiles) == sorted(one.quantiles)
        # The extremes are where the whiskers end, or lie beyond them.
        assert one.whiskers is not None
        assert low == min(one.whiskers[0], *one.outliers, 1.0)
        assert high == max(one.whiskers[1], *one.outliers, 0.0)
        assert all(not one.whiskers[0] <= outlier <= one.whiskers[1] for outlier in one.outliers)


def test_cells() -> None:
    assert cells(row(spread=False)) == [
        *("eap_x", "0.100", "0.200", "0.300", "0.400", "0.512"),
        *("0.500", "0.250", "0.875", "0.125", "12.3", "3 MiB"),
    ]
    assert cells(row(spread=False, truth=False))[6:] == ["0.125", "0.875", "1.5", "12.3", "3 MiB"]
    assert len(cells(row(spread=False, truth=False))) == len(CMD_HEADER)
    assert cells(row(spread=True), plus_minus="+-")[1] == "0.100+-0.010"
    assert cells(row(spread=True, peak=None))[-1] == ""
    assert cells(HIGHLIGHTED[3])[:4] == ["ACDC", "0.441", "0.839", "0.959"]
    assert len(cells(HIGHLIGHTED[3])) == len(HEADER)


def test_published_rows_stand_apart() -> None:
    text = to_markdown([row(spread=False)], HIGHLIGHTED, title="## Title")
    ours, theirs = text.split("Published figures, on InterpBench's weights:")
    assert ours.startswith("## Title\n\n| Method |")
    assert "eap_x" in ours
    assert "EAP-IG" not in ours
    assert theirs.count("\n| ") == 2 + len(HIGHLIGHTED)
    assert "Published" not in to_markdown([row(spread=False)], (), title="")
    lines = list(csv.DictReader(io.StringIO(to_csv([row(spread=True)], HIGHLIGHTED))))
    assert [line["published"] for line in lines] == ["no", *["yes"] * 8]
    assert float(lines[0]["max"]) == 0.51234
    assert float(lines[0]["q3_std"]) == 0.04
    assert lines[4]["min_std"] == lines[4]["seconds"] == ""


def test_latex() -> None:
    text = to_latex([row(spread=True)], HIGHLIGHTED[:1], title="100 % & more")
    assert r"    eap\_x & 0.100$\pm$0.010 & " in text
    assert (
        r"\multicolumn{12}{@{}l}{\textit{Published figures, on InterpBench's weights}} \\" in text
    )
    assert r"\caption{100 \% \& more}" in text
    assert text.count(r"\midrule") == 2
    body = [line for line in text.splitlines() if "&" in line and "caption" not in line]
    assert {line.count(" & ") for line in body} == {len(HEADER) - 1}


@pytest.mark.slow
def test_the_box_plot_is_reproducible(tmp_path: Path) -> None:
    rows = [row(spread=True), row(spread=False)]
    for name, published in (("a", HIGHLIGHTED), ("b", HIGHLIGHTED), ("c", ())):
        box_plot(tmp_path / "new" / f"{name}.svg", rows, published, title="Boxes")
    box_plot(tmp_path / "new" / "d.svg", [row(spread=True, truth=False)], (), title="Boxes")
    a, b, c, d = (path.read_bytes() for path in sorted((tmp_path / "new").iterdir()))
    assert a == b
    assert a.startswith(b"<?xml")
    assert len(c) < len(a)
    assert b"Edge AUROC" in c
    assert b"CMD, smaller is better" in d


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'graphcircuits\[plot\]'"):
        box_plot(tmp_path / "a.svg", [row(spread=True)], (), title="")
