"""The fleet's data, and the rows of one training step.

A subject has one task or several; every row of a step is of one of them, its base and source
alike. Every step has a plain run, which gives the behaviour loss. Where components are exchanged,
its activations are donors for a patched run, whose first half exchanges a component of the circuit
(the answer must follow the program's) and whose second half exchanges components outside it (the
answer must stay). Tasks and components that did worse when last checked are drawn more often. A
third run, over fewer rows, cuts edges outside the complete circuit: all of them, half of them or a
few (the answer must stay).

Drawing waits for nothing on a GPU and copies nothing to it, so that it can be recorded with the
step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.fleets.exchange import Exchange, edges_in
from graphcircuits.fleets.fleet import Fleet

PAD = 1
FLOOR = 0.05
"""Least weight of a task or component that is already right, against 1 for one that is always
wrong."""
SCALE = 2**20
"""Weights are drawn by in units of one over this."""


@dataclass(frozen=True, eq=False)
class FleetData:
    """The exchanges of all subjects, padded alike; components are all of a subject's."""

    tokens: Int[Tensor, "subject task input pos_with_bos"]
    targets: Float[Tensor, "subject task input pos"]
    base: Int[Tensor, "subject task component pair"]
    source: Int[Tensor, "subject task component pair"]
    swapped: Float[Tensor, "subject task component pair pos"]
    scored: Bool[Tensor, "subject task component pair pos"]
    answers: Bool[Tensor, "subject task pos"]
    """Positions where the task's program answers."""
    inside: Bool[Tensor, "subject task component"]
    """Whether a component is in the task's circuit."""
    free: Bool[Tensor, "subject task reader writer"]
    """Edges that the program does not need: outside the complete circuit."""
    numerical: Bool[Tensor, " subject"]
    n_tasks: Int[Tensor, " subject"]
    """Tasks of each subject; those after them are padding."""

    @property
    def real(self) -> Bool[Tensor, "subject task"]:
        """Which tasks are no padding."""
        tasks = torch.arange(self.inside.shape[1], device=self.n_tasks.device)
        return tasks < self.n_tasks[:, None]

    def to(self, device: torch.device) -> "FleetData":
        return replace(self, **{f.name: getattr(self, f.name).to(device) for f in fields(self)})

    def take(self, chosen: Int[Tensor, " subject"]) -> "FleetData":
        """The data of some of the subjects."""
        return replace(self, **{f.name: getattr(self, f.name)[chosen] for f in fields(self)})


@dataclass(frozen=True, eq=False)
class Errors:
    """How wrong each task and each of its components was when last checked, from 0 to 1."""

    task: Float[Tensor, "subject task"]
    component: Float[Tensor, "subject task component"]

    @classmethod
    def unknown(cls, data: FleetData) -> "Errors":
        """Of subjects that no check has seen: everything is wrong."""
        device, shape = data.tokens.device, data.inside.shape
        return cls(torch.ones(shape[:2], device=device), torch.ones(shape, device=device))

    def take(self, chosen: Int[Tensor, " subject"]) -> "Errors":
        return Errors(self.task[chosen], self.component[chosen])

    def copy_(self, other: "Errors") -> None:
        """Overwrite in place, for a step that was recorded with these tensors."""
        self.task.copy_(other.task)
        self.component.copy_(other.component)


@dataclass(frozen=True, eq=False)
class PatchedRows:
    """The rows of the patched run, beside those of the plain one, which are their donors."""

    tokens: Int[Tensor, "subject row pos_with_bos"]
    targets: Float[Tensor, "subject row pos"]
    scored: Bool[Tensor, "subject row pos"]
    components: Bool[Tensor, "subject row component"]
    """Components that hold what they do in the donor's run."""
    strict: Bool[Tensor, " row"]
    """Rows whose patch lies outside the circuit."""


@dataclass(frozen=True, eq=False)
class CutRows:
    """The rows of the run with cut edges; their donors are the first of the plain run."""

    tokens: Int[Tensor, "subject cut_row pos_with_bos"]
    targets: Float[Tensor, "subject cut_row pos"]
    scored: Bool[Tensor, "subject cut_row pos"]
    edges: Bool[Tensor, "subject cut_row reader writer"]
    """Edges that carry what they do in the donor's run."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The inputs of one step, and what the answers should be."""

    donors: Int[Tensor, "subject row pos_with_bos"]
    """The plain run."""
    targets: Float[Tensor, "subject row pos"]
    scored: Bool[Tensor, "subject row pos"]
    patched: PatchedRows | None
    cut: CutRows | None


