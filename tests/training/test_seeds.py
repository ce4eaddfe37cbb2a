"""Seeds of a training as jobs, and the words that say where jobs are worked on."""

from pathlib import Path

import pytest
import torch

from graphcircuits.jobs.runner import InProcess
from graphcircuits.predictor.model import PredictorConfig
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import read_examples
from graphcircuits.training.seeds import SeedLesson, train_seeds
from graphcircuits.training.sources import shipped_sources
from graphcircuits.training.train import ensemble_of
from tests.shell import Command, refused


@pytest.mark.slow
def test_seeds_as_jobs_make_the_same_predictor(tmp_path: Path) -> None:
    config = TrainConfig(
        steps=3, every=2, views=1, pairs=4, predictor=PredictorConfig(width=8, layers=1)
    )
    ids = ["ib-7", "ib-2"]
    examples = read_examples(ids, config)
    sources = tuple(shipped_sources(ids))
    lesson = SeedLesson(learned=sources, config=config, checkpoints=tmp_path / "kept")
    heard: list[tuple[int, int]] = []
    found = train_seeds(
        lesson,
        examples,
        seeds=[1, 0],
        runner=InProcess(),
        progress=lambda *x: heard.append(x),
    )
    expected = ensemble_of(examples, config, seeds=[1, 0])
    assert heard == [(1, 2), (2, 2)]
    assert found.origin == expected.origin
    for one, two in zip(found.members, expected.members, strict=True):
        weights = two.state_dict()
        assert all(torch.equal(x, weights[name]) for name, x in one.state_dict().items())
    # Its checkpoints are those of any training.
    kept = sorted(path.name for path in lesson.checkpoints.iterdir())
    assert kept == ["seed0.safetensors", "seed1.safetensors"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("bench --ray --processes 2", "--processes and --ray exclude each other; give one of them"),
        ("bench --ray a:b", "--ray must be auto or HOST:PORT of a Ray cluster, got 'a:b'"),
        ("build --ray ib-3 --device cuda:1", "--device must be cpu or cuda with --ray, got 'cuda:"),
        ("build --program p.py:f --ray", "--program cannot be sent to other machines; build it wi"),
        ("train --out a.safetensors --ray --tensorboard b", "--tensorboard hears nothing of train"),
        pytest.param(
            "bench --methods eap --cases ib-3 --ray 127.0.0.1:1",
            "no Ray cluster answers at 127.0.0.1:1",
            marks=pytest.mark.slow,  # it imports Ray
        ),
    ],
)
def test_words_that_say_where_are_checked(command: Command, words: str, text: str) -> None:
    refused(command(*words.split()), text)


@pytest.mark.parametrize("name", ["bench", "build", "train"])
def test_help_says_how(command: Command, name: str) -> None:
    told = command(name, "--help").out
    assert "--ray" in told
    assert "[ADDRESS]" in told
