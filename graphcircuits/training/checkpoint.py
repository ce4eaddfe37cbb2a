"""Checkpoints of a training: what it needs to go on as if it had never stopped."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphcircuits.io.store import (
    StoreError,
    content_hash,
    load_artifact,
    save_artifact,
    taken_apart,
)
from graphcircuits.predictor.model import Predictor

CHECKPOINT = "predictor-checkpoint"
WORDS = {"train": "settings", "data": "readings of the cases", "validation": "held-out cases"}


@dataclass(eq=False)
class TrainState:
    """A training as it stands: everything that changes from step to step."""

    predictor: Predictor
    optimizer: torch.optim.Optimizer
    average: dict[str, Tensor] = field(default_factory=dict)
    """The moving average of weights; nothing where none is kept."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """The weights of the best validation so far."""
    best_step: int = 0
    step: int = 0
    history: dict[int, dict[str, Any]] = field(default_factory=dict)


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
    for part in ("average", "best"):
        tensors |= {f"{part}.{name}": x for name, x in getattr(state, part).items()}
    for place, own in state.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{place}.{name}": x for name, x in own.items()}
    history = {str(at): record for at, record in state.history.items()}
    meta = {"step": state.step, "best_step": state.best_step, "history": history}
    save_artifact(path, kind=CHECKPOINT, config=about, seed=None, tensors=tensors, meta=meta)


def resume(path: str | Path | None, about: dict[str, Any], state: TrainState) -> None:
    """Take up what the file holds, if there is one; that of another training is refused."""
    if path is None or not Path(path).exists():
        return
    found = load_artifact(path, CHECKPOINT)
    if content_hash(dict(found.config)) != content_hash(about):
        raise StoreError(
            f"{path} is the checkpoint of another training: its {_differing(about, found.config)} "
            "differ; give another folder, or delete it to start afresh."
        )
    with taken_apart(path, "checkpoint"):
        device = state.predictor.readout.weight.device
        parts: dict[str, dict[str, Tensor]] = {"predictor": {}, "average": {}, "best": {}}
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in found.tensors.items():
            part, _, rest = name.partition(".")
            if part == "optimizer":
                place, _, own = rest.partition(".")
                moments.setdefault(int(place), {})[own] = tensor
            else:
                parts[part][rest] = tensor.to(device)
        state.predictor.load_state_dict(parts["predictor"])
        state.average, state.best = parts["average"], parts["best"]
        state.optimizer.load_state_dict({**state.optimizer.state_dict(), "state": moments})
        history = {int(at): record for at, record in found.meta["history"].items()}
        state.step, state.history = found.meta["step"], history
        state.best_step = found.meta["best_step"]


def _differing(about: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    names = [name for name in about if content_hash(about[name]) != content_hash(other.get(name))]
    return " and ".join(WORDS.get(name, name) for name in names)
