"""The predictor: from a subject and a task to one circuit-membership logit per edge.

1. `read_case` makes what the aligner needs of a subject and its pairs: the six features at all
   scored positions of some pairs (`tabpfn`), or pooled invariants (`invariant`). Nothing in it is
   learned.
2. The aligner gives every node of the transformed graph a state of fixed width.
3. The graph learner exchanges states between nodes: DirGNN, or DAGformer with softmax or factorized
   attention, over the line or the incidence graph, with observed, no or complete connectivity.
4. Deep Sets pooling joins the contexts of an edge (the invariant aligner has done so already), and
   a linear readout gives the logit.
5. With a prior the network corrects a cheap search: logit = scale * prior + correction, where the
   prior is the logarithm of the search's effect (`start`) and the correction starts at 0.

`join` sets several cases side by side as one graph without arcs between them, so that a training
step is one pass. Cases of one graph can be stacked instead, along leading axes of tables and prior.

Paper: the appendix "The Graph Circuit Learning Framework in Detail".
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Literal, get_args, get_origin, get_type_hints

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor import invariant
from graphcircuits.predictor.block import Dropout, LayerNorm, linear
from graphcircuits.predictor.measure.features import Features, features
from graphcircuits.predictor.measure.scaling import TINY, log_share
from graphcircuits.predictor.paper.align import TabpfnAligner
from graphcircuits.predictor.paper.dagformer import Dagformer
from graphcircuits.predictor.paper.dirgnn import DirGNN, piece_size
from graphcircuits.predictor.paper.pool import DeepSets
from graphcircuits.predictor.paper.transform import (
    Connectivity,
    Neighbourhoods,
    Transformation,
    neighbourhoods,
)
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

Aligner = Literal["invariant", "tabpfn"]
Learner = Literal["dirgnn", "dagformer", "factorized"]
ALIGNERS, LEARNERS = get_args(Aligner), get_args(Learner)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictorConfig:
    """Every choice that shapes a predictor; those of the shipped ones are in their recipe."""

    aligner: Aligner = "invariant"
    learner: Learner = "dirgnn"
    transformation: Transformation = "line"
    connectivity: Connectivity = "observed"
    aggregation: Literal["sum", "mean"] = "mean"
    """How DirGNN joins neighbours; the paper sums."""
    width: int = 64
    layers: int = 2
    """Rounds of message passing."""
    heads: int = 4
    """Of the attention in DAGformer."""
    dropout: float = 0.1
    share: float = 0.75
    """Where the invariants take the gradient, from the corrupted run (0) to the clean one (1)."""
    context_pairs: int = 8
    """Prompt pairs per case that `tabpfn` looks at, each with all its scored positions."""
    d_align: int = 16
    """Width of each aligned feature of `tabpfn`."""
    align_layers: int = 1
    """Layers of attention over coordinates in `tabpfn`."""
    align_heads: int = 4
    """Of that attention."""
    identifiers: int = 16
    """Gaussian numbers by which `tabpfn` tells a coordinate from the others."""
    standardize: bool = True
    """Whether `tabpfn` divides values by their root mean square; the paper says nothing of it."""
    readout_norm: bool = True
    """Whether a LayerNorm stands before the readout; the paper has none."""
    prior: bool = True
    """Whether the network corrects a cheap search, by invariants of a run between."""
    paths: bool = True
    """Whether an edge counts for the best path that it lies on (`predictor.paths`)."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be one of {', '.join(get_args(hint))}, got {getattr(self, name)!r}"
            for name, hint in get_type_hints(PredictorConfig).items()
            if get_origin(hint) is Literal and getattr(self, name) not in get_args(hint)
        ]
        problems += [
            f"{name} must be at least 1, got {getattr(self, name)}"
            for name in (
                *("width", "layers", "heads", "context_pairs"),
                *("d_align", "align_layers", "align_heads", "identifiers"),
            )
            if getattr(self, name) < 1
        ]
        if not 0 <= self.dropout < 1:
            problems.append(f"dropout must be in [0, 1), got {self.dropout}")
        if not 0 < self.share <= 1:
            problems.append(f"share must be above 0 and at most 1, got {self.share}")
        if self.prior and not (self.share < 1 and self.aligner == "invariant"):
            problems.append("prior needs a share below 1 and the invariant aligner")
        if self.learner != "dirgnn" and self.heads >= 1 and self.width % self.heads:
            problems.append(f"width must be a multiple of heads={self.heads}, got {self.width}")
        if self.align_heads >= 1 and self.aligner == "tabpfn" and self.d_align % self.align_heads:
            heads = self.align_heads
            problems.append(
                f"d_align must be a multiple of align_heads={heads}, got {self.d_align}"
            )
        if problems:
            raise ValueError("; ".join(problems) + ".")


