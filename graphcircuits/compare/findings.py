"""The paper's findings, checked one by one on a sweep; every sentence follows from the figures.

1. `message_passing`: observed connectivity is above none for DirGraphConv on the line graph, and
   `learners` whether it is for each learner and transformation.
2. `selection`: what cross-validation chooses, and its rank on held-out cases.
3. `incidence_control`: without message-passing edges the incidence graph loses usable information,
   since three of six feature roles are stored on components.
4. `best_median`: our best beside the paper's, and beside EAP-IG.
5. `eligibility`: how many settings could be chosen from.

A finding that needs configurations which were not run says so and holds neither way.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from graphcircuits.compare.published import (
    BASELINES,
    BY_CONFIGURATION,
    ELIGIBLE,
    SETTINGS,
    short_words,
)
from graphcircuits.compare.sweep_figures import CONTROL, HIGHLIGHT, beside, best_of, choice_of
from graphcircuits.compare.sweep_rows import LEARNERS, TRANSFORMATIONS
from graphcircuits.compare.sweeps import Search, SweepResult
from graphcircuits.compare.text_tables import markdown_table, signed

PUBLISHED_MEDIANS = {name: row.median for name, row in BY_CONFIGURATION.items()}
PUBLISHED_SCORES = {
    name: row.cross_validation
    for name, row in BY_CONFIGURATION.items()
    if row.cross_validation is not None
}
EAP_IG = next(row.median for row in BASELINES if row.method == "EAP-IG")


@dataclass(frozen=True, kw_only=True)
class ClaimCheck:
    """A claim, whether it holds here, and the figures for it."""

    claim: str
    holds: bool | None
    """None where it cannot be said."""
    text: str

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "does not hold", None: "cannot be said"}[self.holds]


def findings(sweep: SweepResult, searches: Sequence[Search] = ()) -> list[ClaimCheck]:
    """All of them, in the order above."""
    return [
        message_passing(sweep),
        learners(sweep),
        selection(sweep),
        incidence_control(sweep),
        best_median(sweep, searches),
        eligibility(sweep),
    ]


# Message passing


def message_passing(sweep: SweepResult) -> ClaimCheck:
    """Whether observed connectivity is above none where the paper highlights it."""
    claim = "Observed connectivity is above none for DirGraphConv on the line graph"
    if missing := _missing(sweep, [HIGHLIGHT, CONTROL]):
        return ClaimCheck(claim=claim, holds=None, text=missing)
    change = sweep.medians[HIGHLIGHT] - sweep.medians[CONTROL]
    theirs = PUBLISHED_MEDIANS[HIGHLIGHT] - PUBLISHED_MEDIANS[CONTROL]
    above, below, count, _ = _by_cases(sweep, HIGHLIGHT, CONTROL)
    text = (
        f"Median {_three(sweep.medians[HIGHLIGHT])} against {_three(sweep.medians[CONTROL])} "
        f"({signed(change)}; above on {above} of {count} cases, below on {below}"
        f"{_beside_seeds(sweep, change)}); the "
        f"paper has {_three(PUBLISHED_MEDIANS[HIGHLIGHT])} against "
        f"{_three(PUBLISHED_MEDIANS[CONTROL])} ({signed(theirs)})."
    )
    return ClaimCheck(claim=claim, holds=_is_above(change), text=text)


def _beside_seeds(sweep: SweepResult, change: float) -> str:
    """Whether a difference of the two medians is larger than seeds make it vary."""
    spreads = [sweep.summaries[name].spread for name in (HIGHLIGHT, CONTROL)]
    deviations = [spread[2] for spread in spreads if spread is not None]
    if len(deviations) < 2:
        return ""
    width = math.hypot(*deviations)
    side = "within" if abs(change) <= width else "beyond"
    return f"; {side} one standard deviation over seeds, {_three(width)}"


def learners(sweep: SweepResult) -> ClaimCheck:
    """Whether observed connectivity is above none for every learner on the line graph."""
    claim = "Observed connectivity is above none for each learner on the line graph"
    names = [f"{learner}-line-{end}" for learner in LEARNERS for end in ("observed", "none")]
    if missing := _missing(sweep, names):
        return ClaimCheck(claim=claim, holds=None, text=missing)
    ours, theirs = (_above_none(medians, "line") for medians in (sweep.medians, PUBLISHED_MEDIANS))
    text = f"{_which(ours)}; in the paper {_which(theirs, start=False)}."
    return ClaimCheck(claim=claim, holds=all(ours.values()), text=text)


def _above_none(medians: Mapping[str, float], transformation: str) -> dict[str, bool]:
    """By learner."""
    return {
        learner: _is_above(
            medians[f"{learner}-{transformation}-observed"]
            - medians[f"{learner}-{transformation}-none"]
        )
        for learner in LEARNERS
    }


def _which(above: Mapping[str, bool], *, start: bool = True) -> str:
    """For whom it is so, and for whom not."""
    yes = _listed([LEARNERS[name] for name, is_so in above.items() if is_so])
    no = _listed([LEARNERS[name] for name, is_so in above.items() if not is_so])
    if not no:
        text = "it is so for all three"
    elif not yes:
        text = "it is so for none"
    else:
        text = f"it is so for {yes}, not for {no}"
    return text[0].upper() + text[1:] if start else text


def learner_table(sweep: SweepResult) -> str:
    """Observed connectivity and none by learner and transformation: medians and their difference,
    cases on which it is above and below, and its mean over cases; the published difference."""
    columns = (
        "Method",
        "Graph",
        "Observed",
        "None",
        "Difference",
        "Cases above",
        "below",
        "Mean",
        "Published",
    )
    rows = []
    for learner, transformation in product(LEARNERS, TRANSFORMATIONS):
        observed, none = (f"{learner}-{transformation}-{end}" for end in ("observed", "none"))
        if _missing(sweep, [observed, none]):
            continue
        above, below, count, average = _by_cases(sweep, observed, none)
        change = sweep.medians[observed] - sweep.medians[none]
        theirs = PUBLISHED_MEDIANS[observed] - PUBLISHED_MEDIANS[none]
        rows.append(
            [
                LEARNERS[learner],
                TRANSFORMATIONS[transformation],
                _three(sweep.medians[observed]),
                _three(sweep.medians[none]),
                signed(change),
                f"{above} of {count}",
                str(below),
                signed(average),
                signed(theirs),
            ]
        )
    return markdown_table(columns, rows, left=2) if rows else ""


# Selection


def selection(sweep: SweepResult) -> ClaimCheck:
    """Whether cross-validation's choice is below the best on held-out cases, as in the paper."""
    claim = "Cross-validation does not choose the configuration that is best on held-out cases"
    chosen = choice_of(sweep)
    if chosen is None or len(sweep.medians) < 2:
        text = "It takes two configurations with scores in cross-validation."
        return ClaimCheck(claim=claim, holds=None, text=text)
    best, count = best_of(sweep), len(sweep.medians)
    place = rank(sweep.medians, chosen)
    known = "of those that were run " if count < len(BY_CONFIGURATION) else ""
    if place == 1:
        others = [name for name in sweep.medians if rank(sweep.medians, name) == 1]
        shared = f" together with {len(others) - 1} more" if len(others) > 1 else ""
        end = f"median {_three(sweep.medians[chosen])} on held-out cases, rank 1 of {count}{shared}"
    else:
        end = (
            f"median {_three(sweep.medians[chosen])} on held-out cases, rank {place} of {count}; "
            f"the best is {short_words(best)} ({_three(sweep.medians[best])}"
        )
        scores = sweep.cross_validation
        if best in scores:
            end += f", rank {rank(scores, best)} of {len(scores)} in cross-validation"
        end += ")"
    text = (
        f"Ours chooses {known}{short_words(chosen)} (score "
        f"{_three(sweep.cross_validation[chosen])}), {end}. {_paper_selection()}"
    )
    return ClaimCheck(claim=claim, holds=place > 1, text=text)


