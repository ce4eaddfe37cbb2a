"""Tiny planted models, and text for them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from graphcircuits.cases.calls import CALLS
from graphcircuits.cases.language import Design, LanguageModel, planted_layout
from graphcircuits.cases.tokens import text_codec
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.subject.transformer import Transformer
from lab.factory.planted.prompts import call_exchange
from lab.factory.planted.train import PlantingConfig, Rows, Trained, train_planted

VOCABULARY = 120
"""So few that only the words of the first calls are among them."""
DESIGN = Design(architecture="gpt2", layers=2, heads=2, width=8, vocabulary=VOCABULARY)


def config(**settings: Any) -> PlantingConfig:
    few = {"steps": 4, "text_rows": 3, "rows": 8, "cut_rows": 4, "check_every": 2, "inputs": 32}
    return PlantingConfig(**({**few, "interchanges": 16} | settings))


def model(*names: str, design: Design = DESIGN, **changes: Any) -> LanguageModel:
    """Calls where their programs have them."""
    calls = tuple(CALLS[name] for name in names)
    places = {
        call.name: {one.name: one.name for one in planted_layout(call).components} for call in calls
    }
    return LanguageModel(
        **({"id": "tiny", "design": design, "calls": calls, "places": places} | changes)
    )


def start(one: LanguageModel, n_ctx: int = 16, **options: Any) -> Transformer:
    """Random weights, with a context that is quickly run."""
    generator = torch.Generator().manual_seed(one.seed)
    sizes = replace(one.design.config, n_ctx=n_ctx)
    return Transformer.random(sizes, generator, text_codec(one.design.vocabulary), **options)


def exchanges(one: LanguageModel, seed: int = 0, inputs: int = 32) -> list[Exchange]:
    return [call_exchange(case, inputs, 16, seed) for case in one.cases]


def text(n: int = 600, seed: int = 0) -> Tensor:
    """Every token is one more than the last, or five less."""
    steps = torch.randint(2, (n,), generator=torch.Generator().manual_seed(seed)) * -6 + 1
    return (steps.cumsum(0) % VOCABULARY).short()


def trained(
    models: Sequence[LanguageModel],
    settings: PlantingConfig,
    *,
    seed: int = 0,
    **options: Any,
) -> tuple[list[Rows], list[Trained]]:
    """What training tells, and what comes of it."""
    training = train_planted(
        [start(one, **options) for one in models],
        [exchanges(one) for one in models],
        [exchanges(one, seed=1) for one in models],
        text(),
        text(seed=1),
        settings,
        torch.Generator().manual_seed(seed),
    )
    told = []
    while True:
        try:
            told.append(next(training))
        except StopIteration as ended:
            return told, ended.value
