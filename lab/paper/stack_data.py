"""What side-by-side training reads: cases of one graph and nearly one width, stacked.

1. A unit is a subject with the examples that were read of it: of `tabpfn` one, with the vectors of
   every prompt pair at every scored position, of `invariant` tables of several draws of prompts.
2. `buckets` puts units of one graph together, and where vectors are read only those whose MLPs are
   alike in width, since narrower ones are filled up to the widest.
3. `Bucket.take` is what some runs look at in some cases, on the device: for each run its own cases
   and pairs, with identifiers that `Bucket.draw` drew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from graphcircuits.circuit import Circuit
from graphcircuits.predictor.measure.features import Features
from graphcircuits.predictor.model import PredictorConfig, structure_of
from graphcircuits.predictor.paper.transform import Neighbourhoods
from graphcircuits.training.data import Example
from graphcircuits.training.objectives import label_weights
from lab.paper.side_by_side import StackedTables, StackedVectors
from lab.paper.vectors import VectorLayout, vector_lists

LIKE = 1.5
"""How much wider than the narrowest the MLPs of a bucket may be."""


@dataclass(frozen=True, eq=False)
class StackCase:
    """A subject as its bucket takes it."""

    id: str
    circuit: Circuit
    values: Mapping[str, Float[Tensor, "vector pair position width"]]
    """By name of the width; of `tabpfn` only."""
    scored: Bool[Tensor, "pair position"]
    layout: VectorLayout | None
    tables: Float[Tensor, "view node column"] | None
    """Of `invariant` only."""

    @classmethod
    def of(cls, examples: Sequence[Example], config: PredictorConfig) -> "StackCase":
        """What was read of a subject, view by view."""
        id, circuit, made = examples[0].case, examples[0].circuit, examples[0].reading.content
        assert circuit is not None
        if isinstance(made, Tensor):
            contents = [x.reading.content for x in examples]
            tables = [x for x in contents if isinstance(x, Tensor)]
            nothing = torch.zeros(0, 0, dtype=torch.bool)
            return cls(id, circuit, {}, nothing, None, torch.stack(tables))
        layout, vectors = vector_lists(made, config.transformation, standardize=config.standardize)
        scored, place = _grid(made)
        values = {name: _on_grid(v, scored, place) for name, v in vectors.items()}
        return cls(id, circuit, values, scored, layout, None)

    @property
    def width(self) -> int:
        """By which units are put together."""
        return self.values["mlp"].shape[-1] if self.values else 0


def _grid(made: Features) -> tuple[Bool[Tensor, "pair position"], Int[Tensor, " context"]]:
    """Which places of a pair hold a scored position, and the place of every context."""
    counts = torch.bincount(made.pair)
    first = counts.cumsum(0) - counts
    slot = torch.arange(len(made.pair)) - first[made.pair]
    scored = torch.arange(int(counts.max())) < counts[:, None]
    return scored, made.pair * scored.shape[1] + slot


def _on_grid(
    values: Float[Tensor, "vector context width"],
    scored: Bool[Tensor, "pair position"],
    place: Int[Tensor, " context"],
) -> Float[Tensor, "vector pair position width"]:
    whole = values.new_zeros(len(values), scored.numel(), values.shape[-1])
    whole[:, place] = values
    return whole.unflatten(1, scored.shape)


@dataclass(frozen=True, eq=False)
class Bucket:
    """Units of one graph, on the device that they are used on."""

    ids: tuple[str, ...]
    circuits: tuple[Circuit, ...]
    structure: Neighbourhoods
    layout: VectorLayout | None
    values: Mapping[str, Float[Tensor, "case vector pair position width"]]
    known: Mapping[str, Bool[Tensor, "case width"]]
    scored: Bool[Tensor, "case pair position"]
    tables: Float[Tensor, "case view node column"] | None
    labels: Bool[Tensor, "case edge"]
    weights: Float[Tensor, "case edge"]

    @property
    def numbers(self) -> int:
        """In all vectors of one case at one context, or in its table."""
        if self.tables is not None:
            return self.tables[0, 0].numel()
        return sum(x.shape[1] * x.shape[4] for x in self.values.values())

    def draw(
        self, generator: torch.Generator, cases: int, identifiers: int
    ) -> dict[str, Float[Tensor, "case component width identifier"]]:
        """Identifiers of so many cases, by name of the width; the generator is on the device."""
        if self.layout is None:
            return {}
        return {
            name: torch.randn(
                cases,
                listed.n_components,
                self.known[name].shape[-1],
                identifiers,
                generator=generator,
                device=self.labels.device,
            )
            for name, listed in self.layout.lists.items()
        }

    def take(
        self,
        cases: Int[Tensor, "run case"],
        pairs: Int[Tensor, "run pair"],
        identifiers: Mapping[str, Float[Tensor, "run case component width identifier"]],
    ) -> StackedVectors | StackedTables:
        """Some cases of each run, and some of their pairs (or one draw of prompts, the first)."""
        if self.tables is not None:
            return StackedTables(self.tables[cases, pairs[:, :1]])
        assert self.layout is not None
        c, p = cases[:, :, None], pairs[:, None, :]
        # Indices that stand apart come to the front: run, case, pair, then vector, position, width.
        values = {x: v[c, :, p].transpose(2, 3) for x, v in self.values.items()}
        known = {x: known[cases] for x, known in self.known.items()}
        return StackedVectors(self.layout, values, known, identifiers, self.scored[c, p])


def buckets(
    units: Mapping[str, Sequence[Example]], config: PredictorConfig, device: torch.device | str
) -> list[Bucket]:
    """Units of one graph and alike in width, in the order of their graphs' first units."""
    by_graph: dict[object, list[StackCase]] = {}
    for examples in units.values():
        unit = StackCase.of(examples, config)
        by_graph.setdefault(unit.circuit.graph, []).append(unit)
    found: list[Bucket] = []
    for several in by_graph.values():
        part: list[StackCase] = []
        for unit in sorted(several, key=lambda unit: unit.width):
            if part and unit.width > LIKE * part[0].width:
                found.append(_bucket(part, config, device))
                part = []
            part.append(unit)
        found.append(_bucket(part, config, device))
    return found


def _bucket(
    units: Sequence[StackCase], config: PredictorConfig, device: torch.device | str
) -> Bucket:
    first = units[0]
    pairs, positions = (max(unit.scored.shape[axis] for unit in units) for axis in (0, 1))
    values, known = {}, {}
    for name in first.values:
        width = max(unit.values[name].shape[-1] for unit in units)
        values[name] = torch.stack(
            [_filled(unit.values[name], (pairs, positions, width)) for unit in units]
        ).to(device)
        own = torch.tensor([unit.values[name].shape[-1] for unit in units])
        known[name] = (torch.arange(width) < own[:, None]).to(device)
    masks = [unit.circuit.mask for unit in units]
    tables = [unit.tables for unit in units if unit.tables is not None]
    return Bucket(
        tuple(unit.id for unit in units),
        tuple(unit.circuit for unit in units),
        structure_of(first.circuit.graph, config).to(device),
        None if first.layout is None else first.layout.to(device),
        values,
        known,
        torch.stack([_filled(unit.scored, (pairs, positions)) for unit in units]).to(device),
        torch.stack(tables).to(device) if tables else None,
        torch.stack(masks).to(device),
        torch.stack([label_weights(mask) for mask in masks]).to(device),
    )


def _filled(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The last axes made so long, with zeros behind."""
    missing = [size - own for size, own in zip(sizes, x.shape[-len(sizes) :], strict=True)]
    return F.pad(x, [pad for gap in reversed(missing) for pad in (0, gap)])
