"""What was read of subjects, kept in a file for the next training.

A file is found again by what it depends on: the sources, the settings of reading, and REVISION. It
holds tensors by the place of their source.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from graphcircuits.io.store import content_hash, load_artifact, save_artifact, taken_apart
from graphcircuits.predictor.measure.features import Features
from graphcircuits.predictor.model import InvariantTables
from graphcircuits.task.pairs import Pairs
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.sources import Source

KIND = "predictor-readings"
REVISION = 1
"""Raised when the code that reads comes to other tensors."""


@dataclass(frozen=True, eq=False)
class SourceReading:
    """What is read of a source."""

    contents: tuple[InvariantTables | Features, ...]
    priors: tuple[Tensor | None, ...]
    circuit: Bool[Tensor, " edge"] | None
    judged: Pairs | None


Found = Mapping[int, SourceReading | str]
"""What was read of each source, by place, or why nothing was."""


def readings_path(
    folder: str | Path,
    sources: Sequence[Source],
    config: TrainConfig,
    views: Sequence[int],
    judged: bool,
) -> Path:
    """Where in a folder these readings lie, if this code made them: `views` of each source."""
    own = config.predictor
    about = {
        "sources": [asdict(source) for source in sources],
        "predictor": [own.sampled, own.share, own.both_ends, own.prior, own.transformation],
        "train": [config.pairs, config.labels, config.judged, list(views), judged],
        "revision": REVISION,
    }
    return Path(folder) / f"{content_hash(about)[:16]}.safetensors"


def save_readings(path: Path, found: Found) -> None:
    """Keep what was read; invariants only."""
    tensors: dict[str, Tensor] = {}
    words: dict[str, Any] = {}
    for place, result in found.items():
        if isinstance(result, str):
            words[str(place)] = result
            continue
        for view, (content, prior) in enumerate(zip(result.contents, result.priors, strict=True)):
            assert isinstance(content, InvariantTables)
            tensors[f"{place}.nodes.{view}"] = content.nodes
            tensors[f"{place}.contexts.{view}"] = content.contexts
            if prior is not None:
                tensors[f"{place}.prior.{view}"] = prior
        if result.circuit is not None:
            tensors[f"{place}.circuit"] = result.circuit
        own: dict[str, Any] = {"views": len(result.contents)}
        for each in fields(Pairs) if result.judged is not None else ():
            value = getattr(result.judged, each.name)
            if isinstance(value, Tensor):
                tensors[f"{place}.pairs.{each.name}"] = value
            elif value is not None:
                own[each.name] = value
        words[str(place)] = own
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_artifact(path, kind=KIND, config={}, seed=None, tensors=whole, meta={"sources": words})


def load_readings(path: Path) -> dict[int, SourceReading | str] | None:
    """What was kept; None where nothing was."""
    if not path.exists():
        return None
    artifact = load_artifact(path, KIND)
    with taken_apart(path, "readings"):
        by_place: dict[str, dict[str, Tensor]] = {}
        for name, tensor in artifact.tensors.items():
            place, _, rest = name.partition(".")
            by_place.setdefault(place, {})[rest] = tensor
        return {
            int(place): own if isinstance(own, str) else _reading(own, by_place[place])
            for place, own in artifact.meta["sources"].items()
        }


def _reading(words: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> SourceReading:
    views = range(words["views"])
    named: dict[str, Any] = {
        name.removeprefix("pairs."): tensor
        for name, tensor in tensors.items()
        if name.startswith("pairs.")
    }
    told = {name: value for name, value in words.items() if name != "views"}
    pairs = Pairs(**named, **told) if named else None
    return SourceReading(
        tuple(InvariantTables(tensors[f"nodes.{n}"], tensors[f"contexts.{n}"]) for n in views),
        tuple(tensors.get(f"prior.{n}") for n in views),
        tensors.get("circuit"),
        pairs,
    )
