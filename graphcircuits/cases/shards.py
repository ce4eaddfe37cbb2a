"""The files of a corpus: shards of subjects, and a manifest that says which of them are whole.

    FOLDER/manifest.json             settings, plan, and the sha256 of each finished shard
    FOLDER/shards/NAME.safetensors   subjects that trained side by side, with their reports
    FOLDER/language/NAME/            language models, where somebody put them there

1. A shard is one artifact. Its tensors are called `order id/weight`; its header has configuration,
   codec and report of each subject, the reports of those that did not pass, and why others could
   not be trained.
2. The manifest has the settings (`CorpusConfig`), the plan (every `Shard` with its members) and
   what is finished of it.

They are read here and written by the laboratory, `python -m lab.factory corpus`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from graphcircuits import __version__
from graphcircuits.cases.architectures import ARCHITECTURES
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import BuildConfig
from graphcircuits.io.config import build_config
from graphcircuits.io.files import short
from graphcircuits.io.store import Artifact, StoreError, load_artifact, taken_apart

KIND, SHARD = "corpus", "corpus-shard"
VERSION = 1
"""Of plan and shards; no folder of another one is read."""
MANIFEST = "manifest.json"
BETWEEN = "/"
"""Between the id of a subject and the name of its weight."""
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
class Member:
    """A subject of a shard, and where its program stands in the split."""

    order: Order
    fold: int | None
    group: str | None


@dataclass(frozen=True)
class Shard:
    """Subjects that train side by side and lie in one file."""

    name: str
    members: tuple[Member, ...]
    n_bytes: int
    """About how large its file will be, if all pass."""

    @property
    def orders(self) -> tuple[Order, ...]:
        return tuple(member.order for member in self.members)


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


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a corpus; StoreError where it is damaged or of another version."""
    path = folder / MANIFEST
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} holds no corpus: there is no {MANIFEST} in it; build one with: "
            f"python -m lab.factory corpus {folder} --natural 100"
        )
    artifact = load_artifact(path, KIND)
    version = artifact.meta.get("corpus")
    if version != VERSION:
        raise StoreError(
            f"{path} describes a corpus of version {short(version)}, written by graphcircuits "
            f"{artifact.package}; this is {__version__}, which has version {VERSION}: build it "
            "anew in another folder."
        )
    with taken_apart(path, "manifest"):
        config = build_config(CorpusConfig, artifact.config)
        plan = tuple(build_config(Shard, one) for one in artifact.meta["plan"])
        kept = {
            name: build_config(KeptShard, one) for name, one in dict(artifact.meta["kept"]).items()
        }
        for name in (*kept, *(shard.name for shard in plan)):
            if Path(name).name != name:
                raise ValueError(f"{short(name)} is not the name of a shard")
        return Manifest(config, plan, kept, artifact.package)


def read_shard(folder: Path, name: str, kept: KeptShard | None = None) -> Artifact:
    """A shard, whole and as the manifest has it; StoreError otherwise."""
    path = shard_path(folder, name)
    artifact = load_artifact(path, SHARD)
    if kept is not None and artifact.sha256 != kept.sha256:
        raise StoreError(
            f"{path} is not the shard that was finished: it has sha256 {artifact.sha256[:12]}..., "
            f"the manifest says {kept.sha256[:12]}...; the command that built the corpus makes it "
            "again."
        )
    with taken_apart(path, "shard"):
        maps = [artifact.meta[each] for each in ("subjects", "reports", "refused")]
        if not all(isinstance(each, dict) for each in maps) or not maps[0].keys() <= maps[1].keys():
            raise ValueError("every subject needs a report")
    return artifact
