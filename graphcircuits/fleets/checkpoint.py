"""All that a fleet in training is, on disk: a training that was cut off goes on from there.

A checkpoint holds the weights and Adam's moments of the subjects that still train, how often each
of their tasks and components went wrong, the state of the generator, the step, and the best weights
of every subject so far. Training from it takes the very steps that an unbroken one takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from graphcircuits.fleets.batch import Errors
from graphcircuits.fleets.fleet import Weights
from graphcircuits.io.store import load_artifact, save_artifact, taken_apart
from graphcircuits.subject.transformer import Transformer

KIND = "fleet-checkpoint"
MOMENTS = ("weights", "first", "second")


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


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A training after some steps. The tensors are those in use: save or copy them at once."""

    step: int
    alive: Sequence[int]
    """Indices in the fleet of the subjects that still train, in the order of the tensors."""
    state: State
    errors: Errors
    generator: Tensor
    """The state of the generator."""
    best: Mapping[int, TrainedSubject]


def save_snapshot(path: Path, about: Mapping[str, Any], snapshot: Snapshot) -> None:
    """Write a snapshot; `about` says which training it belongs to."""
    state = snapshot.state
    tensors = {
        f"{kind}.{name}": tensor
        for kind in MOMENTS
        for name, tensor in getattr(state, kind).items()
    }
    tensors |= {"count": state.count, "generator": snapshot.generator}
    tensors |= {"errors.task": snapshot.errors.task, "errors.part": snapshot.errors.component}
    for index, one in snapshot.best.items():
        tensors |= {f"best{index}.{name}": w for name, w in one.subject.weights.items()}
    best = {
        str(index): {"merit": one.merit, "steps": one.steps, "passed": one.passed}
        for index, one in snapshot.best.items()
    }
    meta = {"step": snapshot.step, "alive": list(snapshot.alive), "best": best}
    meta |= {"names": list(state.weights)}
    save_artifact(path, kind=KIND, config=about, seed=None, tensors=tensors, meta=meta)


def read_about(path: Path) -> dict[str, Any]:
    """Which training a checkpoint belongs to."""
    return dict(load_artifact(path, KIND).config)


def load_snapshot(path: Path, subjects: Sequence[Transformer], device: torch.device) -> Snapshot:
    """Read a snapshot of a training that began with these subjects."""
    artifact = load_artifact(path, KIND)

    def under(prefix: str) -> Weights:
        # The file has no order, but norms are summed in this one. Copies, because fresh memory
        # is aligned as in a training that never stopped.
        return {name: artifact.tensors[prefix + name].clone() for name in artifact.meta["names"]}

    with taken_apart(path, "checkpoint"):
        weights, first, second = (
            {name: tensor.to(device) for name, tensor in under(f"{kind}.").items()}
            for kind in MOMENTS
        )
        weights = {name: tensor.requires_grad_() for name, tensor in weights.items()}
        best = {}
        for key, one in artifact.meta["best"].items():
            start = subjects[int(key)]
            subject = Transformer(start.config, under(f"best{key}."), start.codec)
            best[int(key)] = TrainedSubject(subject, **one)
        return Snapshot(
            step=artifact.meta["step"],
            alive=artifact.meta["alive"],
            state=State(weights, first, second, artifact.tensors["count"].clone().to(device)),
            errors=Errors(
                *(artifact.tensors[f"errors.{of}"].clone().to(device) for of in ("task", "part"))
            ),
            generator=artifact.tensors["generator"].clone(),
            best=best,
        )
