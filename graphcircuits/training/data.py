"""Training examples: what a predictor reads of a subject's task, and what it is judged by.

1. `read` reads every source, by several workers if asked: some prompts for what the predictor
   sees, several times with other prompts, and others for what its circuits are judged on. A source
   whose prompts say nothing (a flat loss, corruption that does not hurt) is left out, with the
   reason.
2. `read_examples` does so for cases of the package, whose labels are known.
3. `save_targets` and `load_targets` keep scores found case by case, for the objective `distill`.

Processes hand over arrays; weights are read again by the one that trains.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.engine.stack import StackItem
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.store import content_hash, load_artifact, save_artifact
from graphcircuits.jobs.runner import IN_PROCESS, InProcess, Runner
from graphcircuits.predictor.model import InvariantTables, Reading, read_case, structure_of
from graphcircuits.predictor.paper.transform import Neighbourhoods
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.readings import (
    SourceReading,
    load_readings,
    readings_path,
    save_readings,
)
from graphcircuits.training.sources import Source, shipped_sources

TrainProgress = Callable[[int, int], None]
"""Called with how many cases or steps are done, and how many there are."""

TARGETS = "predictor-targets"
FRESH = 10_000
"""The seed of prompts that circuits are judged on; those that are read have seeds from 0."""
LEAST_GAP = 1e-3
"""Of the loss, between clean and corrupted prompts, below which there is nothing to judge."""
JOB = 8
"""Sources that a process is given at a time."""


@dataclass(frozen=True, eq=False)
class Example:
    """One reading of a subject's task, and what is known to judge scores by."""

    case: str
    """What it goes by."""
    reading: Reading
    circuit: Circuit | None
    """The true circuit, where it is known."""
    item: StackItem | None = None
    """The subject, and prompts that were not read, to run circuits on."""
    target: Float[Tensor, " edge"] | None = None
    """Scores found for it before."""
    source: Source | None = None

    def to(self, device: torch.device | str) -> "Example":
        return replace(self, reading=self.reading.to(device))


@dataclass(frozen=True, eq=False)
class ReadExamples:
    """Examples, and what was left out and why, by id."""

    examples: list[Example]
    left_out: dict[str, str]


def read_examples(
    ids: Sequence[str],
    config: TrainConfig,
    *,
    views: int | None = None,
    progress: TrainProgress | None = None,
) -> list[Example]:
    """Readings of cases of the package, `views` of each with other prompts, in the order given."""
    judged = not config.by_labels_alone
    found = read(shipped_sources(ids), config, views=views, judged=judged, progress=progress)
    if found.left_out:
        raise ValueError("; ".join(f"{id}: {why}" for id, why in found.left_out.items()))
    return found.examples


def read(
    sources: Sequence[Source],
    config: TrainConfig,
    *,
    views: int | None = None,
    judged: bool = True,
    runner: Runner = IN_PROCESS,
    kept: str | Path | None = None,
    progress: TrainProgress | None = None,
) -> ReadExamples:
    """Readings of all sources, in their order; `judged` ones can also be run.

    Each is read `views` times with other prompts; None leaves that to the configuration, by whether
    its circuit is known. `kept` is a folder in which readings stay for the next time.
    """
    times = [_views(source, config) if views is None else views for source in sources]
    keeps = kept is not None and config.predictor.aligner == "invariant"
    path = readings_path(kept, sources, config, times, judged) if keeps and kept else None
    by_place = None if path is None else load_readings(path)
    if by_place is None:
        by_place = {}
        for place, result in _found(sources, config, times, judged, runner):
            by_place[place] = result
            if progress:
                progress(len(by_place), len(sources))
        if path is not None:
            save_readings(path, by_place)
    elif progress:
        progress(len(by_place), len(sources))
    keep = _Keeper(config)
    examples: list[Example] = []
    left_out: dict[str, str] = {}
    for place, source in enumerate(sources):
        result = by_place[place]
        if isinstance(result, str):
            left_out[source.id] = result
        else:
            examples += keep.examples(source, result)
    return ReadExamples(examples, left_out)


def _views(source: Source, config: TrainConfig) -> int:
    return config.views if source.labelled else config.unlabelled_views


Job = tuple[tuple[int, Source, int], ...]
"""Sources, each with its place among all and how often it is read."""


def _found(
    sources: Sequence[Source],
    config: TrainConfig,
    times: Sequence[int],
    judged: bool,
    runner: Runner,
) -> Iterator[tuple[int, SourceReading | str]]:
    """Every source's place and what is read of it, or why nothing is, as it comes."""
    work = partial(_read_job, config=config, judged=judged)
    jobs = _jobs(sources, times)
    if isinstance(runner, InProcess) or config.predictor.aligner != "invariant":
        for job in jobs:
            yield from work(job)
    else:
        yield from map(_unpacked, runner.run(partial(_packed_job, work), jobs, lost=_lost))


def _jobs(sources: Sequence[Source], times: Sequence[int]) -> list[Job]:
    """A few sources at a time."""
    numbered = list(zip(range(len(sources)), sources, times, strict=True))
    return [tuple(numbered[start : start + JOB]) for start in range(0, len(numbered), JOB)]


def _lost(job: Job, done: int, why: str) -> tuple[Sequence[tuple[int, Any]], Job | None]:
    """A process that ended costs the source it was at."""
    place, _, _ = job[done]
    return [(place, why)], job[done + 1 :] or None