# What is read of a case


@dataclass(frozen=True, eq=False)
class Reading:
    """A case as the predictor reads it: a transformed graph and what its nodes know."""

    structure: Neighbourhoods
    content: Float[Tensor, "*case node column"] | Features
    """The table of invariants, or the features of the paper's aligner."""
    prior: Float[Tensor, "*case edge"] | None = None
    """What the correction starts from, where the predictor has one."""
    graph: ComponentGraph | None = None
    """Of the case; None for several, side by side."""

    def to(self, device: torch.device | str) -> "Reading":
        prior = None if self.prior is None else self.prior.to(device)
        moved = {"structure": self.structure.to(device), "content": self.content.to(device)}
        return replace(self, prior=prior, **moved)


def read_case(
    config: PredictorConfig,
    subject: Transformer,
    pairs: Pairs,
    *,
    generator: torch.Generator,
    dtype: torch.dtype | None = None,
) -> Reading:
    """What a predictor of this configuration needs of a subject and its prompts.

    `generator` draws the prompt pairs that `tabpfn` looks at. Invariants are rounded to `dtype`
    before they are ranked, so that values which differ by rounding alone tie in the same way
    whatever the precision of the subject; None leaves them as they are.
    """
    structure = structure_of(subject.graph, config, subject.device)
    if config.aligner == "tabpfn":
        chosen = torch.randperm(len(pairs), generator=generator, device=generator.device)
        some = pairs[chosen[: config.context_pairs].sort().values.to(pairs.clean.device)]
        return Reading(structure, features(subject, some), graph=subject.graph)
    measured = invariant.measure(subject, pairs, share=config.share)
    if dtype is not None:
        measured = measured.to(dtype)
    table = invariant.table(measured, config.transformation)
    return Reading(structure, table, start(measured) if config.prior else None, subject.graph)


START = invariant.BETWEEN_STATISTICS.index("own_by_pair")


def start(measured: invariant.Invariants) -> Float[Tensor, " edge"]:
    """The cheap search that a prior starts from: the gradient by each edge's mask, between.

    In units that look alike over cases: the logarithm of the share of the largest.
    """
    effect = measured.statistics[START]
    return log_share(effect / effect.max().clamp_min(TINY))


def structure_of(
    graph: ComponentGraph, config: PredictorConfig, device: torch.device | str = "cpu"
) -> Neighbourhoods:
    """The transformed graph: made of sizes and the configuration, not of weights; 8 are cached."""
    return _structure(graph, config.transformation, config.connectivity, torch.device(device))


@lru_cache(maxsize=8)
def _structure(
    graph: ComponentGraph,
    transformation: Transformation,
    connectivity: Connectivity,
    device: torch.device,
) -> Neighbourhoods:
    return neighbourhoods(graph, transformation, connectivity).to(device)


def join(readings: Sequence[Reading]) -> Reading:
    """Cases side by side in one graph without arcs between them; for invariants only."""
    tables = [reading.content for reading in readings if isinstance(reading.content, Tensor)]
    if len(tables) < len(readings):
        raise ValueError("only invariants can be joined; pass cases with features one at a time.")
    priors = [reading.prior for reading in readings if reading.prior is not None]
    structure = _side_by_side([reading.structure for reading in readings])
    return Reading(structure, torch.cat(tables), torch.cat(priors) if priors else None)


def _side_by_side(graphs: Sequence[Neighbourhoods]) -> Neighbourhoods:
    *nodes, n_nodes = accumulate((graph.n_nodes for graph in graphs), initial=0)
    *groups, n_groups = accumulate((graph.n_groups for graph in graphs), initial=0)

    def shifted(name: str, starts: list[int]) -> Tensor:
        values = [getattr(graph, name) for graph in graphs]
        # -1 stands for no group and stays.
        moved = [x.where(x < 0, x + start) for x, start in zip(values, starts, strict=True)]
        return torch.cat(moved)

    complete = graphs[0].order is not None
    return Neighbourhoods(
        n_nodes=n_nodes,
        n_groups=n_groups,
        member_node=shifted("member_node", nodes),
        member_group=shifted("member_group", groups),
        group_of=shifted("group_of", groups),
        order=shifted("order", nodes) if complete else None,
        edge_nodes=shifted("edge_nodes", nodes),
        lengths=tuple(graph.n_nodes for graph in graphs) if complete else (),
    )


