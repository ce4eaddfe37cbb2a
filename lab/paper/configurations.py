"""What a sweep trains: configurations by name, the grid of settings, and the file that says so.

1. A configuration is a graph learner on a graph transformation with a connectivity, such as
   `dirgnn-line-observed`; the paper's table has 14 (`sweep_rows.CONFIGURATIONS`).
2. A setting is one combination of the values in `[grid]`, put into the base of `[train]`; it is
   named after them: `width=32,layers=2,lr=0.001`. The last key of the grid varies fastest.
3. `load_sweep` reads a `SweepConfig` from a TOML file, or from one that ships, by name. Everything
   that could not be trained is refused here, all at once.

Paper: Additional Experimental Details.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

from graphcircuits.cases.case import LABELINGS
from graphcircuits.cases.relations import POOLS
from graphcircuits.io.config import build_config, load_config
from graphcircuits.predictor.model import ALIGNERS, PredictorConfig
from graphcircuits.training.config import TrainConfig
from lab.paper.sweep_rows import (
    CONFIGURATIONS,
    CONNECTIVITIES,
    LEARNERS,
    TRANSFORMATIONS,
    configuration_parts,
)

SWEEPS = Path(__file__).parent / "sweeps"
"""The files that come with this program, by name."""
FLEETS = ("planted", "public")
"""The fleets whose circuits are known."""
ALL = "all"
DEFAULT = "default"
"""In `settings_by_configuration`, what holds for the configurations that are not named."""
BASE = "base"
"""The name of the only setting where the grid is empty."""
MOST_SEEDS = 100
MOST_SETTINGS = 1000

_BY_NAME = "say it in the names of configurations"
_CHOSEN = "the step is chosen by cross-validation"
_OWN = {
    "predictor": "its keys stand for themselves",
    "stop": _CHOSEN,
    "keep": _CHOSEN,
    "labels": "say labels at the top",
    "aligner": "say aligner at the top",
    "learner": _BY_NAME,
    "transformation": _BY_NAME,
    "connectivity": _BY_NAME,
}
"""Keys that the sweep sets itself, and what to do instead."""
_PLAIN: dict[str, Any] = {"prior": False, "paths": False}
"""As the paper has it, and as predictors are trained side by side."""
TRAIN_KEYS = (
    *("steps", "every", "lr", "weight_decay", "warmup"),
    *("batch", "pairs", "step_pairs", "views"),
)
"""Keys of a training that predictors side by side go by."""
PREDICTOR_KEYS = tuple(
    name
    for name in (field.name for field in fields(PredictorConfig))
    if name not in (*_OWN, *_PLAIN)
)
_IDLE = "trainings side by side do without; use graphcircuits train"


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """What is swept over, on which cases; the keys of a TOML file."""

    aligner: str = "tabpfn"
    configurations: tuple[str, ...] | str = ALL
    """Names, or `all` 14."""
    pool: str = "pool"
    """Cases to learn from: `pool`, or the paper's own, `paper-pool`."""
    cases: tuple[str, ...] | str = ALL
    """Only these of the pool."""
    fleet: str = "planted"
    """How the subjects to learn from were trained."""
    subjects: str | None = None
    """A folder that `graphcircuits build` wrote, where subjects are looked for first."""
    labels: str = "interpbench"
    folds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Folds of the pool that are held out in turn."""
    seeds: int = 5
    """Predictors that are trained on the whole pool."""
    evaluate: tuple[str, ...] = ("planted",)
    """Fleets whose held-out subjects they are tested on."""
    held_out: tuple[str, ...] | str = ALL
    """Only these of the test cases."""
    grid: dict[str, Any] = field(default_factory=dict)
    """Lists of values by key, of a training or its predictor."""
    settings_by_configuration: dict[str, Any] = field(default_factory=dict)
    """How many settings, or which, by configuration or `default`; all where it says nothing."""
    train: dict[str, Any] = field(default_factory=dict)
    """What all settings share: keys of a training, and of its predictor in `[train.predictor]`."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be one of {', '.join(known)}, got {value!r}"
            for name, value, known in (
                ("aligner", self.aligner, ALIGNERS),
                ("pool", self.pool, POOLS),
                ("fleet", self.fleet, FLEETS),
                ("labels", self.labels, LABELINGS),
                *(("evaluate", fleet, FLEETS) for fleet in self.evaluate),
            )
            if value not in known
        ]
        problems += _lists(self)
        problems += [p for name in self.names for p in _wrong_configuration(name)]
        if not 1 <= self.seeds <= MOST_SEEDS:
            problems.append(f"seeds must be in 1..{MOST_SEEDS}, got {self.seeds}")
        problems += _wrong_grid(self.grid) + _wrong_train(self.train, self.aligner)
        if not problems:
            problems += self._wrong_settings()
        if problems:
            raise ValueError("; ".join(problems) + ".")

    @property
    def names(self) -> tuple[str, ...]:
        """The configurations, in the order given or that of the paper's table."""
        if isinstance(self.configurations, str):
            all_of_them = self.configurations == ALL
            return CONFIGURATIONS if all_of_them else (self.configurations,)
        return self.configurations

    def grid_settings(self) -> dict[str, dict[str, Any]]:
        """Every combination of the grid's values, by name."""
        combinations = product(*self.grid.values())
        found = [dict(zip(self.grid, values, strict=True)) for values in combinations]
        return {setting_name(values): values for values in found}

    def chosen_settings(self, configuration: str) -> dict[str, dict[str, Any]]:
        """Those that a configuration is trained with."""
        whole, chosen = self.grid_settings(), self.settings_by_configuration
        some = chosen.get(configuration, chosen.get(DEFAULT, len(whole)))
        names = list(whole)[:some] if isinstance(some, int) else some
        return {name: whole[name] for name in names}

    def training(self, configuration: str, values: Mapping[str, Any]) -> TrainConfig:
        """How a configuration is trained with the values of a setting."""
        own, predictor = dict(self.train), dict(self.train.get("predictor", {}))
        predictor = _PLAIN | predictor
        for key, value in values.items():
            (predictor if key in PREDICTOR_KEYS else own)[key] = value
        learner, transformation, connectivity = configuration_parts(configuration)
        predictor |= {"aligner": self.aligner, "learner": learner}
        predictor |= {"transformation": transformation, "connectivity": connectivity}
        label = f"{configuration} with {setting_name(values)}"
        whole = own | {"labels": self.labels, "predictor": predictor}
        return build_config(TrainConfig, whole, label=label)

    def _wrong_settings(self) -> list[str]:
        """What is wrong with which settings are asked for, and with any of the settings."""
        whole = self.grid_settings()
        problems = []
        for name, some in self.settings_by_configuration.items():
            if name not in (DEFAULT, *self.names):
                known = ", ".join((DEFAULT, *self.names))
                problems.append(f"settings_by_configuration: {name!r} is none of {known}")
            elif isinstance(some, int) and not isinstance(some, bool):
                if not 1 <= some <= len(whole):
                    problems.append(
                        f"settings_by_configuration: {name} must be in 1..{len(whole)}, the "
                        f"settings of the grid, got {some}"
                    )
            elif not isinstance(some, list) or not some or set(map(str, some)) - set(whole):
                problems.append(
                    f"settings_by_configuration: {name} must be a number of settings or a list of "
                    f"their names, such as {next(iter(whole))!r}, got {some!r}"
                )
        if problems:
            return problems
        for name in self.names:
            for values in whole.values():
                try:
                    self.training(name, values)
                except ValueError as error:
                    return [str(error).rstrip(".")]
        return []


