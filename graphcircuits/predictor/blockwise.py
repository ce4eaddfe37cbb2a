"""What a trained predictor makes of a case's invariants, some edges at a time.

The general path (`Predictor.forward`) takes tables and states of all nodes as whole tensors, in any
graph. Trained predictors mostly meet one case at a time, in the line graph with observed arcs,
where edges are rectangles of readers and writers. There the same logits come

1. from `Folded` weights: standardization is part of the projection, weights and biases of norms
   part of the matrices behind them, members side by side. States are kept centred: their mean over
   the width is what no norm looks at;
2. from messages per component: predecessors of an edge depend on its writer alone, successors on
   its reader alone, so each layer multiplies sums over them once per component, not per edge;
3. from a pass over spans of edges per layer: a span takes what its writers and readers were told,
   updates its states and adds to the sums that the next layer starts from. Columns are made when
   the first pass needs them.

Of a large graph only the states of some members are held, beside the statistics and their ranks; a
small one is a single span, and its members are computed at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor import invariant
from graphcircuits.predictor.block import Branch
from graphcircuits.predictor.measure.scaling import SCALINGS, Scales, Span, rectangles, whole
from graphcircuits.predictor.model import Predictor, PredictorConfig, start
from graphcircuits.predictor.paper.dirgnn import DirectedGraphConv, DirGNN

SMALL = 4096
"""Edges up to which a graph is one span."""
AT_ONCE = 4096
"""Edges of a span of a larger graph, times members: fewer, and calls take the time; more, and
states leave the caches."""
GPU_AT_ONCE = 2**19
STATES = 2**28
"""Bytes of the states that are held: of as many members as fit, one at least."""
EPS = 1e-5
"""Of `nn.LayerNorm`."""


def applies(config: PredictorConfig) -> bool:
    """Whether predictors of this configuration can be computed here."""
    return (
        config.aligner == "invariant"
        and config.learner == "dirgnn"
        and config.transformation == "line"
        and config.connectivity == "observed"
        and config.context_width == 0
        and config.readout_norm
    )


# Weights


@dataclass(frozen=True, eq=False)
class FoldedLayer:
    """A layer's weights; matrices multiply from the right."""

    norm_weight: Float[Tensor, "member 1 width"]
    """Of the norm that neighbours' states go through."""
    norm_bias: Float[Tensor, "member 1 width"]
    incoming: Float[Tensor, "member width width"]
    outgoing: Float[Tensor, "member width width"]
    root: Float[Tensor, "member width width"]
    root_bias: Float[Tensor, "member 1 width"]
    scale: Float[Tensor, "member 1 1"]
    up: Float[Tensor, "member width hidden"]
    up_bias: Float[Tensor, "member 1 hidden"]
    down: Float[Tensor, "member hidden width"]
    down_bias: Float[Tensor, "member 1 width"]

    @classmethod
    def of(cls, convolution: Branch, feed: Branch) -> "FoldedLayer":
        """Those of one member."""
        conv, (first, _, last) = convolution.branch, feed.branch.children()
        assert isinstance(conv, DirectedGraphConv)
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        root, root_bias = _behind(convolution.norm, conv.root)
        up, up_bias = _behind(feed.norm, first)
        return cls(
            norm_weight=convolution.norm.weight[None, None],
            norm_bias=convolution.norm.bias[None, None],
            incoming=(1 - conv.alpha) * conv.incoming.weight.T[None],
            outgoing=conv.alpha * conv.outgoing.weight.T[None],
            root=root,
            root_bias=root_bias,
            scale=convolution.scale[None, None, None],
            up=up,
            up_bias=up_bias,
            down=_centred(feed.scale * last.weight.T[None]),
            down_bias=_centred(feed.scale * last.bias[None, None]),
        )


