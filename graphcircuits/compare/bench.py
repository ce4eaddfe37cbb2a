"""Every method on every subject: run what is missing, and keep it.

1. `run` goes through subjects, seeds and methods, in this process, in several, or on a cluster. A
   seed draws the prompts of a case and, mixed with the case, seeds the method. The best edges of
   every result are kept alone, at growing numbers of them, on prompts of another seed: the curve of
   faithfulness whose areas are CPR and CMD.
2. Each result is a JSON file of its own, written whole or not at all and named after the content of
   subject, prompts, options, seed and the method's code, so a run that was stopped goes on where it
   was; a file that is damaged, or that says of itself that it is another run's, is made again. It
   holds the scores: other labels or another level need no new run, and a curve that was measured by
   other code is measured again without the method. Nothing tells whether a function of the user's
   own is still the same, so its runs are not kept.

`selection` says which subjects there are, `runs` how one is kept, `report` what comes of them.

A result that fails is reported and tried again by the next run; the others are kept. A store that
cannot be read or written ends the bench, since all that follows would be lost as well.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from graphcircuits import __version__
from graphcircuits.cases.case import DEFAULT_LABELS, LABELINGS
from graphcircuits.cases.orders import Order
from graphcircuits.circuit import Circuit
from graphcircuits.compare.measure import measure
from graphcircuits.compare.runs import (
    BenchRun,
    Failure,
    StoreUnusable,
    run_path,
    save_run,
    stored_curve,
    stored_run,
)
from graphcircuits.compare.selection import Unit
from graphcircuits.compare.sources import source_hash
from graphcircuits.evaluation.evaluate import LEVELS, auroc, faithfulness_curve
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.store import content_hash
from graphcircuits.jobs.runner import IN_PROCESS, ONE_CPU, InProcess, Resources, Runner
from graphcircuits.methods import (
    ALONG_PATHS,
    FLOORS,
    METHODS,
    NAMED_ONLY,
    ChosenMethod,
    KnownMethod,
    Method,
    choose_method,
    find_method,
    options_of,
)
from graphcircuits.methods.method import PATHS, known
from graphcircuits.predictor.paths import along_paths
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

FRESH = 2**31
"""Between the seed of the prompts that a method sees and of those that its scores are judged on."""


def usual_methods(fleet: str = "planted") -> tuple[str, ...]:
    """What runs where no method is named: all that can run with what ships, and the floors.

    On natural subjects EAP-IG along paths besides: it tells what `gcl` gains by counting so.
    """
    names = [name for name in (*METHODS, *FLOORS) if name not in NAMED_ONLY]
    return (*names, *([f"eap-ig{ALONG_PATHS}"] if fleet == "natural" else []))


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What to run and how to read it."""

    cases: tuple[str, ...]
    """Ids of subjects: that of a case is its planted one, those of other fleets are of orders."""
    methods: tuple[str, ...] = usual_methods()
    own: Mapping[str, Method] = field(default_factory=dict)
    """Methods that are not of the package, by names among `methods`. Not to be sent to other
    processes."""
    seeds: tuple[int, ...] = (0,)
    once: tuple[str, ...] = ()
    """Methods that take long, and run with the first seed alone."""
    n_pairs: int = 64
    """Prompt pairs of a case."""
    labels: str = DEFAULT_LABELS
    level: str = "head"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of a method, by its name, that differ from their defaults."""
    device: str = "cpu"
    dtype: str = "float32"
    """That subjects compute in."""
    subjects: str | None = None
    """The folder of the subjects, if not those that ship."""

    def __post_init__(self) -> None:
        problems = []
        for name in ("cases", "methods", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                problems.append(f"{name} must be distinct, at least one, got {list(values)}")
        if self.n_pairs < 1:
            problems.append(f"n_pairs must be at least 1, got {self.n_pairs}")
        for name, value, words in (
            ("labels", self.labels, LABELINGS),
            ("level", self.level, LEVELS),
        ):
            if value not in words:
                problems.append(f"{name} must be one of {', '.join(words)}, got {value!r}")
        fleets = sorted({Order.parse(id).fleet for id in self.cases})
        if len(fleets) > 1:
            problems.append(f"all cases must be of one fleet, got {', '.join(fleets)}")
        taken = sorted(self.own.keys() & (METHODS.keys() | FLOORS.keys()))
        if taken:
            problems.append(
                f"the package has a method {', '.join(taken)}; give your own another name"
            )
        for what, names in (("options are given for", self.options), ("once names", self.once)):
            idle = sorted(set(names) - set(self.methods))
            if idle:
                problems.append(f"{what} methods that do not run: {', '.join(idle)}")
        if problems:
            raise ValueError("; ".join(problems) + ".")
        for method in self.methods:
            options = options_of(self.method(method))
            unknown = sorted(self.options.get(method, {}).keys() - options.keys())
            if unknown:
                named = ", ".join(options) or "none"
                raise ValueError(f"{method} has no option {', '.join(unknown)}; it has: {named}.")

    def method(self, name: str) -> KnownMethod:
        """The user's own of that name, or the package's."""
        return known(self.own[name]) if name in self.own else find_method(name)

    def options_of(self, name: str) -> dict[str, Any]:
        """The options that a method is given. One that ranks by labels takes those of the bench."""
        given = dict(self.options.get(name, {}))
        return (
            {"labels": self.labels} | given if "labels" in options_of(self.method(name)) else given
        )

    @property
    def fleet(self) -> str:
        return Order.parse(self.cases[0]).fleet

    @property
    def n_runs(self) -> int:
        return len(self.cases) * sum(len(self.methods_at(seed)) for seed in self.seeds)

    def methods_at(self, seed: int) -> tuple[str, ...]:
        """The methods that run with a seed."""
        later = seed != self.seeds[0]
        return tuple(name for name in self.methods if not (later and name in self.once))


# Runs


BenchJob = tuple[str, int, tuple[str, ...]]
"""A subject, a seed, and the methods to run on it."""
Step = Callable[[int, int], None]


def run(
    config: BenchConfig,
    out: str | Path | None,
    *,
    fresh: bool = False,
    runner: Runner = IN_PROCESS,
    resources: Resources = ONE_CPU,
    retries: int = 0,
    step: Step | None = None,
) -> Iterator[BenchRun | Failure]:
    """Yield the runs, computing those that are not in the store `out`; without one, all of them.

    They come subject by subject, or as they are finished where a runner has several workers.
    `fresh` computes all of them, whatever the store holds, and writes them over what is there.
    `step` hears how far the current method is, steps done and steps in all, in this process only.
    """
    jobs = [(id, seed, config.methods_at(seed)) for id in config.cases for seed in config.seeds]
    work = partial(_run_job, config, None if out is None else Path(out), fresh)
    if isinstance(runner, InProcess):
        found = runner.run(partial(work, step=step), jobs)
    else:
        sent = partial(_sent_job, work)
        given = {"lost": _lost, "resources": resources, "retries": retries}
        found = map(_received, runner.run(sent, jobs, **given))
    unusable = set()
    for one in found:
        if isinstance(one, Failure) and one.method is None:
            if one.case in unusable:
                continue  # once for all seeds
            unusable.add(one.case)
        yield one


def _run_job(
    config: BenchConfig, out: Path | None, fresh: bool, job: BenchJob, step: Step | None = None
) -> Iterator[BenchRun | Failure]:
    id, seed, methods = job
    try:
        loaded = _Loaded.of(id, seed, config)
    except Exception as error:  # noqa: BLE001  one subject must not cost the others
        yield Failure(case=id, error=_told(error))
        return
    for method in methods:
        try:
            yield _run_one(config, out, loaded, method, fresh, step)
        except StoreUnusable:
            raise
        except Exception as error:  # noqa: BLE001  nor one method the others
            yield Failure(case=id, method=method, seed=seed, error=_told(error))


Sent = dict[str, Any] | Failure


def _sent_job(
    work: Callable[[BenchJob], Iterator[BenchRun | Failure]], job: BenchJob
) -> Iterator[Sent]:
    """The runs of a job as plain values, for another process."""
    for one in work(job):
        if isinstance(one, Failure):
            yield one
        else:
            # A new graph has computed nothing yet that would be sent along.
            yield {**vars(one), "scores": one.scores.tolist(), "graph": replace(one.graph)}


def _received(sent: Sent) -> BenchRun | Failure:
    if isinstance(sent, Failure):
        return sent
    return BenchRun(**{**sent, "scores": torch.tensor(sent["scores"], dtype=torch.float64)})


def _lost(job: BenchJob, found: int, what: str) -> tuple[list[Sent], BenchJob | None]:
    """The run that a process ended in, and the methods it did not come to."""
    id, seed, methods = job
    error = f"{what}; where memory was short, fewer processes need less of it"
    failed = [
        Failure(case=id, method=method, seed=seed, error=error)
        for method in methods[found : found + 1]
    ]
    rest = methods[found + 1 :]
    return [*failed], (id, seed, rest) if rest else None


def _told(error: Exception) -> str:
    """The error as one line, with the place it came from if it is not a refusal of ours."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, ValueError | OSError):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({Path(last.filename).name}, line {last.lineno})"


