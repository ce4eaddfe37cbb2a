"""How a fleet is trained, by name.

planted: the task, interchanges inside the circuit, patches outside it, and cut edges, so that the
circuit alone does the task. public: the first three, as the published benchmark is trained.
natural: the task alone, computed wherever the subject learns to. One program trains all.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SiitConfig:
    """How a fleet is trained."""

    steps: int = 6000
    """At most; a subject stops as soon as it passes."""
    rows: int = 256
    """Inputs per step and subject, for the plain and for the patched run each."""
    lr: float = 3e-3
    final_lr: float = 1e-4
    clip: float = 1.0
    """Largest norm of one subject's gradient."""
    weight_decay: float = 0.0
    """Decoupled, times the rate: of matrices, not of biases and weights of norms."""
    dropout: float = 0.0
    """Share of the stream's coordinates left out of the embedding and of what heads and MLPs add,
    in the plain and the patched run of a step; never where edges are cut, never in a check."""
    behaviour_weight: float = 1.0
    interchange_weight: float = 1.0
    strict_weight: float = 1.0
    edge_weight: float = 1.0
    """Of the loss with edges cut outside the circuit; 0 gives the public procedure."""
    cut_rows: int = 64
    """Inputs per step and subject with cut edges; no more than `rows` are used."""
    check_every: int = 250
    check_rows: int = 256
    enough_accuracy: float = 0.999
    enough_interchange: float = 0.995
    enough_strict: float = 0.995
    enough_circuit: float = 0.995
    tolerance: float = 0.05
    """How far a numerical answer may be off and still count as right."""

    def __post_init__(self) -> None:
        # Half of the rows exchange inside the circuit, half outside.
        least = {"steps": 1, "rows": 2, "cut_rows": 1, "check_every": 1, "check_rows": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}.")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}.")

    @property
    def patches(self) -> bool:
        """Whether a step has a run with exchanged components."""
        return self.interchange_weight > 0 or self.strict_weight > 0

    @property
    def cuts(self) -> bool:
        """Whether a step has a run with cut edges."""
        return self.edge_weight > 0


RECIPES = {
    "planted": SiitConfig(),
    "public": SiitConfig(edge_weight=0.0),
    "natural": SiitConfig(
        steps=3000,
        rows=128,
        interchange_weight=0.0,
        strict_weight=0.0,
        edge_weight=0.0,
        enough_accuracy=0.995,
    ),
}
FLEETS = tuple(RECIPES)


def recipe(fleet: str) -> SiitConfig:
    """The settings that a fleet of this name is trained with."""
    check_fleet(fleet)
    return RECIPES[fleet]


def check_fleet(fleet: str) -> None:
    """Refuse a name that is not a fleet's."""
    if fleet not in FLEETS:
        raise ValueError(f"unknown fleet {fleet!r}; there are {', '.join(FLEETS)}.")
