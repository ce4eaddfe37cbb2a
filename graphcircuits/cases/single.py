"""One subject, trained here and now: a program of one's own in, a transformer that follows it out.

1. The program answers inputs to train on, to decide when training is done, and to judge by
   (`prepare`), as for a build.
2. A fleet of one subject is trained by the recipe of its kind, but for the settings that are given.
3. What came of it is verified on inputs that nothing has seen, with the weights rounded to half
   precision as a file would hold them.

`build` does this for many subjects side by side, and keeps them in files.
"""

import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch

from graphcircuits.cases.build import Finished, finished, start_of, training
from graphcircuits.cases.case import Case
from graphcircuits.cases.multitask import TaskCase
from graphcircuits.cases.orders import Order
from graphcircuits.cases.prepare import BuildConfig, prepare
from graphcircuits.fleets.recipes import SiitConfig
from graphcircuits.fleets.train import FleetProgress, train_fleet


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
    whole = case.model if isinstance(case, TaskCase) else case
    data = prepare(order, whole, config)
    if isinstance(data, str):
        raise ValueError(data)
    generator = torch.Generator(device).manual_seed(order.seed)
    start = start_of(order, whole, widen)
    trained = train_fleet([start], [data.train], [data.check], siit, generator, progress)
    (made,) = finished(trained, [order], [data], config, device)
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
