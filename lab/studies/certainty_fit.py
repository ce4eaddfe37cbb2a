"""Fits of the chances of edges on what fresh searches found, with related cases held out.

1. A `Case` has the features of its edges and what is to be said of them: being in the planted
   circuit, or coming back where no circuit is known.
2. `fit_chances` is a logistic regression in which every case weighs the same.
3. `held_out` judges every case by a fit that has seen nothing related: for a case of the pool
   without its fold, for others without an eighth of the models, theirs among it, and all that
   shares a group of programs with these; planted language models have nine programs together, so
   of those it is the model alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.certificates.probability import (
    GROWING,
    PLANTED,
    Chances,
    Features,
    edge_features,
)
from graphcircuits.certificates.searching import Searches
from graphcircuits.predictor.facts.calibration import case_weights
from lab.studies.certainty_data import Found

BLOCKS = 8
"""Into which the models outside of the pool are divided."""
PULL = 1e-3
"""Towards weights of zero, in units of a standardized feature."""


@dataclass(frozen=True, eq=False)
class Case:
    """A case with one method's searches, ready to be fitted."""

    found: Found
    target: str
    """The kind of subject that chances are fitted for."""
    searches: Searches

    @property
    def known(self) -> bool:
        """Whether the predictor knows the model; of others nobody asks it."""
        return self.target != PLANTED or self.found.strangeness <= 1

    @cached_property
    def features(self) -> Features:
        network = self.found.network if self.target == PLANTED else None
        return edge_features(self.found.circuit, self.searches, network)

    @property
    def labels(self) -> Bool[Tensor, " edge"]:
        """Being in the planted circuit, or coming back."""
        return self.found.again if self.found.truth is None else self.found.truth

    @property
    def groups(self) -> frozenset[str]:
        """What related cases share; only their model where models have programs together."""
        shared = () if self.found.family == "language" else self.found.groups
        return frozenset({f"model {self.found.model}", *shared})


def fit_chances(cases: Sequence[Case], names: Sequence[str]) -> Chances:
    """The logistic regression of the least log loss, every case weighing the same.

    A feature of GROWING that would count against an edge is left out, the worst first.
    """
    x = torch.cat([torch.stack([case.features[name] for name in names], 1) for case in cases])
    y = torch.cat([case.labels for case in cases]).double()
    numbers = torch.cat([torch.full(case.labels.shape, n) for n, case in enumerate(cases)])
    weights = case_weights(numbers)
    mean, taken = weights @ x, list(range(len(names)))
    spread = (weights @ (x - mean) ** 2).sqrt().clamp_min(1e-9)
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    columns = torch.cat([(x - mean) / spread, ones], 1)
    while True:
        line = _newton(columns[:, [*taken, len(names)]], y, weights)
        falling = [
            (value, place)
            for value, place in zip(line.tolist(), taken, strict=False)
            if names[place] in GROWING and value < 0
        ]
        if not falling:
            break
        taken.remove(min(falling)[1])
    scales = {place: float(line[n] / spread[place]) for n, place in enumerate(taken)}
    bias = float(line[-1]) - sum(scale * float(mean[place]) for place, scale in scales.items())
    return Chances({names[place]: scale for place, scale in scales.items()}, bias)


def _newton(
    columns: Float[Tensor, "edge column"],
    y: Float[Tensor, " edge"],
    weights: Float[Tensor, " edge"],
) -> Float[Tensor, " column"]:
    pull = PULL * torch.eye(columns.shape[1], dtype=torch.float64)
    pull[-1, -1] = 1e-9
    line = torch.zeros(columns.shape[1], dtype=torch.float64)
    for _ in range(100):
        p = (columns @ line).sigmoid()
        slope = columns.T @ (weights * (p - y)) + pull @ line
        bend = (columns * (weights * p * (1 - p))[:, None]).T @ columns + pull
        step = torch.linalg.solve(bend, slope)
        # Far from the optimum the second-order model promises too much.
        line = line - step * min(1.0, 3.0 / float(step.norm().clamp_min(1e-12)))
        if step.norm() < 1e-9:
            break
    return line


def held_out(
    cases: Sequence[Case], names: Sequence[str], learned: Sequence[Case] | None = None
) -> Iterator[tuple[Case, Float[Tensor, " edge"]]]:
    """Every case with probabilities by a fit of those `learned` that share nothing with it."""
    learned = cases if learned is None else learned
    models = sorted({case.found.model for case in cases if case.found.fold is None})
    blocks: dict[str, list[Case]] = {}
    for case in cases:
        fold, model = case.found.fold, case.found.model
        name = f"models {models.index(model) % BLOCKS}" if fold is None else f"fold {fold}"
        blocks.setdefault(name, []).append(case)
    for block in blocks.values():
        related = frozenset[str]().union(*(case.groups for case in block))
        chances = fit_chances(
            [case for case in learned if case.known and related.isdisjoint(case.groups)], names
        )
        yield from ((case, chances(case.features)) for case in block)
