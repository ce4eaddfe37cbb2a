"""Does a subject follow its program? Measured on fresh inputs, component by component.

Accuracy is the share of right answers, and loss the mean cross-entropy, or squared error of
numbers, over all of the inputs; interchange accuracy the share when a component of the circuit
takes its activation from another input and the program its variables; strict accuracy the share
when a component outside the circuit does, which must change nothing. Circuit accuracy is the share
when all edges outside the complete circuit carry another input's values; a planted subject passes
by it too, since its circuit must do the task alone. A numerical answer is right within a tolerance.
Exchanges without interchanges are of the task alone: then only its answers are measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from graphcircuits.fleets.batch import gather, part_names
from graphcircuits.fleets.check import answered, check
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.fleet import form, stack
from graphcircuits.fleets.recipes import check_fleet
from graphcircuits.subject.transformer import Transformer

ACCURACY, INTERCHANGE, STRICT, CIRCUIT = 0.99, 0.97, 0.97, 0.97
"""What a subject must reach to count: plainly, for its worst component of either kind, and, where
circuits are planted, by its circuit alone."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How well a subject follows its program."""

    accuracy: float
    loss: float
    """Mean cross-entropy of the right answers, or squared error of numbers."""
    interchange: dict[str, float]
    """By component of the circuit; empty where it was not measured."""
    strict: dict[str, float]
    """By component outside the circuit; empty where it was not measured."""
    circuit: float | None
    """With every edge outside the complete circuit cut; None where it was not measured."""

    @property
    def worst_interchange(self) -> float:
        return min(self.interchange.values(), default=1.0)

    @property
    def worst_strict(self) -> float:
        return min(self.strict.values(), default=1.0)

    @property
    def passed(self) -> bool:
        return self.passes("planted")

    def passes(self, fleet: str) -> bool:
        """Whether a subject of this fleet counts: a natural one by its answers alone.

        Others by their components too, so not where those were not measured.
        """
        check_fleet(fleet)
        if fleet == "natural":
            return self.accuracy >= ACCURACY
        return (
            self.accuracy >= ACCURACY
            and self.circuit is not None
            and self.worst_interchange >= INTERCHANGE
            and self.worst_strict >= STRICT
            and (fleet != "planted" or self.circuit >= CIRCUIT)
        )


def verify(
    subject: Transformer, exchange: Exchange, generator: torch.Generator, tolerance: float = 0.05
) -> Verdict:
    """Check a subject of one task on an exchange that it was not trained on."""
    return verify_fleet([subject], [[exchange]], generator, tolerance)[0][0]


def verify_fleet(
    subjects: Sequence[Transformer],
    exchanges: Sequence[Sequence[Exchange]],
    generator: torch.Generator,
    tolerance: float = 0.05,
) -> list[list[Verdict]]:
    """Check subjects that can form a fleet, all at once; a verdict per subject and task."""
    device = generator.device
    fleet = form([subject.config for subject in subjects]).to(device)
    weights = {name: w.to(device) for name, w in stack(fleet, subjects).items()}
    data = gather(fleet, exchanges).to(device)
    inputs, pairs = data.tokens.shape[2], data.base.shape[3]
    all_inputs = torch.arange(inputs, device=device).expand(*data.real.shape, -1)
    accuracy, loss = answered(fleet, weights, data, all_inputs, tolerance)
    scores = check(fleet, weights, data, pairs, tolerance, generator) if pairs > 0 else None
    names = part_names(fleet)

    def verdict(s: int, t: int) -> Verdict:
        answers = {"accuracy": accuracy[s, t].item(), "loss": loss[s, t].item()}
        if scores is None:
            return Verdict(**answers, interchange={}, strict={}, circuit=None)
        shares = dict(zip(names, scores.parts[s, t].tolist(), strict=True))
        inside = set(exchanges[s][t].components)
        return Verdict(
            **answers,
            interchange={name: share for name, share in shares.items() if name in inside},
            strict={name: share for name, share in shares.items() if name not in inside},
            circuit=scores.circuit[s, t].item(),
        )

    return [[verdict(s, t) for t in range(len(own))] for s, own in enumerate(exchanges)]