@dataclass(frozen=True, eq=False)
class Folded:
    """The weights of several predictors of one configuration, side by side."""

    config: PredictorConfig
    project: Float[Tensor, "member column width"]
    """Of the columns of `invariant.table`: an edge's own, its writer's, its reader's."""
    bias: Float[Tensor, "member 1 width"]
    layers: tuple[FoldedLayer, ...]
    readout: Float[Tensor, "member width 1"]
    readout_bias: Float[Tensor, "member 1 1"]
    scale: Float[Tensor, "member 1"]
    """Of the prior; 0 where there is none."""

    @classmethod
    def of(cls, member: Predictor) -> "Folded":
        """Those of one predictor, whose configuration must be one that `applies`."""
        align, learner = member.align, member.learner
        assert isinstance(align, invariant.InvariantAligner)
        assert isinstance(learner, DirGNN)
        assert isinstance(member.norm, nn.LayerNorm)
        project = _centred(align.project.weight.T / align.deviation[:, None])
        readout, readout_bias = _behind(member.norm, member.readout)
        scale = readout.new_zeros(()) if member.log_scale is None else member.log_scale.exp()
        branches = zip(learner.convolutions, learner.feed_forwards, strict=True)
        return cls(
            config=member.config,
            project=project[None],
            bias=_centred(align.project.bias - align.mean @ project)[None, None],
            layers=tuple(FoldedLayer.of(*_two(each)) for each in branches),
            readout=readout,
            readout_bias=readout_bias,
            scale=scale.view(1, 1),
        )

    def __len__(self) -> int:
        return len(self.project)

    def some(self, first: int, count: int) -> "Folded":
        """Some of the predictors."""
        return _each([self], lambda parts: parts[0][first : first + count])


@torch.no_grad()
def folded(members: Sequence[Predictor]) -> Folded:
    """The weights of predictors of one configuration, which must be one that `applies`."""
    return _each([Folded.of(member) for member in members], torch.cat)


Weights = TypeVar("Weights", Folded, FoldedLayer)


def _each(parts: Sequence[Weights], change: Callable[[list[Tensor]], Tensor]) -> Weights:
    """The same kind of weights with a change of every tensor, of all parts together."""
    made = {}
    for field in fields(parts[0]):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], Tensor):
            made[field.name] = change(values)
        elif isinstance(values[0], tuple):
            made[field.name] = tuple(_each(layer, change) for layer in zip(*values, strict=True))
    return replace(parts[0], **made)


def _two(branches: tuple[nn.Module, nn.Module]) -> tuple[Branch, Branch]:
    one, other = branches
    assert isinstance(one, Branch)
    assert isinstance(other, Branch)
    return one, other


def _behind(norm: nn.LayerNorm, map: nn.Linear) -> tuple[Tensor, Tensor]:
    """Matrix and bias of a linear map behind a norm, weight and bias of the norm included."""
    W = map.weight.T
    return (norm.weight[:, None] * W)[None], (norm.bias @ W + map.bias)[None, None]


def _centred(x: Float[Tensor, "*lead width"]) -> Float[Tensor, "*lead width"]:
    """Without the mean over the width, which no norm looks at."""
    return x - x.mean(-1, keepdim=True)


def _inverse(h: Float[Tensor, "member edge width"]) -> Float[Tensor, "member edge 1"]:
    """What `F.layer_norm` multiplies centred states by; so it takes a quarter of its time."""
    norm = torch.linalg.vector_norm(h, dim=-1, keepdim=True)
    return norm.square_().div_(h.shape[-1]).add_(EPS).rsqrt_()


# Components


@dataclass(frozen=True, eq=False)
class Neighbours:
    """How sums at readers and writers reach the edges before and behind them."""

    graph: ComponentGraph
    n_before: Float[Tensor, "writer 1"]
    """How many edges arrive at the readers of each writer."""
    n_after: Float[Tensor, "reader 1"]
    """How many edges leave the writers that each reader feeds."""


def _before(graph: ComponentGraph, sums: Float[Tensor, "member reader width"]) -> Tensor:
    """At every writer the sum over the edges that arrive at its readers."""
    layers = sums[:, :-1].unflatten(1, (graph.n_layers, graph.readers_per_layer))
    heads = layers[:, :, graph.head_slots.to(sums.device)].sum(3)
    found = torch.cat([heads, layers[:, :, -1:]], dim=2).flatten(1, 2)
    return F.pad(found, (0, 0, 1, 0))


