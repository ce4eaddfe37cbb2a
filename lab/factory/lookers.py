"""The networks that look, for the predictors that ship, made by one command.

1. Sources are the folders that are named: corpora of `python -m lab.factory corpus`, and folders of
   language models or of tasks that `python -m lab.factory mine` found for them.
2. The proposal of every case is refined (`lab.looking.targets`): this is what takes long, and with
   --until refined it is all that happens, on a machine with a GPU say. What is not refined when
   --minutes are over is judged, but not learned from.
3. The looker of `default` learns from all cases, that of `fold-K` from what shares neither program
   nor model with fold K. First they learn from looks at the proposals alone; where these lookers
   leave the cases of the fold that they have not seen, there is the second look, and from both all
   six learn anew.
4. Every fold is judged by the file that has not seen it, on prompts of their own: edges for .9 of
   the output, by EAP-IG, EAP-IG along paths, and `gcl` without looking and with.
5. The files in --predictors, those that ship by default, get their lookers, what was measured, and
   the kinds of subjects on which looking needs the fewest edges. They record this command, the
   settings, and the hash of every folder. If these are language models alone only `default` is
   written, since the others are for cases of the package.

Refined values, lookers and judged tasks lie in FOLDER/work: what was cut off goes on from there.

python -m lab.factory lookers FOLDER --corpus DIR[,DIR] --language DIR[,DIR] [--processes 2]
    [--until refined] [--device cuda]
"""

import argparse
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from graphcircuits.cases import N_FOLDS
from graphcircuits.io.files import read_json, write_json
from graphcircuits.io.store import content_hash, load_artifact, save_artifact
from graphcircuits.jobs.command import driver_command
from graphcircuits.jobs.runner import Runner, runner_of
from graphcircuits.methods.shipped import FOLDER, SHIPPED
from graphcircuits.predictor.ensemble import KIND as PREDICTOR
from graphcircuits.predictor.ensemble import Ensemble, load_ensemble, save_ensemble
from graphcircuits.predictor.looker import Looker
from graphcircuits.training.facts import FEWEST
from graphcircuits.training.sources import Source, plan_sources, split
from lab.factory.crossfit import draw, held_out
from lab.factory.predictors import code_hash, describe_all
from lab.looking.cases import LookTraining
from lab.looking.judge import ENOUGH, LOOKING, PLAIN, RIVAL, geometric, judge_job
from lab.looking.learn import train_looker
from lab.looking.lessons import Job, Shop, jobs_of, lessons_path, look_job, read_lessons, refine_job
from lab.programs import parser

log = logging.getLogger(__name__)

KIND = "looker"
WORK = "work"
LEARNED_ROUNDS = 2
"""Rounds whose looks are learned from; rankings after the second are much like those before."""


@dataclass(frozen=True)
class Making:
    """What is made, of what."""

    folder: Path
    given: Path
    """Where the predictors lie."""
    sources: tuple[Source, ...]
    shop: Shop
    seeds: int
    """Lookers of each predictor."""
    most: int
    """Tasks of a kind that each fold is judged by."""

    @property
    def jobs(self) -> list[Job]:
        return jobs_of(self.sources)

    def predictor(self, name: str) -> Ensemble:
        """The predictor that a looker goes with."""
        return load_ensemble(self.given / f"{name}.safetensors")

    def learned(self, name: str) -> Sequence[Source]:
        """What the looker of a predictor learns from."""
        if name == "default":
            return self.sources
        return split(self.sources, SHIPPED.index(name) - 1)[0]


# Training

Pupil = tuple[str, int, int]
"""The name of a predictor, a seed, and how many rounds of looks its looker learns from."""


def train(making: Making, pupil: Pupil) -> Iterator[str]:
    """Train one looker into the folder of work, if it is not there."""
    name, seed, rounds = pupil
    path, config, learned = _path(making, pupil), making.shop.config, making.learned(name)
    files = [lessons_path(making.shop, job, x) for x in range(rounds) for job in making.jobs]
    about = {
        "training": asdict(config),
        "sources": [source.id for source in learned],
        "lessons": [file.name for file in files if file.is_file()],
    }
    if path.is_file() and load_artifact(path, KIND).config == about:
        return
    lessons = [
        lesson
        for number in range(rounds)
        for lesson in read_lessons(making.shop, learned, making.jobs, number)
    ]
    looker = train_looker(lessons, config, seed=seed)
    counts = {"lessons": sum(map(len, lessons)), "groups": len(lessons)}
    tensors = dict(looker.state_dict())
    save_artifact(path, kind=KIND, config=about, seed=seed, tensors=tensors, meta=counts)
    yield f"{path}: learned from {counts['lessons']} looks at cases"


