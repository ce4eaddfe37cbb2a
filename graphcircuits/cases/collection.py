"""A corpus: its files, and its subjects one by one, each with its program and its report.

    FOLDER/manifest.json             settings, plan, and the sha256 of each finished shard
    FOLDER/shards/NAME.safetensors   subjects that trained side by side, with their reports
    FOLDER/language/NAME/            language models, where somebody put them there

1. A shard is one artifact. Its tensors are called `order id/weight`; its header has configuration,
   codec and report of each subject, the reports of those that did not pass, and why others could
   not be trained.
2. `load_corpus` reads the manifest and every finished shard once, checks them against their hashes,
   and keeps the reports. Weights are read when a subject is asked for, from its shard alone.
3. What language models beside them do, `does` reads from their reports.

They are written by the laboratory, `python -m lab.factory corpus`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from graphcircuits import __version__
from graphcircuits.cases.multitask import MultiCase
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import find_case
from graphcircuits.io.config import build_config
from graphcircuits.io.files import StoreError, short
from graphcircuits.io.store import Artifact, check_finite, load_artifact, taken_apart
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.layers import TransformerConfig, weight_shapes
from graphcircuits.subject.transformer import Transformer

if TYPE_CHECKING:
    from graphcircuits.cases.case import Case
    from graphcircuits.task.pairs import Pairs

KIND, SHARD = "corpus", "corpus-shard"
VERSION = 1
"""Of plan and shards; no folder of another one is read."""
MANIFEST = "manifest.json"
BETWEEN = "/"
"""Between the id of a subject and the name of its weight."""
LANGUAGE = "language"
"""The folder of language models beside the shards."""
REPORT = "report.json"
"""In the folder of each: how it was trained, and what share of the prompts of each task it answers
right."""
DOES = 0.8
"""The share of prompts from which on a model does a task."""


# --- the files -----------------------------------------------------------------------------------


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
class FinishedShard:
    """What the manifest says of a finished shard."""

    sha256: str
    """Of its content, as its own header has it."""
    passed: int
    failed: int
    refused: int


@dataclass(frozen=True)
class Manifest:
    """What a corpus is to hold, and what of it is there."""

    settings: Mapping[str, Any]
    """Those that it is built with, as the file has them."""
    plan: tuple[Shard, ...]
    finished: Mapping[str, FinishedShard]
    """By the name of the shard."""
    package: str
    """The version that wrote it."""


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
        plan = tuple(build_config(Shard, one) for one in artifact.meta["plan"])
        stated = dict(artifact.meta["kept"])
        finished = {name: build_config(FinishedShard, one) for name, one in stated.items()}
        for name in (*finished, *(shard.name for shard in plan)):
            if Path(name).name != name:
                raise ValueError(f"{short(name)} is not the name of a shard")
        return Manifest(artifact.config, plan, finished, artifact.package)


def read_shard(folder: Path, name: str, finished: FinishedShard | None = None) -> Artifact:
    """A shard, whole and as the manifest has it; StoreError otherwise."""
    path = shard_path(folder, name)
    artifact = load_artifact(path, SHARD)
    if finished is not None and artifact.sha256 != finished.sha256:
        raise StoreError(
            f"{path} is not the shard that was finished: it has sha256 {artifact.sha256[:12]}..., "
            f"the manifest says {finished.sha256[:12]}...; the command that built the corpus makes "
            "it again."
        )
    with taken_apart(path, "shard"):
        maps = [artifact.meta[each] for each in ("subjects", "reports", "refused")]
        if not all(isinstance(each, dict) for each in maps) or not maps[0].keys() <= maps[1].keys():
            raise ValueError("every subject needs a report")
    return artifact


# --- the subjects --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CorpusEntry:
    """A subject of a corpus."""

    order: Order
    """All that is needed to make it again."""
    fold: int | None
    """The validation fold of its program, or of all the programs that it has."""
    group: str | None
    """What its program is related to; no fold divides a group."""
    report: Mapping[str, Any] = field(repr=False)
    """How it was trained, and how well it does its task on unseen inputs."""
    record: Mapping[str, Any] = field(repr=False)
    """Its configuration and codec, as the shard has them."""
    path: Path = field(repr=False)
    """The shard."""

    @property
    def id(self) -> str:
        """Such as `rnd-17.natural.llama.0`."""
        return self.order.id

    def subject(self) -> Transformer:
        """The transformer, in single precision."""
        with taken_apart(self.path, "shard"):
            config = build_config(TransformerConfig, self.record["transformer"])
            codec = build_config(Codec, self.record["codec"])
            weights = {name: tensor.float() for name, tensor in self._weights(config)}
            check_finite(f"{self.path}: {self.id}", weights)
            order = self.order
            return Transformer(config, weights, codec, order.case, fleet=order.fleet)

    def _weights(self, config: TransformerConfig) -> Iterator[tuple[str, torch.Tensor]]:
        try:
            with safe_open(self.path, "pt") as shard:
                for name in weight_shapes(config):
                    yield name, shard.get_tensor(f"{self.id}{BETWEEN}{name}")
        except (OSError, SafetensorError) as error:
            raise StoreError(
                f"{self.path} has changed since the corpus was loaded ({error}); the command that "
                "built the corpus makes it again."
            ) from error

    def case(self) -> "Case | MultiCase":
        """Its program; of a model of several tasks, all of them."""
        return find_case(self.order.case)

    def tasks(self) -> "tuple[Case, ...]":
        """The cases that it was trained for: one, or one per task."""
        case = self.case()
        return case.tasks if isinstance(case, MultiCase) else (case,)

    def pairs(self, n: int, seed: int = 0, task: int = 0) -> "Pairs":
        """Clean and corrupted inputs of its program, or of one of its tasks, by number."""
        tasks = self.tasks()
        if not 0 <= task < len(tasks):
            raise ValueError(f"{self.id} has {len(tasks)} tasks, from 0; got task {task}.")
        return tasks[task].pairs(n, seed)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Subjects of a folder that `python -m lab.factory corpus` built: those that passed.

    It has a length, gives its entries one by one, and by id: `corpus["rnd-17.natural.llama.0"]`.
    """

    folder: Path
    entries: tuple[CorpusEntry, ...] = field(repr=False)
    failed: Mapping[str, Mapping[str, Any]] = field(repr=False)
    """Reports of subjects that did not pass, by id."""
    refused: Mapping[str, str] = field(repr=False)
    """Why other subjects were not trained, by id."""
    missing: int
    """Shards that are planned and not finished."""
    languages: tuple[Path, ...] = ()
    """Folders of language models, for `load_model`."""

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[CorpusEntry]:
        return iter(self.entries)

    def __getitem__(self, id: str) -> CorpusEntry:
        if id in self._by_id:
            return self._by_id[id]
        why = "did not pass" if id in self.failed else self.refused.get(id, "is not in it")
        raise KeyError(f"the corpus in {self.folder} has no subject {id!r}: it {why}.")

    @cached_property
    def _by_id(self) -> dict[str, CorpusEntry]:
        return {entry.id: entry for entry in self.entries}

    def of(
        self,
        *,
        fleet: str | None = None,
        architecture: str | None = None,
        fold: int | Collection[int] | None = None,
    ) -> "Corpus":
        """The subjects of one fleet, of one architecture, of one or several folds."""
        folds = (fold,) if isinstance(fold, int) else fold
        for what, given in (("fleet", fleet), ("architecture", architecture)):
            there = sorted({getattr(entry.order, what) for entry in self.entries})
            if given is not None and given not in there:
                has = f"it has {', '.join(there)}" if there else "it is empty"
                raise ValueError(f"the corpus has no subject of {what} {given!r}; {has}.")
        chosen = [
            entry
            for entry in self.entries
            if fleet in (None, entry.order.fleet)
            and architecture in (None, entry.order.architecture)
            and (folds is None or entry.fold in folds)
        ]
        return replace(self, entries=tuple(chosen))


