"""The fleet's data, and the rows of one training step.

Every step has two runs. The plain one gives the behaviour loss, and its activations are donors for
the patched one, whose first half exchanges a component of the circuit (the answer must follow the
program's) and whose second half exchanges components outside it (the answer must stay).
Components that did worse when last checked are drawn more often. A third run, over fewer rows,
cuts edges outside the complete circuit: all of them, half of them or a few (the answer must stay).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.fleet import Fleet

PAD = 1
FLOOR = 0.05
"""Least weight of a component that is already right, against 1 for one that is always wrong."""


@dataclass(frozen=True, eq=False)
class FleetData:
    """The exchanges of all subjects, padded alike; `part` numbers all components of a subject."""

    tokens: Int[Tensor, "subject input pos_with_bos"]
    targets: Float[Tensor, "subject input pos"]
    base: Int[Tensor, "subject part pair"]
    source: Int[Tensor, "subject part pair"]
    swapped: Float[Tensor, "subject part pair pos"]
    scored: Bool[Tensor, "subject part pair pos"]
    exists: Bool[Tensor, "subject pos"]
    """Positions within the subject's context."""
    inside: Bool[Tensor, "subject part"]
    """Whether a component is in the circuit."""
    free: Bool[Tensor, "subject reader writer"]
    """Edges that the program does not need: outside the complete circuit."""
    numerical: Bool[Tensor, " subject"]

    def to(self, device: torch.device) -> "FleetData":
        return replace(self, **{f.name: getattr(self, f.name).to(device) for f in fields(self)})

    def take(self, chosen: Int[Tensor, " subject"]) -> "FleetData":
        """The data of some of the subjects."""
        return replace(self, **{f.name: getattr(self, f.name)[chosen] for f in fields(self)})


@dataclass(frozen=True, eq=False)
class Rows:
    """The inputs of one step, donors of the patches first, and what the answers should be."""

    donors: Int[Tensor, "subject row pos_with_bos"]
    donor_targets: Float[Tensor, "subject row pos"]
    tokens: Int[Tensor, "subject row pos_with_bos"]
    targets: Float[Tensor, "subject row pos"]
    scored: Bool[Tensor, "subject row pos"]
    patched: Bool[Tensor, "subject row part"]
    strict: Bool[Tensor, " row"]
    """Rows whose patch lies outside the circuit."""
    cut_tokens: Int[Tensor, "subject cut_row pos_with_bos"]
    cut_targets: Float[Tensor, "subject cut_row pos"]
    cut: Bool[Tensor, "subject cut_row reader writer"]
    """Edges that carry what they do in the donor run of the same row."""

    def copy_(self, other: "Rows") -> None:
        """Overwrite in place, for a step that was recorded with these tensors."""
        for f in fields(self):
            getattr(self, f.name).copy_(getattr(other, f.name))


def part_names(fleet: Fleet) -> list[str]:
    """Components in the order of the `part` axis: a layer's heads, then its MLP."""
    config = fleet.config
    return [
        name
        for layer in range(config.n_layers)
        for name in (*(f"a{layer}.h{head}" for head in range(config.n_heads)), f"m{layer}")
    ]


