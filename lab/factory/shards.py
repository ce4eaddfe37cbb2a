"""Writing the files of a corpus, which `graphcircuits.cases.collection` describes and reads.

`CorpusConfig` says what a corpus holds, `Manifest` how far it is.

1. `write_shard` writes what came of the orders of a shard, and reads it back. `write_manifest`
   follows each shard.
2. `still_there` finds the shards that are whole and made from the same plan; one that is cut off or
   damaged is made again.
3. `check_settings`: a folder is gone on with only by the version and the settings that began it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from graphcircuits import __version__
from graphcircuits.cases import collection
from graphcircuits.cases.architectures import ARCHITECTURES
from graphcircuits.cases.collection import (
    BETWEEN,
    KIND,
    MANIFEST,
    SHARD,
    VERSION,
    FinishedShard,
    Shard,
    read_shard,
    shard_path,
)
from graphcircuits.cases.prepare import BuildConfig
from graphcircuits.io.config import build_config
from graphcircuits.io.files import parse_json, short, to_json
from graphcircuits.io.store import Artifact, StoreError, save_artifact, taken_apart
from graphcircuits.subject.transformer import Transformer

log = logging.getLogger(__name__)


COUNTS = ("natural", "planted", "public", "multitask", "natural_multitask")
"""What a corpus can have any number of."""
MOST_SUBJECTS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusConfig:
    """What a corpus holds."""

    natural: int = 0
    """Subjects trained on the task alone."""
    planted: int = 0
    """Subjects with their program's circuit."""
    public: int = 0
    """Subjects trained by the public losses."""
    multitask: int = 0
    """Models of several tasks, each with its circuit."""
    natural_multitask: int = 0
    """Models of several tasks, trained on the tasks alone."""
    architectures: tuple[str, ...] = tuple(ARCHITECTURES)
    seed: int = 0
    """Of weights and inputs."""
    layers: int = 4
    """Deepest subject of a single program."""
    width: int = 32
    """Widest stream of a subject of a single program."""
    shard: int = 128
    """Subjects that train side by side, at most."""
    steps: int | None = None
    """Training steps at most; None takes what the recipe of a fleet says."""
    build: BuildConfig = field(default_factory=BuildConfig)

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be in 0..{MOST_SUBJECTS}, got {getattr(self, name)}"
            for name in COUNTS
            if not 0 <= getattr(self, name) <= MOST_SUBJECTS
        ]
        if not any(getattr(self, name) for name in COUNTS):
            words = ", ".join(name.replace("_", " ") for name in COUNTS)
            problems.append(f"nothing to build: say how many of {words}")
        unknown = [name for name in self.architectures if name not in ARCHITECTURES]
        if unknown or not self.architectures:
            known = ", ".join(ARCHITECTURES)
            problems.append(f"architectures must be some of {known}, got {', '.join(unknown)}")
        if len(set(self.architectures)) < len(self.architectures):
            problems.append(f"architectures must differ, got {', '.join(self.architectures)}")
        problems += [
            f"{name} must be at least {least}, got {getattr(self, name)}"
            for name, least in {"seed": 0, "layers": 2, "width": 4, "shard": 1}.items()
            if getattr(self, name) < least
        ]
        if problems:
            raise ValueError("; ".join(problems) + ".")


