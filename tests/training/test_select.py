"""Choosing by cross-validation: scores by hand, ties, and a search that goes on."""

import tomllib
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphcircuits.corpus import case_ids, load_case
from graphcircuits.predictor.model import Predictor, PredictorConfig
from graphcircuits.store import load_artifact, load_config
from graphcircuits.training import select as module
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example
from graphcircuits.training.select import (
    GRID,
    GRIDS,
    KIND,
    Choice,
    choose,
    main,
    report,
    score,
    search,
    to_toml,
)
from graphcircuits.training.train import TrainedPredictor
from tests.predictor.cases import make_examples, small, training

pytestmark = pytest.mark.usefixtures("unchecked")

# Two groups in fold 0, one in fold 1.
PLACES = {"a": (0, "a"), "b": (0, "a"), "c": (0, "c"), "d": (1, "d"), "e": (1, "d")}


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of five cases in two folds."""

    def place(id: str) -> SimpleNamespace:
        fold, group = PLACES[id]
        return SimpleNamespace(fold=fold, group=group)

    monkeypatch.setattr(module, "load_case", place)
    monkeypatch.setattr(module, "select_cases", lambda selection: (list(PLACES), []))


def record(**by_case: float) -> dict[str, Any]:
    """A step's record; the head level has the opposite order."""
    return {
        "loss": 1.0,
        "cases": {case: {"qkv": value, "head": 1 - value} for case, value in by_case.items()},
    }


@pytest.mark.usefixtures("pool")
def test_folds_weigh_by_their_groups() -> None:
    histories = {
        0: {
            10: record(a=0.6, b=0.9, c=0.9),
            20: record(a=1, b=1, c=1),
            30: record(a=0, b=0, c=0),
        },
        1: {10: record(d=0.5, e=0.7), 20: record(d=0.1, e=0.3)},
    }
    # Means of 0.8 and 0.6, then of 1 and 0.2, at two to one; step 30 is not in every fold.
    found = score(histories)
    assert list(found) == [10, 20]
    assert list(found.values()) == pytest.approx([2.2 / 3, 2.2 / 3])
    assert list(score(histories, "head").values()) == pytest.approx([0.8 / 3, 0.8 / 3])
    assert score({1: histories[1]}) == pytest.approx({10: 0.6, 20: 0.2})


def test_real_folds_have_the_weights_of_the_split() -> None:
    """One group in a fold is never divided by another."""
    histories = {}
    groups = []
    for fold in range(2):
        ids = case_ids(split=f"fold-{fold}")
        groups.append(len({load_case(id).group for id in ids}))
        histories[fold] = {5: record(**dict.fromkeys(ids, float(fold)))}
    assert score(histories)[5] == pytest.approx(groups[1] / sum(groups))


def test_the_best_wins_and_the_earlier_step_among_equals() -> None:
    one, two, three = (training(lr=lr, steps=100) for lr in (0.1, 0.2, 0.3))
    scores = {one: {25: 0.7, 50: 0.9}, two: {25: 0.9, 50: 0.8}, three: {25: 0.1, 75: 0.9}}
    found = choose(scores)
    assert found == Choice(config=two, step=25, score=0.9)
    assert found.final == replace(two, stop=25)
    assert choose({one: {25: 0.7, 50: 0.71}}).step == 50


def test_a_choice_is_a_file_that_can_be_trained_from(tmp_path: Path) -> None:
    configs = [
        TrainConfig(),
        training(
            PredictorConfig(learner="factorized", width=64, dropout=0.25, connectivity="none"),
            lr=1e-5,
            stop=3,
            batch=2,
            labels="complete",
        ),
        *GRID,
    ]
    for config in configs:
        text = to_toml(config)
        assert load_config(TrainConfig, tomllib.loads(text)) == config
    path = tmp_path / "choice.toml"
    path.write_text(to_toml(configs[1]))
    assert load_config(TrainConfig, path) == configs[1]
    assert 'learner = "factorized"' in path.read_text()


def test_the_grid_has_as_many_settings_as_the_paper_s() -> None:
    assert len(set(GRID)) == 18


