"""The page of the paper's experiment, by its command."""

from pathlib import Path

import pytest

from lab.paper.page import main
from lab.paper.sweep_rows import write_rows
from tests.lab.paper.sweep_examples import row, sweep

BENCH = "case,method,seed,auroc\n" + "".join(
    f"{case},{method},0,{value}\n"
    for method in ("gcl-blind", "eap-ig")
    for case, value in (("ib-3", 0.5), ("ib-8", 1.0))
)


@pytest.mark.slow
def test_the_page_is_made_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = sweep({"dirgnn-line-observed": 0.95}).rows
    write_rows(tmp_path / "a.json", rows, command="python -m lab.paper sweep paper")
    other = [*sweep(labels="paper").rows, row("dirgnn-line-none", fleet="public")]
    write_rows(tmp_path / "b.json", other)
    (tmp_path / "cases.csv").write_text(BENCH)
    (tmp_path / "cost.json").write_text('[{"name": "one card", "runs_per_hour": 700}]')
    page = tmp_path / "docs" / "paper.md"
    given = [
        *(str(tmp_path / name) for name in ("a.json", "b.json")),
        *("--bench", str(tmp_path), f"paper={tmp_path}"),
        *("--cost", str(tmp_path / "cost.json")),
        *("--out", str(page), "--latex", str(tmp_path / "new" / "paper.tex")),
    ]
    main(given)
    details = page.with_name("paper-details.md")
    written = (page, details, tmp_path / "new" / "paper.tex")
    assert capsys.readouterr().out == "".join(f"wrote {path}\n" for path in written)
    text, rest = page.read_text(), details.read_text()
    assert "[The details](paper-details.md)" in text
    assert "Behind [the page](paper.md)." in rest
    made = "Both pages are made with `python -m lab.paper page "
    assert made in text
    assert made in rest
    assert f"--bench {tmp_path} paper={tmp_path} --cost" in rest
    assert f"- `{tmp_path.as_posix()}/a.json`: `python -m lab.paper sweep paper`\n" in rest
    first = "aligner tabpfn, pool, planted fleet, interpbench labels"
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# The paper's experiment",
        "## The table",
        "## The paper's findings",
        "## Where the distance comes from",
        "## Test circuits in the paper's pool",
        "## How both pages are made",
    ]
    assert [line for line in rest.splitlines() if line.startswith("#")] == [
        "# The paper's experiment: details",
        "## Sweeps",
        "## The paper's findings, one by one",
        f"### Findings of sweep 1: {first}",
        "### Findings of sweep 2: aligner tabpfn, pool, planted fleet, paper labels",
        "## Where the distance comes from",
        "## Test circuits in the paper's pool",
        "## Tables",
        f"### 1. {first}",
        "### 2. aligner tabpfn, pool, planted fleet, paper labels",
        "### 3. aligner tabpfn, pool, public fleet, interpbench labels",
        "### Other methods on the same cases",
        "## Cost",
        "## Published figures, on InterpBench's weights",
    ]
    assert len(text.splitlines()) < 100
    claim = "DirGraphConv on the line graph: observed connectivity is above none"
    assert f"| {claim} | +0.077 | holds: +0.125 [+0.125, +0.125] | holds: +0.077 [" in text
    assert f"- **{claim}: holds: +0.125 [+0.125, +0.125].** Median 0.950 against 0.825" in rest
    # Methods on the same subjects by the same labels, floors last and marked.
    table = text.partition("## The table")[2].partition("##")[0].splitlines()
    assert [line.split("|")[1:3] for line in table if "eap-ig" in line] == [[" eap-ig ", "  "]]
    assert [line.split("|")[1:3] for line in table if "floor" in line] == [
        [" gcl-blind ", " floor "]
    ]
    assert f"| 1. {first} | 14 of 14 | 16 | 1 | 18 | DirGraphConv, line graph | 0.950 |" in rest
    assert "| labels | interpbench | paper |" in text
    assert "| subjects | planted | public |" in rest
    assert "| one card | 700 |" in rest
    assert "![" not in text
    assert (tmp_path / "new" / "paper.tex").read_text().count(r"\begin{table}") == 3
    # The same files give the same page.
    before = page.read_bytes()
    main(given)
    assert page.read_bytes() == before


@pytest.mark.slow
def test_figures_are_linked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "a.json", sweep().rows)
    figures = [tmp_path / "figures" / name for name in ("x.svg", "x.png")]
    out = tmp_path / "docs" / "results" / "x.md"
    given = [str(tmp_path / "a.json"), "--out", str(out), "--figure", *map(str, figures)]
    main(given)
    text = out.read_text()
    assert "![edge AUROC on held-out cases](../../figures/x.svg)" in text
    details = out.with_name("x-details.md").read_text()
    assert "(../../figures/x-all.svg)" in details
    # One kind of picture is enough; the command alone names the other.
    named = [line for line in f"{text}{details}".splitlines() if "png" in line]
    assert len(named) == 2
    assert all(line.startswith("Both pages are made with") for line in named)
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "x-all.png",
        "x-all.svg",
        "x.png",
        "x.svg",
    ]
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_what_the_command_refuses(tmp_path: Path) -> None:
    path, out = tmp_path / "a.json", tmp_path / "x.md"
    write_rows(path, [])
    for given, told in (
        ([str(path)], "the files hold no rows"),
        ([str(tmp_path / "b.json")], "No such file"),
        ([str(path), "--figure", "x.gif"], r"a figure is written as .*, got x\.gif"),
        ([str(path), "--bench", str(path)], "is not a table of a bench's runs"),
    ):
        with pytest.raises(SystemExit, match=told):
            main([*given, "--out", str(out)])
    write_rows(path, [row("dirgnn-line-none")])
    with pytest.raises(SystemExit, match="is there twice"):
        main([str(path), str(path), "--out", str(out)])
    assert not out.exists()
