"""Training a predictor on cases whose circuits are known.

1. `read_examples` reads every case, several times with other prompts.
2. `train` minimizes the paper's loss: binary cross-entropy in which circuit edges, where they are
   the fewer, weigh as much in sum as the others of their case. A step takes a batch of readings, in
   one pass where they can stand side by side in one graph. AdamW, linear warm-up, cosine decay.
3. At regular steps the validation cases are scored (AUROC at the q/k/v level, as in the paper, and
   at head level), a checkpoint is written where the last one is long enough ago, and training that
   was cut off goes on from there.
4. `train_ensemble` does that for several seeds.

Randomness is derived from seed and step, so a resumed training ends where an unbroken one does,
and nothing global is touched, so trainings in several threads end where single ones do.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.compare.evaluate import auroc
from graphcircuits.corpus import load_case
from graphcircuits.corpus.relations import groups_of
from graphcircuits.disk import seldom
from graphcircuits.predictor.ensemble import Ensemble, seen_of
from graphcircuits.predictor.invariant import InvariantAligner
from graphcircuits.predictor.model import (
    InvariantTables,
    Predictor,
    PredictorConfig,
    Reading,
    join,
    read_case,
)
from graphcircuits.store import StoreError, content_hash, load_artifact, save_artifact, taken_apart

TrainProgress = Callable[[int, int], None]
"""Called with how many cases or steps are done, and how many there are."""
Log = Callable[[int, Mapping[str, float]], None]
"""Called with a step and the figures measured there."""

CHECKPOINT = "predictor-checkpoint"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """How a predictor is trained; the defaults are those of the shipped one."""

    predictor: PredictorConfig = field(default_factory=PredictorConfig)
    steps: int = 200
    """Of the whole schedule of learning rates."""
    stop: int | None = None
    """End after so many steps of it; None means at its end."""
    lr: float = 3e-3
    weight_decay: float = 1e-2
    warmup: float = 0.1
    """Share of the steps in which the learning rate rises."""
    batch: int = 108
    """Readings of cases per step; 0 means all of them."""
    pairs: int = 64
    """Prompt pairs of a case."""
    views: int = 3
    """Draws of prompts of each training case."""
    labels: str = "interpbench"
    every: int = 25
    """Steps between two validations."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 1, got {value}"
            for name in ("steps", "stop", "pairs", "views", "every")
            if (value := getattr(self, name)) is not None and value < 1
        ]
        problems += [
            f"{name} must be above 0, got {getattr(self, name)}"
            for name in ("lr", "warmup")
            if not getattr(self, name) > 0
        ]
        problems += [
            f"{name} must be at least 0, got {getattr(self, name)}"
            for name in ("weight_decay", "batch")
            if getattr(self, name) < 0
        ]
        if self.stop is not None and self.stop > self.steps:
            problems.append(f"stop must be at most steps={self.steps}, got {self.stop}")
        if problems:
            raise ValueError("; ".join(problems) + ".")

    @property
    def last(self) -> int:
        """The number of steps that are made."""
        return self.steps if self.stop is None else self.stop


@dataclass(frozen=True, eq=False)
class Example:
    """One reading of a case, and its true circuit."""

    case: str
    reading: Reading
    circuit: Circuit

    def to(self, device: torch.device | str) -> "Example":
        return Example(self.case, self.reading.to(device), self.circuit)


def read_examples(
    ids: Sequence[str],
    config: TrainConfig,
    *,
    views: int | None = None,
    progress: TrainProgress | None = None,
) -> list[Example]:
    """Readings of the cases, `views` of each with other prompts, cases in the order given."""
    views = config.views if views is None else views
    examples = []
    for done, id in enumerate(ids):
        case = load_case(id)
        subject, circuit = case.subject(), case.labels(config.labels)
        for view in range(views):
            generator = torch.Generator().manual_seed(_mixed(id, view))
            pairs = case.pairs(config.pairs, seed=view)
            reading = read_case(config.predictor, subject, pairs, generator=generator)
            examples.append(Example(id, reading, circuit))
        if progress:
            progress(done + 1, len(ids))
    return examples


def _mixed(*parts: object) -> int:
    """A seed that depends on all of the parts."""
    return int(content_hash(*parts)[:12], 16)


def circuit_loss(
    logits: Float[Tensor, " edge"], labels: Bool[Tensor, " edge"]
) -> Float[Tensor, ""]:
    """The paper's loss of one case: circuit edges weigh more where they are the fewer."""
    return _weighted_loss(logits, labels, _weights(labels))


def _weighted_loss(
    logits: Float[Tensor, " edge"], labels: Bool[Tensor, " edge"], weights: Float[Tensor, " edge"]
) -> Float[Tensor, ""]:
    losses = F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none")
    return losses @ weights.to(logits)


def _weights(labels: Bool[Tensor, " edge"]) -> Float[Tensor, " edge"]:
    """The weight of every edge of a case in its mean."""
    inside = int(labels.sum())
    ratio = max(1.0, (len(labels) - inside) / max(inside, 1))
    return torch.where(labels, ratio, 1.0) / len(labels)