def load_corpus(folder: str | Path) -> Corpus:
    """The subjects of a folder that `python -m lab.factory corpus` built, finished or not.

    Every shard is checked against its hash; weights are read when a subject is asked for.

    Args:
        folder: The folder with the `manifest.json`.

    Returns:
        Its subjects, which can be counted, walked through and taken by id.

    Example:
        corpus = gc.load_corpus("corpus")
        subject = corpus["rnd-17.natural.llama.0"].subject()

    See docs/corpus.md.
    """
    root = Path(folder)
    manifest = read_manifest(root)
    shards = [
        load_shard(root, shard, manifest.finished[shard.name])
        for shard in manifest.plan
        if shard.name in manifest.finished
    ]
    models = sorted(path.parent for path in (root / LANGUAGE).glob("*/config.json"))
    return Corpus(
        root,
        tuple(entry for shard in shards for entry in shard.entries),
        {id: report for shard in shards for id, report in shard.failed.items()},
        {id: why for shard in shards for id, why in shard.refused.items()},
        len(manifest.plan) - len(shards),
        tuple(models),
    )


@dataclass(frozen=True, eq=False)
class LoadedShard:
    """What is in a shard: see `Corpus`."""

    entries: tuple[CorpusEntry, ...]
    failed: Mapping[str, Mapping[str, Any]]
    refused: Mapping[str, str]


def load_shard(folder: Path, shard: Shard, finished: FinishedShard) -> LoadedShard:
    """A finished shard; StoreError where it is not what the manifest says."""
    path = shard_path(folder, shard.name)
    if not path.exists():
        raise StoreError(f"{path} is gone; the command that built the corpus makes it again.")
    meta = read_shard(folder, shard.name, finished).meta
    subjects, reports, refused = (meta[key] for key in ("subjects", "reports", "refused"))
    entries = [
        CorpusEntry(member.order, member.fold, member.group, reports[id], subjects[id], path)
        for member in shard.members
        if (id := member.order.id) in subjects
    ]
    failed = {id: report for id, report in reports.items() if id not in subjects}
    return LoadedShard(tuple(entries), failed, refused)


def check_shares(path: Path, report: Any) -> dict[str, Any]:
    """The report, whose tasks have shares of prompts; StoreError otherwise."""
    shares = report.get("tasks", {}) if isinstance(report, dict) else None
    if not isinstance(shares, dict) or not all(
        type(share) in (int, float) and 0 <= share <= 1 for share in shares.values()
    ):
        got = shares if isinstance(report, dict) else report
        raise StoreError(f"{path}: its tasks must have shares in 0..1, got {short(got)}.")
    return report


def does(report: Mapping[str, Any]) -> list[str]:
    """The tasks that a model does."""
    return [name for name, share in report.get("tasks", {}).items() if share >= DOES]
