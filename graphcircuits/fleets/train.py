"""Training of a fleet under one optimizer: strict interchange intervention training, or less.

Every step (`step.py`) is one update of every subject. The edge loss is ours: the public procedure
exchanges whole components only, which leaves a subject free to use edges that its circuit does not
have. Every so often all tasks are checked, and their components where those are trained; the best
weights of each subject are kept, subjects whose worst task passes stop, and the fleet is formed
anew without them. Then is also when a snapshot can be kept, from which a training that was cut off
goes on step for step.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from graphcircuits.fleets.batch import Errors, FleetData, gather
from graphcircuits.fleets.check import Shares, check
from graphcircuits.fleets.checkpoint import Snapshot, State, TrainedSubject
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.fleet import Fleet, form, stack, unstack
from graphcircuits.fleets.recipes import SiitConfig
from graphcircuits.fleets.step import stepper
from graphcircuits.subject.transformer import Transformer

log = logging.getLogger(__name__)


FleetProgress = Callable[[int, int, int], None]
"""Called with the step, subjects that passed, subjects in all."""
OnPass = Callable[[int, TrainedSubject], None]
"""Called with the place of a subject and what it became, as soon as it passes."""
Keep = Callable[[Snapshot, bool], None]
"""Called with where training is, at the start and after each check, and whether time is up."""


def train_fleet(
    subjects: Sequence[Transformer],
    exchanges: Sequence[Sequence[Exchange]],
    checks: Sequence[Sequence[Exchange]],
    config: SiitConfig,
    generator: torch.Generator,
    progress: FleetProgress | None = None,
    deadline: float = math.inf,
    on_pass: OnPass | None = None,
    keep: Keep | None = None,
    resume: Snapshot | None = None,
    *,
    record: bool = True,
) -> list[TrainedSubject]:
    """Train subjects of one architecture side by side, from the weights that they have.

    `exchanges` are trained on, `checks` decide when a subject is done; both have a sequence per
    subject, with the exchange of each of its tasks. The device is the generator's; on a GPU steps
    are recorded and replayed unless `record` is false. Training stops at `deadline`, a time of
    `time.monotonic`, with what it has; an interrupt that `progress` raises ends it after `keep` has
    heard where it is. From `resume` on it takes the steps that the training took which `keep` was
    told of.
    """
    device = generator.device
    fleet = form([subject.config for subject in subjects]).to(device)
    data, check_data = gather(fleet, exchanges).to(device), gather(fleet, checks).to(device)
    _check_pairs(config, data, check_data)
    step, alive, best = 0, list(range(len(subjects))), dict[int, TrainedSubject]()
    if resume is None:
        state = State.of(stack(fleet, subjects), device)
        errors = Errors.unknown(data)
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
    while alive and step < config.steps and time.monotonic() < deadline:
        if run_step is None:
            run_step = stepper(fleet, state, data, errors, config, generator, record=record)
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
        if on_pass is not None:
            for which in done:
                on_pass(which, best[which])
        if done:
            kept = [place for place, which in enumerate(alive) if which not in done]
            alive, run_step = [alive[place] for place in kept], None
            chosen = torch.tensor(kept, dtype=torch.int64, device=device)
            state, errors = state.take(chosen), errors.take(chosen)
            fleet, data, check_data = _fewer(fleet, data, check_data, kept)
        if keep is not None:
            keep(snapshot(), False)
        try:
            if progress is not None:
                progress(step, passed, len(subjects))
        except KeyboardInterrupt:
            if keep is not None:
                keep(snapshot(), True)
            raise
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
    chosen = torch.tensor(kept, dtype=torch.int64, device=data.tokens.device)
    return fleet.take(kept), data.take(chosen), check_data.take(chosen)


def _check_pairs(config: SiitConfig, *data: FleetData) -> None:
    """Refuse to exchange components on data of the task alone."""
    if config.patches and any(each.base.shape[3] == 0 for each in data):
        raise ValueError(
            "a fleet whose components are exchanged needs exchanges with interchanges, got some "
            "without; make them with n_interchanges of at least 1, or train the natural recipe."
        )


def _lr(config: SiitConfig, step: int) -> float:
    """A short warm-up, then half a cosine down to the final rate."""
    warm = min(1.0, (step + 1) / 100)
    cosine = (1 + math.cos(math.pi * step / config.steps)) / 2
    return warm * (config.final_lr + (config.lr - config.final_lr) * cosine)


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
    """Keep each subject's weights where they are its best so far; give those that are done.

    A subject is as good as its worst task.
    """
    done = []
    weights = {name: weight.detach().cpu() for name, weight in state.weights.items()}
    measured = (scores.accuracy, scores.interchange, scores.strict, scores.circuit)
    for place, (accuracy, interchange, strict, circuit) in enumerate(
        zip(*(share.amin(1).tolist() for share in measured), strict=True)
    ):
        which = alive[place]
        passed = (
            accuracy >= config.enough_accuracy
            and interchange >= config.enough_interchange
            and strict >= config.enough_strict
            and circuit >= config.enough_circuit
        )
        merit = min(accuracy - 0.02, interchange, strict, circuit)
        if passed or which not in best or merit > best[which].merit:
            own = unstack(fleet, weights, place)
            subject = Transformer(subjects[which].config, own, subjects[which].codec)
            best[which] = TrainedSubject(subject, merit, step, passed)
        if passed:
            done.append(which)
    return done
