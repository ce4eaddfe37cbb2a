"""Trained predictors: several networks of one shape whose logits are averaged, and their file.

1. `load_ensemble` reads one, `save_ensemble` writes it: weights, configuration, what it was trained
   on and, under `measured`, how it did on cases that were left out.
2. `Ensemble.predict` runs all members on a case that was read, and gives a `Prediction`: the mean
   logit of every edge, counted along paths, and where the file has what it takes, the probability
   that it stands for (`calibration`) and whether the case is like those of the training
   (`familiarity`).
3. `Ensemble.predict_case` reads a case and does so; on kinds of subjects where that was measured to
   help, the file's `lookers` then look at the circuits that this proposes, and correct it.
4. An ensemble knows what its training did not have: `unseen` names traits of a subject's
   architecture, `origin` lists the cases.

Averaging two networks costs one more pass over the graph, which is little beside the runs of the
subject, and their disagreement shows where neither has learned anything.
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from graphcircuits.io.config import build_config
from graphcircuits.io.files import short
from graphcircuits.io.store import StoreError, check_finite, load_artifact, save_artifact
from graphcircuits.predictor.facts.calibration import (
    Calibration,
    calibration_from_json,
    calibration_to_json,
)
from graphcircuits.predictor.facts.familiarity import Familiarity, KnownCases, case_features
from graphcircuits.predictor.facts.trust import Trust
from graphcircuits.predictor.invariant import InvariantAligner, living, measured_columns
from graphcircuits.predictor.looker import Looker, LookerConfig, corrected
from graphcircuits.predictor.looking import rank_logits, worths
from graphcircuits.predictor.model import Predictor, PredictorConfig, Reading, read_case
from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

KIND = "predictor"
KNOWN, TRUST, LOOKERS = "familiarity.", "trust.", "looker."
"""What the names of their tensors begin with."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What an ensemble predicts for a case."""

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
    lookers: tuple[Looker, ...] = ()
    """Networks that look at the circuits that are proposed, and correct the proposal."""
    looks: tuple[str, ...] = ()
    """The kinds of subjects on which they do so unless told otherwise."""
    name: str = ""
    """What results call it: the path of its file, or the name it ships under."""

    @property
    def config(self) -> PredictorConfig:
        return self.members[0].config

    @property
    def dtype(self) -> torch.dtype:
        return self.members[0].readout.weight.dtype

    def predict_case(
        self,
        subject: Transformer,
        pairs: Pairs,
        *,
        generator: torch.Generator,
        kind: str | None = None,
        looks: int | None = None,
    ) -> Prediction:
        """Its prediction for a subject and its prompts.

        Args:
            subject: The transformer that is explained, on the ensemble's device.
            pairs: Clean and corrupted prompts with their targets.
            generator: Draws what the paper's aligner takes at random: prompt pairs, and
                identifiers of coordinates.
            kind: Of the subject, such as "natural": by it logits become probabilities, and whether
                it looks is decided.
            looks: Rounds of looking, instead of those that the ensemble makes on such subjects.

        Returns:
            Logits, and what the file knows besides; see docs/predictor.md.

        Example:
            >>> import torch
            >>> from graphcircuits import load_case
            >>> from graphcircuits.methods.shipped import shipped
            >>> case = load_case("ib-3")
            >>> subject, pairs = case.subject(), case.pairs(16, seed=0)
            >>> prediction = shipped("default").predict_case(
            ...     subject, pairs, generator=torch.Generator(), kind="planted"
            ... )
            >>> len(prediction.logits) == subject.graph.n_edges
            True
        """
        looks = self.usual_looks(kind) if looks is None else looks
        if looks < 0 or (looks and not self.lookers):
            allowed = "at least 0" if self.lookers else "0: this predictor has no looker"
            raise ValueError(f"looks must be {allowed}, got {looks}.")
        with torch.no_grad():
            reading = read_case(self.config, subject, pairs, generator=generator, dtype=self.dtype)
        proposal = self.predict(reading, generator=generator, kind=kind)
        if not looks:
            return proposal
        logits = self.look(subject, pairs, reading, proposal.logits, looks)
        calibration = self.calibration.get(kind) if kind in self.looks else None
        probabilities = None if calibration is None else calibration(logits)
        # What was known of the proposal says nothing of a ranking that was looked at.
        return Prediction(logits, probabilities, None)

    def usual_looks(self, kind: str | None) -> int:
        """Rounds of looking that it makes on subjects of a kind, unless told otherwise."""
        return self.lookers[0].config.rounds if kind in self.looks else 0

    def look(
        self,
        subject: Transformer,
        pairs: Pairs,
        reading: Reading,
        logits: Float[Tensor, " edge"],
        rounds: int,
    ) -> Float[Tensor, " edge"]:
        """Values of edges after so many rounds of looking from a proposal; silent ones last."""
        assert isinstance(reading.content, Tensor)
        alive = living(reading.content, self.config.share)
        worth = worths(
            subject,
            pairs[: self.lookers[0].config.prompts],
            precision="tf32" if subject.device.type == "cuda" else "full",
        )
        start = rank_logits(logits, alive)
        structure = reading.structure.among(alive)
        values = corrected(
            self.lookers, reading.content, start, structure, subject.graph, worth, rounds
        )
        return values.where(alive, values.masked_fill(~alive, torch.inf).amin() - 1)

    @torch.no_grad()
    def predict(
        self, reading: Reading, *, generator: torch.Generator, kind: str | None = None
    ) -> Prediction:
        """As `predict_case`, for a case that has been read; every member runs once."""
        members = self.member_logits(reading, generator=generator)
        logits, trusted = members.mean(0), 1.0
        features = None
        if isinstance(reading.content, Tensor) and (self.known or self.trust):
            features = case_features(reading)
        starts = [start for member in self.members if (start := member.start(reading)) is not None]
        if self.trust is not None and starts and features is not None:
            trusted = self.trust(features)
            logits = torch.stack(starts).mean(0).lerp(logits, trusted)
        if self.config.paths:
            if reading.graph is None:
                raise ValueError("paths are those of one case: predict joined readings apart.")
            logits = along_paths(logits, reading.graph)
        familiarity = None
        if self.known is not None and features is not None:
            familiarity = self.known.judge(features, members)
        # What looks are calibrated on is the logits after them.
        calibration = self.calibration.get(kind) if kind and kind not in self.looks else None
        probabilities = None if calibration is None else calibration(logits)
        return Prediction(logits, probabilities, familiarity, trusted)

    @torch.no_grad()
    def member_logits(
        self, reading: Reading, *, generator: torch.Generator
    ) -> Float[Tensor, "member edge"]:
        """The logit of every edge by every member."""
        logits = []
        for member in self.members:
            # Setting the mode visits every module, which takes as long as a small graph.
            if member.training:
                member.eval()
            logits.append(member(reading, generator=generator))
        return torch.stack(logits)

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
        return _moved(self, torch.device(device))

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
def _moved(ensemble: Ensemble, device: torch.device) -> Ensemble:
    moved = (
        tuple(deepcopy(network).to(device) for network in networks)
        for networks in (ensemble.members, ensemble.lookers)
    )
    return replace(ensemble, **dict(zip(("members", "lookers"), moved, strict=True)))