def _paper_selection() -> str:
    chosen = max(PUBLISHED_SCORES, key=lambda name: PUBLISHED_SCORES[name])
    best = max(PUBLISHED_MEDIANS, key=lambda name: PUBLISHED_MEDIANS[name])
    return (
        f"The paper's would have chosen {short_words(chosen)} "
        f"({_three(PUBLISHED_SCORES[chosen])}), median {_three(PUBLISHED_MEDIANS[chosen])}, rank "
        f"{rank(PUBLISHED_MEDIANS, chosen)} of {len(PUBLISHED_MEDIANS)}; its best is "
        f"{short_words(best)} ({_three(PUBLISHED_MEDIANS[best])}), rank "
        f"{rank(PUBLISHED_SCORES, best)} in cross-validation."
    )


def rank(values: Mapping[str, float], name: str) -> int:
    """One more than how many are larger, as printed: three digits."""
    return 1 + sum(round(value, 3) > round(values[name], 3) for value in values.values())


# The incidence control


def incidence_control(sweep: SweepResult) -> ClaimCheck:
    """Whether without edges the incidence graph scores below the line graph in cross-validation."""
    claim = (
        "Without message-passing edges, which leaves features of components out of reach, the "
        "incidence graph is below the line graph for each learner in cross-validation"
    )
    names = [f"{learner}-{graph}-none" for learner in LEARNERS for graph in TRANSFORMATIONS]
    if missing := _missing(sweep, names):
        return ClaimCheck(claim=claim, holds=None, text=missing)
    if set(names) - sweep.cross_validation.keys():
        return ClaimCheck(claim=claim, holds=None, text="Not all of them have a score.")
    parts = []
    for whose, scores, medians in (
        ("Ours", sweep.cross_validation, sweep.medians),
        ("The paper's", PUBLISHED_SCORES, PUBLISHED_MEDIANS),
    ):
        parts.append(
            f"{whose}: in cross-validation {_which(_loses(scores), start=False)} "
            f"({_changes(scores)}); on held-out cases {_which(_loses(medians), start=False)} "
            f"({_changes(medians)})."
        )
    holds = all(_loses(sweep.cross_validation).values())
    return ClaimCheck(claim=claim, holds=holds, text=" ".join(parts))


