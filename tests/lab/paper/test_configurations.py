"""What a sweep's file says: configurations by name, the grid, and what is refused."""

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from graphcircuits.io.config import load_config
from lab import ROOT
from lab.paper.configurations import (
    PREDICTOR_KEYS,
    TRAIN_KEYS,
    SweepConfig,
    load_sweep,
    setting_name,
    shipped_sweeps,
)
from lab.paper.sweep_rows import CONFIGURATIONS

GRID: dict[str, Any] = {"width": [8, 16], "lr": [0.001, 0.1]}


def made(**given: Any) -> SweepConfig:
    return load_config(SweepConfig, {"aligner": "invariant", "grid": GRID, **given})


def test_every_configuration_is_what_its_name_says() -> None:
    config, found = made(), set()
    for name in config.names:
        own = config.training(name, {}).predictor
        assert name == f"{own.learner}-{own.transformation}-{own.connectivity}"
        assert own.aligner == "invariant"
        found.add(own)
    assert config.names == CONFIGURATIONS
    assert len(found) == 14


def test_settings_are_the_product_of_the_grid_and_the_last_key_is_fastest() -> None:
    config = made(train={"steps": 7, "predictor": {"layers": 3, "width": 99}})
    assert list(config.grid_settings()) == [
        "width=8,lr=0.001",
        "width=8,lr=0.1",
        "width=16,lr=0.001",
        "width=16,lr=0.1",
    ]
    for values in config.grid_settings().values():
        own = config.training("dirgnn-line-none", values)
        assert (own.predictor.width, own.lr) == (values["width"], values["lr"])
        assert (own.steps, own.predictor.layers, own.labels) == (7, 3, "interpbench")
    assert list(made(grid={}).grid_settings()) == ["base"]
    named = {"aggregation": "sum", "readout_norm": True}
    assert setting_name(named) == "aggregation=sum,readout_norm=true"


def test_some_configurations_take_fewer_settings() -> None:
    some = {"default": 1, "dirgnn-line-observed": 3, "dirgnn-line-none": ["width=16,lr=0.1"]}
    config = made(settings_by_configuration=some)
    whole = list(config.grid_settings())
    assert list(config.chosen_settings("factorized-line-none")) == whole[:1]
    assert list(config.chosen_settings("dirgnn-line-observed")) == whole[:3]
    assert list(config.chosen_settings("dirgnn-line-none")) == whole[3:]
    assert list(made().chosen_settings("dirgnn-line-none")) == whole