def _after(graph: ComponentGraph, sums: Float[Tensor, "member writer width"]) -> Tensor:
    """At every reader the sum over the edges that leave the writers it feeds."""
    layers = sums[:, 1:].unflatten(1, (graph.n_layers, graph.writers_per_layer))
    heads = layers[:, :, :-1]
    groups = heads.unflatten(2, (graph.n_groups, -1)).sum(3)
    found = torch.cat([heads, groups, groups, layers[:, :, -1:]], dim=2).flatten(1, 2)
    return F.pad(found, (0, 0, 0, 1))


@lru_cache(maxsize=8)
def _neighbours(graph: ComponentGraph, device: torch.device) -> Neighbours:
    leaving, arriving = (n.float()[None, :, None] for n in degrees(graph, device))
    return Neighbours(graph, _before(graph, arriving)[0], _after(graph, leaving)[0])


@lru_cache(maxsize=8)
def _incidence(
    graph: ComponentGraph, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, "reader edge"], Float[Tensor, "writer edge"]]:
    """1 where an edge is a component's: in a small graph sums are fastest by multiplication."""
    readers = torch.arange(graph.n_readers)[:, None].eq(graph.edge_readers)
    writers = torch.arange(graph.n_writers)[:, None].eq(graph.edge_writers)
    return readers.to(device, dtype), writers.to(device, dtype)


# The pass


