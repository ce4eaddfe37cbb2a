"""Training a predictor: on labels where circuits are known, and on what circuits do where not.

1. Examples are read (`data.py`) from sources of several kinds (`sources.py`).
2. `train` minimizes the weighted objectives (`objectives.py`). A step takes a batch of readings
   (`batches.py`). AdamW, linear warm-up, cosine decay, gradients clipped at norm 1, and a moving
   average of the weights if asked for.
3. At regular steps held-out examples are scored (`validation.py`), the best weights are remembered,
   a checkpoint is written where the last one is long enough ago, and training that was cut off goes
   on from there (`checkpoint.py`).
4. `train_ensemble` does that for several seeds on cases of the package, `ensemble_of` on any
   examples.

Randomness is derived from seed and step, so a resumed training ends where an unbroken one does,
and nothing global is touched, so trainings in several threads end where single ones do.

Paper: Pooling, Readout, and Training.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphcircuits.cases.relations import groups_of
from graphcircuits.io.files import seldom
from graphcircuits.io.store import content_hash
from graphcircuits.predictor.ensemble import Ensemble, seen_of
from graphcircuits.predictor.invariant import InvariantAligner
from graphcircuits.predictor.model import InvariantTables, Predictor
from graphcircuits.training.batches import Batches, StackPool, batches
from graphcircuits.training.checkpoint import (
    TrainState,
    checkpoint_path,
    resume,
    save_checkpoint,
)
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example, TrainProgress, mixed_seed, read_examples
from graphcircuits.training.inputs import leave_out
from graphcircuits.training.sources import refuse_others
from graphcircuits.training.validation import Validation, means, quality

Log = Callable[[int, Mapping[str, float]], None]
"""Called with a step and the figures measured there."""


@dataclass(frozen=True, eq=False)
class TrainedPredictor:
    """A predictor and the figures measured on the way, by step."""

    predictor: Predictor
    history: dict[int, dict[str, Any]]
    step: int
    """The step whose weights these are."""


def train(
    examples: Sequence[Example],
    config: TrainConfig,
    *,
    seed: int = 0,
    validation: Sequence[Example] = (),
    checkpoint: str | Path | None = None,
    device: torch.device | str = "cpu",
    stacks: StackPool | None = None,
    progress: TrainProgress | None = None,
    log: Log | None = None,
) -> TrainedPredictor:
    """Train one predictor; with a `checkpoint` file, go on from what it holds and keep it up.

    An interrupt that `progress` raises ends it after a whole step, which the checkpoint then holds.
    `stacks` has the subjects of all examples, where several trainings share them.
    """
    if not examples:
        raise ValueError("there is nothing to train on: no case was given.")
    if config.keep == "best" and not validation:
        raise ValueError('keep="best" needs held-out examples to choose by, and none were given.')
    predictor = Predictor(config.predictor, generator=torch.Generator().manual_seed(seed))
    predictor.to(device)
    _standardize(predictor, examples, config)
    optimizer = torch.optim.AdamW(
        predictor.parameters(), lr=config.lr, weight_decay=config.weight_decay
    )
    state = TrainState(predictor, optimizer)
    about = _about(examples, validation, config, seed, device) if checkpoint else {}
    resume(checkpoint, about, state)
    save = seldom(save_checkpoint)
    parts = batches(examples, config, seed, device, stacks)
    held_out = Validation(validation, config.predictor, device, stacks)
    losses: list[Tensor] = []
    for step in range(state.step, config.last):
        losses.append(_step(state, parts, config, seed, step, device))
        state.step = step + 1
        interrupt: KeyboardInterrupt | None = None
        try:
            if progress:
                progress(state.step, config.last)
        except KeyboardInterrupt as error:
            interrupt = error
        due = state.step % config.every == 0 or state.step == config.last
        if not due and interrupt is None:
            continue
        # Of an interrupted training too: what would be refused is not worth going on with.
        loss = _checked(losses, step)
        if due:
            # Whoever goes on from here begins with the next step, and would not come back to this.
            record = {"loss": loss, "cases": _validated(state, held_out)}
            losses.clear()
            state.history[state.step] = record
            _remember_best(state, config)
            if log:
                log(state.step, {"loss": loss} | _figures(record["cases"]))
        if checkpoint:
            done = interrupt is not None or state.step == config.last
            save(checkpoint, about, state, force=done)
        if interrupt is not None:
            raise interrupt
    _load(state.predictor, state.best or state.average)
    step = state.best_step if state.best else state.step
    return TrainedPredictor(state.predictor.eval(), state.history, step)


def _about(
    examples: Sequence[Example],
    validation: Sequence[Example],
    config: TrainConfig,
    seed: int,
    device: torch.device | str,
) -> dict[str, Any]:
    """What makes a training the same as another."""
    content = [[x.reading.content, x.reading.prior, x.target] for x in examples]
    runs = [x.item[1] for x in examples if x.item is not None]
    return {
        "train": asdict(config),
        "seed": seed,
        "device": torch.device(device).type,
        "cases": _names(examples),
        "validation": _names(validation),
        "data": content_hash(content, [[x.clean, x.corrupted] for x in runs]),
    }


def _names(examples: Sequence[Example]) -> list[str]:
    return list(dict.fromkeys(example.case for example in examples))


def _standardize(predictor: Predictor, examples: Sequence[Example], config: TrainConfig) -> None:
    """Scale the inputs by those of all examples, and hide what the training is to do without."""
    if not isinstance(predictor.align, InvariantAligner):
        return
    contents = [example.reading.content for example in examples]
    nodes = [content.nodes for content in contents if isinstance(content, InvariantTables)]
    predictor.align.standardize_by(torch.cat(nodes))
    if config.without:
        own = config.predictor
        leave_out(predictor.align, config.without, share=own.share, both_ends=own.both_ends)


def rate(step: int, config: TrainConfig) -> float:
    """Share of the full learning rate: up in a line, down as a cosine."""
    rise = max(1, round(config.warmup * config.steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, config.steps - rise)))


def _step(
    state: TrainState,
    parts: Batches,
    config: TrainConfig,
    seed: int,
    step: int,
    device: torch.device | str,
) -> Tensor:
    """One update; the loss before it, which is not waited for."""
    for group in state.optimizer.param_groups:
        group["lr"] = config.lr * rate(step, config)
    own = mixed_seed(seed, step, "noise")
    identifiers = torch.Generator().manual_seed(own)
    noise = torch.Generator(device).manual_seed(own)
    predictor, total = state.predictor.train(), torch.zeros((), device=device)
    state.optimizer.zero_grad()
    for part in parts.at(step):
        loss = part.loss(predictor, config, generator=identifiers, noise=noise)
        loss.backward()
        total = total + loss.detach()
    torch.nn.utils.clip_grad_norm_(predictor.parameters(), 1.0)
    state.optimizer.step()
    if config.average:
        _average(state, config.average)
    return total


def _average(state: TrainState, decay: float) -> None:
    """Move the average towards the weights; in its first steps it is their mean."""
    weights = state.predictor.state_dict()
    if not state.average:
        state.average = {name: x.clone() for name, x in weights.items()}
        return
    share = max(1 - decay, 1 / (state.step + 1))
    # Buffers do not change, and some are infinite.
    for name, _ in state.predictor.named_parameters():
        state.average[name].lerp_(weights[name], share)


def _checked(losses: Sequence[Tensor], last: int) -> float:
    """The last of the losses since the validation before; the first that is no number is named."""
    values = torch.stack(list(losses)).tolist()
    for place, value in enumerate(values):
        if not math.isfinite(value):
            step = last + 2 - len(values) + place
            raise ValueError(
                f"the training loss is {value} at step {step}; lower the learning rate."
            )
    return values[-1]


def _validated(state: TrainState, held_out: Validation) -> dict[str, dict[str, float]]:
    """The figures of the weights that would be kept now."""
    if not held_out.groups:
        return {}
    weights = {name: x.clone() for name, x in state.predictor.state_dict().items()}
    _load(state.predictor, state.average)
    found = held_out.figures([state.predictor])
    state.predictor.load_state_dict(weights)
    return found


def _remember_best(state: TrainState, config: TrainConfig) -> None:
    """Keep the weights of the best step; of equally good ones the earliest."""
    if config.keep != "best":
        return
    now = quality(state.history[state.step]["cases"])
    before = quality(state.history[state.best_step]["cases"]) if state.best else None
    if now is not None and (before is None or now > before):
        weights = state.average or state.predictor.state_dict()
        state.best = {name: x.detach().clone() for name, x in weights.items()}
        state.best_step = state.step


def _load(predictor: Predictor, weights: Mapping[str, Tensor]) -> None:
    if weights:
        predictor.load_state_dict(dict(weights))


def _figures(cases: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """What a validation says in a few numbers."""
    return {f"auroc_{x}" if x != "cmd" else x: value for x, value in means(cases).items()}


# Several seeds


def train_ensemble(
    ids: Sequence[str],
    config: TrainConfig,
    *,
    seeds: Sequence[int],
    examples: Sequence[Example] | None = None,
    validation: Sequence[Example] = (),
    checkpoints: str | Path | None = None,
    device: torch.device | str = "cpu",
    pool: str = "pool",
    progress: Callable[[int, int, int], None] | None = None,
    log: Callable[[int, int, Mapping[str, float]], None] | None = None,
) -> Ensemble:
    """One predictor per seed, trained on cases of the package; callbacks hear the seed first.

    Only cases of the `pool` are for training. `validation` is scored at regular steps.
    `checkpoints` is a folder with one file per seed.
    """
    refuse_others(ids, pool)
    return ensemble_of(
        read_examples(ids, config) if examples is None else examples,
        config,
        seeds=seeds,
        validation=validation,
        checkpoints=checkpoints,
        device=device,
        progress=progress,
        log=log,
    )


def ensemble_of(
    examples: Sequence[Example],
    config: TrainConfig,
    *,
    seeds: Sequence[int],
    validation: Sequence[Example] = (),
    checkpoints: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int, int], None] | None = None,
    log: Callable[[int, int, Mapping[str, float]], None] | None = None,
) -> Ensemble:
    """One predictor per seed, trained on all the examples; as `train_ensemble`."""
    members, steps = [], []
    stacks = None if config.by_labels_alone else StackPool([*examples, *validation], device)
    for seed in seeds:
        trained = train(
            examples,
            config,
            seed=seed,
            validation=validation,
            checkpoint=checkpoint_path(checkpoints, seed) if checkpoints else None,
            device=device,
            stacks=stacks,
            progress=(lambda done, n, seed=seed: progress(seed, done, n)) if progress else None,
            log=(lambda step, found, seed=seed: log(seed, step, found)) if log else None,
        )
        members.append(trained.predictor.cpu())
        steps.append(trained.step)
    return together(members, examples, config, seeds, steps)


def together(
    members: Sequence[Predictor],
    examples: Sequence[Example],
    config: TrainConfig,
    seeds: Sequence[int],
    steps: Sequence[int],
) -> Ensemble:
    """Predictors of several seeds, each with the step whose weights it has, as one."""
    about = {"train": asdict(config), "seeds": list(seeds), "steps": list(steps)}
    return Ensemble(tuple(members), origin_of(examples) | about)


def origin_of(examples: Sequence[Example]) -> dict[str, Any]:
    """What a predictor says of its training: cases, what they are related to, and subjects."""
    cases: dict[str, frozenset[str]] = {}
    subjects = []
    fleets: dict[str, int] = {}
    for name, example in {example.case: example for example in examples}.items():
        source = example.source
        if source is None:
            cases[name] = groups_of(name)
            continue
        fleets[source.fleet] = fleets.get(source.fleet, 0) + 1
        if source.fleet != "language":
            cases[source.task] = frozenset(source.groups)
        subjects.append(source.subject() if example.item is None else example.item[0])
    found: dict[str, Any] = {
        "cases": list(cases),
        "groups": sorted(frozenset().union(*cases.values())),
        "fleets": fleets,
    }
    return found | ({"subjects": seen_of(subjects)} if subjects else {})
