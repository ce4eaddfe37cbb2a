"""Whether a case is like those that a predictor was trained on.

Two things are measured, neither of which knows the name of an architecture:

1. `disagreement`: how far the members of an ensemble are apart, by the spread of their mean logit
   over the edges. Where they have learned something they agree (Lakshminarayanan et al. 2017).
2. `Cloud.distance`: the Mahalanobis distance of a case's mean features from those of the training
   cases, with the covariance shrunk towards a multiple of the identity (Ledoit and Wolf 2004).

`fit_familiarity` measures both on the cases of the training, distances to a cloud without the
case's group, and remembers a limit that one in a hundred of them exceeds. A case's *strangeness* is
the larger of the two by their limits: at most 1 for what is familiar. Its `share` is that of the
training cases that are at least as strange.

The distance alone says little: models that were trained as people train them lie about as near as
planted ones, and yet have other circuits (docs/predictor.md). So it counts as a guard, from GUARD
times the limit on.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.predictor.model import Reading

LIMIT = 0.99
"""The quantile of the training cases up to which a case is familiar."""
GUARD = 1.5
"""How far beyond that quantile a distance must be: that of some tens of cases is uncertain."""
PIECES = 10
"""Into how many pieces groups are divided, each measured against the others."""
SMALLEST_DEVIATION = 1e-2
"""Of a feature: columns are of order one, and one that hardly varies would decide everything."""
SINGULAR = 1e-4
"""The smallest eigenvalue of a covariance that counts."""
TINY = 1e-12


@dataclass(frozen=True)
class Familiarity:
    """How a case compares with those of the training."""

    share: float
    """Of the training cases, those at least as strange: near 1 for a usual case, 0 beyond all."""
    strangeness: float
    """1 at the limit of what is familiar."""
    disagreement: float | None
    """Of the members, by its limit; None for a single one."""
    distance: float
    """From the training cases, by its limit."""

    @property
    def known(self) -> bool:
        return self.strangeness <= 1

    def why(self) -> str:
        """What the strangeness is made of, in words."""
        if self.known:
            return "it is like the cases of the training"
        if self.disagreement is not None and self.disagreement >= self.distance:
            what, times = "the networks of the predictor disagree about it", self.disagreement
        else:
            what, times = "its features differ from those of the training cases", self.distance
        return f"{what} {times:.1f} times as much as is allowed for a familiar case"


@dataclass(frozen=True, eq=False)
class Cloud:
    """Where training cases lie."""

    mean: Float[Tensor, " column"]
    whiten: Float[Tensor, "column column"]
    """Takes a difference from the mean to numbers whose norm is the distance."""

    def distance(self, features: Float[Tensor, "*case column"]) -> Float[Tensor, "*case"]:
        """Mahalanobis distance by the root of the number of columns: about 1 for training cases."""
        moved = (features.double() - self.mean.double()) @ self.whiten.double()
        return moved.norm(dim=-1) / len(self.mean) ** 0.5


@dataclass(frozen=True, eq=False)
class KnownCases:
    """What a predictor remembers of its training cases."""

    cloud: Cloud
    limits: Float[Tensor, "2"]
    """Of the disagreement, 0 where there is none, and of the distance."""
    strangeness: Float[Tensor, " case"]
    """Of every training case, growing."""

    def judge(
        self, features: Float[Tensor, " column"], logits: Float[Tensor, "member edge"]
    ) -> Familiarity:
        """A case by its `case_features` and the logits that every member gave."""
        torn, far = self.limits.tolist()
        distance = float(self.cloud.distance(features.cpu())) / far
        apart = disagreement(logits) / torn if torn > 0 and len(logits) > 1 else None
        strangeness = distance if apart is None else max(apart, distance)
        above = self.strangeness >= strangeness
        return Familiarity(float(above.double().mean()), strangeness, apart, distance)

    def tensors(self) -> dict[str, Tensor]:
        """What files hold of it."""
        return vars(self.cloud) | {"limits": self.limits, "strangeness": self.strangeness}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], columns: int) -> "KnownCases":
        """What `tensors` gave, for tables of so many columns; anything else is a ValueError."""
        sizes = {"mean": (columns,), "whiten": (columns, columns), "limits": (2,)}
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        whole = {*tensors} == {*sizes, "strangeness"} and all(
            shapes[name] == size for name, size in sizes.items()
        )
        if not whole or tensors["strangeness"].ndim != 1 or not shapes["strangeness"][0]:
            raise ValueError(f"familiarity must be of {columns} columns, got {shapes}")
        if any(x.dtype != torch.float32 or not x.isfinite().all() for x in tensors.values()):
            raise ValueError("familiarity must be finite numbers in single precision")
        if not tensors["limits"][0] >= 0 < tensors["limits"][1]:
            raise ValueError(f"limits must be above 0, got {tensors['limits'].tolist()}")
        cloud = Cloud(tensors["mean"], tensors["whiten"])
        return cls(cloud, tensors["limits"], tensors["strangeness"])


def case_features(reading: Reading) -> Float[Tensor, " column"]:
    """What a case looks like as a whole: the mean of every column of its table."""
    if not isinstance(reading.content, Tensor):
        raise ValueError("familiarity is measured on invariants, got features.")
    return reading.content.mean(0).double().cpu()


def disagreement(logits: Float[Tensor, "member edge"]) -> float:
    """Deviation between members, mean over edges, by the deviation of their mean over edges."""
    values = logits.double()
    mean = values.mean(0)
    # The deviation of a handful is quicker by hand: PyTorch's kernel is made for long columns.
    apart = (values - mean).square_().sum(0).div_(len(values) - 1).sqrt_()
    return float(apart.mean() / mean.std().clamp_min(TINY))


def fit_familiarity(
    features: Float[Tensor, "case column"],
    disagreements: Sequence[float] | None,
    groups: Sequence[Hashable],
) -> KnownCases:
    """What training cases look like, and how strange they are themselves.

    Args:
        features: Of every case (`case_features`).
        disagreements: Of the members of the predictor on every case; None where there is one.
        groups: The same for several readings of a case and for related cases: a case is not
            measured against its own group.

    Reference:
        Lakshminarayanan et al. 2017 and Ledoit and Wolf 2004; docs/predictor.md.
    """
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    if len(numbers) < 2:
        raise ValueError(
            f"familiarity is measured between groups of cases: give two at least, got "
            f"{len(numbers)}."
        )
    piece = torch.tensor([numbers[group] % PIECES for group in groups])
    distances = features.new_zeros(len(features))
    for one in piece.unique():
        left_out = piece == one
        distances[left_out] = fit_cloud(features[~left_out]).distance(features[left_out])
    far = GUARD * distances.quantile(LIMIT).clamp_min(TINY)
    strangeness, torn = distances / far, torch.zeros(())
    if disagreements is not None:
        apart = torch.tensor(disagreements, dtype=torch.float64)
        torn = apart.quantile(LIMIT).clamp_min(TINY)
        strangeness = strangeness.maximum(apart / torn)
    limits = torch.stack([torn.double(), far])
    return KnownCases(fit_cloud(features), limits.float(), strangeness.sort().values.float())


def fit_cloud(features: Float[Tensor, "case column"]) -> Cloud:
    """Mean and shrunk covariance of cases, with columns of deviation one."""
    features = features.double()
    mean = features.mean(0)
    spread = features.std(0, correction=0)
    deviation = spread.clamp_min(SMALLEST_DEVIATION)
    # What a column lacks to deviation one, since it hardly varies, is added by itself.
    lacking = 1 - (spread / deviation).square()
    covariance = shrunk((features - mean) / deviation) + lacking.diag()
    values, vectors = torch.linalg.eigh(covariance)
    # A change of basis with which the norm is the Mahalanobis distance. Columns can be sums of
    # others, as shares of kinds are, and differences there are rounding.
    whiten = (vectors / values.clamp_min(SINGULAR).sqrt()) / deviation[:, None]
    # Row by row, as a file has it: in another order distances would be rounded differently.
    return Cloud(mean.float(), whiten.float().contiguous())


def shrunk(rows: Float[Tensor, "case column"]) -> Float[Tensor, "column column"]:
    """Ledoit and Wolf's estimate of the covariance of rows that have mean zero."""
    n, d = rows.shape
    sample = rows.T @ rows / n
    identity = torch.eye(d, dtype=rows.dtype)
    level = sample.trace() / d
    distance = (sample - level * identity).square().sum()
    # The mean squared distance of single rows' outer products from the sample covariance.
    noise = (rows.square().sum(1).square().sum() / n - sample.square().sum()) / n
    share = float((noise / distance.clamp_min(TINY)).clamp(0, 1))
    return (1 - share) * sample + (share * level.clamp_min(TINY)) * identity
