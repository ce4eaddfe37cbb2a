"""The seeds of one training as jobs of a runner, each a predictor.

1. A worker reads what is learned from for itself, or takes it from the folder of readings: what is
   read is large, and where it comes from is small.
2. It trains its seed as `train.train` does, with a checkpoint in the folder of all: a worker that
   was lost costs the steps since the last one.
3. Weights come back as arrays, and are put together as if all had been trained here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from graphcircuits.jobs.runner import ONE_CPU, Resources, Runner
from graphcircuits.predictor.ensemble import Ensemble
from graphcircuits.predictor.model import Predictor
from graphcircuits.training.batches import StackPool
from graphcircuits.training.checkpoint import checkpoint_path
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example, TrainProgress, load_targets, read, with_targets
from graphcircuits.training.sources import Source
from graphcircuits.training.train import together, train


@dataclass(frozen=True, kw_only=True)
class SeedLesson:
    """What a worker needs to train a seed."""

    learned: tuple[Source, ...]
    validation: tuple[Source, ...] = ()
    config: TrainConfig
    judged: bool = False
    """Whether examples can be run."""
    targets: Path | None = None
    """The file of scores found before."""
    readings: Path | None = None
    """The folder that keeps what was read; without one every worker reads."""
    checkpoints: Path
    device: str = "cpu"


SeedFound = tuple[int, int, Mapping[str, np.ndarray]]
"""A seed, the step whose weights were kept, and these."""


def train_seeds(
    lesson: SeedLesson,
    examples: Sequence[Example],
    *,
    seeds: Sequence[int],
    runner: Runner,
    resources: Resources = ONE_CPU,
    retries: int = 0,
    progress: TrainProgress | None = None,
) -> Ensemble:
    """One predictor per seed; `examples` are those of the lesson. `progress` hears of seeds."""
    steps: dict[int, int] = {}
    members: dict[int, Predictor] = {}
    jobs = runner.run(partial(_train, lesson), seeds, resources=resources, retries=retries)
    for seed, step, weights in jobs:
        steps[seed] = step
        members[seed] = Predictor(lesson.config.predictor).eval()
        members[seed].load_state_dict({name: torch.from_numpy(x) for name, x in weights.items()})
        if progress:
            progress(len(members), len(seeds))
    found = [members[seed] for seed in seeds]
    return together(found, examples, lesson.config, seeds, [steps[seed] for seed in seeds])


def _train(lesson: SeedLesson, seed: int) -> Iterator[SeedFound]:
    config, device = lesson.config, lesson.device
    reading = partial(read, config=config, judged=lesson.judged, kept=lesson.readings)
    examples = reading(lesson.learned).examples
    if lesson.targets is not None:
        examples = with_targets(examples, load_targets(lesson.targets))
    validation = reading(lesson.validation, views=1).examples
    trained = train(
        examples,
        config,
        seed=seed,
        validation=validation,
        checkpoint=checkpoint_path(lesson.checkpoints, seed),
        device=device,
        stacks=None if config.by_labels_alone else StackPool([*examples, *validation], device),
    )
    weights = trained.predictor.cpu().state_dict()
    yield seed, trained.step, {name: x.numpy() for name, x in weights.items()}