def truth(unit: Unit, config: BenchConfig, graph: ComponentGraph) -> Circuit:
    """The labels of a subject, which must leave something to tell apart."""
    circuit = unit.case.labels(config.labels, graph)
    auroc(torch.zeros(graph.n_edges), circuit, config.level)
    return circuit


@dataclass(frozen=True)
class _Loaded:
    """What the methods share: a subject, the prompts of a seed, and those of the curve."""

    id: str
    seed: int
    subject: Transformer
    pairs: Pairs
    unseen: Pairs
    judged_by: str
    """Content of the unseen prompts, and of the code that measures curves."""

    @classmethod
    def of(cls, id: str, seed: int, config: BenchConfig) -> "_Loaded":
        unit = Unit.of(id)
        subject = unit.subject(config.subjects).to(getattr(torch, config.dtype)).to(config.device)
        if unit.has_truth:
            truth(unit, config, subject.graph)
        pairs, unseen = (unit.case.pairs(config.n_pairs, seed=at) for at in (seed, seed + FRESH))
        judged_by = content_hash(unseen, source_hash(faithfulness_curve))
        return cls(id, seed, subject, pairs, unseen, judged_by)


def _run_one(
    config: BenchConfig,
    out: Path | None,
    loaded: _Loaded,
    method: str,
    fresh: bool,
    step: Step | None,
) -> BenchRun:
    id, seed, subject, pairs = loaded.id, loaded.seed, loaded.subject, loaded.pairs
    chosen = choose_method(
        subject,
        pairs,
        config.own.get(method, method),
        seed=method_seed(id, seed),
        **config.options_of(method),
    )
    kept = None
    if out is not None and method not in config.own:
        kept = _Kept.of(out, loaded, chosen)
    stored = None if kept is None or fresh else kept.run(subject.graph.n_edges)
    reused = stored is not None
    if stored is None:
        measured = measure(
            lambda: chosen.run(progress=step, keep_prompts=0),
            subject.device,
        )
        stored = {
            "scores": measured.value.scores.tolist(),
            "seconds": measured.seconds,
            "peak_bytes": measured.peak_bytes,
        }
    scores = torch.tensor(stored["scores"], dtype=torch.float64)
    curve = stored_curve(
        stored.get("curve"), loaded.judged_by, subject.graph.n_edges, len(loaded.unseen)
    )
    if curve is None:
        curve = faithfulness_curve(subject, loaded.unseen, scores, sizes="log")
        if kept is not None:
            curve_record = {
                "sizes": curve.sizes,
                "kept": curve.pruned_sizes,
                "faithfulness": curve.faithfulness,
                "judged_by": loaded.judged_by,
            }
            save_run(kept.path, kept.about, seed, {**stored, "curve": curve_record})
    return BenchRun(
        case=id,
        method=method,
        seed=seed,
        graph=subject.graph,
        scores=scores,
        curve=curve,
        seconds=stored["seconds"],
        peak_bytes=stored["peak_bytes"],
        reused=reused,
    )


@dataclass(frozen=True)
class _Kept:
    """Where a run is kept, and what must be said there for it to be this one."""

    path: Path
    about: Mapping[str, Any]
    seed: int

    @classmethod
    def of(cls, out: Path, loaded: _Loaded, chosen: ChosenMethod) -> "_Kept":
        id, seed, subject, pairs = loaded.id, loaded.seed, loaded.subject, loaded.pairs
        method, options = chosen.name, chosen.recorded
        made_by = [source_hash(chosen.method.run), *chosen.method.files(chosen.options)]
        if options.get(PATHS):
            made_by.append(source_hash(along_paths))
        place = subject.device.type  # what a GPU computes, and how fast, is another result
        key = content_hash(__version__, id, subject, pairs, method, options, seed, place, *made_by)
        about = {"case": id, "method": method, "options": options, "pairs": len(pairs), "key": key}
        return cls(run_path(out, id, method, seed, key), about, seed)

    def run(self, n_edges: int) -> dict[str, Any] | None:
        return stored_run(self.path, self.about, self.seed, n_edges)


def method_seed(case: str, seed: int) -> int:
    """The method's own seed. Cases must differ in it: graphs of one size would share their luck."""
    return int(content_hash(case, seed)[:12], 16)
