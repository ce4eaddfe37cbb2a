"""Where training examples come from, as plain values: which subject, which task, related to what.

1. `shipped_sources` names planted subjects of the package, `corpus_sources` the subjects of a
   folder that `python -m lab.factory corpus` or `graphcircuits build` made, task by task, and
   `language_sources` small language models with every task that they do.
2. Programs of the test split are never taken, nor are discarded ones, most of which are related to
   them: cases of the package are refused, a corpus has none, and of a folder of subject files they
   are left out and named. The paper's own pool has two that are discarded here: `ib-25` and
   `ib-106` are taken where that pool is asked for by name, and what learned from them is kept from
   the test cases that they are related to like anything else.
3. `split` holds out a fold: what is held out shares neither program group nor model with what is
   left. Of language models both the models and the tasks are dealt out to folds, and a model's
   task is held out where both are.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

import torch

from graphcircuits.adapters.load import load_model
from graphcircuits.cases import N_FOLDS, Case, load_case
from graphcircuits.cases.collection import REPORT, Corpus, check_shares, does, load_corpus
from graphcircuits.cases.multitask import AT, MultiCase
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import find_case
from graphcircuits.cases.relations import groups_of, pool_cases
from graphcircuits.circuit import Circuit
from graphcircuits.io.files import read_json
from graphcircuits.subject.files import load_transformer
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.tasks import find as find_task

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Source:
    """One task of one subject."""

    id: str
    """What it goes by: ib-7, rnd-17.natural.llama.0, mt-4.natural.gpt2.0@ib-8, NAME@brackets."""
    kind: Literal["shipped", "corpus", "file", "language"]
    place: str
    """The folder or file of the subject; nothing where it is shipped."""
    model: str
    """What the subject goes by there."""
    task: str
    """The case of the task, or its name where the subject is a language model."""
    groups: tuple[str, ...]
    """What its program is related to."""
    folds: tuple[int, ...]
    """Held out with a fold where all of these are that fold."""
    fleet: str
    """planted, public, natural or language."""

    @property
    def labelled(self) -> bool:
        """Whether its true circuit is known."""
        return self.fleet in ("planted", "public")

    def subject(self) -> Transformer:
        """The transformer."""
        match self.kind:
            case "shipped":
                return load_case(self.task).subject()
            case "corpus":
                return _corpus(self.place)[self.model].subject()
            case "file":
                return load_transformer(self.place).to(torch.float32)
        return _language_model(self.place)

    def pairs(self, subject: Transformer, n: int, seed: int) -> Pairs:
        """Prompts of the task."""
        if self.kind == "language":
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
    return load_model(folder)


@lru_cache(maxsize=8)
def _case(id: str) -> Case:
    return load_case(id)


def shipped_sources(ids: Iterable[str], pool: str = "pool") -> list[Source]:
    """Planted subjects of the package, in the folds of a pool; `refuse_others` says which are for
    training."""
    own = None if pool == "pool" else _folds(pool)
    found = []
    for id in ids:
        fold = load_case(id).fold if own is None else own.get(id)
        folds = () if fold is None else (fold,)
        found.append(
            Source(id, "shipped", "", id, id, tuple(sorted(groups_of(id))), folds, "planted")
        )
    return found


def refuse_others(ids: Iterable[str], pool: str = "pool") -> None:
    """Refuse cases that are not of the pool."""
    places = {id: find_case(id).split or "in no split" for id in ids}
    # Random programs are of our pool as well, and too many to list.
    listed = {} if pool == "pool" else _folds(pool)
    forbidden = [
        f"{id} ({place})"
        for id, place in places.items()
        if (place != "pool" if pool == "pool" else id not in listed)
    ]
    if forbidden:
        what = "the pool" if pool == "pool" else pool
        raise ValueError(f"only cases of {what} are for training, not {', '.join(forbidden)}.")


def _folds(pool: str) -> dict[str, int]:
    return {case.id: case.fold for case in pool_cases(pool)}


def corpus_sources(folder: str | Path, pool: str = "pool") -> list[Source]:
    """Every task of every subject of a corpus, or of a folder of subject files.

    A corpus is drawn from our pool; of a folder of files any pool takes its own, in its own folds.
    """
    root = Path(folder)
    if not (root / MANIFEST).is_file():
        return _file_sources(root, pool)
    found = []
    for entry in _corpus(str(root)).entries:
        if entry.fold is None:
            raise ValueError(f"{root}: {entry.id} is in no fold of the pool; learn from others.")
        found += _of_order(entry.order, "corpus", str(root), entry.fold, entry.group)
    return found


def _file_sources(root: Path, pool: str) -> list[Source]:
    paths = sorted(root.glob(f"*{SUFFIX}"))
    if not paths:
        raise ValueError(
            f"{root} holds no subjects: neither {MANIFEST} of a corpus nor {SUFFIX} files; build "
            "some with: python -m lab.factory corpus"
        )
    own = None if pool == "pool" else _folds(pool)
    found, others = [], []
    for path in paths:
        order = Order.parse(path.name.removesuffix(SUFFIX))
        case = find_case(order.case)
        fold = (case.fold if case.split == "pool" else None) if own is None else own.get(case.id)
        if fold is None:
            others.append(order.id)
        else:
            found += _of_order(order, "file", str(path), fold, None)
    if others:
        what = "the pool" if own is None else pool
        log.warning("%s: left out, not of %s: %s", root, what, ", ".join(others))
    return found


def _of_order(
    order: Order, kind: Literal["corpus", "file"], place: str, fold: int, group: str | None
) -> list[Source]:
    several = find_case(order.case) if order.case.startswith("mt-") else None
    if not isinstance(several, MultiCase):
        groups = tuple(sorted(groups_of(order.case))) if group is None else (group,)
        tasks = {order.id: order.case}
    else:
        groups = tuple(sorted(groups_of(order.case)))
        tasks = {f"{order.id}{AT}{name}": f"{order.case}{AT}{name}" for name in several.names}
    return [
        Source(id, kind, place, order.id, task, groups, (fold,), order.fleet)
        for id, task in tasks.items()
    ]


def language_sources(folder: str | Path) -> list[Source]:
    """Every task that the language models of a folder do, by their reports."""
    root = Path(folder)
    reports = sorted([*root.glob(REPORT), *root.glob(f"*/{REPORT}")])
    if not reports:
        raise ValueError(
            f"{root} holds no language models with a {REPORT}; train some with: graphcircuits "
            "language"
        )
    done = {path.parent: does(check_shares(path, read_json(path))) for path in reports}
    tasks = sorted({task for names in done.values() for task in names})
    return [
        Source(
            f"{place.name}{AT}{task}",
            "language",
            str(place),
            place.name,
            task,
            (f"task:{task}",),
            (number % N_FOLDS, tasks.index(task) % N_FOLDS),
            "language",
        )
        for number, (place, names) in enumerate(done.items())
        for task in names
    ]


def split(sources: Sequence[Source], fold: int) -> tuple[list[Source], list[Source]]:
    """What is left to learn from, and what is held out with a fold; neither where both would be."""
    if not 0 <= fold < N_FOLDS:
        raise ValueError(f"the fold must be in 0..{N_FOLDS - 1}, got {fold}.")
    held_out = [x for x in sources if x.folds and set(x.folds) == {fold}]
    groups = {group for x in held_out for group in x.groups}
    models = {(x.place, x.model) for x in held_out}
    left = [
        x
        for x in sources
        if fold not in x.folds and groups.isdisjoint(x.groups) and (x.place, x.model) not in models
    ]
    return left, held_out
