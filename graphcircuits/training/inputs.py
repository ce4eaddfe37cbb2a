"""Groups of a predictor's inputs, to train without one of them and see what it gave.

Columns are those of `predictor.invariant.table` for the line graph, in its order.
"""

import math

import torch
from torch import Tensor

from graphcircuits.predictor.invariant import (
    FAR_STATISTICS,
    InvariantAligner,
    statistics_of,
    table_width,
)
from graphcircuits.predictor.measure.scaling import SCALINGS
from graphcircuits.subject.sites import READER_KINDS, WRITER_KINDS

INPUTS = ("own", "effects", "far-effects", "activations", "bounds", "norms", "kinds")
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
    **dict.fromkeys(FAR_STATISTICS, "far-effects"),
}


def input_groups(*, share: float, both_ends: bool) -> list[str]:
    """The group of every column."""
    names = statistics_of(share=share, both_ends=both_ends)
    scaled = [_STATISTICS[name] for name in names for _ in SCALINGS]
    at_writer = ["norms"] * 4 + ["kinds"] * len(WRITER_KINDS)
    at_reader = ["norms"] * 2 + ["kinds"] * len(READER_KINDS)
    found = [*scaled, *at_writer, *at_reader]
    assert len(found) == table_width(share=share, both_ends=both_ends), "another table"
    return found


def leave_out(
    align: InvariantAligner, groups: tuple[str, ...], *, share: float, both_ends: bool
) -> None:
    """Make an aligner blind to some groups: their columns are zero whatever they hold."""
    unknown = sorted(set(groups) - set(INPUTS))
    if unknown:
        raise ValueError(f"unknown inputs {', '.join(unknown)}; choose from {', '.join(INPUTS)}.")
    blind = [group in groups for group in input_groups(share=share, both_ends=both_ends)]
    deviation: Tensor = align.deviation
    deviation[torch.tensor(blind, device=deviation.device)] = math.inf
