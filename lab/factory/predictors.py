"""The six predictors that ship, made by one command from corpora that it records.

1. Sources are the shipped subjects of the pool and the folders that are named, each of which
   `python -m lab.factory corpus` or `language` made. A labelled circuit that does not keep LEAST
   of the answers by itself is not learned from.
2. All of them are read once. `default` learns from everything, `fold-K` from what shares nothing
   with fold K; each has SEEDS members, which train side by side in processes of their own.
3. What the held-out folds say is added (`crossfit.py`).
4. The files record this command, the settings, and the hash of every corpus's manifest;
   `corpora.json` beside them says more of each: counts, and the command that built it.

Readings and the checkpoints of all members lie in FOLDER/work: what was cut off goes on.

python -m lab.factory predictors FOLDER --corpus DIR[,DIR] [--language DIR]
    [--device cuda] [--processes 15]
"""

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphcircuits.cases import load_case
from graphcircuits.cases.collection import REPORT
from graphcircuits.cases.shards import KIND as CORPUS
from graphcircuits.cases.shards import MANIFEST
from graphcircuits.compare.selection import select_cases
from graphcircuits.engine.masked import masked_logits
from graphcircuits.io.files import read_json
from graphcircuits.io.store import content_hash, load_artifact, save_artifact
from graphcircuits.jobs.command import driver_command
from graphcircuits.jobs.runner import IN_PROCESS, Runner, runner_of
from graphcircuits.methods.shipped import SHIPPED
from graphcircuits.predictor.ensemble import save_ensemble
from graphcircuits.predictor.model import Predictor
from graphcircuits.training.batches import StackPool
from graphcircuits.training.checkpoint import checkpoint_path
from graphcircuits.training.config import TrainConfig, shipped_recipe
from graphcircuits.training.crossfit import Figures, complete
from graphcircuits.training.data import Example, read
from graphcircuits.training.sources import (
    Source,
    corpus_sources,
    language_sources,
    shipped_sources,
    split,
)
from graphcircuits.training.train import together, train
from lab.factory.audit import PAIRS, right_shares
from lab.factory.language.folder import MANIFEST as LANGUAGE
from lab.programs import parser

log = logging.getLogger(__name__)

SEEDS = 2
LEAST = 0.97
"""Of the answers, to be kept by a labelled circuit alone."""
FRESH = 12345
"""The seed of the prompts for that."""
KIND = "training-corpora"
CORPORA, WORK = "corpora.json", "work"
DEVICE_SHARE = 0.9
"""Of the memory of a GPU, for all members that train on it."""
CHECKED = 16
"""Sources that a process is given at a time."""


# Where the data come from


def describe(folder: Path) -> dict[str, Any]:
    """What a corpus or a folder of language models is: its command, hash and counts."""
    if (folder / LANGUAGE).is_file():
        about = read_json(folder / LANGUAGE)
        models = {
            path.parent.name: read_json(path)["sha256"]
            for path in sorted(folder.glob(f"*/{REPORT}"))
        }
        found = {"text": about["text"]["sha256"], "models": models}
        digest = content_hash({"settings": about["settings"], **found})
        return {"command": about["command"], "sha256": digest, "subjects": len(models), **found}
    if not (folder / MANIFEST).is_file():
        raise ValueError(
            f"{folder} has neither {MANIFEST} nor {LANGUAGE}, so that nobody could say what was "
            "learned from; build it with python -m lab.factory corpus or language."
        )
    artifact = load_artifact(folder / MANIFEST, CORPUS)
    shards = artifact.meta["kept"]
    passed, failed, refused = (
        sum(shard[count] for shard in shards.values()) for count in ("passed", "failed", "refused")
    )
    return {
        "command": artifact.command,
        "sha256": artifact.sha256,
        "subjects": passed,
        "failed": failed,
        "refused": refused,
        "shards": len(shards),
        "planned_shards": len(artifact.meta["plan"]),
    }


