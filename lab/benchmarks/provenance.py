"""Where every page of docs/results comes from: command, data, dates, and whether they agree.

1. `read_page` takes the commands and data files that a page names. Some pages have no file beside
   them, because their command writes every figure into their tables (`OWN_TABLES`).
2. `follows` recomputes a bench's table from its runs: medians over cases of means over seeds.
3. The table has the last commits that changed data and page, and whether anything was measured
   since a revision (`measured_anew`): what was not is older than that.

python -m lab.benchmarks.provenance --since REVISION --out docs/results/provenance.md
"""

import argparse
import csv
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from gzip import decompress as gunzip
from pathlib import Path
from statistics import mean, median

from graphcircuits.evaluation.text_tables import markdown_table
from graphcircuits.io.files import write_atomic
from lab import ROOT
from lab.files import read_packed

FOLDER = ROOT / "docs" / "results"
NO_RESULTS = ("index", "provenance")
"""Pages that list the others."""
OWN_TABLES = (
    *("auto-circuit", "certainty", "certificates", "cost", "growth", "looking", "selection"),
)
"""Pages whose tables are all the data that there is."""
COMMAND = re.compile(r"`((?:graphcircuits|python -m|make) [^`]+)`")
FILE = re.compile(r"[\w./-]+\.(?:csv\.gz|csv|jsonl\.gz|jsonl|json)\b")


@dataclass(frozen=True)
class Page:
    """A page of results, and what it says of its origin."""

    path: Path
    commands: tuple[str, ...]
    named: tuple[Path, ...]
    """Data files that it names, there or not."""

    recovered: bool = False
    """Whether its figures were read from the page itself, the runs being lost or drawn again."""

    @property
    def data(self) -> tuple[Path, ...]:
        """Where its figures are: files beside it, or the page itself."""
        return self.named or ((self.path,) if self.path.stem in OWN_TABLES else ())


def pages() -> list[Page]:
    """All pages of results, by name."""
    found = sorted(FOLDER.glob("*.md"))
    return [read_page(path) for path in found if path.stem not in NO_RESULTS]


def read_page(path: Path) -> Page:
    """What a page names: commands in backticks, and files of this folder or by their full path."""
    text = path.read_text("utf-8")
    named = [ROOT / name if "/" in name else FOLDER / name for name in FILE.findall(text)]
    kept = [file for file in named if FOLDER in file.parents]
    commands = dict.fromkeys(COMMAND.findall(text))
    recovered = "read back from the tables" in text or any("--redraw" in one for one in commands)
    return Page(path, tuple(commands), tuple(dict.fromkeys(kept)), recovered)


def follows(page: Page) -> bool | None:
    """Whether the medians of a bench's table are those of its runs; None for other pages."""
    names = (f"{page.path.stem}-cases.csv", f"{page.path.stem}-cases.csv.gz")
    runs = [FOLDER / name for name in names if FOLDER / name in page.data]
    if not runs or not runs[0].is_file():
        return None
    rows = list(csv.DictReader(read_packed(runs[0]).splitlines()))
    shown = _medians(page.path.read_text("utf-8"))
    # Tables of natural subjects were by CMD before they were by log area.
    figure = "auroc" if any(row["auroc"] for row in rows) else "log_area"
    figure = figure if figure in rows[0] else "cmd"
    return bool(shown) and all(
        abs(_median(rows, method, figure) - value) <= 0.0011 for method, value in shown.items()
    )


def _medians(text: str) -> dict[str, float]:
    """The column of medians in the first table of a page, by method."""
    lines = text.partition("\n| Method | Min. |")[2].splitlines()
    found = {}
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found[cells[0]] = float(cells[3].partition(" ")[0])
    return found


def _median(rows: Sequence[Mapping[str, str]], method: str, figure: str) -> float:
    by_case: dict[str, list[float]] = {}
    for row in rows:
        if row["method"] == method:
            by_case.setdefault(row["case"], []).append(float(row[figure]))
    return median(map(mean, by_case.values())) if by_case else -1.0


def changed(paths: Sequence[Path]) -> str:
    """The date of the last commit that changed one of the files; empty where there is none.

    A file that was moved or copied as it is was not changed.
    """
    words = ("log", "--follow", "--diff-filter=AM", "-1", "--format=%cs", "--")
    return max((_git(*words, str(path)) for path in paths), default="")


def measured_anew(page: Page, since: str) -> bool:
    """Whether a file of its data holds other figures than it did at a revision."""
    if page.recovered:
        return False
    for path in page.data:
        name = path.relative_to(ROOT).as_posix()
        there = _git("ls-tree", "--name-only", since, name)
        before = _shown(f"{since}:{name}") if there else b""
        if before != path.read_bytes() and _figures(path, before) != _figures(
            path, path.read_bytes()
        ):
            return True
    return False


def _figures(path: Path, data: bytes) -> object:
    return figures_in(path, (gunzip(data) if path.suffix == ".gz" and data else data).decode())


def figures_in(path: Path, text: str) -> object:
    """What was measured, without the commands, which are spelled anew when a program is renamed."""
    if path.suffix == ".md":
        return [line for line in text.splitlines() if line.startswith("|")]
    return json.loads(text)["meta"] if path.suffix == ".json" and text else text.strip()


def _shown(name: str) -> bytes:
    """The content of a file at a revision."""
    given = ["git", "-C", str(ROOT), "show", name]
    return subprocess.run(given, capture_output=True, check=True).stdout


def _git(*words: str) -> str:
    given = ["git", "-C", str(ROOT), *words]
    return subprocess.run(given, capture_output=True, text=True, check=True).stdout.strip()


def table(since: str) -> str:
    """The list of pages as Markdown."""
    rows = []
    for page in pages():
        agrees = {True: "yes", False: "no", None: ""}[follows(page)]
        files = [file.relative_to(FOLDER).as_posix() for file in page.data if file != page.path]
        none = "its own tables" if page.path.stem in OWN_TABLES else "none"
        rows.append(
            [
                f"[{page.path.stem}]({page.path.name})",
                "".join(f"`{command}`" for command in page.commands[:1]),
                ", ".join(f"[{name}]({name})" for name in files) or none,
                changed(page.data),
                changed([page.path]),
                agrees,
                "yes" if measured_anew(page, since) else "no",
            ]
        )
    columns = ["Page", "Command", "Data", "Data of", "Page of", "Agree", "Anew"]
    return markdown_table(columns, rows, left=len(columns))


def text(since: str) -> str:
    """The page."""
    day = _git("log", "-1", "--format=%cs", since)
    return "\n\n".join(
        [
            "# Where results come from",
            "For every page of results: the command that made it (the first, where a page has "
            "several), the data its figures are in, when each was last changed in the repository, "
            "whether the medians of the page's first table follow from the data (agree), and "
            f"whether other figures were measured since {since} of {day} (anew). Otherwise a page "
            "is what earlier code gave.",
            table(since),
            f"Made with `python -m lab.benchmarks.provenance --since {since} --out "
            "docs/results/provenance.md`.",
        ]
    )


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--since", required=True, metavar="REVISION", help="of git")
    parser.add_argument("--out", type=Path, help="the page; printed if left out")
    words = parser.parse_args(given)
    page = text(words.since) + "\n"
    if words.out is None:
        sys.stdout.write(page)
    else:
        write_atomic(words.out, page.encode())


if __name__ == "__main__":
    main()
