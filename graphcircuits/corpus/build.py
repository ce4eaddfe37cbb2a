"""Train subjects for cases, verify them after reloading, and keep those that pass.

1. For every case, inputs and the program's answers are computed ahead of training.
2. Cases of equal depth and similar width form a fleet and train side by side.
3. Each subject is verified, as it is stored, on inputs that nothing has seen, and its file is read
   back. One that passes stays, with its report in the file; one that fails is set aside under
   `failed/`. The same settings would fail again, so it is only trained anew under others.

A subject that passes is written at once, and the state of a fleet in training is kept
(`unfinished.py`): a build that was stopped or killed goes on from there, and ends with the files,
byte for byte, of one that was not. So nothing about time is in them.
"""

import logging
import math
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from graphcircuits.corpus import FAMILIES, load_case
from graphcircuits.corpus.case import Case
from graphcircuits.corpus.samplers import draw
from graphcircuits.corpus.unfinished import Job, subject_path, unfinished
from graphcircuits.fleets.checkpoint import TrainedSubject
from graphcircuits.fleets.exchange import Exchange, exchange
from graphcircuits.fleets.train import FleetProgress, SiitConfig, train_fleet
from graphcircuits.fleets.verify import Verdict, verify
from graphcircuits.store import content_hash, load_artifact
from graphcircuits.subject.codec import Codec
from graphcircuits.subject.files import load_transformer, save_transformer
from graphcircuits.subject.transformer import Transformer, TransformerConfig

log = logging.getLogger(__name__)

WIDTHS = (16, 64)
"""Subjects between the same of these widths share a fleet: padding costs less than another one."""
LONG = 16
"""Contexts beyond this have a fleet of their own."""


class ConstantOutputError(ValueError):
    """A program whose output does not depend on the input has nothing to train."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildConfig:
    """How subjects are built."""

    siit: SiitConfig = field(default_factory=SiitConfig)
    inputs: int = 16384
    """Inputs that a subject trains on."""
    interchanges: int = 4096
    """Interchanges of each component that it trains on."""
    verify_inputs: int = 4096
    verify_interchanges: int = 1024
    seed: int = 0
    widen: float = 1.0
    """Factor on the width of heads, stream and MLPs, for subjects that are too small to train."""
    processes: int = 1
    """Workers that compute the program's answers."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """One case's outcome."""

    id: str
    path: Path
    verdict: Verdict
    steps: int
    report: dict[str, Any]


def subject_config(case: Case, widen: float = 1.0) -> TransformerConfig:
    """The subject's architecture: its case's sizes, gelu, learned positions, no normalization."""
    dims = case.subject_dims
    d_head = max(1, round(dims.d_head * widen))
    wide = 1.0 if widen == 1.0 else d_head * dims.n_heads / dims.d_model
    codec = subject_codec(case)
    return TransformerConfig(
        n_layers=dims.n_layers,
        n_heads=dims.n_heads,
        d_head=d_head,
        d_model=round(dims.d_model * wide),
        d_mlp=round(dims.d_mlp * wide),
        n_ctx=case.max_seq_len,
        d_vocab=codec.d_vocab,
        d_vocab_out=codec.d_vocab_out,
        causal=case.causal,
    )


def subject_codec(case: Case) -> Codec:
    return Codec(case.tables.vocab, case.outputs)


def case_exchange(case: Case, n_inputs: int, n_interchanges: int, seed: int) -> Exchange:
    """Inputs drawn by the case's sampler with the program's answers; refuses constant outputs."""
    generator = torch.Generator().manual_seed(seed)
    length = case.max_seq_len - 1
    codes = draw(case.sampler, case.tables.vocab, length, n_inputs, generator).numpy()
    drawn = exchange(case.tables, case.layout, codes, n_interchanges, generator)
    if (drawn.targets == drawn.targets[:1]).all():
        raise ConstantOutputError(
            f"case {case.id!r}: the output is the same for every input of {length} tokens, "
            "so there is nothing to train; use another vocabulary, length or program."
        )
    return drawn


def fleets(configs: Sequence[TransformerConfig]) -> list[list[int]]:
    """Which subjects train side by side: equal layers and heads, similar sizes."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, config in enumerate(configs):
        width = next((w for w in WIDTHS if config.d_model <= w), math.inf)
        key = (width, config.n_layers, config.n_heads, config.n_ctx > LONG)
        groups.setdefault(key, []).append(i)
    return [groups[key] for key in sorted(groups, key=str)]


