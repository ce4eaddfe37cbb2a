"""Training of a fleet under one optimizer: strict interchange intervention training, or less.

1. A step (`stepper`) draws rows, computes the loss and updates every subject by Adam. The loss has
   up to four terms: behaviour (a plain run), interchange and strict loss (a patched run), edge loss
   (a run with cut edges). A run that no term needs is not made. Each subject's gradient is clipped
   by itself; weight decay is decoupled, as in AdamW (Loshchilov and Hutter, 2019).
2. Every so often all tasks are checked, and their components where those are trained. The best
   weights of each subject are remembered, subjects whose worst task passes stop, and the fleet is
   formed anew without them.

The edge loss is ours: the public procedure exchanges whole components only, which leaves a subject
free to use edges that its circuit does not have.

On a GPU the whole step is recorded once as a CUDA graph and replayed, the draw of its rows and of
dropout included: small subjects would otherwise wait for the launch of every kernel. The generator
is registered with the graph, and goes on with every replay as if the step had been made plainly.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.fleets.batch import Errors, FleetData, Rows, draw_rows, gather
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.fleet import Fleet, Weights, form, stack, unstack
from graphcircuits.fleets.forward import Drop, Patch, forward, forward_cut, writers
from graphcircuits.fleets.recipes import SiitConfig
from graphcircuits.fleets.verify import Shares, check, row_losses
from graphcircuits.subject.transformer import Transformer

log = logging.getLogger(__name__)
_recording = threading.Lock()

SQUARED = 10.0
"""Weight of squared errors, against 1 for cross-entropy."""
Step = Callable[[float], None]
"""Makes one step, with this learning rate."""
FleetProgress = Callable[[int, int, int], None]
"""Called with the step, subjects that passed, subjects in all."""


@dataclass(frozen=True, eq=False)
class State:
    """Weights and Adam's moments; changed in place, as a recorded step needs it."""

    weights: Weights
    first: Weights
    second: Weights
    count: Tensor

    @classmethod
    def of(cls, weights: Weights, device: torch.device) -> "State":
        on_device = {name: w.detach().to(device).requires_grad_() for name, w in weights.items()}
        first, second = (
            {name: torch.zeros_like(w, requires_grad=False) for name, w in on_device.items()}
            for _ in range(2)
        )
        return cls(on_device, first, second, torch.zeros((), device=device))

    def take(self, chosen: Int[Tensor, " subject"]) -> "State":
        weights = {n: w.detach()[chosen].requires_grad_() for n, w in self.weights.items()}
        first, second = ({n: m[chosen] for n, m in ms.items()} for ms in (self.first, self.second))
        return State(weights, first, second, self.count.clone())


@dataclass(frozen=True, eq=False)
class TrainedSubject:
    """A subject with the weights of its best check."""

    subject: Transformer
    merit: float
    """The lowest of its shares of right answers at that check, accuracy taken as 0.02 less."""
    steps: int
    """Steps made before that check."""
    passed: bool
    cut_short: bool = False
    """Whether time ran out before it passed or had made all its steps."""


Keep = Callable[[Mapping[int, TrainedSubject]], None]
"""Called after a check with the subjects that pass there, by their places in the fleet."""


def train_fleet(
    subjects: Sequence[Transformer],
    exchanges: Sequence[Sequence[Exchange]],
    checks: Sequence[Sequence[Exchange]],
    config: SiitConfig,
    generator: torch.Generator,
    progress: FleetProgress | None = None,
    deadline: float = math.inf,
    keep: Keep | None = None,
) -> list[TrainedSubject]:
    """Train subjects of one architecture side by side, from the weights that they have.

    `exchanges` are trained on, `checks` decide when a subject is done; both have a sequence per
    subject, with the exchange of each of its tasks. The device is the generator's. Training stops
    at `deadline`, a time of `time.monotonic`, with what it has; an interrupt that `progress` raises
    ends it after `keep` has been called.
    """
    device = generator.device
    fleet = form([subject.config for subject in subjects]).to(device)
    data, check_data = gather(fleet, exchanges).to(device), gather(fleet, checks).to(device)
    if config.patches and any(each.base.shape[3] == 0 for each in (data, check_data)):
        raise ValueError(
            "a fleet whose components are exchanged needs exchanges with interchanges, got some "
            "without; make them with n_interchanges of at least 1, or train the natural recipe."
        )
    step, alive, best = 0, list(range(len(subjects))), dict[int, TrainedSubject]()
    state, errors = State.of(stack(fleet, subjects), device), Errors.unknown(data)
    run_step = None
    while alive and step < config.steps and time.monotonic() < deadline:
        if run_step is None:
            run_step = stepper(fleet, state, data, errors, config, generator)
        for _ in range(min(config.check_every, config.steps - step)):
            run_step(_lr(config, step))
            step += 1
        scores = check(
            fleet,
            state.weights,
            check_data,
            config.check_rows,
            config.tolerance,
            generator,
            patched=config.patches,
            cut=config.cuts,
        )
        done = _note_best(best, alive, subjects, fleet, state, scores, config, step)
        errors.copy_(scores.errors)
        passed = len(subjects) - len(alive) + len(done)
        log.info("step %d: %d of %d subjects pass", step, passed, len(subjects))
        if done:
            remaining = [row for row, which in enumerate(alive) if which not in done]
            alive, run_step = [alive[row] for row in remaining], None
            chosen = torch.tensor(remaining, dtype=torch.int64, device=device)
            state, errors = state.take(chosen), errors.take(chosen)
            # Without those that passed; the common sizes stay as they are.
            fleet = fleet.take(remaining)
            data, check_data = data.take(chosen), check_data.take(chosen)
            if keep is not None:
                keep({which: best[which] for which in done})
        if progress is not None:
            progress(step, passed, len(subjects))
    cut_short = bool(alive) and step < config.steps
    # No time for a single check leaves a subject as it came.
    trained = [best.get(i, TrainedSubject(s, 0.0, 0, passed=False)) for i, s in enumerate(subjects)]
    return [replace(t, cut_short=True) if cut_short and not t.passed else t for t in trained]


