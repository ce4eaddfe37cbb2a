"""The paper's findings, checked one by one on a sweep; every sentence follows from the figures.

1. `message_passing`: observed connectivity is above none for DirGraphConv on the line graph;
   `learners`: for each learner there.
2. `above_explainer`: DirGraphConv on the observed line graph is above PGExplainer.
3. `best_minimum`, `best_quartile`: its minimum and PGExplainer's, and its first quartile, are above
   those of every baseline.
4. `best_of_all`: it is the best of the configurations; `below_search`: and below EAP-IG and ACDC.
5. `selection`: cross-validation does not choose the best.

A finding holds or does not hold where the interval of its difference over cases and seeds
(`intervals`) leaves out zero, and is undecided otherwise. One that needs what was not run is not
there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import numpy as np
from jaxtyping import Float

from graphcircuits.evaluation.text_tables import markdown_table
from lab.intervals import (
    ByCase,
    Interval,
    Means,
    above_the_rest,
    bootstrap,
    difference_of_medians,
    signed,
)
from lab.paper.published import (
    BASELINES,
    BY_CONFIGURATION,
    EXPLAINER,
    OUR_NAMES,
    short_words,
)
from lab.paper.sweep_figures import CONTROL, HIGHLIGHT, beside, best_of, choice_of
from lab.paper.sweep_rows import LEARNERS, TRANSFORMATIONS
from lab.paper.sweeps import Search, SweepResult

PUBLISHED_MEDIANS = {name: row.median for name, row in BY_CONFIGURATION.items()}
BASELINE_NAMES = tuple(OUR_NAMES[row.method] for row in BASELINES)
PGEXPLAINER = OUR_NAMES[EXPLAINER.method]
VERDICTS = {True: "holds", False: "does not hold", None: "undecided"}


@dataclass(frozen=True, kw_only=True)
class ClaimCheck:
    """A claim of the paper, whether it holds here, and the figures for it."""

    claim: str
    published: str
    """The difference that the paper prints."""
    intervals: tuple[Interval, ...]
    """All of them must be above zero for it to hold."""
    text: str

    @property
    def holds(self) -> bool | None:
        """None where the intervals do not decide it."""
        each = [one.is_above for one in self.intervals]
        return False if False in each else None if None in each else True

    @property
    def verdict(self) -> str:
        return VERDICTS[self.holds]

    @property
    def short(self) -> str:
        """The verdict with its difference; of several with the one that reaches lowest."""
        return f"{self.verdict}: {min(self.intervals, key=lambda one: one.low)}"


def findings(sweep: SweepResult, searches: Sequence[Search] = ()) -> dict[str, ClaimCheck]:
    """Those that can be checked on a sweep, by name, in the order above."""
    ours = {one.method: one.cases for one in beside(sweep, searches)}
    checks: dict[str, Callable[[], ClaimCheck | None]] = {
        "message passing": lambda: message_passing(sweep),
        "learners": lambda: learners(sweep),
        "above PGExplainer": lambda: above_explainer(sweep, ours),
        "best minimum": lambda: best_minimum(sweep, ours),
        "best quartile": lambda: best_quartile(sweep, ours),
        "best of all": lambda: best_of_all(sweep),
        "below EAP-IG": lambda: below_search(sweep, ours, "EAP-IG"),
        "below ACDC": lambda: below_search(sweep, ours, "ACDC"),
        "selection": lambda: selection(sweep),
    }
    made = {name: check() for name, check in checks.items()}
    return {name: one for name, one in made.items() if one is not None}


# Message passing


def message_passing(sweep: SweepResult) -> ClaimCheck | None:
    """Whether observed connectivity is above none where the paper highlights it."""
    if not _has(sweep, HIGHLIGHT, CONTROL):
        return None
    above, below, count, _ = _by_cases(sweep, HIGHLIGHT, CONTROL)
    return ClaimCheck(
        claim="DirGraphConv on the line graph: observed connectivity is above none",
        published=signed(PUBLISHED_MEDIANS[HIGHLIGHT] - PUBLISHED_MEDIANS[CONTROL]),
        intervals=(difference_of_medians(_cases(sweep, HIGHLIGHT), _cases(sweep, CONTROL)),),
        text=f"Median {_three(sweep.medians[HIGHLIGHT])} against {_three(sweep.medians[CONTROL])}; "
        f"above on {above} of {count} cases, below on {below}.",
    )


def learners(sweep: SweepResult) -> ClaimCheck | None:
    """Whether observed connectivity is above none for every learner on the line graph."""
    pairs = {name: (f"{name}-line-observed", f"{name}-line-none") for name in LEARNERS}
    if not _has(sweep, *(end for pair in pairs.values() for end in pair)):
        return None
    found = {
        LEARNERS[name]: difference_of_medians(_cases(sweep, one), _cases(sweep, other))
        for name, (one, other) in pairs.items()
    }
    theirs = [PUBLISHED_MEDIANS[one] - PUBLISHED_MEDIANS[other] for one, other in pairs.values()]
    return ClaimCheck(
        claim="Each learner on the line graph: observed connectivity is above none",
        published=f"{signed(min(theirs))} to {signed(max(theirs))}",
        intervals=tuple(found.values()),
        text="; ".join(f"{name} {interval}" for name, interval in found.items()) + ".",
    )


def learner_table(sweep: SweepResult) -> str:
    """Observed connectivity and none by learner and transformation: medians, their difference with
    its interval, cases on which it is above and below, the mean over cases, what is published."""
    columns = (
        *("Method", "Graph", "Observed", "None", "Difference"),
        *("Cases above", "below", "Mean", "Published"),
    )
    rows = []
    for learner, transformation in product(LEARNERS, TRANSFORMATIONS):
        observed, none = (f"{learner}-{transformation}-{end}" for end in ("observed", "none"))
        if not _has(sweep, observed, none):
            continue
        above, below, count, average = _by_cases(sweep, observed, none)
        rows.append(
            [
                LEARNERS[learner],
                TRANSFORMATIONS[transformation],
                _three(sweep.medians[observed]),
                _three(sweep.medians[none]),
                str(difference_of_medians(_cases(sweep, observed), _cases(sweep, none))),
                f"{above} of {count}",
                str(below),
                signed(average),
                signed(PUBLISHED_MEDIANS[observed] - PUBLISHED_MEDIANS[none]),
            ]
        )
    return markdown_table(columns, rows, left=2) if rows else ""


# Beside methods that search


def above_explainer(sweep: SweepResult, ours: Mapping[str, ByCase]) -> ClaimCheck | None:
    """Whether the highlighted configuration is above PGExplainer on the same subjects."""
    if not _has(sweep, HIGHLIGHT) or PGEXPLAINER not in ours:
        return None
    explainer = ours[PGEXPLAINER]
    return ClaimCheck(
        claim="DirGraphConv on the observed line graph is above PGExplainer",
        published=signed(PUBLISHED_MEDIANS[HIGHLIGHT] - EXPLAINER.median),
        intervals=(difference_of_medians(_cases(sweep, HIGHLIGHT), explainer),),
        text=f"Median {sweep.medians[HIGHLIGHT]:.4f} against {_quantile(explainer, 0.5):.4f}.",
    )


def best_minimum(sweep: SweepResult, ours: Mapping[str, ByCase]) -> ClaimCheck | None:
    """Whether the minima of the highlighted configuration and of PGExplainer are the highest."""
    baselines = _baselines(ours)
    if not _has(sweep, HIGHLIGHT) or PGEXPLAINER not in ours or not baselines:
        return None
    both = {"DirGraphConv": _cases(sweep, HIGHLIGHT), EXPLAINER.method: ours[PGEXPLAINER]}
    theirs = [BY_CONFIGURATION[HIGHLIGHT], EXPLAINER]
    highest = max(row.quantiles[0] for row in BASELINES)
    return ClaimCheck(
        claim="The minima of DirGraphConv and of PGExplainer are above those of all baselines",
        published=" and ".join(signed(row.quantiles[0] - highest) for row in theirs),
        intervals=tuple(
            above_the_rest(cases, list(baselines.values()), 0.0) for cases in both.values()
        ),
        text=_quantiles_text(both | baselines, 0.0, "Minima"),
    )


def best_quartile(sweep: SweepResult, ours: Mapping[str, ByCase]) -> ClaimCheck | None:
    """Whether the first quartile of the highlighted configuration is the highest."""
    baselines = _baselines(ours)
    if not _has(sweep, HIGHLIGHT) or not baselines:
        return None
    cases = _cases(sweep, HIGHLIGHT)
    theirs = BY_CONFIGURATION[HIGHLIGHT].quantiles[1] - max(row.quantiles[1] for row in BASELINES)
    return ClaimCheck(
        claim="The first quartile of DirGraphConv is above those of all baselines",
        published=signed(theirs),
        intervals=(above_the_rest(cases, list(baselines.values()), 0.25),),
        text=_quantiles_text({"DirGraphConv": cases} | baselines, 0.25, "First quartiles"),
    )


def below_search(sweep: SweepResult, ours: Mapping[str, ByCase], method: str) -> ClaimCheck | None:
    """Whether the highlighted configuration is below a search on the same subjects."""
    search = ours.get(OUR_NAMES[method])
    if not _has(sweep, HIGHLIGHT) or search is None:
        return None
    printed = next(row.median for row in BASELINES if row.method == method)
    return ClaimCheck(
        claim=f"DirGraphConv on the observed line graph is below {method}",
        published=signed(printed - PUBLISHED_MEDIANS[HIGHLIGHT]),
        intervals=(difference_of_medians(search, _cases(sweep, HIGHLIGHT)),),
        text=f"Median {_three(sweep.medians[HIGHLIGHT])} against {_three(_quantile(search, 0.5))}.",
    )


def _baselines(ours: Mapping[str, ByCase]) -> dict[str, ByCase]:
    """The paper's baselines, where all of them were run."""
    whole = all(name in ours for name in BASELINE_NAMES)
    return {name: ours[name] for name in BASELINE_NAMES} if whole else {}