def test_predictors_have_no_prior() -> None:
    own = made(aligner="tabpfn").training("dirgnn-line-observed", {}).predictor
    assert (own.prior, own.paths) == (False, False)
    own = made().training("dirgnn-line-observed", {}).predictor
    assert (own.prior, own.paths) == (False, False)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"colour": 1}, "unknown key 'colour' (known: aligner, configurations, "),
        ({"aligner": "tabfpn"}, "aligner must be one of invariant, tabpfn, got 'tabfpn'"),
        ({"pool": "ours"}, "pool must be one of pool, paper-pool, interpbench-pool, got 'ours'"),
        ({"fleet": "natural"}, "fleet must be one of planted, public, got 'natural'"),
        ({"evaluate": ["natural"]}, "evaluate must be one of planted, public, got 'natural'"),
        ({"labels": "mine"}, "labels must be one of "),
        ({"seeds": 0}, "seeds must be in 1..100, got 0"),
        ({"folds": []}, "folds must not be empty"),
        ({"configurations": []}, "configurations must not be empty"),
        ({"folds": [1, 1]}, "folds names 1 twice"),
        ({"cases": "some"}, "cases must be a list or 'all', got 'some'"),
        (
            {"configurations": ["dirgn-line-observed"]},
            "unknown configuration 'dirgn-line-observed'; did you mean 'dirgnn-line-observed'? "
            "there are factorized-line-observed, ",
        ),
        (
            {"configurations": "dagformer-line-complete"},
            "dagformer-line-complete is impossible: only factorized takes complete, which joins "
            "every node to all later ones; take dagformer-line-observed or "
            "factorized-line-complete",
        ),
        ({"grid": {"widht": [1]}}, "grid: unknown key 'widht' (did you mean width"),
        ({"grid": {"learner": ["dirgnn"]}}, "grid: learner is not set there; say it in the names"),
        ({"grid": {"stop": [3]}}, "grid: stop is not set there; the step is chosen by"),
        ({"grid": {"width": 8}}, "grid: width must be a list of values, got 8"),
        ({"grid": {"width": []}}, "grid: width must be a list of values, got []"),
        ({"grid": {"width": [8, 8]}}, "grid: width has a value twice: [8, 8]"),
        ({"grid": {"width": [[8]]}}, "grid: width must have plain values, got [8]"),
        ({"grid": {"average": [0.9]}}, "grid: average cannot be set; trainings side by side do"),
        ({"grid": {"steps": list(range(1, 1002))}}, "grid: 1001 settings are more than 1000"),
        (
            {"grid": {"width": [0]}},
            "factorized-line-observed with width=0: predictor: width must be at least 1, got 0",
        ),
        ({"train": {"aligner": "x"}}, "train: aligner is not set there; say aligner at the top"),
        ({"train": {"predictor": 3}}, "train.predictor must be a table, got 3"),
        ({"train": {"keep": "best"}}, "train: keep is not set there; the step is chosen by"),
        ({"train": {"stpes": 3}}, "train: unknown key 'stpes' (did you mean steps"),
        ({"train": {"width": 3}}, "train: width belongs in [train.predictor]"),
        ({"train": {"predictor": {"lr": 3}}}, "train.predictor: lr belongs in [train]"),
        (
            {"train": {"predictor": {"paths": True}}},
            "train.predictor: paths cannot be had; trainings side by side do without; use "
            "graphcircuits train",
        ),
        (
            {"train": {"predictor": {"connectivity": "none"}}},
            "train.predictor: connectivity is not set there; say it in the names of configurations",
        ),
        (
            {"train": {"faithfulness_weight": 1.0}},
            "train: faithfulness_weight cannot be set; trainings side by side do without",
        ),
        (
            {"aligner": "tabpfn", "train": {"predictor": {"prior": True}}},
            "train.predictor: prior is for the invariant aligner, not for tabpfn",
        ),
        (
            {"settings_by_configuration": {"dirgnn": 3}},
            "settings_by_configuration: 'dirgnn' is none of default, factorized-line-observed, ",
        ),
        (
            {"settings_by_configuration": {"default": 5}},
            "settings_by_configuration: default must be in 1..4, the settings of the grid, got 5",
        ),
        (
            {"settings_by_configuration": {"default": ["width=9"]}},
            "settings_by_configuration: default must be a number of settings or a list of their "
            "names, such as 'width=8,lr=0.001', got ['width=9']",
        ),
    ],
)
def test_what_cannot_be_swept_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is compared below
        made(**given)
    assert told in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"pool must be .*; seeds must be .*; grid: unknown key"):
        made(pool="x", seeds=0, grid={"x": [1]})


@pytest.mark.slow
def test_what_ships() -> None:
    assert {"paper", "paper-invariant", "smoke"} <= set(shipped_sweeps())
    paper, ours = load_sweep("paper"), load_sweep("paper-invariant")
    for config, aligner in ((paper, "tabpfn"), (ours, "invariant")):
        assert config.aligner == aligner
        assert config.names == CONFIGURATIONS
        assert len(config.grid_settings()) == 18
        assert list(config.grid) == ["width", "layers", "lr"]
        assert (config.seeds, len(config.folds), config.held_out) == (5, 5, "all")
        own = config.training("dirgnn-line-observed", {}).predictor
        assert (own.aggregation, own.prior, own.paths) == ("sum", False, False)


def test_a_file_or_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=r"there is no file papre, nor .*; interpbench-pool, paper, paper-align"
    ):
        load_sweep("papre")
    path = tmp_path / "mine.toml"
    path.write_text("seeds = 2\n[grid]\nwidth = [8]\n")
    assert load_sweep(str(path)) == SweepConfig(seeds=2, grid={"width": [8]})
    # What ships is found whatever lies in the folder.
    (tmp_path / "smoke").write_text("seeds = 99")
    assert load_sweep("smoke").seeds != 99
    assert load_sweep("./smoke").seeds == 99


def test_the_page_has_every_key_and_its_example_is_a_sweep() -> None:
    page = (ROOT / "docs" / "sweep.md").read_text("utf-8")
    keys = [field.name for field in fields(SweepConfig)]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for key in (*keys, *TRAIN_KEYS, *PREDICTOR_KEYS):
        assert any(f"`{key}`" in row or f"`[{key}]`" in row for row in rows), key
    example = page.partition("```toml\n")[2].partition("```")[0]
    config = load_config(SweepConfig, tomllib.loads(example))
    assert {len(config.chosen_settings(name)) for name in config.names} == {1, 4}
    for name in shipped_sweeps():
        assert f"`{name}`" in page
