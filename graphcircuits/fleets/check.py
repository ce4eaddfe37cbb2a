"""How many answers of a fleet are right: plainly, with each component exchanged, with edges cut."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.fleets.answers import are_right, row_losses
from graphcircuits.fleets.batch import Errors, FleetData
from graphcircuits.fleets.fleet import Fleet, Weights
from graphcircuits.fleets.forward import forward, forward_cut, patch_of, writers

CHUNK = 65536
"""Rows of all subjects together that are run at once."""
CUT_CHUNK = 128
"""Rows per subject with cut edges that are run at once; each reader has a stream of its own."""

Run = tuple[Tensor, Tensor, Tensor]
"""Logits of some rows, the answers that are right, and whether each position counts."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Shares of right answers by task; 1 for what is padding or was not asked for."""

    accuracy: Float[Tensor, "subject task"]
    parts: Float[Tensor, "subject task part"]
    """With each component exchanged."""
    inside: Bool[Tensor, "subject task part"]
    circuit: Float[Tensor, "subject task"]
    """With every edge outside the complete circuit cut."""

    @property
    def interchange(self) -> Float[Tensor, "subject task"]:
        """Of the worst component of the circuit; 1 where there is none."""
        return self.parts.masked_fill(~self.inside, 1.0).amin(dim=-1)

    @property
    def strict(self) -> Float[Tensor, "subject task"]:
        """Of the worst component outside the circuit; 1 where there is none."""
        return self.parts.masked_fill(self.inside, 1.0).amin(dim=-1)

    @property
    def errors(self) -> Errors:
        """Of each task by its worst share, and of each component."""
        worst = torch.minimum(self.accuracy, torch.minimum(self.parts.amin(-1), self.circuit))
        return Errors(1 - worst, 1 - self.parts)


@torch.no_grad()
def check(
    fleet: Fleet,
    weights: Weights,
    data: FleetData,
    rows: int,
    tolerance: float,
    generator: torch.Generator,
    *,
    patched: bool = True,
    cut: bool = True,
) -> Shares:
    """Shares of right answers on the check data, over `rows` of each task drawn at random.

    With components exchanged there are no more rows than the data has interchanges.
    """
    device, (subjects, tasks, parts) = data.tokens.device, data.inside.shape
    inputs, pairs = data.tokens.shape[2], data.base.shape[3]

    def drawn(count: int) -> Int[Tensor, "subject task count"]:
        return torch.randint(inputs, (subjects, tasks, count), generator=generator, device=device)

    accuracy = _share(fleet, data, _plain(fleet, weights, data, drawn(rows)), tolerance)
    shares = torch.ones(data.inside.shape, device=device)
    few = min(rows, pairs)
    for part in range(parts) if patched else ():
        inside = data.inside[:, :, part, None]
        base = torch.where(inside, data.base[:, :, part, :few], drawn(few))
        source = torch.where(inside, data.source[:, :, part, :few], drawn(few))
        runs = _exchanged(fleet, weights, data, part, base, source)
        shares[:, :, part] = _share(fleet, data, runs, tolerance)
    circuit = torch.ones_like(accuracy)
    if cut:
        runs = _circuit_alone(fleet, weights, data, drawn(rows), drawn(rows))
        circuit = _share(fleet, data, runs, tolerance)
    return Shares(accuracy, shares, data.inside, circuit)


@torch.no_grad()
def answered(
    fleet: Fleet,
    weights: Weights,
    data: FleetData,
    chosen: Int[Tensor, "subject task row"],
    tolerance: float,
) -> tuple[Float[Tensor, "subject task"], Float[Tensor, "subject task"]]:
    """The share of right answers to these inputs, and the mean loss on them."""
    losses = []

    def runs() -> Iterator[Run]:
        for logits, targets, scored in _plain(fleet, weights, data, chosen):
            flat = targets.flatten(1, 2), scored.flatten(1, 2)
            own = row_losses(fleet, logits, flat[0], flat[1], data.numerical)
            losses.append(own.unflatten(1, targets.shape[1:3]))
            yield logits, targets, scored

    share = _share(fleet, data, runs(), tolerance)
    return share, torch.cat(losses, dim=-1).mean(-1)


