"""Seeds of a training as jobs of a runner, and how the command line says where they run."""

from pathlib import Path

import pytest
import torch

from graphcircuits.jobs.runner import InProcess
from graphcircuits.predictor.model import PredictorConfig
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.members import Lesson, train_jobs, train_members
from graphcircuits.training.sources import shipped_sources, split
from lab.examples import read_examples
from tests.shell import Command, refused

CONFIG = TrainConfig(
    steps=3, every=2, views=1, pairs=4, predictor=PredictorConfig(width=8, layers=1)
)


@pytest.mark.slow
def test_seeds_as_jobs_make_the_same_predictors(tmp_path: Path) -> None:
    ids = ["ib-7", "ib-2"]
    examples = read_examples(ids, CONFIG)
    lesson = Lesson(sources=tuple(shipped_sources(ids)), config=CONFIG, checkpoints=tmp_path / "it")
    heard: list[tuple[int, int]] = []
    jobs = [(lesson, seed) for seed in (1, 0)]
    result = train_jobs(jobs, runner=InProcess(), progress=lambda *x: heard.append(x))
    expected = train_members(examples, CONFIG, seeds=[1, 0])
    assert heard == [(1, 2), (2, 2)]
    for one, two in zip(result, expected, strict=True):
        weights = two.predictor.state_dict()
        assert all(torch.equal(x, weights[name]) for name, x in one.predictor.state_dict().items())
        assert (one.history, one.step) == (two.history, two.step)
    # Its checkpoints are those of any training.
    names = sorted(path.name for path in (tmp_path / "it").iterdir())
    assert names == ["seed0.safetensors", "seed1.safetensors"]


def test_a_lesson_leaves_out_a_fold_of_what_was_read() -> None:
    sources = tuple(shipped_sources(["ib-7", "ib-2"]))
    examples = read_examples([source.id for source in sources], CONFIG)
    lesson = Lesson(sources=sources, config=CONFIG)
    assert lesson.learned(examples) == examples
    (fold,) = sources[1].folds
    left = [source.id for source in split(sources, fold)[0]]
    without = Lesson(sources=sources, config=CONFIG, without_fold=fold)
    assert [x.case for x in without.learned(examples)] == left == ["ib-7"]


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