def build(
    cases: Sequence[Case],
    directory: Path,
    config: BuildConfig,
    *,
    device: str = "cpu",
    command: str | None = None,
    progress: FleetProgress | None = None,
    deadline: float = math.inf,
) -> Iterator[Built]:
    """Build the cases that the directory has no passing subject for; yields them fleet by fleet.

    A build of the same settings that was cut off is gone on with; what failed under the same
    settings is given again as it was. Cases that nothing can be trained for are refused, by an
    error after all others are done.
    """
    by_id = {case.id: case for case in cases}
    for id in by_id:
        if subject_path(directory, id).exists():
            # It failed once, and passed since.
            subject_path(directory / "failed", id).unlink(missing_ok=True)
    settings = {**asdict(replace(config, processes=1)), "device": torch.device(device).type}
    jobs = unfinished(directory, by_id, settings)
    going_on = {id for job in jobs for id in job.ids}
    wanted = [id for id in by_id if id in going_on or not subject_path(directory, id).exists()]
    prepared = dict(zip(wanted, _prepare([by_id[id] for id in wanted], config), strict=True))
    data = {id: found for id, found in prepared.items() if isinstance(found, Data)}
    hashes = {id: found.sha256 for id, found in data.items()}
    for job in jobs:
        job.check_data(hashes)
    new = []
    for id in (id for id in data if id not in going_on):
        failed = _failed(directory, id, settings, hashes[id])
        if failed is None:
            new.append(by_id[id])
        else:
            yield failed
    for members in fleets([subject_config(case, config.widen) for case in new]):
        jobs.append(Job.new(directory, settings, {new[i].id: hashes[new[i].id] for i in members}))
    for job in jobs:
        if time.monotonic() >= deadline:
            log.warning("out of time: %d cases left untrained", len(job.ids))
            continue
        fleet = [(by_id[id], data[id]) for id in job.ids]
        yield from _build_fleet(job, fleet, directory, config, device, command, progress, deadline)
    refused = [found for found in prepared.values() if isinstance(found, str)]
    if refused:
        raise ValueError("\n".join(refused))


def _build_fleet(
    job: Job,
    fleet: Sequence[tuple[Case, "Data"]],
    directory: Path,
    config: BuildConfig,
    device: str,
    command: str | None,
    progress: FleetProgress | None,
    deadline: float,
) -> list[Built]:
    """Train cases side by side; each is written when it passes, the others at the end."""
    began = time.monotonic()
    built: dict[int, Built] = {}

    def finish(place: int, result: TrainedSubject) -> None:
        case, data = fleet[place]
        if place not in built and not subject_path(directory, case.id).exists():
            about = {"build": job.settings, "data": data.sha256}
            built[place] = _finish(case, result, directory, config, device, about, command)

    starts = [_start(case, config) for case, _ in fleet]
    generator = torch.Generator(device=device).manual_seed(config.seed)
    trained = train_fleet(
        starts,
        [(data.train,) for _, data in fleet],
        [(data.check,) for _, data in fleet],
        config.siit,
        generator,
        progress,
        deadline,
        on_pass=finish,
        keep=job.keeper(),
        resume=job.snapshot(starts, generator.device),
    )
    log.info("fleet of %d: %.0f s", len(fleet), time.monotonic() - began)
    for place, result in enumerate(trained):
        if not result.cut_short:
            finish(place, result)
    left = sum(result.cut_short for result in trained)
    if left:
        log.warning("out of time: %d cases unfinished; the same build goes on with them", left)
    else:
        job.close()
    return [built[place] for place in sorted(built)]


