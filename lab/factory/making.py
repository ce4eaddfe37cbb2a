"""Make the shards of a corpus, one after the other or several at once, and measure them again.

1. `begin` reads the manifest of the folder, or plans the corpus and writes one, and sees which
   shards are there and whole.
2. `make` trains the others. Worker processes compute the data of the next shards meanwhile. Each
   shard is verified on unseen inputs as it is stored, written whole or not at all, and read back;
   then the manifest is written. A shard depends on nothing but its orders and the settings, so a
   corpus that was stopped, killed or out of disk goes on and ends with the same bytes.
3. `measure_again` reads finished shards and measures every subject once more.

With several fleets at once each trains in a thread of its own, on a GPU in a stream of its own: a
fleet of small subjects leaves most of a large GPU idle.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch

from graphcircuits.cases.collection import (
    MANIFEST,
    CorpusEntry,
    FinishedShard,
    LoadedShard,
    Shard,
    load_shard,
)
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import BuildConfig, Data, Prepared, prepared
from graphcircuits.cases.subjects import train_together, training, verified
from graphcircuits.fleets.recipes import SiitConfig, recipe
from graphcircuits.fleets.verify import verify_fleet
from graphcircuits.io.store import StoreError
from lab.factory.plan import plan
from lab.factory.shards import (
    CorpusConfig,
    Manifest,
    ShardContent,
    check_settings,
    read_manifest,
    still_there,
    write_manifest,
    write_shard,
)

log = logging.getLogger(__name__)

SLACK = 0.005
"""How far an accuracy may be off when it is measured again, on another machine perhaps."""

ShardProgress = Callable[[str, int, int, int], None]
"""Called with a shard's name, the step, subjects that passed, subjects in all."""


def begin(folder: Path, config: CorpusConfig | None = None, processes: int = 1) -> Manifest:
    """The manifest of the folder with the shards that are whole; a new one where there is none.

    Without settings those of the folder are taken. A folder of others is refused.
    """
    if config is not None and not (folder / MANIFEST).exists():
        manifest = Manifest(config, plan(config, processes))
    else:
        manifest = read_manifest(folder)
        check_settings(folder, manifest, config or manifest.config)
    manifest = still_there(folder, manifest)
    write_manifest(folder, manifest)
    return manifest


def make(
    folder: Path,
    manifest: Manifest,
    *,
    device: str = "cpu",
    processes: int = 1,
    together: int = 1,
    progress: ShardProgress | None = None,
    deadline: float = math.inf,
) -> Iterator[tuple[Shard, FinishedShard]]:
    """Train the shards that the manifest lacks; gives each when it is on disk.

    `together` fleets train at once, which changes nothing but the time. No shard is begun after
    `deadline`, a time of `time.monotonic`, and one that is not done by then is given up.
    """
    settings, kept = manifest.config, dict(manifest.kept)
    build = settings.build
    unmade = manifest.unfinished
    orders = [order for shard in unmade for order in shard.orders]
    running: dict[Future[ShardContent | None], Shard] = {}

    def written(leave: int) -> Iterator[tuple[Shard, FinishedShard]]:
        """Write what is done, until no more than so many are under way."""
        while len(running) > leave:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                shard, content = running.pop(future), future.result()
                if content is None:
                    continue
                kept[shard.name] = write_shard(folder, shard, settings, content)
                write_manifest(folder, manifest.keeping(kept))
                yield shard, kept[shard.name]

    with closing(prepared(orders, build, processes)) as stream, _Threads(together) as threads:
        for shard in unmade:
            if time.monotonic() >= deadline:
                break
            found = dict(islice(stream, len(shard.members)))
            tell = threads.telling(shard.name, progress)
            work = _Training(shard, found, settings, device, tell, deadline)
            running[threads.submit(work)] = shard
            # One more than train: its data are there when one of them is done.
            yield from written(leave=together if together > 1 else 0)
        yield from written(leave=0)


@dataclass(frozen=True, eq=False)
class _Training:
    """One shard's training; called, it gives what came of it, or None if time ran out."""

    shard: Shard
    found: Mapping[Order, Prepared]
    settings: CorpusConfig
    device: str
    progress: Callable[[int, int, int], None]
    deadline: float

    def __call__(self) -> ShardContent | None:
        began = time.monotonic()
        data = {order: one for order, one in self.found.items() if isinstance(one, Data)}
        refused = {order.id: one for order, one in self.found.items() if isinstance(one, str)}
        if not data:
            return ShardContent({}, {}, refused)
        first = next(iter(data))
        build = build_of(self.settings, first.fleet)
        with _own_stream(self.device):
            trained = train_together(
                data,
                training(first, build.siit),
                self.settings.seed,
                device=self.device,
                progress=self.progress,
                deadline=self.deadline,
            )
            if any(one.cut_short for one in trained):
                log.warning("out of time: shard %s is given up", self.shard.name)
                return None
            made = verified(trained, data, build, self.device)
        log.info("shard %s: %.0f s", self.shard.name, time.monotonic() - began)
        return ShardContent(
            {one.order.id: one.subject for one in made if one.passed},
            {one.order.id: {**one.report, "device": _kind(self.device)} for one in made},
            refused,
        )


