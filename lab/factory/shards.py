"""Writing the files of a corpus, which `graphcircuits.cases.shards` describes and reads.

1. `write_shard` writes what came of the orders of a shard, and reads it back. `write_manifest`
   follows each shard.
2. `still_there` finds the shards that are whole and made from the same plan; one that is cut off or
   damaged is made again.
3. `check_settings`: a folder is gone on with only by the version and the settings that began it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphcircuits import __version__
from graphcircuits.cases.shards import (
    BETWEEN,
    KIND,
    MANIFEST,
    SHARD,
    VERSION,
    CorpusConfig,
    KeptShard,
    Manifest,
    Shard,
    read_shard,
    shard_path,
)
from graphcircuits.io.files import parse_json, short, to_json
from graphcircuits.io.store import Artifact, StoreError, save_artifact
from graphcircuits.subject.transformer import Transformer

log = logging.getLogger(__name__)


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
) -> KeptShard:
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


def kept_of(found: Artifact) -> KeptShard:
    subjects, reports, refused = (found.meta[x] for x in ("subjects", "reports", "refused"))
    return KeptShard(found.sha256, len(subjects), len(reports) - len(subjects), len(refused))


def still_there(folder: Path, manifest: Manifest) -> Manifest:
    """The manifest with the shards that are whole; what others are, the log says."""
    kept: dict[str, KeptShard] = {}
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
