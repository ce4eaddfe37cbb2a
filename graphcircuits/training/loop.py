"""The loop of every training: schedule, clipping, optimizer, checkpoints, validation steps.

A training is one predictor on examples (`members.py`), or several of one shape side by side, whose
parameters have a leading axis (the paper's sweep). Both say what they are as a `Learner`, how a
step's gradient is computed and how held-out cases are scored, and everything else is here, once:
what is compared with each other has to be trained alike.

1. A step: gradients, clipped at norm 1; AdamW (Loshchilov and Hutter 2019) at a rate that rises in
   a line and falls as a cosine; a moving average of the weights if asked for.
2. At regular steps held-out cases are scored and the best weights are remembered. A checkpoint is
   written where the last one is long enough ago, and a training that was cut off continues there.

Draws depend on seed and step alone, so a resumed training ends with the weights of an unbroken one.

Paper: Pooling, Readout, and Training.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.io.files import seldom
from graphcircuits.io.store import (
    StoreError,
    content_hash,
    load_artifact,
    save_artifact,
    taken_apart,
)
from graphcircuits.predictor.looker import Looker
from graphcircuits.predictor.model import Predictor
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.validation import means, quality

StepProgress = Callable[[int, int], None]
"""Called with the number of steps that are done, and how many there are."""
Log = Callable[[int, Mapping[str, float]], None]
"""Called with a step and the figures measured there."""

CHECKPOINT = "predictor-checkpoint"
WORDS = {"train": "settings", "data": "readings of the cases", "validation": "held-out cases"}
LARGEST_NORM = 1.0
"""Of the gradient of one predictor."""
BETAS, EPSILON = (0.9, 0.999), 1e-8


@runtime_checkable
class Learner(Protocol):
    """What the loop trains."""

    @property
    def predictor(self) -> Predictor | Looker:
        """Trained in place; parameters have a leading axis where several are side by side."""
        ...

    def backward(self, step: int) -> Float[Tensor, "*run"]:
        """Add the gradients of a step's loss; the loss, of each run, which is not waited for."""
        ...

    def validate(self) -> Any:
        """The figures of the held-out cases by the predictor as it is; what the history keeps."""
        ...


class AdamW:
    """AdamW on clipped gradients; predictors side by side have a rate and a norm each.

    torch's optimizer has one rate for a tensor, and here the first axis of every tensor may be the
    run: a sweep compares rates, and trains them together.
    """

    def __init__(
        self, parameters: Iterable[Tensor], rates: Float[Tensor, "*run"], decay: Tensor
    ) -> None:
        self.parameters, self.rates, self.decay = list(parameters), rates, decay
        self.moments = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self, share: float) -> None:
        """Update all parameters at this share of the full rates."""
        self.steps += 1
        lead = self.rates.shape
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        norms = torch.stack([g.reshape(*lead, -1).square().sum(-1) for g in grads]).sum(0).sqrt()
        scale = (LARGEST_NORM / (norms + 1e-6)).clamp_max(1.0)
        rates = self.rates * share
        bias, square_bias = (1 - beta**self.steps for beta in BETAS)
        for p, g, m, v in zip(self.parameters, grads, self.moments, self.squares, strict=True):
            if p.grad is None and not lead:
                continue  # as torch does: what a predictor does not use does not decay either
            shape = (*lead, *(1,) * (p.ndim - len(lead)))
            rate, g = rates.view(shape), g * scale.view(shape)
            m.lerp_(g, 1 - BETAS[0])
            v.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
            p.mul_(1 - rate * self.decay.view(shape))
            p.sub_(rate * (m / bias) / ((v / square_bias).sqrt() + EPSILON))

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it."""
        count = torch.tensor(float(self.steps))
        return {
            f"{number}.{name}": x
            for number, (m, v) in enumerate(zip(self.moments, self.squares, strict=True))
            for name, x in (("step", count), ("exp_avg", m), ("exp_avg_sq", v))
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from what `tensors` gave."""
        for number, (m, v) in enumerate(zip(self.moments, self.squares, strict=True)):
            m.copy_(tensors[f"{number}.exp_avg"])
            v.copy_(tensors[f"{number}.exp_avg_sq"])
            self.steps = int(tensors[f"{number}.step"])


@dataclass(eq=False)
class TrainState:
    """A training as it stands: everything that changes from step to step."""

    predictor: Predictor | Looker
    optimizer: AdamW
    average: dict[str, Tensor] = field(default_factory=dict)
    """The moving average of weights; nothing where none is asked for."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """The weights of the best validation so far."""
    best_step: int = 0
    step: int = 0
    history: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By step: the `loss`, and under `cases` what the validation gave."""


