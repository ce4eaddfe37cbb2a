"""The circuit that a result proposes, by one rule for every method, and how faithful it is.

1. `propose` takes the fewest of the best edges that keep a share of the behaviour, `keep`, on the
   pairs that the scores were computed on, without those on no path from input to logits: these
   change nothing. It halves the range of sizes, in ratios, until one edge or CLOSE is left, so that
   some eight circuits are run instead of one per size. Who gives a number of edges gets that many.
2. How faithful the circuit is is measured on those pairs and on fresh ones, where some are given.
3. `recorded_curve` measures the best edges at many sizes, for those who want to look at others.

On a large graph FEW_PAIRS of the pairs stand for all: running circuits there can take longer than
the method.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphcircuits.circuit import Circuit
from graphcircuits.engine.memory import OutOfMemory
from graphcircuits.evaluation.evaluate import CircuitRuns, faithfulness, log_sizes, mib_sizes, shown
from graphcircuits.methods import Progress
from graphcircuits.result.curve import FaithfulnessCurve
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.fresh import unseen
from graphcircuits.task.pairs import Pairs

KEEP = 0.9
"""Faithfulness that a proposed circuit reaches."""
CLOSE = 0.05
"""How much larger than a size that keeps too little the proposed size may be."""
EDGES = 20
"""Shown where faithfulness cannot be measured, so that no circuit can be proposed."""
LARGE = 10_000
"""Edges from which on a graph is large: a thousandth of them is ten."""
FEW_PAIRS = 16
"""Pairs that stand for all on a large graph."""
MUCH, MUCH_OF = 0.05, 1_000
"""The share of the edges above which a circuit is no explanation any more, on graphs of at least so
many edges: the known circuits of graphs of a hundred edges are larger than that share."""
NO_CIRCUIT, TOO_LARGE = "no circuit is proposed: ", "the circuit has "
"""What notes about a proposed circuit begin with."""


def fresh_seed(seed: int) -> int:
    """What draws fresh pairs, where this seed drew those that the scores were computed on."""
    return (seed + 1000) % 2**32


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A circuit, and how faithful it is where that could be measured."""

    circuit: Circuit
    best: int
    """The number of best edges of which the circuit has those on a path from input to logits."""
    keep: float | None = None
    """The faithfulness that was asked for; None where the number of edges was."""
    found_on: float | None = None
    """Faithfulness on the pairs that the scores were computed on."""
    n_pairs: int = 0
    """How many of them it was measured on."""
    of_pairs: int = 0
    """How many there are."""
    fresh: float | None = None
    """Faithfulness on other pairs."""
    n_fresh: int = 0
    curve: FaithfulnessCurve | None = None
    """At the sizes that were tried, where the size was left open."""
    problems: tuple[str, ...] = ()
    """Why numbers are missing."""

    def sentences(self) -> list[str]:
        """What there is to say of the circuit."""
        sentences, n_edges = [], self.circuit.graph.n_edges
        size = f"{len(self.circuit):,} of {n_edges:,} edges in the circuit"
        if loose := self.best - len(self.circuit):
            size += f": the {self.best:,} best, without {loose:,} on no path from input to logits"
        sentences.append(size)
        if self.found_on is not None:
            text = f"they keep {shown(self.found_on)} of the behaviour on "
            of_all = "the " if self.n_pairs == self.of_pairs else f"{self.n_pairs} of the "
            text += f"{of_all}{_count(self.of_pairs, 'pair')} they were found on"
            if self.fresh is not None:
                text += f", {shown(self.fresh)} on {_count(self.n_fresh, 'fresh pair')}"
            sentences.append(text)
            if self.keep is not None:
                near = f" (found to within {CLOSE:.0%})" if self.best * CLOSE > 1 else ""
                sentences.append(f"fewer of the best edges keep less than {self.keep:g}{near}")
        return [*sentences, *(f"how faithful it is cannot be said: {one}" for one in self.problems)]

    def warnings(self) -> list[str]:
        """What must not be overlooked."""
        size, n_edges = len(self.circuit), self.circuit.graph.n_edges
        if n_edges < MUCH_OF or size <= MUCH * n_edges:
            return []
        return [
            f"{TOO_LARGE}{size / n_edges:.0%} of all edges, too many to explain anything: "
            "either the scores do not rank the edges that matter first, or the behaviour is spread "
            "over the model; try another method, refining, or fewer edges"
        ]

    def record(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return {
            "keep": self.keep,
            "best_edges": self.best,
            "found_on": self.found_on,
            "pairs": self.n_pairs,
            "fresh": self.fresh,
            "fresh_pairs": self.n_fresh,
            "problems": list(self.problems),
            "curve": None if self.curve is None else self.curve.to_json(),
        }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def propose(
    subject: Transformer,
    pairs: Pairs,
    result: Result,
    *,
    keep: float = KEEP,
    edges: int | None = None,
    fresh: Pairs | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Proposal:
    """The fewest of the best edges that keep so much of the behaviour, or as many as `edges` says.

    `seed` is what drew the pairs, for the record; `progress` is called with (circuits run, how many
    there will be at most). Where faithfulness cannot be measured, such as on pairs whose corruption
    changes nothing, the circuit has EDGES edges if nothing else is said.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be above 0 and at most 1, got {keep}.")
    few, problems = _few(subject, pairs), []
    found_on = curve = circuit = None
    try:
        runs = CircuitRuns(subject, few)
        if edges is None:
            edges, tried = _fewest(result, runs, keep, progress)
            sizes = sorted(tried)
            curve = FaithfulnessCurve(
                n_edges=subject.graph.n_edges,
                sizes=sizes,
                faithfulness=[tried[size] for size in sizes],
                n_pairs=len(few),
                seed=seed,
            )
            circuit, found_on = result.circuit(edges=edges, prune=True), tried[edges]
        else:
            (found_on,) = runs([result.circuit(edges=edges)])
    except (ValueError, MemoryError) as error:
        problems.append(_why(error))
        edges = min(EDGES, subject.graph.n_edges) if edges is None else edges
    proposal = Proposal(
        circuit=result.circuit(edges=edges) if circuit is None else circuit,
        best=edges,
        keep=None if curve is None else keep,
        found_on=found_on,
        n_pairs=len(few),
        of_pairs=len(pairs),
        curve=curve,
        problems=tuple(problems),
    )
    return proposal if fresh is None or problems else _on_fresh(proposal, subject, pairs, fresh)


def _fewest(
    result: Result,
    runs: Callable[[Sequence[Circuit]], list[float]],
    keep: float,
    progress: Progress | None,
) -> tuple[int, dict[int, float]]:
    """The smallest size that keeps enough, and the faithfulness at all sizes that were tried.

    Faithfulness need not grow with the size. The size returned keeps enough, and one that is
    smaller by one edge, or by CLOSE, does not.
    """
    too_few, enough = 0, result.graph.n_edges
    steps = math.ceil(math.log2(max(2.0, math.log(max(2, enough)) / math.log1p(CLOSE))))
    tried = {enough: 1.0}  # all edges are the model itself
    while enough - too_few > 1 and enough > too_few * (1 + CLOSE):
        size = math.isqrt(max(1, too_few) * enough)
        size = min(max(size, too_few + 1), enough - 1)
        circuit = result.circuit(edges=size, prune=True)
        (tried[size],) = runs([circuit])
        if tried[size] >= keep:
            # Edges behind the last on a path change nothing.
            inside = circuit.mask[result.ranking()].nonzero()
            last = int(inside[-1]) + 1 if len(inside) else 0
            tried[last] = tried[size]
            enough = max(last, too_few + 1)
        else:
            too_few = size
        if progress is not None:
            progress(min(len(tried), steps), steps)
    if enough < result.graph.n_edges:
        del tried[result.graph.n_edges]
    return enough, tried


def _on_fresh(proposal: Proposal, subject: Transformer, seen: Pairs, fresh: Pairs) -> Proposal:
    left = unseen(fresh, seen)
    if left is None:
        problem = (
            f"on fresh pairs: all {len(fresh)} that were drawn are among those it was found on"
        )
        return replace(proposal, problems=(problem,))
    few = _few(subject, left)
    try:
        (value,) = faithfulness(subject, few, [proposal.circuit])
    except (ValueError, MemoryError) as error:
        return replace(proposal, problems=(f"on fresh pairs: {_why(error)}",))
    return replace(proposal, fresh=value, n_fresh=len(few))


def _why(error: Exception) -> str:
    """What went wrong, without what a caller could do about memory: nobody called for this run."""
    return error.head if isinstance(error, OutOfMemory) else str(error)


def _few(subject: Transformer, pairs: Pairs) -> Pairs:
    return pairs[:FEW_PAIRS] if subject.graph.n_edges >= LARGE else pairs


def recorded_curve(
    subject: Transformer, pairs: Pairs, result: Result, *, size: int, seed: int | None = None
) -> FaithfulnessCurve | None:
    """How faithful the best edges are at this size and at those of a grid: MIB's on large graphs,
    log-spaced on others, without the whole graph, which is faithful whatever the ranking.

    None where it cannot be measured.
    """
    n_edges, few = subject.graph.n_edges, _few(subject, pairs)
    grid = mib_sizes(n_edges) if n_edges >= LARGE else log_sizes(n_edges)
    sizes = sorted({one for one in (*grid, size) if one < n_edges})
    try:
        return CircuitRuns(subject, few).curve(result, sizes, seed=seed)
    except (ValueError, MemoryError):
        return None
