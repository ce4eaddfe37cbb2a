"""Trained predictors: several of one shape whose logits are averaged, kept in one file.

1. `Ensemble.predict_case` reads a case and runs all members on it, block by block where it can, and
   `predict` does so for one that was read: the mean logit of every edge, counted along paths, and
   where the file has what it takes, the probability that it stands for (`calibration`) and whether
   the case is like those of the training (`familiarity`).
2. `with_calibration` and `with_familiarity` fit these two at the end of a training.
3. `save_ensemble` and `load_ensemble` are its artifact: weights, configuration, what it was trained
   on and, under `measured`, how it did on cases that were left out.
4. An ensemble says what its training had not: `unseen` names what of a subject's architecture,
   `origin` which cases.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.io.config import build_config
from graphcircuits.io.files import short
from graphcircuits.io.store import StoreError, check_finite, load_artifact, save_artifact
from graphcircuits.predictor import blockwise
from graphcircuits.predictor.facts.calibration import (
    Calibration,
    calibration_from_json,
    calibration_to_json,
    fit_calibration,
)
from graphcircuits.predictor.facts.familiarity import (
    Familiarity,
    KnownCases,
    case_features,
    fit_familiarity,
)
from graphcircuits.predictor.facts.trust import Trust
from graphcircuits.predictor.invariant import InvariantAligner, measured_columns
from graphcircuits.predictor.model import (
    InvariantTables,
    Predictor,
    PredictorConfig,
    Reading,
    measure,
    read_case,
    start,
)
from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

KIND = "predictor"
KNOWN, TRUST = "familiarity.", "trust."
"""What the names of their tensors begin with."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What an ensemble says of a case."""

    logits: Float[Tensor, " edge"]
    probabilities: Float[Tensor, " edge"] | None
    """None where the ensemble has no calibration for such subjects."""
    familiarity: Familiarity | None
    """None where it does not know its training cases."""
    trust: float = 1.0
    """The share of the network's correction that counts; the rest is the search it starts from."""


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Predictors of one configuration, and where they came from."""

    members: tuple[Predictor, ...]
    origin: dict[str, Any]
    """Training configuration, case ids, seeds, and what subjects it saw."""
    sha256: str = ""
    """Content of the file it was read from."""
    calibration: Mapping[str, Calibration] = field(default_factory=dict)
    """From the mean logit to a probability, by kind of subject, such as natural: one logit does not
    mean the same in a planted circuit of a few edges and where half of them are needed."""
    known: KnownCases | None = None
    """What the training cases were like."""
    trust: Trust | None = None
    """How much the correction counts on a case; all of it where that was not learned."""
    name: str = ""
    """What results call it: the path of its file, or the name it ships under."""

    @property
    def config(self) -> PredictorConfig:
        return self.members[0].config

    def scores(
        self, subject: Transformer, pairs: Pairs, *, generator: torch.Generator
    ) -> Float[Tensor, " edge"]:
        """The score of every edge: the mean logit, or that of the best path the edge lies on."""
        return self.predict_case(subject, pairs, generator=generator).logits

    @torch.no_grad()
    def predict_case(
        self,
        subject: Transformer,
        pairs: Pairs,
        *,
        generator: torch.Generator,
        kind: str | None = None,
    ) -> Prediction:
        """All that it says of a case, as `predict`; block by block where it can."""
        if not blockwise.applies(self.config):
            reading = read_case(self.config, subject, pairs, generator=generator)
            return self.predict(reading, generator=generator, kind=kind)
        found = measure(self.config, subject, pairs)
        members, columns = blockwise.run(self.folded, found)
        starts = self.folded.scale * start(found).to(members) if self.config.prior else None
        return self._prediction(members, starts, columns, found.graph, kind)

    def predict(
        self, reading: Reading, *, generator: torch.Generator, kind: str | None = None
    ) -> Prediction:
        """All that it says of a case that has been read; every member runs once.

        `kind` is that of the subject, by which probabilities go.
        """
        members = self.member_logits(reading, generator=generator)
        tables = isinstance(reading.content, InvariantTables)
        wanted = self.known is not None or self.trust is not None
        columns = case_features(reading) if tables and wanted else None
        begun = [member.start(reading) for member in self.members]
        starts = [each for each in begun if each is not None]
        together = torch.stack(starts) if starts else None
        return self._prediction(members, together, columns, reading.graph, kind)

    def _prediction(
        self,
        members: Float[Tensor, "member edge"],
        starts: Float[Tensor, "member edge"] | None,
        columns: Float[Tensor, " column"] | None,
        graph: ComponentGraph | None,
        kind: str | None,
    ) -> Prediction:
        logits, trusted = members.mean(0), 1.0
        if self.trust is not None and starts is not None and columns is not None:
            trusted = self.trust(columns)
            logits = starts.mean(0).lerp(logits, trusted)
        if self.config.paths:
            if graph is None:
                raise ValueError("paths are those of one case: predict joined readings apart.")
            logits = along_paths(logits, graph)
        likely = self.calibration.get(kind) if kind is not None else None
        judged = None
        if self.known is not None and columns is not None:
            judged = self.known.judge(columns, members)
        probabilities = None if likely is None else likely(logits)
        return Prediction(logits, probabilities, judged, trusted)

    @cached_property
    def folded(self) -> blockwise.Folded:
        """The members' weights as `blockwise` takes them, made once: members do not change."""
        return blockwise.folded(self.members)

    def logits(self, reading: Reading, *, generator: torch.Generator) -> Float[Tensor, " edge"]:
        """The score of every edge of a case that has been read."""
        return self.predict(reading, generator=generator).logits

    @torch.no_grad()
    def member_logits(
        self, reading: Reading, *, generator: torch.Generator
    ) -> Float[Tensor, "member edge"]:
        """The logit of every edge by every member."""
        found = []
        for member in self.members:
            # Setting the mode visits every module, which takes as long as a small graph.
            if member.training:
                member.eval()
            found.append(member(reading, generator=generator))
        return torch.stack(found)

    def familiarity(self, reading: Reading, *, generator: torch.Generator) -> Familiarity | None:
        """Whether a case is like those of the training; None where that was not kept."""
        return self.predict(reading, generator=generator).familiarity

    @property
    def measured(self) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        """What methods reached on cases that were left out of the training, by kind of subject,
        figure and method: `{"natural": {"cmd": {"gcl": 0.12, "eap-ig": 0.15}}}`; empty where nobody
        measured. Figures are means: `auroc` where circuits are known, and `cmd`."""
        return self.origin.get("measured", {})

    @property
    def labels(self) -> str:
        """The labeling of true circuits that it learned from; files that do not say have the one
        that was the only one then."""
        return self.origin.get("train", {}).get("labels", "interpbench")

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


