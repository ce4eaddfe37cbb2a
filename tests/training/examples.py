"""Small examples that can be run: random subjects, readings of them, and prompts to judge by."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from graphcircuits.cases.orders import Order
from graphcircuits.circuit import Circuit
from graphcircuits.methods.eap import eap
from graphcircuits.predictor.model import PredictorConfig, read_case
from graphcircuits.subject.files import save_transformer
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs
from graphcircuits.training.data import Example
from graphcircuits.training.sources import Source
from tests.predictor.cases import make_task, small
from tests.predictor.graphs import seeded
from tests.subjects import make_tokens

PRIOR = small(prior=True)


def judged_pairs(subject: Transformer) -> Pairs:
    clean, corrupted = (make_tokens(subject, seed=seed, batch=4) for seed in (7, 8))
    return Pairs(
        clean=clean,
        corrupted=corrupted,
        scored=torch.ones(clean.shape, dtype=torch.bool),
        loss_name="kl",
    )


def make_judged(
    config: PredictorConfig = PRIOR, count: int = 3, *, labelled: bool = True
) -> list[Example]:
    """Examples of one architecture, and one of another; the last has no labels."""
    found = []
    for seed in range(count + 1):
        other: dict[str, Any] = {"n_layers": 1} if seed == count else {}
        subject, pairs = make_task(seed=seed, **other)
        subject = subject.to(torch.float32)
        reading = read_case(config, subject, pairs, generator=seeded(0))
        effects = eap(subject, pairs)
        mask = effects > effects.quantile(0.75)
        circuit = Circuit.from_mask(subject.graph, mask) if labelled and seed < count else None
        item = (subject, judged_pairs(subject))
        found.append(Example(f"case-{seed}", reading, circuit, item))
    return found


def natural_of(source: Source, folder: Path) -> Source:
    """The same subject under the name of a natural one, whose circuit nobody knows."""
    order = Order(source.task, "natural")
    path = folder / f"{order.id}.safetensors"
    save_transformer(path, source.subject())
    return replace(source, order=order, path=str(path))
