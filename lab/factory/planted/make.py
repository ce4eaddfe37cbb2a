"""Making planted language models of one design: trained, written, read back, judged, kept.

Each file is a subject's: weights in half precision, configuration, tokens, and the report. The
report has the design and the places of every call, so that the file says all there is to know.
"""

import math
from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphcircuits.cases.language import LANGUAGE, LanguageModel, load_language
from graphcircuits.cases.tokens import text_codec
from graphcircuits.fleets.exchange import Exchange
from graphcircuits.fleets.fleet import form, stack
from graphcircuits.io.files import StoreError
from graphcircuits.io.store import load_artifact
from graphcircuits.subject.files import load_transformer, save_transformer
from graphcircuits.subject.transformer import Transformer
from lab.factory.language.train import task_shares
from lab.factory.planted.judge import MOST_LOST, judge_calls
from lab.factory.planted.prompts import call_exchange
from lab.factory.planted.train import PlantingConfig, Rows, Trained, held_out_losses, train_planted

UNSEEN, UNSEEN_INTERCHANGES = 1024, 512
"""Prompts of each call that a model is judged on, and interchanges of each component."""


@dataclass(frozen=True)
class PlantingJob:
    """Models of one design to make, of what lies in a folder of tokens."""

    models: tuple[LanguageModel | str, ...]
    """Those at hand, or ids of the benchmark's, which can be sent to another process."""
    folder: Path
    tokens: Path
    """Where `train-SIZE.npy` and `held_out-SIZE.npy` are."""
    config: PlantingConfig
    device: str
    command: str

    @property
    def loaded(self) -> list[LanguageModel]:
        return [load_language(x) if isinstance(x, str) else x for x in self.models]


def path_of(folder: Path, id: str) -> Path:
    return folder / f"{id}.safetensors"


def make_planted(job: PlantingJob) -> Generator[dict[str, Any], None, None]:
    """Train, write, read back and judge.

    Yields rows of the learning curves, each with the id of its model, and the reports.
    """
    models, config = job.loaded, job.config
    design = models[0].design
    text, held_out = (
        torch.from_numpy(np.load(job.tokens / f"{name}-{design.vocabulary}.npy").astype(np.int16))
        for name in ("train", "held_out")
    )
    device = torch.device(job.device)
    text, held_out = text.to(device), held_out.to(device)
    generator = torch.Generator(device).manual_seed(models[0].seed)
    codec = text_codec(design.vocabulary)
    training = train_planted(
        [
            Transformer.random(design.config, torch.Generator().manual_seed(x.seed), codec)
            for x in models
        ],
        [exchanges(model, config.inputs, config.interchanges, 0) for model in models],
        [exchanges(model, UNSEEN, UNSEEN_INTERCHANGES, 1) for model in models],
        text,
        held_out,
        config,
        generator,
    )
    trained = yield from _told(models, training)
    job.folder.mkdir(parents=True, exist_ok=True)
    for model, one in zip(models, trained, strict=True):
        half = {name: getattr(one, name).to(torch.float16) for name in _BOTH}
        report = _report(model, one, config, len(models))
        report |= _text(half["planted"], half["twin"], held_out)
        subject = half["planted"].to(torch.float32).to(job.device)
        unseen = exchanges(model, UNSEEN, UNSEEN_INTERCHANGES, 2)
        report["calls"] = judge_calls(subject, model.cases, unseen, generator)
        report["tasks"] = _tasks(half["planted"], model, job.device)
        report["twin_tasks"] = _tasks(half["twin"], model, job.device)
        report["passed"] = report["perplexity_ratio"] <= MOST_LOST
        path = path_of(job.folder, model.id)
        meta = {"report": report}
        save_transformer(path, half["planted"], seed=model.seed, meta=meta, command=job.command)
        load_transformer(path)
        yield report


def exchanges(model: LanguageModel, n: int, n_interchanges: int, which: int) -> list[Exchange]:
    """Of each call: 0 to train on, 1 to check by, 2 that judge what came of it."""
    seed = 1000 * model.seed + 10_000_000 * which
    return [call_exchange(x, n, n_interchanges, seed + i) for i, x in enumerate(model.cases)]


def _told(
    models: list[LanguageModel], training: Generator[Rows, None, list[Trained]]
) -> Generator[dict[str, Any], None, list[Trained]]:
    """The rows of all models with their ids."""
    while True:
        try:
            rows = next(training)
        except StopIteration as ended:
            return ended.value
        for model, row in zip(models, rows, strict=True):
            yield {"model": model.id, **row}


_BOTH = ("planted", "twin")


def _report(
    model: LanguageModel, trained: Trained, config: PlantingConfig, together: int
) -> dict[str, Any]:
    return {
        "case": model.id,
        "fleet": LANGUAGE,
        **_planned(model, config),
        "split": model.split,
        "fold": model.fold,
        "curve": list(trained.curve),
        "steps": trained.steps,
        "seconds": round(trained.seconds, 1),
        "together": together,
        "parameters": sum(weight.numel() for weight in trained.planted.weights.values()),
    }


def _planned(model: LanguageModel, config: PlantingConfig) -> dict[str, Any]:
    return {
        "design": asdict(model.design),
        "shared": model.shared,
        "places": {name: dict(places) for name, places in model.places.items()},
        "training": settings(config),
    }


def _text(planted: Transformer, twin: Transformer, held_out: torch.Tensor) -> dict[str, float]:
    """The loss of both on held-out text, as stored, and the ratio of their perplexities."""
    subjects = [one.to(torch.float32).to(str(held_out.device)) for one in (planted, twin)]
    both = form([one.config for one in subjects]).to(held_out.device)
    with torch.no_grad():
        weights = stack(both, subjects)
        own, other = held_out_losses(both, weights, held_out).tolist()
    ratio = float(np.exp(own - other))
    return {"loss": own, "twin_loss": other, "perplexity_ratio": ratio}


def _tasks(subject: Transformer, model: LanguageModel, device: str) -> dict[str, float]:
    """The share of prompts of each language task that it can be asked."""
    able = replace(subject.to(torch.float32).to(device), tokenizer=model.tokenizer())
    return task_shares(able)[0]


def settings(config: PlantingConfig) -> dict[str, Any]:
    """What a file says of them; JSON has no number for no limit."""
    return {k: None if v == math.inf else v for k, v in asdict(config).items()}


def finished(path: Path, model: LanguageModel, config: PlantingConfig) -> dict[str, Any] | None:
    """The report of a model that is there, planted alike and made with these settings; None if it
    is to be made."""
    try:
        artifact = load_artifact(path, "transformer")
        report = artifact.meta["report"]
    except (OSError, StoreError, KeyError):
        return None
    planned = _planned(model, config)
    alike = artifact.seed == model.seed and planned == {x: report.get(x) for x in planned}
    return report if alike else None
