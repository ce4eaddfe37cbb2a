"""What explains the distance between our results and the paper's: sweeps that differ in one thing.

1. `contrasts` finds the pairs of sweeps that differ in one aspect, and goes in each from what is
   ours to what is the paper's: its labels, subjects that the public losses trained, its pool, its
   aligner, features that are not standardized. `main_contrasts` keeps one pair for each aspect.
2. `contrast_table` has how far that moves the medians, with intervals over cases and seeds,
   `contrast_text` which changes are beyond noise, and whether towards the published figure.
3. `leak_table` and `leak_text` tell apart the test cases whose circuit the paper's pool holds.

The subjects of a sweep are those of its held-out cases and those that it was trained on. Those of
the paper are InterpBench's weights; our public fleet is trained in the same way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import fmean

from graphcircuits.cases import case_ids, load_case
from graphcircuits.cases.relations import pool_cases
from graphcircuits.evaluation.text_tables import markdown_table
from lab.intervals import ByCase, Interval, bootstrap, difference_of_medians, signed
from lab.paper.findings import PUBLISHED_MEDIANS
from lab.paper.published import short_words
from lab.paper.sweep_figures import HIGHLIGHT
from lab.paper.sweeps import SweepResult

OF_THE_PAPER = {
    "labels": "paper",
    "subjects": "public",
    "pool": "paper-pool",
    "aligner": "tabpfn",
    "standardize": "False",
}
"""What of each aspect is the paper's, or next to it."""
TRAINED_ON = "trained on"
UNSAID = "default"
OURS = {"labels": "interpbench", "subjects": "planted", "standardize": UNSAID}
FEATURES = ("aligner", "standardize")


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Two sweeps that differ in one aspect."""

    aspect: str
    before: SweepResult
    after: SweepResult

    @property
    def shared(self) -> list[str]:
        """Configurations that both have."""
        return [name for name in self.before.medians if name in self.after.medians]

    @property
    def mean_change(self) -> float:
        """Of the medians that both have."""
        return fmean(self.after.medians[name] - self.before.medians[name] for name in self.shared)

    @cached_property
    def change(self) -> Interval:
        """Of the median of the configuration that is shown."""
        after, before = (
            sweep.by_configuration[_shown(self)].by_seed() for sweep in (self.after, self.before)
        )
        return difference_of_medians(after, before)

    @property
    def values(self) -> tuple[str, str]:
        """The aspect before and after."""
        before, after = (
            _aspects(sweep).get(self.aspect, UNSAID) for sweep in (self.before, self.after)
        )
        return before, after


def _aspects(sweep: SweepResult) -> dict[str, str]:
    """The aspects of a sweep, fleets taken together as its subjects."""
    found = dict(sweep.aspects)
    fleet = found.pop("fleet")
    trained = found.pop(TRAINED_ON, fleet)
    subjects = fleet if trained == fleet else f"{fleet}, {TRAINED_ON} {trained}"
    return found | {"subjects": subjects}


def contrasts(sweeps: Sequence[SweepResult]) -> list[Contrast]:
    """All pairs that differ in one aspect and share a configuration."""
    found = []
    for pair in combinations(sweeps, 2):
        one, other = map(_aspects, pair)
        names = dict.fromkeys([*one, *other])
        differing = [name for name in names if one.get(name) != other.get(name)]
        if len(differing) != 1:
            continue
        (aspect,) = differing
        before, after = pair
        if one.get(aspect) == OF_THE_PAPER.get(aspect, ""):
            before, after = after, before
        contrast = Contrast(aspect=aspect, before=before, after=after)
        if contrast.shared:
            found.append(contrast)
    return sorted(
        found,
        key=lambda one: (
            list(OF_THE_PAPER).index(one.aspect)
            if one.aspect in OF_THE_PAPER
            else len(OF_THE_PAPER)
        ),
    )


def main_contrasts(found: Sequence[Contrast]) -> list[Contrast]:
    """Of each aspect the pair that is most like the paper otherwise."""
    by_aspect: dict[str, Contrast] = {}
    for one in found:
        best = by_aspect.get(one.aspect)
        if best is None or _order(one) > _order(best):
            by_aspect[one.aspect] = one
    return list(by_aspect.values())


def _order(one: Contrast) -> tuple[bool, bool, int]:
    """Pairs with the highlighted configuration first, then those that go all the way from what is
    ours to what is the paper's, then by configurations that both have."""
    ends = (OURS.get(one.aspect), OF_THE_PAPER.get(one.aspect))
    return _shown(one) == HIGHLIGHT, one.values == ends, len(one.shared)


def contrast_table(found: Sequence[Contrast]) -> str:
    """A row per pair: how far the change moves the median, with its interval."""
    columns = (
        *("What changes", "From", "To", "All else"),
        *("Median before", "after", "Change", "Mean change", "Configurations"),
    )
    rows = []
    for one in found:
        name = _shown(one)
        rest = {k: v for k, v in _aspects(one.before).items() if k != one.aspect}
        rows.append(
            [
                words_of(one.aspect),
                *one.values,
                ", ".join(f"{k} {v}" for k, v in rest.items()),
                f"{one.before.medians[name]:.3f}",
                f"{one.after.medians[name]:.3f}",
                str(one.change),
                signed(one.mean_change),
                str(len(one.shared)),
            ]
        )
    return markdown_table(columns, rows, left=4)