def describe_all(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """The same of every folder, by its name."""
    found = {folder.name: describe(folder) for folder in folders}
    if len(found) < len(folders):
        raise ValueError(f"folders must have different names, got {', '.join(map(str, folders))}.")
    return found


# What is learned from


def find_sources(corpora: Sequence[Path], languages: Sequence[Path]) -> list[Source]:
    """The shipped subjects of the pool, and everything in the folders."""
    sources = shipped_sources(select_cases("pool")[0])
    for folder in corpora:
        sources += corpus_sources(folder)
    for folder in languages:
        sources += language_sources(folder)
    return sources


def share_kept(source: Source, labels: str) -> float:
    """The share of answers that are right when everything outside the circuit is corrupted."""
    subject = source.subject()
    circuit = source.circuit(subject, labels)
    assert circuit is not None
    pairs = source.pairs(subject, PAIRS, FRESH)
    mask = circuit.mask[None].to(subject.dtype)
    with torch.no_grad():
        corrupted = subject.run(pairs.corrupted).writers
        logits = masked_logits(subject, pairs.clean, mask, corrupted)
    return float(right_shares(logits, pairs, load_case(source.task).categorical))


def true_sources(sources: Sequence[Source], labels: str, runner: Runner) -> list[Source]:
    """The sources without those whose labelled circuit is none."""
    known = [source for source in sources if source.labelled]
    jobs = [tuple(known[start : start + CHECKED]) for start in range(0, len(known), CHECKED)]
    shares = dict(runner.run(partial(_shares_kept, labels), jobs))
    for id, share in shares.items():
        if share < LEAST:
            log.info("left out: %s: its circuit alone keeps %.3f of the answers", id, share)
    return [source for source in sources if shares.get(source.id, 1.0) >= LEAST]


def _shares_kept(labels: str, job: Sequence[Source]) -> Iterator[tuple[str, float]]:
    for source in job:
        yield source.id, share_kept(source, labels)


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a process needs to train a member."""

    sources: tuple[Source, ...]
    config: TrainConfig
    work: Path
    """The folder of readings and checkpoints."""
    device: str
    side_by_side: int = 1
    """Members that share the device."""

    def examples(self, runner: Runner = IN_PROCESS) -> list[Example]:
        """Everything, read once and kept."""
        found = read(self.sources, self.config, runner=runner, kept=self.work)
        for id, why in found.left_out.items():
            log.info("left out: %s: %s", id, why)
        return found.examples

    def learned(self, name: str, examples: Sequence[Example]) -> list[Example]:
        """What the predictor of a name learns from."""
        if name == "default":
            return list(examples)
        left = set(split(self.sources, SHIPPED.index(name) - 1)[0])
        return [example for example in examples if example.source in left]


Member = tuple[str, int, int, Mapping[str, np.ndarray]]
"""Name and seed, the step whose weights were kept, and these."""


def _train_member(lesson: Lesson, job: tuple[str, int]) -> Iterator[Member]:
    name, seed = job
    if lesson.side_by_side > 1 and torch.device(lesson.device).type == "cuda":
        torch.cuda.set_per_process_memory_fraction(DEVICE_SHARE / lesson.side_by_side)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    examples = lesson.learned(name, lesson.examples())
    trained = train(
        examples,
        lesson.config,
        seed=seed,
        checkpoint=checkpoint_path(lesson.work / name, seed),
        device=lesson.device,
        stacks=StackPool(examples, lesson.device),
        log=lambda step, figures: log.info(
            "%s, seed %d: step %d, loss %.4f", name, seed, step, figures["loss"]
        ),
    )
    weights = trained.predictor.cpu().state_dict()
    yield name, seed, trained.step, {part: x.numpy() for part, x in weights.items()}


def make(
    folder: Path,
    corpora: Sequence[Path],
    languages: Sequence[Path],
    *,
    config: TrainConfig,
    most: int,
    device: str = "cpu",
    processes: int = 1,
) -> Figures:
    """Train, judge and write the six files; what was measured on held-out folds."""
    about = describe_all([*corpora, *languages])
    save_artifact(
        folder / CORPORA,
        kind=KIND,
        config={},
        seed=None,
        meta={"corpora": about},
        command=driver_command(),
    )
    runner = runner_of(processes)
    sources = true_sources(find_sources(corpora, languages), config.labels, runner)
    jobs = [(name, seed) for name in SHIPPED for seed in range(SEEDS)]
    lesson = Lesson(
        sources=tuple(sources),
        config=config,
        work=folder / WORK,
        device=device,
        side_by_side=min(processes, len(jobs)),
    )
    examples = lesson.examples(runner)
    log.info("%d readings of %d tasks", len(examples), len(sources))
    members: dict[tuple[str, int], tuple[Predictor, int]] = {}
    for name, seed, step, weights in runner.run(partial(_train_member, lesson), jobs, retries=1):
        member = Predictor(config.predictor).eval()
        member.load_state_dict({part: torch.from_numpy(x) for part, x in weights.items()})
        members[name, seed] = member, step
        log.info("%s, seed %d: trained", name, seed)
    hashes = {place: {x: own[x] for x in ("sha256", "subjects")} for place, own in about.items()}
    record = {"corpora": hashes}
    for name in SHIPPED:
        own = [members[name, seed] for seed in range(SEEDS)]
        ensemble = together(
            [member for member, _ in own],
            lesson.learned(name, examples),
            config,
            range(SEEDS),
            [step for _, step in own],
        )
        ensemble = replace(ensemble, origin=ensemble.origin | record)
        save_ensemble(folder / f"{name}.safetensors", ensemble, command=driver_command())
    return complete(folder, sources, most, runner)


def command_words() -> argparse.ArgumentParser:
    """Of the command that the files record."""
    words = parser("lab.factory predictors", __doc__)
    words.add_argument("folder", type=Path, help="for the files")
    words.add_argument("--corpus", default="", help="folders with commas between")
    words.add_argument("--language", default="", help="folders of language models, likewise")
    words.add_argument("--steps", type=int, help="instead of those of the recipe")
    words.add_argument("--most", type=int, default=24, help="tasks of a kind to judge by, a fold")
    words.add_argument("--device", default="cpu")
    words.add_argument("--processes", type=int, default=1, help="that read, train and judge")
    return words


def main(arguments: Sequence[str]) -> None:
    """Make the files."""
    given = command_words().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    config = shipped_recipe()
    figures = make(
        given.folder,
        [Path(folder) for folder in given.corpus.split(",") if folder],
        [Path(folder) for folder in given.language.split(",") if folder],
        config=config if given.steps is None else replace(config, steps=given.steps),
        most=given.most,
        device=given.device,
        processes=given.processes,
    )
    for kind, by_figure in figures.items():
        words = [
            f"{figure} " + ", ".join(f"{name} {value:.4f}" for name, value in by.items())
            for figure, by in by_figure.items()
        ]
        log.info("%s: %s", kind, "; ".join(words))
