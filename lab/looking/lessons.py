"""Lessons of many sources, in files: refined once, looked at once in every round.

1. Sources make jobs of one fold: all tasks of a language model, or some subjects of a corpus.
2. `refine_job` refines the cases of a job.
3. `look_job` reads them again, looks at their proposals, or at what some lookers make of these, and
   puts the refined values beside it: a file of lessons.
4. `read_lessons` gives the lessons of some sources.

Files that are there are kept. Jobs are independent of each other: a runner works on them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path

import torch

from graphcircuits.graph import ComponentGraph
from graphcircuits.io.store import content_hash, load_artifact, save_artifact
from graphcircuits.methods.shipped import shipped
from graphcircuits.predictor.looker import Looker
from graphcircuits.predictor.model import structure_of
from graphcircuits.training.sources import Source
from lab.looking.cases import LookTraining, look_again, look_one_by_one, read_cases
from lab.looking.learn import Lesson
from lab.looking.targets import refined

REFINED, LESSONS = "refined-values", "looking-lessons"
TOGETHER = 32
"""Subjects of a corpus in a job."""


@dataclass(frozen=True)
class Shop:
    """What all jobs share."""

    folder: Path
    """Of files."""
    config: LookTraining
    device: str = "cpu"


Job = tuple[Source, ...]


def jobs_of(sources: Iterable[Source]) -> list[Job]:
    """All tasks of each language model, and subjects of each corpus and fold some at a time."""
    jobs: list[Job] = []
    ordered = sorted(sources, key=lambda x: (x.path, x.folds[:1]))
    for (whole, *_), some in groupby(ordered, lambda x: (x.order is None, x.path, x.folds[:1])):
        own = list(some)
        size = len(own) if whole else TOGETHER
        jobs += [tuple(own[start : start + size]) for start in range(0, len(own), size)]
    return jobs


def _about(shop: Shop, job: Job) -> list[object]:
    config = asdict(shop.config)
    return [[source.id for source in job], *(config[x] for x in ("read", "judged", "refined"))]


# Refining


def refined_path(shop: Shop, job: Job) -> Path:
    """The file of a job's refined values."""
    return shop.folder / "refined" / f"{content_hash(_about(shop, job))[:16]}.safetensors"


def refine_job(shop: Shop, job: Job) -> Iterator[str]:
    """Refine the cases of a job into its file, and say what became of them."""
    path = refined_path(shop, job)
    if path.is_file():
        return
    groups, left_out = read_cases(job, shop.config, device=shop.device)
    tensors, areas = {}, {}
    for group in groups:
        values, both = refined(group.stack, group.starts, shop.config.refined)
        for source, row, own in zip(group.sources, values.cpu(), both.T.tolist(), strict=True):
            tensors[source.id], areas[source.id] = row.half(), own
    meta = {"areas": areas, "left_out": left_out}
    save_artifact(path, kind=REFINED, config={}, seed=0, tensors=tensors, meta=meta)
    if areas:
        first, last = (sum(x[i] for x in areas.values()) / len(areas) for i in (0, 1))
        yield f"{job[0].path}: {len(areas)} cases, log area {first:.3f} to {last:.3f}"
    for id, why in left_out.items():
        yield f"left out: {id}: {why}"


# Looking


def lessons_path(shop: Shop, job: Job, number: int) -> Path:
    """The file of a job's lessons of a round."""
    config = shop.config
    about = [*_about(shop, job), config.looker.sizes, config.looked]
    if number:
        about += [asdict(config)]
    return shop.folder / "lessons" / f"{number}-{content_hash(about)[:16]}.safetensors"


def look_job(
    shop: Shop, job: Job, number: int = 0, lookers: Sequence[Looker] = ()
) -> Iterator[str]:
    """Write what a look at the refined cases of a job says, after so many rounds of lookers."""
    path = lessons_path(shop, job, number)
    if path.is_file() or not refined_path(shop, job).is_file():
        return
    lookers = [looker.to(shop.device) for looker in lookers]
    values = load_artifact(refined_path(shop, job), REFINED).tensors
    there = [source for source in job if source.id in values]
    groups, _ = read_cases(there, shop.config, device=shop.device) if there else ([], {})
    tensors, about = {}, []
    for place, group in enumerate(groups):
        for _ in range(number):
            after = look_again(group, group.starts, lookers, shop.config)
            group = replace(group, starts=after)
        nothing = torch.zeros(group.graph.n_edges, dtype=torch.bool)
        known = [circuit is not None for circuit in group.circuits]
        tensors |= {
            f"{place}.tables": group.tables.half(),
            f"{place}.looks": look_one_by_one(group, group.starts, shop.config).half(),
            f"{place}.values": group.starts,
            f"{place}.targets": torch.stack([values[x.id].float() for x in group.sources]),
            f"{place}.circuits": torch.stack(
                [nothing if circuit is None else circuit.cpu() for circuit in group.circuits]
            ),
        }
        names = [source.id for source in group.sources]
        about.append({"sources": names, "known": known, "graph": asdict(group.graph)})
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
    save_artifact(path, kind=LESSONS, config={}, seed=0, tensors=tensors, meta={"groups": about})
    yield f"{job[0].path}: looked at {len(there)} cases after {number} rounds"


def read_lessons(
    shop: Shop, sources: Iterable[Source], jobs: Sequence[Job], number: int
) -> list[Lesson]:
    """The lessons of these sources, as far as they were refined, from the files of the jobs."""
    wanted = {source.id for source in sources}
    lessons = []
    for job in jobs:
        by_id = {source.id: source for source in job}
        path = lessons_path(shop, job, number)
        if not by_id.keys() & wanted or not path.is_file():
            continue
        artifact = load_artifact(path, LESSONS)
        for place, about in enumerate(artifact.meta["groups"]):
            tensors = {
                name: artifact.tensors[f"{place}.{name}"]
                for name in ("tables", "looks", "values", "targets")
            }
            graph, circuits = (
                ComponentGraph(**about["graph"]),
                artifact.tensors[f"{place}.circuits"],
            )
            lesson = Lesson(
                tuple(by_id[id] for id in about["sources"]),
                graph,
                structure_of(graph, shipped("default").config),
                circuits=tuple(
                    row if known else None
                    for row, known in zip(circuits, about["known"], strict=True)
                ),
                **tensors,
            )
            index = [place for place, id in enumerate(about["sources"]) if id in wanted]
            lessons += [lesson.of(index)] if index else []
    return lessons