def gather(fleet: Fleet, exchanges: Sequence[Exchange]) -> FleetData:
    """All subjects' data in tensors of one size."""
    graph = fleet.graph
    needed = torch.stack([Circuit.from_names(graph, exchange.edges).mask for exchange in exchanges])
    free = torch.zeros(len(exchanges), graph.n_readers, graph.n_writers, dtype=torch.bool)
    free[:, graph.edge_readers, graph.edge_writers] = ~needed
    config, names = fleet.config, part_names(fleet)
    subjects, inputs = len(exchanges), len(exchanges[0].tokens)
    drawn = exchanges[0].base.shape[1]
    pos = config.n_ctx - 1
    data = FleetData(
        tokens=torch.full((subjects, inputs, config.n_ctx), PAD),
        targets=torch.zeros(subjects, inputs, pos),
        base=torch.zeros(subjects, len(names), drawn, dtype=torch.int64),
        source=torch.zeros(subjects, len(names), drawn, dtype=torch.int64),
        swapped=torch.zeros(subjects, len(names), drawn, pos),
        scored=torch.zeros(subjects, len(names), drawn, pos, dtype=torch.bool),
        exists=torch.zeros(subjects, pos, dtype=torch.bool),
        inside=torch.zeros(subjects, len(names), dtype=torch.bool),
        free=free,
        numerical=torch.tensor([exchange.numerical for exchange in exchanges]),
    )
    for s, exchange in enumerate(exchanges):
        own = exchange.targets.shape[1]
        data.tokens[s, :, : own + 1] = exchange.tokens
        data.targets[s, :, :own] = exchange.targets
        data.exists[s, :own] = True
        for row, name in enumerate(exchange.components):
            part = names.index(name)
            data.inside[s, part] = True
            data.base[s, part], data.source[s, part] = exchange.base[row], exchange.source[row]
            data.swapped[s, part, :, :own] = exchange.swapped[row]
            data.scored[s, part, :, :own] = exchange.scored[row]
    return data


def draw_rows(
    data: FleetData,
    errors: Float[Tensor, "subject part"],
    rows: int,
    cut_rows: int,
    generator: torch.Generator,
) -> Rows:
    """Rows of one step: half exchange a component of the circuit, half components outside it."""
    device = data.tokens.device
    subjects, parts = data.inside.shape
    half, inputs = rows // 2, data.tokens.shape[1]
    subject = torch.arange(subjects, device=device)[:, None]

    def integers(high: int, size: int) -> Tensor:
        return torch.randint(high, (subjects, size), generator=generator, device=device)

    weight = errors.clamp(min=FLOOR)
    inner = _pick(weight * data.inside, half, generator)
    pair = integers(data.base.shape[2], half)
    outer_weight = weight * ~data.inside
    lone = torch.nn.functional.one_hot(_pick(outer_weight, rows - half, generator), parts).bool()
    coins = torch.rand(subjects, rows - half, parts, generator=generator, device=device) < 0.5
    many = (torch.arange(rows - half, device=device) % 2 == 0)[None, :, None]
    outer = (lone | (coins & many)) & ~data.inside[:, None]
    base, source = (integers(inputs, rows - half) for _ in range(2))
    base = torch.cat([data.base[subject, inner, pair], base], dim=1)
    source = torch.cat([data.source[subject, inner, pair], source], dim=1)
    kept = data.targets[subject, base[:, half:]]
    cut_base = integers(inputs, cut_rows)
    share = torch.tensor([1.0, 1.0, 0.5, 0.1], device=device)[torch.arange(cut_rows) % 4]
    dice = torch.rand(subjects, cut_rows, *data.free.shape[1:], generator=generator, device=device)
    return Rows(
        donors=data.tokens[subject, source],
        donor_targets=data.targets[subject, source],
        tokens=data.tokens[subject, base],
        targets=torch.cat([data.swapped[subject, inner, pair], kept], dim=1),
        scored=torch.cat(
            [
                data.scored[subject, inner, pair],
                data.exists[:, None].expand(-1, rows - half, -1),
            ],
            dim=1,
        ),
        patched=torch.cat([torch.nn.functional.one_hot(inner, parts).bool(), outer], dim=1),
        strict=torch.arange(rows, device=device) >= half,
        cut_tokens=data.tokens[subject, cut_base],
        cut_targets=data.targets[subject, cut_base],
        cut=data.free[:, None] & (dice < share[:, None, None]),
    )


def _pick(
    weight: Float[Tensor, "subject part"], rows: int, generator: torch.Generator
) -> Int[Tensor, "subject row"]:
    """Parts drawn by weight; any part where all weights are zero.

    That does no harm: a row outside the circuit then exchanges nothing, since parts inside are
    taken out of it, and a row inside has no scored position.
    """
    usable = weight + 1e-12
    return torch.multinomial(usable, rows, replacement=True, generator=generator)