def _plain(
    fleet: Fleet, weights: Weights, data: FleetData, chosen: Int[Tensor, "subject task row"]
) -> Iterator[Run]:
    """Runs with nothing exchanged."""
    for rows in _chunks(chosen, CHUNK // len(chosen)):
        logits, _ = forward(fleet, weights, _at(data.tokens, rows).flatten(1, 2))
        yield logits, _at(data.targets, rows), _everywhere(data, rows)


def _exchanged(
    fleet: Fleet,
    weights: Weights,
    data: FleetData,
    part: int,
    base: Int[Tensor, "subject task row"],
    source: Int[Tensor, "subject task row"],
) -> Iterator[Run]:
    """Runs with one component exchanged: the program's answer must follow, or stay."""
    first = 0
    inside = data.inside[:, :, part, None, None]
    for rows, donors in zip(*(_chunks(x, CHUNK // len(base)) for x in (base, source)), strict=True):
        pairs = slice(first, first + rows.shape[-1])
        first = pairs.stop
        _, donor = forward(fleet, weights, _at(data.tokens, donors).flatten(1, 2))
        parts = torch.zeros(data.inside.shape[2], dtype=torch.bool, device=base.device)
        parts[part] = True
        patch = patch_of(fleet, donor, parts.expand(len(base), rows[0].numel(), -1))
        logits, _ = forward(fleet, weights, _at(data.tokens, rows).flatten(1, 2), patch)
        swapped, scored = (x[:, :, part, pairs] for x in (data.swapped, data.scored))
        targets = torch.where(inside, swapped, _at(data.targets, rows))
        yield logits, targets, torch.where(inside, scored, _everywhere(data, rows))


def _circuit_alone(
    fleet: Fleet,
    weights: Weights,
    data: FleetData,
    base: Int[Tensor, "subject task row"],
    source: Int[Tensor, "subject task row"],
) -> Iterator[Run]:
    """Runs with everything but the complete circuit cut."""
    for rows, others in zip(*(_chunks(x, CUT_CHUNK) for x in (base, source)), strict=True):
        donors = _at(data.tokens, others).flatten(1, 2)
        _, donor = forward(fleet, weights, donors)
        given = writers(fleet, weights, donors, donor)
        cut = data.free[:, :, None].expand(-1, -1, rows.shape[-1], -1, -1).flatten(1, 2)
        logits = forward_cut(fleet, weights, _at(data.tokens, rows).flatten(1, 2), given, cut)
        yield logits, _at(data.targets, rows), _everywhere(data, rows)


def _chunks(chosen: Int[Tensor, "subject task row"], rows: int) -> tuple[Tensor, ...]:
    """The same rows in pieces, none with more than so many of all tasks together."""
    return chosen.split(max(1, rows // chosen.shape[1]), dim=-1)


def _at(table: Tensor, chosen: Int[Tensor, "subject task row"]) -> Tensor:
    """What a table by subject, task and input says of the inputs chosen."""
    subject, task = (torch.arange(size, device=chosen.device) for size in chosen.shape[:2])
    return table[subject[:, None, None], task[:, None], chosen]


def _everywhere(
    data: FleetData, chosen: Int[Tensor, "subject task row"]
) -> Bool[Tensor, "subject task row pos"]:
    """Every position within the subject's context."""
    return data.exists[:, None, None].expand(-1, *chosen.shape[1:], -1)


def _share(
    fleet: Fleet, data: FleetData, runs: Iterable[Run], tolerance: float
) -> Float[Tensor, "subject task"]:
    """The share of right answers over all runs; 1 for padding."""
    hits, counted = (torch.zeros(data.real.shape, device=data.tokens.device) for _ in range(2))
    for logits, targets, scored in runs:
        right = are_right(fleet, logits, targets.flatten(1, 2), data.numerical, tolerance)
        hits += (right.view_as(scored) & scored).sum((2, 3))
        counted += scored.sum((2, 3))
    return (hits / counted.clamp(min=1)).masked_fill(~data.real, 1.0)
