"""The pages of the paper's experiment, from the rows of sweeps; nothing on them is typed.

    python -m lab.paper page SWEEP.json ... --bench CASES.csv \\
        --out docs/results/paper.md --figure docs/figures/paper.png

1. Rows of the sweeps are read and put together (`sweeps`); the first sweep is the one drawn.
2. The page has the paper's table with ours, the methods and the floors beside it, the paper's
   findings checked on every sweep that can decide them (`findings`), what explains the distance to
   the paper, and its leak (`decompose`).
3. A second page, `NAME-details.md` beside it, has the sweeps side by side, every finding in words,
   all pairs of sweeps, a table per sweep, cost, and all published rows (`published`).
4. `--figure` draws the paper's figure, and all 14 configurations in a file with `-all` in its name;
   `--latex` writes the tables.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from graphcircuits.cases.case import LABELINGS
from graphcircuits.evaluation.text_tables import markdown_table
from graphcircuits.io.files import write_atomic
from lab.intervals import signed
from lab.paper.boxes import SUFFIXES
from lab.paper.decompose import (
    Contrast,
    contrast_table,
    contrast_text,
    contrasts,
    leak_table,
    leak_text,
    main_contrasts,
)
from lab.paper.findings import PUBLISHED_MEDIANS, ClaimCheck, findings, learner_table
from lab.paper.published import N_CASES, N_SEEDS, PUBLISHED_TITLE, short_words
from lab.paper.sweep_costs import Record, cost_markdown, formula_markdown, read_costs
from lab.paper.sweep_figures import (
    HIGHLIGHT,
    best_of,
    configurations_figure,
    main_table,
    paper_figure,
    published_markdown,
    search_markdown,
    sweep_latex,
    sweep_markdown,
)
from lab.paper.sweep_rows import CONFIGURATIONS, command_of, read_rows
from lab.paper.sweeps import Search, SweepResult, read_searches, sweeps_of
from lab.programs import parser

CAPTION = (
    "Boxes are quartiles over the held-out cases after the seeds of each case are averaged; "
    "whiskers reach to the last case within 1.5 interquartile ranges, circles are cases "
    "beyond. Capped dotted intervals beside a box are one standard deviation over seeds to "
    "either side of each of its five statistics. Solid outlines are ours, dashed ones "
    "published; where the paper prints five numbers alone, whiskers end at the extremes."
)


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the page is made from."""

    sweeps: tuple[SweepResult, ...]
    searches: tuple[Search, ...] = ()
    costs: tuple[Record, ...] = ()
    figures: tuple[str, ...] = ()
    """Pictures as the page links them."""
    command: str = ""
    """What makes the page again."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Files of rows, and the commands that wrote them."""

    @cached_property
    def checks(self) -> list[dict[str, ClaimCheck]]:
        """The findings that each sweep can be asked for."""
        return [findings(sweep, self.searches) for sweep in self.sweeps]

    @cached_property
    def pairs(self) -> list[Contrast]:
        """The pairs of sweeps that differ in one thing."""
        return contrasts(self.sweeps)

    def markdown(self, details: str) -> str:
        """The page; `details` is where the other one lies, as it is linked."""
        main = main_contrasts(self.pairs)
        parts = [
            "# The paper's experiment",
            _ABOUT,
            f"[The details]({details}) have every sweep, finding and published row.",
            *(f"![edge AUROC on held-out cases]({path})" for path in self.figures[:1]),
            *([f"{CAPTION} Ours are of sweep 1 below."] if self.figures else []),
            "## The table",
            f"Sweep 1 ({self.sweeps[0].name}); AUROC over {_conditions(self.sweeps[0])}",
            main_table(self.sweeps[0], self.searches),
            _FLOORS,
            "## The paper's findings",
            _FINDINGS,
            self._verdicts(),
            self._numbers(),
            "## Where the distance comes from",
            contrast_text(self.sweeps, main),
            *([contrast_table(main)] if main else []),
            "## Test circuits in the paper's pool",
            leak_text(self.pairs),
            "## How both pages are made",
            self._made(),
        ]
        return "\n\n".join(parts) + "\n"

    def details(self, page: str) -> str:
        """The second page; `page` is where the first one lies, as it is linked."""
        parts = ["# The paper's experiment: details", f"Behind [the page]({page}).", self._made()]
        parts += [f"![edge AUROC on held-out cases]({path})" for path in self.figures[1:]]
        parts += ["## Sweeps", self._overview(), "## The paper's findings, one by one"]
        for number, (sweep, checks) in enumerate(zip(self.sweeps, self.checks, strict=True), 1):
            if checks:
                parts += [self._findings(number, sweep, checks)]
        parts += ["## Where the distance comes from", contrast_text(self.sweeps, self.pairs)]
        if self.pairs:
            parts.append(contrast_table(self.pairs))
        parts += ["## Test circuits in the paper's pool", leak_table(self.sweeps), "## Tables"]
        for number, sweep in enumerate(self.sweeps, start=1):
            about = f"AUROC over {_conditions(sweep)}"
            parts += [f"### {number}. {sweep.name}", about, sweep_markdown(sweep)]
        if self.searches:
            parts += [
                "### Other methods on the same cases",
                _OTHERS,
                search_markdown(self.searches),
            ]
        parts += ["## Cost", _COST, formula_markdown()]
        if self.costs:
            parts += [_TRAINING, cost_markdown(self.costs)]
        parts += [f"## {PUBLISHED_TITLE}", _PUBLISHED, published_markdown()]
        return "\n\n".join(parts) + "\n"

    def latex(self) -> str:
        """A table per sweep."""
        return "\n".join(sweep_latex(sweep, self.searches) for sweep in self.sweeps)

    def _made(self) -> str:
        """The command, and the files it reads."""
        lines = "\n".join(f"- `{path}`: `{made}`" for path, made in self.sources.items())
        return f"Both pages are made with `{self.command}`, from the rows of:\n\n{lines}"

    def _overview(self) -> str:
        columns = (
            "Sweep",
            "Configurations",
            "Cases",
            "Seeds",
            "Eligible",
            "Best configuration",
            "Best median",
            f"{short_words(HIGHLIGHT)}",
            "Published",
            "Mean difference",
        )
        rows = []
        for number, sweep in enumerate(self.sweeps, start=1):
            best, medians = best_of(sweep), sweep.medians
            shown = medians.get(HIGHLIGHT)
            changes = [medians[name] - PUBLISHED_MEDIANS[name] for name in medians]
            rows.append(
                [
                    f"{number}. {sweep.name}",
                    f"{len(medians)} of {len(CONFIGURATIONS)}",
                    _span(len(row.cases) for row in sweep.rows),
                    _span(row.n_seeds for row in sweep.rows),
                    _span(row.eligible for row in sweep.rows),
                    short_words(best),
                    f"{medians[best]:.3f}",
                    "" if shown is None else f"{shown:.3f}",
                    f"{PUBLISHED_MEDIANS[HIGHLIGHT]:.3f}",
                    signed(sum(changes) / len(changes)),
                ]
            )
        note = (
            "The mean difference is that of our medians from the published ones of the same names. "
            "Eligible are the settings that finished every fold; where none is said to fail, "
            "the others of the grid were not tried."
        )
        return f"{markdown_table(columns, rows)}\n\n{note}"

    def _decided(self) -> list[int]:
        """Places of the sweeps with the control without message passing, our subjects first."""
        return [place for place, checks in enumerate(self.checks) if "message passing" in checks]

    def _verdicts(self) -> str:
        """A row per finding, a column per sweep that can be asked for the main one."""
        places = self._decided()
        columns = ["Finding", "Published", *(f"Sweep {place + 1}" for place in places)]
        known = {name: one for checks in self.checks for name, one in checks.items()}
        rows = []
        for name, one in known.items():
            cells = [self.checks[place].get(name) for place in places]
            shown = ["" if check is None else check.short for check in cells]
            rows.append([one.claim, one.published, *shown])
        return markdown_table(columns, rows, left=len(columns))

    def _numbers(self) -> str:
        """What the sweeps of the table are."""
        names = [f"{place + 1} is {self.sweeps[place].name}" for place in self._decided()]
        return f"Sweeps: {'; '.join(names)}." if names else ""

    def _findings(self, number: int, sweep: SweepResult, checks: Mapping[str, ClaimCheck]) -> str:
        lines = [f"- **{one.claim}: {one.short}.** {one.text}" for one in checks.values()]
        parts = [f"### Findings of sweep {number}: {sweep.name}", "\n".join(lines)]
        if table := learner_table(sweep):
            parts += [
                "Observed connectivity and none; the mean is that of differences over cases:",
                table,
            ]
        return "\n\n".join(parts)


