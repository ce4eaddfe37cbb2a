"""Training the network that looks: what every edge is to be worth is learned from refined rankings.

1. A `Lesson` has what the network reads of some cases of one graph, and the values it is to give:
   those of the refined rankings (`targets.py`).
2. A step draws a few lessons and cases of each. The values are compared by Huber's loss, each edge
   weighed by one over its rank, the better one of those it has before and after: then edges one to
   ten count as much as edges one thousand to ten thousand, as they do in log area.
3. Where the circuit is known, the cross-entropy of its edges is added.
4. The loop is that of every training (`training/loop.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.engine.relaxed import ranks
from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor.looker import Looker
from graphcircuits.predictor.paper.transform import Neighbourhoods
from graphcircuits.training.data import mixed_seed
from graphcircuits.training.loop import run_steps
from graphcircuits.training.objectives import label_weights, labels_loss
from graphcircuits.training.sources import Source
from lab.looking.cases import LookTraining

LOWEST = -30.0
"""What edges without a value score in the loss of labels."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """Cases of one graph, and what is to be learned from them."""

    sources: tuple[Source, ...]
    graph: ComponentGraph
    structure: Neighbourhoods
    tables: Float[Tensor, "case edge column"]
    """In half precision, as the looks: there are many."""
    looks: Float[Tensor, "case edge look_column"]
    values: Float[Tensor, "case edge"]
    """At which the look was taken."""
    targets: Float[Tensor, "case edge"]
    circuits: tuple[Bool[Tensor, " edge"] | None, ...]

    def __len__(self) -> int:
        return len(self.sources)

    def of(self, index: Sequence[int]) -> "Lesson":
        """Some of the cases."""
        rows = torch.tensor(list(index), dtype=torch.long)
        tensors = {
            name: getattr(self, name)[rows] for name in ("tables", "looks", "values", "targets")
        }
        return replace(
            self,
            sources=tuple(self.sources[x] for x in index),
            circuits=tuple(self.circuits[x] for x in index),
            **tensors,
        )


@dataclass(frozen=True, eq=False)
class _Lessons:
    """A looker that learns, as the loop takes it."""

    predictor: Looker
    lessons: Sequence[Lesson]
    config: LookTraining
    seed: int

    def backward(self, step: int) -> Tensor:
        draw = torch.Generator().manual_seed(mixed_seed(self.seed, step))
        sizes = torch.tensor([float(len(lesson)) ** 0.5 for lesson in self.lessons])
        count = min(self.config.groups, len(self.lessons))
        total = torch.zeros(())
        for number in torch.multinomial(sizes, count, generator=draw).tolist():
            lesson = self.lessons[number]
            most = max(1, min(self.config.train.batch, self.config.edges // lesson.graph.n_edges))
            index = torch.randperm(len(lesson), generator=draw)[:most]
            loss = self._loss(lesson.of(index.tolist())) / count
            loss.backward()
            total = total + loss.detach()
        return total

    def _loss(self, lesson: Lesson) -> Tensor:
        alive = lesson.values.isfinite()
        structure = lesson.structure.among(alive)
        scores = self.predictor(lesson.tables, lesson.looks, lesson.values, structure)
        weights = edge_weights(lesson.values, lesson.targets, alive)
        errors = F.huber_loss(
            scores.masked_fill(~alive, 0), lesson.targets.masked_fill(~alive, 0), reduction="none"
        )
        loss = (weights * errors).sum(-1).mean()
        known = [x for x, circuit in enumerate(lesson.circuits) if circuit is not None]
        if known and self.config.train.label_weight:
            circuits = [circuit for circuit in lesson.circuits if circuit is not None]
            labels = labels_loss(
                scores.masked_fill(~alive, LOWEST)[known],
                torch.stack(circuits),
                torch.stack([label_weights(circuit) for circuit in circuits]),
            )
            loss = loss + self.config.train.label_weight * labels / len(lesson)
        return loss

    def validate(self) -> dict[str, dict[str, float]]:
        return {}


def edge_weights(
    values: Float[Tensor, "case edge"],
    targets: Float[Tensor, "case edge"],
    alive: Bool[Tensor, "case edge"],
) -> Float[Tensor, "case edge"]:
    """One over the better rank of each edge, as shares of the case."""
    best = torch.minimum(ranks(values), ranks(targets)) + 1
    weights = (1 / best).to(targets) * alive
    return weights / weights.sum(-1, keepdim=True)


def train_looker(
    lessons: Sequence[Lesson], config: LookTraining, *, seed: int = 0, log: Any = None
) -> Looker:
    """A looker that learned these lessons."""
    if not lessons:
        raise ValueError("there is nothing to learn from: no case of these sources was refined.")
    columns = lessons[0].tables.shape[-1]
    looker = Looker(config.looker, columns, generator=torch.Generator().manual_seed(seed))
    standardize(looker, [(lesson.tables, lesson.looks) for lesson in lessons])
    run_steps(_Lessons(looker, lessons, config, seed), [config.train], log=log)
    return looker.eval().requires_grad_(False)


def standardize(looker: Looker, read: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Take mean, deviation and reach from the tables and looks of the training cases."""
    looker.reach.fill_(math.log(max(table.shape[-2] for table, _ in read)))
    rows = [torch.cat(both, dim=-1).flatten(0, -2) for both in read]
    count = sum(map(len, rows))
    mean = torch.stack([x.double().sum(0) for x in rows]).sum(0) / count
    squares = [(x.double() - mean).square().sum(0) for x in rows]
    looker.mean.copy_(mean)
    looker.deviation.copy_((torch.stack(squares).sum(0) / count).sqrt().clamp_min(1e-3))
