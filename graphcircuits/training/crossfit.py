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
   is whether it is among the best edges that are just enough for KEPT of the behaviour.
5. `familiarity`: what the subjects look like that a predictor was trained on: those that were read,
   and all that ship, which people try first.

All of it is written into the six files; `shipped.py` is the command that trains and judges them.
Subjects are independent jobs of a runner, which hand over arrays.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean

import numpy as np
import torch
from jaxtyping import Bool, Float

from graphcircuits.cases import N_FOLDS
from graphcircuits.cases.multitask import AT
from graphcircuits.evaluation.evaluate import auroc, faithfulness_curve
from graphcircuits.jobs.command import driver_command
from graphcircuits.jobs.runner import IN_PROCESS, Runner
from graphcircuits.methods.eap import eap_ig
from graphcircuits.methods.shipped import SHIPPED
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble, save_ensemble
from graphcircuits.predictor.facts.calibration import Calibration, fit_calibration, needed
from graphcircuits.predictor.facts.familiarity import case_features, disagreement, known_cases
from graphcircuits.predictor.facts.trust import Trust, fit_trust
from graphcircuits.predictor.model import read_case
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.training.data import FRESH
from graphcircuits.training.sources import Source

log = logging.getLogger(__name__)

PAIRS = 32
KEPT = 0.8
LEAST = 3
"""Subjects of a kind below which nothing is said of it."""
KNOWN_STAKE = 0.3
"""Of a task whose circuit is known: labels are what its correction was learned from."""
TINY = 1e-6
JOB = 3
"""Tasks that a process is given at a time."""

Figures = dict[str, dict[str, dict[str, float]]]
"""By kind of subject, figure and method."""


@dataclass(frozen=True, eq=False)
class Corrected:
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

    kind: str
    fold: int
    logits: Float[np.ndarray, " edge"]
    labels: Bool[np.ndarray, " edge"]
    """In the circuit, or needed."""
    figures: Mapping[str, Mapping[str, float]]
    """By figure and method."""


def kind_of_source(source: Source) -> str:
    """What `methods.shipped.kind_of` says of its subject."""
    several = AT in source.task and source.fleet != "language"
    return f"{source.fleet}-multitask" if several else source.fleet


def read_pairs(source: Source, subject: Transformer) -> tuple[Pairs, Pairs]:
    """Those to find circuits on, and those to judge them on."""
    found, fresh = (source.pairs(subject, PAIRS, seed) for seed in (0, FRESH))
    return found, fresh


def correct(source: Source, fold: int, ensembles: Mapping[str, Ensemble]) -> Corrected:
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
    case = Corrected(source, fold, features.numpy(), apart, True, KNOWN_STAKE)
    if source.labelled:
        return case
    areas = []
    for odds in (-50.0, 50.0):
        certain = Trust(torch.zeros(len(features)), torch.tensor([odds]))
        scores = replace(ensemble, trust=certain).logits(reading, generator=generator)
        areas.append(faithfulness_curve(subject, fresh, scores, sizes="log").cmd)
    gain = math.log(max(areas[0], TINY) / max(areas[1], TINY))
    return replace(case, helped=gain > 0, stake=min(abs(gain), 1.0))


def judge(source: Source, fold: int, ensemble: Ensemble) -> Judged:
    """Score a task by both methods, and see how good the scores are."""
    subject = source.subject()
    pairs, fresh = read_pairs(source, subject)
    generator = torch.Generator().manual_seed(0)
    reading = read_case(ensemble.config, subject, pairs, generator=generator)
    logits = ensemble.logits(reading, generator=generator).double()
    scores = {"gcl": logits, "eap-ig": eap_ig(subject, pairs).double()}
    curves = {
        name: faithfulness_curve(subject, fresh, x, sizes="log") for name, x in scores.items()
    }
    figures = {"cmd": {name: curve.cmd for name, curve in curves.items()}}
    circuit = source.circuit(subject, ensemble.labels)
    if circuit is None:
        own = curves["gcl"]
        enough = [n for n, x in zip(own.sizes, own.faithfulness, strict=True) if x >= KEPT]
        labels = needed(logits, enough[0] if enough else len(logits) - 1)
    else:
        labels = circuit.mask
        figures["auroc"] = {name: auroc(x, circuit) for name, x in scores.items()}
    return Judged(kind_of_source(source), fold, logits.float().numpy(), labels.numpy(), figures)


def held_out(sources: Sequence[Source], fold: int) -> list[Source]:
    """What the predictor of a fold has not learned from; of language models, other models."""
    return [source for source in sources if source.folds[:1] == (fold,)]


def learned_trust(cases: Sequence[Corrected]) -> Trust:
    features = torch.stack([torch.from_numpy(case.features) for case in cases])
    helped = torch.tensor([case.helped for case in cases])
    return fit_trust(features, helped, torch.tensor([case.stake for case in cases]))