@dataclass(frozen=True, eq=False)
class Data:
    """What a case trains on, and what decides when it is done."""

    train: Exchange
    check: Exchange
    sha256: str
    """Content of both, the program's answers to the inputs drawn, and of their symbols."""


Prepared = Data | str
"""The data of a case, or why there is none."""


def _prepare(cases: Sequence[Case], config: BuildConfig) -> list[Prepared]:
    """The data of every case; of listed ones by worker processes if wanted."""
    listed = {case.id for case in cases if case.family in FAMILIES}
    made: dict[str, Prepared] = {}
    if config.processes > 1 and len(listed) > 1:
        jobs = [(id, config) for id in sorted(listed)]
        # A program's functions cannot be sent to another process, but its id can.
        with multiprocessing.get_context("spawn").Pool(config.processes) as pool:
            made = dict(zip(sorted(listed), pool.starmap(_prepare_id, jobs, 1), strict=True))
    return [made[case.id] if case.id in made else _prepare_case(case, config) for case in cases]


def _prepare_id(id: str, config: BuildConfig) -> Prepared:
    torch.set_num_threads(1)
    return _prepare_case(load_case(id), config)


def _prepare_case(case: Case, config: BuildConfig) -> Prepared:
    seed = 1000 * config.seed
    try:
        train = case_exchange(case, config.inputs, config.interchanges, seed + 1)
        check = case_exchange(case, config.verify_inputs, config.verify_interchanges, seed + 2)
        symbols = subject_codec(case)
        return Data(train, check, content_hash(_content(train), _content(check), symbols))
    except ConstantOutputError as error:
        return str(error)


def _content(exchange: Exchange) -> dict[str, Any]:
    return {**vars(exchange), "edges": sorted(exchange.edges)}


def _start(case: Case, config: BuildConfig) -> Transformer:
    generator = torch.Generator().manual_seed(config.seed)
    return Transformer.random(subject_config(case, config.widen), generator, subject_codec(case))


def _failed(directory: Path, id: str, settings: dict[str, Any], data: str) -> Built | None:
    """A subject that failed under the same settings, on the same data."""
    path = subject_path(directory / "failed", id)
    if not path.exists():
        return None
    report = load_artifact(path, "transformer").meta.get("report", {})
    if content_hash(report.get("build"), report.get("data")) != content_hash(settings, data):
        return None
    verdict = Verdict(
        accuracy=report["accuracy"],
        interchange=report["interchange"],
        strict=report["strict"],
        circuit=report["circuit_accuracy"],
        loss=report["loss"],
    )
    return Built(id=id, path=path, verdict=verdict, steps=report["steps"], report=report)


def _finish(
    case: Case,
    result: TrainedSubject,
    directory: Path,
    config: BuildConfig,
    device: str,
    about: dict[str, Any],
    command: str | None,
) -> Built:
    """Verify on unseen inputs what will be stored, write it, read it back; keep or set aside."""
    stored = result.subject.to(torch.float16)
    unseen = case_exchange(
        case, config.verify_inputs, config.verify_interchanges, 1000 * config.seed + 3
    )
    generator = torch.Generator(device=device).manual_seed(config.seed + 1)
    verdict = verify(stored.to(torch.float32), unseen, generator, config.siit.tolerance)
    report = {
        "case": case.id,
        "passed": verdict.passed,
        "accuracy": verdict.accuracy,
        "loss": verdict.loss,
        "worst_interchange": verdict.worst_interchange,
        "worst_strict": verdict.worst_strict,
        "circuit_accuracy": verdict.circuit,
        "interchange": verdict.interchange,
        "strict": verdict.strict,
        "steps": result.steps,
        "widened": stored.config.d_model != case.subject_dims.d_model,
        **about,
    }
    failed = subject_path(directory / "failed", case.id)
    path = subject_path(directory, case.id) if verdict.passed else failed
    save_transformer(path, stored, seed=config.seed, meta={"report": report}, command=command)
    # The hash in the file says that what is there is what was verified.
    load_transformer(path)
    if verdict.passed:
        failed.unlink(missing_ok=True)
    return Built(id=case.id, path=path, verdict=verdict, steps=result.steps, report=report)