def _lr(config: SiitConfig, step: int) -> float:
    """A short warm-up, then half a cosine down to the final rate."""
    warm = min(1.0, (step + 1) / 100)
    cosine = (1 + math.cos(math.pi * step / config.steps)) / 2
    return warm * (config.final_lr + (config.lr - config.final_lr) * cosine)


# --- the best weights ---------------------------------------------------------------------------


def _note_best(
    best: dict[int, TrainedSubject],
    alive: Sequence[int],
    subjects: Sequence[Transformer],
    fleet: Fleet,
    state: State,
    scores: Shares,
    config: SiitConfig,
    step: int,
) -> list[int]:
    """Keep each subject's weights where they are its best so far; give those that are done.

    A subject is as good as its worst task.
    """
    done = []
    weights = {name: weight.detach().cpu() for name, weight in state.weights.items()}
    names = ("accuracy", "interchange", "strict", "circuit")
    enough = [getattr(config, f"enough_{name}") for name in names]
    measured = torch.stack([getattr(scores, name).amin(1) for name in names], dim=1).tolist()
    for row, (which, shares) in enumerate(zip(alive, measured, strict=True)):
        passed = all(share >= least for share, least in zip(shares, enough, strict=True))
        merit = min(shares[0] - 0.02, *shares[1:])
        if passed or which not in best or merit > best[which].merit:
            trained = unstack(fleet, weights, row)
            subject = Transformer(subjects[which].config, trained, subjects[which].codec)
            best[which] = TrainedSubject(subject, merit, step, passed)
        if passed:
            done.append(which)
    return done


# --- one step ------------------------------------------------------------------------------------


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

    On a GPU its first call makes the step and records it, and later ones replay it, unless `record`
    is false.
    """
    lr = torch.zeros((), device=generator.device)
    cut_rows = min(config.cut_rows, config.rows) if config.cuts else 0
    drop = dropout(config.dropout, generator)

    def step() -> None:
        rows = draw_rows(data, errors, config.rows, cut_rows, generator, patched=config.patches)
        update(fleet, state, rows, data.numerical, config, lr, drop)

    record = record and generator.device.type == "cuda"
    make = recorded(step, generator) if record else step
    how = "recorded as a CUDA graph" if record else "made one by one"
    log.info("steps of %d subjects are %s", len(fleet.members), how)

    def run(rate: float) -> None:
        lr.fill_(rate)
        make()

    return run


def recorded(step: Callable[[], None], generator: torch.Generator) -> Callable[[], None]:
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
        # Other threads may train other fleets meanwhile; only recording is one at a time, since it
        # begins with a wait for the whole device.
        with _recording, torch.cuda.graph(graph, capture_error_mode="thread_local"):
            step()
        recorded.append(graph)

    return replay


def dropout(share: float, generator: torch.Generator) -> Drop | None:
    """Sets that share of coordinates to zero and scales up the others; None where it is 0."""
    if share == 0:
        return None

    def drop(x: Tensor) -> Tensor:
        mask = torch.empty_like(x).bernoulli_(1 - share, generator=generator)
        return x * mask / (1 - share)

    return drop


def update(
    fleet: Fleet,
    state: State,
    rows: Rows,
    numerical: Bool[Tensor, " subject"],
    config: SiitConfig,
    lr: Float[Tensor, ""],
    drop: Drop | None = None,
) -> None:
    """Change the state in place by the gradient of the loss on these rows."""
    loss = loss_of(fleet, state.weights, rows, numerical, config, drop)
    gradients = torch.autograd.grad(loss.sum(), list(state.weights.values()))
    with torch.no_grad():
        adam(state, gradients, lr, config.clip, config.weight_decay)


def loss_of(
    fleet: Fleet,
    weights: Weights,
    rows: Rows,
    numerical: Bool[Tensor, " subject"],
    config: SiitConfig,
    drop: Drop | None = None,
) -> Float[Tensor, " subject"]:
    """Behaviour, interchange, strict and edge loss of every subject, weighted and added."""
    scale = torch.where(numerical, SQUARED, 1.0)[:, None]

    def losses(logits: Tensor, targets: Tensor, scored: Tensor) -> Float[Tensor, "subject row"]:
        return scale * row_losses(fleet, logits, targets, scored, numerical)

    plain, donor = forward(fleet, weights, rows.donors, drop=drop)
    loss = config.behaviour_weight * losses(plain, rows.targets, rows.scored).mean(1)
    if (patched := rows.patched) is not None:
        patch = Patch(donor, patched.components)
        logits, _ = forward(fleet, weights, patched.tokens, patch, drop=drop)
        exchanged = losses(logits, patched.targets, patched.scored)
        weight = torch.where(patched.strict, config.strict_weight, config.interchange_weight)
        # Half of the rows have either weight.
        loss = loss + 2 * (weight * exchanged).mean(1)
    if (cut := rows.cut) is not None:
        few = cut.edges.shape[1]
        given = writers(fleet, weights, rows.donors[:, :few], donor.first(few))
        logits = forward_cut(fleet, weights, cut.tokens, given, cut.edges)
        held = losses(logits, cut.targets, cut.scored)
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