# Training


@dataclass(frozen=True, eq=False)
class TrainedPredictor:
    """A predictor and the figures measured on the way, by step."""

    predictor: Predictor
    history: dict[int, dict[str, Any]]


def train(
    examples: Sequence[Example],
    config: TrainConfig,
    *,
    seed: int = 0,
    validation: Sequence[Example] = (),
    checkpoint: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: TrainProgress | None = None,
    log: Log | None = None,
) -> TrainedPredictor:
    """Train one predictor; with a `checkpoint` file, go on from what it holds and keep it up."""
    if not examples:
        raise ValueError("there is nothing to train on: no case was given.")
    examples = [example.to(device) for example in examples]
    validation = [example.to(device) for example in validation]
    predictor = Predictor(config.predictor, generator=torch.Generator().manual_seed(seed))
    predictor.to(device)
    _standardize(predictor, examples)
    optimizer = torch.optim.AdamW(
        predictor.parameters(), lr=config.lr, weight_decay=config.weight_decay
    )
    about = {"train": asdict(config), "seed": seed, "device": torch.device(device).type}
    about |= {"cases": _names(examples), "validation": _names(validation)}
    about |= {"data": content_hash([example.reading.content for example in examples])}
    start, history = _resume(checkpoint, about, predictor, optimizer)
    save = seldom(_save_checkpoint)
    batches = _Batches(examples, config, seed)
    for step in range(start, config.last):
        for group in optimizer.param_groups:
            group["lr"] = config.lr * _rate(step, config)
        loss = _step(predictor, optimizer, batches, seed, step, device)
        if progress:
            progress(step + 1, config.last)
        if (step + 1) % config.every and step + 1 < config.last:
            continue
        history[step + 1] = {"loss": loss, "cases": validate(predictor, validation)}
        if log:
            log(step + 1, _figures(history[step + 1]))
        if checkpoint:
            ended = step + 1 == config.last
            save(checkpoint, about, predictor, optimizer, step + 1, history, force=ended)
    return TrainedPredictor(predictor.eval(), history)


def _names(examples: Sequence[Example]) -> list[str]:
    return list(dict.fromkeys(example.case for example in examples))


def _standardize(predictor: Predictor, examples: Sequence[Example]) -> None:
    if not isinstance(predictor.align, InvariantAligner):
        return
    contents = [example.reading.content for example in examples]
    nodes = [content.nodes for content in contents if isinstance(content, InvariantTables)]
    predictor.align.standardize_by(torch.cat(nodes))


def _rate(step: int, config: TrainConfig) -> float:
    """Share of the full learning rate: up in a line, down as a cosine."""
    rise = max(1, round(config.warmup * config.steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, config.steps - rise)))


class _Batches:
    """What each step trains on: readings, the labels of their edges and the edges' weights."""

    def __init__(self, examples: Sequence[Example], config: TrainConfig, seed: int) -> None:
        self.examples, self.seed = examples, seed
        self.size = min(config.batch or len(examples), len(examples))
        # Attention along a complete DAG takes one case at a time.
        apart = config.predictor.learner != "dirgnn" and any(
            example.reading.structure.order is not None for example in examples
        )
        self.joinable = config.predictor.aligner == "invariant" and not apart
        self.all = [self._joined(examples)] if self.joinable and self.size == len(examples) else []

    def at(self, step: int) -> Iterable[tuple[Reading, Tensor, Tensor]]:
        """The parts of one step, to be passed through one after the other."""
        if self.all:
            return self.all
        generator = torch.Generator().manual_seed(_mixed(self.seed, step))
        drawn = torch.randperm(len(self.examples), generator=generator)[: self.size].tolist()
        chosen = [self.examples[place] for place in drawn]
        if self.joinable:
            return [self._joined(chosen)]
        return (self._joined([example], self.size) for example in chosen)

    def _joined(
        self, examples: Sequence[Example], count: int | None = None
    ) -> tuple[Reading, Tensor, Tensor]:
        """`count` cases make the mean of the step, by default those given."""
        readings = [example.reading for example in examples]
        masks = [example.circuit.mask for example in examples]
        device = readings[0].structure.edge_nodes.device
        weights = torch.cat([_weights(mask) for mask in masks]) / (count or len(examples))
        reading = readings[0] if len(readings) == 1 else join(readings)
        return reading, torch.cat(masks).to(device), weights.to(device)


def _step(
    predictor: Predictor,
    optimizer: torch.optim.Optimizer,
    batches: _Batches,
    seed: int,
    step: int,
    device: torch.device | str,
) -> float:
    """One update; the loss before it."""
    own = _mixed(seed, step, "noise")
    identifiers = torch.Generator().manual_seed(own)
    noise = torch.Generator(device).manual_seed(own)
    total = 0.0
    predictor.train()
    optimizer.zero_grad()
    for reading, labels, weights in batches.at(step):
        logits = predictor(reading, generator=identifiers, noise=noise)
        loss = _weighted_loss(logits, labels, weights)
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(predictor.parameters(), 1.0)
    optimizer.step()
    if not math.isfinite(total):
        raise ValueError(
            f"the training loss is {total} at step {step + 1}; lower the learning rate."
        )
    return total


