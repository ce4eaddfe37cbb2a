"""Every page of results names a command that there is and data that are there."""

import csv
import gzip
import re
import subprocess
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean

import pytest
from typer.main import get_command

from graphcircuits.cli import MOVED, app
from lab.benchmarks import provenance
from lab.benchmarks.provenance import (
    FOLDER,
    OWN_TABLES,
    ROOT,
    Page,
    changed,
    figures_in,
    follows,
    measured_anew,
    pages,
    read_page,
)

PAGES = pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path.stem)
def test_a_page_names_its_command_and_its_data(page: Page) -> None:
    assert page.commands, "no command in backticks"
    kept = "its runs are no longer kept" not in page.path.read_text()
    assert page.data or not kept, "no data file"
    assert [file for file in page.data if not file.is_file()] == []
    for command in page.commands:
        assert _is_there(command), command


def _is_there(command: str) -> bool:
    """Whether a command of the package, a module or a target of that name exists."""
    first, second, *rest = command.split()
    if first == "graphcircuits":
        return second not in MOVED and second in get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    if first == "make":
        return f"\n{second}:" in (ROOT / "Makefile").read_text()
    module = rest[0]
    if module in ("lab.factory", "lab.generators", "lab.paper", "lab.studies"):
        program = import_module(f"{module}.__main__").app
        return rest[1] in get_command(program).commands  # pyright: ignore[reportAttributeAccessIssue]
    return find_spec(module) is not None


def test_moving_a_file_does_not_change_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that get another name beside newer ones were still measured when they were."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    old, new = tmp_path / "old.csv", tmp_path / "runs.csv"

    def commit(day: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"{day}T12:00:00Z")
        for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", day)):
            subprocess.run(["git", "-C", str(tmp_path), *words], check=True)

    measured = "".join(f"case-{n},{n * 0.37}\n" for n in range(20))
    new.write_text(measured)
    commit("2026-01-01")
    old.write_text(measured)
    new.write_text("other,0.1\n")
    commit("2026-02-02")
    assert [changed([old]), changed([new]), changed([old, new])] == [
        "2026-01-01",
        "2026-02-02",
        "2026-02-02",
    ]
    assert changed([]) == ""


def test_all_pages_are_in_the_list() -> None:
    listed = re.findall(r"^\| \[([\w-]+)\]", (FOLDER / "provenance.md").read_text(), re.MULTILINE)
    assert listed == [page.path.stem for page in PAGES]
    assert set(OWN_TABLES) <= set(listed)


def test_medians_are_compared_with_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "FOLDER", tmp_path)
    path, runs = tmp_path / "small.md", tmp_path / "small-cases.csv"
    runs.write_text("case,method,auroc,cmd\na,eap,0.5,1\na,eap,0.7,1\nb,eap,1.0,1\n")
    table = "# t\n\n| Method | Min. | Q1 | Median |\n| --- | --- |\n| eap | 0.6 | 0.6 | {} ± 0 |\n"
    path.write_text(f"{table.format('0.800')}\nMade with `make test`. [x](small-cases.csv)\n")
    page = read_page(path)
    assert (page.commands, page.data) == (("make test",), (runs,))
    assert follows(page) is True
    path.write_text(f"{table.format('0.900')}\n[x](small-cases.csv)\n")
    assert follows(read_page(path)) is False
    assert follows(Page(path, (), ())) is None


def test_a_page_drawn_again_is_not_measured_anew(tmp_path: Path) -> None:
    assert not measured_anew(read_page(FOLDER / "growth.md"), "HEAD~1")
    page = tmp_path / "page.md"
    page.write_text("# t\n\n| a |\n\nMade with `python -m lab.benchmarks.growth --redraw x.md`.\n")
    assert read_page(page).recovered
    # A command that is spelled anew is no figure.
    assert figures_in(page, "| a |\n`python -m x`") == figures_in(page, "| a |\n`python -m y`")
    json_file = FOLDER / "sweep.json"
    one, other = '{"command": "x", "meta": 1}', '{"command": "y", "meta": 1}'
    assert figures_in(json_file, one) == figures_in(json_file, other) != figures_in(json_file, "")


def test_packed_data_are_compared_as_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the time that they were packed at."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    data, page = tmp_path / "times.jsonl.gz", tmp_path / "page.md"
    stored = gzip.compress(b"[1]\n", mtime=1)
    monkeypatch.setattr(provenance, "_git", lambda *words: words[-1])
    monkeypatch.setattr(provenance, "_shown", lambda name: stored)
    for content, anew in ((b"[1]\n", False), (b"[2]\n", True)):
        data.write_bytes(gzip.compress(content, mtime=2))
        assert measured_anew(Page(page, (), (data,)), "HEAD") is anew


def test_tables_of_language_models_hold_the_numbers_of_their_file() -> None:
    text = (FOLDER / "language-models.md").read_text()
    lines = (FOLDER / "language-models.csv").read_text().splitlines()
    needed: dict[tuple[str, str, str], list[float]] = {}
    for row in csv.DictReader(lines):
        place = row["model"], row["task"], row["method"]
        needed.setdefault(place, []).append(float(row["edges_for_0.9"]))
    compared = 0
    for part in text.split("\n## ")[1:]:
        model = part.splitlines()[0]
        table = part.partition("### Edges for .9, by task")[2]
        header, _, *body = [line for line in table.splitlines() if line.startswith("|")]
        tasks = header.strip("| ").split(" | ")[1:]
        for line in body:
            method, *cells = (cell.strip(" *") for cell in line.split("|")[1:-1])
            for task, cell in zip(tasks, cells, strict=True):
                if cell:
                    assert f"{geometric_mean(needed[model, task, method]):,.0f}" == cell
                    compared += 1
    assert compared == len(needed)
