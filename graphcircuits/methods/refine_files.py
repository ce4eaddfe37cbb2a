"""Refining on disk: one that was stopped goes on from there.

A checkpoint holds the ranking that was refined, the values it has come to, the averages of the
gradient, the steps and seconds that it took, and the state of the generator. Going on from it takes
the very steps that an unbroken run takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.io.store import StoreError, load_artifact, save_artifact, taken_apart

KIND = "refine-checkpoint"
TENSORS = ("values", "first")


@dataclass(eq=False)
class RefineState:
    """Refining after some steps; changed in place, step by step."""

    values: Float[Tensor, " edge"]
    first: Float[Tensor, " edge"]
    """The running mean of the gradient."""
    second: float
    """That of the mean of its squares."""
    step: int
    elapsed: float
    """Seconds that the steps took."""
    generator: torch.Generator

    @classmethod
    def at(cls, start: Float[Tensor, " edge"], generator: torch.Generator) -> "RefineState":
        return cls(start.clone(), torch.zeros_like(start), 0.0, 0, 0.0, generator)


def save_state(
    path: Path, about: Mapping[str, Any], start: Float[Tensor, " edge"], state: RefineState
) -> None:
    """Write a checkpoint; `about` says how long the run is to be, `start` what it began with."""
    tensors = {name: getattr(state, name) for name in TENSORS}
    tensors |= {"start": start, "generator": state.generator.get_state()}
    meta = {"step": state.step, "elapsed": state.elapsed, "second": state.second}
    save_artifact(path, kind=KIND, config=about, seed=None, tensors=tensors, meta=meta)


def load_state(path: Path, about: Mapping[str, Any], start: Float[Tensor, " edge"]) -> RefineState:
    """Read a checkpoint of the run that began with this start; any other is refused."""
    found = load_artifact(path, KIND)
    with taken_apart(path, "checkpoint"):
        tensors = {name: found.tensors[name].to(start) for name in ("start", *TENSORS)}
        if any(tensor.shape != start.shape for tensor in tensors.values()):
            raise StoreError(f"{path} refines other scores: {_REMEDY}.")
        # Gradients on a GPU differ in the last digits, so that near ties may have changed places.
        if (tensors["start"] - start).abs().mean() > 1e-3:
            raise StoreError(f"{path} refines other scores: {_REMEDY}.")
        if dict(found.config) != dict(about):
            raise StoreError(
                f"{path} refines for {_length(found.config)}, not {_length(about)}: {_REMEDY}."
            )
        generator = torch.Generator()
        generator.set_state(found.tensors["generator"])
        step, elapsed, second = (found.meta[name] for name in ("step", "elapsed", "second"))
        return RefineState(
            # Memory of its own is aligned as in a run that never stopped.
            tensors["values"].clone(),
            tensors["first"].clone(),
            float(second),
            int(step),
            float(elapsed),
            generator,
        )


_REMEDY = "give another file, or delete it to start afresh"


def _length(about: Mapping[str, Any]) -> str:
    if about["seconds"] is not None:
        return f"{about['seconds']:g} seconds"
    return f"{about['steps']} steps"