@torch.no_grad()
def validate(
    predictor: Predictor | Ensemble, examples: Sequence[Example], *, seed: int = 0
) -> dict[str, dict[str, float]]:
    """AUROC of each case at both levels, views averaged."""
    ensemble = predictor if isinstance(predictor, Ensemble) else Ensemble((predictor,), {})
    found: dict[str, dict[str, list[float]]] = {}
    for example in examples:
        generator = torch.Generator().manual_seed(seed)
        scores = ensemble.logits(example.reading, generator=generator).cpu().double()
        levels = found.setdefault(example.case, {"qkv": [], "head": []})
        for level, values in levels.items():
            values.append(auroc(scores, example.circuit, level))
    return {
        case: {level: mean(values) for level, values in levels.items()}
        for case, levels in found.items()
    }


def _figures(record: Mapping[str, Any]) -> dict[str, float]:
    """What a step's record says in a few numbers."""
    figures = {"loss": float(record["loss"])}
    for level in ("qkv", "head") if record["cases"] else ():
        figures[f"auroc_{level}"] = mean(case[level] for case in record["cases"].values())
    return figures


def train_ensemble(
    ids: Sequence[str],
    config: TrainConfig,
    *,
    seeds: Sequence[int],
    examples: Sequence[Example] | None = None,
    validation: Sequence[Example] = (),
    checkpoints: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int, int], None] | None = None,
    log: Callable[[int, int, Mapping[str, float]], None] | None = None,
) -> Ensemble:
    """One predictor per seed, trained on all the cases; callbacks hear the seed first.

    `validation` is scored at regular steps. `checkpoints` is a folder with one file per seed.
    """
    examples = read_examples(ids, config) if examples is None else examples
    members = []
    for seed in seeds:
        trained = train(
            examples,
            config,
            seed=seed,
            validation=validation,
            checkpoint=_checkpoint_path(checkpoints, seed) if checkpoints else None,
            device=device,
            progress=(lambda done, n, seed=seed: progress(seed, done, n)) if progress else None,
            log=(lambda step, found, seed=seed: log(seed, step, found)) if log else None,
        )
        members.append(trained.predictor.cpu())
    origin = {
        "train": asdict(config),
        "cases": list(ids),
        "groups": sorted(frozenset().union(*map(groups_of, ids))),
        "seeds": list(seeds),
        "subjects": seen_of([load_case(id).subject() for id in ids]),
    }
    return Ensemble(tuple(members), origin)


# Checkpoints


def _checkpoint_path(folder: str | Path, seed: int) -> Path:
    return Path(folder) / f"seed{seed}.safetensors"


def remove_checkpoints(folder: str | Path, seeds: Iterable[int]) -> None:
    """Remove the checkpoints of an ensemble, and the folder if nothing else is in it."""
    for seed in seeds:
        _checkpoint_path(folder, seed).unlink(missing_ok=True)
    with suppress(OSError):
        Path(folder).rmdir()


def _save_checkpoint(
    path: str | Path,
    about: dict[str, Any],
    predictor: Predictor,
    optimizer: torch.optim.Optimizer,
    step: int,
    history: dict[int, dict[str, Any]],
) -> None:
    tensors = {f"predictor.{name}": x for name, x in predictor.state_dict().items()}
    for place, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{place}.{name}": x for name, x in state.items()}
    meta = {"step": step, "history": {str(at): record for at, record in history.items()}}
    save_artifact(path, kind=CHECKPOINT, config=about, seed=None, tensors=tensors, meta=meta)


def _resume(
    path: str | Path | None,
    about: dict[str, Any],
    predictor: Predictor,
    optimizer: torch.optim.Optimizer,
) -> tuple[int, dict[int, dict[str, Any]]]:
    """The step to go on from and the history so far; 0 and nothing without a checkpoint."""
    if path is None or not Path(path).exists():
        return 0, {}
    found = load_artifact(path, CHECKPOINT)
    if content_hash(dict(found.config)) != content_hash(about):
        raise StoreError(
            f"{path} is the checkpoint of another training: its {_differing(about, found.config)} "
            "differ; give another folder, or delete it to start afresh."
        )
    with taken_apart(path, "checkpoint"):
        prefix = "predictor."
        own = {n.removeprefix(prefix): x for n, x in found.tensors.items() if n.startswith(prefix)}
        predictor.load_state_dict(own)
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in found.tensors.items():
            if name.startswith("optimizer."):
                _, place, field_name = name.split(".")
                state.setdefault(int(place), {})[field_name] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        return found.meta["step"], {int(at): record for at, record in found.meta["history"].items()}


def _differing(about: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    words = {"train": "settings", "data": "readings of the cases", "validation": "held-out cases"}
    names = [name for name in about if content_hash(about[name]) != content_hash(other.get(name))]
    return " and ".join(words.get(name, name) for name in names)