def setting_name(values: Mapping[str, Any]) -> str:
    """`width=32,layers=2`: what a setting goes by, also in the names of files."""
    return ",".join(f"{key}={_text(value)}" for key, value in values.items()) or BASE


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _lists(config: SweepConfig) -> list[str]:
    """Lists that are empty, name something twice, or are one word that means nothing."""
    problems = []
    for name in ("configurations", "cases", "folds", "evaluate", "held_out"):
        value = getattr(config, name)
        if isinstance(value, str):
            if value != ALL and name != "configurations":
                problems.append(f"{name} must be a list or {ALL!r}, got {value!r}")
        elif not value:
            problems.append(f"{name} must not be empty")
        elif len(set(value)) < len(value):
            twice = dict.fromkeys(str(one) for one in value if value.count(one) > 1)
            problems.append(f"{name} names {', '.join(twice)} twice")
    return problems


def _wrong_configuration(name: str) -> list[str]:
    """Why there is no such configuration."""
    if name in CONFIGURATIONS:
        return []
    learner, _, rest = name.partition("-")
    transformation, _, connectivity = rest.partition("-")
    parts = (
        (learner, LEARNERS),
        (transformation, TRANSFORMATIONS),
        (connectivity, CONNECTIVITIES),
    )
    if all(part in known for part, known in parts):
        return [
            f"{name} is impossible: only factorized takes {connectivity}, which joins every node "
            f"to all later ones; take {learner}-{transformation}-observed or "
            f"factorized-{transformation}-{connectivity}"
        ]
    near = get_close_matches(name, CONFIGURATIONS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return [f"unknown configuration {name!r}; {hint}there are {', '.join(CONFIGURATIONS)}"]


def _wrong_grid(grid: Mapping[str, Any]) -> list[str]:
    problems = []
    for key, values in grid.items():
        if wrong := _wrong_key("grid", key, (*TRAIN_KEYS, *PREDICTOR_KEYS)):
            problems += wrong
        elif not isinstance(values, list) or not values:
            problems.append(f"grid: {key} must be a list of values, got {values!r}")
        elif odd := [x for x in values if not isinstance(x, bool | int | float | str)]:
            problems.append(f"grid: {key} must have plain values, got {odd[0]!r}")
        elif len(set(map(_text, values))) < len(values):
            problems.append(f"grid: {key} has a value twice: {values}")
    count = 1
    for values in grid.values():
        count *= len(values) if isinstance(values, list) else 1
    if count > MOST_SETTINGS:
        problems.append(f"grid: {count} settings are more than {MOST_SETTINGS}")
    return problems


def _wrong_train(train: Mapping[str, Any], aligner: str) -> list[str]:
    """Keys that mean nothing to a sweep; values are judged with the settings."""
    own = train.get("predictor", {})
    if not isinstance(own, Mapping):
        return [f"train.predictor must be a table, got {own!r}"]
    problems = []
    for key in train:
        if key != "predictor":
            problems += _wrong_key("train", key, TRAIN_KEYS)
    for key, value in own.items():
        if key not in _PLAIN:
            problems += _wrong_key("train.predictor", key, PREDICTOR_KEYS)
        elif value and aligner == "tabpfn":
            problems.append(f"train.predictor: {key} is for the invariant aligner, not for tabpfn")
        elif value:
            problems.append(f"train.predictor: {key} cannot be had; {_IDLE}")
    return problems


def _wrong_key(place: str, key: str, known: Sequence[str]) -> list[str]:
    """Why a key is not for a sweep to say at this place, if so."""
    if key in known:
        return []
    if key in _OWN:
        return [f"{place}: {key} is not set there; {_OWN[key]}"]
    if place != "grid" and key in (*TRAIN_KEYS, *PREDICTOR_KEYS):
        there = "train" if key in TRAIN_KEYS else "train.predictor"
        return [f"{place}: {key} belongs in [{there}]"]
    if key in {field.name for cls in (TrainConfig, PredictorConfig) for field in fields(cls)}:
        return [f"{place}: {key} cannot be set; {_IDLE}"]
    near = get_close_matches(key, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(known)}"
    return [f"{place}: unknown key {key!r} ({hint})"]


# Files


def shipped_sweeps() -> list[str]:
    """The names of the configurations that ship."""
    return sorted(path.stem for path in SWEEPS.glob("*.toml"))


def load_sweep(source: str) -> SweepConfig:
    """A shipped configuration by name, else that of a TOML file."""
    shipped = shipped_sweeps()
    if source in shipped:
        return load_config(SweepConfig, SWEEPS / f"{source}.toml")
    if not Path(source).exists():
        raise ValueError(
            f"there is no file {source}, nor a shipped configuration of that name; "
            f"{', '.join(shipped)} ship."
        )
    return load_config(SweepConfig, source)
