"""The network that looks: it reads what a look says of every edge, and corrects the ranking.

1. A round looks at the circuits that the ranking proposes so far (`looking.py`): one masked run
   with gradients of a few circuits on a few prompts.
2. `Looker` reads, for every edge, the table of invariants that the proposal was made from, and what
   the look says. States are exchanged along the line graph, as
   in the paper's DirGNN, among edges that do anything; a readout says by how much each value moves,
   less and less beyond the number of edges that it has ever seen.
3. The new values, counted along paths, are ranked, and the next round looks at their circuits. All
   rounds share one set of weights. `corrected` does so for one subject.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graphcircuits.engine.relaxed import ranks
from graphcircuits.graph import ComponentGraph
from graphcircuits.predictor.block import LayerNorm, check_sizes, linear
from graphcircuits.predictor.looking import (
    COLUMNS,
    FARTHEST,
    Scores,
    Worths,
    look_table,
    proposed,
    rank_logits,
)
from graphcircuits.predictor.paper.dirgnn import DirGNN
from graphcircuits.predictor.paper.transform import Neighbourhoods
from graphcircuits.predictor.paths import along_paths

FARTHEST_KNOWN = 3.0
"""From the mean of what was learned from, in deviations, at which what is read ends."""

NO_END = 20.0
"""The reach of one that has not learned yet: `lab/looking/learn.py` sets it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LookerConfig:
    """What shapes a looker."""

    width: int = 64
    layers: int = 2
    """Rounds of message passing in every look."""
    rounds: int = 2
    """Looks, one after the other."""
    sizes: int = 6
    """Circuits of each look."""
    prompts: int = 16
    """Prompt pairs that a look runs on, at most."""
    messages: bool = True
    """Whether edges hear of each other."""
    looks: bool = True
    """Whether it looks at all; without, the table of invariants is what it corrects by."""

    @property
    def columns(self) -> int:
        """Those of a look."""
        return COLUMNS * self.sizes

    def __post_init__(self) -> None:
        names = ("width", "layers", "rounds", "sizes", "prompts")
        check_sizes(**{name: getattr(self, name) for name in names})


class Looker(nn.Module):
    """From a table of invariants, a look and the values so far to new values."""

    mean: Tensor
    deviation: Tensor
    reach: Tensor
    """The logarithm of the edges of the largest graph that was learned from."""

    def __init__(
        self, config: LookerConfig, columns: int, *, generator: torch.Generator | None = None
    ) -> None:
        """`columns` are those of the table; the generator draws weights, seed 0 without one."""
        super().__init__()
        generator = generator or torch.Generator().manual_seed(0)
        self.config = config
        columns += config.columns
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("deviation", torch.ones(columns))
        self.register_buffer("reach", torch.tensor(NO_END))
        self.project = linear(columns, config.width, generator)
        self.learner = DirGNN(config.width, config.layers, aggregation="mean", generator=generator)
        self.norm = LayerNorm(config.width)
        self.readout = linear(config.width, 1, generator)
        for parameter in self.readout.parameters():
            nn.init.zeros_(parameter)

    def forward(
        self,
        table: Float[Tensor, "*case edge column"],
        look: Float[Tensor, "*case edge look_column"],
        values: Scores,
        structure: Neighbourhoods,
    ) -> Scores:
        """The values, corrected; those of silent edges stay minus infinity."""
        known = (torch.cat([table, look], dim=-1).to(values) - self.mean) / self.deviation
        # A larger graph has lower ranks and smaller shares than any that was learned from.
        known = known.clamp(-FARTHEST_KNOWN, FARTHEST_KNOWN)
        if not self.config.looks:
            # How far edges are from thresholds says no more than their rank does.
            known[..., -(COLUMNS - 1) * self.config.sizes :] = 0
        if not self.config.messages:
            structure = structure.among(torch.zeros_like(values, dtype=torch.bool))
        states = self.learner(self.project(known), structure)
        # It knows nothing of circuits that are larger than all that it saw.
        counts = (self.reach - (ranks(values) + 1).log()).clamp_max(0).exp()
        return values + counts * self.readout(self.norm(states)).squeeze(-1)


def settled(values: Scores, graph: ComponentGraph) -> Scores:
    """Values as the next round takes them: counted along paths and ranked, silent edges without."""
    alive = values.isfinite()
    finite = values.where(alive, values.amin(-1, keepdim=True).clamp_min(-FARTHEST * 4))
    return rank_logits(along_paths(finite, graph), alive)


@torch.no_grad()
def corrected(
    lookers: tuple[Looker, ...],
    table: Float[Tensor, "edge column"],
    start: Float[Tensor, " edge"],
    structure: Neighbourhoods,
    graph: ComponentGraph,
    worth: Worths,
    rounds: int,
) -> Float[Tensor, " edge"]:
    """The values of every edge after so many rounds, the mean of the lookers in each."""
    values = start
    for _ in range(rounds):
        above, masks = proposed(values, lookers[0].config.sizes)
        look = look_table(above, masks, *worth(masks))
        moved = torch.stack([looker(table, look, values, structure) for looker in lookers])
        values = settled(moved.mean(0), graph)
    return values
