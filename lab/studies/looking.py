"""What a look is worth to the network that looks, and by which of its parts.

1. Every variant learns from what shares nothing with one fold, with one thing changed: what a look
   says is hidden, edges do not hear of each other, or there are fewer models, or fewer tasks of
   each. It reads the lessons that `python -m lab.factory lookers FOLDER` has made.
2. Some tasks of every model of the fold are ranked by EAP-IG, EAP-IG along paths, what the looks
   start from (with paths, without, and blind to all runs), and every variant after one look. All
   are judged by the edges that keep .8, .9 and .95 of the output and by log area, on prompts of
   their own.
3. Ratios are to EAP-IG along paths, with intervals over tasks and seeds of training.

Networks and figures lie in FOLDER/study: what was cut off goes on from there.

python -m lab.studies looking FOLDER --corpus DIR[,DIR] --language DIR[,DIR] [--fold 0] [--seeds 3]
    [--steps 300] [--most 5] [--processes 2] [--page docs/results/looking.md]
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from graphcircuits.evaluation.text_tables import markdown_table
from graphcircuits.io.files import read_json, write_atomic, write_json
from graphcircuits.io.store import content_hash, load_artifact, save_artifact
from graphcircuits.jobs.command import driver_command
from graphcircuits.jobs.runner import runner_of
from graphcircuits.predictor.looker import Looker
from graphcircuits.training.sources import Source, plan_sources, split
from lab.intervals import bootstrap
from lab.looking.cases import LookTraining, look_again, read_cases
from lab.looking.judge import RIVAL, SHARES, judged, rankings
from lab.looking.learn import Lesson, train_looker
from lab.looking.lessons import Job, Shop, jobs_of, read_lessons
from lab.programs import parser

KIND = "studied-looker"
MUCH = 1.2
"""Times the edges of EAP-IG along paths, above which a task is worse by much."""

Rows = Sequence[Mapping[str, Any]]
"""Of a task: its `id`, and under `figures` what every ranking needs."""


@dataclass(frozen=True)
class Variant:
    """One thing changed."""

    name: str
    looks: bool = True
    messages: bool = True
    models: float = 1.0
    """The share of the models that is learned from."""
    tasks: float = 1.0
    """Of the tasks of each."""

    def config(self, config: LookTraining) -> LookTraining:
        looker = replace(config.looker, looks=self.looks, messages=self.messages)
        return replace(config, looker=looker)

    def lessons(self, lessons: Sequence[Lesson], seed: int) -> list[Lesson]:
        """Those it learns from: the seed draws models and tasks."""
        draw, chosen = Random(seed), []
        for lesson in draw.sample(lessons, math.ceil(self.models * len(lessons))):
            index = draw.sample(range(len(lesson)), math.ceil(self.tasks * len(lesson)))
            chosen.append(lesson.of(sorted(index)))
        return chosen


VARIANTS = (
    Variant("one look"),
    Variant("what a look says hidden", looks=False),
    Variant("no messages", messages=False),
    Variant("half of the models", models=1 / 2),
    Variant("a quarter of the models", models=1 / 4),
    Variant("a twelfth of the tasks", tasks=1 / 12),
)


@dataclass(frozen=True)
class Study:
    """What all jobs share."""

    shop: Shop
    learned: tuple[Source, ...]
    seeds: int


def train(study: Study, job: tuple[Variant, int]) -> Iterator[str]:
    """Train a variant from a seed, if it is not there."""
    variant, seed = job
    path, shop = _path(study, variant, seed), study.shop
    if path.is_file():
        return
    lessons = read_lessons(shop, study.learned, jobs_of(study.learned), 0)
    chosen = variant.lessons(lessons, seed)
    looker = train_looker(chosen, variant.config(shop.config), seed=seed)
    meta = {"models": len(chosen), "cases": sum(map(len, chosen))}
    tensors = dict(looker.state_dict())
    save_artifact(path, kind=KIND, config={}, seed=seed, tensors=tensors, meta=meta)
    yield f"{variant.name}, seed {seed}: {meta['cases']} cases"


def _path(study: Study, variant: Variant, seed: int) -> Path:
    about = [str(variant), study.shop.config.train.steps, [x.id for x in study.learned]]
    return study.shop.folder.parent / "study" / f"{content_hash(about)[:16]}-{seed}.safetensors"


def trained(study: Study, variant: Variant, seed: int) -> Looker:
    """A variant that `train` wrote."""
    tensors = load_artifact(_path(study, variant, seed), KIND).tensors
    config = variant.config(study.shop.config).looker
    looker = Looker(config, tensors["mean"].numel() - config.columns)
    looker.load_state_dict(tensors)
    return looker.eval().requires_grad_(False)


def judge(study: Study, job: Job) -> Iterator[Mapping[str, Any]]:
    """The figures of every ranking of the tasks of a model."""
    config = study.shop.config
    about = [[x.id for x in job], study.seeds, config.train.steps, [x.id for x in study.learned]]
    path = study.shop.folder.parent / "study" / f"{content_hash(about)[:16]}.json"
    if not path.is_file():
        write_json(path, {"rows": list(_judged(study, job))})
    yield from read_json(path)["rows"]


def _judged(study: Study, job: Job) -> Iterator[Mapping[str, Any]]:
    config = study.shop.config
    for group in read_cases(job, config)[0]:
        found = {
            name: {"0": judged(group, values, config.read)}
            for name, values in rankings(group, (), config).items()
        }
        for variant in VARIANTS:
            lookers = [trained(study, variant, seed) for seed in range(study.seeds)]
            after = [look_again(group, group.starts, [looker], config) for looker in lookers]
            found[variant.name] = {
                str(seed): judged(group, values, config.read) for seed, values in enumerate(after)
            }
        for number, source in enumerate(group.sources):
            figures = {
                name: {seed: dict(each[number]) for seed, each in seeds.items()}
                for name, seeds in found.items()
            }
            yield {"id": source.id, "figures": figures}


# The page


def page(rows: Rows, counts: str) -> str:
    """Tables in Markdown."""
    header = ["ranking", *(f"edges for {share:g}" for share in SHARES), "log area"]
    header += [f"edges for {share:g}, of {RIVAL}" for share in SHARES] + [f"above {MUCH:g} at .9"]
    table = [_row(rows, name) for name in rows[0]["figures"]]
    return "\n\n".join(
        [
            "# What a look is worth",
            f"{counts} Rankings are judged by output on prompts that none of them saw. Edges are "
            "geometric means over tasks and seeds of training; ratios have intervals that hold 95% "
            f"over both. The last column counts tasks on which a ranking needs more than {MUCH:g} "
            f"times the edges of {RIVAL}.",
            markdown_table(header, table),
            "`start` is what the predictor starts from, before paths are counted; `gcl-blind` is a "
            "predictor that sees no run at all. `gcl without looking` is the proposal that looks "
            "begin with. Variants look once; what they learn from is drawn by the seed.",
            f"Made by `{driver_command()}` from what `python -m lab.factory lookers` left in its "
            "folder; [how it came about](../research/looking.md).\n",
        ]
    )


def _row(rows: Rows, name: str) -> list[str]:
    cells, ratios = [], []
    for figure in (*(f"{share:g}" for share in SHARES), "log_area"):
        values = [each[figure] for row in rows for each in row["figures"][name].values()]
        if figure == "log_area":
            cells.append(f"{sum(values) / len(values):.3f}")
            continue
        cells.append(f"{math.exp(sum(map(math.log, values)) / len(values)):.1f}")
        ratios.append(_ratio(rows, name, figure) if name != RIVAL else "1")
    return [name, *cells, *ratios, f"{_much(rows, name)} of {len(rows)}"]


def _logs(rows: Rows, name: str, figure: str) -> dict[str, dict[int, float]]:
    """By task and seed, how many times the edges of the rival, as a logarithm."""
    return {
        row["id"]: {
            int(seed): math.log(each[figure] / row["figures"][RIVAL]["0"][figure])
            for seed, each in row["figures"][name].items()
        }
        for row in rows
    }


def _ratio(rows: Rows, name: str, figure: str) -> str:
    found = bootstrap([_logs(rows, name, figure)], lambda of: of[0].mean(1))
    middle, low, high = (math.exp(x) for x in (found.value, found.low, found.high))
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def _much(rows: Rows, name: str) -> int:
    logs = _logs(rows, name, f"{SHARES[1]:g}").values()
    return sum(sum(each.values()) / len(each) > math.log(MUCH) for each in logs)


# The program


def command_words() -> argparse.ArgumentParser:
    """Of the command that the page names."""
    words = parser("lab.studies looking", __doc__)
    words.add_argument("folder", type=Path, help="of `python -m lab.factory lookers`")
    words.add_argument("--corpus", default="", help="as that was given them")
    words.add_argument("--language", default="", help="likewise")
    words.add_argument("--fold", type=int, default=0, help="that is held out")
    words.add_argument("--seeds", type=int, default=3, help="of training")
    words.add_argument("--steps", type=int, default=300, help="of training")
    words.add_argument("--most", type=int, default=5, help="tasks of each held-out model")
    words.add_argument("--processes", type=int, default=1)
    words.add_argument("--page", type=Path, help="the Markdown file to write")
    return words


def main(arguments: Sequence[str]) -> None:
    """Train, judge, and write the page."""
    given = command_words().parse_args(arguments)
    corpora, languages = (
        [Path(folder) for folder in folders.split(",") if folder]
        for folders in (given.corpus, given.language)
    )
    plan = plan_sources(None, corpus=corpora, language=languages)
    learned, held = split(plan.learned, given.fold)
    config = LookTraining()
    config = replace(config, train=replace(config.train, steps=given.steps))
    study = Study(Shop(given.folder / "work", config), tuple(learned), given.seeds)
    runner = runner_of(given.processes)
    jobs = [(variant, seed) for seed in range(given.seeds) for variant in VARIANTS]
    for words in runner.run(partial(train, study), jobs):
        print(words, flush=True)
    drawn = [tuple(Random(0).sample(job, min(given.most, len(job)))) for job in jobs_of(held)]
    rows = sorted(runner.run(partial(judge, study), drawn), key=lambda row: row["id"])
    models = len({row["id"].split("@")[0] for row in rows})
    lessons = read_lessons(study.shop, learned, jobs_of(learned), 0)
    counts = (
        f"Networks learned from {sum(map(len, lessons)):,} tasks of {len(lessons)} models in "
        f"{given.steps} steps, from {given.seeds} seeds, and are judged on {len(rows)} tasks of "
        f"{models} other models (fold {given.fold})."
    )
    text = page(rows, counts)
    print(text)
    if given.page:
        write_atomic(given.page, text.encode())