def _quantiles_text(tables: Mapping[str, ByCase], quantile: float, what: str) -> str:
    parts = [f"{name} {_three(_quantile(table, quantile))}" for name, table in tables.items()]
    return f"{what}: {', '.join(parts)}."


# The best, and what is chosen


def best_of_all(sweep: SweepResult) -> ClaimCheck | None:
    """Whether the highlighted configuration is the best of all 14."""
    if len(sweep.medians) < len(BY_CONFIGURATION):
        return None
    best = best_of(sweep)
    others = [_cases(sweep, name) for name in sweep.medians if name != HIGHLIGHT]
    theirs = max(value for name, value in PUBLISHED_MEDIANS.items() if name != HIGHLIGHT)
    return ClaimCheck(
        claim="DirGraphConv on the observed line graph is the best of the 14",
        published=signed(PUBLISHED_MEDIANS[HIGHLIGHT] - theirs),
        intervals=(above_the_rest(_cases(sweep, HIGHLIGHT), others),),
        text=f"Our best is {short_words(best)}, median {_three(sweep.medians[best])}; "
        f"DirGraphConv there has {_three(sweep.medians[HIGHLIGHT])}.",
    )


def selection(sweep: SweepResult) -> ClaimCheck | None:
    """Whether cross-validation's choice is below the best on held-out cases, as in the paper."""
    chosen = choice_of(sweep)
    if chosen is None or len(sweep.medians) < len(BY_CONFIGURATION):
        return None
    names = list(sweep.medians)
    place = names.index(chosen)

    def regret(means: Sequence[Means]) -> Float[np.ndarray, " draw"]:
        medians = np.stack([np.median(x, axis=-1) for x in means])
        return medians.max(0) - medians[place]

    count = len(names)
    theirs = max(BY_CONFIGURATION.values(), key=lambda row: row.cross_validation or 0.0)
    return ClaimCheck(
        claim="Cross-validation does not choose what is best on held-out cases",
        published=signed(max(PUBLISHED_MEDIANS.values()) - theirs.median),
        intervals=(bootstrap([_cases(sweep, name) for name in names], regret),),
        text=f"Ours chooses {short_words(chosen)} (score "
        f"{_three(sweep.cross_validation[chosen])}), median {_three(sweep.medians[chosen])}, rank "
        f"{rank(sweep.medians, chosen)} of {count}.",
    )


def rank(values: Mapping[str, float], name: str) -> int:
    """One more than how many are larger, as printed: three digits."""
    return 1 + sum(round(value, 3) > round(values[name], 3) for value in values.values())


# Rows


def _has(sweep: SweepResult, *names: str) -> bool:
    return all(name in sweep.by_configuration for name in names)


def _cases(sweep: SweepResult, name: str) -> ByCase:
    return sweep.by_configuration[name].by_seed()


def _quantile(table: ByCase, quantile: float) -> float:
    means = [fmean(by_seed.values()) for by_seed in table.values()]
    return float(np.quantile(means, quantile))


def _by_cases(sweep: SweepResult, one: str, other: str) -> tuple[int, int, int, float]:
    """Of the cases that both have: on how many the first is above, and below; how many they are,
    and the mean difference."""
    first, second = sweep.case_means(one), sweep.case_means(other)
    changes = [first[case] - second[case] for case in first if case in second]
    above, below = (sum(round(sign * x, 3) > 0 for x in changes) for sign in (1, -1))
    return above, below, len(changes), fmean(changes) if changes else 0.0


def _three(value: float) -> str:
    return f"{value:.3f}"
