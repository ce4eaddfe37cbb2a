"""How likely every edge is, from fresh searches and from the predictor that is blind to the case.

1. `edge_features` says of every edge how often fresh searches had it in their circuit, how high
   they ranked it, whether it is in the circuit at hand, how large the circuits are and, where it is
   asked, what the predictor says of it.
2. `Chances` is a logistic regression on these: more returns, a better rank, being in the circuit
   and a higher logit of the predictor never make an edge less likely.
3. Where the subject's circuit was planted, the probability is of being in it; the regression was
   fitted on planted circuits. `edge_chances` abstains where the predictor does not know the model.
   Of all other models nobody knows the circuit: there the probability is of coming back in one
   more search, and the regression was fitted on that.

`python -m lab.studies certainty` fits and measures (docs/results/certainty.md).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.cases.recognize import recognize
from graphcircuits.certificates.certificate import EdgeChances
from graphcircuits.certificates.searching import Searches
from graphcircuits.circuit import Circuit
from graphcircuits.io.files import StoreError, short
from graphcircuits.io.store import load_artifact
from graphcircuits.methods.learned import GCL
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.pairs import Pairs

KIND = "edge-chances"
PLANTED, NATURAL, LANGUAGE = "planted", "natural", "language"
"""Kinds of subjects with a regression of their own: of being in the planted circuit, and of coming
back in one more search in other models, where prompts of text differ more from each other."""
GROWING = ("came back", "rank", "inside", "network", "network rank")
"""Features of which more never makes an edge less likely."""
FEATURES = (*GROWING, "size")

Features = Mapping[str, Float[Tensor, " edge"]]


def edge_features(
    circuit: Circuit, found: Searches, network: Float[Tensor, " edge"] | None = None
) -> Features:
    """What the probability of every edge is made of; `network` are logits of the predictor."""
    masks = found.masks
    sizes = masks.sum(1).clamp_min(1).double()
    ranks = [
        _rank(result.scores, size)
        for result, size in zip(found.results, sizes.tolist(), strict=True)
    ]
    n_edges = masks.shape[1]
    features = {
        # Smoothed, so that 8 of 8 say more than 4 of 4.
        "came back": ((masks.double().sum(0) + 0.5) / (len(masks) + 1)).logit(),
        "rank": torch.stack(ranks).mean(0),
        "inside": circuit.mask.double(),
        "size": (sizes.mean() / n_edges).log().expand(n_edges),
    }
    if network is not None:
        asked = {"network": network.double(), "network rank": _rank(network, float(sizes.mean()))}
        features |= asked
    return features


def _rank(scores: Float[Tensor, " edge"], size: float) -> Float[Tensor, " edge"]:
    """How far above the last edge of a circuit of this size, as the log of a ratio of ranks; edges
    that tie share the mean of theirs."""
    scores = scores.double()
    ordered = scores.sort().values
    first, last = (torch.searchsorted(ordered, scores, right=right) for right in (False, True))
    above = len(scores) - (first + last - 1).double() / 2
    return math.log(size) - above.log()


@dataclass(frozen=True)
class Chances:
    """A logistic regression on features of edges."""

    weights: Mapping[str, float]
    """By the name of the feature."""
    bias: float

    def __post_init__(self) -> None:
        numbers = [*self.weights.values(), self.bias]
        if not self.weights or not {*self.weights} <= {*FEATURES}:
            raise ValueError(f"weights must be of {', '.join(FEATURES)}, got {short(self.weights)}")
        if not all(type(x) in (int, float) and math.isfinite(x) for x in numbers):
            raise ValueError(f"weights must be numbers, got {short(numbers)}")
        if falling := [name for name in GROWING if self.weights.get(name, 0) < 0]:
            raise ValueError(f"weights must be from 0 up for {', '.join(falling)}")

    def __call__(self, features: Features) -> Float[Tensor, " edge"]:
        logits = sum(weight * features[name] for name, weight in self.weights.items())
        return torch.as_tensor(logits + self.bias).sigmoid().float()


def load_chances(path: str | Path) -> dict[str, Chances]:
    """The regressions in a file that the study wrote, by kind of subject."""
    stored = load_artifact(path, KIND).meta
    try:
        return {
            name: Chances(dict(stored[name]["weights"]), stored[name]["bias"])
            for name in (PLANTED, NATURAL, LANGUAGE)
        }
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} holds no chances of edges: {error}") from error


@cache
def shipped_chances() -> Mapping[str, Chances]:
    """Those of the package."""
    with as_file(files("graphcircuits").joinpath("data/certainty.json")) as path:
        return load_chances(path)


def edge_chances(
    subject: Transformer, circuit: Circuit, found: Searches, *, pairs: Pairs | None = None
) -> EdgeChances:
    """How likely every edge is, given fresh searches; `pairs` are what the predictor reads."""
    back = found.came_back
    if recognize(subject).planted is None:
        chances = shipped_chances()[NATURAL if subject.tokenizer is None else LANGUAGE]
        return EdgeChances(
            came_back=back,
            probability=chances(edge_features(circuit, found)),
            meaning="of coming back in one more search on other prompts; which edges such a model "
            "truly uses nobody knows",
        )
    said, why = _asked(subject, pairs)
    if said is None:
        return EdgeChances(
            came_back=back, probability=None, meaning=f"I do not know this model: {why}"
        )
    return EdgeChances(
        came_back=back,
        probability=shipped_chances()[PLANTED](edge_features(circuit, found, said)),
        meaning="of being in the circuit that was planted; measured on other planted circuits",
    )


def _asked(subject: Transformer, pairs: Pairs | None) -> tuple[Float[Tensor, " edge"] | None, str]:
    """The logits of the predictor that is blind to the case, or why they say nothing."""
    if pairs is None:
        return None, "no prompts were given to compare it with the cases of the training"
    try:
        options = GCL.fill(subject, pairs, {"predictor": None, "looks": None})
    except ValueError as error:
        return None, str(error)
    prediction = GCL.predict(subject, pairs, options, torch.Generator().manual_seed(0))
    familiarity = prediction.familiarity
    if familiarity is not None and not familiarity.known:
        return None, familiarity.why()
    return prediction.logits.cpu(), ""
