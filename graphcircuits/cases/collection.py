"""A corpus read back: its subjects one by one, each with its program and its report.

`load_corpus` reads the manifest and every finished shard once, checks them against their hashes,
and keeps the reports. Weights are read when a subject is asked for, from its shard alone. What
language models beside them do, `does` reads from their reports.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from graphcircuits.cases.multitask import MultiCase
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import find_case
from graphcircuits.cases.shards import (
    BETWEEN,
    KeptShard,
    Shard,
    read_manifest,
    read_shard,
    shard_path,
)
from graphcircuits.io.config import build_config
from graphcircuits.io.files import StoreError, short
from graphcircuits.io.store import check_finite, taken_apart
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.layers import TransformerConfig, weight_shapes
from graphcircuits.subject.transformer import Transformer

if TYPE_CHECKING:
    from graphcircuits.cases.case import Case
    from graphcircuits.task.pairs import Pairs

LANGUAGE = "language"
"""The folder of language models beside the shards."""
REPORT = "report.json"
"""In the folder of each: how it was trained, and what share of the prompts of each task it answers
right."""
DOES = 0.8
"""The share of prompts from which on a model does a task."""


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
        load_shard(root, shard, manifest.kept[shard.name])
        for shard in manifest.plan
        if shard.name in manifest.kept
    ]
    models = sorted(path.parent for path in (root / LANGUAGE).glob("*/config.json"))
    return Corpus(
        root,
        tuple(entry for shard in shards for entry in shard.entries),
        {id: report for shard in shards for id, report in shard.failed.items()},
        {id: why for shard in shards for id, why in shard.refused.items()},
        len(manifest.unfinished),
        tuple(models),
    )


@dataclass(frozen=True, eq=False)
class LoadedShard:
    """What is in a shard: see `Corpus`."""

    entries: tuple[CorpusEntry, ...]
    failed: Mapping[str, Mapping[str, Any]]
    refused: Mapping[str, str]


def load_shard(folder: Path, shard: Shard, kept: KeptShard) -> LoadedShard:
    """A finished shard; StoreError where it is not what the manifest says."""
    path = shard_path(folder, shard.name)
    if not path.exists():
        raise StoreError(f"{path} is gone; the command that built the corpus makes it again.")
    meta = read_shard(folder, shard.name, kept).meta
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
