"""The paper's table and figure with our results beside the published ones.

1. `sweep_markdown` has a row per configuration of a sweep: score in cross-validation, settings that
   finished, five quantiles over held-out cases with their spread over seeds, and the published
   median with the difference. `sweep_latex` has the paper's layout, published rows below ours and
   marked.
2. `paper_figure` draws what the paper's figure does: the configuration that it highlights, its
   control without message passing, PGExplainer and the baselines, ours and published side by side;
   also our best configuration and that which cross-validation chooses, if they are others.
   `configurations_figure` draws all 14 in the same way.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from graphcircuits.compare.figures import Summary
from graphcircuits.evaluation.text_tables import markdown_table, with_spread
from lab.intervals import signed
from lab.paper.boxes import Box, Slot, SlotGroup, draw_boxes
from lab.paper.latex import Block, latex_table
from lab.paper.published import (
    BASELINES,
    BY_CONFIGURATION,
    EXPLAINER,
    GCL_ROWS,
    OUR_NAMES,
    Published,
    short_words,
    words,
)
from lab.paper.sweep_rows import (
    CONFIGURATIONS,
    LEARNERS,
    TRANSFORMATIONS,
    SweepRow,
    configuration_parts,
)
from lab.paper.sweeps import Search, SweepResult

HIGHLIGHT, CONTROL = "dirgnn-line-observed", "dirgnn-line-none"
_FIVE = ("Min.", "Q1", "Median", "Q3", "Max.")
_WHICH = ("Method", "Graph", "Connectivity")


# Tables


def sweep_markdown(sweep: SweepResult) -> str:
    """A row per configuration, with the published median and the difference."""
    columns = (
        *_WHICH,
        "Cross-validation",
        "Cross-validation, published",
        "Eligible",
        *_FIVE,
        "Published median",
        "Difference",
        "Chosen",
    )
    rows = []
    for row in sweep.rows:
        theirs, summary = BY_CONFIGURATION[row.configuration], sweep.summaries[row.configuration]
        rows.append(
            [
                *words(row.configuration),
                _score(row.cross_validation),
                _score(theirs.cross_validation),
                f"{row.eligible} of {row.settings}" + (f", {row.failed} failed" * bool(row.failed)),
                *with_spread(summary.quantiles, summary.spread),
                f"{theirs.median:.3f}",
                signed(summary.quantiles[2] - theirs.median),
                ", ".join([*(f"{k} {v}" for k, v in row.chosen.items()), f"{row.step} steps"]),
            ]
        )
    return markdown_table(columns, rows, left=3)


def main_table(sweep: SweepResult, searches: Sequence[Search]) -> str:
    """Configurations of a sweep, methods on the same subjects by the same labels, and floors, with
    the published median of each."""
    theirs = {OUR_NAMES[row.method]: row.median for row in (EXPLAINER, *BASELINES)}
    rows = []

    def add(which: Sequence[str], summary: Summary, printed: float | None) -> None:
        five = [f"{value:.3f}" for value in summary.quantiles]
        spread = "" if summary.spread is None else f" ± {summary.spread[2]:.3f}"
        five[2] += spread
        ends = ["", ""]
        if printed is not None:
            ends = [f"{printed:.3f}", signed(summary.quantiles[2] - printed)]
        rows.append([*which, *five, *ends])

    for row in sweep.rows:
        add(words(row.configuration), sweep.summaries[row.configuration], _median_of(row))
    own = sorted(beside(sweep, searches), key=lambda one: (one.is_floor, -one.summary.quantiles[2]))
    for one in own:
        kind = "floor" if one.is_floor else ""
        add((one.method, kind, ""), one.summary, theirs.get(one.method))
    return markdown_table((*_WHICH, *_FIVE, "Published", "Difference"), rows, left=3)


def _median_of(row: SweepRow) -> float:
    return BY_CONFIGURATION[row.configuration].median


def search_markdown(searches: Sequence[Search]) -> str:
    """A row per method and fleet, with the published median where there is one."""
    theirs = {OUR_NAMES[row.method]: row.median for row in (EXPLAINER, *BASELINES)}
    rows = []
    for search in sorted(searches, key=lambda one: -one.summary.quantiles[2]):
        summary, printed = search.summary, theirs.get(search.method)
        rows.append(
            [
                search.method,
                search.fleet,
                search.labels,
                *with_spread(summary.quantiles, summary.spread),
                "" if printed is None else f"{printed:.3f}",
                "" if printed is None else signed(summary.quantiles[2] - printed),
            ]
        )
    columns = ("Method", "Fleet", "Labels", *_FIVE, "Published median", "Difference")
    return markdown_table(columns, rows, left=3)


def published_markdown() -> str:
    """All published rows as the paper's table has them."""
    rows = [_published_cells(row, " ± ") for row in (*GCL_ROWS, EXPLAINER, *BASELINES)]
    return markdown_table((*_WHICH, "Cross-validation", *_FIVE), rows, left=3)


