"""Does a subject follow its program? Measured on fresh inputs, component by component.

Accuracy is the share of right answers; interchange accuracy the share when a component of the
circuit takes its activation from another input and the program its variables; strict accuracy the
share when a component outside the circuit does, which must change nothing. Circuit accuracy is the
share when all edges outside the complete circuit carry another input's values; it is reported, and
not part of passing. A numerical answer is right within a tolerance.
"""

from dataclasses import dataclass

import torch

from graphcircuits.fleets.batch import gather, part_names
from graphcircuits.fleets.check import check
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.fleet import form, stack
from graphcircuits.subject.transformer import Transformer

ACCURACY, INTERCHANGE, STRICT = 0.99, 0.97, 0.97
"""What a subject must reach to count: plainly, and for its worst component of either kind."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How well a subject follows its program."""

    accuracy: float
    interchange: dict[str, float]
    """By component of the circuit."""
    strict: dict[str, float]
    """By component outside the circuit."""
    circuit: float
    """With every edge outside the complete circuit cut."""

    @property
    def worst_interchange(self) -> float:
        return min(self.interchange.values(), default=1.0)

    @property
    def worst_strict(self) -> float:
        return min(self.strict.values(), default=1.0)

    @property
    def passed(self) -> bool:
        return (
            self.accuracy >= ACCURACY
            and self.worst_interchange >= INTERCHANGE
            and self.worst_strict >= STRICT
        )


def verify(
    subject: Transformer, exchange: Exchange, generator: torch.Generator, tolerance: float = 0.05
) -> Verdict:
    """Check a subject on an exchange that it was not trained on."""
    fleet = form([subject.config]).to(generator.device)
    weights = {n: w.to(generator.device) for n, w in stack(fleet, [subject]).items()}
    data = gather(fleet, [exchange]).to(generator.device)
    scores = check(fleet, weights, data, exchange.base.shape[1], tolerance, generator)
    by_name = dict(zip(part_names(fleet), scores.parts[0].tolist(), strict=True))
    inside = set(exchange.components)
    return Verdict(
        accuracy=scores.accuracy.item(),
        interchange={name: share for name, share in by_name.items() if name in inside},
        strict={name: share for name, share in by_name.items() if name not in inside},
        circuit=scores.circuit.item(),
    )