def _path(making: Making, pupil: Pupil) -> Path:
    name, seed, rounds = pupil
    return making.folder / WORK / f"{name}-{seed}-{rounds}.safetensors"


def trained(making: Making, pupil: Pupil) -> Looker:
    """A looker that `train` wrote."""
    tensors, config = load_artifact(_path(making, pupil), KIND).tensors, making.shop.config.looker
    looker = Looker(config, tensors["mean"].numel() - config.columns)
    looker.load_state_dict(tensors)
    return looker.eval().requires_grad_(False)


def lookers_of(making: Making, name: str) -> tuple[Looker, ...]:
    """The lookers that go with a predictor."""
    rounds = min(making.shop.config.looker.rounds, LEARNED_ROUNDS)
    return tuple(trained(making, (name, seed, rounds)) for seed in range(making.seeds))


def look_further(making: Making, job: Job) -> Iterator[str]:
    """Lessons of the second round: where a looker left a case that it had not learned from."""
    name = f"fold-{job[0].folds[0]}"
    yield from look_job(making.shop, job, 1, [trained(making, (name, 0, 1))])


def learn(making: Making, runner: Runner) -> None:
    """Look, and train all lookers."""
    rounds = min(making.shop.config.looker.rounds, LEARNED_ROUNDS)
    pupils = [(name, seed, rounds) for seed in range(making.seeds) for name in SHIPPED]
    _say(runner.run(partial(look_job, making.shop), making.jobs))
    if rounds > 1:
        folds = sorted({job[0].folds[0] for job in making.jobs})
        _say(runner.run(partial(train, making), [(f"fold-{fold}", 0, 1) for fold in folds]))
        _say(runner.run(partial(look_further, making), making.jobs))
    _say(runner.run(partial(train, making), pupils))


def _say(words: Iterable[str]) -> None:
    for each in words:
        log.info("%s", each)


# Judging


def judge(making: Making, job: Job) -> Iterator[dict[str, Any]]:
    """Edges for ENOUGH of the output by every method, of tasks of one fold."""
    name = f"fold-{job[0].folds[0]}"
    about = [
        [x.id for x in job],
        *(x.state_dict()["readout.weight"] for x in lookers_of(making, name)),
    ]
    path = making.folder / WORK / "judged" / f"{content_hash(*about)[:16]}.json"
    if not path.is_file():
        write_json(path, {"rows": list(judge_job(making.shop, job, lookers_of(making, name)))})
    yield from read_json(path)["rows"]


Edges = Mapping[str, float]
"""By method."""


def geometric_means(rows: Sequence[Mapping[str, Any]]) -> dict[str, Edges]:
    """By kind of subject the geometric means of edges, of kinds with FEWEST rows or more."""
    found: dict[str, Edges] = {}
    for kind in sorted({row["kind"] for row in rows}):
        some = [row["edges"] for row in rows if row["kind"] == kind]
        if len(some) >= FEWEST:
            found[kind] = {label: geometric([x[label] for x in some]) for label in some[0]}
    return found


def kinds_won(edges: Mapping[str, Edges]) -> tuple[str, ...]:
    """The kinds of subjects on which looking needs the fewest edges."""
    return tuple(kind for kind, x in edges.items() if x[LOOKING] < min(x[PLAIN], x[RIVAL]))


def ratio_words(rows: Sequence[Mapping[str, Any]], kind: str) -> str:
    """The ratio of edges by looking to those of EAP-IG along paths, with 95% over tasks."""
    logs = [
        math.log(row["edges"][LOOKING] / row["edges"][RIVAL]) for row in rows if row["kind"] == kind
    ]
    middle = mean(logs)
    error = 1.96 * math.sqrt(sum((x - middle) ** 2 for x in logs) / (len(logs) - 1) / len(logs))
    low, high = (math.exp(middle + way * error) for way in (-1, 1))
    worse = sum(x > math.log(1.2) for x in logs)
    return (
        f"{math.exp(middle):.2f} [{low:.2f}, {high:.2f}] of {RIVAL}, {worse} of {len(logs)} "
        "above 1.2"
    )


# All of it