@lru_cache(maxsize=8)
def blinded(ensemble: Ensemble) -> Ensemble:
    """The same predictors, to which every case with one graph looks the same.

    Whatever was measured counts for nothing: the values that the paper's aligner projects for zero,
    invariants for their means over the training, and a search to start from for none. What is left
    are the graph and the kinds of its components.
    """
    members = tuple(deepcopy(member) for member in ensemble.members)
    for member in members:
        align, config = member.align, member.config
        if isinstance(align, InvariantAligner):
            blind = measured_columns(share=config.share, both_ends=config.both_ends)
            # Divided by infinity, differences from the mean are zero.
            align.deviation[blind.to(align.deviation.device)] = math.inf
            if align.gather is not None:
                align.gather.weight.data.zero_()
        else:
            align.value.weight.data.zero_()
        if member.log_scale is not None:
            member.log_scale.data.fill_(-math.inf)
    return Ensemble(members, ensemble.origin, ensemble.sha256)


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


# At the end of a training


def with_familiarity(
    ensemble: Ensemble, readings: Sequence[Reading], groups: Sequence[Hashable] | None = None
) -> Ensemble:
    """The ensemble with what its training cases are like, from readings of them.

    Readings of one case, and of related ones, have one group. Readings of held-out cases may be
    among them. Predictors that take raw features (`tabpfn`) stay as they are.
    """
    if ensemble.config.aligner == "tabpfn":
        return ensemble
    generator = torch.Generator().manual_seed(0)
    logits = [ensemble.member_logits(reading, generator=generator).cpu() for reading in readings]
    return replace(ensemble, known=fit_familiarity(readings, logits, groups))


