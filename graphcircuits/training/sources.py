"""Where training examples come from, as plain values: which subject, which task, related to what.

1. `shipped_sources` lists planted subjects of the package, `corpus_sources` the subjects of a
   folder that `python -m lab.factory corpus` or `graphcircuits build` made, task by task,
   `language_sources` small language models with every task that they do, and `mined_sources` the
   tasks that `python -m lab.factory mine` found in text.
2. Programs of the test split are never taken, nor are discarded ones, most of which are related to
   them: cases of the package are refused, a corpus has none, and of a folder of subject files they
   are left out and named. The paper's own pool has two that are discarded here: `ib-25` and
   `ib-106` are taken where that pool is asked for by name, and a predictor that learned from them
   is not used on the test cases that they are related to.
3. `split` holds out a fold: what is held out shares neither program group nor model with what is
   left. Of language models both the models and the tasks have folds, and a model's task is held
   out where both are; a model has its fold by its name, and mined tasks have that of their model.
4. `plan_sources` does all of that for one training.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from random import Random

import torch

from graphcircuits.adapters.load import load_model
from graphcircuits.cases import N_FOLDS, Case, load_case
from graphcircuits.cases.collection import REPORT, Corpus, check_shares, does, load_corpus
from graphcircuits.cases.multitask import AT, MultiCase
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import find_case
from graphcircuits.cases.recognize import shipped_ids
from graphcircuits.cases.relations import POOLS, groups_of, pool_cases
from graphcircuits.circuit import Circuit
from graphcircuits.compare.selection import SELECTIONS, select_cases
from graphcircuits.io.files import read_json
from graphcircuits.io.store import load_artifact, taken_apart
from graphcircuits.subject.files import load_transformer
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.tasks import find as find_task

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
SUFFIX = ".safetensors"
MINED = "mined-tasks"
"""The kind of a file of tasks that were found in text, all of one model."""
FRESH = 10_000
"""Seeds from here on ask a mined task for pairs to judge by, others for pairs to read."""
LEAST_PAIRS = 8


@dataclass(frozen=True)
class Source:
    """One task of one subject."""

    order: Order | None
    """The subject, where it was made for a program; None for a language model."""
    path: str
    """The file of the subject, the corpus that has it, or the language model; nothing where it is
    shipped."""
    task: str
    """The case of the task, or its name where the subject is a language model."""
    groups: tuple[str, ...]
    """What its program is related to."""
    folds: tuple[int, ...]
    """Held out with a fold where all of these are that fold."""
    prompts: str = ""
    """The file that holds the pairs of a mined task; nothing where pairs are drawn."""

    @property
    def id(self) -> str:
        """Its name: ib-7, rnd-17.natural.llama.0, mt-4.natural.gpt2.0@ib-8, NAME@brackets."""
        if self.order is None:
            return f"{self.model}{AT}{self.task}"
        _, at, name = self.task.partition(AT)
        return f"{self.order.id}{at}{name}"

    @property
    def model(self) -> str:
        """The name of the subject where it lies."""
        return Path(self.path).name if self.order is None else self.order.id

    @property
    def fleet(self) -> str:
        """planted, public, natural or language."""
        return "language" if self.order is None else self.order.fleet

    @property
    def kind(self) -> str:
        """The kind of the subject, as `methods.shipped.kind_of` names it."""
        several = self.order is not None and AT in self.task
        return f"{self.fleet}-multitask" if several else self.fleet

    @property
    def labelled(self) -> bool:
        """Whether its true circuit is known."""
        return self.fleet in ("planted", "public")

    def subject(self) -> Transformer:
        """The transformer."""
        order = self.order
        if order is None:
            return _language_model(self.path)
        if not self.path:
            return load_case(self.task).subject(order.fleet, order.architecture, order.seed)
        if Path(self.path).is_dir():
            return _corpus(self.path)[order.id].subject()
        return load_transformer(self.path).to(torch.float32)

    def pairs(self, subject: Transformer, n: int, seed: int) -> Pairs:
        """Prompts of the task."""
        if self.prompts:
            return _mined_pairs(self.prompts, self.task.removeprefix("mined:"), n, seed)
        if self.order is None:
            return find_task(self.task)(subject.tokenizer, n=n, seed=seed)
        return _case(self.task).pairs(n, seed)

    def circuit(self, subject: Transformer, labels: str) -> Circuit | None:
        """The true circuit, where it is known."""
        return _case(self.task).labels(labels, subject.graph) if self.labelled else None


# Every process reads a corpus once, and what the next source may need again a little longer.


@cache
def _corpus(folder: str) -> Corpus:
    return load_corpus(folder)


@lru_cache(maxsize=1)
def _language_model(folder: str) -> Transformer:
    return load_model(folder, dtype=torch.float32)


@lru_cache(maxsize=8)
def _case(id: str) -> Case:
    return load_case(id)


@lru_cache(maxsize=2)
def _mined(path: str) -> tuple[Path, dict[str, Pairs]]:
    """The model of a file of mined tasks, and the pairs of each kind, judged by output."""
    artifact, tasks = load_artifact(path, MINED), {}
    with taken_apart(path, "file of mined tasks"):
        for kind in artifact.meta["kinds"]:
            clean, corrupted = (artifact.tensors[f"{kind}.{x}"] for x in ("clean", "corrupted"))
            last = (torch.arange(clean.shape[1]) == clean.shape[1] - 1).expand(clean.shape)
            tasks[kind] = Pairs(clean=clean, corrupted=corrupted, scored=last, loss_name="kl")
        return Path(artifact.meta["model"]), tasks


def _mined_pairs(path: str, kind: str, n: int, seed: int) -> Pairs:
    """Pairs of the last third for seeds that judge; from the others the seed draws."""
    pairs = _mined(path)[1][kind]
    end = len(pairs) - len(pairs) // 3
    if seed >= FRESH:
        rows = torch.arange(end, len(pairs))[-n:]
    else:
        rows = torch.randperm(end, generator=torch.Generator().manual_seed(seed))[:n]
    if len(rows) < min(n, LEAST_PAIRS):
        what = f"{len(rows)} pairs to {'judge by' if seed >= FRESH else 'read'}"
        raise ValueError(f"{path}: {kind} has {what}, of at least {LEAST_PAIRS}; mine more.")
    return pairs[rows]


# Listing them


def shipped_sources(ids: Iterable[str], pool: str = "pool") -> list[Source]:
    """Planted subjects of the package, in the folds of a pool; `refuse_others` says which are for
    training."""
    sources = []
    for id in ids:
        fold = _fold(load_case(id), pool)
        groups = tuple(sorted(groups_of(id)))
        sources.append(Source(Order(id), "", id, groups, () if fold is None else (fold,)))
    return sources


def refuse_others(ids: Iterable[str], pool: str = "pool") -> None:
    """Refuse cases that are not of the pool."""
    cases = map(find_case, ids)
    others = [f"{x.id} ({x.split or 'in no split'})" for x in cases if _fold(x, pool) is None]
    if others:
        what = "the pool" if pool == "pool" else pool
        raise ValueError(f"only cases of {what} are for training, not {', '.join(others)}.")


def _fold(case: Case | MultiCase, pool: str) -> int | None:
    """The fold of a case in a pool; None where it is not of it."""
    if pool == "pool":
        # Random programs are of our pool as well, and too many to list.
        return case.fold
    return _folds(pool).get(case.id)


@cache
def _folds(pool: str) -> dict[str, int]:
    return {case.id: case.fold for case in pool_cases(pool)}


def corpus_sources(folder: str | Path, pool: str = "pool") -> list[Source]:
    """Every task of every subject of a corpus, or of a folder of subject files.

    A corpus is drawn from our pool; of a folder of files any pool takes its own, in its own folds.
    """
    root = Path(folder)
    if not (root / MANIFEST).is_file():
        return _file_sources(root, pool)
    sources = []
    for entry in _corpus(str(root)).entries:
        if entry.fold is None:
            raise ValueError(f"{root}: {entry.id} is in no fold of the pool; learn from others.")
        sources += _of_order(entry.order, str(root), entry.fold, entry.group)
    return sources


def _file_sources(root: Path, pool: str) -> list[Source]:
    paths = sorted(root.glob(f"*{SUFFIX}"))
    if not paths:
        raise ValueError(
            f"{root} holds no subjects: neither {MANIFEST} of a corpus nor {SUFFIX} files; build "
            "some with: python -m lab.factory corpus"
        )
    sources, others = [], []
    for path in paths:
        order = Order.parse(path.name.removesuffix(SUFFIX))
        fold = _fold(find_case(order.case), pool)
        if fold is None:
            others.append(order.id)
        else:
            sources += _of_order(order, str(path), fold, None)
    if others:
        what = "the pool" if pool == "pool" else pool
        log.warning("%s: left out, not of %s: %s", root, what, ", ".join(others))
    return sources


def _of_order(order: Order, path: str, fold: int, group: str | None) -> list[Source]:
    """One source, or one for each task of a subject that has several."""
    several = find_case(order.case) if order.case.startswith("mt-") else None
    if isinstance(several, MultiCase):
        tasks, group = [f"{order.case}{AT}{name}" for name in several.names], None
    else:
        tasks = [order.case]
    groups = tuple(sorted(groups_of(order.case))) if group is None else (group,)
    return [Source(order, path, task, groups, (fold,)) for task in tasks]


def language_sources(folder: str | Path) -> list[Source]:
    """Every task that the language models of a folder do, by their reports; or, of a folder of
    files of mined tasks, those."""
    root = Path(folder)
    reports = sorted([*root.glob(REPORT), *root.glob(f"*/{REPORT}")])
    if not reports and mined_files(root):
        return mined_sources(root)
    if not reports:
        raise ValueError(
            f"{root} holds no language models with a {REPORT}; train some with: python -m "
            "lab.factory language"
        )
    done = {path.parent: does(check_shares(path, read_json(path))) for path in reports}
    tasks = sorted({task for names in done.values() for task in names})
    sources = []
    for model, names in done.items():
        for task in names:
            folds = (_fold_of(model), tasks.index(task) % N_FOLDS)
            sources.append(Source(None, str(model), task, (f"task:{task}",), folds))
    return sources


def mined_files(folder: str | Path) -> list[Path]:
    """The files of a folder that holds nothing but mined tasks; none of another one."""
    if (Path(folder) / MANIFEST).is_file():
        return []
    return sorted(Path(folder).glob(f"*{SUFFIX}"))


def mined_sources(folder: str | Path) -> list[Source]:
    """Every task in the files of a folder that `python -m lab.factory mine` wrote."""
    sources = []
    for path in map(str, mined_files(folder)):
        model, tasks = _mined(path)
        own = (f"mined:{model.name}",), (_fold_of(model),), path
        sources += [Source(None, str(model), f"mined:{kind}", *own) for kind in tasks]
    return sources


def _fold_of(model: Path) -> int:
    """The fold of a language model, by its name: the same for all its tasks, wherever it lies."""
    return sum(model.name.encode()) % N_FOLDS


# What a training takes


def split(sources: Sequence[Source], fold: int) -> tuple[list[Source], list[Source]]:
    """What is left to learn from, and what is held out with a fold; neither where both would be."""
    if not 0 <= fold < N_FOLDS:
        raise ValueError(f"the fold must be in 0..{N_FOLDS - 1}, got {fold}.")
    held_out = [x for x in sources if x.folds and set(x.folds) == {fold}]
    groups = {group for x in held_out for group in x.groups}
    models = {(x.path, x.model) for x in held_out}
    left = [
        x
        for x in sources
        if fold not in x.folds and groups.isdisjoint(x.groups) and (x.path, x.model) not in models
    ]
    return left, held_out


@dataclass(frozen=True)
class Plan:
    """What a training learns from, what is scored on the way, and what at the end."""

    learned: list[Source]
    validation: list[Source]
    held_out: list[Source]
    left_out: list[str]
    """Cases of the pool without a subject."""
    runs: bool
    """Whether there are subjects whose circuits can be judged only by running them."""


def plan_sources(
    cases: str | Sequence[str] | None = None,
    *,
    corpus: Sequence[str | Path] = (),
    language: Sequence[str | Path] = (),
    without_fold: int | None = None,
    validation_fold: int | None = None,
    limit: int | None = None,
) -> Plan:
    """The sources of one training, fold by fold; arguments are those of `gc.train`."""
    if without_fold is not None and without_fold == validation_fold:
        raise ValueError("without_fold and validation_fold must be different folds.")
    word = cases if cases is None or isinstance(cases, str) else ",".join(cases)
    pool = word if word in POOLS else "pool"
    if pool != "pool" and (corpus or language):
        raise ValueError(
            f"cases {pool} have folds of their own, which corpora and language models do not "
            "follow; give them alone."
        )
    sources, left_out = [], []
    if word is not None or not (corpus or language):
        ids, left_out = _pool_cases(word or "pool", pool)
        sources += shipped_sources(ids, pool)
    for folder in corpus:
        sources += corpus_sources(folder)
    for folder in language:
        sources += language_sources(folder)
    held_out: list[Source] = []
    validation: list[Source] = []
    if without_fold is not None:
        sources, held_out = split(sources, without_fold)
    if validation_fold is not None:
        sources, validation = split(sources, validation_fold)
    if limit is not None and limit < len(sources):
        chosen = sorted(Random(0).sample(range(len(sources)), limit))
        sources = [sources[number] for number in chosen]
    return Plan(sources, validation, held_out, left_out, bool(corpus or language))


def _pool_cases(cases: str, pool: str) -> tuple[list[str], list[str]]:
    """Ids to learn from, and ids of the pool that have no subject to learn from."""
    if cases in SELECTIONS and cases not in POOLS:
        raise ValueError(
            f"cases must be {', '.join(POOLS)} or ids, got {cases}: that may hold other cases."
        )
    ids, left_out = select_cases(cases)
    refuse_others(ids, pool)
    absent = sorted(set(ids).difference(shipped_ids()))
    if absent:
        raise ValueError(f"no subject is shipped to learn from: {', '.join(absent)}.")
    return ids, left_out