def words_of(aspect: str) -> str:
    return f"features ({aspect})" if aspect in FEATURES else aspect


def _shown(one: Contrast) -> str:
    """The configuration that the paper highlights, or the first that both have."""
    return HIGHLIGHT if HIGHLIGHT in one.shared else one.shared[0]


def contrast_text(sweeps: Sequence[SweepResult], found: Sequence[Contrast]) -> str:
    """What moves the median beyond noise, and what is left of the distance."""
    if not found:
        return "No two of the sweeps differ in one thing alone, so nothing can be told apart."
    sentences = [
        f"Medians are those of {short_words(HIGHLIGHT)}, or of the first configuration that both "
        "sweeps have, changes with their interval over cases and seeds; the mean change is over "
        "all configurations that both have."
    ]
    moved = [one for one in found if one.change.low > 0 or one.change.high < 0]
    within = _listed(one for one in found if one not in moved)
    if within:
        sentences.append(f"Within noise: {within}.")
    for one in moved:
        name = _shown(one)
        before, after = (x.medians[name] - PUBLISHED_MEDIANS[name] for x in (one.before, one.after))
        side = "towards" if abs(after) < abs(before) else "away from"
        sentences.append(
            f"Beyond noise, {words_of(one.aspect)} (`{'` to `'.join(one.values)}`), {one.change}, "
            f"{side} the published figure."
        )
    alike = max(sweeps, key=likeness)
    if HIGHLIGHT in alike.medians:
        left = alike.medians[HIGHLIGHT] - PUBLISHED_MEDIANS[HIGHLIGHT]
        sentences.append(
            f"The sweep that is most like the paper's ({alike.name}) has "
            f"{alike.medians[HIGHLIGHT]:.3f}, {signed(left)} from the published "
            f"{PUBLISHED_MEDIANS[HIGHLIGHT]:.3f}."
        )
    return " ".join(sentences)


def _listed(found: Iterable[Contrast]) -> str:
    return ", ".join(f"{words_of(one.aspect)} {one.change}" for one in found)


def likeness(sweep: SweepResult) -> int:
    """In how many aspects a sweep is as the paper's."""
    found = _aspects(sweep)
    return sum(found.get(aspect) == value for aspect, value in OF_THE_PAPER.items())


# The leak


def shared_circuits(pool: str, labels: str) -> list[str]:
    """The test cases whose circuit is the same mask as that of a case of the pool."""
    masks = {_mask(case.id, labels) for case in pool_cases(pool)}
    return [id for id in case_ids(split="test") if _mask(id, labels) in masks]


def _mask(id: str, labels: str) -> tuple[object, ...]:
    circuit = load_case(id).labels(labels)
    return circuit.graph, tuple(circuit.edges)


def leak_table(sweeps: Sequence[SweepResult]) -> str:
    """What predictors reach on the cases whose circuits InterpBench's part of the paper's pool
    holds, and on the others, by what they learned from; and how far the two are apart."""
    leaked = set(shared_circuits("interpbench-pool", "interpbench"))
    rows = []
    for sweep in sweeps:
        if HIGHLIGHT not in sweep.medians or sweep.aspects["labels"] != "interpbench":
            continue
        cases = sweep.by_configuration[HIGHLIGHT].by_seed()
        inside = {case: values for case, values in cases.items() if case in leaked}
        outside = {case: values for case, values in cases.items() if case not in leaked}
        if not inside or not outside:
            continue
        rows.append([sweep.name, *(_mean(part) for part in (inside, outside))])
    columns = (
        *("Sweep", f"Mean AUROC on the {len(leaked)} cases that share a circuit"),
        "on the others",
    )
    return markdown_table(columns, rows)


def leak_text(found: Sequence[Contrast]) -> str:
    """How far a pool without those circuits moves the cases that share them, and the others."""
    leaked = set(shared_circuits("interpbench-pool", "interpbench"))
    sentences = [
        f"{len(leaked)} of the 16 test cases have the very mask of `ib-25` or `ib-106` as their "
        "circuit, both of the paper's pool: the paper compares published edge lists, in which "
        "they differ."
    ]
    for one in found:
        if one.aspect not in ("pool", "cases") or _shown(one) != HIGHLIGHT:
            continue
        changes = []
        for inside in (True, False):
            tables = [
                {case: x for case, x in part.items() if (case in leaked) is inside}
                for part in (
                    sweep.by_configuration[HIGHLIGHT].by_seed() for sweep in (one.before, one.after)
                )
            ]
            changes.append(bootstrap(tables, lambda means: (means[1] - means[0]).mean(-1)))
        sentences.append(
            f"From {one.aspect} `{one.values[0]}` to `{one.values[1]}` "
            f"({_aspects(one.before)['subjects']} subjects) the mean changes by {changes[0]} on "
            f"these and by {changes[1]} on the others."
        )
    return " ".join(sentences)


def _mean(cases: ByCase) -> str:
    return f"{fmean(fmean(values.values()) for values in cases.values()):.3f}"
