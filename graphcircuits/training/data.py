"""Training examples: what a predictor reads of a subject's task, and what it is judged by.

1. `read` reads every source, by several workers if asked: some prompts for what the predictor
   sees, several times with other prompts, and others for what its circuits are judged on. A source
   whose prompts say nothing (a flat loss, corruption that does not hurt) is left out, with the
   reason.
2. Examples travel between processes, and lie in files for the next training, as numbers alone:
   whoever trains reads the weights of subjects and makes their graphs again, which are large or
   cheap. A file is found by what it depends on: sources, settings, and the REVISION of reading.
3. `save_targets` and `load_targets` are scores found case by case, for the objective `distill`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
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
from graphcircuits.io.store import content_hash, load_artifact, save_artifact, taken_apart
from graphcircuits.jobs.runner import IN_PROCESS, InProcess, Runner
from graphcircuits.predictor.model import Reading, read_case, structure_of
from graphcircuits.predictor.paper.transform import Neighbourhoods
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.sources import FRESH, Source

ReadProgress = Callable[[int, int], None]
"""Called with the number of sources that were read, and how many there are."""

TARGETS, READINGS = "predictor-targets", "predictor-readings"
REVISION = 2
"""Raise it when the numbers that are read of a case change: files of readings are then not used."""
SMALLEST_GAP = 1e-3
"""Of the loss, between clean and corrupted prompts, below which there is nothing to judge."""
JOB = 8
"""Sources that a process is given at a time."""


@dataclass(frozen=True, eq=False)
class Example:
    """One reading of a subject's task, and what is known to judge scores by."""

    case: str
    """Its name: the id of its source."""
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

    def subject(self) -> Transformer:
        """The subject: the one that is run, or read again."""
        if self.item is not None:
            return self.item[0]
        if self.source is None:
            raise ValueError(f"{self.case} has no source, so that its subject is not known.")
        return self.source.subject()


@dataclass(frozen=True, eq=False)
class ReadExamples:
    """Examples, and what was left out and why, by id."""

    examples: list[Example]
    left_out: dict[str, str]


def read(
    sources: Sequence[Source],
    config: TrainConfig,
    *,
    views: int | None = None,
    judged: bool = True,
    runner: Runner = IN_PROCESS,
    folder: str | Path | None = None,
    progress: ReadProgress | None = None,
) -> ReadExamples:
    """Readings of all sources, in their order, by the runner; `progress` hears of every source.

    `views` is how often each is read, with other prompts; the settings say it where it is None.
    `judged` says whether examples can also be run, on prompts that were not read. Readings stay in
    the folder for the next time; invariants only.
    """
    times = [
        views or (config.views if source.labelled else config.unlabelled_views)
        for source in sources
    ]
    shared = _InCommon(config)
    path = None
    if folder is not None and config.predictor.aligner == "invariant":
        path = _path(Path(folder), sources, config, times, judged)
    if path is not None and path.exists():
        results = _load(path, sources, shared)
        if progress:
            progress(len(sources), len(sources))
    else:
        results = {}
        for number, result in _results(sources, config, times, judged, runner, shared):
            results[number] = result
            if progress:
                progress(len(results), len(sources))
        if path is not None:
            _save(path, results)
    in_order = [(source, results[number]) for number, source in enumerate(sources)]
    examples = [x for _, result in in_order if not isinstance(result, str) for x in result]
    return ReadExamples(examples, {x.id: why for x, why in in_order if isinstance(why, str)})


