"""Choosing a setting and a number of training steps by grouped cross-validation, as the paper does.

1. Every setting is trained once without each fold, and scored on that fold at regular steps: AUROC
   with q, k and v apart, one seed.
2. `score`: a setting's score at a step that all folds have is the mean over folds, weighted by
   their number of groups of related cases; that of a fold is the mean over its cases.
3. `select` takes the setting and the step with the highest score; of equal ones the earlier step,
   then the earlier setting. Settings that did not finish every fold are left out, and counted.

Scores are exact fractions, so what is equal stays equal in any order of the cases.

Paper: Additional Experimental Details.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction

from graphcircuits.io.config import load_config
from graphcircuits.training.config import TrainConfig

History = Mapping[int, Mapping[str, float]]
"""AUROC with q, k and v apart, by step and case."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The best setting and step of a search, and how many settings were in it."""

    setting: str
    step: int
    score: float
    eligible: int
    """Settings that finished every fold."""
    settings: int
    """All of them."""


def score(histories: Mapping[int, History], groups: Mapping[str, str]) -> dict[int, Fraction]:
    """A setting's score at every step that all folds have, from the histories by fold.

    `groups` names the group of every case.
    """
    weights = {
        fold: len({groups[case] for cases in history.values() for case in cases})
        for fold, history in histories.items()
    }
    steps = set.intersection(*(set(history) for history in histories.values()))
    return {
        step: sum(
            (weights[fold] * _mean(history[step]) for fold, history in histories.items()),
            Fraction(0),
        )
        / sum(weights.values())
        for step in sorted(steps)
    }


def _mean(cases: Mapping[str, float]) -> Fraction:
    return sum(map(Fraction, cases.values()), Fraction(0)) / len(cases)


def select(scores: Mapping[str, Mapping[int, Fraction] | None]) -> Selection | None:
    """The best of all settings, by their scores in the order of the grid; those that did not finish
    every fold have None. None where all of them have, or no step that all folds have."""
    best: tuple[Fraction, int, str] | None = None
    for name, own in scores.items():
        for step, value in (own or {}).items():
            if best is None or (value, -step) > (best[0], -best[1]):
                best = value, step, name
    if best is None:
        return None
    value, step, name = best
    eligible = sum(own is not None for own in scores.values())
    return Selection(
        setting=name, step=step, score=float(value), eligible=eligible, settings=len(scores)
    )


def to_toml(config: TrainConfig) -> str:
    """A file that `graphcircuits train --config` reads back to the same configuration."""
    values = asdict(config)
    own = values.pop("predictor")
    lines = [f"{name} = {_toml(x)}" for name, x in values.items() if x is not None]
    lines += ["", "[predictor]", *(f"{name} = {_toml(x)}" for name, x in own.items())]
    text = "\n".join(lines) + "\n"
    assert load_config(TrainConfig, tomllib.loads(text)) == config
    return text


def _toml(value: object) -> str:
    """Plain values are written alike in JSON and TOML."""
    return json.dumps(value)
