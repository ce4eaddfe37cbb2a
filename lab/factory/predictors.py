"""The six predictors that ship, made by one command from corpora that it records.

1. Sources are the shipped subjects of the pool and the folders that are named, each of which
   `python -m lab.factory corpus` or `language` made. A labelled circuit that does not give
   SMALLEST_SHARE of the right answers by itself is not learned from.
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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from graphcircuits.cases import load_case
from graphcircuits.cases.collection import KIND as CORPUS
from graphcircuits.cases.collection import MANIFEST, REPORT
from graphcircuits.engine.masked import masked_logits
from graphcircuits.io.files import read_json
from graphcircuits.io.store import content_hash, load_artifact, save_artifact
from graphcircuits.jobs.command import driver_command
from graphcircuits.jobs.runner import Runner, runner_of
from graphcircuits.methods.shipped import SHIPPED
from graphcircuits.predictor.ensemble import save_ensemble
from graphcircuits.training.config import TrainConfig, settings_of
from graphcircuits.training.facts import Figures
from graphcircuits.training.members import Lesson, ensemble_of, train_jobs
from graphcircuits.training.sources import MINED, Source, mined_files, plan_sources
from lab.factory.audit import PAIRS, right_shares
from lab.factory.crossfit import complete
from lab.factory.language.folder import MANIFEST as LANGUAGE
from lab.programs import parser

log = logging.getLogger(__name__)

SEEDS = 2
SMALLEST_SHARE = 0.97
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
    if mined := mined_files(folder):
        artifacts = [load_artifact(path, MINED) for path in mined]
        return {
            "command": artifacts[0].command,
            "sha256": content_hash([artifact.sha256 for artifact in artifacts]),
            "subjects": len(mined),
            "tasks": sum(len(artifact.meta["kinds"]) for artifact in artifacts),
        }
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


def share_right(source: Source, labels: str) -> float:
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
    shares = dict(runner.run(partial(_shares_right, labels), jobs))
    for id, share in shares.items():
        if share < SMALLEST_SHARE:
            log.info("left out: %s: its circuit alone keeps %.3f of the answers", id, share)
    return [source for source in sources if shares.get(source.id, 1.0) >= SMALLEST_SHARE]


def _shares_right(labels: str, job: Sequence[Source]) -> Iterator[tuple[str, float]]:
    for source in job:
        yield source.id, share_right(source, labels)


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
    plan = plan_sources("pool", corpus=corpora, language=languages)
    sources = true_sources(plan.learned, config.labels, runner)
    lessons = {
        name: Lesson(
            sources=tuple(sources),
            without_fold=None if name == "default" else SHIPPED.index(name) - 1,
            config=config,
            judged=True,
            readings=folder / WORK,
            checkpoints=folder / WORK / name,
            device=device,
        )
        for name in SHIPPED
    }
    result = lessons["default"].read(runner)
    for id, why in result.left_out.items():
        log.info("left out: %s: %s", id, why)
    log.info("%d readings of %d tasks", len(result.examples), len(sources))
    jobs = [(lesson, seed) for lesson in lessons.values() for seed in range(SEEDS)]
    members = train_jobs(
        jobs,
        runner=runner,
        device_share=DEVICE_SHARE / min(processes, len(jobs)),
        retries=1,
        progress=lambda done, total: log.info("%d of %d members trained", done, total),
    )
    hashes = {name: {x: own[x] for x in ("sha256", "subjects")} for name, own in about.items()}
    record = {"code": code_hash(), "corpora": hashes}
    for number, (name, lesson) in enumerate(lessons.items()):
        own = members[number * SEEDS : (number + 1) * SEEDS]
        ensemble = ensemble_of(own, lesson.learned(result.examples), config, range(SEEDS))
        ensemble = replace(ensemble, origin=ensemble.origin | record)
        save_ensemble(folder / f"{name}.safetensors", ensemble, command=driver_command())
    return complete(folder, sources, most, runner)


def code_hash() -> str:
    """Of everything that the package computes with."""
    root = Path(str(files("graphcircuits")))
    return content_hash(
        {str(x.relative_to(root)): x.read_text("utf-8") for x in root.rglob("*.py")}
    )


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
    figures = make(
        given.folder,
        [Path(folder) for folder in given.corpus.split(",") if folder],
        [Path(folder) for folder in given.language.split(",") if folder],
        config=settings_of("shipped", steps=given.steps),
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
