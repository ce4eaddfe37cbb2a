"""The table and the figure of a sweep, with the published rows beside ours."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from graphcircuits.io.files import StoreError
from lab.paper.sweep_figures import (
    beside,
    best_of,
    choice_of,
    configurations_figure,
    paper_figure,
    published_markdown,
    search_markdown,
    sweep_latex,
    sweep_markdown,
)
from lab.paper.sweeps import Search, read_searches, sweeps_of
from tests.lab.paper.sweep_examples import CASES, row, sweep

NAME = "dirgnn-line-observed"


def test_exact_quantiles_and_the_spread_of_each_over_seeds() -> None:
    """Cases from 0 to 0.75 in equal steps; the second seed is 0.02 above the first everywhere."""
    cases = {case: (place / 20, place / 20 + 0.02) for place, case in enumerate(CASES)}
    (made,) = sweeps_of([row(NAME, cases=cases)])
    summary = made.summaries[NAME]
    assert summary.quantiles == pytest.approx((0.01, 0.1975, 0.385, 0.5725, 0.76))
    assert summary.spread == pytest.approx((0.02 / 2**0.5,) * 5)
    assert made.case_means(NAME)["ib-2"] == pytest.approx(0.06)
    # A statistic that no seed moves has no spread, though cases change places.
    swapped = {"ib-1": (0.2, 0.8), "ib-2": (0.8, 0.2)}
    (other,) = sweeps_of([row(NAME, cases=swapped)])
    assert other.summaries[NAME].quantiles == pytest.approx((0.5,) * 5)
    assert other.summaries[NAME].spread == pytest.approx((0.0,) * 5)


def test_rows_of_one_sweep_belong_together() -> None:
    names = ["dirgnn-line-none", "factorized-line-none"]
    rows = [row(name, fleet=fleet) for fleet in ("public", "planted") for name in names]
    public, planted = sweeps_of([*rows, row(NAME, fleet="planted")])
    assert [one.configuration for one in public.rows] == names[::-1]
    assert len(planted.rows) == 3
    assert public.name == "aligner tabpfn, pool, public fleet, interpbench labels"
    (detailed,) = sweeps_of([row(NAME, details={"trained on": "public"})])
    assert detailed.name.endswith("interpbench labels, trained on public")
    with pytest.raises(ValueError, match="dirgnn-line-none is there twice under aligner tabpfn, "):
        sweeps_of([row("dirgnn-line-none"), row("dirgnn-line-none")])


def test_the_markdown_table() -> None:
    made = sweep({NAME: 0.95}, {NAME: 0.9}, shifts=(0.0, 0.02), eligible=17)
    lines = sweep_markdown(made).splitlines()
    assert len(lines) == 2 + 14
    (line,) = [line for line in lines if "DirGraphConv | Line | Observed" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[3:6] == ["0.900", "0.943", "17 of 18"]
    assert cells[6:11] == ["0.960 ± 0.014"] * 5
    assert cells[11:] == ["0.902", "+0.058", "width 32, lr 0.003, 400 steps"]
    assert {line.count("|") for line in lines} == {15}
    (empty,) = sweeps_of([row(NAME, cross_validation=None)])
    assert "| Observed |  | 0.943 |" in sweep_markdown(empty)


def test_the_published_table() -> None:
    text = published_markdown()
    assert len(text.splitlines()) == 22
    assert (
        "| DirGraphConv | Line | No message-passing edges | 0.883 | 0.557 ± 0.045 | 0.741 ± 0.009 "
        "| 0.825 ± 0.012 | 0.964 ± 0.015 | 0.992 ± 0.004 |"
    ) in text
    assert "| EAP |  |  |  | 0.000 | 0.000 | 0.000 | 0.393 | 0.990 |" in text


def a_search(method: str, fleet: str = "planted", labels: str = "interpbench") -> Search:
    cases = {"ib-3": {0: 0.5, 1: 0.7}, "ib-8": {0: 1.0, 1: 1.0}}
    return Search(method=method, fleet=fleet, labels=labels, cases=cases)


def test_latex_has_ours_and_marks_what_is_published() -> None:
    made = sweep(details={"trained on": "100% a_b"})
    text = sweep_latex(made, [a_search("eap_x"), a_search("acdc", "public")])
    assert text.count(r"\begin") == text.count(r"\end") == 2
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    assert text.count("$") == 2 * text.count(r"\pm")
    body = [line for line in text.splitlines() if line.endswith(r"\\") and "multicol" not in line]
    assert {line.count(" & ") for line in body} == {9}
    assert len(body) == 1 + 14 + 1 + 20
    assert text.index("{Ours}") < text.index("{Ours, other methods}") < text.index("{Published, G")
    assert r"eap\_x" in text
    assert r"trained on 100\% a\_b" in text
    assert "acdc" not in text
    assert "other methods" not in sweep_latex(made)


def test_searches_of_the_same_subjects_stand_beside_a_sweep() -> None:
    searches = [a_search("eap"), a_search("acdc", "public"), a_search("exact", labels="paper")]
    assert [one.method for one in beside(sweep(), searches)] == ["eap"]
    assert [one.method for one in beside(sweep(labels="paper"), searches)] == ["exact"]
    table = search_markdown(searches).splitlines()
    assert table[2] == (
        "| eap | planted | interpbench | 0.600 ± 0.141 | 0.700 ± 0.106 | 0.800 ± 0.071 "
        "| 0.900 ± 0.035 | 1.000 ± 0.000 | 0.000 | +0.800 |"
    )
    assert table[4].endswith("|  |  |")


def test_searches_are_read_from_a_bench(tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    path.write_text(
        "case,method,seed,auroc\nib-3,eap,0,0.5\nib-3,eap,1,0.7\nib-2,eap,0,0.1\n"
        "ib-8.public.plain.0,eap,0,1.0\n"
    )
    planted, public = read_searches(tmp_path)
    assert (planted.fleet, planted.cases, planted.labels) == (
        "planted",
        {"ib-3": {0: 0.5, 1: 0.7}},
        "interpbench",
    )
    assert (public.fleet, public.case_means) == ("public", (1.0,))
    for text, told in (
        ("case,method\nib-3,eap\n", "needs lines with the columns auroc, case, method, seed"),
        ("case,method,seed,auroc\nib-3,eap,0,\n", "line 2: .*could not convert"),
        ("case,method,seed,auroc\nib-3,eap,0,nan\n", "line 2: auroc must be a number, got nan"),
        ("case,method,seed,auroc\nib-2,eap,0,1\n", "no run on a held-out case"),
    ):
        path.write_text(text)
        with pytest.raises(StoreError, match=told):
            read_searches(path)


def test_the_best_and_the_chosen() -> None:
    made = sweep({"factorized-line-none": 0.99}, {"dagformer-line-none": 0.99})
    assert (best_of(made), choice_of(made)) == ("factorized-line-none", "dagformer-line-none")
    # Of medians that print alike, the higher mean counts.
    cases = dict.fromkeys(CASES, (0.9,))
    rows = [
        row("factorized-line-none", cases=cases | {"ib-1": (0.1,)}),
        row("dirgnn-line-none", cases=cases, cross_validation=None),
    ]
    (tied,) = sweeps_of(rows)
    assert best_of(tied) == "dirgnn-line-none"
    assert choice_of(tied) == "factorized-line-none"
    (unscored,) = sweeps_of(rows[1:])
    assert choice_of(unscored) is None


@pytest.mark.slow
def test_the_figures(tmp_path: Path) -> None:
    best, chosen = "factorized-line-none", "dagformer-incidence-none"
    made = sweep({best: 0.99}, {chosen: 0.99}, shifts=(0.0, 0.01))
    paper_figure(tmp_path / "a.svg", made, [a_search("acdc")], title="T & t")
    configurations_figure(tmp_path / "b.svg", made, title="T")
    some = sweeps_of(made.rows[:2])[0]
    configurations_figure(tmp_path / "c.svg", some, title="T")
    texts = {}
    for path in sorted(tmp_path.iterdir()):
        root = ElementTree.parse(path).getroot()
        texts[path.stem] = [
            "".join(text.itertext()).strip() for text in root.iter() if text.tag.endswith("}text")
        ]
    for word in ("T & t", "The paper's methods", "Baselines", "PGExplainer", "ACDC", "EAP-IG"):
        assert word in texts["a"]
    # The highlighted one, its control, our best and our choice.
    assert texts["a"].count("our best") == texts["a"].count("our choice in") == 1
    assert texts["a"].count("DirGraphConv") == 2
    assert texts["b"].count("observed") == texts["b"].count("no message") == 6
    assert texts["b"].count("complete DAG") == 2
    assert sum("published (dashed)" in text for text in texts["c"]) == 1
    assert len(texts["b"]) == len(texts["c"])
    assert (tmp_path / "c.svg").stat().st_size < (tmp_path / "b.svg").stat().st_size
