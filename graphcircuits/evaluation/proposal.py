"""The circuit that a result proposes, by one rule for every method, and how faithful it is.

1. A quarter of the pairs is held back, where there are enough. On the others `propose` looks for
   the fewest of the best edges that keep a share of the behaviour, `keep`, by output: first at
   sizes in equal ratios, then by halving the range between two of them down to CLOSE. Where the
   probability to be in a planted circuit is known, likely edges come first, all of them.
2. `pruning` takes out what the circuit can do without. Likely edges stay: planted circuits have
   edges that hardly any prompt needs, of which the probability knows what no run shows.
3. The circuit is judged on the pairs held back. Where it clearly falls short of `keep` there, what
   was pruned comes back; where that is not enough, the circuit is looked for again with a higher
   aim, EXTENSIONS times at most.
4. Fresh pairs, where some are given, decide nothing: they judge what came out.

Who gives a number of edges gets that many. On a large graph FEW_PAIRS of the pairs stand for all
in the search: running circuits there can take longer than the method.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.circuit import Circuit
from graphcircuits.engine.memory import OutOfMemory
from graphcircuits.evaluation.evaluate import CircuitRuns, log_sizes, shown
from graphcircuits.evaluation.pruning import pruned
from graphcircuits.methods import Progress
from graphcircuits.methods.shipped import kind_of
from graphcircuits.result.curve import FaithfulnessCurve
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.fresh import hold_back, prompt_hashes, unseen
from graphcircuits.task.pairs import Pairs

KEEP = 0.9
"""Faithfulness that a proposed circuit reaches."""
CLOSE = 0.01
"""How much larger than a size that keeps too little the size before pruning may be."""
LIKELY = 0.5
"""The probability above which an edge is taken before any measurement."""
HELD_BACK, ENOUGH = 0.25, 16
"""The share of the pairs that judges what the others chose, of at least so many pairs."""
EXTENSIONS = 2
"""How often a circuit that falls short on pairs held back is looked for with a higher aim."""
EDGES = 20
"""Shown where faithfulness cannot be measured, so that no circuit can be proposed."""
LARGE = 10_000
"""Edges from which on a graph is large: a thousandth of them is ten."""
FEW_PAIRS, FEW_CHECKED = 16, 64
"""Pairs that stand for all on a large graph: to choose a circuit, and to judge the one chosen."""
RESAMPLED, COVERED = 2000, 0.95
"""Times that prompts are drawn again for an interval, and how often it is to hold."""
MUCH, MUCH_OF = 0.05, 1_000
"""The share of the edges above which a circuit is no explanation any more, on graphs of at least so
many edges: the known circuits of graphs of a hundred edges are larger than that share."""
NO_CIRCUIT, TOO_LARGE, SHORT = "no circuit is proposed: ", "the circuit has ", "the circuit keeps "
"""What notes about a proposed circuit begin with."""
UNPRUNED = "with fewer of its edges it falls short on the pairs held back"
"""Why a circuit was not pruned, where it kept enough on the pairs it was found on without some."""


def fresh_seed(seed: int) -> int:
    """What draws fresh pairs, where this seed drew those that the scores were computed on."""
    return (seed + 1000) % 2**32


@dataclass(frozen=True, kw_only=True)
class Check:
    """How faithful a circuit is on pairs that it was not chosen on."""

    on: str
    """What the pairs are: "held back" or "fresh"."""
    n_pairs: int
    faithfulness: float
    interval: tuple[float, float] | None
    """What it may be on prompts of this kind, 19 times of 20; None of fewer than four prompts."""

    def __str__(self) -> str:
        low_high = "" if self.interval is None else " [{}, {}]".format(*map(shown, self.interval))
        kind = "pair held back" if self.on == "held back" else f"{self.on} pair"
        if self.n_pairs != 1:
            kind = kind.replace("pair", "pairs")
        return f"{shown(self.faithfulness)}{low_high} on {self.n_pairs} {kind}"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A circuit, and how faithful it is where that could be measured."""

    circuit: Circuit
    best: int
    """The number of best edges that it was pruned from."""
    likely: int = 0
    """How many of them were taken for their probability."""
    keep: float | None = None
    """The faithfulness that was asked for; None where the number of edges was."""
    aim: float | None = None
    """The faithfulness on the pairs it was chosen on that `keep` took in the end."""
    found_on: float | None = None
    """Faithfulness on the pairs it was chosen on."""
    n_pairs: int = 0
    """How many of them it was measured on."""
    of_pairs: int = 0
    """How many pairs there are in all."""
    checks: tuple[Check, ...] = ()
    """On pairs held back, and on fresh ones."""
    why: str = ""
    """Why it has no fewer edges."""
    curve: FaithfulnessCurve | None = None
    """Of the best edges, at many sizes."""
    problems: tuple[str, ...] = ()
    """Why numbers are missing."""

    def sentences(self) -> list[str]:
        """What there is to say of the circuit."""
        size = f"{len(self.circuit):,} of {self.circuit.graph.n_edges:,} edges in the circuit"
        if loose := self.best - len(self.circuit):
            size += f": the {self.best:,} best, without {loose:,} that it does not need"
        sentences = [size]
        if self.likely:
            more = self.best - self.likely
            text = f"{_count(self.likely, 'likely edge')} came first"
            sentences.append(text + (f", {more:,} more were added to keep enough" if more else ""))
        if self.found_on is not None:
            among = "the " if self.n_pairs == self.of_pairs else f"{self.n_pairs} of the "
            text = f"they keep {shown(self.found_on)} of the subject's output on {among}"
            text += f"{_count(self.of_pairs, 'pair')} they were found on"
            sentences.append(", ".join([text, *map(str, self.checks)]))
        if self.aim is not None and self.aim != self.keep:
            sentences.append(
                f"a smaller circuit kept {self.keep:g} where it was found, but less on the pairs "
                f"held back; this one was found by asking for {shown(self.aim)}"
            )
        if self.why:
            sentences.append(self.why)
        return [*sentences, *(f"how faithful it is cannot be said: {one}" for one in self.problems)]

    def warnings(self) -> list[str]:
        """What must not be overlooked."""
        size, n_edges = len(self.circuit), self.circuit.graph.n_edges
        warned = []
        if n_edges >= MUCH_OF and size > MUCH * n_edges:
            warned.append(
                f"{TOO_LARGE}{size / n_edges:.0%} of all edges, too many to explain anything: "
                "either the scores do not rank the edges that matter first, or the behaviour is "
                "spread over the model; try another method, refining, or fewer edges"
            )
        for check in self.checks:
            if self.keep is not None and _falls_short(check, self.keep):
                warned.append(
                    f"{SHORT}{check}, clearly less than the {self.keep:g} asked for: the prompts "
                    "it was found on do not stand for the others; give more of them"
                )
        return warned

    def record(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return {
            "by": "output",
            "keep": self.keep,
            "aim": self.aim,
            "best_edges": self.best,
            "likely_edges": self.likely,
            "found_on": self.found_on,
            "pairs": self.n_pairs,
            **{
                check.on.replace(" ", "_"): {
                    "pairs": check.n_pairs,
                    "faithfulness": check.faithfulness,
                    "interval": None if check.interval is None else list(check.interval),
                }
                for check in self.checks
            },
            "why": self.why,
            "problems": list(self.problems),
            "curve": None if self.curve is None else self.curve.to_json(),
        }


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def propose(
    subject: Transformer,
    pairs: Pairs,
    result: Result,
    *,
    keep: float = KEEP,
    edges: int | None = None,
    fresh: Pairs | None = None,
    with_curve: bool = True,
    seed: int | None = None,
    kind: str | None = None,
    progress: Progress | None = None,
) -> Proposal:
    """The smallest circuit found that keeps so much of the behaviour, or `edges` of the best edges.

    `seed` is what drew the pairs, for the record; `kind` what predictors call the subject, where
    that was found out already; `progress` is called with (steps done, steps in all). Without
    `with_curve` nothing else is measured where the number of edges is given. Where faithfulness
    cannot be measured, such as on pairs whose corruption changes nothing, the circuit has EDGES
    edges if nothing else is said.
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be above 0 and at most 1, got {keep}.")
    try:
        if edges is None:
            likely = _likely(subject, result, kind)
            proposal = _chosen(subject, pairs, result, keep, likely, seed, progress)
        else:
            runs = CircuitRuns(subject, _few(subject, pairs, FEW_PAIRS))
            proposal = Proposal(
                circuit=result.circuit(edges=edges),
                best=edges,
                found_on=runs([result.circuit(edges=edges)])[0],
                n_pairs=len(runs.pairs),
                of_pairs=len(pairs),
                curve=_curve(runs, result, [edges], seed) if with_curve else None,
            )
    except (ValueError, MemoryError) as error:
        edges = min(EDGES, subject.graph.n_edges) if edges is None else edges
        circuit = result.circuit(edges=edges)
        return Proposal(circuit=circuit, best=edges, problems=(_reason(error),))
    return proposal if fresh is None else _on_fresh(proposal, subject, pairs, fresh)


def _chosen(
    subject: Transformer,
    pairs: Pairs,
    result: Result,
    keep: float,
    likely: Circuit,
    seed: int | None,
    progress: Progress | None,
) -> Proposal:
    """The smallest circuit found that keeps `keep` where it is looked for and, as far as can be
    told, on the pairs held back."""
    runs, judges = _divided(subject, pairs)
    ranking = result.ranking()
    first = likely.mask[ranking]
    ladder = _Ladder(runs, torch.cat([ranking[first], ranking[~first]]), likely)
    aim, extended = keep, 0
    while True:
        best = ladder.fewest(aim)
        circuit, why = pruned(runs, ladder.circuit(best), aim, ladder.likely)
        check = None if judges is None else _checked("held back", judges, circuit)
        if progress is not None:
            progress(1 + extended, 1 + EXTENSIONS)
        if judges is None or check is None or not _falls_short(check, keep):
            break
        whole = _checked("held back", judges, ladder.circuit(best))
        if not _falls_short(whole, keep):
            circuit, check, why = ladder.circuit(best), whole, UNPRUNED
            break
        if extended == EXTENSIONS:
            break
        # At most half of what is left to 1, so that it does not end with all edges.
        aim = min(aim + keep - check.faithfulness, (1 + aim) / 2)
        extended += 1
    n_likely = len(ladder.likely)
    if n_likely:
        why = why.replace("of its edges", "of the edges added to the likely ones")
    if 0 < n_likely == best:
        why = f"edges with a probability above {LIKELY:g} stay, and they alone keep enough"
    return Proposal(
        circuit=circuit,
        best=best,
        likely=n_likely,
        keep=keep,
        aim=aim,
        found_on=runs([circuit])[0],
        n_pairs=len(runs.pairs),
        of_pairs=len(pairs),
        checks=() if check is None else (check,),
        why=why,
        curve=_curve(runs, result, [*ladder.tried, best], seed),
    )


def _likely(subject: Transformer, result: Result, kind: str | None) -> Circuit:
    """The edges that are taken for their probability: none where it is not that of a true circuit.

    On natural subjects it is the chance to be among the few edges that keep most of the behaviour,
    which can be measured here.
    """
    likely = result.probabilities
    if likely is None or (kind or kind_of(subject)).startswith(("natural", "language")):
        likely = torch.zeros(result.graph.n_edges)
    return Circuit.from_mask(result.graph, likely > LIKELY)


@dataclass(frozen=True)
class _Ladder:
    """Circuits of growing numbers of edges: the likely ones, then the others, the best first."""

    runs: CircuitRuns
    order: Int[Tensor, " edge"]
    likely: Circuit
    tried: set[int] = field(default_factory=set)

    def circuit(self, size: int) -> Circuit:
        """The first edges, without those on no path from input to logits."""
        mask = torch.zeros(len(self.order), dtype=torch.bool)
        mask[self.order[:size]] = True
        return Circuit.from_mask(self.likely.graph, mask).pruned()

    def fewest(self, aim: float) -> int:
        """The smallest number of edges found that reach the aim, all likely ones among them.

        What is kept need not grow with the size: the size that is returned keeps enough, and one
        that is smaller by one edge, or by CLOSE, does not.
        """
        n_likely, n_edges = len(self.likely), len(self.order)
        larger = {size for size in (*log_sizes(n_edges), *self.tried) if size > n_likely}
        too_few, enough = n_likely, n_edges
        # From few edges to many: large circuits take longer to run.
        for size in sorted({n_likely, *larger} - {0}):
            self.tried.add(size)
            if self.runs([self.circuit(size)])[0] >= aim:
                enough = size
                break
            too_few = size
        while enough - too_few > max(1.0, CLOSE * too_few):
            size = (too_few + enough) // 2
            self.tried.add(size)
            if self.runs([self.circuit(size)])[0] >= aim:
                enough = size
            else:
                too_few = size
        return enough


def _curve(
    runs: CircuitRuns, result: Result, sizes: Sequence[int], seed: int | None
) -> FaithfulnessCurve:
    """Of the best edges at these sizes and, on a graph that is not large, at those in equal ratios,
    without the whole graph, which is faithful whatever the ranking."""
    n_edges = result.graph.n_edges
    grid = [] if n_edges >= LARGE else log_sizes(n_edges)[:-1]
    return runs.curve(result, sorted({*grid, *sizes}), seed=seed)


# Pairs


def _divided(subject: Transformer, pairs: Pairs) -> tuple[CircuitRuns, CircuitRuns | None]:
    """Runs to choose a circuit by, and those on pairs held back to judge it, where there are
    enough and either part has pairs whose corruption changes something."""
    if len(set(prompt_hashes(pairs))) >= ENOUGH:
        search, held = hold_back(pairs, HELD_BACK)
        runs = CircuitRuns(subject, _few(subject, search, FEW_PAIRS))
        judges = CircuitRuns(subject, _few(subject, held, FEW_CHECKED))
        with suppress(ValueError):
            for part in (runs, judges):
                part([])
            return runs, judges
    return CircuitRuns(subject, _few(subject, pairs, FEW_PAIRS)), None


def _few(subject: Transformer, pairs: Pairs, few: int) -> Pairs:
    return pairs[:few] if subject.graph.n_edges >= LARGE else pairs


# Judging


def _on_fresh(proposal: Proposal, subject: Transformer, seen: Pairs, fresh: Pairs) -> Proposal:
    left = unseen(fresh, seen)
    if left is None:
        problem = (
            f"on fresh pairs: all {len(fresh)} that were drawn are among those it was found on"
        )
        return replace(proposal, problems=(problem,))
    try:
        runs = CircuitRuns(subject, _few(subject, left, FEW_CHECKED))
        check = _checked("fresh", runs, proposal.circuit)
    except (ValueError, MemoryError) as error:
        return replace(proposal, problems=(f"on fresh pairs: {_reason(error)}",))
    return replace(proposal, checks=(*proposal.checks, check))


def _checked(on: str, runs: CircuitRuns, circuit: Circuit) -> Check:
    (value,) = runs([circuit])
    return Check(
        on=on,
        n_pairs=len(runs.pairs),
        faithfulness=value,
        interval=resampled_interval(runs.losses([circuit])),
    )


def resampled_interval(losses: Float[Tensor, "3 prompt"]) -> tuple[float, float] | None:
    """Where faithfulness lies, COVERED of the time, when the prompts are drawn again with repeats.

    Of the losses with every edge cut, with none and under the circuit. None of fewer than four
    prompts, which say nothing of how prompts differ.
    """
    n = losses.shape[1]
    if n < 4:
        return None
    draws = torch.randint(n, (RESAMPLED, n), generator=torch.Generator().manual_seed(0))
    empty, clean, circuit = losses[:, draws].mean(-1)
    kept = (empty - circuit) / (empty - clean)
    # Draws of prompts that the corruption does not change say nothing.
    ends = torch.tensor([(1 - COVERED) / 2, (1 + COVERED) / 2], dtype=kept.dtype)
    low, high = kept[kept.isfinite()].quantile(ends).tolist()
    return low, high


def _falls_short(check: Check, keep: float) -> bool:
    return check.interval is not None and check.interval[1] < keep


def _reason(error: Exception) -> str:
    """What went wrong, without what a caller could do about memory: nobody called for this run."""
    return error.head if isinstance(error, OutOfMemory) else str(error)
