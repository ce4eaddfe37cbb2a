"""Trainings one after the other, by the interface of trainings side by side."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torch import Tensor

from graphcircuits.store import content_hash
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example, read
from graphcircuits.training.sources import unit_source
from graphcircuits.training.train import train
from graphcircuits.training.validation import validate


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training."""

    config: TrainConfig
    seed: int
    train: tuple[str, ...]
    validate: tuple[str, ...] = ()
    test: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of it."""

    history: dict[int, dict[str, float]]
    scores: dict[str, dict[str, float]]
    weights: dict[str, Tensor]


_READ: dict[str, list[Example]] = {}


def train_side_by_side(
    runs: Sequence[Run],
    *,
    device: str = "cpu",
    precision: str = "float32",
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    subjects: str | Path | None = None,
) -> list[Trained]:
    """Train each run."""
    return [_trained(run, device, progress, subjects) for run in runs]


def _trained(
    run: Run,
    device: str,
    progress: Callable[[int, int], None] | None,
    subjects: str | Path | None,
) -> Trained:
    found = train(
        _examples(run, run.train, subjects),
        run.config,
        seed=run.seed,
        validation=_examples(run, run.validate, subjects, views=1),
        device=device,
        progress=progress,
    )
    history = {
        step: {case: own["qkv"] for case, own in record["cases"].items()}
        for step, record in found.history.items()
    }
    tests = _examples(run, run.test, subjects, views=1)
    weights = {name: x.cpu() for name, x in found.predictor.state_dict().items()}
    return Trained(history, validate(found.predictor, tests) if tests else {}, weights)


def _examples(
    run: Run, ids: Sequence[str], subjects: str | Path | None, *, views: int | None = None
) -> list[Example]:
    config = run.config
    shape = replace(config.predictor, width=64, layers=1, dropout=0.0)
    about = [asdict(shape), config.pairs, config.labels, views or config.views]
    made = []
    for id in ids:
        key = content_hash(id, str(subjects), about)
        if key not in _READ:
            found = read([unit_source(id, subjects)], config, views=views, judged=False)
            assert not found.left_out, found.left_out
            _READ[key] = found.examples
        made += _READ[key]
    return made


def can_share(one: TrainConfig, other: TrainConfig) -> bool:
    """Whether trainings may be side by side."""
    return replace(one, lr=1.0, weight_decay=0.0) == replace(other, lr=1.0, weight_decay=0.0)