def with_calibration(
    ensemble: Ensemble,
    readings: Sequence[Reading],
    labels: Sequence[Bool[Tensor, " edge"]],
    cases: Sequence[Hashable] | None = None,
    *,
    kind: str,
) -> Ensemble:
    """The ensemble with a map from logit to probability for subjects of a kind, from cases of it
    that it was not trained on.

    Several readings of one case have one name in `cases`; without names all are cases of their own.
    """
    names = list(range(len(readings)) if cases is None else cases)
    if not len(readings) == len(labels) == len(names):
        raise ValueError(
            "every reading needs labels and a case, got "
            f"{len(readings)}, {len(labels)} and {len(names)}."
        )
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    generator = torch.Generator().manual_seed(0)
    logits = [ensemble.logits(reading, generator=generator).cpu() for reading in readings]
    number = [
        torch.full(each.shape, numbers[name]) for each, name in zip(logits, names, strict=True)
    ]
    masks = torch.cat([mask.cpu() for mask in labels])
    fitted = fit_calibration(torch.cat(logits), masks, torch.cat(number))
    return replace(ensemble, calibration={**ensemble.calibration, kind: fitted})


# Files


def save_ensemble(
    path: str | Path,
    ensemble: Ensemble,
    *,
    seed: int | None = None,
    command: str | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write weights, configuration and origin as one artifact; `command` as in `save_artifact`.

    Weights are kept in `dtype`, their own if None; they are read as single precision again.
    """
    tensors = {
        f"{place}.{name}": tensor if dtype is None else tensor.to(dtype)
        for place, member in enumerate(ensemble.members)
        for name, tensor in member.state_dict().items()
    }
    meta: dict[str, Any] = {"members": len(ensemble.members), "origin": ensemble.origin}
    if ensemble.calibration:
        kinds = ensemble.calibration.items()
        meta["calibration"] = {kind: calibration_to_json(each) for kind, each in kinds}
    if ensemble.known is not None:
        tensors |= {KNOWN + name: tensor for name, tensor in ensemble.known.tensors().items()}
    if ensemble.trust is not None:
        tensors |= {TRUST + name: tensor for name, tensor in ensemble.trust.tensors().items()}
    save_artifact(
        path,
        kind=KIND,
        config=ensemble.config,
        seed=seed,
        tensors=tensors,
        meta=meta,
        command=command,
    )


def load_ensemble(path: str | Path) -> Ensemble:
    """Read an ensemble; a file that this code cannot run is refused."""
    artifact = load_artifact(path, KIND)
    try:
        config = build_config(PredictorConfig, artifact.config)
        origin = _checked_origin(artifact.meta["origin"])
        count = artifact.meta["members"]
        _check_sizes(config, count, artifact.tensors)
        check_finite("it", artifact.tensors)
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
        said = artifact.meta.get("calibration", {})
        if not isinstance(said, dict):
            raise ValueError(f"calibration must be by kind of subject, got {short(said)}")
        calibration = {kind: calibration_from_json(each) for kind, each in said.items()}
        known = _kept(KnownCases, KNOWN, members[0], artifact.tensors)
        trust = _kept(Trust, TRUST, members[0], artifact.tensors)
        return Ensemble(tuple(members), origin, artifact.sha256, calibration, known, trust)
    except (KeyError, RuntimeError, ValueError) as error:
        raise StoreError(
            f"{path} holds a predictor that does not match this version of the code: {error}; "
            "train it again with: graphcircuits train"
        ) from error


Kept = TypeVar("Kept", KnownCases, Trust)


def _kept(
    cls: type[Kept], prefix: str, member: Predictor, tensors: Mapping[str, Tensor]
) -> Kept | None:
    """What a file holds under a prefix, if anything."""
    found = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    if not found:
        return None
    if not isinstance(member.align, InvariantAligner):
        raise ValueError(f"only predictors that take invariants have {prefix[:-1]}")
    return cls.from_tensors(found, len(member.align.mean))


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
    _check_measured(origin.get("measured", {}))
    return origin


def _check_measured(measured: object) -> None:
    kinds = measured if isinstance(measured, dict) else {"": measured}
    tables = [table for kind in kinds.values() for table in _values(kind)]
    if not all(_is_number(value) for table in tables for value in _values(table)):
        raise ValueError(
            f"what was measured must be numbers by kind, figure and method, got {short(measured)}"
        )


def _values(found: object) -> list[Any]:
    """Those of a mapping; of anything else one that is no number."""
    return [*found.values()] if isinstance(found, dict) else [None]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and -math.inf < value < math.inf
