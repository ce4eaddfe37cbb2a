"""Which subjects a corpus has, and which of them train side by side: the same plan everywhere.

1. Each fleet asked for takes its subjects evenly from the architectures. In each of them come first
   the listed programs of the pool, then random ones, dealt out in turn so that no two architectures
   have the same. Models of several tasks are dealt out likewise, and again from the next seed when
   all have had their turn. No program of the test split is ever planned.
2. A program whose circuit an architecture cannot hold is passed over where circuits are planted,
   and so is one whose sizes hardly any other has: a fleet of its own takes as long as a full one.
3. Subjects of one fleet, architecture and depth make shards, cut evenly, like sizes together. The
   first shard of every kind comes before the second of any, so that a corpus that was stopped
   early has a bit of everything.

What a program is takes a while to find out, so worker processes do it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice

from graphcircuits.cases import case_ids
from graphcircuits.cases.architectures import UnfitError, misfit, subject_config
from graphcircuits.cases.case import Case
from graphcircuits.cases.collection import Member, Shard
from graphcircuits.cases.multitask import MultiCase, multi_ids
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import find_case
from graphcircuits.cases.random_programs import random_ids
from graphcircuits.jobs.processes import in_order
from graphcircuits.rasp.layout import complete_edges
from graphcircuits.subject.components import graph_of
from graphcircuits.subject.layers import TransformerConfig, weight_shapes
from lab.factory.shards import COUNTS, CorpusConfig

RARE = 0.25
"""Sizes that fewer subjects have than this share of the mean are passed over."""
ABOUT = 1500
"""Bytes that a report, a configuration and a codec take in a shard, roughly."""
NAME = 110
"""Bytes that the name, shape and place of one weight take."""
BLOCK = 256
"""Random programs drawn at once."""
PATIENCE = 1000
"""Programs in turn that an architecture may fail to hold."""


@dataclass(frozen=True)
class _Sized:
    """What a program is in one architecture."""

    config: TransformerConfig
    holds: bool
    """Whether its circuit can be planted there."""

    def suits(self, fleet: str, widest: int | None) -> bool:
        narrow = widest is None or self.config.d_model <= widest
        return narrow and (self.holds or fleet == "natural")


@dataclass(frozen=True)
class _Program:
    """What planning knows about a program, or about several that share a model."""

    id: str
    fold: int | None
    group: str | None
    n_layers: int
    sized: Mapping[str, _Sized]
    """By architecture; those that cannot have its heads are missing."""


@dataclass(frozen=True)
class _Candidate:
    order: Order
    program: _Program

    @property
    def config(self) -> TransformerConfig:
        return self.program.sized[self.order.architecture].config

    @property
    def kind(self) -> tuple[object, ...]:
        """What all members of a shard share; fleets with rotated heads are of one width."""
        config = self.config
        width = config.d_head if config.positions == "rotary" else 0
        return (config.n_layers, config.n_heads, width)


def plan(config: CorpusConfig, processes: int = 1) -> tuple[Shard, ...]:
    """The shards of a corpus, in the order in which they are made."""
    listed = case_ids(split="pool")
    several = config.multitask > 0 or config.natural_multitask > 0
    models = multi_ids("pool") if several else []
    ids = chain(listed, models, _random_ids(config.layers))
    look_up = partial(_program, architectures=config.architectures)
    with closing(in_order(processes, look_up, ids, ahead=BLOCK)) as programs:
        of_listed = list(islice(programs, len(listed)))
        of_models = list(islice(programs, len(models)))
        shards = _shards(config, of_listed, of_models, programs)
    return tuple(shard for _, shard in sorted(shards, key=lambda item: (item[0], item[1].name)))


def _random_ids(layers: int) -> Iterator[str]:
    """Random programs of the pool, without end."""
    for known in count(0, BLOCK):
        yield from random_ids("pool", known + BLOCK, layers=layers)[known:]


def _shards(
    config: CorpusConfig,
    listed: Sequence[_Program],
    models: Sequence[_Program],
    random: Iterator[_Program],
) -> list[tuple[int, Shard]]:
    """All shards, each with its number among those of its kind."""
    names = config.architectures
    shallow = [program for program in listed if program.n_layers <= config.layers]
    deal = _Deal(len(names), random)
    shards: list[tuple[int, Shard]] = []
    for what in COUNTS:
        fleet, several = _fleet_of(what), what.endswith("multitask")
        for place, architecture in enumerate(names):
            quota = getattr(config, what) // len(names)
            quota += place < getattr(config, what) % len(names)
            if several:
                first = place * len(models) // len(names)
                turned = [*models[first:], *models[:first]]
                turns = ((seed, program) for seed in count(config.seed) for program in turned)
            else:
                programs = chain(shallow, deal.hand(place))
                turns = ((config.seed, program) for program in programs)
            widest = None if several else config.width
            found = _candidates(turns, fleet, architecture, widest)
            chosen = _chosen(found, quota)
            stem = f"{fleet}-multitask" if several else fleet
            shards += _cut(chosen, f"{stem}-{architecture}", config.shard)
    return shards


def _fleet_of(what: str) -> str:
    return {"multitask": "planted", "natural_multitask": "natural"}.get(what, what)


# --- which programs ------------------------------------------------------------------------------


def _candidates(
    turns: Iterable[tuple[int, _Program]], fleet: str, architecture: str, widest: int | None
) -> Iterator[_Candidate]:
    """Subjects of the programs that the architecture can have, as they come, each once."""
    taken: set[str] = set()
    passed_over = 0
    for seed, program in turns:
        order = Order(program.id, fleet, architecture, seed)
        sized = program.sized.get(architecture)
        if order.id not in taken and sized is not None and sized.suits(fleet, widest):
            taken.add(order.id)
            passed_over = 0
            yield _Candidate(order, program)
        else:
            passed_over += 1
        if passed_over == PATIENCE:
            raise ValueError(
                f"only {len(taken)} {fleet} subjects of {architecture} can be had, the next "
                f"{PATIENCE} programs do not fit; ask for fewer, or leave {architecture} out."
            )


def _chosen(candidates: Iterator[_Candidate], quota: int) -> list[_Candidate]:
    """The first candidates, but for those of sizes that hardly any other has."""
    first = list(islice(candidates, quota))
    kinds = Counter(candidate.kind for candidate in first)
    least = RARE * quota / max(1, len(kinds))
    kept = [candidate for candidate in first if kinds[candidate.kind] >= least]
    common = (candidate for candidate in candidates if kinds[candidate.kind] >= least)
    return kept + list(islice(common, quota - len(kept)))


class _Deal:
    """Programs that go to the architectures in turn; taken when asked for."""

    def __init__(self, n_architectures: int, programs: Iterator[_Program]) -> None:
        self._n_architectures, self._programs = n_architectures, programs
        self._drawn: list[_Program] = []

    def hand(self, place: int) -> Iterator[_Program]:
        """Those that one architecture gets, without end."""
        for turn in count(place, self._n_architectures):
            while turn >= len(self._drawn):
                self._drawn.append(next(self._programs))
            yield self._drawn[turn]


def _program(id: str, architectures: Sequence[str]) -> _Program:
    case = find_case(id)
    if case.split != "pool":
        raise ValueError(f"{id} stands in the split {case.split!r}; a corpus is made of the pool.")
    tasks = case.tasks if isinstance(case, MultiCase) else (case,)
    sized = {}
    for architecture in architectures:
        with suppress(UnfitError):
            config = subject_config(case, architecture)
            sized[architecture] = _Sized(config, all(_holds(task, config) for task in tasks))
    return _Program(id, case.fold, tasks[0].group, case.subject_dims.n_layers, sized)


def _holds(case: Case, config: TransformerConfig) -> bool:
    """Whether the program's circuit has a place in a transformer of this configuration."""
    components = [component.name for component in case.layout.components]
    edges = complete_edges(case.layout)
    return misfit(case.id, components, edges, graph_of(config)) is None