def _read_job(
    job: Job, *, config: TrainConfig, judged: bool
) -> Iterator[tuple[int, SourceReading | str]]:
    for place, source, views in job:
        try:
            yield place, _read_source(source, config, views, judged)
        except ValueError as error:
            yield place, str(error)


def _read_source(source: Source, config: TrainConfig, views: int, judged: bool) -> SourceReading:
    subject = source.subject()
    contents, priors = [], []
    for view in range(views):
        generator = torch.Generator().manual_seed(mixed_seed(source.id, view))
        pairs = source.pairs(subject, config.pairs, view)
        reading = read_case(config.predictor, subject, pairs, generator=generator)
        contents.append(reading.content)
        priors.append(reading.prior)
    circuit = source.circuit(subject, config.labels)
    fresh = source.pairs(subject, config.judged, FRESH) if judged else None
    if fresh is not None:
        _check_gap(subject, fresh)
    mask = None if circuit is None else circuit.mask
    return SourceReading(tuple(contents), tuple(priors), mask, fresh)


@torch.no_grad()
def _check_gap(subject: Transformer, pairs: Pairs) -> None:
    clean, corrupted = (
        float(pairs.loss(subject.logits(tokens)).mean())
        for tokens in (pairs.clean, pairs.corrupted)
    )
    if not corrupted - clean > LEAST_GAP:
        raise ValueError(
            f"corruption does not hurt: the loss is {clean:.4g} on clean prompts and "
            f"{corrupted:.4g} on corrupted ones."
        )


def mixed_seed(*parts: object) -> int:
    """A seed that depends on all of the parts."""
    return int(content_hash(*parts)[:12], 16)


# Between processes


def _packed_job(
    work: Callable[[Job], Iterator[tuple[int, SourceReading | str]]], job: Job
) -> Iterator[tuple[int, Any]]:
    for place, result in work(job):
        yield place, result if isinstance(result, str) else _packed(result)


def _packed(found: SourceReading) -> dict[str, Any]:
    """Arrays and words."""
    tables = [content for content in found.contents if isinstance(content, InvariantTables)]
    return {
        "contents": [(x.nodes.numpy(), x.contexts.numpy()) for x in tables],
        "priors": [None if prior is None else prior.numpy() for prior in found.priors],
        "circuit": None if found.circuit is None else found.circuit.numpy(),
        "judged": None
        if found.judged is None
        else {
            name: value.numpy() if isinstance(value, Tensor) else value
            for name, value in vars(found.judged).items()
            if name in Pairs.__dataclass_fields__
        },
    }


def _unpacked(sent: tuple[int, Any]) -> tuple[int, SourceReading | str]:
    place, found = sent
    if isinstance(found, str):
        return place, found
    return place, SourceReading(
        contents=tuple(InvariantTables(*map(torch.from_numpy, x)) for x in found["contents"]),
        priors=tuple(map(_tensor, found["priors"])),
        circuit=_tensor(found["circuit"]),
        judged=None
        if found["judged"] is None
        else Pairs(**{name: _tensor(value) for name, value in found["judged"].items()}),
    )


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


class _Keeper:
    """Makes examples of what was read; tasks of one model share its weights, graphs their arcs."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.subjects: dict[tuple[str, str], Transformer] = {}
        self.structures: dict[ComponentGraph, Neighbourhoods] = {}

    def examples(self, source: Source, found: SourceReading) -> Iterator[Example]:
        """One per view."""
        name = (source.place, source.model)
        if name not in self.subjects:
            # Sources come model by model, and weights that nothing shares are not kept here.
            self.subjects = {name: source.subject()}
        subject = self.subjects[name]
        graph = subject.graph
        if graph not in self.structures:
            self.structures[graph] = structure_of(graph, self.config.predictor)
        circuit = None if found.circuit is None else Circuit.from_mask(graph, found.circuit)
        item = None if found.judged is None else (subject, found.judged)
        for content, prior in zip(found.contents, found.priors, strict=True):
            reading = Reading(self.structures[graph], content, prior, graph)
            yield Example(source.id, reading, circuit, item, source=source)


# Scores found case by case


def save_targets(path: str | Path, targets: Mapping[str, Float[Tensor, " edge"]]) -> None:
    """Keep scores by the id of their example."""
    save_artifact(path, kind=TARGETS, config={}, seed=None, tensors=dict(targets), meta={})


def load_targets(path: str | Path) -> Mapping[str, Float[Tensor, " edge"]]:
    """What `save_targets` kept."""
    return load_artifact(path, TARGETS).tensors


def with_targets(
    examples: Sequence[Example], targets: Mapping[str, Float[Tensor, " edge"]]
) -> list[Example]:
    """The examples, those with a target with it; ValueError if none has, or one does not fit."""
    found = []
    for example in examples:
        target = targets.get(example.case)
        n_edges = len(example.reading.structure.edge_nodes)
        if target is not None and target.shape != (n_edges,):
            raise ValueError(
                f"the targets of {example.case} are {tuple(target.shape)}, and it has {n_edges} "
                "edges; find them again."
            )
        found.append(replace(example, target=target))
    if not any(example.target is not None for example in found):
        raise ValueError("none of the examples has a target; give targets that name some of them.")
    return found
