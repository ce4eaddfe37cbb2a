"""What fresh searches find, case by case, beside what is true: the data of the study of certainty.

1. A case is a task of a subject: planted programs, several in a model, programs in language models;
   natural subjects and mined tasks of language models, whose circuits nobody knows.
2. Each method of METHODS finds a circuit, and eight fresh searches repeat it as a certificate does,
   asking for what the circuit keeps on fresh prompts (`graphcircuits.certificates.searching`).
3. One further search, on prompts of its own, says which edges come back.
4. The predictor that is blind to the case says how familiar it is.

Each case is a file, which is kept if it is there.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits import localize
from graphcircuits.cases.relations import fold_of, groups_of
from graphcircuits.certificates.judging import Clock, Judge
from graphcircuits.certificates.searching import Search, Searches, asked_of_searches, search_again
from graphcircuits.circuit import Circuit
from graphcircuits.compare.selection import Unit, select_subjects
from graphcircuits.evaluation.evaluate import CircuitRuns
from graphcircuits.evaluation.proposal import fresh_seed
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.config import load_config
from graphcircuits.io.store import load_artifact, save_artifact
from graphcircuits.methods.learned import GCL
from graphcircuits.methods.shipped import choose_predictor
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.training.sources import FRESH, Source, mined_sources

KIND = "fresh-searches"
METHODS = ("gcl", "eap-ig")
PAIRS = 64
INDEPENDENT = 5000
"""The seed of the prompts of the further search."""
KEEP = 0.9
FAMILIES = ("pool", "planted", "deep", "public", "multitask", "language", "natural", "mined")


@dataclass(frozen=True, eq=False)
class Found:
    """A case with what one method's searches found in it."""

    id: str
    method: str
    family: str
    groups: tuple[str, ...]
    fold: int | None
    """Of the pool; None where the case is held out from every training."""
    graph: ComponentGraph
    circuit: Circuit
    searches: Searches
    again: Bool[Tensor, " edge"]
    """The circuit of the further search."""
    truth: Bool[Tensor, " edge"] | None
    said: Float[Tensor, " edge"] | None
    """The probabilities that gcl's own result has."""
    network: Float[Tensor, " edge"]
    """The logits of the blind predictor, on all pairs."""
    strangeness: float
    trust: float

    @property
    def model(self) -> str:
        """The subject, whatever its task."""
        return self.id.partition("@")[0]


def case_ids_of(family: str) -> list[str]:
    """The shipped subjects of a family, task by task."""
    chosen = {
        "pool": ("pool", "planted"),
        "planted": ("test", "planted"),
        "deep": ("deep-test", "planted"),
        "public": ("test", "public"),
        "multitask": ("multitask", "planted"),
        "language": ("test", "language"),
        "natural": ("test", "natural"),
    }
    return select_subjects(*chosen[family])[0]


def mined_tasks(folder: Path, most: int, layers: int) -> Iterator[Source]:
    """The first tasks of each language model that is not too deep."""
    taken: dict[str, int] = {}
    for source in mined_sources(folder):
        taken[source.model] = taken.get(source.model, 0) + 1
        if taken[source.model] <= most and source.subject().config.n_layers <= layers:
            yield source


def collect(folder: Path, family: str, cases: Sequence[str | Source]) -> None:
    """Search afresh in every case, and write what was found."""
    for case in cases:
        id = case if isinstance(case, str) else case.id
        paths = {method: folder / family / f"{id}.{method}.safetensors" for method in METHODS}
        missing = {method: path for method, path in paths.items() if not path.is_file()}
        if not missing:
            continue
        began = time.perf_counter()
        truth = None
        if isinstance(case, str):
            unit = Unit.of(case)
            subject = unit.subject()
            draws = [unit.case.pairs(PAIRS, seed=s) for s in (0, fresh_seed(0), INDEPENDENT)]
            truth = unit.case.labels(graph=subject.graph).mask if unit.has_truth else None
            about = (sorted(groups_of(unit.case.id)), fold_of(unit.case.id))
        else:
            subject = case.subject()
            # Those that are read are two thirds of all; halves of them share no prompt.
            read = case.pairs(subject, 2 * PAIRS, seed=0)
            half = len(read) // 2
            draws = [read[:half], case.pairs(subject, PAIRS, seed=FRESH), read[half:]]
            about = ([case.model], None)
        try:
            for method, path in missing.items():
                _measure(path, id, family, method, subject, draws, truth, about)
        except ValueError as error:
            sys.stderr.write(f"{id}: {error}\n")
        sys.stderr.write(f"{id} {time.perf_counter() - began:.1f} s\n")