@dataclass(frozen=True)
class Manifest:
    """What a corpus is to hold, and what of it is there."""

    config: CorpusConfig
    plan: tuple[Shard, ...]
    kept: Mapping[str, FinishedShard] = field(default_factory=dict)
    """By the name of the shard."""
    package: str = __version__

    @property
    def unfinished(self) -> tuple[Shard, ...]:
        return tuple(shard for shard in self.plan if shard.name not in self.kept)

    def keeping(self, kept: Mapping[str, FinishedShard]) -> "Manifest":
        """With these finished shards and no others, in the order of the plan."""
        return replace(self, kept={s.name: kept[s.name] for s in self.plan if s.name in kept})


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a corpus; StoreError where it is damaged or of another version."""
    stored = collection.read_manifest(folder)
    with taken_apart(folder / MANIFEST, "manifest"):
        config = build_config(CorpusConfig, stored.settings)
    return Manifest(config, stored.plan, stored.finished, stored.package)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    meta = {"corpus": VERSION, "plan": manifest.plan, "kept": manifest.kept}
    save_artifact(
        folder / MANIFEST,
        kind=KIND,
        config=manifest.config,
        seed=manifest.config.seed,
        meta=meta,
        command=command_of(manifest.config),
    )


def check_settings(folder: Path, found: Manifest, config: CorpusConfig) -> None:
    """Refuse to go on with a corpus that was begun otherwise."""
    path = folder / MANIFEST
    if found.package != __version__:
        raise StoreError(
            f"{path} was written by graphcircuits {found.package}, and this is {__version__}: "
            "subjects of two versions would not be alike; build it anew in another folder, or go "
            f"on with pip install graphcircuits=={found.package}."
        )
    then, now = (_flat(json_of(settings)) for settings in (found.config, config))
    other = [f"{k} was {short(then.get(k))}, is {short(v)}" for k, v in now.items() if v != then[k]]
    if other:
        raise StoreError(
            f"{path} is a corpus of other settings ({', '.join(other)}); give the same, or "
            "choose another folder."
        )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        inner = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return flat


def command_of(config: CorpusConfig) -> str:
    """The command that makes a corpus of these settings, whatever it was begun or resumed with."""
    standard = asdict(CorpusConfig(natural=1)) | {"natural": 0}
    words = []
    for name, value in asdict(config).items():
        if value != standard[name] and not isinstance(value, dict):
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            words.append(f" --{name.replace('_', '-')} {text}")
    return f"python -m lab.factory corpus FOLDER{''.join(words)}"


def json_of(value: object) -> Any:
    """A value as a file has it."""
    return parse_json(to_json(value).decode())


@dataclass(frozen=True, eq=False)
class ShardContent:
    """What came of the orders of a shard, by id."""

    subjects: Mapping[str, Transformer]
    reports: Mapping[str, Mapping[str, Any]]
    """Of all that were trained; those without a subject did not pass."""
    refused: Mapping[str, str]
    """Why others were not."""


def write_shard(
    folder: Path, shard: Shard, config: CorpusConfig, content: ShardContent
) -> FinishedShard:
    """Write a shard, read it back, and say what the manifest is to say of it."""
    tensors = {
        f"{id}{BETWEEN}{name}": weight
        for id, subject in content.subjects.items()
        for name, weight in subject.weights.items()
    }
    subjects = {
        id: {"transformer": subject.config, "codec": subject.codec}
        for id, subject in content.subjects.items()
    }
    sha256 = save_artifact(
        shard_path(folder, shard.name),
        kind=SHARD,
        config=made_from(shard, config),
        seed=config.seed,
        tensors=tensors,
        meta={"subjects": subjects, "reports": content.reports, "refused": content.refused},
        command=command_of(config),
    )
    kept = kept_of(read_shard(folder, shard.name))
    assert kept.sha256 == sha256
    return kept


def made_from(shard: Shard, config: CorpusConfig) -> dict[str, Any]:
    """What a shard depends on."""
    return {"corpus": VERSION, "shard": shard, "build": config.build}


def kept_of(found: Artifact) -> FinishedShard:
    subjects, reports, refused = (found.meta[x] for x in ("subjects", "reports", "refused"))
    return FinishedShard(found.sha256, len(subjects), len(reports) - len(subjects), len(refused))


def still_there(folder: Path, manifest: Manifest) -> Manifest:
    """The manifest with the shards that are whole; what others are, the log says."""
    kept: dict[str, FinishedShard] = {}
    for shard in manifest.plan:
        path = shard_path(folder, shard.name)
        if not path.exists():
            if shard.name in manifest.kept:
                log.warning("%s is gone; it is made again", path)
            continue
        try:
            found = read_shard(folder, shard.name, manifest.kept.get(shard.name))
        except StoreError as error:
            log.warning("%s; it is made again", str(error).rstrip("."))
            continue
        if found.config != json_of(made_from(shard, manifest.config)):
            log.warning("%s was made from another plan; it is made again", path)
            continue
        kept[shard.name] = kept_of(found)
    return manifest.keeping(kept)


def in_words(shards: Sequence[Shard]) -> str:
    """How much shards are, such as `2000 subjects in 24 shards, about 118 MB`."""
    subjects = sum(len(shard.members) for shard in shards)
    size = sum(shard.n_bytes for shard in shards) / 1e6
    return f"{subjects} subjects in {len(shards)} shards, about {size:.0f} MB"