@lru_cache(maxsize=8)
def blinded(ensemble: Ensemble) -> Ensemble:
    """The same predictors, to which every case with one graph looks the same.

    Whatever was measured counts for nothing: the values that the paper's aligner projects for zero,
    invariants for their means over the training, and a search to start from for none. What is left
    are the graph and the kinds of its components.
    """
    members = tuple(deepcopy(member) for member in ensemble.members)
    for member in members:
        align = member.align
        if isinstance(align, InvariantAligner):
            blind = measured_columns(member.config.share)
            # Divided by infinity, differences from the mean are zero.
            align.deviation[blind.to(align.deviation.device)] = math.inf
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
    each = [traits(subject) for subject in subjects]
    seen: dict[str, Any] = {name: sorted({trait[name] for trait in each}) for name in each[0]}
    return seen | {"layers": max(subject.config.n_layers for subject in subjects)}


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

    Weights are written in `dtype`, that of the members if None, those of lookers in half precision;
    all are read in single precision.
    """
    states = nn.ModuleList(ensemble.members).state_dict().items()
    tensors = {name: tensor.to(dtype or tensor.dtype) for name, tensor in states}
    meta: dict[str, Any] = {"members": len(ensemble.members), "origin": ensemble.origin}
    if ensemble.calibration:
        kinds = ensemble.calibration.items()
        meta["calibration"] = {kind: calibration_to_json(each) for kind, each in kinds}
    for prefix, fact in ((KNOWN, ensemble.known), (TRUST, ensemble.trust)):
        if fact is not None:
            tensors |= {prefix + name: tensor for name, tensor in fact.tensors().items()}
    if ensemble.lookers:
        meta["looking"] = {
            "config": asdict(ensemble.lookers[0].config),
            "members": len(ensemble.lookers),
            "kinds": list(ensemble.looks),
        }
        states = nn.ModuleList(ensemble.lookers).state_dict(prefix=LOOKERS).items()
        tensors |= {name: tensor.half() for name, tensor in states}
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
    """The ensemble in a file that `save_ensemble` wrote.

    Args:
        path: The file, such as `graphcircuits train --out my.safetensors` makes.

    Returns:
        The members in evaluation mode on the CPU, with their origin and what the file knows.

    Raises:
        StoreError: Where the file is damaged, or holds what this code cannot run.
    """
    artifact = load_artifact(path, KIND)
    try:
        config = build_config(PredictorConfig, artifact.config)
        origin = _checked_origin(artifact.meta["origin"])
        count = artifact.meta["members"]
        _check_sizes(config, count, artifact.tensors)
        check_finite("it", artifact.tensors)
        members = []
        for number in range(count):
            member = Predictor(config)
            member.load_state_dict(_under(f"{number}.", artifact.tensors))
            members.append(member.eval().requires_grad_(False))
        by_kind = artifact.meta.get("calibration", {})
        if not isinstance(by_kind, dict):
            raise ValueError(f"calibration must be by kind of subject, got {short(by_kind)}")
        calibration = {kind: calibration_from_json(each) for kind, each in by_kind.items()}
        known = _fact(KnownCases, KNOWN, members[0], artifact.tensors)
        trust = _fact(Trust, TRUST, members[0], artifact.tensors)
        lookers, looks = _lookers(artifact.meta.get("looking"), members[0], artifact.tensors)
        facts = (calibration, known, trust, lookers, looks)
        return Ensemble(tuple(members), origin, artifact.sha256, *facts)
    except (KeyError, RuntimeError, ValueError) as error:
        raise StoreError(
            f"{path} holds a predictor that does not match this version of the code: {error}; "
            "train it again with: graphcircuits train"
        ) from error


def _lookers(
    about: Any, member: Predictor, tensors: Mapping[str, Tensor]
) -> tuple[tuple[Looker, ...], tuple[str, ...]]:
    """The networks that look, if a file has some, and on which kinds of subjects they do."""
    if about is None:
        return (), ()
    if not isinstance(member.align, InvariantAligner) or member.config.transformation != "line":
        raise ValueError("only predictors that take invariants of a line graph look")
    config, count = build_config(LookerConfig, about["config"]), about["members"]
    held = sum(x.numel() for name, x in tensors.items() if name.startswith(LOOKERS))
    if type(count) is not int or not 1 <= count * config.layers * config.width**2 <= held:
        raise ValueError(f"the file does not hold {short(count)} lookers of {short(config)}")
    if not isinstance(about["kinds"], list) or not all(isinstance(x, str) for x in about["kinds"]):
        raise ValueError(f"kinds must be a list of names, got {short(about['kinds'])}")
    lookers = []
    for number in range(count):
        looker = Looker(config, len(member.align.mean))
        looker.load_state_dict(_under(f"{LOOKERS}{number}.", tensors))
        lookers.append(looker.eval().requires_grad_(False))
    return tuple(lookers), tuple(about["kinds"])


Fact = TypeVar("Fact", KnownCases, Trust)


def _fact(
    cls: type[Fact], prefix: str, member: Predictor, tensors: Mapping[str, Tensor]
) -> Fact | None:
    """What a file knows of the training under a prefix, if anything."""
    stored = _under(prefix, tensors)
    if not stored:
        return None
    if not isinstance(member.align, InvariantAligner):
        raise ValueError(f"only predictors that take invariants have {prefix[:-1]}")
    return cls.from_tensors(stored, len(member.align.mean))


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, by the rest of their names."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _check_sizes(config: PredictorConfig, members: object, tensors: Mapping[str, Tensor]) -> None:
    """Refuse sizes of which the file does not hold the weights, before any are allocated."""
    if type(members) is not int or members < 1:
        raise ValueError(f"members must be a whole number from 1, got {short(members)}")
    # The square matrices alone: at least one per layer, and that of the paper's aligner.
    least = config.layers * config.width**2 + (config.aligner == "tabpfn") * config.d_align**2
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
    """Refuse anything but finite numbers three mappings deep: kind, figure, method."""
    level = [measured]
    for _ in range(3):
        tables = [each if isinstance(each, dict) else {"": None} for each in level]
        level = [value for table in tables for value in table.values()]
    if not all(isinstance(x, int | float) and -math.inf < x < math.inf for x in level):
        raise ValueError(
            f"what was measured must be numbers by kind, figure and method, got {short(measured)}"
        )