class _InCommon:
    """What examples have in common: tasks of one model its weights, cases of one graph its arcs."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config.predictor
        self.subjects: dict[tuple[str, str], Transformer] = {}
        self.structures: dict[ComponentGraph, Neighbourhoods] = {}

    def subject(self, source: Source) -> Transformer:
        name = (source.path, source.model)
        if name not in self.subjects:
            # Sources come model by model, and weights that nothing shares are not held here.
            self.subjects = {name: source.subject()}
        return self.subjects[name]

    def structure(self, graph: ComponentGraph) -> Neighbourhoods:
        if graph not in self.structures:
            self.structures[graph] = structure_of(graph, self.config)
        return self.structures[graph]


def _read_source(
    source: Source, config: TrainConfig, views: int, judged: bool, shared: _InCommon
) -> list[Example]:
    """One example for each view of a source."""
    subject, readings = shared.subject(source), []
    for view in range(views):
        generator = torch.Generator().manual_seed(mixed_seed(source.id, view))
        pairs = source.pairs(subject, config.pairs, view)
        reading = read_case(config.predictor, subject, pairs, generator=generator)
        readings.append(replace(reading, structure=shared.structure(subject.graph)))
    circuit = source.circuit(subject, config.labels)
    item = None
    if judged:
        item = (subject, source.pairs(subject, config.judged, FRESH))
        _check_gap(*item)
    return [Example(source.id, reading, circuit, item, source=source) for reading in readings]


@torch.no_grad()
def _check_gap(subject: Transformer, pairs: Pairs) -> None:
    clean, corrupted = (
        float(pairs.loss(subject.logits(tokens)).mean())
        for tokens in (pairs.clean, pairs.corrupted)
    )
    if not corrupted - clean > SMALLEST_GAP:
        raise ValueError(
            f"corruption does not hurt: the loss is {clean:.4g} on clean prompts and "
            f"{corrupted:.4g} on corrupted ones."
        )


def mixed_seed(*values: object) -> int:
    """A seed that depends on all of the values."""
    return int(content_hash(*values)[:12], 16)


# By several workers

Job = tuple[tuple[int, Source, int], ...]
"""Sources, each with its number and how often it is read."""
Result = list[Example] | str
"""What was read of a source, or why nothing was."""


def _results(
    sources: Sequence[Source],
    config: TrainConfig,
    times: Sequence[int],
    judged: bool,
    runner: Runner,
    shared: _InCommon,
) -> Iterator[tuple[int, Result]]:
    """Every source's number and its result, as they come."""
    numbered = list(zip(range(len(sources)), sources, times, strict=True))
    if isinstance(runner, InProcess) or config.predictor.aligner != "invariant":
        yield from _read_job(tuple(numbered), config, judged, shared)
        return
    jobs = [tuple(numbered[start : start + JOB]) for start in range(0, len(numbered), JOB)]
    work = partial(_packed_job, config=config, judged=judged)
    for number, packed in runner.run(work, jobs, lost=_lost):
        if isinstance(packed, str):
            yield number, packed
        else:
            arrays, words = packed
            tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
            yield number, _unpacked(sources[number], tensors, words, shared)


def _read_job(
    job: Job, config: TrainConfig, judged: bool, shared: _InCommon
) -> Iterator[tuple[int, Result]]:
    for number, source, views in job:
        try:
            yield number, _read_source(source, config, views, judged, shared)
        except ValueError as error:
            yield number, str(error)


def _lost(job: Job, done: int, why: str) -> tuple[Sequence[tuple[int, Any]], Job | None]:
    """A process that ended costs the source it was reading."""
    number, _, _ = job[done]
    return [(number, why)], job[done + 1 :] or None


def _packed_job(
    job: Job, config: TrainConfig, judged: bool
) -> Iterator[tuple[int, tuple[dict[str, np.ndarray], dict[str, Any]] | str]]:
    for number, result in _read_job(job, config, judged, _InCommon(config)):
        if isinstance(result, str):
            yield number, result
        else:
            tensors, words = _packed(result)
            yield number, ({name: x.numpy() for name, x in tensors.items()}, words)


# As numbers and words


