"""Is it found again? The search is repeated on prompts drawn again and with other seeds.

1. `Search` finds a circuit as the one at hand was found: by the same method with the same options,
   proposed by the same rule (`evaluation.proposal`) at the same faithfulness.
2. Each repetition sees the prompts drawn again with repeats, all of one clean prompt together.
3. Overlap is the Jaccard index of two circuits: edges in both over edges in either. The core are
   the edges that came back in most repetitions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graphcircuits.certificates.certificate import Line
from graphcircuits.certificates.judging import Clock, Judge, OutOfTime, mean_interval
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.localize import localize, refine
from graphcircuits.methods import ALONG_PATHS, METHODS
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.fresh import prompt_hashes
from graphcircuits.task.pairs import Pairs

REPETITIONS = 8
"""Fresh searches."""
CORE = 0.75
"""The share of them in which an edge of the core came back."""
LEAST_KEPT, MOST_KEPT = 0.5, 0.98
"""Between which the faithfulness lies that fresh searches ask for."""
REFINING = {"refine_steps": "steps", "refine_seconds": "seconds"}
"""Options of results that were refined, and what `refine` calls them."""

Find = Callable[[Transformer, Pairs, int], Result]
"""A subject, pairs and a seed -> a result with its circuit."""


@dataclass(frozen=True)
class Search:
    """A way to find a circuit, and what to call it."""

    words: str
    find: Find

    @classmethod
    def of(cls, given: "Result | str | Find | None", keep: float) -> "Search":
        """That by which a result was found, by a method's name, or a function; by the usual choice
        of `localize` where nothing is given."""
        if isinstance(given, Result):
            return cls._of_result(given, keep)
        if given is None or isinstance(given, str):

            def find(subject: Transformer, pairs: Pairs, seed: int) -> Result:
                return localize(subject, pairs, given, keep=keep, seed=seed, keep_prompts=0)

            return cls(given or "the method that localize chooses", find)
        return cls(getattr(given, "__name__", "a function"), given)

    @classmethod
    def _of_result(cls, result: Result, keep: float) -> "Search":
        options = dict(result.options)
        length = {name: options.pop(key) for key, name in REFINING.items() if key in options}
        if result.method.removesuffix(ALONG_PATHS) not in METHODS:
            raise ValueError(
                f"the result was found by {result.method or 'a method without a name'}, which is "
                "no method of this package, so that it cannot be searched for again: give search=, "
                "a method's name or a function of subject, pairs and seed that returns a Result."
            )

        def find(subject: Transformer, pairs: Pairs, seed: int) -> Result:
            first = None if length else keep
            given = {"keep": first, "seed": seed, "keep_prompts": 0}
            found = localize(subject, pairs, result.method, **given, **options)
            return refine(subject, pairs, found, keep=keep, **length) if length else found

        refined = ", refined" if length else ""
        return cls(f"{result.method}{refined}", find)


def asked_of_searches(kept: float) -> float:
    """The faithfulness that fresh searches ask for, given that of the circuit."""
    return min(max(kept, LEAST_KEPT), MOST_KEPT)


@dataclass(frozen=True, eq=False)
class Searches:
    """What fresh searches found."""

    results: list[Result] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Why some found nothing."""

    @property
    def masks(self) -> Bool[Tensor, "search edge"]:
        return torch.stack([result.circuit().mask for result in self.results])

    @property
    def came_back(self) -> Float[Tensor, " edge"]:
        """In which share of the searches each edge was in the circuit."""
        return self.masks.float().mean(0)

    @property
    def core(self) -> Circuit:
        """The edges that came back in most searches, without those on no path."""
        return Circuit.from_mask(self.results[0].graph, self.came_back >= CORE).pruned()


def search_again(
    subject: Transformer,
    pairs: Pairs,
    search: Search,
    *,
    times: int = REPETITIONS,
    seed: int,
    clock: Clock,
) -> Searches:
    """Search on prompts drawn again, until the time is over."""
    found = Searches()
    generator = torch.Generator().manual_seed(seed)
    for number in range(times):
        try:
            clock.check()
        except OutOfTime:
            found.problems.append(f"time was over after {number} of {times} fresh searches")
            break
        again = resampled(pairs, generator)
        try:
            result = search.find(subject, again, seed + 1 + number)
            result.circuit()
            found.results.append(result)
        except (ValueError, MemoryError) as error:
            found.problems.append(str(error))
    return found


def resampled(pairs: Pairs, generator: torch.Generator) -> Pairs:
    """As many prompts, drawn with repeats; pairs of one clean prompt come together."""
    names = prompt_hashes(pairs)
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    groups = list(rows.values())
    drawn = torch.randint(len(groups), (len(groups),), generator=generator).tolist()
    return pairs[[row for group in drawn for row in groups[group]]]


def overlap(one: Circuit, other: Circuit) -> float:
    """Edges in both over edges in either."""
    either = len(one | other)
    return len(one & other) / either if either else 1.0


def stable(judge: Judge, circuit: Circuit, found: Searches, least: float, seen: float) -> Line:
    """How much fresh searches share with the circuit, and how many of its edges they ever saw."""
    again = [result.circuit() for result in found.results]
    values = torch.tensor([overlap(circuit, one) for one in again], dtype=torch.float64)
    back = found.came_back[circuit.mask]
    core = found.core
    value = float(values.mean())
    never = int((back == 0).sum())
    came_back = 1 - never / len(circuit)
    core_kept = judge.kept(core) if len(core) else 0.0
    return Line(
        name="stable",
        passed=value >= least and came_back >= seen,
        value=value,
        interval=mean_interval(values),
        asked=f"at least {least:g}, and {seen:.0%} of its edges seen again",
        sentence=f"{len(again)} fresh searches share this much with it; {never:,} of its edges "
        f"never came back; a core of {len(core):,} edges keeps {core_kept:.2f}",
        details={
            "searches": len(again),
            "sizes": [len(one) for one in again],
            "overlaps": values.tolist(),
            "among_themselves": _mean_pairwise(again),
            "never_came_back": never,
            "core": {"edges": len(core), "kept": core_kept},
            "problems": found.problems,
        },
    )


def _mean_pairwise(circuits: Sequence[Circuit]) -> float | None:
    pairs = [(a, b) for n, a in enumerate(circuits) for b in circuits[:n]]
    return sum(overlap(a, b) for a, b in pairs) / len(pairs) if pairs else None
