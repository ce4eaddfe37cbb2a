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

All of it is written into the six files.

python -m graphcircuits.training.crossfit FOLDER --corpus DIR[,DIR] [--language DIR] [--most 30]
"""

import argparse
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import mean

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.compare.evaluate import auroc, faithfulness_curve
from graphcircuits.compare.selection import select_cases
from graphcircuits.corpus import N_FOLDS
from graphcircuits.corpus.multitask import AT
from graphcircuits.methods.eap import eap_ig
from graphcircuits.predictor.calibration import Calibration, fit_calibration, needed
from graphcircuits.predictor.ensemble import (
    Ensemble,
    load_ensemble,
    save_ensemble,
    with_familiarity,
)
from graphcircuits.predictor.familiarity import case_features
from graphcircuits.predictor.model import PredictorConfig, Reading, read_case
from graphcircuits.predictor.trust import Trust, fit_trust
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.training.data import FRESH
from graphcircuits.training.sources import (
    Source,
    corpus_sources,
    language_sources,
    shipped_sources,
)

log = logging.getLogger(__name__)

PAIRS = 32
KEPT = 0.8
LEAST = 3
"""Subjects of a kind below which nothing is said of it."""
KNOWN_STAKE = 0.3
"""Of a task whose circuit is known: labels are what its correction was learned from."""
TINY = 1e-6

Figures = dict[str, dict[str, dict[str, float]]]
"""By kind of subject, figure and method."""


@dataclass(frozen=True, eq=False)
class Corrected:
    """One held-out task of a subject, with the correction and without."""

    source: Source
    fold: int
    reading: Reading
    helped: bool
    stake: float
    """How much it mattered: the logarithm of the ratio of both CMD, at most 1."""


@dataclass(frozen=True, eq=False)
class Judged:
    """The same task as scored in the end."""

    kind: str
    fold: int
    logits: Float[Tensor, " edge"]
    labels: Bool[Tensor, " edge"]
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


def correct(source: Source, fold: int, ensemble: Ensemble) -> Corrected:
    """Whether a correction helps: always where it was learned from labels, else by CMD."""
    subject = source.subject()
    pairs, fresh = read_pairs(source, subject)
    generator = torch.Generator().manual_seed(0)
    reading = read_case(ensemble.config, subject, pairs, generator=generator)
    if source.labelled:
        return Corrected(source, fold, reading, True, KNOWN_STAKE)
    columns = len(case_features(reading))
    areas = []
    for odds in (-50.0, 50.0):
        certain = Trust(torch.zeros(columns), torch.tensor([odds]))
        scores = replace(ensemble, trust=certain).logits(reading, generator=generator)
        areas.append(faithfulness_curve(scores, subject, fresh, sizes="log").cmd)
    gain = math.log(max(areas[0], TINY) / max(areas[1], TINY))
    return Corrected(source, fold, reading, gain > 0, min(abs(gain), 1.0))


def judge(case: Corrected, ensemble: Ensemble) -> Judged:
    """Score a task by both methods, and see how good the scores are."""
    source, subject = case.source, case.source.subject()
    pairs, fresh = read_pairs(source, subject)
    generator = torch.Generator().manual_seed(0)
    logits = ensemble.logits(case.reading, generator=generator).double()
    scores = {"gcl": logits, "eap-ig": eap_ig(subject, pairs).double()}
    curves = {
        name: faithfulness_curve(x, subject, fresh, sizes="log") for name, x in scores.items()
    }
    figures = {"cmd": {name: curve.cmd for name, curve in curves.items()}}
    circuit = source.circuit(subject, "interpbench")
    if circuit is None:
        own = curves["gcl"]
        enough = [n for n, x in zip(own.sizes, own.faithfulness, strict=True) if x >= KEPT]
        labels = needed(logits, enough[0] if enough else len(logits) - 1)
    else:
        labels = circuit.mask
        figures["auroc"] = {name: auroc(x, circuit) for name, x in scores.items()}
    return Judged(kind_of_source(source), case.fold, logits.float(), labels, figures)


def held_out(sources: Sequence[Source], fold: int) -> list[Source]:
    """What the predictor of a fold has not learned from; of language models, other models."""
    return [source for source in sources if source.folds[:1] == (fold,)]


def learned_trust(cases: Sequence[Corrected]) -> Trust:
    features = torch.stack([case_features(case.reading) for case in cases])
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
            torch.cat([getattr(x, name) for x in some]) for name in ("logits", "labels")
        )
        found[kind] = fit_calibration(logits, labels, cases)
    return found


def complete(folder: Path, sources: Sequence[Source], most: int) -> Figures:
    """Judge on all folds, and write what was found into the six files."""
    files = {fold: folder / f"fold-{fold}.safetensors" for fold in range(N_FOLDS)}
    corrected: list[Corrected] = []
    for fold, path in files.items():
        ensemble = load_ensemble(path)
        for source in chosen(held_out(sources, fold), most, fold):
            try:
                corrected.append(correct(source, fold, ensemble))
            except ValueError as error:
                log.warning("%s left out: %s", source.id, error)
        log.info("fold %d: %d tasks read so far", fold, len(corrected))
    judged: list[Judged] = []
    for fold, path in files.items():
        trust = learned_trust([case for case in corrected if case.fold != fold])
        ensemble = replace(load_ensemble(path), trust=trust)
        judged += [judge(case, ensemble) for case in corrected if case.fold == fold]
        log.info("fold %d: %d tasks judged so far", fold, len(judged))
    figures = measured(judged)
    config = load_ensemble(folder / "default.safetensors").config
    lookalikes = [*corrected, *_shipped(sources, corrected, config)]
    for fold, path in (files | {None: folder / "default.safetensors"}).items():
        seen = [case for case in lookalikes if case.fold != fold]
        ensemble = load_ensemble(path)
        ensemble = with_familiarity(
            ensemble,
            [case.reading for case in seen],
            [min(case.source.groups) for case in seen],
        )
        made = replace(
            ensemble,
            origin={**ensemble.origin, "measured": figures},
            calibration=calibrations([each for each in judged if each.fold != fold]),
            trust=learned_trust([case for case in corrected if case.fold != fold]),
        )
        save_ensemble(path, made)
    return figures


def _shipped(
    sources: Sequence[Source], corrected: Sequence[Corrected], config: PredictorConfig
) -> Iterator[Corrected]:
    """Readings of the shipped subjects that were not among those drawn."""
    read = {case.source.id for case in corrected}
    for source in sources:
        if source.kind != "shipped" or source.id in read:
            continue
        subject, generator = source.subject(), torch.Generator().manual_seed(0)
        reading = read_case(config, subject, read_pairs(source, subject)[0], generator=generator)
        yield Corrected(source, source.folds[0], reading, True, KNOWN_STAKE)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of default and fold-0 to fold-4")
    parser.add_argument("--corpus", default="", help="folders with commas between")
    parser.add_argument("--language", default="", help="folder of language models")
    parser.add_argument("--most", type=int, default=30, help="tasks of a kind in each fold")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sources = shipped_sources(select_cases("pool")[0])
    for folder in filter(None, given.corpus.split(",")):
        sources += corpus_sources(folder)
    if given.language:
        sources += language_sources(given.language)
    for kind, figures in complete(given.folder, sources, given.most).items():
        words = [
            f"{figure} " + ", ".join(f"{name} {value:.4f}" for name, value in by.items())
            for figure, by in figures.items()
        ]
        log.info("%s: %s", kind, "; ".join(words))


if __name__ == "__main__":
    main()
