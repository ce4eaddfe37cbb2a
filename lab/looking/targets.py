"""What the network that looks is to say: rankings that were refined case by case.

As in `graphcircuits.methods.refine`, of many cases at once: steps by output with sizes drawn evenly
over their logarithm, from the proposal, on all prompts of the case. There are no answers and no
labels in it. Of the ranking at the start, at the end and of the mean on the way, the one with the
smallest log area is taken.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.engine.relaxed import concrete, log_sizes, ranks, stratified
from graphcircuits.engine.stack import Stack
from graphcircuits.methods.departure import in_own_units
from graphcircuits.methods.refine import MOMENTS
from graphcircuits.predictor.looker import settled

MASKS, PROMPTS = 6, 12
"""Of a step."""
RATE, SPREAD = 0.1, 0.3
"""Of the first step, which falls to 0, and of gates around their threshold; as in refining."""
LAYERS_AT_ONCE = 240
"""Layers of all cases that are refined together."""

Values = Float[Tensor, "case edge"]


def refined(
    stack: Stack, starts: Values, steps: int, *, seed: int = 0
) -> tuple[Values, Float[Tensor, "2 case"]]:
    """The values of every case after so many steps, and the log area before and after."""
    n = max(1, LAYERS_AT_ONCE // stack.graph.n_layers)
    index = list(range(len(stack)))
    parts = [index[start : start + n] for start in range(0, len(index), n)]
    generator = torch.Generator(starts.device).manual_seed(seed)
    done = [_refined(stack.subset(x), starts[x], steps, generator) for x in parts]
    values, areas = zip(*done, strict=True)
    return torch.cat(values), torch.cat(areas, 1)


def _refined(
    stack: Stack, starts: Values, steps: int, generator: torch.Generator
) -> tuple[Values, Float[Tensor, "2 case"]]:
    values, mean = starts.clone(), starts.clone()
    first, second = torch.zeros_like(starts), starts.new_zeros(len(starts), 1)
    alive = starts.isfinite()
    count = alive.sum(-1, keepdim=True)
    for step in range(steps):
        gradient = _gradient(stack, values, count, generator)
        first.lerp_(gradient, 1 - MOMENTS[0])
        square = gradient.square().sum(-1, keepdim=True) / count
        second.lerp_(square, 1 - MOMENTS[1])
        size = (second / (1 - MOMENTS[1] ** (step + 1))).sqrt().clamp_min(1e-30)
        rate = RATE * (1 - step / steps) / (1 - MOMENTS[0] ** (step + 1))
        values = values - rate * first / size
        mean = torch.where(alive, mean.lerp(values, 2 / (step + 2)), mean)
    ends = torch.stack([starts, *(settled(x, stack.graph) for x in (values, mean))])
    areas = torch.stack([log_area(stack, x) for x in ends])
    after, best = areas.min(0)
    values = ends[best, torch.arange(len(starts), device=starts.device)]
    return values, torch.stack([areas[0], after])


def _gradient(stack: Stack, values: Values, count: Tensor, generator: torch.Generator) -> Values:
    """The direction in which the mean departure over log sizes rises, by the edges' values."""
    given = {"generator": generator, "device": values.device}
    share = stratified(torch.rand(len(values), MASKS, **given))
    last = ((count.to(share) ** share).long().clamp_max(count - 1) - 1).clamp_min(0)
    best = values.sort(dim=-1, descending=True).values
    thresholds = (best.gather(-1, last) + best.gather(-1, last + 1)) / 2
    above = ((values[:, None] - thresholds[..., None]) / SPREAD).requires_grad_()
    masks = concrete(above.flatten(0, 1), generator).view_as(above)
    rows = torch.randperm(stack.n_pairs, **given)[:PROMPTS]
    (slopes,) = torch.autograd.grad(stack.departure(masks, rows).sum(), above)
    return in_own_units(slopes.nan_to_num(), above.detach().sigmoid()).sum(1)


@torch.no_grad()
def log_area(stack: Stack, values: Values) -> Float[Tensor, " case"]:
    """The mean of what circuits of the best edges lack, over log sizes, on all prompts."""
    sizes = torch.tensor(log_sizes(stack.graph.n_edges), device=values.device)
    order = ranks(values)
    lacks = torch.cat(
        [stack.departure((order[:, None] < some[:, None]).to(values)) for some in sizes.split(6)],
        1,
    )
    x = sizes.double().log()
    return torch.trapezoid(lacks.clamp(0, 1).double(), x) / x[-1]
