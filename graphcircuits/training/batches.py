"""What each step of a training passes through the network, and the loss of it.

1. Where labels are all there is, a step takes readings of any graphs and sets them side by side as
   one graph (`Mixed`).
2. Where subjects are run as well, examples are grouped by architecture (`ExampleGroup`): tables,
   labels and targets of a group are stacked, and so are its subjects (`engine/stack.py`). A step
   draws a group by its size and up to `batch` of its examples, and further groups if it has fewer,
   four at most (`Grouped`). Where the runs of a step would not fit in memory together, it is
   several batches, whose gradients add up.
3. `Batch.loss` is the weighted sum of the objectives.

Draws depend on seed and step alone, so that several seeds share what is prepared here.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.engine.memory import Footprint, bytes_for
from graphcircuits.engine.stack import Stack, architecture
from graphcircuits.predictor.model import Predictor, PredictorConfig, Reading, join
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example, mixed_seed
from graphcircuits.training.objectives import (
    distill_loss,
    faithfulness_loss,
    label_weights,
    labels_loss,
)

MOST_GROUPS = 4
"""Groups that a step may draw from."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Readings that go through the network together, and what their scores are judged by."""

    readings: tuple[Reading, ...]
    """One that holds all cases, joined or stacked; or one per case, where they cannot be."""
    share: float
    """Of the examples of the step."""
    labels: Bool[Tensor, "..."]
    weights: Float[Tensor, "..."]
    """Of edges in the loss by labels, zero where they are not known; the share is in it."""
    stack: Stack | None = None
    targets: Float[Tensor, "subject edge"] | None = None
    known: Bool[Tensor, " subject"] | None = None

    def loss(
        self,
        predictor: Predictor,
        config: TrainConfig,
        *,
        generator: torch.Generator,
        noise: torch.Generator,
    ) -> Float[Tensor, ""]:
        """The weighted objectives, and the penalty on what is added to a prior."""
        scores = scores_of(predictor, self.readings, generator, noise)
        total = scores.new_zeros(())
        if config.label_weight:
            total = total + config.label_weight * labels_loss(scores, self.labels, self.weights)
        if config.faithfulness_weight:
            assert self.stack is not None
            loss = faithfulness_loss(scores, self.stack, config, noise)
            total = total + self.share * config.faithfulness_weight * loss
        if config.distill_weight:
            assert self.targets is not None
            assert self.known is not None
            loss = distill_loss(scores, self.targets, self.known, generator=noise)
            total = total + self.share * config.distill_weight * loss
        if config.penalty and config.predictor.prior:
            starts = [predictor.start(reading) for reading in self.readings]
            start = _together([x for x in starts if x is not None])
            total = total + self.share * config.penalty * (scores - start).square().mean()
        return total


def scores_of(
    predictor: Predictor,
    readings: Sequence[Reading],
    generator: torch.Generator,
    noise: torch.Generator | None = None,
) -> Float[Tensor, "*case edge"]:
    """The logits of a reading that holds all cases, or of one per case, stacked."""
    return _together([predictor(x, generator=generator, noise=noise) for x in readings])


