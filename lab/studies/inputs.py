"""Groups of inputs, to train without one of them and see what it is worth."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from graphcircuits.predictor.invariant import statistics_of, table_width
from graphcircuits.predictor.measure.scaling import SCALINGS
from graphcircuits.predictor.model import PredictorConfig
from graphcircuits.subject.sites import READER_KINDS, WRITER_KINDS
from graphcircuits.training.data import Example

INPUTS = ("own", "effects", "activations", "bounds", "norms", "kinds")
_STATISTICS = {
    "own": "own",
    "own_by_pair": "own",
    "own_signed": "own",
    "effect": "effects",
    "effect_by_pair": "effects",
    "effect_signed": "effects",
    "clean": "activations",
    "corrupted": "activations",
    "clean_by_pair": "activations",
    "reach": "bounds",
    "bound": "bounds",
}


def input_groups(share: float) -> list[str]:
    """The group of every column of `predictor.invariant.table` for the line graph."""
    scaled = [_STATISTICS[name] for name in statistics_of(share) for _ in SCALINGS]
    at_writer = ["norms"] * 4 + ["kinds"] * len(WRITER_KINDS)
    at_reader = ["norms"] * 2 + ["kinds"] * len(READER_KINDS)
    groups = [*scaled, *at_writer, *at_reader]
    assert len(groups) == table_width(share), "another table"
    return groups


def without(
    examples: Sequence[Example], group: str | None, config: PredictorConfig
) -> list[Example]:
    """The examples with a group of inputs set to zero, and nothing where it is None."""
    if group is None:
        return list(examples)
    groups = input_groups(config.share)
    hidden = torch.tensor([name == group for name in groups])
    results = []
    for example in examples:
        content = example.reading.content
        assert isinstance(content, Tensor)
        seen = content.masked_fill(hidden.to(content.device), 0.0)
        results.append(replace(example, reading=replace(example.reading, content=seen)))
    return results