def chosen(sources: Sequence[Source], most: int, seed: int) -> Iterator[Source]:
    """At most so many of each kind, drawn."""
    by_kind: dict[str, list[Source]] = {}
    for source in sources:
        by_kind.setdefault(kind_of_source(source), []).append(source)
    for kind in sorted(by_kind):
        yield from Random(seed).sample(by_kind[kind], min(most, len(by_kind[kind])))


def measured(judged: Iterable[Judged]) -> Figures:
    """Means by kind of subject, figure and method, and the number of subjects."""
    by_kind: dict[str, list[Judged]] = {}
    for each in judged:
        by_kind.setdefault(each.kind, []).append(each)
    found: Figures = {}
    for kind, some in by_kind.items():
        if len(some) < LEAST:
            continue
        found[kind] = {
            figure: {
                method: mean(x.figures[figure][method] for x in some)
                for method in some[0].figures[figure]
            }
            for figure in some[0].figures
        }
        found[kind]["subjects"] = {"count": float(len(some))}
    return found


def calibrations(judged: Sequence[Judged]) -> dict[str, Calibration]:
    """From score to probability, by kind of subject."""
    found = {}
    for kind in sorted({each.kind for each in judged}):
        some = [each for each in judged if each.kind == kind]
        if len(some) < LEAST:
            continue
        cases = torch.cat([torch.full((len(x.logits),), n) for n, x in enumerate(some)])
        logits, labels = (
            torch.cat([torch.from_numpy(getattr(x, name)) for x in some])
            for name in ("logits", "labels")
        )
        found[kind] = fit_calibration(logits, labels, cases)
    return found


Job = tuple[int, tuple[Source, ...]]
"""A fold and some of its tasks."""


def complete(
    folder: Path, sources: Sequence[Source], most: int, runner: Runner = IN_PROCESS
) -> Figures:
    """Judge on all folds, and write what was found into the six files."""
    drawn = {fold: list(chosen(held_out(sources, fold), most, fold)) for fold in range(N_FOLDS)}
    taken = {source for some in drawn.values() for source in some}
    ships = [source for source in sources if source.kind == "shipped"]
    beside = {fold: [x for x in held_out(ships, fold) if x not in taken] for fold in drawn}
    cases = list(runner.run(partial(_correct, folder), [*_jobs(drawn), *_jobs(beside)]))
    for case in cases:
        if isinstance(case, str):
            log.warning("left out: %s", case)
    # In an order of their own: they come as they are finished.
    read = sorted((x for x in cases if not isinstance(x, str)), key=lambda case: case.source.id)
    corrected = [case for case in read if case.source in taken]
    log.info("%d tasks read, %d of them to be judged", len(read), len(corrected))
    trusts = {
        name: learned_trust([case for case in corrected if f"fold-{case.fold}" != name])
        for name in SHIPPED
    }
    lines = {
        name: {part: x.numpy() for part, x in trust.tensors().items()}
        for name, trust in trusts.items()
    }
    known = {
        fold: [case.source for case in corrected if case.fold == fold] for fold in range(N_FOLDS)
    }
    judged = sorted(
        runner.run(partial(_judge, folder, lines), _jobs(known)),
        key=lambda case: (case.kind, case.fold, case.figures["cmd"]["gcl"]),
    )
    figures = measured(judged)
    for name in SHIPPED:
        path = folder / f"{name}.safetensors"
        ensemble = load_ensemble(path)
        seen = [case for case in read if f"fold-{case.fold}" != name]
        made = replace(
            ensemble,
            origin={**ensemble.origin, "measured": figures},
            calibration=calibrations([x for x in judged if f"fold-{x.fold}" != name]),
            known=known_cases(
                torch.stack([torch.from_numpy(case.features) for case in seen]),
                [case.disagreements[name] for case in seen],
                [min(case.source.groups) for case in seen],
            ),
            trust=trusts[name],
        )
        save_ensemble(path, made, command=driver_command())
    return figures


def _jobs(by_fold: Mapping[int, Sequence[Source]]) -> list[Job]:
    """A few tasks of one fold at a time; those of language models, which take longest, first."""
    jobs = [
        (fold, tuple(some[start : start + JOB]))
        for fold, some in by_fold.items()
        for start in range(0, len(some), JOB)
    ]
    return sorted(jobs, key=lambda job: kind_of_source(job[1][0]))


def _correct(folder: Path, job: Job) -> Iterator[Corrected | str]:
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
    trust = Trust(**{part: torch.from_numpy(x) for part, x in lines[name].items()})
    ensemble = replace(load_ensemble(folder / f"{name}.safetensors"), trust=trust)
    for source in job[1]:
        yield judge(source, job[0], ensemble)
