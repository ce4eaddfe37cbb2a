"""Interactions of edges: whole ones by masked runs, and those at a shared read in three forms.

The package's docstring has the definitions, with the read input u, the changes d1 and d2 of two
edges, and L from `SharedRead`. The tests check that whole edges equal four masked runs, that all
forms agree on quadratic losses, and that the error of `local` falls with the third power.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.masked import masked_logits
from graphcircuits.engine.memory import Footprint, at_once, half
from graphcircuits.interactions.read import SharedRead, check_edges
from graphcircuits.methods.prepare import Progress, check_choice, prepare
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

FORMS = ("finite", "local")
SCALES = (0.02, 0.01, 0.005, 0.0025, 0.00125)
"""Shares of the message changes at which `decay` measures."""
ROUNDING = 64 * torch.finfo(torch.float64).eps
"""Differences of losses below this share of the largest loss are rounding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Effects:
    """What corrupting edges does to the loss, alone and two at a time; above zero is worse.

    Whole edges have the axis batch after the edges, edges at a shared read place and batch.
    """

    edges: tuple[str, ...]
    single: Float[Tensor, " chosen *rest"]
    joint: Float[Tensor, "chosen chosen *rest"]
    """Of an edge with itself: the single effect."""

    @cached_property
    def interaction(self) -> Float[Tensor, "chosen chosen *rest"]:
        """Joint minus single effects; zero on the diagonal, where there is no pair."""
        return without_diagonal(self.joint - self.single[:, None] - self.single[None])


