"""Trained predictors: one from examples, and several seeds of it as an ensemble.

1. `train_predictor` minimizes the weighted objectives (`objectives.py`) of one predictor. A step
   takes a batch of readings (`batches.py`); held-out examples are scored by `validation.py`; the
   loop is that of every training (`loop.py`). Inputs are scaled by those of all examples.
2. `train_members` trains several, here or as the jobs of a runner. A worker gets a `Lesson`, which
   is small, and reads the examples for itself: what is read is large. Weights come back as arrays.
3. `ensemble_of` puts members together, with what they say of their training.

Nothing global is touched, so trainings in several threads end where single ones do.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphcircuits.cases.relations import groups_of
from graphcircuits.io.store import content_hash
from graphcircuits.jobs.runner import IN_PROCESS, ONE_CPU, Resources, Runner
from graphcircuits.predictor.ensemble import Ensemble, seen_of
from graphcircuits.predictor.invariant import InvariantAligner
from graphcircuits.predictor.model import Predictor
from graphcircuits.training.batches import Batches, ExampleGroup, batches, grouped
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import (
    Example,
    ReadExamples,
    ReadProgress,
    load_targets,
    mixed_seed,
    read,
    with_targets,
)
from graphcircuits.training.loop import Log, StepProgress, checkpoint_path, run_steps
from graphcircuits.training.sources import Source, split
from graphcircuits.training.validation import figures_of

SeedProgress = Callable[[int, int, int], None]
"""Called with a seed, its steps that are done, and how many there are."""
SeedLog = Callable[[int, int, Mapping[str, float]], None]
"""Called with a seed, a step and the figures measured there."""


# One predictor


@dataclass(frozen=True, eq=False)
class TrainedPredictor:
    """A predictor and the figures measured on the way, by step."""

    predictor: Predictor
    history: dict[int, dict[str, Any]]
    step: int
    """The step whose weights these are."""


TrainData = tuple[Batches, list[ExampleGroup]]
"""What is learned from, and what is scored at regular steps."""


def train_data(
    examples: Sequence[Example],
    validation: Sequence[Example],
    config: TrainConfig,
    device: torch.device | str,
) -> TrainData:
    """Examples on the device that they are used on, prepared once for all seeds."""
    held_out = grouped(validation, config.predictor, device)
    return batches(examples, config, device), held_out


@dataclass(frozen=True, eq=False)
class _OnExamples:
    """One predictor that learns from examples, as the loop takes it."""

    predictor: Predictor
    batches: Batches
    validation: Sequence[ExampleGroup]
    config: TrainConfig
    seed: int

    def backward(self, step: int) -> Tensor:
        device = self.predictor.readout.weight.device
        noise_seed = mixed_seed(self.seed, step, "noise")
        identifiers = torch.Generator().manual_seed(noise_seed)
        noise = torch.Generator(device).manual_seed(noise_seed)
        total = torch.zeros((), device=device)
        for batch in self.batches.at(self.seed, step):
            loss = batch.loss(self.predictor, self.config, generator=identifiers, noise=noise)
            loss.backward()
            total = total + loss.detach()
        return total

    def validate(self) -> dict[str, dict[str, float]]:
        return figures_of([self.predictor], self.validation)


def train_predictor(
    examples: Sequence[Example],
    config: TrainConfig,
    *,
    seed: int = 0,
    validation: Sequence[Example] = (),
    checkpoint: str | Path | None = None,
    device: torch.device | str = "cpu",
    data: TrainData | None = None,
    progress: StepProgress | None = None,
    log: Log | None = None,
) -> TrainedPredictor:
    """Train one predictor; with a `checkpoint` file, continue from what it holds and update it.

    An interrupt that `progress` raises ends it after a whole step, which the checkpoint then holds.
    `data` is what several seeds share: the examples and the held-out ones, prepared.
    """
    if not examples:
        raise ValueError("there is nothing to train on: no case was given.")
    if config.keep == "best" and not validation:
        raise ValueError('keep="best" needs held-out examples to choose by, and none were given.')
    predictor = Predictor(config.predictor, generator=torch.Generator().manual_seed(seed))
    predictor.to(device)
    _standardize(predictor, examples)
    about = _about(examples, validation, config, seed, device) if checkpoint else {}
    data = data or train_data(examples, validation, config, device)
    learner = _OnExamples(predictor, *data, config, seed)
    state = run_steps(
        learner, [config], checkpoint=checkpoint, about=about, progress=progress, log=log
    )
    return TrainedPredictor(predictor, state.history, state.best_step if state.best else state.step)


def _about(
    examples: Sequence[Example],
    validation: Sequence[Example],
    config: TrainConfig,
    seed: int,
    device: torch.device | str,
) -> dict[str, Any]:
    """What makes a training the same as another."""
    content = [[x.reading.content, x.reading.prior, x.target] for x in examples]
    runs = [x.item[1] for x in examples if x.item is not None]
    return {
        "train": asdict(config),
        "seed": seed,
        "device": torch.device(device).type,
        "cases": list({x.case: None for x in examples}),
        "validation": list({x.case: None for x in validation}),
        "data": content_hash(content, [[x.clean, x.corrupted] for x in runs]),
    }


def _standardize(predictor: Predictor, examples: Sequence[Example]) -> None:
    """Scale the inputs by those of all examples."""
    align = predictor.align
    if isinstance(align, InvariantAligner):
        contents = [example.reading.content for example in examples]
        align.standardize_by(torch.cat([x for x in contents if isinstance(x, Tensor)]))


# Several of them


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a worker needs to train a predictor: where examples come from, not the examples."""

    sources: tuple[Source, ...]
    without_fold: int | None = None
    """Of these, only what shares nothing with this fold is learned from; all of it if None."""
    validation: tuple[Source, ...] = ()
    config: TrainConfig
    judged: bool = False
    """Whether examples can be run."""
    targets: Path | None = None
    """The file of scores found before."""
    readings: Path | None = None
    """The folder of what was read; without one every worker reads."""
    checkpoints: Path | None = None
    device: str = "cpu"

    def read(
        self,
        runner: Runner = IN_PROCESS,
        *,
        validation: bool = False,
        progress: ReadProgress | None = None,
    ) -> ReadExamples:
        """Examples of all sources, which are read together whatever is held out; or, read once
        each, of those that are scored on the way."""
        result = read(
            self.validation if validation else self.sources,
            self.config,
            views=1 if validation else None,
            judged=self.judged,
            runner=runner,
            folder=self.readings,
            progress=progress,
        )
        if self.targets is None or validation:
            return result
        known = load_targets(self.targets)
        return ReadExamples(with_targets(result.examples, known), result.left_out)

    def learned(self, examples: Sequence[Example]) -> list[Example]:
        """Of all examples those that are learned from."""
        if self.without_fold is None:
            return list(examples)
        left = set(split(self.sources, self.without_fold)[0])
        return [example for example in examples if example.source in left]