def _measure(
    path: Path,
    id: str,
    family: str,
    method: str,
    subject: Transformer,
    draws: Sequence[Pairs],
    truth: Bool[Tensor, " edge"] | None,
    about: tuple[list[str], int | None],
) -> None:
    pairs, fresh, independent = draws
    given = localize(subject, pairs, method, keep=KEEP, seed=0, keep_prompts=0)
    circuit = given.circuit()
    judge = Judge(CircuitRuns(subject, fresh), Clock())
    keep = asked_of_searches(judge.kept(circuit)) if len(circuit) else KEEP
    search = Search.of(given, keep)
    found = search_again(subject, pairs, search, seed=0, clock=Clock())
    if not found.results:
        raise ValueError("; ".join(dict.fromkeys(found.problems)))
    again = search.find(subject, independent, INDEPENDENT).circuit()
    chosen = choose_predictor(subject, pairs)
    options = GCL.fill(subject, pairs, {"predictor": chosen, "looks": None})
    prediction = GCL.predict(subject, pairs, options, torch.Generator().manual_seed(0))
    tensors = {
        "scores": torch.stack([result.scores for result in found.results]).float(),
        "circuits": found.masks.half(),
        "circuit": circuit.mask.half(),
        "again": again.mask.half(),
        "network": prediction.logits.float(),
    }
    said = [result.probabilities for result in found.results]
    if all(one is not None for one in said):
        tensors["probabilities"] = torch.stack([one for one in said if one is not None]).float()
    if truth is not None:
        tensors["truth"] = truth.half()
    if given.probabilities is not None:
        tensors["said"] = given.probabilities.float()
    familiarity = prediction.familiarity
    meta = {
        "id": id,
        "family": family,
        "groups": about[0],
        "fold": about[1],
        "kind": chosen.kind,
        "keep": keep,
        "trust": prediction.trust,
        "strangeness": None if familiarity is None else familiarity.strangeness,
        "problems": found.problems,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_artifact(
        path,
        kind=KIND,
        config={"graph": subject.graph, "method": method, "pairs": len(pairs)},
        seed=0,
        tensors=tensors,
        meta=meta,
    )


def read_found(path: Path) -> Found:
    """A case that `collect` wrote."""
    artifact = load_artifact(path, KIND)
    meta, tensors = artifact.meta, artifact.tensors
    graph = load_config(ComponentGraph, artifact.config["graph"])
    said = tensors.get("probabilities")
    results = [
        Result(
            graph=graph,
            scores=scores,
            probabilities=None if said is None else said[number],
            chosen=Circuit.from_mask(graph, tensors["circuits"][number] > 0),
        )
        for number, scores in enumerate(tensors["scores"])
    ]
    return Found(
        id=meta["id"],
        method=artifact.config["method"],
        family=meta["family"],
        groups=tuple(meta["groups"]),
        fold=meta["fold"],
        graph=graph,
        circuit=Circuit.from_mask(graph, tensors["circuit"] > 0),
        searches=Searches(results),
        again=tensors["again"] > 0,
        truth=tensors["truth"] > 0 if "truth" in tensors else None,
        said=tensors.get("said"),
        network=tensors["network"],
        strangeness=meta["strangeness"] if meta["strangeness"] is not None else 0.0,
        trust=meta["trust"],
    )