def build_of(settings: CorpusConfig, fleet: str) -> BuildConfig:
    """How the subjects of a fleet are built."""
    if settings.steps is None:
        return settings.build
    siit = settings.build.siit or recipe(fleet)
    return replace(settings.build, siit=replace(siit, steps=settings.steps))


def training_of(settings: CorpusConfig, shard: Shard) -> SiitConfig:
    """How the subjects of a shard are trained."""
    order = shard.orders[0]
    return training(order, build_of(settings, order.fleet).siit)


def _kind(device: str) -> str:
    return torch.device(device).type


# --- several at once -----------------------------------------------------------------------------


class _Stopped(Exception):
    """Raised inside a training that nobody waits for any more."""


class _Threads:
    """Runs trainings: here and now, or in threads, which stop at a check on the way out."""

    def __init__(self, together: int) -> None:
        self._pool = ThreadPoolExecutor(together) if together > 1 else None
        self._stop = threading.Event()

    def __enter__(self) -> "_Threads":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def submit(self, work: Callable[[], ShardContent | None]) -> Future[ShardContent | None]:
        if self._pool is not None:
            return self._pool.submit(work)
        future: Future[ShardContent | None] = Future()
        future.set_result(work())
        return future

    def telling(self, name: str, progress: ShardProgress | None) -> Callable[[int, int, int], None]:
        """What a training reports to, which is also what stops it."""

        def tell(step: int, passed: int, total: int) -> None:
            if self._stop.is_set():
                raise _Stopped
            if progress is not None:
                progress(name, step, passed, total)

        return tell


@contextmanager
def _own_stream(device: str) -> Iterator[None]:
    """On a GPU, a stream for this thread: work of other threads goes on beside it."""
    if _kind(device) != "cuda":
        yield
        return
    with torch.cuda.device(torch.device(device)), torch.cuda.stream(torch.cuda.Stream()):
        yield


# --- measured again ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remeasured:
    """A finished shard, read and measured again."""

    shard: str
    subjects: int
    accuracy: float | None
    """The lowest; None where nothing was measured."""
    problems: tuple[str, ...]
    """What is not as it was; none if all is well."""


def measure_again(folder: Path, *, device: str = "cpu", processes: int = 1) -> Iterator[Remeasured]:
    """Read every finished shard and measure its subjects on the unseen inputs of their reports."""
    manifest = read_manifest(folder)
    shards = [shard for shard in manifest.plan if shard.name in manifest.kept]
    loaded = [_readable(folder, shard, manifest.kept[shard.name]) for shard in shards]
    orders = [entry.order for one in loaded if not isinstance(one, str) for entry in one.entries]
    # Nothing is trained, so no interchanges to train on.
    build = replace(manifest.config.build, interchanges=1)
    with closing(prepared(orders, build, processes)) as stream:
        for shard, one in zip(shards, loaded, strict=True):
            if isinstance(one, str):
                yield Remeasured(shard.name, 0, None, (one,))
                continue
            data = [found for _, found in islice(stream, len(one.entries))]
            yield _measured(shard, one.entries, data, device)


def _readable(folder: Path, shard: Shard, kept: FinishedShard) -> LoadedShard | str:
    try:
        return load_shard(folder, shard, kept)
    except StoreError as error:
        return str(error)


def _measured(
    shard: Shard, entries: Sequence[CorpusEntry], data: Sequence[Prepared], device: str
) -> Remeasured:
    problems = [one for one in data if isinstance(one, str)]
    if problems or not entries:
        return Remeasured(shard.name, len(entries), None, tuple(problems))
    try:
        subjects = [entry.subject() for entry in entries]
    except StoreError as error:
        return Remeasured(shard.name, len(entries), None, (str(error),))
    order = entries[0].order
    verdicts = verify_fleet(
        subjects,
        [one.unseen for one in data if isinstance(one, Data)],
        torch.Generator(device).manual_seed(order.seed + 1),
        training(order).tolerance,
    )
    lowest = []
    for entry, tasks in zip(entries, verdicts, strict=True):
        lowest.append(min(verdict.accuracy for verdict in tasks))
        if abs(lowest[-1] - entry.report["accuracy"]) > SLACK:
            problems.append(
                f"{entry.id} is right on {lowest[-1]:.4f} of unseen inputs, its report says "
                f"{entry.report['accuracy']:.4f}"
            )
    return Remeasured(shard.name, len(entries), min(lowest), tuple(problems))
