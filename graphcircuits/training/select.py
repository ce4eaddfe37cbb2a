"""Choosing a predictor by grouped cross-validation on the pool; the test cases are never read.

1. Every setting of `GRID` is trained five times, each time without one fold, and scored on that
   fold at regular steps (AUROC at the q/k/v level, one seed), as in the paper.
2. A setting's score at a step is the mean over folds, weighted by their number of groups of related
   cases. `choose` takes the setting and step with the highest score, the earlier step on a tie.
3. The choice is written as a TOML file that `graphcircuits train --config` takes.

Each finished training is one file of the output folder, so the search goes on where it was cut off.

python -m graphcircuits.training.select --out build/select [--grid settings] [--device cuda]
"""

import argparse
import json
import logging
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from graphcircuits.compare.evaluate import quantiles
from graphcircuits.compare.selection import DEEP, select_cases
from graphcircuits.config import load_config
from graphcircuits.corpus import N_FOLDS, load_case
from graphcircuits.predictor.model import PredictorConfig
from graphcircuits.predictor.transform import CONNECTIVITIES
from graphcircuits.store import (
    StoreError,
    content_hash,
    load_artifact,
    save_artifact,
    taken_apart,
    write_atomic,
)
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example, read_examples
from graphcircuits.training.train import train

log = logging.getLogger(__name__)

KIND = "predictor-fold"

Histories = Mapping[TrainConfig, Mapping[int, Mapping[int, Mapping[str, Any]]]]
"""What was measured, by setting, held-out fold and step."""

GRID: tuple[TrainConfig, ...] = tuple(
    TrainConfig(predictor=PredictorConfig(width=width, layers=layers, dropout=dropout), batch=0)
    for width, layers, dropout in product((32, 64), (2, 3, 4), (0.0, 0.1, 0.3))
)
"""Eighteen settings, as many as the paper tries for each of its configurations."""

_BASE = TrainConfig(predictor=PredictorConfig(width=32, layers=3), batch=0)
GRIDS: dict[str, tuple[TrainConfig, ...]] = {
    "settings": GRID,
    "connectivity": tuple(
        replace(_BASE, predictor=replace(_BASE.predictor, connectivity=connectivity))
        for connectivity in CONNECTIVITIES
    ),
    "parts": tuple(
        replace(_BASE, predictor=replace(_BASE.predictor, **change))
        for change in (
            {},
            {"aggregation": "sum"},
            {"transformation": "incidence"},
            {"context_width": 8},
            {"both_ends": True},
        )
    ),
}
"""The search, and comparisons in which one thing changes and everything else is equal."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best setting and step of a search."""

    config: TrainConfig
    step: int
    score: float

    @property
    def final(self) -> TrainConfig:
        """How to train the predictor that is kept."""
        return replace(self.config, stop=self.step)


def search(
    grid: Sequence[TrainConfig],
    out: str | Path,
    *,
    seed: int = 0,
    folds: Sequence[int] = tuple(range(N_FOLDS)),
    device: torch.device | str = "cpu",
    stored: bool = False,
) -> Iterator[tuple[TrainConfig, int, dict[int, dict[str, Any]]]]:
    """Yield setting, held-out fold and history, training what the folder does not hold.

    With `stored` nothing is trained, and what the folder does not hold is left out.
    """
    ids, left_out = select_cases("pool")
    if left_out and not stored:
        log.warning("left out, no subject is shipped: %s", ", ".join(left_out))
    readings: dict[str, list[Example]] = {}
    for config, fold in product(grid, folds):
        about = {"train": asdict(config), "fold": fold, "seed": seed}
        path = Path(out) / f"{content_hash(about)[:16]}.json"
        history = _stored(path)
        if history is None and stored:
            continue
        if history is None:
            # Settings that read cases alike share what was read.
            key = content_hash(_read_by(config))
            if key not in readings:
                readings[key] = read_examples(ids, config)
            inside = [x for x in readings[key] if load_case(x.case).fold != fold]
            held_out = _first_views(x for x in readings[key] if load_case(x.case).fold == fold)
            trained = train(inside, config, seed=seed, validation=held_out, device=device)
            history = trained.history
            meta = {"history": {str(step): record for step, record in history.items()}}
            save_artifact(path, kind=KIND, config=about, seed=seed, meta=meta)
        yield config, fold, history


def _read_by(config: TrainConfig) -> dict[str, Any]:
    """The settings on which readings depend."""
    own = config.predictor
    return {
        "predictor": [
            own.aligner,
            own.transformation,
            own.connectivity,
            own.sampled,
            own.share,
            own.both_ends,
            own.prior,
        ],
        "train": [config.pairs, config.views, config.labels],
    }


