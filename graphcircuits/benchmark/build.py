"""Train subjects for cases, verify them after reloading, and keep those that pass.

1. For every case, inputs and the program's answers are computed ahead of training.
2. Cases of equal depth and similar width form a fleet and train side by side.
3. Each subject is written, read back, and verified on inputs that nothing has seen. One that
   passes stays, with its report in the file; one that fails is set aside under `failed/`, from
   where a later build takes it up again.

A subject that passes is written at once, so that a build that is stopped goes on where it was.
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

from graphcircuits.benchmark import FAMILIES, load_case
from graphcircuits.benchmark.case import Case
from graphcircuits.benchmark.samplers import draw
from graphcircuits.codec import Codec
from graphcircuits.siit.exchange import Exchange, exchange
from graphcircuits.siit.train import Progress, SiitConfig, Trained, train_fleet
from graphcircuits.siit.verify import Verdict, verify
from graphcircuits.store import load_artifact, load_transformer, save_transformer
from graphcircuits.transformer import Transformer, TransformerConfig

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
    pairs: int = 4096
    """Interchanges of each component that it trains on."""
    verify_inputs: int = 4096
    verify_pairs: int = 1024
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


def case_exchange(case: Case, inputs: int, pairs: int, seed: int) -> Exchange:
    """Inputs drawn by the case's sampler with the program's answers; refuses constant outputs."""
    generator = torch.Generator().manual_seed(seed)
    length = case.max_seq_len - 1
    codes = draw(case.sampler, case.tables.vocab, length, inputs, generator).numpy()
    drawn = exchange(case.tables, case.layout, codes, pairs, generator)
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


def subject_path(directory: Path, id: str) -> Path:
    return directory / f"{id}.safetensors"


def build(
    cases: Sequence[Case],
    directory: Path,
    config: BuildConfig,
    *,
    device: str = "cpu",
    command: str | None = None,
    progress: Progress | None = None,
    deadline: float = math.inf,
) -> Iterator[Built]:
    """Build the cases that the directory has no passing subject for; yields them fleet by fleet.

    Cases that nothing can be trained for are refused, by an error after all others are done.
    """
    by_id = {case.id: case for case in cases if not subject_path(directory, case.id).exists()}
    prepared = dict(zip(by_id, _prepare(list(by_id.values()), config), strict=True))
    refused = [data for data in prepared.values() if isinstance(data, str)]
    todo = [case for id, case in by_id.items() if not isinstance(prepared[id], str)]
    starts = [_start(case, directory, config) for case in todo]
    for members in fleets([subject.config for subject in starts]):
        if time.monotonic() >= deadline:
            log.warning("out of time: %d cases left untrained", len(members))
            continue
        fleet = [(todo[i], starts[i], prepared[todo[i].id]) for i in members]
        yield from _build_fleet(fleet, directory, config, device, command, progress, deadline)
    if refused:
        raise ValueError("\n".join(refused))


def _build_fleet(
    fleet: Sequence[tuple[Case, Transformer, Any]],
    directory: Path,
    config: BuildConfig,
    device: str,
    command: str | None,
    progress: Progress | None,
    deadline: float,
) -> list[Built]:
    """Train cases side by side; each is written when it passes, the others at the end."""
    cases, starts, data = zip(*fleet, strict=True)
    began = time.monotonic()
    built: dict[int, Built] = {}

    def keep(place: int, result: Trained) -> None:
        seconds = (time.monotonic() - began) / len(cases)
        case = cases[place]
        built[place] = _finish(case, result, directory, config, device, command, seconds)

    generator = torch.Generator(device=device).manual_seed(config.seed)
    exchanges, checks = zip(*data, strict=True)
    trained = train_fleet(
        starts, exchanges, checks, config.siit, generator, progress, deadline, keep
    )
    log.info("fleet of %d: %.0f s", len(cases), time.monotonic() - began)
    for place, result in enumerate(trained):
        if place not in built:
            keep(place, result)
    return [built[place] for place in range(len(cases))]


Prepared = tuple[Exchange, Exchange] | str
"""Training and checking data, or why there is none."""


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
        return (
            case_exchange(case, config.inputs, config.pairs, seed + 1),
            case_exchange(case, config.verify_inputs, config.verify_pairs, seed + 2),
        )
    except ConstantOutputError as error:
        return str(error)


def _start(case: Case, directory: Path, config: BuildConfig) -> Transformer:
    """Random weights, or those of a build that did not pass, if size and symbols are the same."""
    wanted, codec = subject_config(case, config.widen), subject_codec(case)
    failed = subject_path(directory / "failed", case.id)
    if failed.exists():
        subject = load_transformer(failed).to(torch.float32)
        if (subject.config, subject.codec) == (wanted, codec):
            return subject
    generator = torch.Generator().manual_seed(config.seed)
    return Transformer.random(wanted, generator, codec)


def _finish(
    case: Case,
    result: Trained,
    directory: Path,
    config: BuildConfig,
    device: str,
    command: str | None,
    seconds: float,
) -> Built:
    """Write, read back, verify on unseen inputs; keep or set aside."""
    draft = subject_path(directory / "failed", case.id)
    draft.parent.mkdir(parents=True, exist_ok=True)
    stored = result.subject.to(torch.float16)
    save_transformer(draft, stored, seed=config.seed, command=command)
    unseen = case_exchange(case, config.verify_inputs, config.verify_pairs, 1000 * config.seed + 3)
    reloaded = load_transformer(draft).to(torch.float32)
    generator = torch.Generator(device=device).manual_seed(config.seed + 1)
    verdict = verify(reloaded, unseen, generator, config.siit.tolerance)
    report = {
        "case": case.id,
        "passed": verdict.passed,
        "accuracy": verdict.accuracy,
        "worst_interchange": verdict.worst_interchange,
        "worst_strict": verdict.worst_strict,
        "circuit_accuracy": verdict.circuit,
        "interchange": verdict.interchange,
        "strict": verdict.strict,
        "steps": result.steps,
        "seconds": round(seconds, 2),
        "widened": reloaded.config.d_model != case.subject_dims.d_model,
        "build": {**asdict(replace(config, processes=1)), "device": torch.device(device).type},
    }
    final = subject_path(directory, case.id) if verdict.passed else draft
    save_transformer(final, stored, seed=config.seed, meta={"report": report}, command=command)
    if verdict.passed:
        draft.unlink()
    return Built(id=case.id, path=final, verdict=verdict, steps=result.steps, report=report)


def read_report(path: Path) -> dict[str, Any]:
    """The report stored with a subject; the file's hash is checked on the way."""
    report = load_artifact(path, "transformer").meta.get("report")
    if report is None:
        raise ValueError(
            f"{path} holds a transformer without a report: it was not built as a case."
        )
    return report