_ABOUT = (
    "The 14 configurations of *Can Graph Learning Learn Circuits?* (Tan, Lampert, Maynard et al., "
    "2026), selected by cross-validation, trained again on the whole pool with several seeds, and "
    "measured on held-out cases at head level, under InterpBench's labels. The paper has "
    f"{N_CASES} cases and {N_SEEDS} seeds, on InterpBench's weights; its figures are marked as "
    "published."
)
_FLOORS = (
    "Floors look at nothing that the subject computes: random scores; how often an edge of that "
    "name is in the circuits that were learned from; a trained network with every feature zeroed."
)
_FINDINGS = (
    "The difference that each claim is about, with its interval: 95% of what other cases and other "
    "training seeds would give, with all seeds and without any one of them. A claim holds or does "
    "not hold where the interval leaves out zero. Empty cells were not run."
)
_OTHERS = (
    "Methods of `graphcircuits bench` on our subjects: searches of each case, and predictors that "
    "ship. Seeds draw prompts, and seed methods that are random; nothing is trained again."
)
_COST = (
    "The paper's work and span of localizing one circuit of one new subject and task: work is the "
    "floating-point operations of all matrix products, span the longest chain of matrix products "
    "that wait for each other. What the training of a predictor took is not in them; what methods "
    "were counted and measured to take is in [cost.md](cost.md)."
)
_TRAINING = (
    "Trainings of the sweeps. Where several are trained side by side, the time of one is its share."
)
_PUBLISHED = (
    "After ± stands the standard deviation of the statistic over five seeds. The baselines are "
    "those of InterpBench's figure 9, without seeds. Scores in cross-validation keep q, k and "
    "v apart, the held-out figures do not, so that the two do not compare."
)


