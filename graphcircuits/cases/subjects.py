"""Train subjects side by side and verify them, in memory, on data that `prepare` computed.

A single subject, a folder of them (`build.py`) and a corpus all go through `train_together`, and
are measured by `verified` with the weights rounded to half precision as files hold them.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch

from graphcircuits.cases.architectures import ARCHITECTURES
from graphcircuits.cases.case import Case
from graphcircuits.cases.multitask import TaskCase
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import BuildConfig, Data, prepare
from graphcircuits.fleets.recipes import SiitConfig, recipe
from graphcircuits.fleets.train import FleetProgress, Keep, TrainedSubject, train_fleet
from graphcircuits.fleets.verify import Verdict, verify_fleet
from graphcircuits.subject.transformer import Transformer, TransformerConfig

WIDTHS = (16, 64)
"""Subjects between the same of these widths share a fleet: padding costs less than another one."""
LONG = 16
"""Contexts beyond this have a fleet of their own."""
MOST = 128
"""Subjects in a fleet: as many keep a GPU busy."""


def training(order: Order, siit: SiitConfig | None = None) -> SiitConfig:
    """How the subject is trained: by the recipe of its fleet, or as given; on the task alone with
    the weight decay and dropout of its architecture."""
    given = recipe(order.fleet) if siit is None else siit
    if order.fleet != "natural":
        return given
    architecture = ARCHITECTURES[order.architecture]
    return replace(given, weight_decay=architecture.weight_decay, dropout=architecture.dropout)


def fleets_of(
    orders: Sequence[Order], configs: Sequence[TransformerConfig], most: int = MOST
) -> list[list[int]]:
    """Which subjects train side by side: one fleet and architecture, equal layers and heads,
    similar sizes; not more than `most`."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, (order, config) in enumerate(zip(orders, configs, strict=True)):
        width = next((w for w in WIDTHS if config.d_model <= w), math.inf)
        # Rotation depends on the width of the head, so padding would change it.
        d_head = config.d_head if config.positions == "rotary" else None
        shape = (width, config.n_layers, config.n_heads, config.n_ctx > LONG, d_head)
        groups.setdefault((order.fleet, order.architecture, *shape), []).append(i)
    return [
        groups[key][start : start + most]
        for key in sorted(groups, key=str)
        for start in range(0, len(groups[key]), most)
    ]


def start_of(order: Order, data: Data) -> Transformer:
    """The random weights that training starts from."""
    return Transformer.random(data.config, torch.Generator().manual_seed(order.seed), data.codec)


def train_together(
    data: Mapping[Order, Data],
    siit: SiitConfig,
    seed: int,
    *,
    device: str = "cpu",
    progress: FleetProgress | None = None,
    deadline: float = math.inf,
    keep: Keep | None = None,
) -> list[TrainedSubject]:
    """Train one fleet, each subject from the random weights of its order's seed.

    `seed` draws the batches; the rest is passed to `fleets.train.train_fleet`.
    """
    return train_fleet(
        [start_of(order, one) for order, one in data.items()],
        [one.train for one in data.values()],
        [one.check for one in data.values()],
        siit,
        torch.Generator(device).manual_seed(seed),
        progress,
        deadline,
        keep,
    )


# --- what came of it -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Finished:
    """A subject with the weights that are stored, and how well it does its task."""

    order: Order
    subject: Transformer
    """In half precision; from `Case.train` the same numbers in single precision."""
    report: dict[str, Any]

    @property
    def passed(self) -> bool:
        return self.report["passed"]


def verified(
    trained: Sequence[TrainedSubject],
    data: Mapping[Order, Data],
    config: BuildConfig,
    device: str = "cpu",
) -> list[Finished]:
    """The subjects of a fleet, or some of them, measured all at once on inputs that nothing has
    seen, with the weights that will be stored."""
    first = next(iter(data))
    stored = [one.subject.to(torch.float16) for one in trained]
    verdicts = verify_fleet(
        [subject.to(torch.float32) for subject in stored],
        [one.unseen for one in data.values()],
        torch.Generator(device=device).manual_seed(first.seed + 1),
        training(first, config.siit).tolerance,
    )
    return [
        Finished(order, subject, _report(order, subject, tasks, one.steps, config))
        for order, subject, tasks, one in zip(data, stored, verdicts, trained, strict=True)
    ]


def _report(
    order: Order, subject: Transformer, verdicts: Sequence[Verdict], steps: int, config: BuildConfig
) -> dict[str, Any]:
    """What is known of a subject: how well it does its task; of several the worst, and each."""
    each = [_measures(order, verdict) for verdict in verdicts]
    if len(each) > 1:
        assert subject.codec is not None
        # Those by component are another matter.
        numbers = [name for name, value in each[0].items() if not isinstance(value, dict)]
        worst = {n: (max if n == "loss" else min)(one[n] for one in each) for n in numbers}
        measures = {**worst, "tasks": dict(zip(subject.codec.tasks, each, strict=True))}
    else:
        (measures,) = each
    return {**asdict(order), **measures, "steps": steps, "widened": config.widen != 1.0}


def _measures(order: Order, verdict: Verdict) -> dict[str, Any]:
    """Of one task; what trained on the task alone has no circuit to be measured by."""
    plain = {
        "passed": verdict.passes(order.fleet),
        "accuracy": verdict.accuracy,
        "loss": verdict.loss,
    }
    if order.fleet == "natural":
        return plain
    return plain | {
        "worst_interchange": verdict.worst_interchange,
        "worst_strict": verdict.worst_strict,
        "circuit_accuracy": verdict.circuit,
        "interchange": verdict.interchange,
        "strict": verdict.strict,
    }


# --- a single subject ----------------------------------------------------------------------------


def train_subject(
    case: Case,
    order: Order,
    settings: Mapping[str, Any],
    *,
    widen: float = 1.0,
    device: str = "cpu",
    progress: FleetProgress | None = None,
) -> Finished:
    """The subject of an order and its report, in single precision; `settings` are those of
    `SiitConfig` that differ from the recipe. A subject that does not pass is warned of."""
    known = [field.name for field in fields(SiitConfig)]
    strange = sorted(settings.keys() - set(known))
    if strange:
        raise ValueError(f"unknown settings {', '.join(strange)}; there are {', '.join(known)}.")
    siit = replace(training(order), **settings)
    config = BuildConfig(siit=siit, widen=widen)
    data = prepare(order, case.model if isinstance(case, TaskCase) else case, config)
    if isinstance(data, str):
        raise ValueError(data)
    alone = {order: data}
    trained = train_together(alone, siit, order.seed, device=device, progress=progress)
    (made,) = verified(trained, alone, config, device)
    if not made.passed:
        warnings.warn(_failure(case.id, made.report), stacklevel=3)
    subject = made.subject.to(torch.float32).to(device)
    return replace(made, subject=replace(subject, case=case.id))


def _failure(id: str, report: Mapping[str, Any]) -> str:
    """What fell short, and what to try."""
    names = ("accuracy", "worst_interchange", "worst_strict")
    shares = [f"{name.replace('_', ' ')} {report[name]:.3f}" for name in names if name in report]
    return (
        f"the subject of case {id!r} does not follow its program after {report['steps']} steps "
        f"({', '.join(shares)}); train it for more steps, wider, or from another seed."
    )