def _loses(values: Mapping[str, float]) -> dict[str, bool]:
    return {
        name: _is_above(values[f"{name}-line-none"] - values[f"{name}-incidence-none"])
        for name in LEARNERS
    }


def _changes(values: Mapping[str, float]) -> str:
    """From line to incidence, by learner in the order of the table."""
    return ", ".join(
        signed(values[f"{name}-incidence-none"] - values[f"{name}-line-none"]) for name in LEARNERS
    )


# The best


def best_median(sweep: SweepResult, searches: Sequence[Search] = ()) -> ClaimCheck:
    """Our best beside the paper's best and beside EAP-IG."""
    best = best_of(sweep)
    ours, theirs = sweep.medians[best], max(PUBLISHED_MEDIANS.values())
    claim = (
        "DirGraphConv on the observed line graph is the best of the 14, and below EAP-IG's "
        "published median"
    )
    text = (
        f"Our best is {short_words(best)}, median {_three(ours)}: {_beside(ours, theirs)} the "
        f"paper's best, {_three(theirs)}, and {_beside(ours, EAP_IG)} EAP-IG's published "
        f"{_three(EAP_IG)}."
    )
    fleet = sweep.aspects["fleet"]
    own = [one for one in beside(sweep, searches) if one.method == "eap-ig"]
    for search in own:
        median = search.summary.quantiles[2]
        text += (
            f" EAP-IG on our {fleet} subjects has {_three(median)}, so that our best is "
            f"{_beside(ours, median)} it."
        )
    return ClaimCheck(claim=claim, holds=best == HIGHLIGHT and ours < EAP_IG, text=text)


def _beside(ours: float, theirs: float) -> str:
    change = signed(ours - theirs)
    if change == "0.000":
        return "equal to"
    return f"{change[1:]} {'above' if ours > theirs else 'below'}"


# Settings


def eligibility(sweep: SweepResult) -> ClaimCheck:
    """How many settings finished every fold."""
    claim = "Fewer than all settings could be chosen from"
    counts = [row.eligible for row in sweep.rows]
    grids = sorted({row.settings for row in sweep.rows})
    sizes = str(grids[0]) if len(grids) == 1 else f"{grids[0]} to {grids[-1]}"
    few, many = min(counts), max(counts)
    span = f"{few}" if few == many else f"{few} to {many}"
    text = (
        f"{span} of {sizes} settings finished every fold, {sum(counts)} in all over "
        f"{len(counts)} configurations; in the paper {ELIGIBLE[0]} to {ELIGIBLE[1]} of {SETTINGS}. "
        "Settings that failed and settings that were not tried are not told apart."
    )
    holds = any(row.eligible < row.settings for row in sweep.rows)
    return ClaimCheck(claim=claim, holds=holds, text=text)


# Words


def _missing(sweep: SweepResult, names: Sequence[str]) -> str:
    absent = [name for name in names if name not in sweep.by_configuration]
    return f"Not run: {', '.join(absent)}." if absent else ""


def _by_cases(sweep: SweepResult, one: str, other: str) -> tuple[int, int, int, float]:
    """Of the cases that both have: on how many the first is above, and below; how many they are,
    and the mean difference."""
    first, second = sweep.case_means(one), sweep.case_means(other)
    changes = [first[case] - second[case] for case in first if case in second]
    above, below = (sum(_is_above(sign * change) for change in changes) for sign in (1, -1))
    return above, below, len(changes), fmean(changes) if changes else 0.0


def _is_above(change: float) -> bool:
    """Whether a difference is above zero as it is printed."""
    return signed(change).startswith("+")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else " and ".join([", ".join(names[:-1]), *names[-1:]])


def _three(value: float) -> str:
    return f"{value:.3f}"
