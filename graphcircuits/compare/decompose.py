"""What explains the distance between our results and the paper's: sweeps that differ in one thing.

1. `contrasts` finds the pairs of sweeps that differ in one aspect, and goes in each from what is
   ours to what is the paper's: its labels, subjects that the public losses trained, its pool, its
   aligner, features that are not standardized.
2. `contrast_table` has how far that moves the medians, `contrast_text` which aspect moves most, and
   whether towards the published figure or away.

The subjects of a sweep are those of its held-out cases and those that it was trained on. Those of
the paper are InterpBench's weights; our public fleet is trained in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from graphcircuits.compare.findings import PUBLISHED_MEDIANS
from graphcircuits.compare.published import short_words
from graphcircuits.compare.sweep_figures import HIGHLIGHT
from graphcircuits.compare.sweeps import SweepResult
from graphcircuits.compare.text_tables import markdown_table, signed

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


def contrast_table(found: Sequence[Contrast]) -> str:
    """A row per pair; distances are from the published median of the same configuration."""
    columns = (
        "What changes",
        "From",
        "To",
        "All else",
        "Median before",
        "after",
        "Published",
        "Mean change",
        "Configurations",
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
                f"{PUBLISHED_MEDIANS[name]:.3f}",
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
    """Which aspect moves most, and what is left of the distance."""
    if not found:
        return "No two of the sweeps differ in one thing alone, so nothing can be told apart."
    largest = max(found, key=lambda one: abs(_moved(one)))
    name = _shown(largest)
    before, after = largest.before.medians[name], largest.after.medians[name]
    sentences = [
        f"Medians before and after are those of {short_words(HIGHLIGHT)}, or of the first one "
        "that both sweeps have; the mean change is over all that both have."
    ]
    aspects = list(dict.fromkeys(words_of(one.aspect) for one in found))
    if signed(after - before) == "0.000":
        sentences.append(f"Of {_and(aspects)} none moves it.")
    else:
        nearer = abs(after - PUBLISHED_MEDIANS[name]) < abs(before - PUBLISHED_MEDIANS[name])
        side = "nearer to" if nearer else "further from"
        sentences.append(
            f"Of {_and(aspects)}, {words_of(largest.aspect)} move{_s(largest.aspect)} it most: "
            f"`{'` to `'.join(largest.values)}` takes it from {before:.3f} to {after:.3f} "
            f"({signed(after - before)}), {side} the published "
            f"{PUBLISHED_MEDIANS[name]:.3f}."
        )
    alike = max(sweeps, key=likeness)
    if HIGHLIGHT in alike.medians:
        left = alike.medians[HIGHLIGHT] - PUBLISHED_MEDIANS[HIGHLIGHT]
        sentences.append(
            f"The sweep that is most like the paper's ({alike.name}) has "
            f"{alike.medians[HIGHLIGHT]:.3f}, {signed(left)} from the published figure."
        )
    return " ".join(sentences)


def _moved(one: Contrast) -> float:
    name = _shown(one)
    return one.after.medians[name] - one.before.medians[name]


def likeness(sweep: SweepResult) -> int:
    """In how many aspects a sweep is as the paper's."""
    found = _aspects(sweep)
    return sum(found.get(aspect) == value for aspect, value in OF_THE_PAPER.items())


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _s(aspect: str) -> str:
    """Labels and subjects move; a pool moves."""
    return "" if words_of(aspect).endswith(("s", ")")) else "s"
