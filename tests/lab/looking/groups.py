"""Small groups of cases: shipped subjects of two architectures, few prompts, a small looker."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from graphcircuits.predictor.looker import Looker, LookerConfig
from graphcircuits.predictor.looking import rank_logits
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.sources import Source, shipped_sources
from lab.looking.cases import LookGroup, LookTraining, read_cases
from tests.predictor.graphs import seeded

ALIKE = ("tb-count-frequency", "tb-histogram", "tb-rank")
"""Of one architecture and two folds; the first two have edges that do nothing."""
OTHER = "ib-7"
"""Of another."""


def settings(train: dict[str, Any] | None = None, **options: Any) -> LookTraining:
    """A training of a few steps on few prompts."""
    looker = LookerConfig(width=8, layers=1, rounds=1, sizes=3, prompts=4)
    numbers: dict[str, Any] = {"read": 8, "looked": 4, "judged": 6, "refined": 3}
    config = TrainConfig(**({"steps": 3, "lr": 1e-2, "batch": 4} | (train or {})))
    return LookTraining(**({"looker": looker, "train": config} | numbers | options))


def sources(*ids: str) -> tuple[Source, ...]:
    return tuple(shipped_sources(ids or ALIKE))


@cache
def group() -> LookGroup:
    """The cases that are ALIKE, which no test changes."""
    (found,), left_out = read_cases(sources(), settings())
    assert not left_out
    return found


def make_looker(seed: int = 0, *, speaks: bool = True) -> Looker:
    """One that says something at random, or has learned nothing."""
    looker = Looker(settings().looker, group().tables.shape[-1], generator=seeded(seed))
    if speaks:
        looker.readout.weight.data.normal_(generator=seeded(seed))
    return looker.eval().requires_grad_(False)


def random_values(seed: int = 0) -> Tensor:
    """Rankings of the living edges of all cases in the group."""
    starts = group().starts
    return rank_logits(torch.randn(starts.shape, generator=seeded(seed)), starts.isfinite())


def finite(values: Tensor) -> Tensor:
    """The same ranking for those who take numbers alone: silent edges last."""
    return values.where(values.isfinite(), values[values.isfinite()].min() - 1)


@dataclass(frozen=True)
class Few(Source):
    """One that has three prompt pairs, whatever is asked."""

    def pairs(self, subject: Transformer, n: int, seed: int) -> Pairs:
        return super().pairs(subject, n, seed)[:3]


@dataclass(frozen=True)
class Flat(Source):
    """One whose corruption changes nothing."""

    def pairs(self, subject: Transformer, n: int, seed: int) -> Pairs:
        pairs = super().pairs(subject, n, seed)
        return replace(pairs, corrupted=pairs.clean)


@dataclass(frozen=True)
class Answering(Source):
    """One whose loss names answers."""

    def pairs(self, subject: Transformer, n: int, seed: int) -> Pairs:
        pairs = super().pairs(subject, n, seed)
        return replace(pairs, loss_name="cross-entropy", targets=torch.zeros_like(pairs.clean))


def as_kind(kind: type[Source], source: Source) -> Source:
    """The same source, of one of the kinds above."""
    names = ("order", "path", "task", "groups", "folds", "prompts")
    return kind(**{name: getattr(source, name) for name in names})


def ids_of(some: Sequence[Source]) -> list[str]:
    return [source.id for source in some]
