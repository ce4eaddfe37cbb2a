"""Whether a predictor knows where it fails, and whether its probabilities are true.

1. Subjects whose programs the predictor has not seen: shipped planted ones of its fold, those of
   corpora (`python -m lab.factory corpus`), and language models with the tasks that they do. CMD
   of `gcl` and of `eap-ig` on fresh pairs over log-spaced sizes, beside how familiar each case is.
2. Rank correlation of each measure of strangeness with (CMD of gcl - CMD of eap-ig), and AUROC of
   telling apart where gcl is worse by 20%, and by 0.03.
3. Calibration: a half of the cases is fitted, the other one measured, and the reverse. Labels are
   those of the true circuit where it is known; else an edge is in the circuit if it is among the
   best edges of gcl's own ranking, as few as keep 0.8 of the behaviour on fresh pairs.

Where the file of the predictor does not hold its training cases, they are read here.

python -m lab.benchmarks.familiarity --corpus natural --corpus planted --language models [--json]
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

import torch
from torch import Tensor

import graphcircuits as gc
from graphcircuits.evaluation.evaluate import faithfulness_curve
from graphcircuits.evaluation.proposal import fresh_seed
from graphcircuits.methods.eap import eap_ig
from graphcircuits.methods.shipped import load_predictor
from graphcircuits.predictor.ensemble import Ensemble
from graphcircuits.predictor.facts.calibration import fit_calibration
from graphcircuits.predictor.facts.familiarity import Familiarity
from graphcircuits.predictor.model import Reading, read_case
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.training.facts import case_looks, fit_known_cases
from lab.needed import best_edges
from lab.reliability import calibration_error, reliability

WORSE, MUCH = 1.2, 0.03
GOAL = 0.8
"""Of the behaviour: what the edges that probabilities are of keep, where no circuit is known."""
LEAST_RIGHT = 0.8
"""Of its prompts, for a language model to do a task."""
Draw = Callable[[int], Pairs]


@dataclass(frozen=True)
class Subject:
    kind: str
    architecture: str
    transformer: Transformer
    draw: Draw
    """Pairs by seed."""
    truth: Tensor | None


@dataclass(frozen=True)
class Row:
    kind: str
    architecture: str
    gcl: float
    eap_ig: float
    familiarity: Familiarity
    logits: Tensor
    labels: Tensor


def read(ensemble: Ensemble, subject: Transformer, pairs: Pairs) -> Reading:
    return read_case(ensemble.config, subject, pairs, generator=torch.Generator().manual_seed(0))


def acquainted(ensemble: Ensemble, n_pairs: int) -> Ensemble:
    """The ensemble with its training cases."""
    if ensemble.known is not None:
        return ensemble
    cases = [gc.load_case(id) for id in ensemble.origin["cases"]]
    readings = [read(ensemble, case.subject(), case.pairs(n_pairs)) for case in cases]
    looks = case_looks(ensemble, readings, range(len(readings)))
    return replace(ensemble, known=fit_known_cases(looks))


def shipped(fold: int, n_pairs: int) -> Iterator[Subject]:
    for id in gc.case_ids(split="pool"):
        case = gc.load_case(id)
        if case.fold == fold:
            # Some cases of the pool have no subject.
            with suppress(FileNotFoundError):
                subject = case.subject()
                truth = case.labels(graph=subject.graph).mask
                draw = lambda seed, case=case: case.pairs(n_pairs, seed=seed)  # noqa: E731
                yield Subject("planted", "shipped", subject, draw, truth)


def of_corpus(folder: Path, fold: int, count: int, n_pairs: int) -> Iterator[Subject]:
    taken: dict[tuple[str, str], int] = {}
    for entry in gc.load_corpus(folder).of(fold=fold):
        order, (task, *others) = entry.order, entry.tasks()
        kind = order.fleet + ("-multitask" if others else "")
        taken[kind, order.architecture] = taken.get((kind, order.architecture), 0) + 1
        if taken[kind, order.architecture] > count:
            continue
        subject = entry.subject()
        natural = order.fleet == "natural"
        truth = None if natural else task.labels(graph=subject.graph).mask
        draw = lambda seed, entry=entry: entry.pairs(n_pairs, seed=seed)  # noqa: E731
        yield Subject(kind, order.architecture, subject, draw, truth)


def of_language(folder: Path, count: int, n_pairs: int) -> Iterator[Subject]:
    for report in sorted(folder.glob("*/report.json")):
        found = json.loads(report.read_text())
        done = [name for name, right in found["tasks"].items() if right >= LEAST_RIGHT]
        model = gc.load_model(report.parent)
        for name in done[:count]:
            task = gc.tasks.find(name)
            draw = lambda seed, task=task: task(model.tokenizer, n=n_pairs, seed=seed)  # noqa: E731, B023
            yield Subject("language", found["architecture"], model, draw, None)


def measured(ensemble: Ensemble, subject: Subject) -> Row | None:
    """None where nothing can be measured: a corruption that changes nothing, or no gradient."""
    transformer, pairs = subject.transformer, subject.draw(0)
    fresh = subject.draw(fresh_seed(0))
    try:
        reading = read(ensemble, transformer, pairs)
        found = ensemble.predict(reading, generator=torch.Generator().manual_seed(0))
        own, other = (
            faithfulness_curve(transformer, fresh, scores, by="loss", crossings=())
            for scores in (found.logits, eap_ig(transformer, pairs))
        )
    except ValueError as error:
        print(f"left out, {subject.kind} {subject.architecture}: {error}", file=sys.stderr)
        return None
    assert found.familiarity is not None
    reached = [
        size for size, x in zip(own.sizes, own.faithfulness, strict=True) if x >= GOAL
    ] or own.sizes[-1:]
    labels = best_edges(found.logits, reached[0]) if subject.truth is None else subject.truth
    about = (subject.kind, subject.architecture)
    return Row(*about, own.cmd, other.cmd, found.familiarity, found.logits, labels)


# Figures


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    def ranks(values: Sequence[float]) -> Tensor:
        v = torch.tensor(values, dtype=torch.float64)
        return (v[:, None] > v).double().sum(1) + (v[:, None] == v).double().sum(1) / 2

    return float(torch.corrcoef(torch.stack([ranks(x), ranks(y)]))[0, 1])


def auroc(scores: Sequence[float], truth: Sequence[bool]) -> float:
    inside = torch.tensor([s for s, t in zip(scores, truth, strict=True) if t])
    outside = torch.tensor([s for s, t in zip(scores, truth, strict=True) if not t])
    if not len(inside) or not len(outside):
        return math.nan
    above = (inside[:, None] > outside).double() + (inside[:, None] == outside).double() / 2
    return float(above.mean())


def by_kind(rows: Sequence[Row]) -> Iterator[list[str]]:
    yield ["kind", "architecture", "n", "gcl", "eap-ig", "worse", "strangeness", "beyond"]
    names = sorted({(row.kind, row.architecture) for row in rows})
    for kind, name in [*names, *((kind, "all") for kind in sorted({row.kind for row in rows}))]:
        some = [row for row in rows if row.kind == kind and name in (row.architecture, "all")]
        worse = [row.gcl > WORSE * row.eap_ig for row in some]
        figures = [mean(row.gcl for row in some), mean(row.eap_ig for row in some)]
        strange = median(row.familiarity.strangeness for row in some)
        beyond = mean(not row.familiarity.known for row in some)
        told = [f"{x:.4f}" for x in figures] + [f"{mean(worse):.0%}", f"{strange:.2f}"]
        yield [kind, name, str(len(some)), *told, f"{beyond:.0%}"]


def by_measure(rows: Sequence[Row]) -> Iterator[list[str]]:
    yield ["measure", "subjects", "rank correlation", "AUROC 20%", f"AUROC {MUCH}"]
    for what in ("strangeness", "disagreement", "distance"):
        for kind in ("all", *sorted({row.kind for row in rows})):
            some = [row for row in rows if kind in ("all", row.kind)]
            values = [getattr(row.familiarity, what) or 0.0 for row in some]
            gaps = [row.gcl - row.eap_ig for row in some]
            figures = (
                rank_correlation(values, gaps),
                auroc(values, [row.gcl > WORSE * row.eap_ig for row in some]),
                auroc(values, [gap > MUCH for gap in gaps]),
            )
            yield [what, kind, *(f"{x:.2f}" for x in figures)]


def calibrations(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Each kind by a map of its own and by one that was fitted on all kinds."""
    yield ["subjects", "n", "base rate", "error of sigmoid", "own map", "kind", "map of all"]
    for kind in ("all", *sorted({row.kind for row in rows})):
        errors: dict[str, list[float]] = {"sigmoid": [], "own": [], "all": []}
        names = []
        for start in (0, 1):
            every, left = rows[start::2], rows[1 - start :: 2]
            own, held = ([x for x in half if kind in ("all", x.kind)] for half in (every, left))
            fitted = fit_calibration(*joined(own))
            names.append(type(fitted).__name__)
            logits, *truth = joined(held)
            errors["sigmoid"].append(calibration_error(logits.sigmoid(), *truth))
            errors["own"].append(calibration_error(fitted(logits), *truth))
            common = fit_calibration(*joined(every))
            errors["all"].append(calibration_error(common(logits), *truth))
        some = [row for row in rows if kind in ("all", row.kind)]
        base = mean(float(row.labels.double().mean()) for row in some)
        raw, made, shared = (f"{mean(found):.4f}" for found in errors.values())
        maps = "/".join(dict.fromkeys(names))
        yield [kind, str(len(some)), f"{base:.3f}", raw, made, maps, shared]


