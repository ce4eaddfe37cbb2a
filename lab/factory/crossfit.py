"""What predictors that were trained without a fold each say of the one that was trained on all.

A predictor cannot be judged on what it learned from. Those that left a fold out can, on that fold,
and together they speak for their sibling that left out nothing:

1. Of every fold, some subjects of each kind are read. Its predictor scores them with its correction
   and without. CMD is taken on other prompts, AUROC where the circuit is known.
2. `trust`: from what a case looks like, how much of the correction should count there. What the
   file of a fold has of it, and of the following, comes from the other folds.
3. With that, all of it is scored again, and by `eap-ig`. `measured`: the means of both by kind of
   subject, by which `localize` chooses its method.
4. `calibration`: from score to probability, by kind. Where no circuit is known the label of an edge
   is whether it is among the best edges that are just enough for ENOUGH of the behaviour.
5. `familiarity`: what the subjects look like that a predictor was trained on: those that were read,
   and all that ship, which people try first.

What is fitted to it, and from how many cases on, is that of every training (`training/facts.py`).
All of it is written into the six files. Subjects are independent jobs of a runner, which hand over
arrays.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import torch
from jaxtyping import Bool, Float

from graphcircuits.cases import N_FOLDS
from graphcircuits.evaluation.auroc import auroc
from graphcircuits.evaluation.evaluate import faithfulness_curve
from graphcircuits.jobs.command import driver_command
from graphcircuits.jobs.runner import IN_PROCESS, Runner
from graphcircuits.methods.eap import eap_ig
from graphcircuits.methods.shipped import SHIPPED
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble, save_ensemble
from graphcircuits.predictor.facts.familiarity import case_features, disagreement
from graphcircuits.predictor.facts.trust import Trust
from graphcircuits.predictor.model import read_case
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.training.data import FRESH
from graphcircuits.training.facts import (
    FEWEST,
    SEARCH,
    CaseLook,
    Figures,
    HeldOut,
    fit_calibrations,
    fit_known_cases,
    mean_figures,
)
from graphcircuits.training.sources import Source
from lab.factory.trust import fit_trust
from lab.needed import best_edges

log = logging.getLogger(__name__)

PAIRS = 32
ENOUGH = 0.8
KNOWN_STAKE = 0.3
"""Of a task whose circuit is known: labels are what its correction was learned from."""
TINY = 1e-6
JOB = 3
"""Tasks that a process is given at a time."""


@dataclass(frozen=True, eq=False)
class Tried:
    """One held-out task of a subject, with the correction and without."""

    source: Source
    fold: int
    features: Float[np.ndarray, " column"]
    """What the task looks like."""
    disagreements: Mapping[str, float]
    """Of the members of each of the six predictors."""
    helped: bool
    stake: float
    """How much it mattered: the logarithm of the ratio of both CMD, at most 1."""


@dataclass(frozen=True, eq=False)
class Judged:
    """The same task as scored in the end."""

    source: Source
    fold: int
    logits: Float[np.ndarray, " edge"]
    labels: Bool[np.ndarray, " edge"]
    """In the circuit, or needed."""
    figures: Mapping[str, Mapping[str, float]]
    """By figure and method."""


def read_pairs(source: Source, subject: Transformer) -> tuple[Pairs, Pairs]:
    """Those to find circuits on, and those to judge them on."""
    pairs, fresh = (source.pairs(subject, PAIRS, seed) for seed in (0, FRESH))
    return pairs, fresh


def correct(source: Source, fold: int, ensembles: Mapping[str, Ensemble]) -> Tried:
    """Whether a correction helps: always where it was learned from labels, else by CMD."""
    subject = source.subject()
    pairs, fresh = read_pairs(source, subject)
    generator = torch.Generator().manual_seed(0)
    ensemble = ensembles[f"fold-{fold}"]
    reading = read_case(ensemble.config, subject, pairs, generator=generator)
    features = case_features(reading)
    apart = {
        name: disagreement(each.member_logits(reading, generator=generator))
        for name, each in ensembles.items()
    }
    case = Tried(source, fold, features.numpy(), apart, True, KNOWN_STAKE)
    if source.labelled:
        return case
    areas = []
    for odds in (-50.0, 50.0):
        certain = Trust(torch.zeros(len(features)), torch.tensor([odds]))
        scores = replace(ensemble, trust=certain).predict(reading, generator=generator).logits
        areas.append(faithfulness_curve(subject, fresh, scores, by="loss", crossings=()).cmd)
    gain = math.log(max(areas[0], TINY) / max(areas[1], TINY))
    return replace(case, helped=gain > 0, stake=min(abs(gain), 1.0))


def judge(source: Source, fold: int, ensemble: Ensemble) -> Judged:
    """Score a task by both methods, and see how good the scores are."""
    subject = source.subject()
    pairs, fresh = read_pairs(source, subject)
    generator = torch.Generator().manual_seed(0)
    reading = read_case(ensemble.config, subject, pairs, generator=generator)
    logits = ensemble.predict(reading, generator=generator).logits.double()
    scores = {"gcl": logits, SEARCH: eap_ig(subject, pairs).double()}
    curves = {
        name: faithfulness_curve(subject, fresh, x, by="loss", crossings=())
        for name, x in scores.items()
    }
    figures = {"cmd": {name: curve.cmd for name, curve in curves.items()}}
    circuit = source.circuit(subject, ensemble.labels)
    if circuit is None:
        own = curves["gcl"]
        enough = [n for n, x in zip(own.sizes, own.faithfulness, strict=True) if x >= ENOUGH]
        labels = best_edges(logits, enough[0] if enough else len(logits) - 1)
    else:
        labels = circuit.mask
        figures["auroc"] = {name: auroc(x, circuit) for name, x in scores.items()}
    return Judged(source, fold, logits.float().numpy(), labels.numpy(), figures)


def held_out(sources: Sequence[Source], fold: int) -> list[Source]:
    """What the predictor of a fold has not learned from; of language models, other models."""
    return [source for source in sources if source.folds[:1] == (fold,)]


def draw(sources: Sequence[Source], most: int, seed: int) -> Iterator[Source]:
    """At most so many of each kind."""
    by_kind: dict[str, list[Source]] = {}
    for source in sources:
        by_kind.setdefault(source.kind, []).append(source)
    for kind in sorted(by_kind):
        yield from Random(seed).sample(by_kind[kind], min(most, len(by_kind[kind])))


Job = tuple[int, tuple[Source, ...]]
"""A fold and some of its tasks."""


def complete(
    folder: Path, sources: Sequence[Source], most: int, runner: Runner = IN_PROCESS
) -> Figures:
    """Judge on all folds, and write the result into the six files."""
    drawn = {fold: list(draw(held_out(sources, fold), most, fold)) for fold in range(N_FOLDS)}
    taken = {source for some in drawn.values() for source in some}
    ships = [source for source in sources if not source.path]
    beside = {fold: [x for x in held_out(ships, fold) if x not in taken] for fold in drawn}
    results = list(runner.run(partial(_correct, folder), [*_jobs(drawn), *_jobs(beside)]))
    for result in results:
        if isinstance(result, str):
            log.warning("left out: %s", result)
    # In an order of their own: they come as they are finished.
    tried = sorted((x for x in results if isinstance(x, Tried)), key=lambda case: case.source.id)
    corrected = [case for case in tried if case.source in taken]
    log.info("%d tasks read, %d of them to be judged", len(tried), len(corrected))
    trusts = {name: _trust([x for x in corrected if f"fold-{x.fold}" != name]) for name in SHIPPED}
    lines = {
        name: {key: x.numpy() for key, x in trust.tensors().items()}
        for name, trust in trusts.items()
        if trust is not None
    }
    known = {
        fold: [case.source for case in corrected if case.fold == fold] for fold in range(N_FOLDS)
    }
    judged = sorted(
        runner.run(partial(_judge, folder, lines), _jobs(known)),
        key=lambda case: (case.source.kind, case.fold, case.figures["cmd"]["gcl"]),
    )
    figures = mean_figures([_held_out(case) for case in judged])
    for name in SHIPPED:
        path = folder / f"{name}.safetensors"
        ensemble = load_ensemble(path)
        others = [_held_out(case) for case in judged if f"fold-{case.fold}" != name]
        looks = [_look(case, name) for case in tried if f"fold-{case.fold}" != name]
        made = replace(
            ensemble,
            origin={**ensemble.origin, "measured": figures},
            calibration=fit_calibrations(others),
            known=fit_known_cases(looks),
            trust=trusts[name],
        )
        save_ensemble(path, made, command=driver_command())
    return figures


def _trust(cases: Sequence[Tried]) -> Trust | None:
    """How much of a correction should count on a case; None of fewer cases than FEWEST."""
    if len(cases) < FEWEST:
        return None
    features = torch.stack([torch.from_numpy(case.features) for case in cases])
    helped = torch.tensor([case.helped for case in cases])
    return fit_trust(features, helped, torch.tensor([case.stake for case in cases]))


def _look(case: Tried, name: str) -> CaseLook:
    features = torch.from_numpy(case.features)
    return CaseLook(features, case.disagreements[name], min(case.source.groups))


def _held_out(case: Judged) -> HeldOut:
    logits, labels = torch.from_numpy(case.logits), torch.from_numpy(case.labels)
    return HeldOut(case.source.id, case.source.kind, logits, labels, case.figures)


def _jobs(by_fold: Mapping[int, Sequence[Source]]) -> list[Job]:
    """A few tasks of one fold at a time; those of language models, which take longest, first."""
    jobs = [
        (fold, tuple(some[start : start + JOB]))
        for fold, some in by_fold.items()
        for start in range(0, len(some), JOB)
    ]
    return sorted(jobs, key=lambda job: job[1][0].kind)


def _correct(folder: Path, job: Job) -> Iterator[Tried | str]:
    """Each task that can be read, or why it cannot be."""
    ensembles = {name: load_ensemble(folder / f"{name}.safetensors") for name in SHIPPED}
    for source in job[1]:
        try:
            yield correct(source, job[0], ensembles)
        except ValueError as error:
            yield f"{source.id}: {error}"


def _judge(
    folder: Path, lines: Mapping[str, Mapping[str, np.ndarray]], job: Job
) -> Iterator[Judged]:
    name = f"fold-{job[0]}"
    tensors = {key: torch.from_numpy(x) for key, x in lines.get(name, {}).items()}
    ensemble = load_ensemble(folder / f"{name}.safetensors")
    ensemble = replace(ensemble, trust=Trust(**tensors) if tensors else None)
    for source in job[1]:
        yield judge(source, job[0], ensemble)