@torch.no_grad()
def run(
    weights: Folded, found: invariant.Invariants
) -> tuple[Float[Tensor, "member edge"], Float[Tensor, " column"]]:
    """Each member's logit of every edge, and the mean over edges of every column of the table."""
    # Subjects come in any precision, the predictor has its own.
    found = found.to(weights.project.dtype)
    graph = found.graph
    scales = Scales.of(found.statistics, graph)
    components = invariant.component_tables(found)
    width, like = weights.bias.shape[-1], found.statistics
    if graph.n_edges <= SMALL:
        spans, count = [whole(graph, like.device)], len(weights)
    else:
        count = min(len(weights), max(1, STATES // (graph.n_edges * width * like.itemsize)))
        spans = list(rectangles(graph, (GPU_AT_ONCE if like.is_cuda else AT_ONCE) // count))
    states = like.new_empty(count, graph.n_edges, width)
    sums = like.new_zeros(len(found.statistics) * len(SCALINGS))
    logits = []
    for first in range(0, len(weights), count):
        some = weights.some(first, count)
        # Columns are the same for all members.
        seen = sums if first == 0 else None
        logits.append(_logits(some, scales, components, spans, states[: len(some)], seen))
    made = torch.cat(logits)
    if weights.config.prior:
        made += weights.scale * start(found)
    leaving, arriving = (n.to(like) for n in degrees(graph, like.device))
    means = [sums, leaving @ components[0], arriving @ components[1]]
    return made, torch.cat(means) / graph.n_edges


@lru_cache(maxsize=8)
def degrees(
    graph: ComponentGraph, device: torch.device
) -> tuple[Int[Tensor, " writer"], Int[Tensor, " reader"]]:
    """How many edges leave each writer, and how many arrive at each reader."""
    arriving = graph.reads.to(device)
    place = torch.arange(graph.n_writers, device=device)
    return (arriving[:, None] > place).sum(0), arriving


def _logits(
    weights: Folded,
    scales: Scales,
    components: tuple[Tensor, Tensor],
    spans: Sequence[Span],
    states: Float[Tensor, "member edge width"],
    seen: Float[Tensor, " column"] | None,
) -> Float[Tensor, "member edge"]:
    """The corrections, with `states` as the place for those of all edges; what edges have in their
    own columns is added to `seen`."""
    graph, like, (members, _, width) = scales.graph, scales.values, states.shape
    inverses = like.new_empty(members, graph.n_edges, 1)
    found = like.new_empty(members, graph.n_edges)
    own, of_writer, of_reader = weights.project.split(
        [weights.project.shape[1] - sum(x.shape[1] for x in components)]
        + [x.shape[1] for x in components],
        dim=1,
    )
    told = components[0] @ of_writer, components[1] @ of_reader + weights.bias
    neighbours = _neighbours(graph, like.device)
    for place in range(len(weights.layers) + 1):
        sums = _Sums.empty(graph, members, like, width)
        for span in spans:
            h, inverse = states[:, span.edges], inverses[:, span.edges]
            if place == 0:
                columns = scales.columns(span).flatten(0, 1).T
                if seen is not None:
                    seen += columns.sum(0)
                torch.bmm(columns.expand(members, -1, -1), own, out=h)
                _tell(h, span, told)
            else:
                _update(h, inverse, span, weights.layers[place - 1], told)
            inverse.copy_(_inverse(h))
            if place < len(weights.layers):
                sums.add(span, h * inverse)
            else:
                logit = torch.bmm(h, weights.readout) * inverse + weights.readout_bias
                found[:, span.edges] = logit.squeeze(-1)
        if place < len(weights.layers):
            mean = weights.config.aggregation == "mean"
            told = _messages(weights.layers[place], sums, neighbours, mean=mean)
    return found


def _tell(
    h: Float[Tensor, "member edge width"],
    span: Span,
    told: tuple[Float[Tensor, "member writer width"], Float[Tensor, "member reader width"]],
) -> None:
    """Add what belongs to the writer and to the reader of each edge."""
    shaped = h.unflatten(1, span.shape)
    shaped += span.at_writers(told[0])
    shaped += span.at_readers(told[1])


def _update(
    h: Float[Tensor, "member edge width"],
    inverse: Float[Tensor, "member edge 1"],
    span: Span,
    layer: FoldedLayer,
    told: tuple[Tensor, Tensor],
) -> None:
    """The states after a layer, in place."""
    x = torch.bmm(h * inverse, layer.root)
    _tell(x, span, told)
    h.addcmul_(F.silu(x, inplace=True), layer.scale)
    h -= h.mean(-1, keepdim=True)
    hidden = torch.baddbmm(layer.up_bias, h * _inverse(h), layer.up)
    h.baddbmm_(F.silu(hidden, inplace=True), layer.down)
    h += layer.down_bias


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of states over the edges at each reader and at each writer."""

    graph: ComponentGraph
    at_readers: Float[Tensor, "member reader width"]
    at_writers: Float[Tensor, "member writer width"]

    @classmethod
    def empty(cls, graph: ComponentGraph, members: int, like: Tensor, width: int) -> "_Sums":
        shapes = ((members, n, width) for n in (graph.n_readers, graph.n_writers))
        return cls(graph, *(like.new_zeros(shape) for shape in shapes))

    def add(self, span: Span, states: Float[Tensor, "member edge width"]) -> None:
        if isinstance(span.readers, slice):
            states = states.unflatten(1, span.shape)
            self.at_readers[:, span.readers] = states.sum(2)
            self.at_writers[:, span.writers].add_(states.sum(1))
            return
        readers, writers = _incidence(self.graph, states.device, states.dtype)
        torch.matmul(readers, states, out=self.at_readers)
        torch.matmul(writers, states, out=self.at_writers)


def _messages(
    layer: FoldedLayer, sums: _Sums, neighbours: Neighbours, *, mean: bool
) -> tuple[Tensor, Tensor]:
    """What an edge hears from its predecessors, by writer, and from its successors, by reader."""
    n_before, n_after = (n.to(sums.at_readers) for n in (neighbours.n_before, neighbours.n_after))
    weight, bias = layer.norm_weight, layer.norm_bias
    before = _before(neighbours.graph, sums.at_readers) * weight + n_before * bias
    after = _after(neighbours.graph, sums.at_writers) * weight + n_after * bias
    if mean:
        before, after = before / n_before.clamp_min(1), after / n_after.clamp_min(1)
    return before @ layer.incoming, torch.baddbmm(layer.root_bias, after, layer.outgoing)
