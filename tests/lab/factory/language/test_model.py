"""One small language model: what is kept is what was read back and judged."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphcircuits.adapters.load import load_model
from lab.factory.language import folder as folders
from lab.factory.language import model as models
from lab.factory.language import train as training
from lab.factory.language.designs import Design
from lab.factory.language.model import LanguageConfig, ModelJob, make_model
from lab.factory.language.train import held_out_loss
from tests.lab.factory.language.texts import write_data

CONFIG = LanguageConfig(steps=2, batch=256)


def job(tmp_path: Path, bigram_loss: float, config: LanguageConfig = CONFIG) -> ModelJob:
    (tmp_path / "models").mkdir()
    data = write_data(tmp_path / "data", bigram_loss=bigram_loss)
    return ModelJob(Design.parse("gqa-1x32-chars"), tmp_path / "models", data, config, "cpu")


def report_of(job: ModelJob) -> dict[str, Any]:
    *steps, report = make_model(job)
    assert all(isinstance(step, tuple) for step in steps)
    assert isinstance(report, dict)
    return report


@pytest.fixture
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "task_shares", lambda subject: ({"quotes": 0.9}, {"ioi": "no"}))


def test_what_is_kept(tmp_path: Path, few_tasks: None) -> None:
    one = job(tmp_path, bigram_loss=100.0)
    before = torch.get_rng_state()
    report = report_of(one)
    assert torch.equal(torch.get_rng_state(), before)
    assert report == folders.finished(one.folder, "gqa-1x32-chars")
    assert report["problem"] is None
    assert (report["tasks"], report["not_asked"]) == ({"quotes": 0.9}, {"ioi": "no"})
    assert load_model(one.folder / "gqa-1x32-chars").dtype == torch.bfloat16
    subject = load_model(one.folder / "gqa-1x32-chars", dtype=torch.float32)
    assert subject.config.n_groups == 2
    assert len(subject.tokenizer("abc")["input_ids"]) == 3
    stream = torch.from_numpy(np.load(one.data / "chars" / "held_out.npy").astype(np.int16))
    assert report["loss"] == held_out_loss(subject, stream, 256)
    assert report["bits_per_character"] == pytest.approx(report["loss"] / math.log(2))
    assert [path.name for path in one.folder.iterdir()] == ["gqa-1x32-chars"]


def test_one_that_does_not_learn_is_reported(tmp_path: Path) -> None:
    one = job(tmp_path, bigram_loss=1.5)
    report = report_of(one)
    error = f"its held-out loss of {report['loss']:.3f} is not below 1.500, what counts of"
    assert report["problem"].startswith(error)
    assert report == folders.finished(one.folder, "gqa-1x32-chars")
    assert [path.name for path in one.folder.iterdir()] == ["failed"]


def test_one_that_blows_up_is_reported(tmp_path: Path) -> None:
    one = job(tmp_path, 100.0, LanguageConfig(steps=3, batch=256, lr=1e30))
    report = report_of(one)
    assert (report["problem"], report["loss"]) == ("its loss is not finite", None)


def test_one_that_is_called_off_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "NOTICE", 1)
    one = job(tmp_path, 100.0)
    before = torch.get_rng_state()
    making = make_model(one)
    assert isinstance(next(making), tuple)
    making.close()
    assert torch.equal(torch.get_rng_state(), before)
    assert not one.folder.exists() or list(one.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (
            {"steps": 0, "seed": -1},
            "steps must be 1 or more, got 0; seed must be 0 or more, got -1",
        ),
        ({"batch": 0}, "batch must be 1 or more, got 0."),
        (
            {"lr": math.nan, "mib": 0.0},
            "lr must be a number above 0, got nan; mib must be",
        ),
    ],
)
def test_settings_of_no_training(given: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        LanguageConfig(**given)
