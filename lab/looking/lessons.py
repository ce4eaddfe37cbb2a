"""Lessons of many sources: refined once into files, read again whenever something learns from them.

1. Sources make jobs: all tasks of a language model, or some subjects of a corpus.
2. `refine_job` refines the cases of a job into a file of the folder, unless it is there.
3. `lessons_of` reads the cases of a job again, looks at their proposals, and puts the refined
   values beside them.

Jobs are independent of each other: a runner works on them, on a GPU or not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import torch

from graphcircuits.io.store import content_hash, load_artifact, save_artifact
from graphcircuits.training.sources import Source
from lab.looking.cases import LookTraining, look_at, read_cases
from lab.looking.learn import Lesson
from lab.looking.targets import refined

KIND = "refined-values"
TOGETHER = 32
"""Subjects of a corpus in a job."""


@dataclass(frozen=True)
class Shop:
    """What all jobs share."""

    folder: Path
    """Of refined values."""
    config: LookTraining
    device: str = "cpu"


Job = tuple[Source, ...]


def jobs_of(sources: Sequence[Source]) -> list[Job]:
    """All tasks of each language model, and subjects of each corpus some at a time."""
    jobs: list[Job] = []
    for (order, _), some in groupby(sources, lambda x: (x.order is None, x.path)):
        own = list(some)
        size = len(own) if order else TOGETHER
        jobs += [tuple(own[start : start + size]) for start in range(0, len(own), size)]
    return jobs


def refined_path(shop: Shop, job: Job) -> Path:
    """The file of a job's refined values."""
    config = asdict(shop.config)
    about = [[source.id for source in job], *(config[x] for x in ("read", "judged", "refined"))]
    return shop.folder / f"{content_hash(about)[:16]}.safetensors"


def refine_job(shop: Shop, job: Job) -> Iterator[str]:
    """Refine the cases of a job into its file, and say what became of them."""
    path = refined_path(shop, job)
    if path.is_file():
        yield f"{path} is there"
        return
    groups, left_out = read_cases(job, shop.config, device=shop.device)
    tensors, areas = {}, {}
    for group in groups:
        values, both = refined(group.stack, group.starts, shop.config.refined)
        for source, row, own in zip(group.sources, values.cpu(), both.T.tolist(), strict=True):
            tensors[source.id], areas[source.id] = row.half(), own
    save_artifact(
        path,
        kind=KIND,
        config={},
        seed=0,
        tensors=tensors,
        meta={"areas": areas, "left_out": left_out},
    )
    if areas:
        first, last = (sum(x[i] for x in areas.values()) / len(areas) for i in (0, 1))
        yield f"{job[0].path}: {len(areas)} cases, log area {first:.3f} to {last:.3f}"
    for id, why in left_out.items():
        yield f"left out: {id}: {why}"


def lessons_of(shop: Shop, job: Job) -> Iterator[Lesson]:
    """The cases of a job that were refined, and what a look at their proposals says."""
    tensors = load_artifact(refined_path(shop, job), KIND).tensors
    there = [source for source in job if source.id in tensors]
    groups, _ = read_cases(there, shop.config, device=shop.device)
    sizes, prompts = shop.config.looker.sizes, shop.config.looked
    for group in groups:
        look = torch.cat(
            [
                look_at(group.stack.subset([case]), group.starts[case, None], sizes, prompts)
                for case in range(len(group))
            ]
        )
        yield Lesson(
            group.sources,
            group.graph,
            group.structure.to("cpu"),
            group.tables.half().cpu(),
            look.half().cpu(),
            group.starts.cpu(),
            torch.stack([tensors[source.id].float() for source in group.sources]),
            group.circuits,
        )
