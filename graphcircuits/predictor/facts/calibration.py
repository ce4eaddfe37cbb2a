"""From logits to the probability that an edge is in the circuit, and how true that is.

1. `fit_calibration` takes logits and labels of cases that the predictor was not trained on; every
   case weighs the same, whatever its number of edges. It fits a line on the scale of log odds
   (Platt 1999) and a monotone step function (isotonic regression, by pooling adjacent violators),
   each on half of the cases, and takes the second only where it is clearly better on the other
   half. Labels are drawn in from 0 and 1 as Platt does, so that no edge is ever certain.
2. `lab/reliability.py` measures how true the probabilities are.

What a label means is up to who fits. Where the true circuit is known it says whether the edge is in
it. Where none is, one can be measured (`lab/needed.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from graphcircuits.io.files import short

CLEARLY = 0.02
"""Share of the log loss by which isotonic regression must be better to be taken."""
STEPS = 100
"""Newton's method needs about ten."""


@dataclass(frozen=True)
class Platt:
    """A line on the scale of log odds."""

    scale: float
    bias: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bias) and 0 <= self.scale < math.inf):
            raise ValueError(
                f"scale must be a number from 0 and bias a number, got {self.scale}, {self.bias}."
            )

    def __call__(self, logits: Float[Tensor, " edge"]) -> Float[Tensor, " edge"]:
        return (self.scale * logits.double() + self.bias).sigmoid().float()


@dataclass(frozen=True)
class Isotonic:
    """Straight lines between growing points, constant beyond the first and the last."""

    logits: Sequence[float]
    probabilities: Sequence[float]

    def __post_init__(self) -> None:
        x, y = tuple(map(float, self.logits)), tuple(map(float, self.probabilities))
        growing = all(a < b for a, b in pairwise(x)) and all(a <= b for a, b in pairwise(y))
        if not (x and len(x) == len(y) and growing and 0 <= y[0] <= y[-1] <= 1):
            raise ValueError(
                "points must be growing logits with as many growing probabilities in 0..1, got "
                f"{short(x)} and {short(y)}."
            )
        if not all(map(math.isfinite, x)):
            raise ValueError(f"logits of points must be finite, got {short(x)}.")
        object.__setattr__(self, "logits", x)
        object.__setattr__(self, "probabilities", y)

    def __call__(self, logits: Float[Tensor, " edge"]) -> Float[Tensor, " edge"]:
        values = np.interp(logits.double().cpu().numpy(), self.logits, self.probabilities)
        return torch.from_numpy(values).float().to(logits.device)


Calibration = Platt | Isotonic
_KINDS: Mapping[str, type[Platt] | type[Isotonic]] = {"platt": Platt, "isotonic": Isotonic}


def calibration_to_json(calibration: Calibration) -> dict[str, Any]:
    """What files hold of it."""
    (kind,) = [name for name, cls in _KINDS.items() if isinstance(calibration, cls)]
    values = asdict(calibration).items()
    return {"kind": kind} | {k: list(v) if isinstance(v, tuple) else v for k, v in values}


def calibration_from_json(stored: object) -> Calibration:
    """What `calibration_to_json` gave; anything else is a ValueError."""
    fields = {"platt": ("scale", "bias"), "isotonic": ("logits", "probabilities")}
    kind = str(stored.get("kind")) if isinstance(stored, dict) else ""
    if kind not in fields or not isinstance(stored, dict) or {*stored} != {"kind", *fields[kind]}:
        raise ValueError(f"calibration must be of the kind platt or isotonic, got {short(stored)}")
    values = [stored[name] for name in fields[kind]]
    try:
        if kind == "platt":
            return Platt(*map(_number, values))
        return Isotonic(*([_number(x) for x in value] for value in values))
    except (TypeError, OverflowError) as error:
        raise ValueError(f"calibration must hold numbers, got {short(stored)}") from error


def _number(value: object) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"not a number: {short(value)}")
    return float(value)  # pyright: ignore[reportArgumentType]


# Fitting