def run_steps(
    learner: Learner,
    configs: Sequence[TrainConfig],
    *,
    checkpoint: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    progress: StepProgress | None = None,
    log: Log | None = None,
) -> TrainState:
    """Train to the last step; the state there, with the weights in the learner's predictor.

    Args:
        learner: What is trained.
        configs: Its settings; one for each run where several are trained side by side, which then
            differ in rate and decay alone.
        checkpoint: A file to continue from, and to keep up to date.
        about: What makes a training the same as another; the checkpoint of another is refused.
        progress: Hears of every step. An interrupt that it raises ends the training after a whole
            step, which the checkpoint then holds.
        log: Hears of the figures of every validation.
    """
    config, device = configs[0], learner.predictor.readout.weight.device
    shape = learner.predictor.readout.weight.shape[:-2]
    rates, decay = (
        torch.tensor([getattr(x, name) for x in configs], device=device).view(shape)
        for name in ("lr", "weight_decay")
    )
    optimizer = AdamW(learner.predictor.parameters(), rates, decay)
    state = TrainState(learner.predictor, optimizer)
    resume(checkpoint, dict(about or {}), state)
    save = seldom(save_checkpoint)
    losses: list[Tensor] = []
    for step in range(state.step, config.last):
        state.predictor.train()
        state.predictor.zero_grad()
        losses.append(learner.backward(step))
        optimizer.step(rate(step, config))
        if config.average:
            _average(state, config.average)
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
        # Of an interrupted training too: a loss that is no number is not worth continuing from.
        loss = _checked(losses, step)
        if due:
            # Whoever continues from here begins with the next step, and would not validate this.
            state.history[state.step] = {"loss": loss, "cases": _validated(state, learner)}
            losses.clear()
            _remember_best(state, config)
            if log:
                figures = means(state.history[state.step]["cases"]).items()
                named = {name if name == "cmd" else f"auroc_{name}": x for name, x in figures}
                log(state.step, {"loss": loss} | named)
        if checkpoint:
            done = interrupt is not None or state.step == config.last
            save(checkpoint, dict(about or {}), state, force=done)
        if interrupt is not None:
            raise interrupt
    _load(state.predictor, state.best or state.average)
    state.predictor.eval()
    return state


def rate(step: int, config: TrainConfig) -> float:
    """Share of the full learning rate: up in a line, down as a cosine."""
    rise = max(1, round(config.warmup * config.steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, config.steps - rise)))


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


def _checked(losses: Sequence[Float[Tensor, "*run"]], last: int) -> Any:
    """The last of the losses since the validation before; the first that is no number is named.

    Of runs side by side one may diverge: its figures say so, and the others are none the worse.
    """
    values = torch.stack(list(losses)).tolist()
    for number, value in enumerate(values if losses[0].ndim == 0 else []):
        if not math.isfinite(value):
            step = last + 2 - len(values) + number
            raise ValueError(
                f"the training loss is {value} at step {step}; lower the learning rate."
            )
    return values[-1]


def _validated(state: TrainState, learner: Learner) -> Any:
    """The figures of the weights that the training would end with now."""
    weights = state.predictor.state_dict()
    now = {name: x.clone() for name, x in weights.items()} if state.average else {}
    _load(state.predictor, state.average)
    state.predictor.eval()
    figures = learner.validate()
    _load(state.predictor, now)
    return figures


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


def _load(predictor: Predictor | Looker, weights: Mapping[str, Tensor]) -> None:
    if weights:
        predictor.load_state_dict(dict(weights))


# Checkpoints: what a training needs to continue as if it had never stopped


def checkpoint_path(folder: str | Path, seed: int) -> Path:
    """Where the checkpoint of a seed lies."""
    return Path(folder) / f"seed{seed}.safetensors"


def remove_checkpoints(folder: str | Path, seeds: Iterable[int]) -> None:
    """Remove the checkpoints of an ensemble, and the folder if nothing else is in it."""
    for seed in seeds:
        checkpoint_path(folder, seed).unlink(missing_ok=True)
    with suppress(OSError):
        Path(folder).rmdir()


def save_checkpoint(path: str | Path, about: dict[str, Any], state: TrainState) -> None:
    """Write all of it."""
    tensors = {f"predictor.{name}": x for name, x in state.predictor.state_dict().items()}
    for name in ("average", "best"):
        tensors |= {f"{name}.{key}": x for key, x in getattr(state, name).items()}
    tensors |= {f"optimizer.{name}": x for name, x in state.optimizer.tensors().items()}
    history = {str(at): record for at, record in state.history.items()}
    meta = {"step": state.step, "best_step": state.best_step, "history": history}
    save_artifact(path, kind=CHECKPOINT, config=about, seed=None, tensors=tensors, meta=meta)


def resume(path: str | Path | None, about: dict[str, Any], state: TrainState) -> None:
    """Continue from what the file holds, if there is one; that of another training is refused."""
    if path is None or not Path(path).exists():
        return
    artifact = load_artifact(path, CHECKPOINT)
    other = artifact.config
    if content_hash(dict(other)) != content_hash(about):
        names = [x for x in about if content_hash(about[x]) != content_hash(other.get(x))]
        raise StoreError(
            f"{path} is the checkpoint of another training: its "
            f"{' and '.join(WORDS.get(name, name) for name in names)} differ; give another folder, "
            "or delete it to start afresh."
        )
    with taken_apart(path, "checkpoint"):
        device = state.predictor.readout.weight.device
        owners = ("predictor", "average", "best", "optimizer")
        tensors: dict[str, dict[str, Tensor]] = {name: {} for name in owners}
        for name, tensor in artifact.tensors.items():
            owner, _, rest = name.partition(".")
            tensors[owner][rest] = tensor.to(device)
        history = {int(at): record for at, record in artifact.meta["history"].items()}
        state.step, state.history = artifact.meta["step"], history
        state.best_step = artifact.meta["best_step"]
        state.predictor.load_state_dict(tensors["predictor"])
        state.average, state.best = tensors["average"], tensors["best"]
        state.optimizer.load(tensors["optimizer"])