def make(
    making: Making, folders: Sequence[Path], runner: Runner
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Train, judge and write; what was judged, and the kinds of subjects on which looking won."""
    about = describe_all(folders)
    learn(making, runner)
    drawn = [
        job
        for fold in range(N_FOLDS)
        for job in jobs_of(draw(held_out(making.sources, fold), making.most, fold))
    ]
    rows = list(runner.run(partial(judge, making), drawn))
    edges = geometric_means(rows)
    kinds = kinds_won(edges)
    training = asdict(making.shop.config) | {"seeds": making.seeds}
    hashes = {name: {x: own[x] for x in ("sha256", "command")} for name, own in about.items()}
    looking = {"training": training, "corpora": hashes, "code": code_hash()}
    looking["command"] = driver_command()
    # Cases of the package are scored by the files of folds, and none of them is a language model.
    names = SHIPPED if {*kinds} - {"language"} else ("default",)
    for name in names:
        ensemble = making.predictor(name)
        measured = {
            kind: dict(ensemble.measured.get(kind, {}))
            | ({"edges": dict(edges[kind])} if kind in edges else {})
            for kind in {*ensemble.measured, *edges}
        }
        made = replace(
            ensemble,
            lookers=lookers_of(making, name),
            looks=kinds,
            origin={**ensemble.origin, "measured": measured, "looking": looking},
            # A kind's probabilities were of logits without looking.
            calibration={k: x for k, x in ensemble.calibration.items() if k not in kinds},
        )
        before = load_artifact(making.given / f"{name}.safetensors", PREDICTOR)
        path = making.folder / f"{name}.safetensors"
        save_ensemble(path, made, seed=before.seed, command=before.command)
    return sorted(rows, key=lambda row: row["id"]), kinds


def command_words() -> argparse.ArgumentParser:
    """Of the command that the files record."""
    words = parser("lab.factory lookers", __doc__)
    words.add_argument("folder", type=Path, help="for the files")
    words.add_argument("--corpus", default="", help="folders with commas between")
    words.add_argument("--language", default="", help="folders of models or mined tasks, likewise")
    words.add_argument("--predictors", type=Path, help="a folder of six; else those that ship")
    words.add_argument("--minutes", type=float, help="refine nothing more after so long")
    words.add_argument("--until", choices=("refined",), help="stop when rankings are refined")
    words.add_argument("--steps", type=int, help="of training, instead of the usual number")
    words.add_argument("--refine", type=int, help="steps of refining, instead of the usual number")
    words.add_argument("--rounds", type=int, help="of looking, instead of the usual number")
    words.add_argument("--seeds", type=int, default=1, help="lookers of each predictor")
    words.add_argument("--most", type=int, default=24, help="tasks of a kind to judge by, a fold")
    words.add_argument("--processes", type=int, default=1, help="that refine, read and judge")
    words.add_argument("--device", default="cpu", help="that subjects run on")
    return words


def main(arguments: Sequence[str]) -> None:
    """Make the files."""
    given = command_words().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    corpora, languages = (
        [Path(folder) for folder in folders.split(",") if folder]
        for folders in (given.corpus, given.language)
    )
    config = LookTraining()
    if given.steps:
        config = replace(config, train=replace(config.train, steps=given.steps))
    if given.refine:
        config = replace(config, refined=given.refine)
    if given.rounds:
        config = replace(config, looker=replace(config.looker, rounds=given.rounds))
    plan = plan_sources(None, corpus=corpora, language=languages)
    sources, runner = tuple(plan.learned), runner_of(given.processes)
    shop = Shop(given.folder / WORK, config, given.device)
    end = math.inf if given.minutes is None else time.monotonic() + 60 * given.minutes
    jobs = (job for job in jobs_of(sources) if time.monotonic() < end)
    _say(runner.run(partial(refine_job, shop), jobs))
    if given.until:
        return
    predictors = given.predictors or Path(str(FOLDER))
    making = Making(given.folder, predictors, sources, shop, given.seeds, given.most)
    rows, kinds = make(making, [*corpora, *languages], runner)
    for kind, edges in geometric_means(rows).items():
        words = ", ".join(f"{label} {value:.1f}" for label, value in edges.items())
        log.info("%s: edges for %g: %s; gcl needs %s", kind, ENOUGH, words, ratio_words(rows, kind))
    log.info("gcl looks on: %s", ", ".join(kinds) or "no subjects")