def fit_calibration(
    logits: Float[Tensor, " edge"],
    labels: Bool[Tensor, " edge"],
    cases: Int[Tensor, " edge"],
    *,
    kind: str | None = None,
) -> Calibration:
    """The map from logit to probability that suits these edges; `cases` numbers their cases.

    `kind` is `platt` or `isotonic`; None chooses between them by cases that were left out.
    """
    if kind not in (None, *_KINDS):
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got {kind!r}.")
    x, targets, weights = _prepared(logits, labels, cases)
    fits = {"platt": _fit_platt, "isotonic": _fit_isotonic}
    if kind is not None:
        return fits[kind](x, targets, weights)
    _, number = cases.cpu().unique(return_inverse=True)
    loss = dict.fromkeys(fits, 0.0)
    for left_out in (number % 2 == 0, number % 2 == 1) if int(number.max()) > 0 else ():
        taken = ~left_out
        for name, fit in fits.items():
            fitted = fit(x[taken], targets[taken], weights[taken])
            said = fitted(x[left_out]).double()
            loss[name] += log_loss(said, targets[left_out], weights[left_out])
    better = loss["isotonic"] < (1 - CLEARLY) * loss["platt"]
    return fits["isotonic" if better else "platt"](x, targets, weights)


def _prepared(
    logits: Float[Tensor, " edge"], labels: Bool[Tensor, " edge"], cases: Int[Tensor, " edge"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, targets and weights in double precision; refuses what nothing can be learned from."""
    x, labels = logits.detach().double().cpu(), labels.cpu()
    inside = int(labels.sum())
    if inside in (0, len(labels)):
        raise ValueError(
            "calibration needs edges inside and outside of circuits, got "
            f"{inside} of {len(labels)} inside."
        )
    if not x.isfinite().all():
        raise ValueError(f"logits must be finite, {int((~x.isfinite()).sum())} are not.")
    high, low = (inside + 1) / (inside + 2), 1 / (len(labels) - inside + 2)
    targets = torch.where(labels, high, low).double()
    return x, targets, case_weights(cases)


def case_weights(cases: Int[Tensor, " edge"]) -> Float[Tensor, " edge"]:
    """Weights of edges that sum to one, and to the same for every case."""
    _, number, counts = cases.cpu().unique(return_inverse=True, return_counts=True)
    return 1.0 / (counts[number].double() * len(counts))


def _fit_platt(x: Tensor, targets: Tensor, weights: Tensor) -> Platt:
    """The line of the least log loss, by Newton's method on standardized logits."""
    mean = float(weights @ x / weights.sum())
    spread = float((weights @ (x - mean) ** 2 / weights.sum()).sqrt()) or 1.0
    columns = torch.stack([(x - mean) / spread, torch.ones_like(x)], dim=1)
    # A little pull to zero: logits that part the labels would have no best line.
    pull = 1e-6 * float(weights.sum()) * torch.eye(2, dtype=torch.float64)
    line = torch.zeros(2, dtype=torch.float64)
    for _ in range(STEPS):
        p = (columns @ line).sigmoid()
        slope = columns.T @ (weights * (p - targets)) + pull @ line
        bend = (columns * (weights * p * (1 - p))[:, None]).T @ columns + pull
        step = torch.linalg.solve(bend, slope)
        # Far from the optimum the second-order model promises too much.
        line = line - step * min(1.0, 5.0 / float(step.norm().clamp_min(1e-12)))
        if step.norm() < 1e-12:
            break
    if line[0] < 0:
        # Larger scores never mean less likely: then they mean nothing.
        share = float(weights @ targets / weights.sum())
        return Platt(0.0, math.log(share / (1 - share)))
    scale = float(line[0]) / spread
    return Platt(scale, float(line[1]) - scale * mean)


def _fit_isotonic(x: Tensor, targets: Tensor, weights: Tensor) -> Isotonic:
    """The growing step function of the least squared error, by pooling adjacent violators."""
    values, number = x.unique(return_inverse=True)
    total = torch.zeros_like(values).index_add(0, number, weights)
    means = torch.zeros_like(values).index_add(0, number, weights * targets) / total
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(means.tolist(), total.tolist(), strict=True):
        count = 1
        while blocks and blocks[-1][0] >= value:
            other, heavy, n = blocks.pop()
            value = (value * weight + other * heavy) / (weight + heavy)
            weight, count = weight + heavy, count + n
        blocks.append((value, weight, count))
    logits: list[float] = []
    probabilities: list[float] = []
    last = -1
    for value, _, count in blocks:
        first, last = last + 1, last + count
        for end in dict.fromkeys((first, last)):
            logits.append(float(values[end]))
            probabilities.append(value)
    return Isotonic(logits, probabilities)


def log_loss(
    probabilities: Float[Tensor, " edge"],
    targets: Float[Tensor, " edge"],
    weights: Float[Tensor, " edge"],
) -> float:
    """Weighted mean of the cross-entropy between targets and what was said of them."""
    p = probabilities.clamp(1e-7, 1 - 1e-7)
    losses = -(targets * p.log() + (1 - targets) * (1 - p).log())
    return float(weights @ losses / weights.sum())