@pytest.mark.usefixtures("pool")
def test_a_search_goes_on_where_it_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_examples(small())
    read: list[TrainConfig] = []
    trained: list[tuple[float, tuple[str, ...], tuple[str, ...]]] = []

    def read_examples(ids: Sequence[str], config: TrainConfig) -> list[Example]:
        """Two views per case."""
        read.append(config)
        return [replace(made[view], case=id) for id in ids for view in range(2)]

    def train(
        examples: Sequence[Example],
        config: TrainConfig,
        *,
        seed: int,
        validation: Sequence[Example],
        device: str,
    ) -> TrainedPredictor:
        inside, outside = (tuple(x.case for x in part) for part in (examples, validation))
        trained.append((config.lr, inside, outside))
        history = {2: record(**dict.fromkeys(outside, config.lr))}
        return TrainedPredictor(Predictor(config.predictor), history, 0)

    monkeypatch.setattr(module, "read_examples", read_examples)
    monkeypatch.setattr(module, "train", train)
    grid = [training(lr=0.1), training(lr=0.2), training(lr=0.2, pairs=5)]
    found = []
    for result in search(grid, tmp_path, folds=(0, 1)):
        found.append(result)
        if len(found) == 3:
            break
    # No case of the held-out fold is trained on, and each of them is scored once.
    assert trained == [
        (0.1, ("d", "d", "e", "e"), ("a", "b", "c")),
        (0.1, ("a", "a", "b", "b", "c", "c"), ("d", "e")),
        (0.2, ("d", "d", "e", "e"), ("a", "b", "c")),
    ]
    # Settings that read cases alike share what was read.
    assert len(read) == 1
    whole = list(search(grid, tmp_path, folds=(0, 1)))
    assert [(config.lr, config.pairs, fold) for config, fold, _ in whole] == [
        (config.lr, config.pairs, fold) for config in grid for fold in (0, 1)
    ]
    assert whole[:3] == found
    assert len(trained) == 6
    assert [config.pairs for config in read] == [64, 64, 5]
    assert list(search(grid, tmp_path, folds=(0, 1))) == whole
    assert len(trained) == 6
    # Another seed is another training, and a damaged file is made again.
    next(search(grid, tmp_path, seed=1, folds=(0,)))
    assert len(trained) == 7
    files = sorted(tmp_path.iterdir())
    assert len(files) == 7
    assert {load_artifact(path, KIND).config["fold"] for path in files} == {0, 1}
    for path in files:
        path.write_text(path.read_text()[:-20])
    assert list(search(grid, tmp_path, folds=(0, 1))) == whole
    assert len(trained) == 13


def test_the_search_reads_the_pool_alone_and_names_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Enough(Exception):
        pass

    seen: list[str] = []

    def read_examples(ids: Sequence[str], config: TrainConfig) -> list[Example]:
        seen.extend(ids)
        raise Enough

    monkeypatch.setattr(module, "read_examples", read_examples)
    with pytest.raises(Enough):
        next(search(GRID, tmp_path))
    assert {load_case(id).split for id in seen} == {"pool"}
    lacking = [id for id in case_ids(split="pool") if id not in seen]
    assert lacking
    assert caplog.messages == [f"left out, no subject is shipped: {', '.join(lacking)}"]


def test_comparisons_change_one_thing() -> None:
    for name in ("connectivity", "parts"):
        first, *others = GRIDS[name]
        for config in others:
            changed = [
                field.name
                for field in fields(PredictorConfig)
                if getattr(config.predictor, field.name) != getattr(first.predictor, field.name)
            ]
            assert len(changed) == 1
            assert replace(config, predictor=first.predictor) == first


def test_the_report_is_of_the_best_step() -> None:
    deep, flat = "ib-2", "ib-7"
    assert load_case(deep).graph.n_layers >= 4 > load_case(flat).graph.n_layers
    histories = {
        GRID[0]: {0: {5: record(**{flat: 0.2, deep: 0.4}), 9: record(**{flat: 1, deep: 0})}}
    }
    scores = {GRID[0]: {5: 0.25, 9: 0.75}}
    row = report(scores, histories).splitlines()[-1]
    # Heads have the opposite order: 0 and 1 at step 9, and the deep case has 1.
    assert row == (
        "| width 32, 2 layers, dropout 0.0 | 0.7500 | 9 "
        "| 0.000 | 0.250 | 0.500 | 0.750 | 1.000 | 1.000 |"
    )


def test_what_is_stored_is_reported_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "read_examples", None)
    assert list(search(GRID, tmp_path, stored=True)) == []
    given = ["select", "--out", str(tmp_path), "--stored"]
    monkeypatch.setattr("sys.argv", given)
    with pytest.raises(SystemExit, match="holds no setting that was trained on all folds"):
        main()