# The network


class Predictor(nn.Module):
    """Aligner, graph learner, pooling and readout."""

    def __init__(
        self, config: PredictorConfig, *, generator: torch.Generator | None = None
    ) -> None:
        """Weights are drawn by the generator; without one the seed is 0."""
        super().__init__()
        generator = generator or torch.Generator().manual_seed(0)
        self.config = config
        width = config.width
        if config.aligner == "tabpfn":
            self.align = TabpfnAligner(
                config.d_align,
                layers=config.align_layers,
                heads=config.align_heads,
                identifiers=config.identifiers,
                standardize=config.standardize,
                generator=generator,
            )
            self.embed = linear(self.align.width, width, generator)
            self.pool = DeepSets(width, generator=generator)
        else:
            self.align = invariant.InvariantAligner(width, share=config.share, generator=generator)
            self.embed, self.pool = nn.Identity(), None
        self.drop = Dropout(config.dropout)
        if config.learner == "dirgnn":
            self.learner = DirGNN(
                width,
                config.layers,
                aggregation=config.aggregation,
                dropout=config.dropout,
                generator=generator,
            )
        else:
            attention = "softmax" if config.learner == "dagformer" else "factorized"
            self.learner = Dagformer(
                width,
                config.layers,
                config.heads,
                attention=attention,
                dropout=config.dropout,
                generator=generator,
            )
        self.norm = LayerNorm(width) if config.readout_norm else nn.Identity()
        self.readout = linear(width, 1, generator)
        self.log_scale = None
        if config.prior:
            for parameter in self.readout.parameters():
                nn.init.zeros_(parameter)
            self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(
        self, reading: Reading, *, generator: torch.Generator, noise: torch.Generator | None = None
    ) -> Float[Tensor, "*case edge"]:
        """One logit per edge. `generator` draws coordinate identifiers, for `tabpfn` only; `noise`
        what dropout drops, on the predictor's device and in training only."""
        structure, content = reading.structure, reading.content
        nodes = self._aligned(reading, generator)
        if isinstance(content, Tensor) and self.config.transformation == "line":
            structure = structure.among(invariant.living(content, self.config.share))
        states = self.learner(self.drop(self.embed(nodes), noise), structure, noise)
        # The nodes of a line graph are the edges, in their order: nothing has to be copied.
        if self.config.transformation == "line":
            edges = states
        else:
            edges = states[..., structure.edge_nodes, :]
        if self.pool is not None:
            assert isinstance(content, Features)
            edges = self.pool(edges, content.pair)
        correction = self._read_out(edges).squeeze(-1)
        start = self.start(reading)
        return correction if start is None else start + correction

    def _read_out(self, edges: Float[Tensor, "*case edge width"]) -> Float[Tensor, "*case edge 1"]:
        """The readout; that of a large graph in pieces, whose normed states stay in the caches."""
        size = piece_size(edges) if edges.ndim == 2 else 0
        if not size or not isinstance(self.norm, LayerNorm):
            return self.readout(self.norm(edges))
        return torch.cat([self.readout(self.norm.quick(some)) for some in edges.split(size)])

    def start(self, reading: Reading) -> Float[Tensor, "*case edge"] | None:
        """What the correction is added to: the prior, scaled; None where there is no prior."""
        if self.log_scale is None:
            return None
        if reading.prior is None:
            raise ValueError("this predictor corrects a prior, and the reading has none.")
        return self.log_scale.exp() * reading.prior.to(self.log_scale.dtype)

    def _aligned(
        self, reading: Reading, generator: torch.Generator
    ) -> Float[Tensor, "*context node width"]:
        content, dtype = reading.content, self.readout.weight.dtype
        # Subjects come in any precision, the predictor has its own.
        if isinstance(self.align, TabpfnAligner):
            if not isinstance(content, Features):
                raise ValueError("the tabpfn aligner needs features, got invariants.")
            return self.align(content.to(dtype), generator, self.config.transformation)
        if not isinstance(content, Tensor):
            raise ValueError("the invariant aligner needs invariants, got features.")
        return self.align(content.to(dtype))
