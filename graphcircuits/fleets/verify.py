"""Do subjects follow their programs? How many answers are right, component by component.

`check` measures a fleet in training on some rows: training draws more of what went wrong, and stops
what passes. `verify_fleet` gives the verdict on finished subjects, on inputs that training did not
have, so that a subject which only learned its training inputs does not count.

Accuracy is the share of right answers, loss the mean cross-entropy, or squared error of numbers.
Interchange accuracy is the share when a component of the circuit takes its activation from another
input and the program its variables; strict accuracy the share when a component outside the circuit
does, which must change nothing. Circuit accuracy is the share when all edges outside the complete
circuit carry another input's values; a planted subject passes by it too, since its circuit must do
the task alone. Of exchanges without interchanges only the answers are measured.

BOS has no answer, so logits have a position more than targets. Where the output is numerical the
first logit is the answer, right within a tolerance; else it is the class with the largest logit.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.fleets.batch import Errors, FleetData, component_names, gather
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.fleet import Fleet, Weights, form, stack
from graphcircuits.fleets.forward import Patch, forward, forward_cut, writers
from graphcircuits.fleets.recipes import check_fleet
from graphcircuits.subject.transformer import Transformer

ACCURACY, INTERCHANGE, STRICT, CIRCUIT = 0.99, 0.97, 0.97, 0.97
"""What a subject must reach to count: plainly, for its worst component of either kind, and, where
circuits are planted, by its circuit alone."""
CHUNK = 65536
"""Rows of all subjects together that are run at once."""
CUT_CHUNK = 128
"""Rows per subject with cut edges that are run at once; each reader has a stream of its own."""

Chosen = Int[Tensor, "subject task row"]
"""Numbers of inputs."""
Logits = Float[Tensor, "subject row pos_with_bos d_vocab_out"]
Targets = Float[Tensor, "subject row pos"]
Scored = Bool[Tensor, "subject row pos"]
Numerical = Bool[Tensor, " subject"]
Run = tuple[Tensor, Tensor, Tensor]
"""Logits of some rows, the answers that are right, and whether each position counts."""


def are_right(
    fleet: Fleet, logits: Logits, targets: Targets, numerical: Numerical, tolerance: float
) -> Scored:
    """Whether each answer is the target, or a number near enough."""
    logits = logits[:, :, 1:]
    close = (logits[..., 0] - targets).abs() <= tolerance
    named = logits.masked_fill(~fleet.outputs[:, None, None], -torch.inf).argmax(-1)
    return torch.where(numerical[:, None, None], close, named == targets)


def row_losses(
    fleet: Fleet, logits: Logits, targets: Targets, scored: Scored, numerical: Numerical
) -> Float[Tensor, "subject row"]:
    """Mean over scored positions of the cross-entropy, or of the squared error of numbers."""
    logits = logits[:, :, 1:]
    squared = (logits[..., 0] - targets).square()
    named = logits.masked_fill(~fleet.outputs[:, None, None], -1e9).log_softmax(-1)
    classes = torch.where(numerical[:, None, None], 0, targets).long()
    entropy = -named.gather(-1, classes[..., None])[..., 0]
    losses = torch.where(numerical[:, None, None], squared, entropy) * scored
    return losses.sum(-1) / scored.sum(-1).clamp(min=1)


# --- shares of right answers ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Shares:
    """Shares of right answers by task; 1 for what is padding or was not asked for."""

    accuracy: Float[Tensor, "subject task"]
    components: Float[Tensor, "subject task component"]
    """With each component exchanged."""
    inside: Bool[Tensor, "subject task component"]
    circuit: Float[Tensor, "subject task"]
    """With every edge outside the complete circuit cut."""

    @property
    def interchange(self) -> Float[Tensor, "subject task"]:
        """Of the worst component of the circuit; 1 where there is none."""
        return self.components.masked_fill(~self.inside, 1.0).amin(dim=-1)

    @property
    def strict(self) -> Float[Tensor, "subject task"]:
        """Of the worst component outside the circuit; 1 where there is none."""
        return self.components.masked_fill(self.inside, 1.0).amin(dim=-1)

    @property
    def errors(self) -> Errors:
        """Of each task by its worst share, and of each component."""
        worst = torch.minimum(self.accuracy, torch.minimum(self.components.amin(-1), self.circuit))
        return Errors(1 - worst, 1 - self.components)


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
    device, (subjects, tasks, components) = data.tokens.device, data.inside.shape
    inputs, pairs = data.tokens.shape[2], data.base.shape[3]

    def drawn(count: int) -> Int[Tensor, "subject task count"]:
        return torch.randint(inputs, (subjects, tasks, count), generator=generator, device=device)

    accuracy = _share(fleet, data, _plain(fleet, weights, data, drawn(rows)), tolerance)
    shares = torch.ones(data.inside.shape, device=device)
    few = min(rows, pairs)
    for component in range(components) if patched else ():
        inside = data.inside[:, :, component, None]
        base = torch.where(inside, data.base[:, :, component, :few], drawn(few))
        source = torch.where(inside, data.source[:, :, component, :few], drawn(few))
        runs = _exchanged(fleet, weights, data, component, base, source)
        shares[:, :, component] = _share(fleet, data, runs, tolerance)
    circuit = torch.ones_like(accuracy)
    if cut:
        runs = _circuit_alone(fleet, weights, data, drawn(rows), drawn(rows))
        circuit = _share(fleet, data, runs, tolerance)
    return Shares(accuracy, shares, data.inside, circuit)


@torch.no_grad()
def answered(
    fleet: Fleet, weights: Weights, data: FleetData, chosen: Chosen, tolerance: float
) -> tuple[Float[Tensor, "subject task"], Float[Tensor, "subject task"]]:
    """The share of right answers to these inputs, and the mean loss on them."""
    losses = []

    def runs() -> Iterator[Run]:
        for logits, targets, scored in _plain(fleet, weights, data, chosen):
            flat = targets.flatten(1, 2), scored.flatten(1, 2)
            by_row = row_losses(fleet, logits, flat[0], flat[1], data.numerical)
            losses.append(by_row.unflatten(1, targets.shape[1:3]))
            yield logits, targets, scored

    share = _share(fleet, data, runs(), tolerance)
    return share, torch.cat(losses, dim=-1).mean(-1)


def _plain(fleet: Fleet, weights: Weights, data: FleetData, chosen: Chosen) -> Iterator[Run]:
    """Runs with nothing exchanged."""
    for rows in _chunks(chosen, CHUNK // len(chosen)):
        logits, _ = forward(fleet, weights, _at(data.tokens, rows).flatten(1, 2))
        yield logits, _at(data.targets, rows), _everywhere(data, rows)


def _exchanged(
    fleet: Fleet, weights: Weights, data: FleetData, component: int, base: Chosen, source: Chosen
) -> Iterator[Run]:
    """Runs with one component exchanged: the program's answer must follow, or stay."""
    first = 0
    inside = data.inside[:, :, component, None, None]
    for rows, donors in zip(*(_chunks(x, CHUNK // len(base)) for x in (base, source)), strict=True):
        pairs = slice(first, first + rows.shape[-1])
        first = pairs.stop
        _, donor = forward(fleet, weights, _at(data.tokens, donors).flatten(1, 2))
        components = torch.zeros(data.inside.shape[2], dtype=torch.bool, device=base.device)
        components[component] = True
        patch = Patch(donor, components.expand(len(base), rows[0].numel(), -1))
        logits, _ = forward(fleet, weights, _at(data.tokens, rows).flatten(1, 2), patch)
        swapped, scored = (x[:, :, component, pairs] for x in (data.swapped, data.scored))
        targets = torch.where(inside, swapped, _at(data.targets, rows))
        yield logits, targets, torch.where(inside, scored, _everywhere(data, rows))


def _circuit_alone(
    fleet: Fleet, weights: Weights, data: FleetData, base: Chosen, source: Chosen
) -> Iterator[Run]:
    """Runs with everything but the complete circuit cut."""
    for rows, others in zip(*(_chunks(x, CUT_CHUNK) for x in (base, source)), strict=True):
        donors = _at(data.tokens, others).flatten(1, 2)
        _, donor = forward(fleet, weights, donors)
        given = writers(fleet, weights, donors, donor)
        cut = data.free[:, :, None].expand(-1, -1, rows.shape[-1], -1, -1).flatten(1, 2)
        logits = forward_cut(fleet, weights, _at(data.tokens, rows).flatten(1, 2), given, cut)
        yield logits, _at(data.targets, rows), _everywhere(data, rows)


def _chunks(chosen: Chosen, rows: int) -> tuple[Tensor, ...]:
    """The same rows in pieces, none with more than so many of all tasks together."""
    return chosen.split(max(1, rows // chosen.shape[1]), dim=-1)


def _at(table: Tensor, chosen: Chosen) -> Tensor:
    """What a table by subject, task and input says of the inputs chosen."""
    subject, task = (torch.arange(size, device=chosen.device) for size in chosen.shape[:2])
    return table[subject[:, None, None], task[:, None], chosen]


def _everywhere(data: FleetData, chosen: Chosen) -> Bool[Tensor, "subject task row pos"]:
    """Every position where the program answers."""
    return data.answers[:, :, None].expand(-1, -1, chosen.shape[2], -1)


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


# --- verdicts ------------------------------------------------------------------------------------


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

    def passes(self, fleet: str = "planted") -> bool:
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
    names = component_names(fleet)

    def verdict(s: int, t: int) -> Verdict:
        answers = {"accuracy": accuracy[s, t].item(), "loss": loss[s, t].item()}
        if scores is None:
            return Verdict(**answers, interchange={}, strict={}, circuit=None)
        shares = dict(zip(names, scores.components[s, t].tolist(), strict=True))
        inside = set(exchanges[s][t].components)
        return Verdict(
            **answers,
            interchange={name: share for name, share in shares.items() if name in inside},
            strict={name: share for name, share in shares.items() if name not in inside},
            circuit=scores.circuit[s, t].item(),
        )

    return [[verdict(s, t) for t in range(len(tasks))] for s, tasks in enumerate(exchanges)]
