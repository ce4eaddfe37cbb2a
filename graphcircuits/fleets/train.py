"""Strict interchange intervention training of a fleet, under one optimizer.

A step: draw rows, run the donors plainly (behaviour loss), run the patched rows (interchange and
strict loss), run the cut rows (edge loss), and update every subject by Adam with its own gradient
clipped. The edge loss is ours: the public procedure exchanges whole components only, which leaves a
subject free to use edges that its circuit does not have. Every so often all
components of all subjects are checked; the best weights of each subject are kept, subjects that
pass stop, and the fleet is formed anew without them. Then is also when a snapshot can be kept, from
which a training that was cut off goes on step for step. On a GPU the step is recorded once as a
CUDA graph and replayed.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.fleets.batch import FleetData, Rows, draw_rows, gather
from graphcircuits.fleets.check import Shares, check
from graphcircuits.fleets.checkpoint import Snapshot, State, TrainedSubject
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.fleet import Fleet, Weights, form, stack, unstack
from graphcircuits.fleets.forward import forward, forward_cut, patch_of, writers
from graphcircuits.subject.transformer import Transformer

log = logging.getLogger(__name__)


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


FleetProgress = Callable[[int, int, int], None]
"""Called with the step, subjects that passed, subjects in all."""
OnPass = Callable[[int, TrainedSubject], None]
"""Called with the place of a subject and what it became, as soon as it passes."""
Keep = Callable[[Snapshot, bool], None]
"""Called with where training is, at the start and after each check, and whether time is up."""


def train_fleet(
    subjects: Sequence[Transformer],
    exchanges: Sequence[Exchange],
    checks: Sequence[Exchange],
    config: SiitConfig,
    generator: torch.Generator,
    progress: FleetProgress | None = None,
    deadline: float = math.inf,
    on_pass: OnPass | None = None,
    keep: Keep | None = None,
    resume: Snapshot | None = None,
) -> list[TrainedSubject]:
    """Train subjects of equal layers and heads side by side, from the weights that they have.

    `exchanges` are trained on, `checks` decide when a subject is done. The device is the
    generator's. Training stops at `deadline`, a time of `time.monotonic`, with what it has. From
    `resume` on it takes the steps that the training took which `keep` was told of.
    """
    device = generator.device
    fleet = form([subject.config for subject in subjects]).to(device)
    data, check_data = gather(fleet, exchanges).to(device), gather(fleet, checks).to(device)
    step, alive, best = 0, list(range(len(subjects))), dict[int, TrainedSubject]()
    if resume is None:
        state = State.of(stack(fleet, subjects), device)
        errors = torch.ones(data.inside.shape, device=device)
    else:
        step, alive, best = resume.step, list(resume.alive), dict(resume.best)
        state, errors = resume.state, resume.errors
        generator.set_state(resume.generator)
        fleet, data, check_data = _fewer(fleet, data, check_data, alive)
        if on_pass is not None:
            for which in sorted(best.keys() - set(alive)):
                on_pass(which, best[which])

    def snapshot() -> Snapshot:
        return Snapshot(step, tuple(alive), state, errors, generator.get_state(), best)

    if keep is not None:
        keep(snapshot(), False)
    run_step = None
    cut_rows = min(config.cut_rows, config.rows)
    while alive and step < config.steps and time.monotonic() < deadline:
        if run_step is None:
            run_step = _stepper(fleet, state, data.numerical, data.exists, config)
        for _ in range(min(config.check_every, config.steps - step)):
            rows = draw_rows(data, errors, config.rows, cut_rows, generator)
            run_step(rows, _lr(config, step))
            step += 1
        scores = check(
            fleet, state.weights, check_data, config.check_rows, config.tolerance, generator
        )
        done = _note_best(best, alive, subjects, fleet, state, scores, config, step)
        errors = 1 - scores.parts
        passed = len(subjects) - len(alive) + len(done)
        log.info("step %d: %d of %d subjects pass", step, passed, len(subjects))
        if progress is not None:
            progress(step, passed, len(subjects))
        if on_pass is not None:
            for which in done:
                on_pass(which, best[which])
        if done:
            kept = [place for place, which in enumerate(alive) if which not in done]
            alive, run_step = [alive[place] for place in kept], None
            chosen = torch.tensor(kept, dtype=torch.int64, device=device)
            state, errors = state.take(chosen), errors[chosen]
            fleet, data, check_data = _fewer(fleet, data, check_data, kept)
        if keep is not None:
            keep(snapshot(), False)
    cut_short = bool(alive) and step < config.steps
    if keep is not None and cut_short:
        keep(snapshot(), True)
    # No time for a single check leaves a subject as it came.
    trained = [best.get(i, TrainedSubject(s, 0.0, 0, passed=False)) for i, s in enumerate(subjects)]
    return [replace(t, cut_short=True) if cut_short and not t.passed else t for t in trained]


def _fewer(
    fleet: Fleet, data: FleetData, check_data: FleetData, kept: Sequence[int]
) -> tuple[Fleet, FleetData, FleetData]:
    """The fleet without those that passed, and its data. The common sizes stay as they are."""
    chosen = torch.tensor(kept, dtype=torch.int64, device=fleet.device)
    return fleet.take(kept), data.take(chosen), check_data.take(chosen)


def _lr(config: SiitConfig, step: int) -> float:
    """A short warm-up, then half a cosine down to the final rate."""
    warm = min(1.0, (step + 1) / 100)
    cosine = (1 + math.cos(math.pi * step / config.steps)) / 2
    return warm * (config.final_lr + (config.lr - config.final_lr) * cosine)


# --- one step ------------------------------------------------------------------------------------


def _stepper(
    fleet: Fleet,
    state: State,
    numerical: Bool[Tensor, " subject"],
    exists: Bool[Tensor, "subject pos"],
    config: SiitConfig,
) -> Callable[[Rows, float], None]:
    """A function that makes one step; on a GPU its first call records it, later ones replay it."""
    lr = torch.zeros((), device=numerical.device)

    def step(rows: Rows) -> None:
        loss = loss_of(fleet, state.weights, rows, numerical, exists, config)
        gradients = torch.autograd.grad(loss.sum(), list(state.weights.values()))
        with torch.no_grad():
            _adam(state, gradients, lr, config.clip)

    if numerical.device.type != "cuda":

        def plain(rows: Rows, rate: float) -> None:
            lr.fill_(rate)
            step(rows)

        return plain

    recorded: list[tuple[torch.cuda.CUDAGraph, Rows]] = []

    def replayed(rows: Rows, rate: float) -> None:
        lr.fill_(rate)
        if not recorded:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step(rows)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step(rows)
            recorded.append((graph, rows))
            return
        graph, static = recorded[0]
        static.copy_(rows)
        graph.replay()

    return replayed


def loss_of(
    fleet: Fleet,
    weights: Weights,
    rows: Rows,
    numerical: Bool[Tensor, " subject"],
    exists: Bool[Tensor, "subject pos"],
    config: SiitConfig,
) -> Float[Tensor, " subject"]:
    """Behaviour, interchange, strict and edge loss of every subject, weighted and added."""
    plain, donor = forward(fleet, weights, rows.donors)
    patched, _ = forward(fleet, weights, rows.tokens, patch_of(fleet, donor, rows.patched))
    everywhere = exists[:, None].expand_as(rows.donor_targets)
    behaviour = _row_losses(fleet, plain, rows.donor_targets, everywhere, numerical)
    exchanged = _row_losses(fleet, patched, rows.targets, rows.scored, numerical)
    weight = torch.where(rows.strict, config.strict_weight, config.interchange_weight)
    loss = config.behaviour_weight * behaviour.mean(1) + 2 * (weight * exchanged).mean(1)
    if config.edge_weight == 0:
        return loss
    few = rows.cut.shape[1]
    given = writers(fleet, weights, rows.donors[:, :few], donor.first(few))
    cut = forward_cut(fleet, weights, rows.cut_tokens, given, rows.cut)
    held = _row_losses(fleet, cut, rows.cut_targets, everywhere[:, :few], numerical)
    return loss + config.edge_weight * held.mean(1)


def _row_losses(
    fleet: Fleet,
    logits: Float[Tensor, "subject row pos_with_bos d_vocab_out"],
    targets: Float[Tensor, "subject row pos"],
    scored: Bool[Tensor, "subject row pos"],
    numerical: Bool[Tensor, " subject"],
) -> Float[Tensor, "subject row"]:
    """Mean over scored positions of the cross-entropy, or of ten times the squared error."""
    logits = logits[:, :, 1:]
    squared = 10 * (logits[..., 0] - targets).square()
    named = logits.masked_fill(~fleet.outputs[:, None, None], -1e9).log_softmax(-1)
    classes = torch.where(numerical[:, None, None], 0, targets).long()
    entropy = -named.gather(-1, classes[..., None])[..., 0]
    losses = torch.where(numerical[:, None, None], squared, entropy) * scored
    return losses.sum(-1) / scored.sum(-1).clamp(min=1)


def _adam(
    state: State,
    gradients: Sequence[Tensor],
    lr: Tensor,
    clip: float,
    b1: float = 0.9,
    b2: float = 0.99,
) -> None:
    norm = sum(g.flatten(1).square().sum(1) for g in gradients)
    assert isinstance(norm, Tensor)
    factor = (clip / (norm.sqrt() + 1e-6)).clamp(max=1.0)
    state.count.add_(1)
    rate = lr * (1 - b2**state.count).sqrt() / (1 - b1**state.count)
    for name, gradient in zip(state.weights, gradients, strict=True):
        clipped = gradient * factor.view(-1, *[1] * (gradient.dim() - 1))
        first, second = state.first[name], state.second[name]
        first.lerp_(clipped, 1 - b1)
        second.lerp_(clipped.square(), 1 - b2)
        state.weights[name].sub_(rate * first / (second.sqrt() + 1e-8))


# --- keeping the best ---------------------------------------------------------------------------


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
    """Keep each subject's weights where they are its best so far; give those that are done."""
    done = []
    measured = (scores.accuracy, scores.interchange, scores.strict, scores.circuit)
    for place, (accuracy, interchange, strict, circuit) in enumerate(
        zip(*(share.tolist() for share in measured), strict=True)
    ):
        which = alive[place]
        passed = (
            accuracy >= config.enough_accuracy
            and interchange >= config.enough_interchange
            and strict >= config.enough_strict
            and (config.edge_weight == 0 or circuit >= config.enough_circuit)
        )
        merit = min(accuracy - 0.02, interchange, strict)
        if config.edge_weight > 0:
            merit = min(merit, circuit)
        if passed or which not in best or merit > best[which].merit:
            own = {n: w.detach().cpu() for n, w in unstack(fleet, state.weights, place).items()}
            subject = Transformer(subjects[which].config, own, subjects[which].codec)
            best[which] = TrainedSubject(subject, merit, step, passed)
        if passed:
            done.append(which)
    return done
