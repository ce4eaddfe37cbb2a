"""Trained predictors: several of one shape whose logits are averaged, kept in one file.

1. `Ensemble.scores` reads a case once and runs all members on it, block by block where it can.
2. `save_ensemble` and `load_ensemble` are its artifact: weights, configuration, and what it was
   trained on.
3. An ensemble says what its training had not: `unseen` names what of a subject's architecture,
   `origin` which cases.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.config import build_config
from graphcircuits.files import short
from graphcircuits.predictor import blockwise, invariant
from graphcircuits.predictor.model import Predictor, PredictorConfig, Reading, measure, read_case
from graphcircuits.store import StoreError, load_artifact, save_artifact
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

KIND = "predictor"


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Predictors of one configuration, and where they came from."""

    members: tuple[Predictor, ...]
    origin: dict[str, Any]
    """Training configuration, case ids, seeds, and what subjects it saw."""
    sha256: str = ""
    """Content of the file it was read from."""

    @property
    def config(self) -> PredictorConfig:
        return self.members[0].config

    @torch.no_grad()
    def scores(
        self, subject: Transformer, pairs: Pairs, *, generator: torch.Generator
    ) -> Float[Tensor, " edge"]:
        """The mean logit of every edge."""
        config = self.config
        if blockwise.applies(config):
            found = measure(config, subject, pairs)
            return blockwise.logits(self.folded, found).mean(0)
        reading = read_case(config, subject, pairs, generator=generator)
        return self.logits(reading, generator=generator)

    @cached_property
    def folded(self) -> blockwise.Folded:
        """The members' weights as `blockwise` takes them, made once: members do not change."""
        return blockwise.folded(self.members)

    @torch.no_grad()
    def logits(self, reading: Reading, *, generator: torch.Generator) -> Float[Tensor, " edge"]:
        """The mean logit of every edge of a case that has been read."""
        found = []
        for member in self.members:
            # Setting the mode visits every module, which takes as long as a small graph.
            if member.training:
                member.eval()
            found.append(member(reading, generator=generator))
        return torch.stack(found).mean(0)

    def to(self, device: torch.device | str) -> "Ensemble":
        """The same predictors on another device; these stay where they are."""
        if self.members[0].readout.weight.device == torch.device(device):
            return self
        return replace(self, members=tuple(deepcopy(member).to(device) for member in self.members))

    def unseen(self, subject: Transformer) -> list[str]:
        """What the subject has that no subject of the training did, in words.

        Nothing where the predictor does not say what subjects it saw.
        """
        if "subjects" not in self.origin:
            return []
        seen, config = self.origin["subjects"], subject.config
        notes = [
            name if value is True else f"{name} {value}"
            for name, value in traits(subject).items()
            if value not in seen.get(name, (value,))
        ]
        if config.n_layers > seen.get("layers", config.n_layers):
            notes.append(f"{config.n_layers} layers, at most {seen['layers']} were seen")
        return notes


def traits(subject: Transformer) -> dict[str, Any]:
    """What of a subject's architecture a predictor may not have met."""
    config = subject.config
    return {
        "norm": config.norm,
        "positions": config.positions,
        "gated MLP": config.gated_mlp,
        "parallel layers": config.parallel,
        "grouped keys": config.n_groups < config.n_heads,
    }


def seen_of(subjects: Sequence[Transformer]) -> dict[str, Any]:
    """The traits of training subjects, for `Ensemble.origin`."""
    found = [traits(subject) for subject in subjects]
    seen: dict[str, Any] = {name: sorted({trait[name] for trait in found}) for name in found[0]}
    return seen | {"layers": max(subject.config.n_layers for subject in subjects)}


def save_ensemble(path: str | Path, ensemble: Ensemble, *, seed: int | None = None) -> None:
    """Write weights, configuration and origin as one artifact."""
    tensors = {
        f"{place}.{name}": tensor
        for place, member in enumerate(ensemble.members)
        for name, tensor in member.state_dict().items()
    }
    meta = {"members": len(ensemble.members), "origin": ensemble.origin}
    save_artifact(path, kind=KIND, config=ensemble.config, seed=seed, tensors=tensors, meta=meta)


def load_ensemble(path: str | Path) -> Ensemble:
    """Read an ensemble; a file that this code cannot run is refused."""
    artifact = load_artifact(path, KIND)
    try:
        config = build_config(PredictorConfig, artifact.config)
        origin = _checked_origin(artifact.meta["origin"])
        count = artifact.meta["members"]
        _check_sizes(config, count, artifact.tensors)
        members = []
        for place in range(count):
            member, prefix = Predictor(config), f"{place}."
            own = {
                name.removeprefix(prefix): tensor
                for name, tensor in artifact.tensors.items()
                if name.startswith(prefix)
            }
            member.load_state_dict(own)
            members.append(member.eval().requires_grad_(False))
        return Ensemble(tuple(members), origin, artifact.sha256)
    except (KeyError, RuntimeError, ValueError) as error:
        raise StoreError(
            f"{path} holds a predictor that does not match this version of the code: {error}; "
            "train it again with: graphcircuits train"
        ) from error


def _check_sizes(config: PredictorConfig, members: object, tensors: Mapping[str, Tensor]) -> None:
    """Refuse sizes of which the file does not hold the weights, before any are allocated."""
    if type(members) is not int or members < 1:
        raise ValueError(f"members must be a whole number from 1, got {short(members)}")
    # The square matrices alone: at least one per layer, and those of the aligner.
    least = config.layers * config.width**2
    if config.aligner == "tabpfn":
        least += config.d_align**2
    else:
        least += config.context_width * (config.context_width + config.width)
    held = sum(tensor.numel() for tensor in tensors.values())
    if members * least > held:
        raise ValueError(
            f"{short(members)} members of these sizes have at least {short(least)} weights each, "
            f"and it holds {held} in all"
        )


def _checked_origin(origin: object) -> dict[str, Any]:
    seen = origin.get("subjects", {}) if isinstance(origin, dict) else None
    if not isinstance(origin, dict) or not isinstance(seen, dict):
        raise ValueError(f"origin must be a mapping with one of subjects, got {short(origin)}")
    wrong = [name for name, x in seen.items() if type(x) is not (int if name == "layers" else list)]
    if wrong:
        raise ValueError(f"the subjects of its origin must be lists, and layers a number: {wrong}")
    for name in ("cases", "groups"):
        listed = origin.get(name, [])
        if not isinstance(listed, list) or not all(isinstance(id, str) for id in listed):
            raise ValueError(f"the {name} of its origin must be a list of ids, got {short(listed)}")
    return origin
