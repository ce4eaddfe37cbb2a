"""How many answers of a fleet are right: plainly, with each component exchanged, with edges cut."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.fleets.batch import FleetData
from graphcircuits.fleets.fleet import Fleet, Weights
from graphcircuits.fleets.forward import forward, forward_cut, patch_of, writers

CUT_CHUNK = 128
"""Rows with cut edges that are checked at once; each reader has a stream of its own there."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Shares of right answers: plainly, and with each component exchanged."""

    accuracy: Float[Tensor, " subject"]
    parts: Float[Tensor, "subject part"]
    inside: Bool[Tensor, "subject part"]
    circuit: Float[Tensor, " subject"]
    """With every edge outside the complete circuit cut."""

    @property
    def interchange(self) -> Float[Tensor, " subject"]:
        """Of the worst component of the circuit; 1 where there is none."""
        return self.parts.masked_fill(~self.inside, 1.0).amin(dim=1)

    @property
    def strict(self) -> Float[Tensor, " subject"]:
        """Of the worst component outside the circuit; 1 where there is none."""
        return self.parts.masked_fill(self.inside, 1.0).amin(dim=1)


@torch.no_grad()
def check(
    fleet: Fleet,
    weights: Weights,
    data: FleetData,
    rows: int,
    tolerance: float,
    generator: torch.Generator,
) -> Shares:
    """Shares of right answers on the check data, plainly and with every component exchanged."""
    device, (subjects, parts) = data.tokens.device, data.inside.shape
    subject = torch.arange(subjects, device=device)[:, None]
    rows = min(rows, data.base.shape[2])
    inputs = data.tokens.shape[1]

    def drawn() -> Tensor:
        return torch.randint(inputs, (subjects, rows), generator=generator, device=device)

    everywhere = data.exists[:, None].expand(-1, rows, -1)
    chosen = drawn()
    logits, _ = forward(fleet, weights, data.tokens[subject, chosen])
    accuracy = _right(fleet, logits, data.targets[subject, chosen], everywhere, data, tolerance)
    shares = []
    for part in range(parts):
        inside = data.inside[:, part, None]
        base = torch.where(inside, data.base[:, part, :rows], drawn())
        source = torch.where(inside, data.source[:, part, :rows], drawn())
        swapped, scored = data.swapped[:, part, :rows], data.scored[:, part, :rows]
        targets = torch.where(inside[..., None], swapped, data.targets[subject, base])
        patched = torch.zeros(subjects, rows, parts, dtype=torch.bool, device=device)
        patched[..., part] = True
        _, donor = forward(fleet, weights, data.tokens[subject, source])
        patch = patch_of(fleet, donor, patched)
        logits, _ = forward(fleet, weights, data.tokens[subject, base], patch)
        counted = torch.where(inside[..., None], scored, everywhere)
        shares.append(_right(fleet, logits, targets, counted, data, tolerance))
    circuit = _circuit_accuracy(fleet, weights, data, drawn(), drawn(), tolerance)
    return Shares(accuracy, torch.stack(shares, dim=1), data.inside, circuit)


def _circuit_accuracy(
    fleet: Fleet,
    weights: Weights,
    data: FleetData,
    base: Int[Tensor, "subject row"],
    source: Int[Tensor, "subject row"],
    tolerance: float,
) -> Float[Tensor, " subject"]:
    """The share of right answers when everything but the complete circuit is cut."""
    subject = torch.arange(len(base), device=base.device)[:, None]
    rows = base.shape[1]
    shares = []
    for start in range(0, rows, CUT_CHUNK):
        part = slice(start, start + CUT_CHUNK)
        donors = data.tokens[subject, source[:, part]]
        _, donor = forward(fleet, weights, donors)
        given = writers(fleet, weights, donors, donor)
        cut = data.free[:, None].expand(-1, donors.shape[1], -1, -1)
        logits = forward_cut(fleet, weights, data.tokens[subject, base[:, part]], given, cut)
        targets = data.targets[subject, base[:, part]]
        everywhere = data.exists[:, None].expand_as(targets)
        shares.append(_right(fleet, logits, targets, everywhere, data, tolerance) * len(donors[0]))
    return torch.stack(shares).sum(0) / rows


def _right(
    fleet: Fleet,
    logits: Float[Tensor, "subject row pos_with_bos d_vocab_out"],
    targets: Float[Tensor, "subject row pos"],
    scored: Bool[Tensor, "subject row pos"],
    data: FleetData,
    tolerance: float,
) -> Float[Tensor, " subject"]:
    logits = logits[:, :, 1:]
    close = (logits[..., 0] - targets).abs() <= tolerance
    named = logits.masked_fill(~fleet.outputs[:, None, None], -torch.inf).argmax(-1)
    right = torch.where(data.numerical[:, None, None], close, named == targets)
    return (right & scored).sum((1, 2)) / scored.sum((1, 2)).clamp(min=1)
