"""What a predictor knows of itself, learned from cases after its training.

`predictor/facts/` has the mathematics; here is what it is fitted to, for `gc.train` as for the
predictors that ship, and from how many cases on.

1. `fit_known_cases`: what the training cases look like, so that a strange one is recognized.
2. `fit_calibrations`: what logits mean, by kind of subject, from cases that were held out.
3. `mean_figures`: what `gcl` and `eap-ig` reach on what was held out, by kind, which decides about
   the default method (`methods/learned.py`). Means of any number of cases, which comes with them.

A limit or a probability that was learned from a few cases says nothing: below FEWEST they are left
out, and the predictor says that it does not know.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.predictor.ensemble import Ensemble
from graphcircuits.predictor.facts.calibration import Calibration, fit_calibration
from graphcircuits.predictor.facts.familiarity import (
    KnownCases,
    case_features,
    disagreement,
    fit_familiarity,
)
from graphcircuits.predictor.model import Reading
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example
from graphcircuits.training.validation import search_figures

FEWEST = 10
"""Cases, or groups of related ones, from which something can be learned."""
MOST_READINGS = 400
"""Of the training, to say what its cases look like."""
MOST_MEASURED = 50
"""Held-out cases of a kind, to compare methods on."""
SEARCH = "eap-ig"

Figures = dict[str, dict[str, dict[str, float]]]
"""Means by kind of subject, figure and method; and the number of subjects."""


@dataclass(frozen=True, eq=False)
class CaseLook:
    """What a case looks like to a predictor."""

    features: Float[Tensor, " column"]
    disagreement: float | None
    """Of the members; None for a single one."""
    group: Hashable
    """The same for related cases, which are not measured against each other."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A case that a predictor did not learn from, as it scored it."""

    case: str
    kind: str
    """Of its subject."""
    logits: Float[Tensor, " edge"]
    labels: Bool[Tensor, " edge"] | None
    """In the circuit, or needed; None where that is not known."""
    figures: Mapping[str, Mapping[str, float]]
    """By figure and method; nothing where it was not measured."""


# Fitting


def fit_known_cases(looks: Sequence[CaseLook]) -> KnownCases | None:
    """What cases look like; None of fewer groups than FEWEST."""
    groups = [look.group for look in looks]
    if len(set(groups)) < FEWEST:
        return None
    apart = [look.disagreement for look in looks if look.disagreement is not None]
    features = torch.stack([look.features for look in looks])
    return fit_familiarity(features, apart if len(apart) == len(looks) else None, groups)


def fit_calibrations(cases: Sequence[HeldOut]) -> dict[str, Calibration]:
    """From logit to probability, for each kind with labels of at least FEWEST cases."""
    fitted = {}
    for kind in sorted({each.kind for each in cases}):
        some = [x for x in cases if x.kind == kind and x.labels is not None]
        numbers = {name: n for n, name in enumerate(dict.fromkeys(x.case for x in some))}
        if len(numbers) < FEWEST:
            continue
        number = torch.cat([torch.full((len(x.logits),), numbers[x.case]) for x in some])
        labels = torch.cat([x.labels for x in some if x.labels is not None])
        fitted[kind] = fit_calibration(torch.cat([x.logits for x in some]), labels, number)
    return fitted


def mean_figures(cases: Sequence[HeldOut]) -> Figures:
    """Means over the cases of a kind that were measured, and their number."""
    results: Figures = {}
    for kind in dict.fromkeys(case.kind for case in cases):
        some = [x.figures for x in cases if x.kind == kind and x.figures]
        if not some:
            continue
        results[kind] = {}
        for name in dict.fromkeys(name for figures in some for name in figures):
            there = [figures[name] for figures in some if name in figures]
            results[kind][name] = {x: mean(own[x] for own in there) for x in there[0]}
        results[kind]["subjects"] = {"count": float(len(some))}
    return results


# At the end of one training


def with_facts(
    ensemble: Ensemble,
    examples: Sequence[Example],
    held_out: Sequence[Example] = (),
    figures: Mapping[str, Mapping[str, float]] | None = None,
    *,
    config: TrainConfig,
    device: torch.device | str = "cpu",
) -> Ensemble:
    """The ensemble with all that its training and what was held out say of it.

    It learned from `examples`, and not from those that were held out, each of which has a source.
    On these it reaches `figures`, by case (`validation.validate`); the device is where searches
    that it is compared with run.
    """
    if ensemble.config.aligner == "invariant":
        drawn = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))
        some = [examples[number] for number in sorted(drawn[:MOST_READINGS].tolist())]
        groups = [x.case if x.source is None else x.source.groups for x in some]
        looks = case_looks(ensemble, [x.reading for x in some], groups)
        ensemble = replace(ensemble, known=fit_known_cases(looks))
    if not held_out:
        return ensemble
    cases = _scored(ensemble, held_out, figures or {}, config, device)
    return replace(
        ensemble,
        calibration=fit_calibrations(cases),
        origin={**ensemble.origin, "measured": mean_figures(cases)},
    )


def case_looks(
    ensemble: Ensemble, readings: Sequence[Reading], groups: Sequence[Hashable]
) -> list[CaseLook]:
    """What cases look like, by readings of them."""
    generator = torch.Generator().manual_seed(0)
    looks = []
    for reading, group in zip(readings, groups, strict=True):
        logits = ensemble.member_logits(reading, generator=generator)
        apart = disagreement(logits) if len(logits) > 1 else None
        looks.append(CaseLook(case_features(reading), apart, group))
    return looks


def _scored(
    ensemble: Ensemble,
    examples: Sequence[Example],
    figures: Mapping[str, Mapping[str, float]],
    config: TrainConfig,
    device: torch.device | str,
) -> list[HeldOut]:
    """Held-out examples as the predictor scores them, some with figures of the search beside."""
    by_kind: dict[str, list[Example]] = {}
    for example in examples:
        if example.source is None:
            raise ValueError(f"{example.case} has no source, so that its kind is not known.")
        by_kind.setdefault(example.source.kind, []).append(example)
    generator = torch.Generator().manual_seed(0)
    cases = []
    for kind, some in by_kind.items():
        # Evenly over all of them, which come folder by folder.
        chosen = some[:: -(-len(some) // MOST_MEASURED)]
        search = search_figures(chosen, SEARCH, pairs=config.pairs, device=device)
        for example in some:
            # Of several readings of a case the first stands for its figures, which are means.
            own = search.pop(example.case, {})
            both = {
                name: {"gcl": figures[example.case][level], SEARCH: own[level]}
                for level, name in (("qkv", "auroc"), ("cmd", "cmd"))
                if level in own
            }
            logits = ensemble.predict(example.reading, generator=generator).logits.cpu()
            labels = None if example.circuit is None else example.circuit.mask
            cases.append(HeldOut(example.case, kind, logits, labels, both))
    return cases
