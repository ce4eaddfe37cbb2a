"""Models are trained, written, and judged by what was written."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphcircuits.cases.language import LanguageModel, load_language
from graphcircuits.io.store import load_artifact
from graphcircuits.subject.files import load_transformer, save_transformer
from graphcircuits.subject.transformer import Transformer
from lab.factory.planted import judge, make
from lab.factory.planted.make import (
    PlantingJob,
    exchanges,
    finished,
    make_planted,
    path_of,
    settings,
)
from tests.lab.factory.planted.tiny import VOCABULARY, config, model, start, text

pytestmark = pytest.mark.usefixtures("unchecked")

SETTINGS = config(steps=2)


def tasks(subject: Transformer) -> tuple[dict[str, float], dict[str, str]]:
    """Instead of asking for all of them: how a task would be asked."""
    ids = subject.tokenizer("first : a b")["input_ids"]
    assert subject.codec is not None
    return {"tiny": len(ids) / 4}, {}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "UNSEEN", 24)
    monkeypatch.setattr(make, "UNSEEN_INTERCHANGES", 12)
    monkeypatch.setattr(judge, "PAIRS", 8)
    monkeypatch.setattr(make, "task_shares", tasks)


def job(folder: Path, *models: LanguageModel | str) -> PlantingJob:
    for name, seed in (("train", 0), ("held_out", 1)):
        tokens = text(900, seed).numpy().astype(np.uint16)
        np.save(folder / f"{name}-{VOCABULARY}.npy", tokens)
    return PlantingJob(models, folder / "made", folder, SETTINGS, "cpu", "a command")


def test_what_is_written(tmp_path: Path) -> None:
    models = model("first", id="one"), model("first", "last", id="two", seed=1, shared=False)
    told = list(make_planted(job(tmp_path, *models)))
    rows, reports = told[:2], told[2:]
    assert [(row["model"], row["step"]) for row in rows] == [("one", 2), ("two", 2)]
    assert [report["case"] for report in reports] == ["one", "two"]
    for one, report in zip(models, reports, strict=True):
        path = path_of(tmp_path / "made", one.id)
        stored = load_artifact(path, "transformer")
        assert (stored.seed, stored.command) == (one.seed, "a command")
        # What was told is what is in the file.
        assert stored.meta["report"] == json.loads(json.dumps(report))
        assert {weight.dtype for weight in stored.tensors.values()} == {torch.float16}
        assert finished(path, one, SETTINGS) == stored.meta["report"]
        subject = load_transformer(path).to(torch.float32)
        assert subject.config == one.design.config
        assert subject.codec == one.cases[0].codec
        # What is judged is what was stored.
        for case, drawn in zip(one.cases, exchanges(one, 24, 12, 2), strict=True):
            assert drawn.answers is not None
            right = subject.logits(drawn.tokens)[:, 1:].argmax(-1) == drawn.targets
            share = right[:, drawn.answers].float().mean().item()
            assert report["calls"][case.call.name]["accuracy"] == pytest.approx(share)
        logits = subject.logits(text(900, 1)[: 7 * 128].view(7, 128).long())[:, :-1]
        wanted = text(900, 1)[: 7 * 128].view(7, 128)[:, 1:].long()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        assert report["loss"] == pytest.approx(loss.item(), rel=1e-4)


def test_what_a_report_says(tmp_path: Path) -> None:
    one = model("first", id="one", shared=False)
    *_, report = make_planted(job(tmp_path, one))
    assert report["fleet"] == "language"
    assert report["design"] == asdict(one.design)
    assert report["places"] == {"first": {"a0.h0": "a0.h0"}}
    assert (report["shared"], report["split"], report["fold"]) == (False, None, None)
    assert report["training"] == asdict(SETTINGS) | {"seconds": None}
    assert (report["steps"], report["together"]) == (2, 1)
    assert [row["step"] for row in report["curve"]] == [2]
    ratio = math.exp(report["loss"] - report["twin_loss"])
    assert report["perplexity_ratio"] == pytest.approx(ratio)
    assert report["passed"] == (ratio <= 1.1)
    assert report["tasks"] == report["twin_tasks"] == {"tiny": 1.0}
    start_of = start(one, n_ctx=128)
    assert report["parameters"] == sum(weight.numel() for weight in start_of.weights.values())
    assert list(report["calls"]) == ["first"]


def test_a_model_whose_text_suffers_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make, "held_out_losses", lambda *_: torch.tensor([1.2, 1.0]))
    *_, report = make_planted(job(tmp_path, model("first")))
    assert (report["perplexity_ratio"], report["passed"]) == (pytest.approx(math.exp(0.2)), False)


def test_prompts_of_training_checks_and_verdicts_differ() -> None:
    one, other = model("first", "last"), model("first", "last", seed=1)
    drawn = [exchanges(each, 24, 4, which) for each in (one, other) for which in range(3)]
    tokens = [exchange.tokens[:, 3:] for each in drawn for exchange in each]
    for i, rows in enumerate(tokens):
        assert not any(torch.equal(rows, others) for others in tokens[:i])


def test_models_of_the_benchmark_go_by_their_ids(tmp_path: Path) -> None:
    own = model("first")
    found = job(tmp_path, "plm-0", own).loaded
    assert found == [load_language("plm-0"), own]


def test_what_is_finished(tmp_path: Path) -> None:
    one, path = model("first"), tmp_path / "one.safetensors"
    assert finished(path, one, SETTINGS) is None
    path.write_bytes(b"broken")
    assert finished(path, one, SETTINGS) is None
    save_transformer(path, start(one), seed=0)
    assert finished(path, one, SETTINGS) is None
    report: dict[str, Any] = {
        "design": asdict(one.design),
        "shared": True,
        "places": dict(one.places),
        "training": settings(SETTINGS),
    }
    save_transformer(path, start(one), seed=0, meta={"report": report})
    assert finished(path, one, SETTINGS) == report
    # Made otherwise, it is to be made.
    assert finished(path, one, config(steps=3)) is None
    assert finished(path, one, config(steps=2, seconds=60.0)) is None
    others = (
        model("first", seed=1),
        model("last"),
        model("first", shared=False),
        model("first", places={"first": {"a0.h0": "a1.h0"}}),
    )
    assert [finished(path, other, SETTINGS) for other in others] == [None] * 4
