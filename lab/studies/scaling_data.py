"""Examples for trainings side by side: read once, of several kinds, in three parts."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from graphcircuits.io.store import content_hash
from graphcircuits.jobs.runner import runner_of
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example, read
from graphcircuits.training.sources import Source, corpus_sources, language_sources, split

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class ScalingData:
    """Examples by kind: to learn from, to choose the step by, and to measure on."""

    learned: Mapping[str, list[Example]]
    watched: Mapping[str, list[Example]]
    held_out: Mapping[str, list[Example]]

    @property
    def content(self) -> str:
        """What stored results depend on."""
        parts = (self.learned, self.watched, self.held_out)
        return content_hash([{k: [x.case for x in v] for k, v in x.items()} for x in parts])


def find_sources(folders: Mapping[str, Sequence[str]]) -> dict[str, list[Source]]:
    """The sources of each kind, from its folders."""
    return {
        kind: [
            source
            for place in places
            for source in (language_sources if kind == "language" else corpus_sources)(place)
        ]
        for kind, places in folders.items()
        if places
    }


def read_data(
    sources: Mapping[str, Sequence[Source]],
    config: TrainConfig,
    *,
    fold: int,
    validation_fold: int,
    most: int | None,
    held_out: int,
    processes: int = 1,
    kept: Path | None = None,
) -> ScalingData:
    """Read everything once; of what is held out at most so many of a kind, drawn with seed 0."""
    together = [source for found in sources.values() for source in found]
    rest, measured = split(together, fold)
    left, watched = split(rest, validation_fold)

    def examples(chosen: Sequence[Source], limit: int | None) -> dict[str, list[Example]]:
        found = {}
        for kind, own in sources.items():
            there = set(own)
            some = some_of([source for source in chosen if source in there], limit, seed=0)
            result = read(some, config, runner=runner_of(processes), folder=kept)
            for id, why in result.left_out.items():
                log.warning("left out: %s: %s", id, why)
            found[kind] = result.examples
            log.info("%d examples of kind %s read", len(result.examples), kind)
        return found

    return ScalingData(
        examples(left, most), examples(watched, held_out), examples(measured, held_out)
    )


def read_again(
    data: ScalingData, config: TrainConfig, *, processes: int = 1, kept: Path | None = None
) -> ScalingData:
    """The same examples as a predictor of another configuration reads them; subjects are shared.

    What it cannot read is left out.
    """

    def part(by_kind: Mapping[str, list[Example]]) -> dict[str, list[Example]]:
        found = {}
        for kind, examples in by_kind.items():
            sources = [x.source for x in examples if x.source is not None]
            runner = runner_of(processes)
            result = read(sources, config, views=1, judged=False, runner=runner, folder=kept)
            readings = {x.case: x.reading for x in result.examples}
            there = [example for example in examples if example.case in readings]
            found[kind] = [replace(example, reading=readings[example.case]) for example in there]
        return found

    return ScalingData(part(data.learned), part(data.watched), part(data.held_out))


def some_of(items: Sequence[Any], count: int | None, seed: int) -> list[Any]:
    """Some of the items at random, in their order; more of them contain fewer."""
    order = list(range(len(items)))
    Random(seed).shuffle(order)
    return [items[place] for place in sorted(order[:count])]
