"""The files of a corpus: shards of subjects, and a manifest that says which of them are whole.

    FOLDER/manifest.json             settings, plan, and the sha256 of each finished shard
    FOLDER/shards/NAME.safetensors   subjects that trained side by side, with their reports
    FOLDER/language/NAME/            language models, where somebody put them there

1. A shard is one artifact. Its tensors are called `order id/weight`; its header has configuration,
   codec and report of each subject, the reports of those that did not pass, and why others could
   not be trained.
2. The manifest is written after each shard. A shard that it does not list yet is taken up if it is
   whole and made from the same plan; one that is cut off or damaged is made again.
3. A folder is gone on with only by the version and the settings that began it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from graphcircuits import __version__
from graphcircuits.cases.plan import CorpusConfig, Shard
from graphcircuits.io.config import build_config
from graphcircuits.io.files import parse_json, short, to_json
from graphcircuits.io.store import Artifact, StoreError, load_artifact, save_artifact, taken_apart
from graphcircuits.subject.transformer import Transformer

log = logging.getLogger(__name__)

KIND, SHARD = "corpus", "corpus-shard"
VERSION = 1
"""Of plan and shards; no folder of another one is read."""
MANIFEST = "manifest.json"
BETWEEN = "/"
"""Between the id of a subject and the name of its weight."""


@dataclass(frozen=True)
class KeptShard:
    """What the manifest says of a finished shard."""

    sha256: str
    """Of its content, as its own header has it."""
    passed: int
    failed: int
    refused: int


@dataclass(frozen=True)
class Manifest:
    """What a corpus is to hold, and what of it is there."""

    config: CorpusConfig
    plan: tuple[Shard, ...]
    kept: Mapping[str, KeptShard] = field(default_factory=dict)
    """By the name of the shard."""
    package: str = __version__

    @property
    def unfinished(self) -> tuple[Shard, ...]:
        return tuple(shard for shard in self.plan if shard.name not in self.kept)

    def keeping(self, kept: Mapping[str, KeptShard]) -> "Manifest":
        """With these finished shards and no others, in the order of the plan."""
        return replace(self, kept={s.name: kept[s.name] for s in self.plan if s.name in kept})


def shard_path(folder: Path, name: str) -> Path:
    return folder / "shards" / f"{name}.safetensors"


# --- the manifest --------------------------------------------------------------------------------


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


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a corpus; StoreError where it is damaged or of another version."""
    path = folder / MANIFEST
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} holds no corpus: there is no {MANIFEST} in it; build one with: "
            f"python -m lab.factory corpus {folder} --natural 100"
        )
    found = load_artifact(path, KIND)
    version = found.meta.get("corpus")
    if version != VERSION:
        raise StoreError(
            f"{path} describes a corpus of version {short(version)}, written by graphcircuits "
            f"{found.package}; this is {__version__}, which has version {VERSION}: build it anew "
            "in another folder."
        )
    with taken_apart(path, "manifest"):
        config = build_config(CorpusConfig, found.config)
        plan = tuple(build_config(Shard, one) for one in found.meta["plan"])
        kept = {
            name: build_config(KeptShard, one) for name, one in dict(found.meta["kept"]).items()
        }
        for name in (*kept, *(shard.name for shard in plan)):
            if Path(name).name != name:
                raise ValueError(f"{short(name)} is not the name of a shard")
        return Manifest(config, plan, kept, found.package)


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


# --- shards --------------------------------------------------------------------------------------


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


def read_shard(folder: Path, name: str, kept: KeptShard | None = None) -> Artifact:
    """A shard, whole and as the manifest has it; StoreError otherwise."""
    path = shard_path(folder, name)
    found = load_artifact(path, SHARD)
    if kept is not None and found.sha256 != kept.sha256:
        raise StoreError(
            f"{path} is not the shard that was finished: it has sha256 {found.sha256[:12]}..., "
            f"the manifest says {kept.sha256[:12]}...; the command that built the corpus makes it "
            "again."
        )
    with taken_apart(path, "shard"):
        maps = [found.meta[part] for part in ("subjects", "reports", "refused")]
        if not all(isinstance(part, dict) for part in maps) or not maps[0].keys() <= maps[1].keys():
            raise ValueError("every subject needs a report")
    return found


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
