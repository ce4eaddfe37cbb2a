"""The runs of a bench: every method on every subject under every seed, each computed once.

1. `run` goes through subjects, seeds and methods, in this process, in several, or on a cluster. A
   seed draws the prompts of a case and, mixed with the case, seeds the method. Each run ends with
   the curve of faithfulness of its best edges, on prompts of another seed.
2. Each run is a JSON file, written whole or not at all, and named after what it depends on:
   subject, prompts, options, seed, the files of the method, and revision numbers. So a bench that
   was stopped goes on where it was; a file that is damaged or belongs to another run is computed
   again. It holds the scores: other labels or another level need no new run, and a curve that was
   measured by other code, or by loss instead of output, is measured again without the method.
   What certificates say, where they are asked for, stands beside the curve and is kept likewise.
   Nothing tells whether a user's function is still the same, so its runs are not stored.

Why revision numbers: a hash of the code would throw away days of runs for a changed comment. A
method has its `revision`, what all methods share has `SHARED_REVISION`, the curve has
`CURVE_REVISION`, certificates have `CERTIFICATE_REVISION`. Whoever changes scores raises the
number; tests/compare/test_revisions.py reminds of it whenever the code behind one has changed.

A run that fails is reported and tried again by the next bench; the others are stored. A store that
cannot be read or written ends the bench, since all that follows would be lost as well.
"""

import json
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits import __version__
from graphcircuits.certificates.certify import certify
from graphcircuits.compare.measure import measure
from graphcircuits.compare.selection import BenchConfig, Unit
from graphcircuits.evaluation.evaluate import faithfulness_curve, log_sizes
from graphcircuits.evaluation.localize import localize
from graphcircuits.evaluation.proposal import propose
from graphcircuits.graph import ComponentGraph
from graphcircuits.io.store import StoreError, content_hash, load_artifact, save_artifact
from graphcircuits.jobs.command import driver_command
from graphcircuits.jobs.runner import IN_PROCESS, ONE_CPU, InProcess, Resources, Runner
from graphcircuits.methods import FLOORS, METHODS, ChosenMethod, choose_method
from graphcircuits.result.curve import FaithfulnessCurve
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

KIND = "bench-run"
FRESH = 2**31
"""Between the seed of the prompts that a method sees and of those that its scores are judged on."""
SHARED_REVISION = 1
"""Raised when code that all methods share changes their scores: subjects, engine, pairs, paths."""
CURVE_REVISION = 2
"""Raised when faithfulness curves come out differently."""
CERTIFICATE_REVISION = 1
"""Raised when proposed circuits or their certificates come out differently."""


@dataclass(frozen=True, kw_only=True)
class BenchRun:
    """One method on one subject under one seed."""

    case: str
    """The id of the subject."""
    method: str
    seed: int
    graph: ComponentGraph
    scores: Float[Tensor, " edge"]
    curve: FaithfulnessCurve
    """Faithfulness of the best edges on prompts that the method has not seen, log-spaced sizes."""
    seconds: float
    peak_bytes: int | None
    reused: bool
    """Whether it was in the store, with its certificate where one was asked for."""
    certified: Mapping[str, Any] = field(default_factory=dict)
    """What a certificate says of the circuit proposed from the scores, or why it is `left_out`."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A run that ended in an error; without a method it is the subject itself that failed."""

    case: str
    method: str | None = None
    seed: int | None = None
    error: str

    def __str__(self) -> str:
        where = f"{self.case}, {self.method}, seed {self.seed}" if self.method else self.case
        return f"{where}: {self.error}"


class StoreUnusable(OSError):
    """The files of a bench cannot be read or written, so that it has to end."""


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
    here = isinstance(runner, InProcess)
    where = None if out is None else Path(out)
    work = partial(_run_job, config, where, fresh, step=step if here else None)
    given = {} if here else {"lost": _lost, "resources": resources, "retries": retries}
    outcomes = runner.run(work, jobs, **given)
    unusable = set()
    for outcome in outcomes:
        if isinstance(outcome, Failure) and outcome.method is None:
            if outcome.case in unusable:
                continue  # once for all seeds
            unusable.add(outcome.case)
        yield outcome


# One job: the methods on a subject under a seed


def _run_job(
    config: BenchConfig, out: Path | None, fresh: bool, job: BenchJob, step: Step | None
) -> Iterator[BenchRun | Failure]:
    id, seed, methods = job
    try:
        inputs = _Inputs.load(id, seed, config)
    except Exception as error:  # noqa: BLE001  one subject must not cost the others
        yield Failure(case=id, error=_describe(error))
        return
    for method in methods:
        try:
            yield _run_method(config, out, inputs, method, fresh, step)
        except StoreUnusable:
            raise
        except Exception as error:  # noqa: BLE001  nor one method the others
            yield Failure(case=id, method=method, seed=seed, error=_describe(error))


