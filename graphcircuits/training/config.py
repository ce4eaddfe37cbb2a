"""How a predictor is trained: every setting of it, as a TOML file gives them.

`shipped_recipe` reads the file of the shipped predictors, `data/predictors/recipe.toml`, and
`settings_of` whatever users name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

from graphcircuits.io.config import load_config
from graphcircuits.predictor.model import PredictorConfig

KEEP = ("last", "best")
SHIPPED = "shipped"
"""What users call the settings of the shipped predictors."""
OBJECTIVES = {
    "labels": "label_weight",
    "faithfulness": "faithfulness_weight",
    "distill": "distill_weight",
}
"""What can be learned, and the setting that has its weight."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """How a predictor is trained; the defaults suit labels of the cases that ship."""

    predictor: PredictorConfig = field(default_factory=PredictorConfig)
    steps: int = 200
    """Of the whole schedule of learning rates."""
    stop: int | None = None
    """End after so many steps of it; None means at its end."""
    lr: float = 3e-3
    weight_decay: float = 1e-2
    warmup: float = 0.1
    """Share of the steps in which the learning rate rises."""
    batch: int = 108
    """Readings of cases per step; 0 means all of them."""
    pairs: int = 64
    """Prompt pairs of a case."""
    views: int = 3
    """Draws of prompts of each training case whose circuit is known."""
    unlabelled_views: int = 1
    """Draws of prompts of each other one: there are many, and each is judged by running it."""
    step_pairs: int = 2
    """Of those the ones that a step looks at, where predictors with `tabpfn` train side by side."""
    labels: str = "complete"
    """Which edges count as the true circuit (`Case.labels`)."""
    every: int = 25
    """Steps between two validations."""
    average: float = 0.0
    """Decay of the moving average of weights that is kept instead of the last ones; 0: none."""
    keep: Literal["last", "best"] = "last"
    """Whether the weights of the last step are kept, or those of the best validation."""

    label_weight: float = 1.0
    """Of the objective `labels`: the paper's loss, on examples whose circuit is known."""
    faithfulness_weight: float = 0.0
    """Of the objective `faithfulness`: how far circuits of any size are from the whole model."""
    distill_weight: float = 0.0
    """Of the objective `distill`: the order of scores that were found case by case."""
    judged: int = 32
    """Prompt pairs on which circuits of a subject are judged, other than those that are read."""
    rows: int = 16
    """Of those the ones that a step draws; 0 means all."""
    masks: int = 8
    """Circuits of each subject per step."""
    temperature: float = 0.3
    """Width of the relaxation of masks, in units of the score."""
    noise: float = 0.3
    """Size of the random part of scores in masks, in the same units."""
    penalty: float = 1e-3
    """Of the mean square of what the network adds to its prior, where it has one."""

    def __post_init__(self) -> None:
        counts = ("steps", "stop", "pairs", "step_pairs", "every", "judged", "masks")
        problems = [
            f"{name} must be at least 1, got {value}"
            for name in (*counts, "views", "unlabelled_views")
            if (value := getattr(self, name)) is not None and value < 1
        ]
        problems += [
            f"{name} must be above 0, got {getattr(self, name)}"
            for name in ("lr", "warmup", "temperature")
            if not getattr(self, name) > 0
        ]
        weights = tuple(OBJECTIVES.values())
        problems += [
            f"{name} must be at least 0, got {getattr(self, name)}"
            for name in ("weight_decay", "batch", "rows", "noise", "penalty", *weights)
            if getattr(self, name) < 0
        ]
        if not any(getattr(self, name) > 0 for name in weights):
            problems.append(f"one of {', '.join(weights)} must be above 0")
        if self.stop is not None and self.stop > self.steps:
            problems.append(f"stop must be at most steps={self.steps}, got {self.stop}")
        if not 0 <= self.average < 1:
            problems.append(f"average must be in [0, 1), got {self.average}")
        if self.keep not in KEEP:
            problems.append(f"keep must be one of {', '.join(KEEP)}, got {self.keep!r}")
        if problems:
            raise ValueError("; ".join(problems) + ".")

    @property
    def last(self) -> int:
        """The number of steps that are made."""
        return self.steps if self.stop is None else self.stop

    @property
    def by_labels_alone(self) -> bool:
        """Whether labels are all that is learned from, so that no subject has to be run."""
        return self.faithfulness_weight == 0 and self.distill_weight == 0


def shipped_recipe() -> TrainConfig:
    """How the shipped predictors were trained."""
    with as_file(files("graphcircuits").joinpath("data/predictors/recipe.toml")) as path:
        return load_config(TrainConfig, path)


def settings_of(
    config: TrainConfig | str | Path | None = None,
    *,
    steps: int | None = None,
    objective: Mapping[str, float] | None = None,
) -> TrainConfig:
    """The settings, a TOML file of them, or `shipped`; None means the defaults.

    `steps` and `objective`, weights of `labels`, `faithfulness` and `distill`, replace what they
    have; an objective that is not named then weighs nothing.
    """
    if isinstance(config, TrainConfig):
        settings = config
    elif config == SHIPPED:
        settings = shipped_recipe()
    else:
        settings = TrainConfig() if config is None else load_config(TrainConfig, config)
    if steps is not None:
        settings = replace(settings, steps=steps, stop=None)
    if objective is None:
        return settings
    unknown = sorted(set(objective) - set(OBJECTIVES))
    if unknown:
        raise ValueError(
            f"objectives are {', '.join(OBJECTIVES)}, each with a weight, got {', '.join(unknown)}."
        )
    weights = {setting: objective.get(name, 0.0) for name, setting in OBJECTIVES.items()}
    return replace(settings, **weights)