# --- which of them side by side ------------------------------------------------------------------


def _cut(chosen: Sequence[_Candidate], stem: str, limit: int) -> list[tuple[int, Shard]]:
    """Shards of subjects of one kind, each with its number among those of one depth."""
    groups: dict[tuple[object, ...], list[_Candidate]] = {}
    for candidate in chosen:
        groups.setdefault(candidate.kind, []).append(candidate)
    numbers: Counter[object] = Counter()
    shards = []
    for kind in sorted(groups, key=lambda kind: (-len(groups[kind]), str(kind))):
        # Padding goes up to the largest of a shard.
        ordered = sorted(groups[kind], key=lambda c: (c.config.d_model, c.config.n_ctx, c.order))
        size = math.ceil(len(ordered) / math.ceil(len(ordered) / limit))
        for start in range(0, len(ordered), size):
            layers = ordered[start].config.n_layers
            some = ordered[start : start + size]
            members = (Member(c.order, c.program.fold, c.program.group) for c in some)
            name = f"{stem}-{layers}-{numbers[layers]}"
            n_bytes = sum(_bytes(candidate.config) for candidate in some)
            shards.append((numbers[layers], Shard(name, tuple(members), n_bytes)))
            numbers[layers] += 1
    return shards


def _bytes(config: TransformerConfig) -> int:
    """About what a subject takes on disk, in half precision."""
    shapes = weight_shapes(config).values()
    return ABOUT + sum(NAME + 2 * math.prod(shape) for shape in shapes)
