"""What a predictor knows of itself, found at the end of its training.

1. What its training cases were like, from a sample of their readings: `Ensemble.familiarity`.
2. Where cases with known circuits were held out, what its logits mean there, by kind of subject:
   `Ensemble.calibration`.
3. What `gcl` and `eap-ig` reach on what was held out, by kind: `Ensemble.measured`, which decides
   about the default method (`methods/learned.py`).

Of a few cases neither a limit nor a probability can be learned: then the first two are left out.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

import torch

from graphcircuits.methods.shipped import kind_of
from graphcircuits.predictor.ensemble import Ensemble, with_calibration, with_familiarity
from graphcircuits.training.config import TrainConfig
from graphcircuits.training.data import Example
from graphcircuits.training.validation import means, search_figures, validate

MOST_READINGS = 400
"""Of the training, to say what its cases were like."""
MOST_MEASURED = 50
"""Held-out examples of a kind, to compare methods on."""
FEWEST = 10
"""Cases, or groups of related ones, of which something can be said."""
SEARCH = "eap-ig"

Measured = dict[str, dict[str, dict[str, float]]]
"""Means by kind, figure and method."""


def finished(
    ensemble: Ensemble,
    examples: Sequence[Example],
    held_out: Sequence[Example] = (),
    *,
    config: TrainConfig,
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
) -> Ensemble:
    """The ensemble with all that its training and what was held out say of it.

    `generator` draws the sample of the training; without it the seed is 0. Held-out examples need a
    source; examples that are run are so on `device`.
    """
    ensemble = acquainted(ensemble, examples, generator)
    by_kind = kinds(held_out)
    for kind, found in by_kind.items():
        ensemble = calibrated(ensemble, found, kind)
    if not by_kind:
        return ensemble
    measured = measure(ensemble, by_kind, config, device)
    return replace(ensemble, origin={**ensemble.origin, "measured": measured})


def acquainted(
    ensemble: Ensemble, examples: Sequence[Example], generator: torch.Generator | None = None
) -> Ensemble:
    """With what the training cases were like."""
    generator = generator or torch.Generator().manual_seed(0)
    drawn = torch.randperm(len(examples), generator=generator)[:MOST_READINGS].tolist()
    some = [examples[place] for place in sorted(drawn)]
    groups = [_group(example) for example in some]
    if len(set(groups)) < FEWEST:
        return ensemble
    return with_familiarity(ensemble, [example.reading for example in some], groups)


def _group(example: Example) -> Hashable:
    return example.case if example.source is None else example.source.groups


def kinds(examples: Iterable[Example]) -> dict[str, list[Example]]:
    """Examples by the kind of their subject."""
    found: dict[str, list[Example]] = {}
    for example in examples:
        if example.source is None:
            raise ValueError(f"{example.case} has no source, so that its kind is not known.")
        subject = example.source.subject() if example.item is None else example.item[0]
        found.setdefault(kind_of(subject), []).append(example)
    return found


def calibrated(ensemble: Ensemble, examples: Sequence[Example], kind: str) -> Ensemble:
    """With the probabilities of a kind, where enough of its circuits are known."""
    known = [(x.reading, x.circuit.mask, x.case) for x in examples if x.circuit is not None]
    if len({case for _, _, case in known}) < FEWEST:
        return ensemble
    readings, masks, cases = zip(*known, strict=True)
    return with_calibration(ensemble, readings, masks, cases, kind=kind)


def measure(
    ensemble: Ensemble,
    by_kind: dict[str, list[Example]],
    config: TrainConfig,
    device: torch.device | str = "cpu",
) -> Measured:
    """What the predictor and the search reach on the same examples."""
    names = {"qkv": "auroc", "cmd": "cmd"}
    found: Measured = {}
    for kind, examples in by_kind.items():
        # Evenly over all of them, which come folder by folder.
        some = examples[:: -(-len(examples) // MOST_MEASURED)]
        own = means(validate(ensemble.to(device), some))
        other = means(search_figures(some, SEARCH, pairs=config.pairs, device=device))
        figures = {
            name: {"gcl": own[figure], SEARCH: other[figure]}
            for figure, name in names.items()
            if figure in own
        }
        if figures:
            found[kind] = figures
    return found