def component_names(fleet: Fleet) -> list[str]:
    """Components in the order of the `component` axis: a layer's heads, then its MLP."""
    return list(fleet.graph.writer_names[1:])


# --- all data of a fleet -------------------------------------------------------------------------


def gather(fleet: Fleet, exchanges: Sequence[Sequence[Exchange]]) -> FleetData:
    """All subjects' data in tensors of one size; for each subject the exchanges of its tasks."""
    _check_alike(exchanges)
    graph, names = fleet.graph, component_names(fleet)
    subjects, tasks = len(exchanges), max(map(len, exchanges))
    inputs, drawn = len(exchanges[0][0].tokens), exchanges[0][0].base.shape[1]
    pos = max(exchange.targets.shape[1] for tasks in exchanges for exchange in tasks)
    every = (subjects, tasks)
    interchanges = (*every, len(names), drawn)
    data = FleetData(
        tokens=torch.full((*every, inputs, pos + 1), PAD),
        targets=torch.zeros(*every, inputs, pos),
        base=torch.zeros(interchanges, dtype=torch.int64),
        source=torch.zeros(interchanges, dtype=torch.int64),
        swapped=torch.zeros(*interchanges, pos),
        scored=torch.zeros(*interchanges, pos, dtype=torch.bool),
        answers=torch.zeros(*every, pos, dtype=torch.bool),
        inside=torch.zeros(*every, len(names), dtype=torch.bool),
        free=torch.zeros(*every, graph.n_readers, graph.n_writers, dtype=torch.bool),
        numerical=torch.tensor([tasks[0].numerical for tasks in exchanges]),
        n_tasks=torch.tensor([len(tasks) for tasks in exchanges]),
    )
    for s, of_subject in enumerate(exchanges):
        for t, exchange in enumerate(of_subject):
            length = exchange.targets.shape[1]
            data.answers[s, t, :length] = True if exchange.answers is None else exchange.answers
            data.tokens[s, t, :, : length + 1] = exchange.tokens
            data.targets[s, t, :, :length] = exchange.targets
            needed = Circuit.from_names(graph, edges_in(graph, exchange.edges)).mask
            data.free[s, t, graph.edge_readers, graph.edge_writers] = ~needed
            for row, name in enumerate(exchange.components):
                component = names.index(name)
                data.inside[s, t, component] = True
                data.base[s, t, component] = exchange.base[row]
                data.source[s, t, component] = exchange.source[row]
                data.swapped[s, t, component, :, :length] = exchange.swapped[row]
                data.scored[s, t, component, :, :length] = exchange.scored[row]
    return data


def _check_alike(exchanges: Sequence[Sequence[Exchange]]) -> None:
    """Refuse what cannot stand in one tensor, or in one subject."""
    if empty := [s for s, tasks in enumerate(exchanges) if not tasks]:
        raise ValueError(f"every subject needs at least one task, got none for number {empty[0]}.")
    sizes = {(len(x.tokens), x.base.shape[1]) for tasks in exchanges for x in tasks}
    if len(sizes) > 1:
        raise ValueError(
            "all exchanges of a fleet need equally many inputs and interchanges, "
            f"got {' and '.join(f'{n} with {m}' for n, m in sorted(sizes))}."
        )
    for s, tasks in enumerate(exchanges):
        # Exchanges that say where they answer need no common length: what is behind is not read.
        lengths = [x.targets.shape[1] if x.answers is None else "any number of" for x in tasks]
        outputs = ["numbers" if x.numerical else "classes" for x in tasks]
        kinds = set(zip(lengths, outputs, strict=True))
        if len(kinds) > 1:
            raise ValueError(
                f"the tasks of subject number {s} need inputs of one length and outputs of one "
                f"kind, got {' and '.join(f'{n} tokens to {kind}' for n, kind in sorted(kinds))}."
            )


# --- the rows of a step --------------------------------------------------------------------------