def _first_views(examples: Iterator[Example]) -> list[Example]:
    """One reading per case."""
    first: dict[str, Example] = {}
    for example in examples:
        first.setdefault(example.case, example)
    return list(first.values())


def _stored(path: Path) -> dict[int, dict[str, Any]] | None:
    try:
        with taken_apart(path, "training"):
            history = load_artifact(path, KIND).meta["history"]
            return {int(step): dict(record) for step, record in history.items()}
    except (FileNotFoundError, StoreError):
        return None


def score(
    histories: Mapping[int, Mapping[int, Mapping[str, Any]]], level: str = "qkv"
) -> dict[int, float]:
    """A setting's score at every step that all folds have, from the histories by fold."""
    groups = {
        fold: len({load_case(case).group for case in _cases(history)})
        for fold, history in histories.items()
    }
    steps = set.intersection(*(set(history) for history in histories.values()))
    return {
        step: sum(
            groups[fold] * mean(case[level] for case in history[step]["cases"].values())
            for fold, history in histories.items()
        )
        / sum(groups.values())
        for step in sorted(steps)
    }


def _cases(history: Mapping[int, Mapping[str, Any]]) -> list[str]:
    return list(next(iter(history.values()))["cases"])


def choose(scores: Mapping[TrainConfig, Mapping[int, float]]) -> Choice:
    """The setting and step of the highest score; of equal ones the earlier step."""
    found = [
        Choice(config=config, step=step, score=value)
        for config, by_step in scores.items()
        for step, value in by_step.items()
    ]
    return max(found, key=lambda choice: (choice.score, -choice.step))


def to_toml(config: TrainConfig) -> str:
    """A file that `load_config` reads back to the same configuration."""
    values = asdict(config)
    own = values.pop("predictor")
    lines = [f"{name} = {_toml(x)}" for name, x in values.items() if x is not None]
    lines += ["", "[predictor]", *(f"{name} = {_toml(x)}" for name, x in own.items())]
    text = "\n".join(lines) + "\n"
    assert load_config(TrainConfig, tomllib.loads(text)) == config
    return text


def _toml(value: str | float | bool) -> str:
    """Plain values are written alike in JSON and TOML."""
    return json.dumps(value)


def report(scores: Mapping[TrainConfig, Mapping[int, float]], histories: Histories) -> str:
    """A Markdown table, one row per setting: its score, and the held-out cases at head level."""
    lines = [
        "| Setting | Score | Step | Min. | Q1 | Median | Q3 | Deep min. | Deep median |",
        "| --- " + "| ---: " * 8 + "|",
    ]
    for config, by_step in scores.items():
        step = max(by_step, key=by_step.__getitem__)
        cases = {
            case: found["head"]
            for history in histories[config].values()
            for case, found in history[step]["cases"].items()
        }
        deep = [value for case, value in cases.items() if load_case(case).graph.n_layers >= DEEP]
        low, first, middle, third, _ = quantiles(list(cases.values()))
        numbers = (low, first, middle, third, min(deep), median(deep))
        cells = " | ".join(f"{number:.3f}" for number in numbers)
        lines.append(f"| {_named(config)} | {by_step[step]:.4f} | {step} | {cells} |")
    return "\n".join(lines) + "\n"


def _named(config: TrainConfig) -> str:
    """What of a setting the grids vary."""
    own = config.predictor
    words = [f"width {own.width}, {own.layers} layers, dropout {own.dropout}"]
    usual = PredictorConfig()
    words += [
        f"{name.replace('_', ' ')} {getattr(own, name)}"
        for name in ("connectivity", "transformation", "aggregation", "context_width", "both_ends")
        if getattr(own, name) != getattr(usual, name)
    ]
    return ", ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the search")
    parser.add_argument("--grid", choices=list(GRIDS), default="settings")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stored", action="store_true", help="train nothing, report what is there")
    given = parser.parse_args()
    found: dict[TrainConfig, dict[int, Any]] = {}
    grid, own = GRIDS[given.grid], {"seed": given.seed, "device": given.device}
    for config, fold, history in search(grid, given.out, stored=given.stored, **own):
        found.setdefault(config, {})[fold] = history
    histories = {config: folds for config, folds in found.items() if len(folds) == N_FOLDS}
    if not histories:
        raise SystemExit(f"{given.out} holds no setting that was trained on all folds")
    scores = {config: score(by_fold) for config, by_fold in histories.items()}
    text = report(scores, histories)
    if given.grid == "settings":
        choice = choose(scores)
        write_atomic(given.out / "choice.toml", to_toml(choice.final).encode())
        text += (
            f"\nChosen of {len(scores)} settings: {_named(choice.config)}, step {choice.step}.\n"
        )
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