def _conditions(sweep: SweepResult) -> str:
    steps = _span(row.step for row in sweep.rows)
    return (
        f"{_span(len(row.cases) for row in sweep.rows)} cases, "
        f"{_span(row.n_seeds for row in sweep.rows)} seeds, chosen after {steps} steps; seeds are "
        "averaged within a case, after ± stands the standard deviation of the statistic over seeds."
    )


def _span(values: Iterable[int]) -> str:
    found = sorted(set(values))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


# The command


def main(arguments: Sequence[str]) -> None:
    """Make the page."""
    given = _words().parse_args(arguments)
    command = shlex.join(["python", "-m", "lab.paper", "page", *arguments])
    figures: list[Path] = given.figure
    if bad := [str(path) for path in figures if path.suffix not in SUFFIXES]:
        raise SystemExit(f"a figure is written as {', '.join(SUFFIXES)}, got {', '.join(bad)}.")
    try:
        sweeps = sweeps_of(row for path in given.sweeps for row in read_rows(path))
        searches = [one for text in given.bench for one in read_searches(*_bench(text))]
        costs = [record for path in given.cost for record in read_costs(path)]
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from error
    if not sweeps:
        raise SystemExit("the files hold no rows; a sweep writes them once a refit is finished.")
    written = _draw(sweeps[0], searches, figures)
    # One picture of each kind is enough on the page.
    linked = written[:2]
    page = Page(
        sweeps=tuple(sweeps),
        searches=tuple(searches),
        costs=tuple(costs),
        figures=tuple(Path(os.path.relpath(path, given.out.parent)).as_posix() for path in linked),
        command=command,
        sources={path.as_posix(): command_of(path) for path in given.sweeps},
    )
    details = given.out.with_name(f"{given.out.stem}-details{given.out.suffix}")
    for path, text in (
        (given.out, page.markdown(details.name)),
        (details, page.details(given.out.name)),
    ):
        write_atomic(path, text.encode())
        written.append(path)
    if given.latex is not None:
        write_atomic(given.latex, page.latex().encode())
        written.append(given.latex)
    sys.stdout.write("".join(f"wrote {path}\n" for path in written))


def _words() -> argparse.ArgumentParser:
    words = parser("lab.paper page", __doc__)
    words.add_argument("sweeps", nargs="+", type=Path, help="sweep.json of a sweep's folder")
    words.add_argument(
        "--bench",
        nargs="*",
        default=[],
        help="cases.csv of a bench, or its folder; LABELS=PATH where its labels were others",
    )
    words.add_argument(
        "--cost", nargs="*", type=Path, default=[], help="times.jsonl of a sweep, or JSON rows"
    )
    words.add_argument("--out", type=Path, required=True, help="the page, Markdown")
    words.add_argument(
        "--figure", nargs="*", type=Path, default=[], help="pictures: .svg, .png, .pdf"
    )
    words.add_argument("--latex", type=Path, help="where to write the tables, as LaTeX")
    return words


def _bench(text: str) -> tuple[str, str]:
    """Path and labels."""
    labels, sign, path = text.partition("=")
    return (path, labels) if sign and labels in LABELINGS else (text, "interpbench")


def _draw(sweep: SweepResult, searches: Sequence[Search], paths: Sequence[Path]) -> list[Path]:
    """The pictures that were written, both kinds of each suffix."""
    title = f"Edge AUROC on held-out cases: {sweep.name}"
    written = []
    for path in paths:
        every = path.with_name(f"{path.stem}-all{path.suffix}")
        paper_figure(path, sweep, searches, title=title)
        configurations_figure(every, sweep, title=title)
        written += [path, every]
    return written