def _packed(examples: Sequence[Example]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The examples of one source without its weights and graph; invariants only."""
    tensors: dict[str, Tensor] = {}
    words: dict[str, Any] = {"views": len(examples)}
    for view, example in enumerate(examples):
        content, prior = example.reading.content, example.reading.prior
        assert isinstance(content, Tensor)
        tensors[f"table.{view}"] = content
        if prior is not None:
            tensors[f"prior.{view}"] = prior
    circuit, item = examples[0].circuit, examples[0].item
    if circuit is not None:
        tensors["circuit"] = circuit.mask
    for each in fields(Pairs) if item is not None else ():
        value = getattr(item[1], each.name) if item is not None else None
        if isinstance(value, Tensor):
            tensors[f"pairs.{each.name}"] = value
        elif value is not None:
            words[each.name] = value
    return tensors, words


def _unpacked(
    source: Source, tensors: Mapping[str, Tensor], words: Mapping[str, Any], shared: _InCommon
) -> list[Example]:
    """What `_packed` was given."""
    subject = shared.subject(source)
    graph = subject.graph
    mask = tensors.get("circuit")
    circuit = None if mask is None else Circuit.from_mask(graph, mask)
    named: dict[str, Any] = {
        name.removeprefix("pairs."): x for name, x in tensors.items() if name.startswith("pairs.")
    }
    rest = {name: value for name, value in words.items() if name != "views"}
    item = (subject, Pairs(**named, **rest)) if named else None
    examples = []
    for view in range(words["views"]):
        table, prior = tensors[f"table.{view}"], tensors.get(f"prior.{view}")
        reading = Reading(shared.structure(graph), table, prior, graph)
        examples.append(Example(source.id, reading, circuit, item, source=source))
    return examples


def _path(
    folder: Path, sources: Sequence[Source], config: TrainConfig, times: Sequence[int], judged: bool
) -> Path:
    """Where in a folder these readings lie, if this code made them."""
    predictor = config.predictor
    about = {
        "sources": [asdict(source) for source in sources],
        "predictor": [predictor.share, predictor.prior, predictor.transformation],
        "train": [config.pairs, config.labels, config.judged, list(times), judged],
        "revision": REVISION,
    }
    return folder / f"{content_hash(about)[:16]}.safetensors"


def _save(path: Path, results: Mapping[int, Result]) -> None:
    tensors: dict[str, Tensor] = {}
    words: dict[str, Any] = {}
    for number, result in results.items():
        if isinstance(result, str):
            words[str(number)] = result
            continue
        values, words[str(number)] = _packed(result)
        tensors |= {f"{number}.{name}": x.contiguous() for name, x in values.items()}
    save_artifact(
        path, kind=READINGS, config={}, seed=None, tensors=tensors, meta={"sources": words}
    )


def _load(path: Path, sources: Sequence[Source], shared: _InCommon) -> dict[int, Result]:
    artifact = load_artifact(path, READINGS)
    with taken_apart(path, "readings"):
        by_number: dict[str, dict[str, Tensor]] = {}
        for name, tensor in artifact.tensors.items():
            number, _, rest = name.partition(".")
            by_number.setdefault(number, {})[rest] = tensor
        words = artifact.meta["sources"]
        results: dict[int, Result] = {number: words[str(number)] for number in range(len(sources))}
        for number, source in enumerate(sources):
            if not isinstance(about := words[str(number)], str):
                results[number] = _unpacked(source, by_number[str(number)], about, shared)
        return results


# Scores found case by case


def save_targets(path: str | Path, targets: Mapping[str, Float[Tensor, " edge"]]) -> None:
    """Write scores by the id of their example."""
    save_artifact(path, kind=TARGETS, config={}, seed=None, tensors=dict(targets), meta={})


def load_targets(path: str | Path) -> Mapping[str, Float[Tensor, " edge"]]:
    """What `save_targets` wrote."""
    return load_artifact(path, TARGETS).tensors


def with_targets(
    examples: Sequence[Example], targets: Mapping[str, Float[Tensor, " edge"]]
) -> list[Example]:
    """The examples, those with a target with it; ValueError if none has, or one does not fit."""
    results = []
    for example in examples:
        target = targets.get(example.case)
        n_edges = len(example.reading.structure.edge_nodes)
        if target is not None and target.shape != (n_edges,):
            raise ValueError(
                f"the targets of {example.case} are {tuple(target.shape)}, and it has {n_edges} "
                "edges; find them again."
            )
        results.append(replace(example, target=target))
    if not any(example.target is not None for example in results):
        raise ValueError("none of the examples has a target; give targets that name some of them.")
    return results