def sweep_latex(sweep: SweepResult, searches: Sequence[Search] = ()) -> str:
    """The paper's table: our configurations, our searches on the same fleet, published rows."""
    ours = []
    for row in sweep.rows:
        summary = sweep.summaries[row.configuration]
        five = with_spread(summary.quantiles, summary.spread, "±")
        score, eligible = _score(row.cross_validation), f"{row.eligible}/{row.settings}"
        ours.append([*words(row.configuration), score, eligible, *five])
    blocks: list[Block] = [("Ours", ours)]
    own = beside(sweep, searches)
    if own:
        rows = [
            [
                one.method,
                "",
                "",
                "",
                "",
                *with_spread(one.summary.quantiles, one.summary.spread, "±"),
            ]
            for one in own
        ]
        blocks.append(("Ours, other methods", rows))
    for heading, published in (
        ("Published, Graph Circuit Learning", GCL_ROWS),
        ("Published, GNN explainer", (EXPLAINER,)),
        ("Published, InterpBench baselines", BASELINES),
    ):
        cut = [_published_cells(row, "±") for row in published]
        # The paper gives the number of settings that finished as a range, not row by row.
        blocks.append((heading, [[*row[:4], "", *row[4:]] for row in cut]))
    columns = (*_WHICH, "Cross-validation", "Eligible", *_FIVE)
    caption = (
        f"Edge AUROC on the held-out cases: {sweep.name}. Seeds are averaged within a case; after "
        "± stands the standard deviation of the statistic over seeds."
    )
    return latex_table(columns, blocks, caption=caption, left=3)


def _published_cells(row: Published, plus_minus: str) -> list[str]:
    which = (row.method, "", "") if row.configuration is None else words(row.configuration)
    five = with_spread(row.quantiles, row.spread, plus_minus)
    return [*which, _score(row.cross_validation), *five]


def _score(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


# Figures


def paper_figure(
    path: str | Path, sweep: SweepResult, searches: Sequence[Search] = (), *, title: str
) -> None:
    """The paper's figure; by suffix SVG, PNG or PDF."""
    learned = [
        Slot(
            label=", ".join([short_words(name), *_marks(sweep, name)]),
            boxes=_pair(_box(sweep, name), BY_CONFIGURATION[name]),
        )
        for name in CONFIGURATIONS
        if name in (HIGHLIGHT, CONTROL) or _marks(sweep, name)
    ]
    by_method = {one.method: one for one in beside(sweep, searches)}

    def slot(row: Published) -> Slot:
        ours = by_method.get(OUR_NAMES[row.method])
        box = None if ours is None else Box.of_cases(ours.case_means, ours.summary.spread)
        return Slot(label=row.method, boxes=_pair(box, row))

    groups = [
        SlotGroup(title="The paper's methods", slots=(*learned, slot(EXPLAINER))),
        SlotGroup(title="Baselines", slots=tuple(map(slot, BASELINES))),
    ]
    draw_boxes(path, groups, title=title)


def configurations_figure(path: str | Path, sweep: SweepResult, *, title: str) -> None:
    """All 14 configurations, ours beside published; by suffix SVG, PNG or PDF."""
    ends = {"observed": "observed", "none": "no message passing", "complete": "complete DAG"}
    groups = []
    for learner, learner_words in LEARNERS.items():
        for transformation in TRANSFORMATIONS:
            slots = [
                Slot(
                    label=ends[configuration_parts(name)[2]],
                    boxes=_pair(_box(sweep, name), BY_CONFIGURATION[name]),
                )
                for name in CONFIGURATIONS
                if name.startswith(f"{learner}-{transformation}-")
            ]
            heading = f"{learner_words}, {transformation} graph"
            groups.append(SlotGroup(title=heading, slots=tuple(slots)))
    drawn = [box for group in groups for slot in group.slots for box in slot.boxes]
    lowest = min(box.quantiles[0] - (box.spread or (0.0,))[0] for box in drawn)
    draw_boxes(path, groups, title=title, limits=(math.floor(10 * lowest) / 10, 1.03))


def beside(sweep: SweepResult, searches: Sequence[Search]) -> list[Search]:
    """The searches of the same subjects by the same labels."""
    wanted = (sweep.aspects["fleet"], sweep.aspects["labels"])
    return [one for one in searches if (one.fleet, one.labels) == wanted]


def best_of(sweep: SweepResult) -> str:
    """The configuration of the highest held-out median; of those that print alike, the highest
    mean over cases."""

    def score(name: str) -> tuple[float, float]:
        return round(sweep.medians[name], 3), fmean(sweep.case_means(name).values())

    return max(sweep.medians, key=score)


def choice_of(sweep: SweepResult) -> str | None:
    """The configuration of the highest score in cross-validation, if there is any."""
    scores = sweep.cross_validation
    return max(scores, key=lambda name: scores[name]) if scores else None


def _marks(sweep: SweepResult, name: str) -> list[str]:
    marks = {best_of(sweep): ["our best"]}
    if (choice := choice_of(sweep)) is not None:
        marks[choice] = [*marks.get(choice, []), "our choice in cross-validation"]
    return marks.get(name, [])


def _box(sweep: SweepResult, name: str) -> Box | None:
    if name not in sweep.by_configuration:
        return None
    means = list(sweep.case_means(name).values())
    return Box.of_cases(means, sweep.summaries[name].spread)


def _pair(ours: Box | None, theirs: Published) -> tuple[Box, ...]:
    published = Box.of_published(theirs)
    return (published,) if ours is None else (ours, published)
