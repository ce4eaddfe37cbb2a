"""What circuits keep on fresh prompts, prompt by prompt, so that intervals can be given.

A share is faithfulness by output: 1 where a circuit puts out what the whole subject does, 0 where
it is as far from that as with every edge cut. Each prompt's is in units of the mean over prompts,
so that their mean is the faithfulness of the circuit and differences of circuits are paired.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.evaluate import CircuitRuns
from graphcircuits.evaluation.proposal import COVERED, RESAMPLED

AT_ONCE = 64
"""Circuits that are run between two looks at the clock."""


class OutOfTime(Exception):
    """The time that was given is over."""


@dataclass(frozen=True)
class Clock:
    """How much time is left; without `seconds` there is no end."""

    seconds: float | None = None
    began: float = field(default_factory=time.perf_counter)

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.began

    def share(self, part: float) -> "Clock":
        """A clock that ends when this part of all the time is over."""
        return self if self.seconds is None else Clock(part * self.seconds, self.began)

    def check(self) -> None:
        if self.seconds is not None and self.spent > self.seconds:
            raise OutOfTime


@dataclass(frozen=True)
class Judge:
    """Runs of circuits on prompts that they were not found on."""

    runs: CircuitRuns
    clock: Clock

    def shares(self, circuits: Sequence[Circuit]) -> Float[Tensor, "circuit prompt"]:
        """What each circuit keeps on each prompt; their mean is its faithfulness."""
        parts = []
        for start in range(0, len(circuits), AT_ONCE):
            self.clock.check()
            self.runs([])  # refuses pairs that say nothing
            empty, clean, *losses = self.runs.losses(circuits[start : start + AT_ONCE])
            parts.append((empty - torch.stack(losses)) / (empty - clean).mean())
        return torch.cat(parts)

    def kept(self, circuit: Circuit) -> float:
        """The faithfulness of one circuit."""
        return float(self.shares([circuit]).mean())


def draws(n: int, times: int = RESAMPLED) -> Tensor:
    """Rows of n numbers below n, drawn with repeats: the same for every question."""
    return torch.randint(n, (times, n), generator=torch.Generator().manual_seed(0))


def between(values: Float[Tensor, " draw"]) -> tuple[float, float]:
    """The range in which COVERED of the values lie."""
    ends = torch.tensor([(1 - COVERED) / 2, (1 + COVERED) / 2], dtype=values.dtype)
    low, high = values.quantile(ends).tolist()
    return low, high


def mean_interval(values: Float[Tensor, " draw"]) -> tuple[float, float] | None:
    """Where the mean lies when these are drawn again; None of fewer than four."""
    return None if len(values) < 4 else between(values[draws(len(values))].mean(1))


def share_interval(hits: int, n: int) -> tuple[float, float]:
    """Where a share lies of which n draws hit so often, by Wilson's score."""
    z = 1.96
    share, room = hits / n, z * z / n
    middle, half = share + room / 2, z * (share * (1 - share) / n + room / (4 * n)) ** 0.5
    return max(0.0, (middle - half) / (1 + room)), min(1.0, (middle + half) / (1 + room))