def _describe(error: Exception) -> str:
    """The error as one line, with the line of code where it is not a refusal of ours."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, ValueError | OSError):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({Path(last.filename).name}, line {last.lineno})"


@dataclass(frozen=True)
class _Inputs:
    """What the methods of a job share: a subject, the prompts of a seed, and those of the curve."""

    id: str
    seed: int
    subject: Transformer
    pairs: Pairs
    unseen: Pairs

    @classmethod
    def load(cls, id: str, seed: int, config: BenchConfig) -> "_Inputs":
        unit = Unit.of(id)
        subject = unit.subject(config.subjects).to(getattr(torch, config.dtype)).to(config.device)
        if unit.has_truth:
            config.truth(unit, subject.graph)  # labels that no ranking can be judged by fail here
        pairs, unseen = (unit.case.pairs(config.n_pairs, seed=at) for at in (seed, seed + FRESH))
        return cls(id, seed, subject, pairs, unseen)


def _run_method(
    config: BenchConfig,
    out: Path | None,
    inputs: _Inputs,
    name: str,
    fresh: bool,
    step: Step | None,
) -> BenchRun:
    subject, pairs, graph = inputs.subject, inputs.pairs, inputs.subject.graph
    method, seed = config.functions.get(name, name), method_seed(inputs.id, inputs.seed)
    chosen = choose_method(subject, pairs, method, seed=seed, **config.options_of(name))
    file = None
    if out is not None and name not in config.functions:
        file = _RunFile.of(out, inputs, chosen)
    stored = None if file is None or fresh else file.read(graph.n_edges)
    reused, result = stored is not None, None
    if stored is None:
        measured = measure(lambda: chosen.run(progress=step, keep_prompts=0), subject.device)
        result = measured.value
        stored = {
            "scores": result.scores.tolist(),
            "seconds": measured.seconds,
            "peak_bytes": measured.peak_bytes,
        }
    scores = torch.tensor(stored["scores"], dtype=torch.float64)
    judged_by = content_hash(inputs.unseen, config.by, CURVE_REVISION, SHARED_REVISION)
    about = {"n_edges": graph.n_edges, "n_pairs": len(inputs.unseen), "by": config.by}
    curve = _stored_curve(stored.get("curve"), judged_by, **about)
    if curve is None:
        curve = faithfulness_curve(subject, inputs.unseen, scores, by=config.by)
        stored["curve"] = {
            "sizes": curve.sizes,
            "kept": curve.pruned_sizes,
            "faithfulness": curve.faithfulness,
            "judged_by": judged_by,
        }
        if file is not None:
            file.write(stored)
    certified: Mapping[str, Any] = {}
    if config.certify:
        judged_by = content_hash(inputs.unseen, CERTIFICATE_REVISION, SHARED_REVISION)
        certified = stored.get("certificate", {})
        if not isinstance(certified, Mapping) or certified.get("judged_by") != judged_by:
            certified = {**_certified(inputs, chosen, result, step), "judged_by": judged_by}
            reused = False
            if file is not None:
                file.write({**stored, "certificate": certified})
    return BenchRun(
        case=inputs.id,
        method=name,
        seed=inputs.seed,
        graph=graph,
        scores=scores,
        curve=curve,
        seconds=stored["seconds"],
        peak_bytes=stored["peak_bytes"],
        reused=reused,
        certified=certified,
    )


def _certified(
    inputs: _Inputs, chosen: ChosenMethod, result: Result | None, step: Step | None
) -> Mapping[str, Any]:
    """The figures of the certificate of the circuit that a run leads to, or why it has none."""
    if chosen.method.name in FLOORS:
        return {"left_out": "a floor, and no way to find circuits"}

    def find(subject: Transformer, pairs: Pairs, seed: int) -> Result:
        options = {"seed": seed, "keep_prompts": 0, **chosen.options}
        return localize(subject, pairs, chosen.method, **options)

    subject, pairs, seed = inputs.subject, inputs.pairs, chosen.seed
    again = None if chosen.method.name in METHODS else find
    try:
        # A run whose scores were stored is made again: circuits depend on probabilities as well.
        result = result or chosen.run(keep_prompts=0)
        proposal = propose(subject, pairs, result, kind=chosen.kind)
        if proposal.problems:
            return {"left_out": "; ".join(proposal.problems)}
        given = (subject, pairs, replace(result, chosen=proposal.circuit))
        made = certify(*given, fresh=inputs.unseen, search=again, seed=seed, progress=step)
    except ValueError as error:
        return {"left_out": str(error)}
    found = {"circuit_edges": float(len(made.circuit)), "passes": float(made.passed)}
    for name, line in made.lines.items():
        found |= {name: line.value, f"{name} passes": float(line.passed)}
    return found


def method_seed(case: str, seed: int) -> int:
    """The method's seed. Cases must differ in it: graphs of one size would share their luck."""
    return int(content_hash(case, seed)[:12], 16)