def _together(values: Sequence[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 and values[0].ndim == 2 else torch.stack(list(values))


# By labels alone


class Mixed:
    """Readings of any graphs, side by side."""

    def __init__(self, examples: Sequence[Example], config: TrainConfig) -> None:
        self.examples = [x for x in examples if x.circuit is not None]
        if not self.examples:
            raise ValueError("no example has labels; give faithfulness_weight or labelled cases.")
        self.size = min(config.batch or len(self.examples), len(self.examples))
        # Attention along a complete DAG takes one case at a time.
        apart = config.predictor.learner != "dirgnn" and any(
            example.reading.structure.order is not None for example in self.examples
        )
        self.joinable = config.predictor.aligner == "invariant" and not apart
        whole = self.joinable and self.size == len(self.examples)
        self.all = [self._joined(self.examples)] if whole else []

    def at(self, seed: int, step: int) -> Iterable[Batch]:
        """One batch, or one for each case where they cannot be joined."""
        if self.all:
            return self.all
        generator = torch.Generator().manual_seed(mixed_seed(seed, step))
        drawn = torch.randperm(len(self.examples), generator=generator)[: self.size].tolist()
        chosen = [self.examples[number] for number in drawn]
        if self.joinable:
            return [self._joined(chosen)]
        return (self._joined([example]) for example in chosen)

    def _joined(self, examples: Sequence[Example]) -> Batch:
        readings = [example.reading for example in examples]
        masks = [example.circuit.mask for example in examples if example.circuit is not None]
        device = readings[0].structure.edge_nodes.device
        weights = torch.cat([label_weights(mask) for mask in masks]) / self.size
        reading = readings[0] if len(readings) == 1 else join(readings)
        share = len(examples) / self.size
        labels = torch.cat(masks)[None].to(device)
        return Batch((reading,), share, labels, weights[None].to(device))


# With subjects that are run


@dataclass(frozen=True, eq=False)
class ExampleGroup:
    """Examples of one architecture, on the device that they are used on."""

    examples: tuple[Example, ...]
    stack: Stack | None
    """Their subjects, each once however many readings it has."""
    rows: tuple[int, ...]
    """Where in the stack each example's subject is."""
    reading: Reading | None
    """All readings, stacked; None where they have to be passed one by one."""
    labels: Bool[Tensor, "example edge"]
    weights: Float[Tensor, "example edge"]
    targets: Float[Tensor, "example edge"]
    known: Bool[Tensor, " example"]

    @classmethod
    def of(
        cls, examples: Sequence[Example], config: PredictorConfig, device: torch.device | str
    ) -> "ExampleGroup":
        """Stack what can be stacked."""
        items = {id(x.item): x.item for x in examples if x.item is not None}
        order = list(items)
        n_edges = len(examples[0].reading.structure.edge_nodes)
        nothing, unknown = torch.zeros(n_edges, dtype=torch.bool), torch.zeros(n_edges)
        labels = [nothing if x.circuit is None else x.circuit.mask for x in examples]
        weights = [
            unknown if x.circuit is None else label_weights(x.circuit.mask) for x in examples
        ]
        targets = [unknown if x.target is None else x.target for x in examples]
        return cls(
            tuple(examples) if _stackable(config) else tuple(x.to(device) for x in examples),
            Stack.of(list(items.values()), device) if items else None,
            tuple(order.index(id(x.item)) for x in examples) if items else (),
            _stacked(examples).to(device) if _stackable(config) else None,
            torch.stack(labels).to(device),
            torch.stack(weights).to(device),
            torch.stack(targets).to(device),
            torch.tensor([x.target is not None for x in examples]).to(device),
        )

    def __len__(self) -> int:
        return len(self.examples)

    def at_once(self, masks: int, rows: int = 0, *, grad: bool) -> int:
        """Examples whose runs fit in memory together, under so many masks on `rows` prompts each
        (0: all); one at least."""
        item = next((x.item for x in self.examples if x.item is not None), None)
        if item is None or self.stack is None:
            return len(self)
        runs = masks * (min(rows, self.stack.n_pairs) or self.stack.n_pairs)
        size = Footprint(item[0], self.stack.own.shape[2])
        numbers = runs * (size.recorded if grad else size.masked(grad=False))
        fit = bytes_for(self.stack.device, None) // (numbers * torch.float32.itemsize)
        return min(len(self), max(1, fit))

    def readings(self, index: Sequence[int]) -> tuple[Reading, ...]:
        """Those of some examples."""
        if self.reading is None:
            return tuple(self.examples[number].reading for number in index)
        if list(index) == list(range(len(self))):
            return (self.reading,)
        content, prior = self.reading.content, self.reading.prior
        assert isinstance(content, Tensor)
        rows = torch.tensor(list(index)).to(content.device)
        prior = None if prior is None else prior[rows]
        return (Reading(self.reading.structure, content[rows], prior),)

    def stack_of(self, index: Sequence[int]) -> Stack | None:
        """The subjects of some examples."""
        if self.stack is None:
            return None
        rows = [self.rows[number] for number in index]
        return self.stack if rows == list(range(len(self.stack))) else self.stack.subset(rows)

    def batch(self, index: Sequence[int], of: int, config: TrainConfig) -> Batch:
        """Some examples, of so many in the step."""
        rows = torch.tensor(list(index)).to(self.labels.device)
        return Batch(
            self.readings(index),
            len(index) / of,
            self.labels[rows],
            self.weights[rows] / of,
            self.stack_of(index) if config.faithfulness_weight else None,
            self.targets[rows],
            self.known[rows],
        )


def _stackable(config: PredictorConfig) -> bool:
    """Whether readings of one graph go through the network along a leading axis."""
    return config.aligner == "invariant" and config.connectivity != "complete"


def _stacked(examples: Sequence[Example]) -> Reading:
    tables = [x.reading.content for x in examples if isinstance(x.reading.content, Tensor)]
    priors = [x.reading.prior for x in examples if x.reading.prior is not None]
    prior = torch.stack(priors) if priors else None
    return Reading(examples[0].reading.structure, torch.stack(tables), prior)


def grouped(
    examples: Sequence[Example], config: PredictorConfig, device: torch.device | str
) -> list[ExampleGroup]:
    """Examples by the architecture of their subjects and the number of prompts, or by graph where
    they are not run."""
    by_key: dict[object, list[Example]] = {}
    for x in examples:
        key: object = id(x.reading.structure)
        if x.item is not None:
            key = (architecture(x.item[0]), len(x.item[1]))
        by_key.setdefault(key, []).append(x)
    return [ExampleGroup.of(some, config, device) for some in by_key.values()]


class Grouped:
    """Examples of one architecture at a time."""

    def __init__(self, groups: Sequence[ExampleGroup], config: TrainConfig) -> None:
        if config.faithfulness_weight and any(group.stack is None for group in groups):
            raise ValueError(
                "faithfulness needs subjects to run, and some examples have none; read them with "
                "judged=True."
            )
        if config.distill_weight and not any(bool(group.known.any()) for group in groups):
            raise ValueError("distill needs examples with targets, and none has one.")
        self.groups, self.config = groups, config

    @cached_property
    def _limits(self) -> list[int]:
        """Asked once, when everything lies in memory."""
        runs = self.config.faithfulness_weight > 0
        masks, rows = self.config.masks, self.config.rows
        return [x.at_once(masks, rows, grad=True) if runs else len(x) for x in self.groups]

    def at(self, seed: int, step: int) -> Iterator[Batch]:
        """Batches that fit in memory, whose gradients add up to that of the step."""
        drawn = self._drawn(seed, step)
        total = sum(len(index) for _, index in drawn)
        for number, index in drawn:
            limit = self._limits[number]
            for start in range(0, len(index), limit):
                some = index[start : start + limit]
                yield self.groups[number].batch(some, total, self.config)

    def _drawn(self, seed: int, step: int) -> list[tuple[int, list[int]]]:
        """Groups, and which of their examples."""
        generator = torch.Generator().manual_seed(mixed_seed(seed, step))
        sizes = torch.tensor([float(len(group)) for group in self.groups])
        left = self.config.batch or int(sizes.sum())
        most = len(self.groups) if not self.config.batch else min(MOST_GROUPS, len(self.groups))
        drawn = []
        for number in torch.multinomial(sizes, most, generator=generator).tolist():
            order = torch.randperm(len(self.groups[number]), generator=generator)
            drawn.append((number, sorted(order[:left].tolist())))
            left -= len(drawn[-1][1])
            if left <= 0:
                break
        return drawn


Batches = Mixed | Grouped
"""What each step trains on."""


def batches(
    examples: Sequence[Example], config: TrainConfig, device: torch.device | str
) -> Batches:
    """By labels alone examples of all graphs mix; subjects are run group by group."""
    if config.by_labels_alone:
        return Mixed([example.to(device) for example in examples], config)
    return Grouped(grouped(examples, config.predictor, device), config)
