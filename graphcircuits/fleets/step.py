"""One step of a fleet: draw rows, compute the loss, update every subject by Adam.

The loss has up to four terms: behaviour (a plain run), interchange and strict loss (a patched run),
edge loss (a run with cut edges). A run that no term needs is not made. Each subject's gradient is
clipped by itself; weight decay is decoupled, as in AdamW (Loshchilov and Hutter, 2019).

On a GPU the whole step is recorded once as a CUDA graph and replayed, the draw of its rows and of
dropout included: the generator is registered with the graph, and goes on with every replay as if
the step had been made plainly.
"""

import logging
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.fleets.answers import row_losses
from graphcircuits.fleets.batch import Errors, FleetData, Rows, draw_rows
from graphcircuits.fleets.checkpoint import State
from graphcircuits.fleets.fleet import Fleet, Weights
from graphcircuits.fleets.forward import Drop, forward, forward_cut, patch_of, writers
from graphcircuits.fleets.recipes import SiitConfig

log = logging.getLogger(__name__)

SQUARED = 10.0
"""Weight of squared errors, against 1 for cross-entropy."""
Step = Callable[[float], None]
"""Makes one step, with this learning rate."""


def stepper(
    fleet: Fleet,
    state: State,
    data: FleetData,
    errors: Errors,
    config: SiitConfig,
    generator: torch.Generator,
    *,
    record: bool = True,
) -> Step:
    """A function that makes steps with these tensors, which are changed in place.

    On a GPU its first call makes the step and records it, unless told not to; later ones replay it.
    """
    lr = torch.zeros((), device=generator.device)
    cut_rows = min(config.cut_rows, config.rows) if config.cuts else 0
    drop = dropout(config.dropout, generator)

    def step() -> None:
        rows = draw_rows(data, errors, config.rows, cut_rows, generator, patched=config.patches)
        update(fleet, state, rows, data.numerical, data.exists, config, lr, drop)

    make = step
    if record and generator.device.type == "cuda":
        make = _recorded(step, generator)
        log.info("steps of %d subjects are recorded as a CUDA graph", len(fleet.members))
    else:
        log.info("steps of %d subjects are made one by one", len(fleet.members))

    def run(rate: float) -> None:
        lr.fill_(rate)
        make()

    return run


def _recorded(step: Callable[[], None], generator: torch.Generator) -> Callable[[], None]:
    """The same step: the first call makes and records it, later ones replay the record."""
    recorded: list[torch.cuda.CUDAGraph] = []

    def replay() -> None:
        if recorded:
            recorded[0].replay()
            return
        # What libraries set up when first used cannot be recorded.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            step()
        recorded.append(graph)

    return replay


def dropout(share: float, generator: torch.Generator) -> Drop | None:
    """Sets that share of coordinates to zero and scales up the others; None where it is 0."""
    if share == 0:
        return None

    def drop(x: Tensor) -> Tensor:
        kept = torch.empty_like(x).bernoulli_(1 - share, generator=generator)
        return x * kept / (1 - share)

    return drop


def update(
    fleet: Fleet,
    state: State,
    rows: Rows,
    numerical: Bool[Tensor, " subject"],
    exists: Bool[Tensor, "subject pos"],
    config: SiitConfig,
    lr: Float[Tensor, ""],
    drop: Drop | None = None,
) -> None:
    """Change the state in place by the gradient of the loss on these rows."""
    loss = loss_of(fleet, state.weights, rows, numerical, exists, config, drop)
    gradients = torch.autograd.grad(loss.sum(), list(state.weights.values()))
    with torch.no_grad():
        adam(state, gradients, lr, config.clip, config.weight_decay)


def loss_of(
    fleet: Fleet,
    weights: Weights,
    rows: Rows,
    numerical: Bool[Tensor, " subject"],
    exists: Bool[Tensor, "subject pos"],
    config: SiitConfig,
    drop: Drop | None = None,
) -> Float[Tensor, " subject"]:
    """Behaviour, interchange, strict and edge loss of every subject, weighted and added."""
    scale = torch.where(numerical, SQUARED, 1.0)[:, None]

    def losses(logits: Tensor, targets: Tensor, scored: Tensor) -> Float[Tensor, "subject row"]:
        return scale * row_losses(fleet, logits, targets, scored, numerical)

    plain, donor = forward(fleet, weights, rows.donors, drop=drop)
    everywhere = exists[:, None].expand_as(rows.targets)
    loss = config.behaviour_weight * losses(plain, rows.targets, everywhere).mean(1)
    if (patched := rows.patched) is not None:
        patch = patch_of(fleet, donor, patched.parts)
        logits, _ = forward(fleet, weights, patched.tokens, patch, drop=drop)
        exchanged = losses(logits, patched.targets, patched.scored)
        weight = torch.where(patched.strict, config.strict_weight, config.interchange_weight)
        # Half of the rows have either weight.
        loss = loss + 2 * (weight * exchanged).mean(1)
    if (cut := rows.cut) is not None:
        few = cut.edges.shape[1]
        given = writers(fleet, weights, rows.donors[:, :few], donor.first(few))
        logits = forward_cut(fleet, weights, cut.tokens, given, cut.edges)
        held = losses(logits, cut.targets, everywhere[:, :few])
        loss = loss + config.edge_weight * held.mean(1)
    return loss


def adam(
    state: State,
    gradients: Sequence[Tensor],
    lr: Float[Tensor, ""],
    clip: float,
    weight_decay: float = 0.0,
    b1: float = 0.9,
    b2: float = 0.99,
) -> None:
    """Update the state in place by gradients, each subject's clipped to a norm of its own."""
    norm = sum(g.flatten(1).square().sum(1) for g in gradients)
    assert isinstance(norm, Tensor)
    factor = (clip / (norm.sqrt() + 1e-6)).clamp(max=1.0)
    state.count.add_(1)
    rate = lr * (1 - b2**state.count).sqrt() / (1 - b1**state.count)
    for (name, weight), gradient in zip(state.weights.items(), gradients, strict=True):
        clipped = gradient * factor.view(-1, *[1] * (gradient.dim() - 1))
        first, second = state.first[name], state.second[name]
        first.lerp_(clipped, 1 - b1)
        second.lerp_(clipped.square(), 1 - b2)
        if weight_decay > 0 and name.startswith("W_"):
            weight.mul_(1 - lr * weight_decay)
        weight.sub_(rate * first / (second.sqrt() + 1e-8))