# Files


@dataclass(frozen=True)
class _RunFile:
    """Where a run is stored, and what the file must say for it to be this run."""

    path: Path
    about: Mapping[str, Any]
    seed: int

    @classmethod
    def of(cls, out: Path, inputs: _Inputs, chosen: ChosenMethod) -> "_RunFile":
        id, seed, subject, pairs = inputs.id, inputs.seed, inputs.subject, inputs.pairs
        name, options = chosen.name, chosen.recorded
        revisions = [SHARED_REVISION, chosen.method.revision]
        device = subject.device.type  # what a GPU computes, and how fast, is another result
        key = content_hash(
            *(__version__, id, subject, pairs, name, options, seed, device, revisions),
            *chosen.method.files(chosen.options),
        )
        about = {"case": id, "method": name, "options": options, "pairs": len(pairs), "key": key}
        return cls(out / "runs" / name / f"{id}-seed{seed}-{key[:12]}.json", about, seed)

    def write(self, meta: Mapping[str, Any]) -> None:
        try:
            save_artifact(
                self.path,
                kind=KIND,
                config=self.about,
                seed=self.seed,
                meta=meta,
                command=driver_command(),
            )
        except OSError as error:
            raise StoreUnusable(
                f"{self.path} cannot be written ({error.strerror or error}); the bench ends here "
                "and keeps what is finished: make room or name another --out, and run it again."
            ) from error

    def read(self, n_edges: int) -> dict[str, Any] | None:
        """What the run left; None where it must be computed: absent, damaged, or another run's."""
        try:
            artifact = load_artifact(self.path, KIND)
        except (FileNotFoundError, StoreError, RecursionError):
            return None
        except OSError as error:
            raise StoreUnusable(
                f"{self.path} cannot be read ({error.strerror or error}); the bench ends here: "
                "make it readable, remove it, or name another --out."
            ) from error
        # What was written is JSON, in which a tuple is a list.
        same = artifact.config == json.loads(json.dumps(self.about)) and artifact.seed == self.seed
        return dict(artifact.meta) if same and _is_whole(artifact.meta, n_edges) else None


def _is_whole(meta: Mapping[str, Any], n_edges: int) -> bool:
    """Whether there is a number for each edge, a time, and memory where it is known."""
    if meta.keys() - {"curve", "certificate"} != {"scores", "seconds", "peak_bytes"}:
        return False
    peak = [] if meta["peak_bytes"] is None else [meta["peak_bytes"]]
    return _are_numbers(meta["scores"], n_edges) and _are_numbers([meta["seconds"], *peak])


def _stored_curve(
    record: Any, judged_by: str, *, n_edges: int, **about: Any
) -> FaithfulnessCurve | None:
    """The curve that a run left; None where there is none of these prompts and revisions."""
    try:
        columns = [record[name] for name in ("sizes", "kept", "faithfulness")]
        given = dict(zip(("sizes", "pruned_sizes", "faithfulness"), columns, strict=True))
        curve = FaithfulnessCurve(n_edges=n_edges, **given, **about)
        same = record["judged_by"] == judged_by
    except (KeyError, TypeError, ValueError):
        return None
    # Near crossings there are more sizes than these.
    whole = all(_are_numbers(column, len(curve.sizes)) for column in columns)
    return curve if same and whole and {*log_sizes(n_edges)} <= {*curve.sizes} else None


def _are_numbers(values: object, count: int | None = None) -> bool:
    """Whether these are so many finite numbers."""
    return (
        isinstance(values, list)
        and len(values) == (len(values) if count is None else count)
        and all(type(value) in (int, float) and math.isfinite(value) for value in values)
    )


def _lost(job: BenchJob, finished: int, what: str) -> tuple[list[Failure], BenchJob | None]:
    """The run that a process ended in, and the methods that it did not come to."""
    id, seed, methods = job
    error = f"{what}; where memory was short, fewer processes need less of it"
    ended, rest = methods[finished : finished + 1], methods[finished + 1 :]
    failed = [Failure(case=id, method=name, seed=seed, error=error) for name in ended]
    return failed, (id, seed, rest) if rest else None