def draw_rows(
    data: FleetData,
    errors: Errors,
    rows: int,
    cut_rows: int,
    generator: torch.Generator,
    *,
    patched: bool = True,
) -> Rows:
    """Rows of one step: half exchange a component of the circuit, half components outside it.

    Without the patched run they are any inputs; without cut rows there is no run with cut edges.
    """
    device, (subjects, _, inputs, _) = data.tokens.device, data.tokens.shape
    subject = torch.arange(subjects, device=device)[:, None]
    task = _pick(_bounds(errors.task, data.real)[:, None].expand(-1, rows, -1), generator)

    def any_input(size: int) -> Int[Tensor, "subject size"]:
        return torch.randint(inputs, (subjects, size), generator=generator, device=device)

    if patched:
        source, run = _patched(data, errors, task, generator)
    else:
        source, run = any_input(rows), None
    cut = None
    if cut_rows > 0:
        chosen, few = any_input(cut_rows), task[:, :cut_rows]
        cut = CutRows(
            tokens=data.tokens[subject, few, chosen],
            targets=data.targets[subject, few, chosen],
            scored=data.answers[subject, few],
            edges=_cut_edges(data.free[subject, few], generator),
        )
    return Rows(
        donors=data.tokens[subject, task, source],
        targets=data.targets[subject, task, source],
        scored=data.answers[subject, task],
        patched=run,
        cut=cut,
    )


def _patched(
    data: FleetData, errors: Errors, task: Int[Tensor, "subject row"], generator: torch.Generator
) -> tuple[Int[Tensor, "subject row"], PatchedRows]:
    """Which inputs are donors, and the rows that take activations from them."""
    (subjects, rows), device = task.shape, task.device
    inputs, components = data.tokens.shape[2], data.inside.shape[2]
    half = rows // 2
    inner_task, outer_task = task[:, :half], task[:, half:]
    subject = torch.arange(subjects, device=device)[:, None]
    component = torch.arange(components, device=device)

    def integers(high: int, size: int) -> Int[Tensor, "subject size"]:
        return torch.randint(high, (subjects, size), generator=generator, device=device)

    inner = _pick(_bounds(errors.component, data.inside)[subject, inner_task], generator)
    drawn = (subject, inner_task, inner, integers(data.base.shape[3], half))
    outside = ~data.inside[subject, outer_task]
    outer = _pick(_bounds(errors.component, ~data.inside)[subject, outer_task], generator)
    lone = outer[..., None] == component
    coins = torch.rand(outside.shape, generator=generator, device=device) < 0.5
    many = (torch.arange(rows - half, device=device) % 2 == 0)[None, :, None]
    exchanged = (lone | (coins & many)) & outside
    base, source = (integers(inputs, rows - half) for _ in range(2))
    unchanged = data.targets[subject, outer_task, base]
    answers = data.answers[subject, outer_task]
    run = PatchedRows(
        tokens=data.tokens[subject, task, torch.cat([data.base[drawn], base], dim=1)],
        targets=torch.cat([data.swapped[drawn], unchanged], dim=1),
        scored=torch.cat([data.scored[drawn], answers], dim=1),
        components=torch.cat([inner[..., None] == component, exchanged], dim=1),
        strict=torch.arange(rows, device=device) >= half,
    )
    return torch.cat([data.source[drawn], source], dim=1), run


def _cut_edges(
    free: Bool[Tensor, "subject cut_row reader writer"], generator: torch.Generator
) -> Bool[Tensor, "subject cut_row reader writer"]:
    """Of four rows two cut all free edges, one half of them, one a tenth."""
    dice = torch.rand(free.shape, generator=generator, device=free.device)
    kind = torch.arange(free.shape[1], device=free.device) % 4
    share = torch.where(kind < 2, 1.0, torch.where(kind == 2, 0.5, 0.1))
    return free & (dice < share[:, None, None])


def _bounds(
    weight: Float[Tensor, "*more choice"], allowed: Bool[Tensor, "*more choice"]
) -> Int[Tensor, "*more choice"]:
    """Weights added up, as whole numbers: sums are exact, so what is not allowed has no width."""
    return (weight.clamp(min=FLOOR) * allowed * SCALE).round().long().cumsum(-1)


def _pick(
    bounds: Int[Tensor, "subject row choice"], generator: torch.Generator
) -> Int[Tensor, "subject row"]:
    """One of the choices for every row, drawn by weight; the last where none is allowed.

    That does no harm: a row outside the circuit then exchanges nothing, since components inside
    are taken out of it, and a row inside has no scored position. Counting the bounds below a random
    number, unlike `torch.multinomial`, can be recorded on a GPU.
    """
    subjects, rows, choices = bounds.shape
    share = torch.rand(
        subjects, rows, generator=generator, device=bounds.device, dtype=torch.float64
    )
    drawn = (share * bounds[..., -1]).long()
    return (bounds <= drawn[..., None]).sum(-1).clamp(max=choices - 1)