@torch.no_grad()
def edge_interactions(
    subject: Transformer,
    pairs: Pairs,
    edges: Sequence[str],
    *,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> Effects:
    """Effects on each prompt (axis batch) of corrupting these edges at every position.

    `progress` hears how many of the runs are over, one per prompt and edge or pair of edges.
    """
    graph = subject.graph
    check_edges(edges)
    indices = graph.edge_indices(edges)
    pairs = prepare(subject, pairs, memory_limit)
    first, second = torch.triu_indices(len(edges), len(edges), 1)
    whole = torch.ones(1, graph.n_edges, dtype=subject.dtype)
    singles = whole.expand(len(edges), -1).scatter(1, indices[:, None], 0)
    masks = torch.cat([whole, singles, singles[first] * singles[second]]).to(subject.device)
    size = Footprint(subject, pairs.clean.shape[1])
    held = 2 * size.pair + size.masked(grad=False)
    runs = 0

    def loss(some: Pairs, logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        nonlocal runs
        losses = some.loss(logits)
        runs += losses.numel()
        if progress is not None:
            progress(runs, len(masks) * len(pairs))
        return losses

    parts, limit = [], half(memory_limit)
    for some in pairs.split(at_once(subject, held, memory_limit)):
        cut, metric = subject.run(some.corrupted).writers, partial(loss, some)
        given = (subject, some.clean, masks, cut)
        parts.append(masked_logits(*given, metric=metric, memory_limit=limit))
    losses = torch.cat(parts, dim=1)
    effects = losses[1:] - losses[0]
    single, joint = effects[: len(edges)], effects[len(edges) :]
    return Effects(edges=tuple(edges), single=single, joint=square(single, joint))


# At a shared read


def first_order(
    read: SharedRead, *, memory_limit: int | None = None
) -> Float[Tensor, "chosen place batch"]:
    """d . gradient(u): the effect of each edge as EAP sees it, which adds up without interactions.

    Its sum over places is EAP's effect of the whole edge.
    """
    effects = []
    for some, _ in _chunks(read, memory_limit, derivatives=1):
        _, gradient = _gradient(some, some.inputs)
        effects.append((some.changes * gradient.detach()).sum(-1))
    return torch.cat(effects, dim=-1)


@torch.no_grad()
def finite(read: SharedRead, *, memory_limit: int | None = None) -> Effects:
    """Effects (axes place and batch) of changing the read input at one position; any downstream."""
    pairs = torch.triu_indices(len(read.edges), len(read.edges), 1)
    singles, joints = [], []
    for chunk, fit in _chunks(read, memory_limit, derivatives=0):
        u, d = chunk.inputs, chunk.changes
        clean = chunk.losses(u)
        singles.append(torch.cat([chunk.losses(u + some) - clean for some in d.split(fit)]))
        chunks = pairs.split(fit, dim=1)
        joints.append(torch.cat([chunk.losses(u + d[i] + d[j]) - clean for i, j in chunks]))
    single = torch.cat(singles, dim=-1)
    return Effects(edges=read.edges, single=single, joint=square(single, torch.cat(joints, dim=-1)))


def local(
    read: SharedRead, *, memory_limit: int | None = None
) -> Float[Tensor, "chosen chosen place batch"]:
    """d1 . Hessian(u) . d2 for all pairs, with one Hessian-vector product per edge.

    Zero on the diagonal, where there is no pair.
    """
    _check_smooth(read, "local")
    interactions = []
    for chunk, _ in _chunks(read, memory_limit, derivatives=2):
        u, gradient = _gradient(chunk, chunk.inputs)
        products = torch.stack([_product(gradient, u, change) for change in chunk.changes])
        inner = "one place batch d, other place batch d -> one other place batch"
        interactions.append(einsum(products, chunk.changes, inner))
    return without_diagonal(torch.cat(interactions, dim=-1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Integral:
    """The interaction of some pairs of edges by quadrature."""

    pairs: tuple[tuple[str, str], ...]
    value: Float[Tensor, "pair place batch"]
    error: Float[Tensor, "pair place batch"]
    """The distance to the rule of lower order: an estimate that errs on the large side."""


def integral(
    read: SharedRead,
    pairs: Sequence[tuple[str, str]],
    *,
    order: int = 8,
    memory_limit: int | None = None,
) -> Integral:
    """The exact form for some pairs of the read's edges, by Gauss-Legendre quadrature.

    The tensor rule has `order` x `order` points; one of two orders less gives the error estimate.
    """
    _check_smooth(read, "integral")
    if order < 3:
        raise ValueError(f"order must be at least 3, got {order}.")
    unknown = sorted({edge for pair in pairs for edge in pair} - set(read.edges))
    if unknown or not pairs:
        raise ValueError(
            f"pairs must be one or more of the edges {', '.join(read.edges)}, "
            f"got {', '.join(unknown) or 'none'}."
        )
    points, weights = _rules(order, order - 2)
    points, weights = points.to(read.inputs), weights.to(read.inputs)
    sums = []
    for chunk, fit in _chunks(read, memory_limit, derivatives=2):
        by_pair = []
        for d1, d2 in (chunk.changes[[chunk.edges.index(edge) for edge in pair]] for pair in pairs):
            mixed = []
            for some in points.split(fit):
                s, r = some.T[:, :, None, None, None]
                u, gradient = _gradient(chunk, chunk.inputs + s * d1 + r * d2)
                mixed.append((_product(gradient, u, d2.expand_as(u)) * d1).sum(-1))
            by_pair.append(einsum(weights, torch.cat(mixed), "rule point, point ... -> rule ..."))
        sums.append(torch.stack(by_pair, dim=1))
    value, coarse = torch.cat(sums, dim=-1)
    return Integral(pairs=tuple(pairs), value=value, error=(value - coarse).abs())


def interaction_matrix(
    subject: Transformer,
    pairs: Pairs,
    reader: str,
    *,
    edges: Sequence[str] | None = None,
    form: str = "local",
    per_position: bool = False,
    memory_limit: int | None = None,
) -> Float[Tensor, "chosen chosen *pos"]:
    """All pairs of edges into a reader, `local` or `finite`, averaged over prompts and positions.

    `per_position` keeps the positions apart.
    """
    check_choice("form", form, FORMS)
    read = SharedRead.of(subject, pairs, reader, edges=edges)
    if form == "local":
        values = local(read, memory_limit=memory_limit)
    else:
        values = finite(read, memory_limit=memory_limit).interaction
    return values.mean(-1) if per_position else values.mean((-1, -2))


@dataclass(frozen=True, kw_only=True)
class Decay:
    """How the error of the local form falls with the size of the message changes."""

    scales: tuple[float, ...]
    """Shares of the changes, without those at which the error is no more than rounding."""
    errors: tuple[float, ...]
    """Mean of |finite - local| over pairs of edges, positions and prompts."""
    slope: float
    """Fitted power of the scale: 3 where the paper's proposition holds and is tight."""


def decay(
    read: SharedRead, scales: Sequence[float] = SCALES, *, memory_limit: int | None = None
) -> Decay:
    """The error of the local form at several shares of the message changes; needs float64."""
    _check_smooth(read, "local")
    if read.subject.dtype != torch.float64:
        raise ValueError(
            f"small differences need a float64 subject, got {read.subject.dtype}; "
            "call .to(torch.float64) on it."
        )
    if len(scales) < 2 or min(scales) <= 0:
        raise ValueError(f"scales must be two or more numbers above 0, got {[*scales]}.")
    at_full = local(read, memory_limit=memory_limit)
    errors = []
    for scale in scales:
        shrunk = replace(read, scale=read.scale * scale)
        gap = finite(shrunk, memory_limit=memory_limit).interaction - scale**2 * at_full
        errors.append(gap.abs().mean().item())
    # Where nothing is changed, what is left is how differently equal sums are rounded.
    still = finite(replace(read, scale=0.0), memory_limit=memory_limit).interaction.abs().mean()
    largest = read.pairs.loss(read.subject.logits(read.pairs.clean)).abs().max()
    rounding = max(ROUNDING * largest.item(), 8 * still.item())
    clear = [i for i, error in enumerate(errors) if error > rounding]
    if len(clear) < 2:
        raise ValueError(
            f"finite and local form agree to within rounding at {read.reader}: no error to fit."
        )
    scales, errors = ([values[i] for i in clear] for values in (scales, errors))
    slope = float(np.polyfit(np.log(scales), np.log(errors), 1)[0])
    return Decay(scales=tuple(scales), errors=tuple(errors), slope=slope)


# Helpers


def square(
    single: Float[Tensor, " chosen *rest"], joint: Float[Tensor, " pair *rest"]
) -> Float[Tensor, "chosen chosen *rest"]:
    """Values of the pairs above the diagonal on both sides of it, single ones on it."""
    first, second = torch.triu_indices(len(single), len(single), 1)
    values = single.new_zeros(len(single), *single.shape)
    values[first, second] = joint
    values[second, first] = joint
    values[range(len(single)), range(len(single))] = single
    return values


def without_diagonal(
    values: Float[Tensor, "chosen chosen *rest"],
) -> Float[Tensor, "chosen chosen *rest"]:
    """The same with zeros where an edge would be paired with itself."""
    diagonal = torch.eye(len(values), dtype=torch.bool, device=values.device)
    return values.masked_fill(diagonal.view(*diagonal.shape, *[1] * (values.ndim - 2)), 0.0)


def _gradient(read: SharedRead, inputs: Float[Tensor, "..."]) -> tuple[Tensor, Tensor]:
    """The inputs, and the gradient of L there as a function of them.

    Prompts and places do not touch each other, so the sum of their losses has all gradients.
    """
    with torch.enable_grad():
        u = inputs.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(read.losses(u).sum(), u, create_graph=True)
    return u, gradient


def _product(gradient: Tensor, u: Tensor, vector: Tensor) -> Tensor:
    """The Hessian at u times a vector; zero where the gradient does not depend on u."""
    if not gradient.requires_grad:
        return torch.zeros_like(u)
    return torch.autograd.grad(gradient, u, vector, retain_graph=True, materialize_grads=True)[0]


def _rules(*orders: int) -> tuple[Float[Tensor, "point 2"], Float[Tensor, "rule point"]]:
    """The points of several tensor rules on the unit square, and each rule's weights on them."""
    points, weights = [], []
    for order in orders:
        nodes, halves = (torch.from_numpy(x) / 2 for x in np.polynomial.legendre.leggauss(order))
        points.append(torch.cartesian_prod(nodes + 0.5, nodes + 0.5))
        weights.append(torch.outer(halves, halves).flatten())
    return torch.cat(points), torch.block_diag(*weights)


def _chunks(
    read: SharedRead, memory_limit: int | None, *, derivatives: int
) -> Iterator[tuple[SharedRead, int]]:
    """The prompts some at a time, and how many alternative inputs fit into memory at once."""
    subject, pos, n_positions = read.subject, read.pairs.clean.shape[1], len(read.positions)
    # Derivatives keep every layer, and each adds about as much again as the pass it differentiates.
    layers_held = (1 + derivatives) * subject.config.n_layers if derivatives else 1
    numbers = n_positions * layers_held * Footprint(subject, pos).passing
    largest = n_positions * pos * subject.config.d_mlp
    fit = at_once(subject, numbers, memory_limit, largest=largest)
    size = min(fit, len(read.pairs))
    for some in read.pairs.split(size):
        yield replace(read, pairs=some), fit // size


def _check_smooth(read: SharedRead, form: str) -> None:
    if read.kinks:
        raise ValueError(
            f"the {form} form does not apply: downstream of {read.reader} there is "
            f"{' and '.join(read.kinks)}, which has kinks; use the finite form."
        )