def train_members(
    examples: Sequence[Example],
    config: TrainConfig,
    *,
    seeds: Sequence[int],
    validation: Sequence[Example] = (),
    checkpoints: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: SeedProgress | None = None,
    log: SeedLog | None = None,
) -> list[TrainedPredictor]:
    """One predictor for each seed, trained here on all the examples, whose subjects they share.

    `checkpoints` is a folder with one file for each seed; callbacks hear the seed first.
    """
    data = train_data(examples, validation, config, device) if examples else None
    members = []
    for seed in seeds:
        trained = train_predictor(
            examples,
            config,
            seed=seed,
            validation=validation,
            checkpoint=checkpoint_path(checkpoints, seed) if checkpoints else None,
            device=device,
            data=data,
            progress=partial(progress, seed) if progress else None,
            log=partial(log, seed) if log else None,
        )
        trained.predictor.cpu()
        members.append(trained)
    return members


MemberJob = tuple[Lesson, int]
"""What is learned, and the seed."""


def train_jobs(
    jobs: Sequence[MemberJob],
    *,
    runner: Runner,
    device_share: float | None = None,
    resources: Resources = ONE_CPU,
    retries: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[TrainedPredictor]:
    """The predictor of every job, each trained by a worker; in the order of the jobs.

    `device_share` is the share of a GPU's memory that a worker may take, where several have one.
    """
    members: dict[int, TrainedPredictor] = {}
    work, numbered = partial(_train_job, device_share), list(enumerate(jobs))
    found = runner.run(work, numbered, resources=resources, retries=retries)
    for number, step, weights, history in found:
        predictor = Predictor(jobs[number][0].config.predictor).eval()
        predictor.load_state_dict({name: torch.from_numpy(x) for name, x in weights.items()})
        members[number] = TrainedPredictor(predictor, history, step)
        if progress:
            progress(len(members), len(jobs))
    return [members[number] for number, _ in numbered]


def _train_job(
    device_share: float | None, job: tuple[int, MemberJob]
) -> Iterator[tuple[int, int, dict[str, np.ndarray], dict[int, dict[str, Any]]]]:
    number, (lesson, seed) = job
    if device_share is not None and torch.device(lesson.device).type == "cuda":
        torch.cuda.set_per_process_memory_fraction(device_share)
    (trained,) = train_members(
        lesson.learned(lesson.read().examples),
        lesson.config,
        seeds=[seed],
        validation=lesson.read(validation=True).examples,
        checkpoints=lesson.checkpoints,
        device=lesson.device,
    )
    weights = {name: x.numpy() for name, x in trained.predictor.state_dict().items()}
    yield number, trained.step, weights, trained.history


def ensemble_of(
    members: Sequence[TrainedPredictor],
    examples: Sequence[Example],
    config: TrainConfig,
    seeds: Sequence[int],
) -> Ensemble:
    """Predictors of several seeds that learned from the same examples, as one."""
    steps = [member.step for member in members]
    about = {"train": asdict(config), "seeds": list(seeds), "steps": steps}
    return Ensemble(tuple(member.predictor for member in members), origin_of(examples) | about)


def origin_of(examples: Sequence[Example]) -> dict[str, Any]:
    """What a predictor says of its training: cases, what they are related to, and subjects."""
    cases: dict[str, frozenset[str]] = {}
    subjects, fleets = [], Counter[str]()
    for name, example in {example.case: example for example in examples}.items():
        source = example.source
        if source is None:
            cases[name] = groups_of(name)
            continue
        fleets[source.fleet] += 1
        if source.fleet != "language":
            cases[source.task] = frozenset(source.groups)
        subjects.append(example.subject())
    origin: dict[str, Any] = {
        "cases": list(cases),
        "groups": sorted(frozenset().union(*cases.values())),
        "fleets": dict(fleets),
    }
    return origin | ({"subjects": seen_of(subjects)} if subjects else {})