def reliabilities(rows: Sequence[Row]) -> Iterator[list[str]]:
    yield ["subjects", "said", "true", "share of edges"]
    for kind in sorted({row.kind for row in rows}):
        some = [row for row in rows if row.kind == kind]
        fitted, held = (joined(some[start::2]) for start in (0, 1))
        for each in reliability(fit_calibration(*fitted)(held[0]), *held[1:]):
            yield [kind, f"{each.said:.3f}", f"{each.true:.3f}", f"{each.weight:.4f}"]


def joined(rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
    cases = [torch.full(row.labels.shape, n) for n, row in enumerate(rows)]
    logits = torch.cat([row.logits for row in rows])
    return logits, torch.cat([row.labels for row in rows]), torch.cat(cases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # pyright: ignore[reportOptionalMemberAccess]
    parser.add_argument("--predictor", default="fold-0")
    parser.add_argument("--fold", type=int, default=0, help="the one it was trained without")
    parser.add_argument("--corpus", type=Path, action="append", default=[])
    parser.add_argument("--language", type=Path, help="a folder of language models with reports")
    parser.add_argument("--count", type=int, default=20, help="subjects per kind, architecture")
    parser.add_argument("--tasks", type=int, default=3, help="per language model")
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ensemble = acquainted(load_predictor(options.predictor), options.pairs)

    def subjects() -> Iterator[Subject]:
        yield from shipped(options.fold, options.pairs)
        for folder in options.corpus:
            yield from of_corpus(folder, options.fold, options.count, options.pairs)
        if options.language:
            yield from of_language(options.language, options.tasks, options.pairs)

    every = (measured(ensemble, subject) for subject in subjects())
    rows = [row for row in every if row is not None]
    makers = (by_kind, by_measure, calibrations, reliabilities)
    tables = {make.__name__: list(make(rows)) for make in makers}
    if options.json:
        print(json.dumps(tables, indent=1))
        return
    for table in tables.values():
        print("| " + " | ".join(table[0]) + " |")
        print("|" + " --- |" * len(table[0]))
        print("\n".join("| " + " | ".join(row) + " |" for row in table[1:]), end="\n\n")


if __name__ == "__main__":
    main()
